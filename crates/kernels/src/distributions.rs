//! Random tensors of further distributions, from the generator of the call.

use crate::random::{draw, draw_as};
use crate::support::convert::{all_values, values, write_row_major};
use crate::support::dtype::expect_dtype;
use crate::support::layout::Layout;
use pteron_operator::{Args, DtypeSet, Generator, KernelContext, Operator, Outs, Result, Results, ensure};
use pteron_tensor::ScalarType;
use std::f64::consts::PI;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::exponential.out(Tensor self, float lambd=1, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        exponential,
    )
    .results(Results::Random),
    Operator::new(
        "aten::cauchy.out(Tensor self, float median=0, float sigma=1, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        cauchy,
    )
    .results(Results::Random),
    Operator::new(
        "aten::log_normal.out(Tensor self, float mean=1, float std=2, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        log_normal,
    )
    .results(Results::Random),
    Operator::new(
        "aten::geometric.out(Tensor self, float p, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL,
        geometric,
    )
    .results(Results::Random),
    Operator::new(
        "aten::poisson.out(Tensor self, Generator? generator=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        poisson,
    )
    .results(Results::Random),
    Operator::new(
        "aten::binomial.out(Tensor count, Tensor prob, Generator? generator=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        binomial,
    )
    .results(Results::Random),
    Operator::new(
        "aten::_standard_gamma.out(Tensor self, Generator? generator=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        standard_gamma,
    )
    .results(Results::Random),
    Operator::new(
        "aten::_sample_dirichlet.out(Tensor self, Generator? generator=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        dirichlet,
    )
    .results(Results::Random),
    Operator::new(
        "aten::random.out(Tensor self, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        random,
    )
    .results(Results::Random),
    Operator::new(
        "aten::random.to_out(Tensor self, int to, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        random_to,
    )
    .results(Results::Random),
    Operator::new(
        "aten::random.from_out(Tensor self, int from, int? to, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        random_from,
    )
    .results(Results::Random),
];

/// A uniform number in `(0, 1]`, whose logarithm is finite.
fn positive_uniform(g: &Generator) -> f64 {
    1.0 - g.uniform()
}

/// Exponentially distributed values with the rate `lambd`.
fn exponential(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let rate = args.double("lambd")?;
    ensure!(rate > 0.0, "lambd: {rate} is not positive");
    // Like PyTorch's, never zero, since callers take the logarithm.
    draw(ctx, outs, args.meta("self")?.sizes(), |g| {
        (-positive_uniform(g).ln() / rate).max(f64::from(f32::MIN_POSITIVE))
    })
}

fn cauchy(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (median, sigma) = (args.double("median")?, args.double("sigma")?);
    ensure!(sigma > 0.0, "sigma: {sigma} is not positive");
    draw(ctx, outs, args.meta("self")?.sizes(), |g| median + sigma * (PI * (g.uniform() - 0.5)).tan())
}

fn log_normal(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (mean, std) = (args.double("mean")?, args.double("std")?);
    ensure!(std > 0.0, "std: {std} is not positive");
    draw(ctx, outs, args.meta("self")?.sizes(), |g| (mean + std * g.normal()).exp())
}

/// The number of trials up to the first success.
fn geometric(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let p = args.double("p")?;
    ensure!(p > 0.0 && p < 1.0, "p: {p} is not between 0 and 1");
    let fails = (-p).ln_1p();
    draw_as(ctx, outs, args.meta("self")?.sizes(), DtypeSet::REAL, |g| {
        (positive_uniform(g).ln() / fails).ceil().max(1.0)
    })
}

/// Poisson-distributed values; each element of the argument is the rate of one value.
fn poisson(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_for_each(ctx, args, outs, |g, rate| {
        ensure!(rate >= 0.0, "self: the rate {rate} is negative");
        Ok(draw_poisson(g, rate))
    })
}

/// A Poisson-distributed value. A large rate is reduced by the waiting time of an event in its middle, which is gamma-distributed,
/// and the number of events before or after it (Ahrens and Dieter).
fn draw_poisson(g: &Generator, mut rate: f64) -> f64 {
    let mut events = 0.0;
    while rate > 16.0 && rate.is_finite() {
        let middle = (rate * 0.875).floor();
        let time = draw_gamma(g, middle);
        if time > rate {
            return events + draw_binomial(g, middle - 1.0, rate / time);
        }
        events += middle;
        rate -= time;
    }
    let (limit, mut product) = ((-rate).exp(), positive_uniform(g));
    while product > limit {
        events += 1.0;
        product *= positive_uniform(g);
    }
    events
}

fn binomial(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (counts, chances) = (args.tensor("count")?, args.tensor("prob")?);
    let sizes = crate::support::dims::broadcast(counts.sizes(), chances.sizes())?;
    let all = |t| values::<f64>(ctx, t, &Layout::of_tensor(t.meta()).expand(&sizes)?);
    let (counts, chances) = (all(&counts)?, all(&chances)?);
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    out.resize(&sizes)?;
    write_row_major::<f64>(ctx, out, |out| {
        for (o, (&n, &p)) in out.iter_mut().zip(counts.iter().zip(chances.iter())) {
            ensure!(n >= 0.0 && (0.0..=1.0).contains(&p), "count, prob: {n} trials with probability {p}");
            *o = draw_binomial(ctx.generator(), n.floor(), p);
        }
        Ok(())
    })
}

/// The number of successes of `n` trials. A large `n` is halved repeatedly, at the beta-distributed median of the
/// uniform numbers that the trials would draw.
fn draw_binomial(g: &Generator, mut n: f64, mut p: f64) -> f64 {
    let mut successes = 0.0;
    while n > 32.0 && n.is_finite() {
        let middle = (n / 2.0).floor() + 1.0;
        let (below, above) = (draw_gamma(g, middle), draw_gamma(g, n + 1.0 - middle));
        let median = below / (below + above);
        if median <= p {
            successes += middle;
            n -= middle;
            p = ((p - median) / (1.0 - median)).clamp(0.0, 1.0);
        } else {
            n = middle - 1.0;
            p /= median;
        }
    }
    (0..n.min(32.0) as u64).filter(|_| g.uniform() < p).count() as f64 + successes
}

/// Gamma-distributed values; each element of the argument is the shape parameter of one value.
fn standard_gamma(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_for_each(ctx, args, outs, |g, shape| {
        ensure!(shape > 0.0, "self: the shape {shape} is not positive");
        Ok(draw_gamma(g, shape))
    })
}

/// A gamma-distributed value, by Marsaglia and Tsang's method; a shape below one is raised by one and the value scaled.
fn draw_gamma(g: &Generator, shape: f64) -> f64 {
    let scale = if shape < 1.0 { positive_uniform(g).powf(1.0 / shape) } else { 1.0 };
    let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    // Fewer than one in twenty tries is rejected.
    for _ in 0..10_000 {
        let x = g.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && positive_uniform(g).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v * scale;
        }
    }
    d * scale
}

/// Rows of gamma-distributed values, each divided by the sum of its row.
fn dirichlet(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    ensure!(x.rank() > 0, "self: expected rows of parameters, found a number");
    let row = x.sizes()[x.rank() - 1].max(1);
    let shapes = all_values::<f64>(ctx, &x)?;
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    out.resize(x.sizes())?;
    write_row_major::<f64>(ctx, out, |out| {
        for (out, shapes) in out.chunks_mut(row).zip(shapes.chunks(row)) {
            for (o, &shape) in out.iter_mut().zip(shapes) {
                ensure!(shape > 0.0, "self: the parameter {shape} is not positive");
                *o = draw_gamma(ctx.generator(), shape);
            }
            let sum: f64 = out.iter().sum();
            out.iter_mut().for_each(|o| *o /= sum);
        }
        Ok(())
    })
}

/// Draws a value for each element of the first argument.
fn draw_for_each(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    next: impl Fn(&Generator, f64) -> Result<f64>,
) -> Result<()> {
    let x = args.tensor("self")?;
    let all = all_values::<f64>(ctx, &x)?;
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    out.resize(x.sizes())?;
    write_row_major::<f64>(ctx, out, |out| {
        for (o, &x) in out.iter_mut().zip(all.iter()) {
            pteron_pool::progress(1);
            *o = next(ctx.generator(), x)?;
        }
        Ok(())
    })
}

/// Uniform integers from zero to [`greatest_exact_integer`] of the result's type, inclusive.
fn random(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let high = greatest_exact_integer(outs.tensor(0)?.dtype());
    crate::random::draw_ints(ctx, outs, args.meta("self")?.sizes(), 0, high.saturating_add(1))
}

/// The greatest integer up to which a type represents all non-negative integers exactly.
fn greatest_exact_integer(dtype: ScalarType) -> i64 {
    match dtype {
        ScalarType::Bool => 1,
        ScalarType::Byte => 255,
        ScalarType::Char => 127,
        ScalarType::Short => i64::from(i16::MAX),
        ScalarType::Int => i64::from(i32::MAX),
        ScalarType::BFloat16 => 1 << 8,
        ScalarType::Half => 1 << 11,
        ScalarType::Float => 1 << 24,
        ScalarType::Double => 1 << 53,
        _ => i64::MAX,
    }
}

fn random_to(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    crate::random::draw_ints(ctx, outs, args.meta("self")?.sizes(), 0, args.int("to")?)
}

fn random_from(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let high = match args.optional_int("to")? {
        Some(high) => high,
        None => greatest_exact_integer(outs.tensor(0)?.dtype()).saturating_add(1),
    };
    crate::random::draw_ints(ctx, outs, args.meta("self")?.sizes(), args.int("from")?, high)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Double, Int};
    use pteron_tensor::Tensor;

    const COUNT: usize = 20_000;

    fn filled(x: f64) -> Tensor {
        t(&[COUNT], &[x; COUNT])
    }

    /// Mean and variance of the values that an operator draws.
    fn moments(name: &str, args: &[Arg<'_>]) -> (f64, f64) {
        let r = call(name, args, out(Double, &[COUNT])).unwrap();
        let all = r.storage::<f64>().unwrap();
        let mean = all.iter().sum::<f64>() / COUNT as f64;
        (mean, all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / COUNT as f64)
    }

    fn near((mean, variance): (f64, f64), expected: (f64, f64)) {
        let close = |actual: f64, want: f64| (actual - want).abs() <= 0.06 * want;
        assert!(close(mean, expected.0) && close(variance, expected.1), "{mean}, {variance}: {expected:?}");
    }

    #[test]
    fn means_and_variances() {
        let x = filled(0.0);
        near(moments("aten::exponential.out", &[a(&x), Arg::Double(2.0), Arg::None]), (0.5, 0.25));
        near(moments("aten::geometric.out", &[a(&x), Arg::Double(0.25), Arg::None]), (4.0, 12.0));
        let args = [a(&x), Arg::Double(0.0), Arg::Double(0.25), Arg::None];
        near(moments("aten::log_normal.out", &args), (1.0317, 0.06866));
        for rate in [0.5, 7.0, 90.0] {
            let x = filled(rate);
            near(moments("aten::poisson.out", &[a(&x), Arg::None]), (rate, rate));
            near(moments("aten::_standard_gamma.out", &[a(&x), Arg::None]), (rate, rate));
        }
        let (count, p) = (filled(200.0), t(&[1], &[0.3f64]));
        near(moments("aten::binomial.out", &[a(&count), a(&p), Arg::None]), (60.0, 42.0));
    }

    #[test]
    fn every_value_of_a_range_is_drawn() {
        let x = t(&[500], &[0i32; 500]);
        let r =
            call("aten::random.from_out", &[a(&x), Arg::Int(-2), Arg::Int(3), Arg::None], out(Int, &[500]))
                .unwrap();
        let all = r.storage::<i32>().unwrap();
        assert!((-2..3).all(|v| all.contains(&v)) && all.iter().all(|v| (-2..3).contains(v)));
        assert!(call("aten::random.to_out", &[a(&x), Arg::Int(0), Arg::None], out(Int, &[500])).is_err());
        let rows = t(&[2, 3], &[1f64, 2.0, 3.0, 0.5, 0.5, 9.0]);
        let r = call("aten::_sample_dirichlet.out", &[a(&rows), Arg::None], out(Double, &[2, 3])).unwrap();
        for row in r.storage::<f64>().unwrap().chunks(3) {
            assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12 && row.iter().all(|&p| p > 0.0));
        }
    }
}
