//! Matrix products.

use crate::compute::{Epilogue, Lhs, MatRef, Rhs, bmm};
use crate::support::convert::{Values, values, write_row_major};
use crate::support::dtype::{C64, Compute, compute_type};
use crate::support::layout::Layout;
use crate::support::map::expect_out;
use crate::support::meaning::optional_tensor_position;
use pteron_operator::facts::MatMul;
use pteron_operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, Rounding, ensure};
use pteron_tensor::{Scalar, ScalarType, Shape, TensorView, TensorViewMut};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        mm,
    )
    .rounding(Rounding::Once)
    .means(mm_meaning),
    Operator::new(
        "aten::bmm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        batched_mm,
    )
    .rounding(Rounding::Once)
    .means(|_| Some(Meaning::BatchMatMul)),
    Operator::new(
        "aten::addmm.out(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        addmm,
    )
    .rounding(Rounding::Once)
    .means(addmm_meaning),
    Operator::new(
        "aten::baddbmm.out(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        baddbmm,
    ),
    Operator::new(
        "aten::linear.out(Tensor input, Tensor weight, Tensor? bias=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        linear,
    )
    .rounding(Rounding::Once)
    .means(linear_meaning),
    Operator::new("aten::mv.out(Tensor self, Tensor vec, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, mv),
    Operator::new(
        "aten::addmv.out(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        addmv,
    ),
    Operator::new(
        "aten::dot.out(Tensor self, Tensor tensor, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        dot,
    ),
];

fn mm_meaning(_: &Args<'_>) -> Option<Meaning> {
    Some(Meaning::MatMul(MatMul { x: 0, rank: Some(2), weights: 1, out_major: false, bias: None }))
}

/// The meaning of `addmm`, with `self` as bias; `None` unless `alpha` and `beta` are one.
fn addmm_meaning(args: &Args<'_>) -> Option<Meaning> {
    let one = |arg: &'static str| args.scalar(arg).is_ok_and(|s| s.to_f64() == 1.0);
    let product = MatMul { x: 1, rank: Some(2), weights: 2, out_major: false, bias: Some(0) };
    (one("beta") && one("alpha")).then_some(Meaning::MatMul(product))
}

fn linear_meaning(args: &Args<'_>) -> Option<Meaning> {
    let bias = optional_tensor_position(args, "bias")?;
    Some(Meaning::MatMul(MatMul { x: 0, rank: None, weights: 1, out_major: true, bias }))
}

/// A batch of matrices: a tensor seen as `[batch, rows, columns]`.
struct Matrices<'a> {
    tensor: TensorView<'a>,
    view: Layout,
}

impl<'a> Matrices<'a> {
    /// The tensor of an argument, which must have `rank` dimensions; leading dimensions of size one are added up to three.
    fn of_arg(args: &Args<'a>, arg: &'static str, rank: usize) -> Result<Self> {
        let tensor = args.tensor(arg)?;
        ensure!(
            tensor.rank() == rank,
            "{arg}: expected {rank} dimensions, found the shape {}",
            tensor.sizes()
        );
        Self { view: Layout::of_tensor(tensor.meta()), tensor }.into_batch()
    }

    fn into_batch(mut self) -> Result<Self> {
        while self.view.rank() < 3 {
            self.view = self.view.insert(0, 1, 0)?;
        }
        Ok(self)
    }

    /// Transposes each matrix of the batch; a vector becomes a column.
    fn transposed(mut self) -> Self {
        self.view = self.view.transpose(1, 2);
        self
    }

    fn batch_size(&self) -> usize {
        self.view.sizes[0]
    }

    fn rows(&self) -> usize {
        self.view.sizes[1]
    }

    fn columns(&self) -> usize {
        self.view.sizes[2]
    }
}

/// The addend of a product: `beta` times a tensor that is broadcast to the product.
struct Addend<'a> {
    beta: Scalar,
    tensor: TensorView<'a>,
    view: Layout,
}

/// `out = beta * addend + alpha * a b`, for each matrix of a batch. The out must have its final sizes, `batch * rows
/// * columns` elements in all.
fn multiply(
    ctx: &KernelContext<'_>,
    a: &Matrices<'_>,
    b: &Matrices<'_>,
    out: &mut TensorViewMut<'_>,
    alpha: Scalar,
    addend: Option<Addend<'_>>,
) -> Result<()> {
    let dtype = a.tensor.dtype();
    ensure!(
        a.batch_size() == b.batch_size() && a.columns() == b.rows(),
        "matrices of the shapes {} and {} cannot be multiplied",
        a.view.sizes,
        b.view.sizes
    );
    ensure!(dtype == b.tensor.dtype(), "matrices of {dtype} and {} cannot be multiplied", b.tensor.dtype());
    expect_out(dtype, out.dtype())?;
    let addend = addend.filter(|add| add.beta.to_f64() != 0.0);
    match compute_type(dtype) {
        ScalarType::Float => multiply_f32(ctx, a, b, out, alpha, addend),
        ScalarType::Double => multiply_as::<f64>(ctx, a, b, out, alpha, addend, |s, a, b| s + a * b),
        ScalarType::Long => {
            multiply_as::<i64>(ctx, a, b, out, alpha, addend, |s, a, b| s.wrapping_add(a.wrapping_mul(b)))
        }
        _ => multiply_as::<C64>(ctx, a, b, out, alpha, addend, |s, a, b| s + a * b),
    }
}

/// A batch of f32 matrices: the tensor's own memory with its strides, or a row-major copy.
struct Operand<'a> {
    values: Values<'a, f32>,
    shape: Strided,
}

#[derive(Clone, Copy)]
struct Strided {
    offset: usize,
    rows: usize,
    columns: usize,
    strides: [usize; 3],
}

impl<'a> Operand<'a> {
    fn new(ctx: &KernelContext<'a>, tensor: &TensorView<'a>, view: &Layout) -> Result<Self> {
        let (rows, columns) = (view.sizes[1], view.sizes[2]);
        let stride = |d: usize| usize::try_from(view.strides()[d]).ok();
        if tensor.dtype() == ScalarType::Float
            && let (Some(x), Some(y), Some(z)) = (stride(0), stride(1), stride(2))
        {
            let shape = Strided { offset: view.offset, rows, columns, strides: [x, y, z] };
            return Ok(Self { values: Values::Own(tensor.storage()?), shape });
        }
        let shape = Strided { offset: 0, rows, columns, strides: [rows * columns, columns, 1] };
        Ok(Self { values: values(ctx, tensor, view)?, shape })
    }
}

impl Strided {
    fn matrix<'v>(&self, values: &'v [f32], i: usize) -> MatRef<'v> {
        let [x, y, z] = self.strides;
        let empty = self.rows == 0 || self.columns == 0;
        let from = if empty { &[] } else { &values[self.offset + i * x..] };
        MatRef::strided(from, self.rows, self.columns, y, z)
    }
}

fn multiply_f32(
    ctx: &KernelContext<'_>,
    a: &Matrices<'_>,
    b: &Matrices<'_>,
    out: &mut TensorViewMut<'_>,
    alpha: Scalar,
    addend: Option<Addend<'_>>,
) -> Result<()> {
    let (batch, m, n) = (a.batch_size(), a.rows(), b.columns());
    let x = Operand::new(ctx, &a.tensor, &a.view)?;
    let y = Operand::new(ctx, &b.tensor, &b.view)?;
    let add = match &addend {
        Some(add) => Some((add.beta.to_f64() as f32, Operand::new(ctx, &add.tensor, &add.view)?)),
        None => None,
    };
    let alpha = alpha.to_f64() as f32;
    let (pool, isa) = (ctx.pool(), crate::support::isa(ctx));
    // Scratch buffers cannot be shared among threads, slices of their elements can.
    let (x, y) = ((&x.values[..], x.shape), (&y.values[..], y.shape));
    let add = add.as_ref().map(|(beta, add)| (*beta, &add.values[..], add.shape));
    write_row_major::<f32>(ctx, out, |out| {
        if out.is_empty() {
            return Ok(());
        }
        let epilogue = |i: usize| Epilogue {
            alpha,
            residual: add.map(|(beta, add, shape)| (beta, shape.matrix(add, i))),
            ..Epilogue::NONE
        };
        let (left, right) = (|i| Lhs::Plain(x.1.matrix(x.0, i)), |i| Rhs::Plain(y.1.matrix(y.0, i)));
        bmm(pool, isa, batch, &left, &right, (out, m * n, m, n), &epilogue);
        Ok(())
    })
}

fn multiply_as<C: Compute + std::ops::Mul<Output = C>>(
    ctx: &KernelContext<'_>,
    a: &Matrices<'_>,
    b: &Matrices<'_>,
    out: &mut TensorViewMut<'_>,
    alpha: Scalar,
    addend: Option<Addend<'_>>,
    mac: impl Fn(C, C, C) -> C + Sync,
) -> Result<()> {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    let (x, y) = (values::<C>(ctx, &a.tensor, &a.view)?, values::<C>(ctx, &b.tensor, &b.view)?);
    let add = match &addend {
        Some(add) => Some((C::from_scalar(add.beta), values::<C>(ctx, &add.tensor, &add.view)?)),
        None => None,
    };
    let (x, y, add) = (&*x, &*y, add.as_ref().map(|(beta, add)| (*beta, &**add)));
    let (zero, alpha) = (C::default(), C::from_scalar(alpha));
    let grain = ((1 << 14) / (k * n).max(1)).max(1);
    write_row_major::<C>(ctx, out, |out| {
        ctx.pool().parallel_chunks_mut(out, n.max(1), grain, &|row, out| {
            pteron_pool::count(k.saturating_mul(n));
            out.fill(zero);
            let y = &y[row / m * k * n..];
            for (x, y) in x[row * k..(row + 1) * k].iter().zip(y.chunks_exact(n)) {
                out.iter_mut().zip(y).for_each(|(o, &y)| *o = mac(*o, *x, y));
            }
            out.iter_mut().for_each(|o| *o = mac(zero, alpha, *o));
            if let Some((beta, add)) = add {
                out.iter_mut().zip(&add[row * n..]).for_each(|(o, &add)| *o = mac(*o, beta, add));
            }
        });
        Ok(())
    })
}

/// The addend at argument 0, broadcast to the sizes of the out, as a batch of matrices.
fn broadcast_addend<'a>(args: &Args<'a>, sizes: &Shape) -> Result<Addend<'a>> {
    let tensor = args.tensor("self")?;
    let mut view = Layout::of_tensor(tensor.meta()).expand(sizes)?;
    while view.rank() < 3 {
        view = view.insert(0, 1, 0)?;
    }
    Ok(Addend { beta: args.scalar("beta")?, tensor, view })
}

fn mm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (Matrices::of_arg(args, "self", 2)?, Matrices::of_arg(args, "mat2", 2)?);
    let out = outs.tensor(0)?;
    out.resize(&[a.rows(), b.columns()])?;
    multiply(ctx, &a, &b, out, Scalar::Int(1), None)
}

fn batched_mm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (Matrices::of_arg(args, "self", 3)?, Matrices::of_arg(args, "mat2", 3)?);
    let out = outs.tensor(0)?;
    out.resize(&[a.batch_size(), a.rows(), b.columns()])?;
    multiply(ctx, &a, &b, out, Scalar::Int(1), None)
}

/// `beta * self + alpha * mat1 mat2`
fn addmm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (Matrices::of_arg(args, "mat1", 2)?, Matrices::of_arg(args, "mat2", 2)?);
    let out = outs.tensor(0)?;
    out.resize(&[a.rows(), b.columns()])?;
    multiply(ctx, &a, &b, out, args.scalar("alpha")?, Some(broadcast_addend(args, out.sizes())?))
}

/// `beta * self + alpha * batch1 batch2`
fn baddbmm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (Matrices::of_arg(args, "batch1", 3)?, Matrices::of_arg(args, "batch2", 3)?);
    let out = outs.tensor(0)?;
    out.resize(&[a.batch_size(), a.rows(), b.columns()])?;
    multiply(ctx, &a, &b, out, args.scalar("alpha")?, Some(broadcast_addend(args, out.sizes())?))
}

/// `input weight^T + bias`, over the last dimension of `input`.
fn linear(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (input, weight) = (args.tensor("input")?, args.tensor("weight")?);
    ensure!(input.rank() > 0, "input: a zero-dim tensor has no features");
    ensure!(matches!(weight.rank(), 1 | 2), "weight: expected a matrix, found the shape {}", weight.sizes());
    let mut sizes = *input.sizes();
    let features = sizes.remove(input.rank() - 1);
    let rows = sizes.numel()?;
    let b = Matrices { view: Layout::of_tensor(weight.meta()), tensor: weight }.into_batch()?.transposed();
    if weight.rank() == 2 {
        sizes.push(b.columns())?;
    }
    // The leading dimensions are merged into one; that needs a copy if the layout does not allow it.
    let flat = Shape::new(&[1, rows, features])?;
    let view = Layout::of_tensor(input.meta());
    let copy;
    let a = match view.reshape(&flat) {
        Some(view) => Matrices { tensor: input, view },
        None => {
            copy = input.to_tensor()?.to_dim_order(pteron_tensor::DimOrder::contiguous(input.rank()))?;
            Matrices { tensor: copy.view(), view: Layout::contiguous(&flat) }
        }
    };
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    let add = match args.optional_tensor("bias")? {
        None => None,
        Some(bias) => {
            let view = Layout::of_tensor(bias.meta()).expand(&Shape::new(&[1, rows, b.columns()])?)?;
            Some(Addend { beta: Scalar::Int(1), tensor: bias, view })
        }
    };
    multiply(ctx, &a, &b, out, Scalar::Int(1), add)
}

/// Matrix-vector product.
fn mv(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (Matrices::of_arg(args, "self", 2)?, Matrices::of_arg(args, "vec", 1)?.transposed());
    let out = outs.tensor(0)?;
    out.resize(&[a.rows()])?;
    multiply(ctx, &a, &b, out, Scalar::Int(1), None)
}

/// `beta * self + alpha * mat vec`
fn addmv(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (Matrices::of_arg(args, "mat", 2)?, Matrices::of_arg(args, "vec", 1)?.transposed());
    let out = outs.tensor(0)?;
    out.resize(&[a.rows()])?;
    let tensor = args.tensor("self")?;
    let view = Layout::of_tensor(tensor.meta()).expand(out.sizes())?.insert(1, 1, 0)?.insert(0, 1, 0)?;
    multiply(
        ctx,
        &a,
        &b,
        out,
        args.scalar("alpha")?,
        Some(Addend { beta: args.scalar("beta")?, tensor, view }),
    )
}

/// Dot product.
fn dot(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (Matrices::of_arg(args, "self", 1)?, Matrices::of_arg(args, "tensor", 1)?.transposed());
    let out = outs.tensor(0)?;
    out.resize(&[])?;
    multiply(ctx, &a, &b, out, Scalar::Int(1), None)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{ComplexFloat, Double, Float, Half, Int, Long};
    use pteron_tensor::{Complex, DimOrder, Tensor, f16};

    fn f32s(t: &Tensor) -> Vec<f32> {
        t.to_dim_order(DimOrder::contiguous(t.rank())).unwrap().as_slice().unwrap().to_vec()
    }

    #[test]
    fn products_in_every_type() {
        let x = t(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let y = t(&[3, 2], &[1f32, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let go = |x: &Tensor, y: &Tensor, dtype| {
            let cast = |t: &Tensor| call("aten::_to_copy.out", &[a(t)], out(dtype, t.sizes())).unwrap();
            let r = call("aten::mm.out", &[a(&cast(x)), a(&cast(y))], out(dtype, &[2, 2])).unwrap();
            f32s(&call("aten::_to_copy.out", &[a(&r)], out(Float, &[2, 2])).unwrap())
        };
        for dtype in [Float, Double, Half, Int, Long, ComplexFloat] {
            assert_eq!(go(&x, &y, dtype), [4.0, 5.0, 10.0, 11.0], "{dtype}");
        }
        let columns = x.to_dim_order(DimOrder::new(&[1, 0]).unwrap()).unwrap();
        let into = out(Float, &[2, 2]).to_dim_order(DimOrder::new(&[1, 0]).unwrap()).unwrap();
        assert_eq!(f32s(&call("aten::mm.out", &[a(&columns), a(&y)], into).unwrap()), [4.0, 5.0, 10.0, 11.0]);
        let i = t(&[1, 1], &[Complex::new(0f32, 1.0)]);
        let r = call("aten::mm.out", &[a(&i), a(&i)], out(ComplexFloat, &[1, 1])).unwrap();
        assert_eq!(r.storage::<Complex<f32>>().unwrap(), &[Complex::new(-1.0, 0.0)]);
        assert!(call("aten::mm.out", &[a(&x), a(&x)], out(Float, &[2, 3])).is_err());
        let none = call(
            "aten::mm.out",
            &[a(&t::<f32>(&[2, 0], &[])), a(&t::<f32>(&[0, 2], &[]))],
            t(&[2, 2], &[9f32; 4]),
        );
        assert_eq!(f32s(&none.unwrap()), [0.0; 4]);
        let none = call(
            "aten::mm.out",
            &[a(&t::<i64>(&[2, 0], &[])), a(&t::<i64>(&[0, 2], &[]))],
            t(&[2, 2], &[9i64; 4]),
        );
        assert_eq!(none.unwrap().storage::<i64>().unwrap(), [0; 4]);
    }

    #[test]
    fn addends_and_factors() {
        let (x, y) = (t(&[2, 1], &[1f32, 2.0]), t(&[1, 2], &[3f32, 4.0]));
        let bias = t(&[2], &[10f32, f32::NAN]);
        let r =
            call("aten::addmm.out", &[a(&bias), a(&x), a(&y), int(0), int(2)], out(Float, &[2, 2])).unwrap();
        assert_eq!(f32s(&r), [6.0, 8.0, 12.0, 16.0]);
        let r = call("aten::addmm.out", &[a(&s(1f32)), a(&x), a(&y), Arg::Double(0.5)], out(Float, &[2, 2]))
            .unwrap();
        assert_eq!(f32s(&r), [3.5, 4.5, 6.5, 8.5]);
        let (x, y, z) = (t(&[1, 1, 1], &[2i64]), t(&[1, 1, 2], &[3i64, 4]), t(&[2], &[10i64, 20]));
        let r =
            call("aten::baddbmm.out", &[a(&z), a(&x), a(&y), int(2), int(3)], out(Long, &[1, 1, 2])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[38, 64]);
    }

    #[test]
    fn linear_takes_any_leading_dims() {
        let w = t(&[2, 3], &[1f32, 0.0, 0.0, 0.0, 1.0, 1.0]);
        let b = t(&[2], &[100f32, 200.0]);
        let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let x = t(&[2, 2, 3], &x).to_dim_order(DimOrder::new(&[1, 0, 2]).unwrap()).unwrap();
        let r = call("aten::linear.out", &[a(&x), a(&w), a(&b)], out(Float, &[2, 2, 2])).unwrap();
        assert_eq!(f32s(&r), [100.0, 203.0, 103.0, 209.0, 106.0, 215.0, 109.0, 221.0]);
        let h =
            |v: &[f32], sizes: &[usize]| t(sizes, &v.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>());
        let r = call(
            "aten::linear.out",
            &[a(&h(&[1.0, 2.0], &[2])), a(&h(&[3.0, 4.0], &[1, 2])), Arg::None],
            out(Half, &[1]),
        );
        assert_eq!(r.unwrap().storage::<f16>().unwrap()[0].to_f32(), 11.0);
        let r = call("aten::mv.out", &[a(&w), a(&t(&[3], &[1f32, 2.0, 3.0]))], out(Float, &[2])).unwrap();
        assert_eq!(f32s(&r), [1.0, 5.0]);
    }
}
