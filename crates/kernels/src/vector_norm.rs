//! Vector norms.

use crate::compute::wide_sum_of_squares;
use crate::support::dims::DimSet;
use crate::support::dtype::{C64, Cast, Compute, compute_type, dispatch, expect_dtype};
use crate::support::map::expect_out;
use crate::support::reduce::{Reducer, dims_at, reduce, reduced_matrix_sizes};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{Scalar, ScalarType};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::linalg_vector_norm.out(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING.union(DtypeSet::COMPLEX),
        vector_norm,
    ),
    Operator::new(
        "aten::norm.Scalar_out(Tensor self, Scalar p=2, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING.union(DtypeSet::COMPLEX),
        norm_of_all,
    ),
    Operator::new(
        "aten::norm.ScalarOpt_dtype_out(Tensor self, Scalar? p, *, ScalarType dtype, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING.union(DtypeSet::COMPLEX),
        norm_of_all,
    ),
    Operator::new(
        "aten::norm.out(Tensor self, Scalar? p, int[1] dim, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING.union(DtypeSet::COMPLEX),
        norm,
    ),
    Operator::new(
        "aten::norm.dtype_out(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING.union(DtypeSet::COMPLEX),
        norm,
    ),
];

/// Grain size: the smallest number of elements worth waking a thread for.
const GRAIN: usize = 1 << 15;

/// The `p`-norm `(sum |x|^p)^(1/p)`: the largest or smallest modulus for infinite `p`, the number of nonzeros for zero.
struct Norm {
    p: f64,
}

impl Norm {
    fn add(&self, a: f64, b: f64) -> f64 {
        let extreme = |greater: bool| if a.is_nan() || (a > b) == greater && !b.is_nan() { a } else { b };
        match self.p {
            f64::INFINITY => extreme(true),
            f64::NEG_INFINITY => extreme(false),
            _ => a + b,
        }
    }

    fn term(&self, modulus: f64) -> f64 {
        match self.p {
            0.0 => (modulus != 0.0) as u8 as f64,
            1.0 | f64::INFINITY | f64::NEG_INFINITY => modulus,
            2.0 => modulus * modulus,
            p => modulus.powf(p),
        }
    }
}

impl<C: Compute + Modulus> Reducer<C> for Norm {
    type Acc = f64;
    type Out = f64;
    fn start(&self) -> f64 {
        if self.p == f64::NEG_INFINITY { f64::INFINITY } else { 0.0 }
    }
    #[inline]
    fn step(&self, acc: f64, x: C, _: usize) -> f64 {
        self.add(acc, self.term(x.modulus()))
    }
    fn merge(&self, a: f64, b: f64) -> f64 {
        self.add(a, b)
    }
    fn finish(&self, acc: f64, _: usize) -> f64 {
        match self.p {
            0.0 | 1.0 | f64::INFINITY | f64::NEG_INFINITY => acc,
            2.0 => acc.sqrt(),
            p => acc.powf(1.0 / p),
        }
    }
}

/// Elements with an absolute value.
trait Modulus {
    fn modulus(self) -> f64;
}

impl Modulus for f32 {
    fn modulus(self) -> f64 {
        self.to_f64().abs()
    }
}

impl Modulus for f64 {
    fn modulus(self) -> f64 {
        self.abs()
    }
}

impl Modulus for C64 {
    fn modulus(self) -> f64 {
        self.norm()
    }
}

fn norm_over(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    p: Option<Scalar>,
    (dims, keepdim): (DimSet, bool),
    dtype: Option<ScalarType>,
) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    let norm = Norm { p: p.map_or(2.0, |p| p.to_f64()) };
    let result = dtype.unwrap_or(x.dtype());
    expect_dtype("self", x.dtype(), DtypeSet::FLOATING.union(DtypeSet::COMPLEX))?;
    expect_out(result.to_real(), out.dtype())?;
    ensure!(
        !dims.has_zero_size(x.sizes()) || (norm.p >= 0.0 && norm.p < f64::INFINITY),
        "self: a norm of order {} over no elements of the shape {} has no value",
        norm.p,
        x.sizes()
    );
    let is_float = [x.dtype(), out.dtype()] == [ScalarType::Float; 2];
    if let (true, 2.0, Some((n, 1))) = (is_float, norm.p, reduced_matrix_sizes(x.meta(), dims)) {
        out.resize(&dims.reduced_sizes(x.sizes(), keepdim))?;
        if out.meta().dim_order().is_contiguous() {
            let (isa, x) = (crate::support::isa(ctx), x.storage::<f32>()?);
            pteron_pool::count(x.len());
            ctx.pool().parallel_chunks_mut(out.storage_mut()?, 1, (GRAIN / n).max(1), &|i, out| {
                out[0] = wide_sum_of_squares(isa, &x[i * n..][..n]).sqrt() as f32;
            });
            return Ok(());
        }
    }
    match compute_type(x.dtype()) {
        ScalarType::ComplexDouble => reduce::<C64, _>(ctx, &x, dims, keepdim, out, &norm),
        real => {
            dispatch!("self", real, COMPUTE_FLOAT, C => reduce::<C, _>(ctx, &x, dims, keepdim, out, &norm))
        }
    }
}

fn vector_norm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let over = (dims_at(args, "dim")?, args.bool("keepdim")?);
    norm_over(ctx, args, outs, Some(args.scalar("ord")?), over, args.optional_dtype("dtype")?)
}

fn norm_of_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = args.optional_dtype("dtype")?;
    let all = DimSet::all(args.meta("self")?.rank());
    norm_over(ctx, args, outs, args.optional_scalar("p")?, (all, false), dtype)
}

fn norm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = args.optional_dtype("dtype")?;
    norm_over(
        ctx,
        args,
        outs,
        args.optional_scalar("p")?,
        (dims_at(args, "dim")?, args.bool("keepdim")?),
        dtype,
    )
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, ints, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::Complex;
    use pteron_tensor::ScalarType::Float;

    #[test]
    fn norms_of_every_order() {
        let x = t(&[2, 2], &[3f32, -4.0, 0.0, f32::NAN]);
        let go = |p: f64| {
            let args = [a(&x), Arg::Double(p), ints(&[1])];
            call("aten::linalg_vector_norm.out", &args, out(Float, &[2]))
                .unwrap()
                .storage::<f32>()
                .unwrap()
                .to_vec()
        };
        for (p, norm) in [(2.0, 5.0), (1.0, 7.0), (0.0, 2.0), (f64::INFINITY, 4.0), (f64::NEG_INFINITY, 3.0)]
        {
            assert_eq!(go(p)[0], norm);
            assert_eq!(go(p)[1].is_nan(), p != 0.0);
        }
        let none = t::<f32>(&[0], &[]);
        let norm = |p: f64| call("aten::norm.Scalar_out", &[a(&none), Arg::Double(p)], out(Float, &[]));
        assert_eq!(norm(3.0).unwrap().storage::<f32>().unwrap(), &[0.0]);
        assert!(norm(f64::INFINITY).is_err());
        let z = t(&[1], &[Complex::new(3f32, 4.0)]);
        let r = call("aten::norm.out", &[a(&z), Arg::None, ints(&[]), Arg::Bool(true)], out(Float, &[1]));
        assert_eq!(r.unwrap().storage::<f32>().unwrap(), &[5.0]);
        assert!(call("aten::norm.Scalar_out", &[a(&t(&[1], &[1i32])), int(2)], out(Float, &[])).is_err());
    }
}
