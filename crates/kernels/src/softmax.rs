//! Functions along one dimension: softmax, cumulative sums.

use crate::support::dims::wrap_dim;
use crate::support::dtype::{C64, Compute, compute_type, conversion, expect_dtype};
use crate::support::lanes::map_lanes;
use crate::support::map::expect_out;
use num_traits::Float;
use operator::facts::wrap;
use operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, Rounding};
use tensor::ScalarType;

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

fn softmax_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dim = wrap(args.int(1).ok()?, args.meta(0).ok()?.rank())?;
    (!args.bool(2).ok()?).then_some(Meaning::Softmax(dim))
}

/// A function of lanes in either floating-point type.
struct LaneFns<'f> {
    f32: &'f (dyn Fn(&[f32], &mut [f32]) + Sync),
    f64: &'f (dyn Fn(&[f64], &mut [f64]) + Sync),
}

fn float_lanes(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>, f: LaneFns<'_>) -> Result<()> {
    let (x, out) = (args.tensor(0)?, outs.tensor(0)?);
    let dim = wrap_dim(args.name(1), args.int(1)?, x.rank())?;
    expect_dtype(args.name(0), x.dtype(), DtypeSet::FLOATING)?;
    expect_out(x.dtype(), out.dtype())?;
    out.resize(x.sizes())?;
    match x.dtype() {
        ScalarType::Double => map_lanes(ctx, &x, dim, out, f.f64),
        _ => map_lanes(ctx, &x, dim, out, f.f32),
    }
}

/// `exp(x - max) / sum(exp(x - max))`
fn softmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fn lane<F: Float>(x: &[F], out: &mut [F]) {
        let max = x.iter().fold(F::neg_infinity(), |m, &v| if v > m { v } else { m });
        let mut sum = 0.0;
        for (o, &v) in out.iter_mut().zip(x) {
            *o = (v - max).exp();
            sum += o.to_f64().unwrap_or(f64::NAN);
        }
        let scale = F::from(1.0 / sum).unwrap_or_else(F::nan);
        out.iter_mut().for_each(|o| *o = *o * scale);
    }
    float_lanes(ctx, args, outs, LaneFns { f32: &lane, f64: &lane })
}

/// `x - max - log(sum(exp(x - max)))`
fn log_softmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fn lane<F: Float>(x: &[F], out: &mut [F]) {
        let max = x.iter().fold(F::neg_infinity(), |m, &v| if v > m { v } else { m });
        let sum: f64 = x.iter().map(|&v| (v - max).exp().to_f64().unwrap_or(f64::NAN)).sum();
        let log = F::from(sum.ln()).unwrap_or_else(F::nan);
        out.iter_mut().zip(x).for_each(|(o, &v)| *o = v - max - log);
    }
    float_lanes(ctx, args, outs, LaneFns { f32: &lane, f64: &lane })
}

/// The type that elements are converted to before they are accumulated, and the one that they are accumulated in.
fn scan_types(args: &Args<'_>, outs: &mut Outs<'_>) -> Result<(ScalarType, ScalarType)> {
    let own = args.meta(0)?.dtype();
    let wide = if own.is_floating() || own.is_complex() { own } else { ScalarType::Long };
    let dtype = args.optional_dtype(2)?.unwrap_or(wide);
    expect_out(dtype, outs.tensor(0)?.dtype())?;
    let sums = match (dtype, compute_type(dtype)) {
        // Whether any is true, or all are, whatever they were before.
        (ScalarType::Bool, _) if own.is_complex() => ScalarType::ComplexDouble,
        // Sums of float32 and narrower are kept in float64.
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
    let (x, out) = (args.tensor(0)?, outs.tensor(0)?);
    let dim = wrap_dim(args.name(1), args.int(1)?, x.rank())?;
    out.resize(x.sizes())?;
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
    use operator::Arg;
    use tensor::ScalarType::{Bool, Float, Half, Int, Long};

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
    fn cumulative_sums() {
        let x = t(&[2, 2], &[1i32, 2, 3, 4]);
        let r = call("aten::cumsum.out", &[a(&x), int(0)], out(Long, &[2, 2])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[1, 2, 4, 6]);
        let r = call("aten::cumprod.out", &[a(&x), int(1), int(5)], out(Half, &[2, 2])).unwrap();
        assert_eq!(r.storage::<tensor::f16>().unwrap()[3].to_f32(), 12.0);
        assert!(call("aten::cumsum.out", &[a(&t(&[1], &[0.5f32])), int(0)], out(Int, &[1])).is_err());
    }

    /// Elements become of the type asked for before they are added: numbers truths, large ones infinite.
    #[test]
    fn elements_are_converted_before_they_are_accumulated() {
        let dtype = |dtype: tensor::ScalarType| int(dtype as i64);
        let x = t(&[4], &[0.0f32, 0.5, -0.5, 0.0]);
        let r = call("aten::cumsum.out", &[a(&x), int(0), dtype(Bool)], out(Bool, &[4])).unwrap();
        assert_eq!(r.bytes(), &[0, 1, 1, 1]);
        let r = call("aten::cumprod.out", &[a(&x), int(0), dtype(Bool)], out(Bool, &[4])).unwrap();
        assert_eq!(r.bytes(), &[0, 0, 0, 0]);
        let x = t(&[2], &[7e4f32, -7e4]);
        let r = call("aten::cumsum.out", &[a(&x), int(0), dtype(Half)], out(Half, &[2])).unwrap();
        let r = r.storage::<tensor::f16>().unwrap();
        assert!(r[0].to_f32() == f32::INFINITY && r[1].is_nan());
    }
}
