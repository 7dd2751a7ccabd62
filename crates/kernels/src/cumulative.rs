//! Cumulative operators along a dimension: maximum, minimum, log-sum-exp.

use crate::support::dims::wrap_dim;
use crate::support::dtype::{Compute, compute_type, dispatch, expect_dtype};
use crate::support::lanes::map_lanes;
use crate::support::map::expect_out;
use crate::support::rows::expect_type;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::cummax.out(Tensor self, int dim, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        cummax,
    ),
    Operator::new(
        "aten::cummin.out(Tensor self, int dim, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        cummin,
    ),
    Operator::new(
        "aten::logcumsumexp.out(Tensor self, int dim, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        logcumsumexp,
    ),
    Operator::new(
        "aten::_logcumsumexp.out(Tensor self, int dim, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        logcumsumexp,
    ),
];

/// Calls `found` with each index of a lane and the index of the extreme up to there: the last of equal elements, and
/// the latest NaN once there is one.
fn each_extreme<C: Compute + PartialOrd>(x: &[C], least: bool, mut found: impl FnMut(usize, usize)) {
    let nan = |v: C| v.partial_cmp(&v).is_none();
    let mut best = 0;
    for (i, &v) in x.iter().enumerate() {
        let better = if least { v <= x[best] } else { v >= x[best] };
        if nan(v) || (better && !nan(x[best])) {
            best = i;
        }
        found(i, best);
    }
}

fn cumulative_extremes(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    least: bool,
) -> Result<()> {
    let x = args.tensor("self")?;
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    let [values, indices] = outs.tensors([0, 1])?;
    expect_dtype("self", x.dtype(), DtypeSet::REAL_BOOL)?;
    expect_type("values", x.dtype(), values.dtype())?;
    expect_type("indices", ScalarType::Long, indices.dtype())?;
    values.resize(x.sizes())?;
    indices.resize(x.sizes())?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        map_lanes::<C, C>(ctx, &x, dim, values, &|x, out| each_extreme(x, least, |i, best| out[i] = x[best]))?;
        map_lanes::<C, i64>(ctx, &x, dim, indices, &|x, out| {
            each_extreme(x, least, |i, best| out[i] = best as i64);
        })
    })
}

/// The maximum of the elements so far along a dimension, and its index.
fn cummax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    cumulative_extremes(ctx, args, outs, false)
}

/// The minimum of the elements so far along a dimension, and its index.
fn cummin(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    cumulative_extremes(ctx, args, outs, true)
}

/// `log(exp(x[0]) + ... + exp(x[i]))`
fn logcumsumexp(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    ensure!(x.dtype().is_floating(), "self: expected floating-point numbers, found {}", x.dtype());
    expect_out(x.dtype(), out.dtype())?;
    out.resize(x.sizes())?;
    map_lanes::<f64, f64>(ctx, &x, dim, out, &|x, out| {
        let mut acc = f64::NEG_INFINITY;
        for (out, &v) in out.iter_mut().zip(x) {
            let (low, high) = if acc < v { (acc, v) } else { (v, acc) };
            acc = match low {
                _ if acc.is_nan() || v.is_nan() => f64::NAN,
                low if low == high && low.is_infinite() => low,
                low => high + (low - high).exp().ln_1p(),
            };
            *out = acc;
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, out, s, t};
    use pteron_tensor::ScalarType::{Float, Int, Long};

    #[test]
    fn cumulative_extremes_and_their_indices() {
        let x = t(&[5], &[2f32, 1.0, 2.0, f32::NAN, 3.0]);
        let go = |name: &str, dim| call_many(name, &[a(&x), int(dim)], [out(Float, &[5]), out(Long, &[5])]);
        let [v, i] = go("aten::cummax.out", 0).unwrap();
        assert_eq!(i.storage::<i64>().unwrap(), &[0, 0, 2, 3, 3]);
        assert_eq!(v.storage::<f32>().unwrap()[..3], [2.0, 2.0, 2.0]);
        let [v, i] = go("aten::cummin.out", -1).unwrap();
        assert_eq!(i.storage::<i64>().unwrap(), &[0, 1, 1, 3, 3]);
        assert!(v.storage::<f32>().unwrap()[4].is_nan());
        assert!(go("aten::cummax.out", 1).is_err());
        let [v, i] =
            call_many("aten::cummax.out", &[a(&s(7i32)), int(0)], [out(Int, &[]), out(Long, &[])]).unwrap();
        assert_eq!((v.storage::<i32>().unwrap()[0], i.storage::<i64>().unwrap()[0]), (7, 0));
    }

    #[test]
    fn cumulative_log_sum_exp() {
        let inf = f32::INFINITY;
        let x = t(&[2, 3], &[0f32, 0.0, 1000.0, -inf, -inf, inf]);
        let r = call("aten::logcumsumexp.out", &[a(&x), int(1)], out(Float, &[2, 3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[0.0, std::f32::consts::LN_2, 1000.0, -inf, -inf, inf]);
    }
}
