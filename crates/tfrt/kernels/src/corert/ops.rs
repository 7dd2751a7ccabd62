//! The operators of the CPU op handler.

use super::OpAttrs;
use crate::kernels::out;
use crate::tensor::{Dense, Element, Kind, Tensor, TensorShape};
use half::f16;
use pteron_bef::{Attribute, DType};
use pteron_host::{Fault, Frame};

/// The implementation of an operator: takes tensors and attributes, and returns tensors.
pub(crate) type Op = fn(&Frame<'_>, &[&Tensor], &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault>;

/// An operator, and the kinds of tensors that it supports besides dense ones.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    op: Op,
    takes: &'static [Kind],
}

impl Entry {
    /// Runs the operator. Converts operands of unsupported kinds to dense tensors, or fails if that is not possible.
    pub(crate) fn run(
        &self,
        frame: &Frame<'_>,
        arguments: &[&Tensor],
        attrs: &OpAttrs<'_>,
    ) -> Result<Vec<Tensor>, Fault> {
        let takes = |tensor: &Tensor| tensor.kind() == Kind::Dense || self.takes.contains(&tensor.kind());
        if arguments.iter().all(|tensor| takes(tensor)) {
            return (self.op)(frame, arguments, attrs);
        }
        let implicit = |tensor: &Tensor| match tensor.kind() {
            Kind::Strings => Err(Fault::from("Cannot implictly convert StringHost to DenseHost")),
            _ => to_dense(frame, tensor).map(Tensor::Dense),
        };
        let converted = arguments.iter().map(|&tensor| match takes(tensor) {
            true => Ok(tensor.clone()),
            false => implicit(tensor),
        });
        let converted = converted.collect::<Result<Vec<Tensor>, Fault>>()?;
        (self.op)(frame, &converted.iter().collect::<Vec<_>>(), attrs)
    }
}

/// The operator called `name`.
pub(crate) fn find(name: &str) -> Option<Entry> {
    let dense = |op: Op| Entry { op, takes: &[] };
    let scalar = |op: Op| Entry { op, takes: &[Kind::Scalar] };
    Some(match name {
        "tfrt_test.create_dense_tensor" => dense(create_dense),
        "tfrt_test.create_from_scalar" => dense(create_from_scalar),
        "tfrt_test.add" => scalar(add),
        "tfrt_test.add.denseonly" | "tfrt_test.add.denseonly2" | "tfrt_test.add.denseonly3" => dense(add),
        "tfrt_test.equal" => dense(equal),
        "tfrt_test.argmax" => dense(argmax),
        "tfrt_test.reduce_mean" => dense(reduce_mean),
        "tfrt_test.relu" => dense(relu),
        "tfrt_test.matmul" => dense(matmul),
        "tfrt_test.cast" => dense(cast),
        "tfrt_test.odd_collector" => dense(odd_collector),
        "tfrt_test.print" => Entry { op: print, takes: &[Kind::Scalar, Kind::Strings, Kind::Coo] },
        "tfrt_test.identity" | "tfrt_test.identity_dense_only" => dense(identity),
        "tfrt_test.async.noop" | "tfrt_test.async.noop_no_md" => scalar(identity),
        "tfrt_test.error.tensor" => {
            scalar(|_, _, _| Err("error from test.error.tensor implementation".into()))
        }
        _ => return None,
    })
}

/// Calls a generic function with the Rust type for a numeric data type as its type argument.
macro_rules! dispatch {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::UI8 => $f::<u8>($($arg),*),
            DType::UI32 => $f::<u32>($($arg),*),
            DType::UI64 => $f::<u64>($($arg),*),
            DType::I8 => $f::<i8>($($arg),*),
            DType::I32 => $f::<i32>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::F32 => $f::<f32>($($arg),*),
            DType::F64 => $f::<f64>($($arg),*),
            other => Err(Fault::invalid(format!("tensors of {other} are not supported here"))),
        }
    };
}

/// Numeric element types.
trait Number: Element + PartialOrd {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn mean(sum: Self, count: u64) -> Self;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    const ZERO: Self;
}

macro_rules! numbers {
    ($($ty:ty, $add:ident, $mul:ident, $mean:ident;)*) => {$(
        impl Number for $ty {
            fn add(self, other: Self) -> Self { numbers!(@$add self, other, +) }
            fn mul(self, other: Self) -> Self { numbers!(@$mul self, other, *) }
            fn mean(sum: Self, count: u64) -> Self { numbers!(@$mean sum, count.max(1), $ty) }
            fn from_f64(value: f64) -> Self { value as $ty }
            fn to_f64(self) -> f64 { self as f64 }
            const ZERO: Self = 0 as $ty;
        }
    )*};
    (@plain $a:expr, $b:expr, $op:tt) => { $a $op $b };
    (@wrapping_add $a:expr, $b:expr, $op:tt) => { $a.wrapping_add($b) };
    (@wrapping_mul $a:expr, $b:expr, $op:tt) => { $a.wrapping_mul($b) };
    (@mean $sum:expr, $count:expr, $ty:ty) => { $sum / $count as $ty };
    // The count may be out of the type's range.
    (@integer_mean $sum:expr, $count:expr, $ty:ty) => { (i128::from($sum) / i128::from($count)) as $ty };
}

numbers! {
    u8, wrapping_add, wrapping_mul, integer_mean;
    u32, wrapping_add, wrapping_mul, integer_mean;
    u64, wrapping_add, wrapping_mul, integer_mean;
    i8, wrapping_add, wrapping_mul, integer_mean;
    i32, wrapping_add, wrapping_mul, integer_mean;
    i64, wrapping_add, wrapping_mul, integer_mean;
    f32, plain, plain, mean;
    f64, plain, plain, mean;
}

fn argument<'t>(arguments: &[&'t Tensor], index: usize) -> Result<&'t Tensor, Fault> {
    arguments.get(index).copied().ok_or_else(|| Fault::invalid(format!("operand {index} is missing")))
}

fn dtype(tensor: &Tensor) -> DType {
    match tensor {
        Tensor::Dense(t) => t.dtype,
        Tensor::Scalar(dtype, ..) => *dtype,
        Tensor::Strings(_) => DType::String,
        Tensor::Coo(t) => t.dtype(),
    }
}

/// Converts a tensor to a dense one.
pub(super) fn to_dense(frame: &Frame<'_>, tensor: &Tensor) -> Result<Dense, Fault> {
    match tensor {
        Tensor::Dense(t) => Ok(t.clone()),
        Tensor::Scalar(dtype, shape, value) => {
            let bytes = shape.element_count().saturating_mul(value.len() as u64);
            let buffer = crate::tensor::Buffer::new(frame, bytes)?;
            buffer.write(frame, |bytes| {
                bytes.chunks_exact_mut(value.len()).for_each(|b| b.copy_from_slice(value));
            })?;
            Ok(Dense { dtype: *dtype, shape: shape.clone(), buffer })
        }
        Tensor::Coo(t) => t.to_dense(frame),
        Tensor::Strings(_) => Err(Fault::invalid("a tensor of strings, expected numbers")),
    }
}

fn single_result<T: Element>(
    frame: &Frame<'_>,
    shape: TensorShape,
    elements: impl IntoIterator<Item = T>,
) -> Result<Vec<Tensor>, Fault> {
    Ok(vec![Tensor::Dense(Dense::from_elements(frame, shape, elements)?)])
}

fn create_dense(frame: &Frame<'_>, _: &[&Tensor], attrs: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    let shape = attrs.dims("shape").map_err(|_| Fault::from("missing 'shape' attribute"))?;
    let shape = TensorShape::new(shape)?;
    let values = attrs.get("values").map_err(|_| Fault::from("missing 'values' attribute"))?;
    let Attribute::Array(values) = values else {
        return Err("'values' attribute should be an array of values".into());
    };
    let pteron_bef::ElementType::Data(dtype) = values.element_type() else {
        return Err(Fault::invalid("attribute 'values' is an array of types"));
    };
    let size = values.element_type().size();
    let buffer = match values.len() {
        n if n == shape.element_count() => {
            crate::tensor::Buffer::from_attribute_bytes(frame, values.bytes())?
        }
        1 => {
            let buffer = crate::tensor::Buffer::new(frame, shape.element_count().saturating_mul(size))?;
            buffer.write(frame, |bytes| {
                bytes.chunks_exact_mut(size as usize).for_each(|b| b.copy_from_slice(values.bytes()));
            })?;
            buffer
        }
        _ => return Err("size of 'values' must either be 1 or match num of elements.".into()),
    };
    Ok(vec![Tensor::Dense(Dense { dtype, shape, buffer })])
}

fn create_from_scalar(_: &Frame<'_>, _: &[&Tensor], attrs: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    let missing = |name| Fault::from(format!("tfrt_test.create_from_scalar must have '{name}' attribute"));
    let shape = TensorShape::new(attrs.dims("shape").map_err(|_| missing("shape"))?)?;
    let (dtype, bytes) = match attrs.get("value").map_err(|_| missing("value"))? {
        Attribute::I32(v) => (DType::I32, v.to_le_bytes().to_vec()),
        Attribute::I64(v) => (DType::I64, v.to_le_bytes().to_vec()),
        Attribute::F32(v) => (DType::F32, v.to_le_bytes().to_vec()),
        Attribute::F64(v) => (DType::F64, v.to_le_bytes().to_vec()),
        Attribute::I1(v) => (DType::I1, vec![u8::from(*v)]),
        Attribute::Array(_) => return Err(missing("value")),
        _ => return Err("tfrt_test.create_from_scalar unsupported dtype".into()),
    };
    Ok(vec![Tensor::Scalar(dtype, shape, bytes)])
}

/// The element type of both tensors; fails with message `dtypes` or `shapes` if their types or shapes differ.
fn common_dtype(a: &Tensor, b: &Tensor, dtypes: &str, shapes: &str) -> Result<DType, Fault> {
    let shape = |t: &Tensor| match t {
        Tensor::Dense(t) => t.shape.clone(),
        Tensor::Scalar(_, shape, _) => shape.clone(),
        Tensor::Strings(t) => t.shape.clone(),
        Tensor::Coo(t) => t.shape().clone(),
    };
    if dtype(a) != dtype(b) {
        return Err(dtypes.into());
    }
    if shape(a) != shape(b) {
        return Err(shapes.into());
    }
    Ok(dtype(a))
}

fn add(frame: &Frame<'_>, arguments: &[&Tensor], _: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    fn add_elements<T: Number>(frame: &Frame<'_>, a: &Tensor, b: &Tensor) -> Result<Vec<Tensor>, Fault> {
        if let (Tensor::Scalar(dtype, shape, x), Tensor::Scalar(_, _, y)) = (a, b) {
            let mut bytes = vec![0; T::SIZE];
            T::read(x).add(T::read(y)).write(&mut bytes);
            return Ok(vec![Tensor::Scalar(*dtype, shape.clone(), bytes)]);
        }
        let (a, b) = (to_dense(frame, a)?, to_dense(frame, b)?);
        let (x, y) = (a.elements::<T>()?, b.elements::<T>()?);
        single_result(frame, a.shape, x.iter().zip(y.iter()).map(|(x, y)| x.add(y)))
    }
    let (a, b) = (argument(arguments, 0)?, argument(arguments, 1)?);
    let kind =
        common_dtype(a, b, "incompatible dtypes for test.add", "arguments of test.add must have same shape")?;
    dispatch!(kind, add_elements(frame, a, b))
}

fn equal(frame: &Frame<'_>, arguments: &[&Tensor], _: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    fn compare_elements<T: Number>(frame: &Frame<'_>, a: &Dense, b: &Dense) -> Result<Vec<Tensor>, Fault> {
        let (x, y) = (a.elements::<T>()?, b.elements::<T>()?);
        let same = |(x, y)| if x == y { T::from_f64(1.0) } else { T::ZERO };
        single_result(frame, a.shape.clone(), x.iter().zip(y.iter()).map(same))
    }
    let (a, b) = (argument(arguments, 0)?, argument(arguments, 1)?);
    let kind = common_dtype(
        a,
        b,
        "incompatible dtypes for element-wise op",
        "arguments to element-wise op must have identical shapes",
    )?;
    let (a, b) = (to_dense(frame, a)?, to_dense(frame, b)?);
    dispatch!(kind, compare_elements(frame, &a, &b))
}

/// The shape without `axis`, and the products of the sizes before, at and after the axis.
fn split_at_axis(shape: &TensorShape, axis: i64) -> Result<(TensorShape, [usize; 3]), Fault> {
    let dims = shape.dims();
    let axis = usize::try_from(axis).ok().filter(|&a| a < dims.len());
    let Some(axis) = axis else { return Err("axis must less than input rank".into()) };
    let product = |d: &[i64]| d.iter().fold(1usize, |n, &d| n.saturating_mul(d as usize));
    let rest = [&dims[..axis], &dims[axis + 1..]].concat();
    Ok((TensorShape::new(rest)?, [product(&dims[..axis]), dims[axis] as usize, product(&dims[axis + 1..])]))
}

fn reduce<T: Number, R: Element>(
    frame: &Frame<'_>,
    tensor: &Dense,
    axis: i64,
    f: impl Fn(&mut dyn Iterator<Item = T>, u64) -> R,
) -> Result<Vec<Tensor>, Fault> {
    let (shape, [outer, size, inner]) = split_at_axis(&tensor.shape, axis)?;
    let elements = tensor.elements::<T>()?;
    let places = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i)));
    let results = places.map(|(o, i)| {
        let mut line = (0..size).map(|s| elements.at((o * size + s) * inner + i));
        f(&mut line, size as u64)
    });
    single_result(frame, shape, results)
}

fn argmax(frame: &Frame<'_>, arguments: &[&Tensor], attrs: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    fn argmax_elements<T: Number>(
        frame: &Frame<'_>,
        tensor: &Dense,
        axis: i64,
    ) -> Result<Vec<Tensor>, Fault> {
        reduce::<T, i32>(frame, tensor, axis, |line, _| {
            let best = line.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
            best.map_or(0, |(index, _)| index as i32)
        })
    }
    let tensor = to_dense(frame, argument(arguments, 0)?)?;
    dispatch!(tensor.dtype, argmax_elements(frame, &tensor, axis(attrs)?))
}

fn axis(attrs: &OpAttrs<'_>) -> Result<i64, Fault> {
    attrs.int("axis").map_err(|_| "missing 'axis' attribute".into())
}

fn reduce_mean(frame: &Frame<'_>, arguments: &[&Tensor], attrs: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    fn mean_elements<T: Number>(frame: &Frame<'_>, tensor: &Dense, axis: i64) -> Result<Vec<Tensor>, Fault> {
        reduce::<T, T>(frame, tensor, axis, |line, count| T::mean(line.fold(T::ZERO, T::add), count))
    }
    let tensor = to_dense(frame, argument(arguments, 0)?)?;
    dispatch!(tensor.dtype, mean_elements(frame, &tensor, axis(attrs)?))
}

fn relu(frame: &Frame<'_>, arguments: &[&Tensor], _: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    fn relu_elements<T: Number>(frame: &Frame<'_>, tensor: &Dense) -> Result<Vec<Tensor>, Fault> {
        let max = |v: T| if v > T::ZERO { v } else { T::ZERO };
        single_result(frame, tensor.shape.clone(), tensor.elements::<T>()?.iter().map(max))
    }
    let tensor = to_dense(frame, argument(arguments, 0)?)?;
    if tensor.dtype == DType::F16 {
        let max = |v: f16| if v > f16::ZERO { v } else { f16::ZERO };
        let elements = tensor.elements::<f16>()?;
        return single_result(frame, tensor.shape, elements.iter().map(max));
    }
    dispatch!(tensor.dtype, relu_elements(frame, &tensor))
}

fn matmul(frame: &Frame<'_>, arguments: &[&Tensor], attrs: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    fn multiply_matrices<T: Number>(
        frame: &Frame<'_>,
        a: &Dense,
        b: &Dense,
        flip: [bool; 2],
    ) -> Result<Vec<Tensor>, Fault> {
        let sizes = |i: usize, t: &Dense| match *t.shape.dims() {
            [r, c] if flip[i] => Ok((c as usize, r as usize)),
            [r, c] => Ok((r as usize, c as usize)),
            _ => Err(Fault::from(format!("argument {i} of matmul op is not a rank-2 tensor"))),
        };
        let ((m, k), (k2, n)) = (sizes(0, a)?, sizes(1, b)?);
        if k != k2 {
            return Err("matmul arguments have incompatible shapes".into());
        }
        let (x, y) = (a.elements::<T>()?, b.elements::<T>()?);
        let left = |i: usize, l: usize| if flip[0] { x.at(l * m + i) } else { x.at(i * k + l) };
        let right = |l: usize, j: usize| if flip[1] { y.at(j * k + l) } else { y.at(l * n + j) };
        let shape = TensorShape::new(vec![m as i64, n as i64])?;
        let cell = |i: usize, j: usize| (0..k).fold(T::ZERO, |sum, l| sum.add(left(i, l).mul(right(l, j))));
        single_result(frame, shape, (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| cell(i, j)))
    }
    let (a, b) = (to_dense(frame, argument(arguments, 0)?)?, to_dense(frame, argument(arguments, 1)?)?);
    if a.dtype != b.dtype {
        return Err("incompatible dtypes for MatMul".into());
    }
    dispatch!(
        a.dtype,
        multiply_matrices(frame, &a, &b, [attrs.flag("transpose_a"), attrs.flag("transpose_b")])
    )
}

fn cast(frame: &Frame<'_>, arguments: &[&Tensor], attrs: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    fn cast_from<T: Number>(frame: &Frame<'_>, tensor: &Dense, to: DType) -> Result<Vec<Tensor>, Fault> {
        cast_to(frame, tensor, to, tensor.elements::<T>()?.iter().map(T::to_f64))
    }
    fn cast_to(
        frame: &Frame<'_>,
        tensor: &Dense,
        to: DType,
        values: impl Iterator<Item = f64>,
    ) -> Result<Vec<Tensor>, Fault> {
        let shape = tensor.shape.clone();
        match to {
            DType::F16 => single_result(frame, shape, values.map(f16::from_f64)),
            to => dispatch!(to, convert(frame, shape, values)),
        }
    }
    fn convert<T: Number>(
        frame: &Frame<'_>,
        shape: TensorShape,
        values: impl Iterator<Item = f64>,
    ) -> Result<Vec<Tensor>, Fault> {
        single_result(frame, shape, values.map(T::from_f64))
    }
    let tensor = to_dense(frame, argument(arguments, 0)?)?;
    let name = attrs.text("type").map_err(|_| Fault::from("missing 'type' attribute"))?;
    let to = DType::ALL.into_iter().find(|d| d.to_string().eq_ignore_ascii_case(&name));
    let to = to.ok_or_else(|| Fault::invalid(format!("no type is called '{name}'")))?;
    match tensor.dtype {
        DType::F16 => cast_to(frame, &tensor, to, tensor.elements::<f16>()?.iter().map(f16::to_f64)),
        dtype => dispatch!(dtype, cast_from(frame, &tensor, to)),
    }
}

fn odd_collector(frame: &Frame<'_>, arguments: &[&Tensor], _: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    let tensor = to_dense(frame, argument(arguments, 0)?)?;
    if tensor.shape.rank() != 1 {
        return Err("expected a 1D tensor input".into());
    }
    if tensor.dtype != DType::I32 {
        return Err("expected a i32 element type".into());
    }
    let elements = tensor.elements::<i32>()?;
    let odd = || elements.iter().filter(|v| v & 1 == 1);
    single_result(frame, TensorShape::new(vec![odd().count() as i64])?, odd())
}

fn print(frame: &Frame<'_>, arguments: &[&Tensor], _: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    out!(frame, "{}\n", argument(arguments, 0)?);
    Ok(Vec::new())
}

fn identity(_: &Frame<'_>, arguments: &[&Tensor], _: &OpAttrs<'_>) -> Result<Vec<Tensor>, Fault> {
    Ok(vec![argument(arguments, 0)?.clone()])
}
