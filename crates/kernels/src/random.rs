//! Random tensors, from the generator of the call. Values are drawn in row-major order by one thread,
//! so that a seed gives the same tensor on every machine.

use crate::support::convert::{all_values, values, write_row_major};
use crate::support::dims::{broadcast, to_shape, to_size};
use crate::support::dtype::expect_dtype;
use crate::support::layout::Layout;
use pteron_operator::{Args, DtypeSet, Generator, KernelContext, Operator, Outs, Result, Results, ensure};
use pteron_tensor::{ScalarType, Shape};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new("aten::rand.out(SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::FLOATING, rand)
        .results(Results::Random),
    Operator::new(
        "aten::rand.generator_out(SymInt[] size, *, Generator? generator, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        rand,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randn.out(SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        randn,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randn.generator_out(SymInt[] size, *, Generator? generator, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        randn,
    )
    .results(Results::Random),
    Operator::new(
        "aten::rand_like.out(Tensor self, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        rand_like,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randn_like.out(Tensor self, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        randn_like,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randint.out(SymInt high, SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        randint,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randint.generator_out(SymInt high, SymInt[] size, *, Generator? generator, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        randint,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randint.low_out(SymInt low, SymInt high, SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        randint_low,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randint.low_generator_out(SymInt low, SymInt high, SymInt[] size, *, Generator? generator, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        randint_low,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randint_like.out(Tensor self, SymInt high, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        randint_like,
    )
    .results(Results::Random),
    Operator::new(
        "aten::randint_like.low_dtype_out(Tensor self, SymInt low, SymInt high, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        randint_like_low,
    )
    .results(Results::Random),
    Operator::new("aten::randperm.out(SymInt n, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL, randperm)
        .results(Results::Random),
    Operator::new(
        "aten::randperm.generator_out(SymInt n, *, Generator? generator, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL,
        randperm,
    )
    .results(Results::Random),
    Operator::new(
        "aten::uniform.out(Tensor self, float from=0.0, float to=1.0, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        uniform,
    )
    .results(Results::Random),
    Operator::new(
        "aten::normal.out(Tensor self, float mean=0.0, float std=1.0, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        normal,
    )
    .results(Results::Random),
    Operator::new(
        "aten::normal.float_float_out(float mean, float std, SymInt[] size, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        normal_of_size,
    )
    .results(Results::Random),
    Operator::new(
        "aten::normal.Tensor_float_out(Tensor mean, float std=1.0, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        normal_of,
    )
    .results(Results::Random),
    Operator::new(
        "aten::normal.float_Tensor_out(float mean, Tensor std, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        normal_of,
    )
    .results(Results::Random),
    Operator::new(
        "aten::normal.Tensor_Tensor_out(Tensor mean, Tensor std, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        normal_of,
    )
    .results(Results::Random),
    Operator::new(
        "aten::bernoulli.out(Tensor self, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        bernoulli,
    )
    .results(Results::Random),
    Operator::new(
        "aten::bernoulli.Tensor_out(Tensor self, Tensor p, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        bernoulli_tensor,
    )
    .results(Results::Random),
    Operator::new(
        "aten::bernoulli.float_out(Tensor self, float p=0.5, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        bernoulli_number,
    )
    .results(Results::Random),
    Operator::new(
        "aten::multinomial.out(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        multinomial,
    )
    .results(Results::Random),
];

/// Fills an out of a floating-point type with values drawn by `next`.
pub(crate) fn draw(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    sizes: &[usize],
    next: impl Fn(&Generator) -> f64,
) -> Result<()> {
    draw_as(ctx, outs, sizes, DtypeSet::FLOATING, next)
}

/// Fills an out, whose type must be one of `dtypes`, with values drawn by `next`, in row-major order for any layout.
pub(crate) fn draw_as(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    sizes: &[usize],
    dtypes: DtypeSet,
    next: impl Fn(&Generator) -> f64,
) -> Result<()> {
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), dtypes)?;
    out.resize(sizes)?;
    write_row_major::<f64>(ctx, out, |out| {
        out.iter_mut().for_each(|x| *x = next(ctx.generator()));
        Ok(())
    })
}

/// Uniform values in `[0, 1)`, with as many bits as the out's type holds, so that no value is rounded to 1.
fn draw_uniform(ctx: &KernelContext<'_>, outs: &mut Outs<'_>, sizes: &[usize]) -> Result<()> {
    let bits = match outs.tensor(0)?.dtype() {
        ScalarType::BFloat16 => 8,
        ScalarType::Half => 11,
        ScalarType::Float => 24,
        _ => 53,
    };
    draw(ctx, outs, sizes, |g| (g.next_u64() >> (64 - bits)) as f64 / (1u64 << bits) as f64)
}

fn rand(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let sizes = to_shape("size", args.ints("size")?)?;
    draw_uniform(ctx, outs, &sizes)
}

/// Normally distributed values with mean 0 and standard deviation 1.
fn randn(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let sizes = to_shape("size", args.ints("size")?)?;
    draw(ctx, outs, &sizes, Generator::normal)
}

fn rand_like(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_uniform(ctx, outs, args.meta("self")?.sizes())
}

fn randn_like(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw(ctx, outs, args.meta("self")?.sizes(), Generator::normal)
}

/// Fills an out with uniformly distributed integers in `low..high`.
pub(crate) fn draw_ints(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    sizes: &[usize],
    low: i64,
    high: i64,
) -> Result<()> {
    ensure!(low < high, "high: {high} is not above low, {low}");
    let count = high.wrapping_sub(low) as u64;
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::REAL_BOOL)?;
    out.resize(sizes)?;
    write_row_major::<i64>(ctx, out, |out| {
        out.iter_mut().for_each(|x| *x = low.wrapping_add(ctx.generator().below(count) as i64));
        Ok(())
    })
}

fn randint(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_ints(ctx, outs, &to_shape("size", args.ints("size")?)?, 0, args.int("high")?)
}

fn randint_low(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_ints(ctx, outs, &to_shape("size", args.ints("size")?)?, args.int("low")?, args.int("high")?)
}

fn randint_like(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_ints(ctx, outs, args.meta("self")?.sizes(), 0, args.int("high")?)
}

fn randint_like_low(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_ints(ctx, outs, args.meta("self")?.sizes(), args.int("low")?, args.int("high")?)
}

/// A uniformly random permutation of `0..n`.
fn randperm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let n = to_size("n", args.int("n")?)?;
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::REAL)?;
    out.resize(&[n])?;
    write_row_major::<i64>(ctx, out, |out| {
        out.iter_mut().enumerate().for_each(|(i, x)| *x = i as i64);
        for i in (1..out.len()).rev() {
            out.swap(i, ctx.generator().below(i as u64 + 1) as usize);
        }
        Ok(())
    })
}

/// Uniform values in `[from, to)`.
fn uniform(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (from, to) = (args.double("from")?, args.double("to")?);
    ensure!(from <= to, "to: {to} is less than from, {from}");
    draw(ctx, outs, args.meta("self")?.sizes(), |g| from + (to - from) * g.uniform())
}

fn standard_deviation(args: &Args<'_>, arg: &'static str) -> Result<f64> {
    let std = args.double(arg)?;
    ensure!(std >= 0.0, "std: {std} is negative");
    Ok(std)
}

fn normal(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (mean, std) = (args.double("mean")?, standard_deviation(args, "std")?);
    draw(ctx, outs, args.meta("self")?.sizes(), |g| mean + std * g.normal())
}

fn normal_of_size(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (mean, std) = (args.double("mean")?, standard_deviation(args, "std")?);
    draw(ctx, outs, &to_shape("size", args.ints("size")?)?, |g| mean + std * g.normal())
}

/// Normally distributed values; mean and standard deviation are scalars or tensors.
fn normal_of(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let sizes_of = |arg: &'static str| args.meta(arg).map_or(Shape::SCALAR, |meta| *meta.sizes());
    let sizes = broadcast(&sizes_of("mean"), &sizes_of("std"))?;
    let numbers = |arg: &'static str| match args.meta(arg) {
        Err(_) => args.double(arg).map(|v| (Some(v), None)),
        Ok(_) => {
            let t = args.tensor(arg)?;
            let view = Layout::of_tensor(t.meta()).expand(&sizes)?;
            Ok((None, Some(values::<f64>(ctx, &t, &view)?)))
        }
    };
    let (mean, std) = (numbers("mean")?, numbers("std")?);
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    out.resize(&sizes)?;
    write_row_major::<f64>(ctx, out, |out| {
        for (i, x) in out.iter_mut().enumerate() {
            let at = |(one, all): &(Option<f64>, Option<_>)| -> f64 {
                let all: &Option<crate::support::convert::Values<'_, f64>> = all;
                one.unwrap_or_else(|| all.as_ref().map_or(0.0, |all| all[i]))
            };
            let std = at(&std);
            ensure!(std >= 0.0, "std: {std} is negative");
            *x = at(&mean) + std * ctx.generator().normal();
        }
        Ok(())
    })
}

/// Sets each element to one with the probability that `p` gives for its index in row-major order, otherwise to zero.
fn draw_bernoulli(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    sizes: &Shape,
    p: impl Fn(usize) -> f64,
) -> Result<()> {
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::REAL_BOOL)?;
    out.resize(sizes)?;
    write_row_major::<i64>(ctx, out, |out| {
        for (i, x) in out.iter_mut().enumerate() {
            let p = p(i);
            ensure!((0.0..=1.0).contains(&p), "{p} is not a probability");
            *x = (ctx.generator().uniform() < p) as i64;
        }
        Ok(())
    })
}

fn bernoulli(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let p = args.tensor("self")?;
    let all = all_values::<f64>(ctx, &p)?;
    draw_bernoulli(ctx, outs, p.sizes(), |i| all[i])
}

fn bernoulli_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (sizes, p) = (*args.meta("self")?.sizes(), args.tensor("p")?);
    let all = values::<f64>(ctx, &p, &Layout::of_tensor(p.meta()).expand(&sizes)?)?;
    draw_bernoulli(ctx, outs, &sizes, |i| all[i])
}

fn bernoulli_number(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let p = args.double("p")?;
    draw_bernoulli(ctx, outs, args.meta("self")?.sizes(), |_| p)
}

/// For each row of weights, indices drawn with probabilities proportional to the weights, with or without replacement.
fn multinomial(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, samples, again) =
        (args.tensor("self")?, to_size("num_samples", args.int("num_samples")?)?, args.bool("replacement")?);
    expect_dtype("self", x.dtype(), DtypeSet::FLOATING)?;
    ensure!(
        (1..=2).contains(&x.rank()) && samples > 0,
        "self: one row of weights or more, found {}",
        x.meta()
    );
    let n = x.sizes()[x.rank() - 1];
    ensure!(again || samples <= n, "num_samples: {samples} of {n} without replacement");
    let mut sizes = *x.sizes();
    sizes[x.rank() - 1] = samples;
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::of(&[ScalarType::Long]))?;
    out.resize(&sizes)?;
    let weights = all_values::<f64>(ctx, &x)?;
    let mut keys = ctx.scratch::<f64>(n)?;
    let mut order = ctx.scratch::<u64>(n)?;
    write_row_major::<i64>(ctx, out, |out| {
        for (row, out) in weights.chunks_exact(n.max(1)).zip(out.chunks_exact_mut(samples)) {
            let bad = row.iter().find(|w| !w.is_finite() || **w < 0.0);
            ensure!(bad.is_none(), "self: {} is not a valid weight", bad.unwrap_or(&0.0));
            let positive = row.iter().filter(|w| **w > 0.0).count();
            ensure!(
                positive >= if again { 1 } else { samples },
                "self: too few nonzero weights ({positive})"
            );
            if again {
                let mut sum = 0.0;
                keys.iter_mut().zip(row).for_each(|(key, w)| {
                    sum += w;
                    *key = sum;
                });
                for place in out {
                    let mark = ctx.generator().uniform() * sum;
                    *place = keys.partition_point(|&key| key <= mark).min(n - 1) as i64;
                }
            } else {
                // The indices with the smallest of exponential waiting times whose rates are the weights.
                for ((key, place), w) in keys.iter_mut().zip(order.iter_mut().enumerate()).zip(row) {
                    *key = -(1.0 - ctx.generator().uniform()).ln() / w;
                    *place.1 = place.0 as u64;
                }
                let keys = &keys;
                order.sort_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
                out.iter_mut().zip(order.iter()).for_each(|(place, &i)| *place = i as i64);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, ints, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{BFloat16, Float, Int, Long};

    #[test]
    fn integers_and_permutations() {
        let r = call("aten::randint.low_out", &[int(-3), int(4), ints(&[500])], out(Int, &[500])).unwrap();
        let all = r.storage::<i32>().unwrap();
        assert!((-3..4).all(|v| all.contains(&v)) && all.iter().all(|v| (-3..4).contains(v)));
        assert!(call("aten::randint.out", &[int(0), ints(&[5])], out(Int, &[5])).is_err());
        let r = call("aten::randperm.out", &[int(100)], out(Long, &[100])).unwrap();
        let mut all = r.storage::<i64>().unwrap().to_vec();
        assert!(!all.is_sorted());
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(call("aten::randperm.out", &[int(-1)], out(Long, &[1])).is_err());
    }

    #[test]
    fn bernoulli_and_multinomial() {
        let p = t(&[1000], &[0.25f32; 1000]);
        let r = call("aten::bernoulli.out", &[a(&p)], out(Float, &[1000])).unwrap();
        let ones = r.storage::<f32>().unwrap().iter().sum::<f32>();
        assert!((200.0..300.0).contains(&ones), "{ones}");
        assert!(call("aten::bernoulli.float_out", &[a(&p), Arg::Double(1.5)], out(Float, &[1000])).is_err());
        let w = t(&[2, 3], &[0f32, 1.0, 3.0, 1.0, 0.0, 0.0]);
        let r =
            call("aten::multinomial.out", &[a(&w), int(400), Arg::Bool(true)], out(Long, &[2, 400])).unwrap();
        let (first, second) = r.storage::<i64>().unwrap().split_at(400);
        let twos = first.iter().filter(|&&i| i == 2).count();
        assert!((250..350).contains(&twos) && !first.contains(&0) && second.iter().all(|&i| i == 0));
        let w = t(&[3], &[0f32, 1.0, 3.0]);
        let r = call("aten::multinomial.out", &[a(&w), int(2)], out(Long, &[2])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap().iter().sum::<i64>(), 3);
        assert!(call("aten::multinomial.out", &[a(&w), int(3)], out(Long, &[3])).is_err());
    }

    #[test]
    fn normal_values_of_given_means_and_deviations() {
        let mean = t(&[2, 1], &[0f32, 100.0]);
        let std = t(&[1000], &[0.5f32; 1000]);
        let r = call("aten::normal.Tensor_Tensor_out", &[a(&mean), a(&std)], out(Float, &[2, 1000])).unwrap();
        let sum = r.storage::<f32>().unwrap()[1000..].iter().sum::<f32>();
        assert!((sum / 1000.0 - 100.0).abs() < 0.1);
        let bad = [a(&mean), Arg::Double(-1.0)];
        assert!(call("aten::normal.Tensor_float_out", &bad, out(Float, &[2, 1])).is_err());
        let r =
            call("aten::uniform.out", &[a(&std), Arg::Double(2.0), Arg::Double(3.0)], out(Float, &[1000]))
                .unwrap();
        assert!(r.storage::<f32>().unwrap().iter().all(|v| (2.0..=3.0).contains(v)));
    }

    #[test]
    fn uniform_and_normal_values() {
        let r = call("aten::rand.out", &[ints(&[1000])], out(Float, &[1000])).unwrap();
        let all = r.storage::<f32>().unwrap();
        assert!(all.iter().all(|v| (0.0..1.0).contains(v)));
        let mean = all.iter().sum::<f32>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        let x = t(&[1000], &[0f32; 1000]);
        let r = call("aten::rand_like.out", &[a(&x)], out(BFloat16, &[1000])).unwrap();
        assert!(r.storage::<pteron_tensor::bf16>().unwrap().iter().all(|v| v.to_f32() < 1.0));
        let r = call("aten::randn.out", &[ints(&[10, 100])], out(Float, &[10, 100])).unwrap();
        let all = r.storage::<f32>().unwrap();
        let square = all.iter().map(|v| v * v).sum::<f32>() / 1000.0;
        assert!((square - 1.0).abs() < 0.15, "{square}");
        assert!(call("aten::rand.out", &[ints(&[3])], out(Int, &[3])).is_err());
        assert!(call("aten::rand.out", &[ints(&[-3])], out(Float, &[3])).is_err());
    }
}
