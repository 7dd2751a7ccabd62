//! Discrete Fourier transforms over any dimensions and for any sizes, in the precision of the input: `rustfft` computes
//! those of complex values.

mod plan;

use crate::support::convert::{all_values, write_row_major};
use crate::support::dims::{DimSet, to_positive, wrap_dim};
use crate::support::dtype::{Cast, Compute};
use crate::support::rows::expect_type;
use num_complex::Complex;
use plan::{Plans, Precision, Transform};
use pteron_operator::{
    Args, DtypeSet, Error, Isa, KernelContext, Operator, Outs, PreparedKernel, Result, ScratchBuffer, ensure,
};
use pteron_tensor::{Element, ScalarType, Shape};
use smallvec::SmallVec;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::_fft_r2c.out(Tensor self, int[] dim, int normalization, bool onesided, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        |ctx, args, outs| execute_unprepared(Kind::RealToComplex, ctx, args, outs),
    )
    .prepare(|args| prepare(Kind::RealToComplex, args)),
    Operator::new(
        "aten::_fft_c2r.out(Tensor self, int[] dim, int normalization, SymInt last_dim_size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::COMPLEX,
        |ctx, args, outs| execute_unprepared(Kind::ComplexToReal, ctx, args, outs),
    )
    .prepare(|args| prepare(Kind::ComplexToReal, args)),
    Operator::new(
        "aten::_fft_c2c.out(Tensor self, SymInt[] dim, int normalization, bool forward, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::COMPLEX,
        |ctx, args, outs| execute_unprepared(Kind::Complex, ctx, args, outs),
    )
    .prepare(|args| prepare(Kind::Complex, args)),
];

/// The kinds of Fourier transforms; each has an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    RealToComplex,
    ComplexToReal,
    Complex,
}

impl Kind {
    fn run<T: Precision>(
        self,
        plans: &Plans<T>,
        ctx: &KernelContext<'_>,
        args: &Args<'_>,
        outs: &mut Outs<'_>,
    ) -> Result<()>
    where
        Complex<T>: Compute,
    {
        match self {
            Self::RealToComplex => r2c(plans, ctx, args, outs),
            Self::ComplexToReal => c2r(plans, ctx, args, outs),
            Self::Complex => c2c(plans, ctx, args, outs),
        }
    }
}

fn is_double(dtype: ScalarType) -> bool {
    matches!(dtype, ScalarType::Double | ScalarType::ComplexDouble)
}

fn execute_unprepared(
    kind: Kind,
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
) -> Result<()> {
    match is_double(args.meta("self")?.dtype()) {
        true => kind.run(&Plans::<f64>::empty(ctx.isa()), ctx, args, outs),
        false => kind.run(&Plans::<f32>::empty(ctx.isa()), ctx, args, outs),
    }
}

/// The length above which transforms are planned when they run, within the limit of temporary memory.
const LONGEST_PREPARED: usize = 1 << 20;

/// A call whose transforms are planned.
struct Prepared<T> {
    kind: Kind,
    plans: Plans<T>,
}

impl<T: Precision> PreparedKernel for Prepared<T>
where
    Complex<T>: Compute,
{
    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
        match self.plans.fits(ctx) {
            true => self.kind.run(&self.plans, ctx, args, outs),
            false => self.kind.run(&Plans::<T>::empty(ctx.isa()), ctx, args, outs),
        }
    }

    fn nbytes(&self) -> usize {
        self.plans.nbytes()
    }
}

fn prepare(kind: Kind, args: &Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>> {
    // What cannot be planned, because an argument is unknown or wrong, is left to the call.
    let Ok(transforms) = required_transforms(kind, args) else { return Ok(None) };
    if transforms.iter().any(|t| t.len == 0 || t.len > LONGEST_PREPARED) {
        return Ok(None);
    }
    let isa = Isa::detect();
    Ok(Some(match is_double(args.meta("self")?.dtype()) {
        true => Box::new(Prepared { kind, plans: Plans::<f64>::of(isa, &transforms) }),
        false => Box::new(Prepared { kind, plans: Plans::<f32>::of(isa, &transforms) }),
    }))
}

/// The transforms that a call needs.
fn required_transforms(kind: Kind, args: &Args<'_>) -> Result<SmallVec<[Transform; 8]>> {
    let (dims, sizes) = (transform_dims(args)?, args.meta("self")?.sizes());
    let last = dims.len() - 1;
    let each = dims.iter().enumerate().map(|(i, &dim)| {
        let complex = |forward| Transform { len: sizes[dim], forward, real: false };
        let real = |len, forward| Transform { len, forward, real: true };
        Ok(match kind {
            Kind::RealToComplex if i == last => real(sizes[dim], true),
            Kind::RealToComplex => complex(true),
            Kind::ComplexToReal if i == last => {
                real(to_positive("last_dim_size", args.int("last_dim_size")?)?, false)
            }
            Kind::ComplexToReal => complex(false),
            Kind::Complex => complex(args.bool("forward")?),
        })
    });
    each.collect()
}

/// The dimensions listed by argument 1, which must be distinct.
fn transform_dims(args: &Args<'_>) -> Result<SmallVec<[usize; 8]>> {
    let (list, rank) = (args.ints("dim")?, args.meta("self")?.rank());
    ensure!(
        rank > 0 && !list.is_empty(),
        "dim: expected dimensions of the tensor {}, found {list:?}",
        args.meta("self")?
    );
    DimSet::from_list("dim", list, rank)?;
    list.iter().map(|&d| wrap_dim("dim", d, rank)).collect()
}

/// The scale of the results, by the normalization that argument 2 selects.
fn result_scale(args: &Args<'_>, sizes: &Shape, dims: &[usize]) -> Result<f64> {
    let count: f64 = dims.iter().map(|&d| sizes[d] as f64).product();
    Ok(match args.int("normalization")? {
        0 => 1.0,
        1 | 2 if count == 0.0 => 1.0,
        1 => 1.0 / count.sqrt(),
        2 => 1.0 / count,
        other => return Err(Error::invalid(format!("normalization: {other} is not one of 0, 1, 2"))),
    })
}

fn to_complex_type(dtype: ScalarType) -> ScalarType {
    match dtype {
        ScalarType::Half => ScalarType::ComplexHalf,
        ScalarType::Double => ScalarType::ComplexDouble,
        _ => ScalarType::ComplexFloat,
    }
}

/// The number of lanes that are copied together where the elements of a lane are not adjacent.
const TILE: usize = 8;

/// The lanes along a dimension of a row-major tensor: `inner` lanes lie side by side.
#[derive(Clone, Copy)]
struct Lanes {
    len: usize,
    inner: usize,
}

impl Lanes {
    fn of(sizes: &Shape, dim: usize) -> Self {
        Self { len: sizes[dim], inner: sizes[dim + 1..].iter().product() }
    }

    /// Copies up to [`TILE`] lanes of a block, from lane `start` on, so that the elements of each lane are adjacent.
    fn gather<E: Element>(self, block: &[E], start: usize, tile: &mut [E]) {
        let width = TILE.min(self.inner - start);
        for (k, row) in block.chunks_exact(self.inner).enumerate() {
            for (w, &x) in row[start..start + width].iter().enumerate() {
                tile[w * self.len + k] = x;
            }
        }
    }

    /// The inverse of [`Self::gather`].
    fn scatter<E: Element>(self, block: &mut [E], start: usize, tile: &[E]) {
        let width = TILE.min(self.inner - start);
        for (k, row) in block.chunks_exact_mut(self.inner).enumerate() {
            for (w, x) in row[start..start + width].iter_mut().enumerate() {
                *x = tile[w * self.len + k];
            }
        }
    }
}

/// Calls `body` for each lane of `from` along a dimension and the lane of `to` at the same place. Both have the same
/// sizes except along the dimension, and no size is 0.
fn each_lane<A: Element, B: Element>(
    ctx: &KernelContext<'_>,
    (from, a): (&[A], Lanes),
    (to, b): (&mut [B], Lanes),
    mut body: impl FnMut(&[A], &mut [B]),
) -> Result<()> {
    let blocks = from.chunks_exact(a.len * a.inner).zip(to.chunks_exact_mut(b.len * b.inner));
    if a.inner == 1 {
        blocks.for_each(|(from, to)| {
            pteron_pool::progress(a.len);
            body(from, to);
        });
        return Ok(());
    }
    let (mut sources, mut results) = (ctx.scratch::<A>(TILE * a.len)?, ctx.scratch::<B>(TILE * b.len)?);
    for (from, to) in blocks {
        for start in (0..a.inner).step_by(TILE) {
            a.gather(from, start, &mut sources);
            let lanes = sources.chunks_exact(a.len).zip(results.chunks_exact_mut(b.len));
            lanes.take(a.inner - start).for_each(|(from, to)| {
                pteron_pool::progress(a.len);
                body(from, to);
            });
            b.scatter(to, start, &results);
        }
    }
    Ok(())
}

/// Transforms every lane along a dimension in place, without scaling.
fn transform<T: Precision>(
    plans: &Plans<T>,
    ctx: &KernelContext<'_>,
    (values, sizes): (&mut [Complex<T>], &Shape),
    (dim, forward): (usize, bool),
) -> Result<()>
where
    Complex<T>: Compute,
{
    let lanes = Lanes::of(sizes, dim);
    if values.is_empty() {
        return Ok(());
    }
    let plan = plans.complex_plan(ctx, lanes.len, forward)?;
    let mut work = ctx.scratch::<Complex<T>>(plan.get_inplace_scratch_len())?;
    let mut run = |lane: &mut [Complex<T>]| {
        pteron_pool::progress(lanes.len);
        plan.process_with_scratch(lane, &mut work);
    };
    if lanes.inner == 1 {
        values.chunks_exact_mut(lanes.len).for_each(run);
        return Ok(());
    }
    let mut tile = ctx.scratch::<Complex<T>>(TILE * lanes.len)?;
    for block in values.chunks_exact_mut(lanes.len * lanes.inner) {
        for start in (0..lanes.inner).step_by(TILE) {
            lanes.gather(block, start, &mut tile);
            tile.chunks_exact_mut(lanes.len).take(lanes.inner - start).for_each(&mut run);
            lanes.scatter(block, start, &tile);
        }
    }
    Ok(())
}

fn rescale<T: Precision>(values: &mut [Complex<T>], scale: f64) {
    if scale != 1.0 {
        let scale = <T as Cast>::from_f64(scale);
        values.iter_mut().for_each(|z| *z = Complex::new(z.re * scale, z.im * scale));
    }
}

/// The transform of real values. With `onesided`, the last dimension keeps only the half from which the other half
/// follows by symmetry.
fn r2c<T: Precision>(
    plans: &Plans<T>,
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
) -> Result<()>
where
    Complex<T>: Compute,
{
    let (x, dims) = (args.tensor("self")?, transform_dims(args)?);
    let (dtype, last) = (x.dtype(), dims[dims.len() - 1]);
    ensure!(dtype.is_floating(), "self: expected floating-point numbers, found {dtype}");
    let out = outs.tensor(0)?;
    expect_type("out", to_complex_type(dtype), out.dtype())?;
    let (n, onesided, scale) =
        (x.sizes()[last], args.bool("onesided")?, result_scale(args, x.sizes(), &dims)?);
    ensure!(n > 0 || !onesided, "dim: a onesided transform needs at least one element");
    let mut sizes = *x.sizes();
    sizes[last] = if onesided { n / 2 + 1 } else { n };
    out.resize(&sizes)?;
    let signal = all_values::<T>(ctx, &x)?;
    write_row_major::<Complex<T>>(ctx, out, |spectrum| {
        if spectrum.is_empty() {
            return Ok(());
        }
        let plan = plans.real_plan(ctx, Transform { len: n, forward: true, real: true })?;
        let mut work = ctx.scratch::<Complex<T>>(plan.work_len())?;
        let (from, to) = (Lanes::of(x.sizes(), last), Lanes::of(&sizes, last));
        each_lane(ctx, (&signal, from), (spectrum, to), |signal, spectrum| {
            let (half, mirrored) = spectrum.split_at_mut(n / 2 + 1);
            plan.forward(ctx.isa(), signal, half, &mut work);
            mirrored.iter_mut().rev().zip(&half[1..]).for_each(|(to, z)| *to = z.conj());
        })?;
        for &dim in &dims[..dims.len() - 1] {
            transform(plans, ctx, (spectrum, &sizes), (dim, true))?;
        }
        rescale(spectrum, scale);
        Ok(())
    })
}

/// The transform of complex values.
fn c2c<T: Precision>(
    plans: &Plans<T>,
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
) -> Result<()>
where
    Complex<T>: Compute,
{
    let (x, dims, forward) = (args.tensor("self")?, transform_dims(args)?, args.bool("forward")?);
    ensure!(x.dtype().is_complex(), "self: expected complex numbers, found {}", x.dtype());
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    let scale = result_scale(args, x.sizes(), &dims)?;
    out.resize(x.sizes())?;
    let values = all_values::<Complex<T>>(ctx, &x)?;
    write_row_major::<Complex<T>>(ctx, out, |spectrum| {
        spectrum.copy_from_slice(&values);
        for &dim in &dims {
            transform(plans, ctx, (spectrum, x.sizes()), (dim, forward))?;
        }
        rescale(spectrum, scale);
        Ok(())
    })
}

/// The inverse of the onesided transform of `last_dim_size` real values.
fn c2r<T: Precision>(
    plans: &Plans<T>,
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
) -> Result<()>
where
    Complex<T>: Compute,
{
    let (x, dims, n) = (
        args.tensor("self")?,
        transform_dims(args)?,
        to_positive("last_dim_size", args.int("last_dim_size")?)?,
    );
    ensure!(x.dtype().is_complex(), "self: expected complex numbers, found {}", x.dtype());
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype().to_real(), out.dtype())?;
    let (last, others) = (dims[dims.len() - 1], &dims[..dims.len() - 1]);
    let actual = x.sizes()[last];
    ensure!(
        n / 2 < actual,
        "last_dim_size: {n} real values need at least {} complex ones, found {actual}",
        n / 2 + 1
    );
    let mut sizes = *x.sizes();
    sizes[last] = n;
    out.resize(&sizes)?;
    let scale = result_scale(args, &sizes, &dims)?;
    let mut values: ScratchBuffer<'_, Complex<T>> = ctx.scratch(x.numel())?;
    values.copy_from_slice(&all_values::<Complex<T>>(ctx, &x)?);
    for &dim in others {
        transform(plans, ctx, (&mut values, x.sizes()), (dim, false))?;
    }
    rescale(&mut values, scale);
    write_row_major::<T>(ctx, out, |signal| {
        if signal.is_empty() {
            return Ok(());
        }
        let plan = plans.real_plan(ctx, Transform { len: n, forward: false, real: true })?;
        let mut work = ctx.scratch::<Complex<T>>(plan.work_len())?;
        let mut half = ctx.scratch::<Complex<T>>(n / 2 + 1)?;
        let (from, to) = (Lanes::of(x.sizes(), last), Lanes::of(&sizes, last));
        each_lane(ctx, (&values, from), (signal, to), |spectrum, signal| {
            half.copy_from_slice(&spectrum[..n / 2 + 1]);
            plan.backward(&mut half, signal, &mut work);
        })
    })
}

#[cfg(test)]
mod tests;
