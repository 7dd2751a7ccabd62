//! Functions along one dimension: softmax, cumulative sums and products.

use crate::compute::{softmax as rows_softmax, softmax_across};
use crate::support::dims::wrap_dim;
use crate::support::dtype::{C64, Compute, compute_type, conversion, expect_dtype};
use crate::support::lanes::map_lanes;
use crate::support::map::expect_out;
use pteron_operator::facts::wrap;
use pteron_operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, Rounding};
use pteron_pool::Pool;
use pteron_tensor::{ScalarType, TensorMeta};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::_softmax.out(Tensor self, int dim, bool half_to_float, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        softmax,
    )
    .rounding(Rounding::Once)
    .means(softmax_meaning),
    Operator::new(
        "aten::_log_softmax.out(Tensor self, int dim, bool half_to_float, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        log_softmax,
    )
    .rounding(Rounding::Once),
    Operator::new(
        "aten::cumsum.out(Tensor self, int dim, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        cumsum,
    ),
    Operator::new(
        "aten::cumprod.out(Tensor self, int dim, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        cumprod,
    ),
];

/// Grain size: the smallest number of elements worth waking a thread for.
const ELEMENTS: usize = 1 << 14;
/// The number of adjacent columns that are accumulated together.
const COLUMNS: usize = 64;

fn softmax_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dim = wrap(args.int("dim").ok()?, args.meta("self").ok()?.rank())?;
    (!args.bool("half_to_float").ok()?).then_some(Meaning::Softmax(dim))
}

/// Softmax or, if `log`, its logarithm along the dimension at argument 1: float64 by `lane`, other types by the
/// compute core.
fn softmax_along_dim(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    log: bool,
    lane: fn(&[f64], &mut [f64]),
) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    expect_dtype("self", x.dtype(), DtypeSet::FLOATING)?;
    expect_out(x.dtype(), out.dtype())?;
    out.resize(x.sizes())?;
    if x.dtype() == ScalarType::Double {
        return map_lanes(ctx, &x, dim, out, &lane);
    }
    let (pool, isa) = (ctx.pool(), crate::support::isa(ctx));
    let is_float = [x.dtype(), out.dtype()] == [ScalarType::Float; 2];
    if let (true, Some(lanes)) = (is_float, adjacent_lanes(x.meta(), out.meta(), dim)) {
        softmax_across(pool, isa, log, lanes, x.storage()?, out.storage_mut()?);
        return Ok(());
    }
    map_lanes(ctx, &x, dim, out, &|x: &[f32], out: &mut [f32]| {
        rows_softmax(Pool::alone(), isa, log, x.len(), x, out);
    })
}

/// If two tensors of the same sizes have the same layout and are not empty: the length of the lanes along `dim` and the
/// number of adjacent lanes, so that both tensors are sequences of matrices with that many rows and columns.
pub(crate) fn adjacent_lanes(x: &TensorMeta, out: &TensorMeta, dim: usize) -> Option<(usize, usize)> {
    if !x.dim_order().same_layout(out.dim_order(), x.sizes()) || x.numel() == 0 {
        return None;
    }
    Some(if x.rank() == 0 { (1, 1) } else { (x.sizes()[dim], x.strides()[dim]) })
}

/// `exp(x - max) / sum(exp(x - max))`
fn softmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    softmax_along_dim(ctx, args, outs, false, |x, out| {
        let max = x.iter().fold(f64::NEG_INFINITY, |m, &v| if v > m { v } else { m });
        out.iter_mut().zip(x).for_each(|(o, &v)| *o = (v - max).exp());
        let scale = 1.0 / out.iter().sum::<f64>();
        out.iter_mut().for_each(|o| *o *= scale);
    })
}

/// `x - max - log(sum(exp(x - max)))`
fn log_softmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    softmax_along_dim(ctx, args, outs, true, |x, out| {
        let max = x.iter().fold(f64::NEG_INFINITY, |m, &v| if v > m { v } else { m });
        let log = x.iter().map(|&v| (v - max).exp()).sum::<f64>().ln();
        out.iter_mut().zip(x).for_each(|(o, &v)| *o = v - max - log);
    })
}

/// The type to which elements are converted before accumulation, and the type of the accumulator.
fn scan_types(args: &Args<'_>, outs: &mut Outs<'_>) -> Result<(ScalarType, ScalarType)> {
    let own = args.meta("self")?.dtype();
    let wide = if own.is_floating() || own.is_complex() { own } else { ScalarType::Long };
    let dtype = args.optional_dtype("dtype")?.unwrap_or(wide);
    expect_out(dtype, outs.tensor(0)?.dtype())?;
    let sums = match (dtype, compute_type(dtype)) {
        // Complex elements that are accumulated as bool must still be read as complex.
        (ScalarType::Bool, _) if own.is_complex() => ScalarType::ComplexDouble,
        // float32 and narrower types are accumulated in float64.
        (ScalarType::Bool, _) | (_, ScalarType::Float) => ScalarType::Double,
        (_, other) => other,
    };
    Ok((dtype, sums))
}

fn scan<C: Compute>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    dtype: ScalarType,
    f: impl Fn(C, C) -> C + Sync,
) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    out.resize(x.sizes())?;
    let is_float = [x.dtype(), dtype, out.dtype()] == [ScalarType::Float; 3];
    if let (true, Some(lanes)) = (is_float, adjacent_lanes(x.meta(), out.meta(), dim)) {
        let (x, out) = (x.storage()?, out.storage_mut()?);
        scan_floats(ctx, lanes, x, out, |a, b| f(C::from_f64(a), C::from_f64(b)).to_f64());
        return Ok(());
    }
    let convert = conversion::<C>(x.dtype(), dtype).unwrap_or(|x| x);
    map_lanes::<C, C>(ctx, &x, dim, out, &|x, out| {
        let mut rest = x.iter().zip(out);
        if let Some((&first, o)) = rest.next() {
            *o = convert(first);
            rest.fold(*o, |acc, (&x, o)| {
                *o = f(acc, convert(x));
                *o
            });
        }
    })
}

/// [`scan`] of float32 lanes with the layout that [`adjacent_lanes`] describes.
fn scan_floats(
    ctx: &KernelContext<'_>,
    (n, inner): (usize, usize),
    x: &[f32],
    out: &mut [f32],
    f: impl Fn(f64, f64) -> f64 + Sync,
) {
    let block = n * inner;
    ctx.pool().parallel_chunks_mut(out, block, (ELEMENTS / block).max(1), &|i, out| {
        let x = &x[i * block..][..block];
        if inner == 1 {
            out[0] = x[0];
            let rest = x[1..].iter().zip(&mut out[1..]);
            rest.fold(f64::from(x[0]), |acc, (&x, out)| {
                let acc = f(acc, f64::from(x));
                *out = acc as f32;
                acc
            });
            return;
        }
        for first in (0..inner).step_by(COLUMNS) {
            let columns = first..inner.min(first + COLUMNS);
            let mut sums = [0.0; COLUMNS];
            for (row, (x, out)) in x.chunks_exact(inner).zip(out.chunks_exact_mut(inner)).enumerate() {
                let elements = x[columns.clone()].iter().zip(&mut out[columns.clone()]);
                for ((&x, out), sum) in elements.zip(&mut sums) {
                    *sum = if row == 0 { f64::from(x) } else { f(*sum, f64::from(x)) };
                    *out = *sum as f32;
                }
            }
        }
    });
}

fn cumsum(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    match scan_types(args, outs)? {
        (dtype, ScalarType::Double) => scan::<f64>(ctx, args, outs, dtype, |a, b| a + b),
        (dtype, ScalarType::Long) => scan::<i64>(ctx, args, outs, dtype, i64::wrapping_add),
        (dtype, _) => scan::<C64>(ctx, args, outs, dtype, |a, b| a + b),
    }
}

fn cumprod(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    match scan_types(args, outs)? {
        (dtype, ScalarType::Double) => scan::<f64>(ctx, args, outs, dtype, |a, b| a * b),
        (dtype, ScalarType::Long) => scan::<i64>(ctx, args, outs, dtype, i64::wrapping_mul),
        (dtype, _) => scan::<C64>(ctx, args, outs, dtype, |a, b| a * b),
    }
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Float, Half, Int, Long};

    #[test]
    fn softmax_along_any_dim() {
        let x = t(&[2, 3], &[1f32, 2.0, 3.0, 1000.0, 1000.0, f32::NEG_INFINITY]);
        let go = |name: &str, dim| {
            let r = call(name, &[a(&x), int(dim), Arg::Bool(false)], out(Float, &[2, 3])).unwrap();
            r.storage::<f32>().unwrap().to_vec()
        };
        let p = go("aten::_softmax.out", -1);
        assert!((p[2] - 0.665_240_94).abs() < 1e-6);
        assert_eq!(p[3..], [0.5, 0.5, 0.0]);
        let q = go("aten::_softmax.out", 0);
        assert_eq!(q, [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
        let l = go("aten::_log_softmax.out", 1);
        assert!((l[0] + 2.407_606).abs() < 1e-6 && l[5] == f32::NEG_INFINITY);
        let r =
            call("aten::_softmax.out", &[a(&s(3f32)), int(0), Arg::Bool(false)], out(Float, &[])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0]);
        let none = t::<f32>(&[2, 0], &[]);
        assert!(
            call("aten::_log_softmax.out", &[a(&none), int(0), Arg::Bool(false)], out(Float, &[2, 0]))
                .is_ok()
        );
        assert!(call("aten::_softmax.out", &[a(&x), int(2), Arg::Bool(false)], out(Float, &[2, 3])).is_err());
    }

    #[test]
    fn cumulative_sums_and_products() {
        let x = t(&[2, 2], &[1i32, 2, 3, 4]);
        let r = call("aten::cumsum.out", &[a(&x), int(0)], out(Long, &[2, 2])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[1, 2, 4, 6]);
        let r = call("aten::cumprod.out", &[a(&x), int(1), int(5)], out(Half, &[2, 2])).unwrap();
        assert_eq!(r.storage::<pteron_tensor::f16>().unwrap()[3].to_f32(), 12.0);
        assert!(call("aten::cumsum.out", &[a(&t(&[1], &[0.5f32])), int(0)], out(Int, &[1])).is_err());
    }

    /// For every dimension and layout, sums are accumulated in order and in f64.
    #[test]
    fn sums_along_every_dim_and_layout() {
        let sizes = [2, 5, 70];
        let data: Vec<f32> = (0..700).map(|i| (i * 7 % 101) as f32 / 8.0).collect();
        for order in [[0, 1, 2], [0, 2, 1], [2, 0, 1]] {
            let order = pteron_tensor::DimOrder::new(&order).unwrap();
            let x = t(&sizes, &data).to_dim_order(order).unwrap();
            for (dim, stride) in [350, 70, 1].into_iter().enumerate() {
                for into in [order, pteron_tensor::DimOrder::contiguous(3)] {
                    let into = out(Float, &sizes).to_dim_order(into).unwrap();
                    let r = call("aten::cumsum.out", &[a(&x), int(dim as i64)], into).unwrap();
                    for (i, actual) in r.to_vec::<f32>().unwrap().into_iter().enumerate() {
                        let before = i / stride % sizes[dim];
                        let sum: f64 = (0..=before).map(|j| f64::from(data[i - j * stride])).sum();
                        assert_eq!(actual, sum as f32, "element {i} of dim {dim} in {order:?}");
                    }
                }
            }
        }
    }

    /// Elements are converted to the requested type before they are added: to bool, or to infinity if they are too
    /// large.
    #[test]
    fn elements_are_converted_before_they_are_accumulated() {
        let dtype = |dtype: pteron_tensor::ScalarType| int(dtype as i64);
        let x = t(&[4], &[0.0f32, 0.5, -0.5, 0.0]);
        let r = call("aten::cumsum.out", &[a(&x), int(0), dtype(Bool)], out(Bool, &[4])).unwrap();
        assert_eq!(r.bytes(), &[0, 1, 1, 1]);
        let r = call("aten::cumprod.out", &[a(&x), int(0), dtype(Bool)], out(Bool, &[4])).unwrap();
        assert_eq!(r.bytes(), &[0, 0, 0, 0]);
        let x = t(&[2], &[7e4f32, -7e4]);
        let r = call("aten::cumsum.out", &[a(&x), int(0), dtype(Half)], out(Half, &[2])).unwrap();
        let r = r.storage::<pteron_tensor::f16>().unwrap();
        assert!(r[0].to_f32() == f32::INFINITY && r[1].is_nan());
    }
}
