//! Random tensors, from the generator of the call.

use crate::support::convert::write_rows;
use crate::support::dims::to_shape;
use crate::support::dtype::expect_dtype;
use operator::{Args, DtypeSet, Generator, KernelContext, Operator, Outs, Result};
use tensor::ScalarType;

macro_rules! row {
    ($schema:literal, $f:ident) => {
        Operator::new(concat!("aten::", $schema, "Tensor(a!) out) -> Tensor(a!)"), DtypeSet::FLOATING, $f)
    };
}

pub(crate) const OPERATORS: &[Operator] = &[
    row!("rand.out(SymInt[] size, *, ", rand),
    row!("randn.out(SymInt[] size, *, ", randn),
    row!("rand_like.out(Tensor self, *, MemoryFormat? memory_format=None, ", rand_like),
    row!("randn_like.out(Tensor self, *, MemoryFormat? memory_format=None, ", randn_like),
];

/// Fills an out of these sizes, in row-major order whatever its layout.
fn draw(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    sizes: &[usize],
    next: impl Fn(&Generator) -> f64,
) -> Result<()> {
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    out.resize(sizes)?;
    write_rows::<f64>(ctx, out, |out| {
        out.iter_mut().for_each(|x| *x = next(ctx.generator()));
        Ok(())
    })
}

/// Numbers of `[0, 1)` with as many bits as the out's type holds, so that no rounding makes one of them 1.
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
    let sizes = to_shape(args.name(0), args.ints(0)?)?;
    draw_uniform(ctx, outs, &sizes)
}

/// Normal numbers of mean 0 and deviation 1.
fn randn(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let sizes = to_shape(args.name(0), args.ints(0)?)?;
    draw(ctx, outs, &sizes, Generator::normal)
}

fn rand_like(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw_uniform(ctx, outs, args.meta(0)?.sizes())
}

fn randn_like(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    draw(ctx, outs, args.meta(0)?.sizes(), Generator::normal)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, ints, out, t};
    use tensor::ScalarType::{BFloat16, Float, Int};

    #[test]
    fn uniform_and_normal_numbers() {
        let r = call("aten::rand.out", &[ints(&[1000])], out(Float, &[1000])).unwrap();
        let all = r.as_slice::<f32>().unwrap();
        assert!(all.iter().all(|v| (0.0..1.0).contains(v)));
        let mean = all.iter().sum::<f32>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        let x = t(&[1000], &[0f32; 1000]);
        let r = call("aten::rand_like.out", &[a(&x)], out(BFloat16, &[1000])).unwrap();
        assert!(r.as_slice::<tensor::bf16>().unwrap().iter().all(|v| v.to_f32() < 1.0));
        let r = call("aten::randn.out", &[ints(&[10, 100])], out(Float, &[10, 100])).unwrap();
        let all = r.as_slice::<f32>().unwrap();
        let square = all.iter().map(|v| v * v).sum::<f32>() / 1000.0;
        assert!((square - 1.0).abs() < 0.15, "{square}");
        assert!(call("aten::rand.out", &[ints(&[3])], out(Int, &[3])).is_err());
        assert!(call("aten::rand.out", &[ints(&[-3])], out(Float, &[3])).is_err());
    }
}
