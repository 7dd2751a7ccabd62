//! Arithmetic reductions: sums, products, means, variances, log-sum-exp.

use crate::support::dims::DimSet;
use crate::support::dtype::{
    C64, Compute, compute_type, conversion, dispatch, expect_dtype, unsupported_type,
};
use crate::support::map::expect_out;
use crate::support::meaning;
use crate::support::reduce::{Reducer, dims_at, reduce, reduce_as};
use crate::support::truth::{BoolReduce, reduce_bool};
use pteron_operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, Rounding};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::sum.IntList_out(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        sum,
    )
    .rounding(Rounding::Once),
    Operator::new(
        "aten::sum.out(Tensor self, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        sum_all,
    ),
    Operator::new(
        "aten::nansum.out(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        nansum,
    ),
    Operator::new(
        "aten::mean.out(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        mean,
    )
    .rounding(Rounding::Once)
    .means(mean_meaning),
    Operator::new(
        "aten::mean.dtype_out(Tensor self, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        mean_all,
    ),
    Operator::new(
        "aten::prod.int_out(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        prod,
    ),
    Operator::new(
        "aten::prod.out(Tensor self, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        prod_all,
    ),
    Operator::new(
        "aten::var.out(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        var,
    )
    .means(variance_meaning),
    Operator::new(
        "aten::var.correction_out(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        var,
    )
    .means(variance_meaning),
    Operator::new(
        "aten::std.out(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        std,
    ),
    Operator::new(
        "aten::std.correction_out(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        std,
    ),
    Operator::new(
        "aten::var_mean.correction_out(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        var_mean,
    )
    .means(variance_meaning),
    Operator::new(
        "aten::std_mean.correction_out(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        std_mean,
    ),
    Operator::new(
        "aten::logsumexp.out(Tensor self, int[1] dim, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        logsumexp,
    ),
];

fn mean_meaning(args: &Args<'_>) -> Option<Meaning> {
    Some(Meaning::Mean(meaning::dims_at(args, "dim")?))
}

fn variance_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dims = meaning::dims_at(args, "dim")?;
    (correction(args).ok()? == 0.0).then_some(Meaning::Variance(dims))
}

/// The type that elements are converted to before they are summed: the requested one; by default int64 for
/// integers and bool, and the tensor's own type otherwise.
fn sum_type(args: &Args<'_>, outs: &mut Outs<'_>) -> Result<ScalarType> {
    let own = args.meta("self")?.dtype();
    let out = outs.tensor(0)?.dtype();
    let wide = if own.is_floating() || own.is_complex() { own } else { ScalarType::Long };
    let result = args.optional_dtype("dtype")?.unwrap_or(wide);
    expect_out(result, out)?;
    Ok(result)
}

/// Element types, with the arithmetic of sums and products; the sums of f32 have a wider type.
trait Wide: Compute {
    type Sum: Compute;
    fn widen(self) -> Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn mul(self, other: Self) -> Self;
    fn divide_by_count(a: Self::Sum, count: usize) -> Self::Sum;
}

macro_rules! wide {
    ($($type:ty => $sum:ty, $widen:expr, $add:expr, $mul:expr, $over:expr;)*) => { $(
        impl Wide for $type {
            type Sum = $sum;
            #[inline] fn widen(self) -> $sum { $widen(self) }
            #[inline] fn add(a: $sum, b: $sum) -> $sum { $add(a, b) }
            #[inline] fn mul(self, other: $type) -> $type { $mul(self, other) }
            #[inline] fn divide_by_count(a: $sum, count: usize) -> $sum { $over(a, count) }
        }
    )* };
}

wide! {
    f32 => f64, |x| x as f64, |a, b| a + b, |a, b| a * b, |a, n| a / n as f64;
    f64 => f64, |x| x, |a, b| a + b, |a, b| a * b, |a, n| a / n as f64;
    i64 => i64, |x| x, i64::wrapping_add, i64::wrapping_mul, |a: i64, n: usize| a.checked_div(n as i64).unwrap_or(0);
    C64 => C64, |x| x, |a, b| a + b, |a, b| a * b, |a, n| a / n as f64;
}

struct Sum {
    mean: bool,
}

impl<C: Wide> Reducer<C> for Sum {
    type Acc = C::Sum;
    type Out = C::Sum;
    fn start(&self) -> C::Sum {
        C::Sum::default()
    }
    #[inline]
    fn step(&self, acc: C::Sum, x: C, _: usize) -> C::Sum {
        C::add(acc, x.widen())
    }
    fn merge(&self, a: C::Sum, b: C::Sum) -> C::Sum {
        C::add(a, b)
    }
    fn finish(&self, acc: C::Sum, count: usize) -> C::Sum {
        if self.mean { C::divide_by_count(acc, count) } else { acc }
    }
}

fn sum_over(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    dims: DimSet,
    keepdim: bool,
    dtype: ScalarType,
    mean: bool,
) -> Result<()> {
    // A sum of type bool says whether any element is nonzero.
    if dtype == ScalarType::Bool {
        return reduce_bool(ctx, args, outs, dims, keepdim, BoolReduce::Any);
    }
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    // For a mean in half precision, the elements are not converted first.
    let half = matches!(dtype, ScalarType::Half | ScalarType::BFloat16);
    let each = if mean && half { x.dtype() } else { dtype };
    dispatch!("dtype", compute_type(dtype), COMPUTE, C => {
        reduce_as::<C, _>(ctx, &x, each, dims, keepdim, out, &Sum { mean })
    })
}

fn sum(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = sum_type(args, outs)?;
    sum_over(ctx, args, outs, dims_at(args, "dim")?, args.bool("keepdim")?, dtype, false)
}

fn sum_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = sum_type(args, outs)?;
    sum_over(ctx, args, outs, DimSet::all(args.meta("self")?.rank()), false, dtype, false)
}

/// A sum that ignores NaN. Integers have no NaN and are summed in any type, as in PyTorch; only integers may be
/// summed as complex.
struct NanSum;

impl Reducer<f64> for NanSum {
    type Acc = f64;
    type Out = f64;
    fn start(&self) -> f64 {
        0.0
    }
    #[inline]
    fn step(&self, acc: f64, x: f64, _: usize) -> f64 {
        if x.is_nan() { acc } else { acc + x }
    }
    fn merge(&self, a: f64, b: f64) -> f64 {
        a + b
    }
    fn finish(&self, acc: f64, _: usize) -> f64 {
        acc
    }
}

fn nansum(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = sum_type(args, outs)?;
    let (dims, keepdim) = (dims_at(args, "dim")?, args.bool("keepdim")?);
    let own = args.meta("self")?.dtype();
    if own.is_complex() || (dtype.is_complex() && own.is_floating()) {
        let integers = DtypeSet::INTEGRAL.union(DtypeSet::BOOL);
        return Err(unsupported_type(
            "self",
            own,
            if dtype.is_complex() { integers } else { DtypeSet::REAL_BOOL },
        ));
    }
    if !dtype.is_floating() {
        return sum_over(ctx, args, outs, dims, keepdim, dtype, false);
    }
    reduce_as(ctx, &args.tensor("self")?, dtype, dims, keepdim, outs.tensor(0)?, &NanSum)
}

/// The type of a mean, which cannot be an integer.
fn mean_type(args: &Args<'_>, outs: &mut Outs<'_>) -> Result<ScalarType> {
    let result = args.optional_dtype("dtype")?.unwrap_or(args.meta("self")?.dtype());
    expect_dtype("the mean", result, DtypeSet::FLOATING.union(DtypeSet::COMPLEX))?;
    expect_out(result, outs.tensor(0)?.dtype())?;
    Ok(result)
}

fn mean(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = mean_type(args, outs)?;
    sum_over(ctx, args, outs, dims_at(args, "dim")?, args.bool("keepdim")?, dtype, true)
}

fn mean_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = mean_type(args, outs)?;
    sum_over(ctx, args, outs, DimSet::all(args.meta("self")?.rank()), false, dtype, true)
}

/// A product that is rounded to its type after each element, as in PyTorch: an intermediate overflow makes the result
/// infinite.
struct Product<C> {
    round: Option<fn(C) -> C>,
}

impl<C: Wide> Reducer<C> for Product<C> {
    type Acc = C;
    type Out = C;
    const IN_ORDER: bool = true;
    fn start(&self) -> C {
        C::from_i64(1)
    }
    #[inline]
    fn step(&self, acc: C, x: C, _: usize) -> C {
        let product = acc.mul(x);
        self.round.map_or(product, |round| round(product))
    }
    fn merge(&self, a: C, b: C) -> C {
        self.step(a, b, 0)
    }
    fn finish(&self, acc: C, _: usize) -> C {
        acc
    }
}

fn product_over(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    dims: DimSet,
    keepdim: bool,
    dtype: ScalarType,
) -> Result<()> {
    if dtype == ScalarType::Bool {
        return reduce_bool(ctx, args, outs, dims, keepdim, BoolReduce::All);
    }
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    let compute = compute_type(dtype);
    dispatch!("dtype", compute, COMPUTE, C => {
        reduce_as::<C, _>(ctx, &x, dtype, dims, keepdim, out, &Product { round: conversion(compute, dtype) })
    })
}

fn prod(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = sum_type(args, outs)?;
    let dims = DimSet::from_list("dim", args.ints("dim")?, args.meta("self")?.rank())?;
    product_over(ctx, args, outs, dims, args.bool("keepdim")?, dtype)
}

fn prod_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = sum_type(args, outs)?;
    product_over(ctx, args, outs, DimSet::all(args.meta("self")?.rank()), false, dtype)
}

/// Count, mean and sum of squared deviations, updated by Welford's method to avoid cancellation.
#[derive(Clone, Copy, Default)]
struct Moments {
    n: f64,
    mean: f64,
    m2: f64,
}

struct Variance {
    correction: f64,
    root: bool,
}

impl<C: Compute> Reducer<C> for Variance {
    type Acc = Moments;
    type Out = f64;
    fn start(&self) -> Moments {
        Moments::default()
    }
    #[inline]
    fn step(&self, acc: Moments, x: C, _: usize) -> Moments {
        let x: f64 = x.to_f64();
        let n = acc.n + 1.0;
        let mean = acc.mean + (x - acc.mean) / n;
        Moments { n, mean, m2: acc.m2 + (x - acc.mean) * (x - mean) }
    }
    fn merge(&self, a: Moments, b: Moments) -> Moments {
        let n = a.n + b.n;
        if a.n == 0.0 || b.n == 0.0 {
            return if b.n == 0.0 { a } else { b };
        }
        let d = b.mean - a.mean;
        Moments { n, mean: a.mean + d * b.n / n, m2: a.m2 + b.m2 + d * d * a.n * b.n / n }
    }
    fn finish(&self, acc: Moments, _: usize) -> f64 {
        let var = acc.m2 / (acc.n - self.correction).max(0.0);
        if self.root { var.sqrt() } else { var }
    }
}

/// The correction of a variance operator (`unbiased` or `correction`), which is subtracted from the number of elements.
fn correction(args: &Args<'_>) -> Result<f64> {
    if let Some(unbiased) = args.optional_bool("unbiased")? {
        return Ok(f64::from(u8::from(unbiased)));
    }
    Ok(args.optional_scalar("correction")?.map_or(1.0, |s| s.to_f64()))
}

/// The arguments after `self` of the variance operators, whether they have `unbiased` or `correction`.
struct Spread {
    dims: DimSet,
    correction: f64,
    keepdim: bool,
}

impl Spread {
    fn read(args: &Args<'_>) -> Result<Self> {
        let correction = correction(args)?;
        Ok(Self { dims: dims_at(args, "dim")?, correction, keepdim: args.bool("keepdim")? })
    }

    fn write_spread(
        &self,
        ctx: &KernelContext<'_>,
        args: &Args<'_>,
        outs: &mut Outs<'_>,
        index: usize,
        root: bool,
    ) -> Result<()> {
        let (x, out) = (args.tensor("self")?, outs.tensor(index)?);
        expect_dtype("self", x.dtype(), DtypeSet::FLOATING)?;
        expect_out(x.dtype(), out.dtype())?;
        let reducer = Variance { correction: self.correction, root };
        dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
            reduce::<C, _>(ctx, &x, self.dims, self.keepdim, out, &reducer)
        })
    }

    fn write_mean(
        &self,
        ctx: &KernelContext<'_>,
        args: &Args<'_>,
        outs: &mut Outs<'_>,
        index: usize,
    ) -> Result<()> {
        let (x, out) = (args.tensor("self")?, outs.tensor(index)?);
        expect_out(x.dtype(), out.dtype())?;
        dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
            reduce::<C, _>(ctx, &x, self.dims, self.keepdim, out, &Sum { mean: true })
        })
    }
}

fn var(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    Spread::read(args)?.write_spread(ctx, args, outs, 0, false)
}

fn std(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    Spread::read(args)?.write_spread(ctx, args, outs, 0, true)
}

fn var_mean(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let spread = Spread::read(args)?;
    spread.write_spread(ctx, args, outs, 0, false)?;
    spread.write_mean(ctx, args, outs, 1)
}

fn std_mean(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let spread = Spread::read(args)?;
    spread.write_spread(ctx, args, outs, 0, true)?;
    spread.write_mean(ctx, args, outs, 1)
}

/// The logarithm of a sum of exponentials. The accumulator holds the largest element, and the sum divided by its
/// exponential.
struct LogSumExp;

impl<C: Compute> Reducer<C> for LogSumExp {
    type Acc = (f64, f64);
    type Out = f64;
    fn start(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, 0.0)
    }
    fn step(&self, (max, sum): (f64, f64), x: C, _: usize) -> (f64, f64) {
        self.merge_scaled((max, sum), (x.to_f64(), 1.0))
    }
    fn merge(&self, a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
        self.merge_scaled(a, b)
    }
    fn finish(&self, (max, sum): (f64, f64), _: usize) -> f64 {
        max + sum.ln()
    }
}

impl LogSumExp {
    fn merge_scaled(&self, (a, p): (f64, f64), (b, q): (f64, f64)) -> (f64, f64) {
        if a.is_nan() || b.is_nan() {
            return (f64::NAN, 1.0);
        }
        let max = a.max(b);
        let of = |x: f64, s: f64| if x == max { s } else { s * (x - max).exp() };
        (max, of(a, p) + of(b, q))
    }
}

fn logsumexp(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    expect_dtype("self", x.dtype(), DtypeSet::REAL_BOOL)?;
    expect_out(crate::support::dtype::float_type(x.dtype()), out.dtype())?;
    let (dims, keepdim) = (dims_at(args, "dim")?, args.bool("keepdim")?);
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        reduce::<C, _>(ctx, &x, dims, keepdim, out, &LogSumExp)
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, ints, out, s, t};
    use num_complex::Complex;
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{self, ComplexFloat, Double, Float, Half, Long};
    use pteron_tensor::f16;

    #[test]
    fn sums_and_means() {
        let x = t(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let r = call("aten::sum.IntList_out", &[a(&x), ints(&[-1])], out(Float, &[2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[6.0, 15.0]);
        let r = call("aten::mean.out", &[a(&x), ints(&[0]), Arg::Bool(true)], out(Half, &[1, 3])).unwrap();
        assert_eq!(r.storage::<pteron_tensor::f16>().unwrap()[2].to_f32(), 4.5);
        let r = call("aten::sum.IntList_out", &[a(&x), Arg::None], out(Double, &[])).unwrap();
        assert_eq!(r.storage::<f64>().unwrap(), &[21.0]);
        let n = t(&[2], &[i64::MAX, 1]);
        let r = call("aten::sum.out", &[a(&n)], out(Long, &[])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[i64::MIN]);
        let r = call("aten::sum.out", &[a(&n), int(6)], out(Float, &[])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[9.223372e18]);
        assert!(call("aten::mean.dtype_out", &[a(&n)], out(Float, &[])).is_err());
        // Elements are converted to the requested type before they are added, except for means in half precision.
        let large = t(&[2], &[7e4f32, -7e4]);
        for (name, expect_nan) in [("aten::sum.out", true), ("aten::mean.dtype_out", false)] {
            let r = call(name, &[a(&large), int(Half as i64)], out(Half, &[])).unwrap();
            assert_eq!(r.storage::<pteron_tensor::f16>().unwrap()[0].is_nan(), expect_nan, "{name}");
        }
        let none = t::<f32>(&[0, 3], &[]);
        let r = call("aten::mean.out", &[a(&none), ints(&[0])], out(Float, &[3])).unwrap();
        assert!(r.storage::<f32>().unwrap().iter().all(|v| v.is_nan()));
        let r = call("aten::prod.int_out", &[a(&none), int(0)], out(Float, &[3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0; 3]);
        assert!(call("aten::sum.IntList_out", &[a(&x), ints(&[0, -2])], out(Float, &[3])).is_err());
    }

    #[test]
    fn nansum_ignores_nan() {
        let x = t(&[3], &[1f32, f32::NAN, 2.0]);
        let go = |x, dtype: ScalarType| {
            call("aten::nansum.out", &[a(x), Arg::None, Arg::Bool(false), int(dtype as i64)], out(dtype, &[]))
        };
        assert_eq!(go(&x, Float).unwrap().storage::<f32>().unwrap(), &[3.0]);
        let integers = t(&[2], &[4i64, 2]);
        let of_integers = go(&integers, ComplexFloat).unwrap();
        assert_eq!(of_integers.storage::<Complex<f32>>().unwrap(), &[Complex::new(6.0, 0.0)]);
        assert!(go(&x, ComplexFloat).unwrap_err().to_string().contains("self: float32 is not supported"));
    }

    /// After an overflow, a later factor cannot bring the product back into range.
    #[test]
    fn products_are_rounded_after_each_element() {
        let factors = [2e2f32, 2e4, 1e-3];
        let of = |x: &[f32], dtype: ScalarType| {
            call("aten::prod.out", &[a(&t(&[x.len()], x)), int(dtype as i64)], out(dtype, &[])).unwrap()
        };
        assert_eq!(of(&factors, Half).storage::<f16>().unwrap(), &[f16::INFINITY]);
        assert_eq!(of(&factors, Float).storage::<f32>().unwrap(), &[200.0f32 * 20_000.0 * 1e-3]);
        assert_eq!(of(&[1e30, 1e30, 1e-30], Float).storage::<f32>().unwrap(), &[f32::INFINITY]);
        assert_eq!(
            of(&[1e-30, 1e-30, 1e30], Double).storage::<f64>().unwrap(),
            &[1e-30f32 as f64 * 1e-30f32 as f64 * 1e30f32 as f64]
        );
        let many: Vec<f32> = (0..600).map(|i| [2.0, 0.5, 300.0, 1.0 / 256.0][i % 4]).collect();
        let expected = many.iter().fold(f16::ONE, |product, &x| product * f16::from_f32(x));
        assert_eq!(of(&many, Half).storage::<f16>().unwrap(), &[expected]);
        let columns = t(&[3, 2], &[2e2f32, 1.0, 2e4, 2.0, 1e-3, 3.0]);
        let r = call(
            "aten::prod.int_out",
            &[a(&columns), int(0), Arg::Bool(false), int(Half as i64)],
            out(Half, &[2]),
        );
        assert_eq!(r.unwrap().storage::<f16>().unwrap(), &[f16::INFINITY, f16::from_f32(6.0)]);
        let turns = t(&[2], &[Complex::new(0.0f32, 1.0), Complex::new(0.0, 2.0)]);
        let r = call("aten::prod.out", &[a(&turns)], out(ComplexFloat, &[])).unwrap();
        assert_eq!(r.storage::<Complex<f32>>().unwrap(), &[Complex::new(-2.0, 0.0)]);
    }

    #[test]
    fn variances_and_log_sum_exp() {
        let x = t(&[4], &[1e8f32, 1e8 + 8.0, 1e8 + 16.0, 1e8 + 24.0]);
        let [v, m] = call_many(
            "aten::var_mean.correction_out",
            &[a(&x), Arg::None],
            [out(Float, &[]), out(Float, &[])],
        )
        .unwrap();
        assert!((v.storage::<f32>().unwrap()[0] - 320.0 / 3.0).abs() < 1e-4);
        assert_eq!(m.storage::<f32>().unwrap(), &[1e8 + 12.0]);
        let r = call("aten::var.out", &[a(&s(1f32)), Arg::None], out(Float, &[])).unwrap();
        assert!(r.storage::<f32>().unwrap()[0].is_nan());
        let x = t(&[3], &[1000f32, 1000.0, f32::NEG_INFINITY]);
        let r = call("aten::logsumexp.out", &[a(&x), ints(&[0])], out(Float, &[])).unwrap();
        assert!((r.storage::<f32>().unwrap()[0] - 1000.6931).abs() < 1e-3);
    }
}
