//! Discrete Fourier transforms over any dimensions and for any sizes, computed in complex128.

use crate::support::convert::{read, write};
use crate::support::copy::copy_bytes;
use crate::support::dims::{DimSet, to_positive, wrap_dim};
use crate::support::dtype::C64;
use crate::support::layout::Layout;
use crate::support::rows::expect_type;
use operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ScratchBuffer, ensure};
use smallvec::SmallVec;
use std::f64::consts::TAU;
use tensor::{ScalarType, Shape};

macro_rules! row {
    ($schema:literal, $dtypes:ident, $f:ident) => {
        Operator::new(concat!("aten::", $schema, ", *, Tensor(a!) out) -> Tensor(a!)"), DtypeSet::$dtypes, $f)
    };
}

pub(crate) const OPERATORS: &[Operator] = &[
    row!("_fft_r2c.out(Tensor self, int[] dim, int normalization, bool onesided", FLOATING, r2c),
    row!("_fft_c2r.out(Tensor self, int[] dim, int normalization, SymInt last_dim_size", COMPLEX, c2r),
    row!("_fft_c2c.out(Tensor self, SymInt[] dim, int normalization, bool forward", COMPLEX, c2c),
];

/// The largest prime factor that a transform is split by; lengths with larger ones use Bluestein's algorithm.
const LARGEST_RADIX: usize = 61;

/// The plan of a transform of one length: its factors and its roots of unity.
struct Plan<'a> {
    n: usize,
    factors: SmallVec<[usize; 16]>,
    /// `exp(-2 pi i k / n)`.
    roots: ScratchBuffer<'a, C64>,
    chirp: Option<Box<Chirp<'a>>>,
}

/// Bluestein's algorithm: a transform as a convolution with a chirp, whose length is a power of two.
struct Chirp<'a> {
    inner: Plan<'a>,
    /// `exp(-pi i k k / n)`.
    chirp: ScratchBuffer<'a, C64>,
    /// The transform of the conjugate chirp, wrapped around at the end.
    filter: ScratchBuffer<'a, C64>,
}

fn root(k: u128, n: usize) -> C64 {
    let angle = -TAU * (k % n as u128) as f64 / n as f64;
    C64::new(angle.cos(), angle.sin())
}

impl<'a> Plan<'a> {
    fn new(ctx: &KernelContext<'a>, n: usize) -> Result<Self> {
        let mut factors = SmallVec::new();
        let mut rest = n;
        for p in 2..=LARGEST_RADIX {
            while rest.is_multiple_of(p) && rest > 1 {
                factors.push(p);
                rest /= p;
            }
        }
        if rest > 1 {
            let too_long = || Error::invalid(format!("self: a transform of {n} elements is too long"));
            let m = n.checked_mul(2).and_then(usize::checked_next_power_of_two).ok_or_else(too_long)?;
            let inner = Self::new(ctx, m)?;
            let mut chirp = ctx.scratch::<C64>(n)?;
            for (k, c) in chirp.iter_mut().enumerate() {
                *c = root(k as u128 * k as u128, 2 * n);
            }
            let (mut wrapped, mut filter) = (ctx.scratch::<C64>(m)?, ctx.scratch::<C64>(m)?);
            wrapped.fill(C64::default());
            for (k, c) in chirp.iter().enumerate() {
                wrapped[k] = c.conj();
                wrapped[(m - k) % m] = c.conj();
            }
            inner.run(&wrapped, &mut filter, &mut []);
            let chirp = Some(Box::new(Chirp { inner, chirp, filter }));
            return Ok(Self { n, factors, roots: ctx.scratch(0)?, chirp });
        }
        let mut roots = ctx.scratch::<C64>(n)?;
        roots.iter_mut().enumerate().for_each(|(k, r)| *r = root(k as u128, n));
        Ok(Self { n, factors, roots, chirp: None })
    }

    /// The number of elements of workspace that [`Self::run`] needs.
    fn work(&self) -> usize {
        self.chirp.as_ref().map_or(0, |c| 2 * c.inner.n)
    }

    /// The unscaled forward transform.
    fn run(&self, from: &[C64], to: &mut [C64], work: &mut [C64]) {
        let Some(chirp) = &self.chirp else {
            return self.split(from, 1, to, &self.factors);
        };
        let (a, b) = work.split_at_mut(chirp.inner.n);
        a.fill(C64::default());
        a.iter_mut().zip(from).zip(chirp.chirp.iter()).for_each(|((a, x), c)| *a = x * c);
        chirp.inner.run(a, b, &mut []);
        // The inverse transform is the conjugate of the forward transform of the conjugate.
        b.iter_mut().zip(chirp.filter.iter()).for_each(|(b, f)| *b = (*b * f).conj());
        chirp.inner.run(b, a, &mut []);
        let scale = 1.0 / chirp.inner.n as f64;
        for ((to, a), c) in to.iter_mut().zip(a.iter()).zip(chirp.chirp.iter()) {
            *to = a.conj() * c * scale;
        }
    }

    /// Transforms the elements that are `stride` apart. A step of mixed-radix Cooley-Tukey: for the first factor `p`,
    /// it transforms each of the `p` subsequences of every `p`th element and combines them.
    fn split(&self, from: &[C64], stride: usize, to: &mut [C64], factors: &[usize]) {
        let Some((&p, rest)) = factors.split_first() else {
            to[0] = from[0];
            return;
        };
        pool::progress(to.len());
        let m = to.len() / p;
        for (r, part) in to.chunks_exact_mut(m).enumerate() {
            self.split(&from[r * stride..], stride * p, part, rest);
        }
        let mut parts = [C64::default(); LARGEST_RADIX];
        for k in 0..m {
            for (r, part) in parts[..p].iter_mut().enumerate() {
                *part = to[r * m + k] * self.roots[r * k * stride];
            }
            if p == 2 {
                (to[k], to[m + k]) = (parts[0] + parts[1], parts[0] - parts[1]);
                continue;
            }
            for q in 0..p {
                let turn = |r: usize| self.roots[(r * q % p) * (self.n / p)];
                to[q * m + k] = parts[..p].iter().enumerate().map(|(r, x)| x * turn(r)).sum();
            }
        }
    }
}

/// A complex128 tensor in row-major order.
struct Signal<'a> {
    sizes: Shape,
    values: ScratchBuffer<'a, C64>,
}

impl<'a> Signal<'a> {
    fn read(ctx: &KernelContext<'a>, args: &Args<'_>) -> Result<Self> {
        let x = args.tensor(0)?;
        let mut values = ctx.scratch::<C64>(x.numel())?;
        read(&x, &Layout::of(x.meta()), &mut values)?;
        Ok(Self { sizes: *x.sizes(), values })
    }

    /// Transforms every lane along a dimension, forward or backward, without scaling.
    fn transform(&mut self, ctx: &KernelContext<'_>, dim: usize, forward: bool) -> Result<()> {
        let n = self.sizes[dim];
        let inner: usize = self.sizes[dim + 1..].iter().product();
        if self.values.is_empty() {
            return Ok(());
        }
        let plan = Plan::new(ctx, n)?;
        let (mut lane, mut result) = (ctx.scratch::<C64>(n)?, ctx.scratch::<C64>(n)?);
        let mut work = ctx.scratch::<C64>(plan.work())?;
        // The backward transform is the forward one between two conjugations.
        let turn = |z: C64| if forward { z } else { z.conj() };
        for block in self.values.chunks_exact_mut(n * inner) {
            for i in 0..inner {
                lane.iter_mut().zip(block[i..].iter().step_by(inner)).for_each(|(l, &x)| *l = turn(x));
                plan.run(&lane, &mut result, &mut work);
                block[i..].iter_mut().step_by(inner).zip(result.iter()).for_each(|(x, &r)| *x = turn(r));
            }
        }
        Ok(())
    }

    /// Writes the first `kept` elements along a dimension, scaled, to the out.
    fn write(
        self,
        ctx: &KernelContext<'_>,
        outs: &mut Outs<'_>,
        dim: usize,
        kept: usize,
        scale: f64,
    ) -> Result<()> {
        let view = Layout::contiguous(&self.sizes).slice(dim, 0, kept, 1);
        let out = outs.tensor(0)?;
        out.resize(&view.sizes)?;
        let mut part = ctx.scratch::<C64>(view.numel()?)?;
        let all: &[C64] = &self.values;
        let rows = Layout::contiguous(&view.sizes);
        copy_bytes(16, bytemuck::cast_slice(all), &view, bytemuck::cast_slice_mut(&mut part), &rows)?;
        if scale != 1.0 {
            part.iter_mut().for_each(|x| *x *= scale);
        }
        let into = Layout::of(out.meta());
        write(ctx, &part, out, &into)
    }
}

/// The dimensions at argument 1, which must be distinct.
fn dims(args: &Args<'_>) -> Result<SmallVec<[usize; 8]>> {
    let (list, rank) = (args.ints(1)?, args.meta(0)?.rank());
    ensure!(
        rank > 0 && !list.is_empty(),
        "dim: expected dimensions of the tensor {}, found {list:?}",
        args.meta(0)?
    );
    DimSet::of(args.name(1), list, rank)?;
    list.iter().map(|&d| wrap_dim(args.name(1), d, rank)).collect()
}

/// The scale of the results: argument 2 selects the normalization.
fn scale(args: &Args<'_>, sizes: &Shape, dims: &[usize]) -> Result<f64> {
    let count: f64 = dims.iter().map(|&d| sizes[d] as f64).product();
    Ok(match args.int(2)? {
        0 => 1.0,
        1 | 2 if count == 0.0 => 1.0,
        1 => 1.0 / count.sqrt(),
        2 => 1.0 / count,
        other => return Err(Error::invalid(format!("normalization: {other} is not one of 0, 1, 2"))),
    })
}

fn complex_of(dtype: ScalarType) -> ScalarType {
    match dtype {
        ScalarType::Half => ScalarType::ComplexHalf,
        ScalarType::Double => ScalarType::ComplexDouble,
        _ => ScalarType::ComplexFloat,
    }
}

/// The transform of real values. With `onesided`, the last dimension keeps only the half from which the other half
/// follows by symmetry.
fn r2c(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, dtype) = (dims(args)?, args.meta(0)?.dtype());
    ensure!(dtype.is_floating(), "self: expected floating-point numbers, found {dtype}");
    expect_type("out", complex_of(dtype), outs.tensor(0)?.dtype())?;
    let mut signal = Signal::read(ctx, args)?;
    let scale = scale(args, &signal.sizes, &dims)?;
    let last = dims[dims.len() - 1];
    dims.iter().try_for_each(|&d| signal.transform(ctx, d, true))?;
    let (n, onesided) = (signal.sizes[last], args.bool(3)?);
    ensure!(n > 0 || !onesided, "dim: a onesided transform needs at least one element");
    signal.write(ctx, outs, last, if onesided { n / 2 + 1 } else { n }, scale)
}

/// The transform of complex values.
fn c2c(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, dtype, forward) = (dims(args)?, args.meta(0)?.dtype(), args.bool(3)?);
    ensure!(dtype.is_complex(), "self: expected complex numbers, found {dtype}");
    expect_type("out", dtype, outs.tensor(0)?.dtype())?;
    let mut signal = Signal::read(ctx, args)?;
    let scale = scale(args, &signal.sizes, &dims)?;
    dims.iter().try_for_each(|&d| signal.transform(ctx, d, forward))?;
    let n = signal.sizes[dims[0]];
    signal.write(ctx, outs, dims[0], n, scale)
}

/// The inverse of the onesided transform of `last_dim_size` real values.
fn c2r(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, dtype, n) = (dims(args)?, args.meta(0)?.dtype(), to_positive(args.name(3), args.int(3)?)?);
    ensure!(dtype.is_complex(), "self: expected complex numbers, found {dtype}");
    expect_type("out", dtype.to_real(), outs.tensor(0)?.dtype())?;
    let mut signal = Signal::read(ctx, args)?;
    let (last, others) = (dims[dims.len() - 1], &dims[..dims.len() - 1]);
    let half = signal.sizes[last];
    ensure!(
        n / 2 < half,
        "last_dim_size: {n} real values need at least {} complex ones, found {half}",
        n / 2 + 1
    );
    others.iter().try_for_each(|&d| signal.transform(ctx, d, false))?;
    let mut sizes = signal.sizes;
    sizes[last] = n;
    let scale = scale(args, &sizes, &dims)?;
    let inner: usize = sizes[last + 1..].iter().product();
    let mut whole = Signal { sizes, values: ctx.scratch(sizes.numel()?)? };
    if !whole.values.is_empty() {
        let blocks = whole.values.chunks_exact_mut(n * inner).zip(signal.values.chunks_exact(half * inner));
        for (to, from) in blocks {
            for k in 0..n {
                let mirrored = k > n / 2;
                let from = &from[if mirrored { n - k } else { k } * inner..][..inner];
                let to = to[k * inner..][..inner].iter_mut().zip(from);
                // An element that is its own mirror image is real.
                if k == 0 || 2 * k == n {
                    to.for_each(|(to, x)| *to = C64::new(x.re, 0.0));
                } else if mirrored {
                    to.for_each(|(to, x)| *to = x.conj());
                } else {
                    to.for_each(|(to, x)| *to = *x);
                }
            }
        }
    }
    whole.transform(ctx, last, false)?;
    whole.write(ctx, outs, last, n, scale)
}

#[cfg(test)]
mod tests {
    use super::{C64, Plan, root};
    use crate::support::call::{a, call, int, ints, out, t};
    use num_complex::Complex;
    use operator::{Arg, Generator, KernelContext, Scratch};
    use pool::Pool;
    use tensor::ScalarType::{ComplexFloat, Float};

    #[test]
    fn transforms_of_every_kind_of_length_match_the_definition() {
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(3));
        let ctx = KernelContext::new(&pool, &scratch, &generator);
        for n in [1, 2, 3, 8, 12, 61, 67, 90, 134, 127] {
            let x: Vec<C64> = (0..n).map(|_| C64::new(generator.normal(), generator.normal())).collect();
            let plan = Plan::new(&ctx, n).unwrap();
            let (mut got, mut work) = (vec![C64::default(); n], vec![C64::default(); plan.work()]);
            plan.run(&x, &mut got, &mut work);
            for (k, got) in got.iter().enumerate() {
                let want: C64 = x.iter().enumerate().map(|(i, x)| x * root((i * k) as u128, n)).sum();
                assert!((got - want).norm() < 1e-12 * n as f64, "element {k} of {n}");
            }
        }
    }

    #[test]
    fn inverse_transforms_round_trip() {
        let x = t(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 7.0]);
        let args = [a(&x), ints(&[0, 1]), int(0), Arg::Bool(true)];
        let z = call("aten::_fft_r2c.out", &args, out(ComplexFloat, &[2, 2])).unwrap();
        assert_eq!(z.storage::<Complex<f32>>().unwrap()[0], Complex::new(22.0, 0.0));
        let back = |last: i64| {
            call("aten::_fft_c2r.out", &[a(&z), ints(&[0, 1]), int(2), int(last)], out(Float, &[2, 3]))
        };
        for (got, want) in back(3).unwrap().storage::<f32>().unwrap().iter().zip(x.storage::<f32>().unwrap())
        {
            assert!((got - want).abs() < 1e-6);
        }
        for bad in [0, -1, 4, i64::MAX] {
            assert!(back(bad).is_err());
        }
        let args = [a(&x), ints(&[1, -1]), int(0), Arg::Bool(true)];
        assert!(call("aten::_fft_r2c.out", &args, out(ComplexFloat, &[2, 2])).is_err());
    }
}
