//! Tensors as row-major slices, for operators that compute element offsets themselves.

use crate::support::convert::{Values, values, write};
use crate::support::copy::copy_bytes;
use crate::support::dtype::Compute;
use crate::support::layout::Layout;
use crate::support::map::expect_aligned;
use pteron_operator::{KernelContext, Result, ensure};
use pteron_tensor::{Scalar, ScalarType, TensorView, TensorViewMut};

/// Evaluates an expression with a type name bound to a byte array of the size of an element:
/// operators that only move elements need no more specific type.
macro_rules! by_size {
    ($size:expr, $E:ident => $body:expr) => {
        by_size!(@ $size, $E => $body, 1, 2, 4, 8, 16)
    };
    (@ $size:expr, $E:ident => $body:expr, $($n:literal),*) => {
        match $size {
            $($n => {
                type $E = [u8; $n];
                $body
            })*
            other => return Err(pteron_operator::Error::invalid(format!("elements of {other} bytes cannot be moved"))),
        }
    };
}
pub(crate) use by_size;

/// The bytes of the elements of a view of a tensor, in row-major order.
pub(crate) fn view_bytes<'a>(
    ctx: &KernelContext<'a>,
    tensor: &TensorView<'a>,
    view: &Layout,
) -> Result<Values<'a, u8>> {
    let (numel, size) = (view.numel()?, tensor.dtype().size());
    if let Some(at) = view.walk().contiguous_start()
        && numel > 0
    {
        return Ok(Values::Own(&tensor.bytes()[at * size..(at + numel) * size]));
    }
    let nbytes = numel.saturating_mul(size);
    let mut all = ctx.scratch::<u8>(nbytes)?;
    copy_bytes(size, tensor.bytes(), view, &mut all, &Layout::contiguous(&view.sizes))?;
    Ok(Values::Copy(all))
}

/// The bytes of all elements of a tensor, in row-major order.
pub(crate) fn tensor_bytes<'a>(ctx: &KernelContext<'a>, tensor: &TensorView<'a>) -> Result<Values<'a, u8>> {
    view_bytes(ctx, tensor, &Layout::of_tensor(tensor.meta()))
}

/// Calls `f` to write every element of an out, as bytes in row-major order.
pub(crate) fn write_bytes(
    ctx: &KernelContext<'_>,
    out: &mut TensorViewMut<'_>,
    f: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let into = Layout::of_tensor(out.meta());
    if into.walk().contiguous_start().is_some() {
        return f(out.bytes_mut());
    }
    let size = out.dtype().size();
    let mut all = ctx.scratch::<u8>(out.nbytes())?;
    f(&mut all)?;
    copy_bytes(size, &all, &Layout::contiguous(out.sizes()), out.bytes_mut(), &into)
}

/// Calls `f` to write every element of an out as `C`, in row-major order; converts the elements to the out's type.
pub(crate) fn write_values<C: Compute>(
    ctx: &KernelContext<'_>,
    out: &mut TensorViewMut<'_>,
    f: impl FnOnce(&mut [C]) -> Result<()>,
) -> Result<()> {
    let into = Layout::of_tensor(out.meta());
    if out.dtype() == C::DTYPE && into.walk().contiguous_start().is_some() {
        return f(out.storage_mut()?);
    }
    let mut all = ctx.scratch::<C>(out.numel())?;
    f(&mut all)?;
    write(ctx, &all, out, &into)
}

/// Calls `f` to update the elements of an out as `C`, in row-major order.
pub(crate) fn update_values<C: Compute>(
    ctx: &KernelContext<'_>,
    out: &mut TensorViewMut<'_>,
    f: impl FnOnce(&mut [C]) -> Result<()>,
) -> Result<()> {
    let layout = Layout::of_tensor(out.meta());
    if out.dtype() == C::DTYPE && layout.walk().contiguous_start().is_some() {
        return f(out.storage_mut()?);
    }
    let mut all = ctx.scratch::<C>(out.numel())?;
    all.copy_from_slice(&values::<C>(ctx, &out.as_view(), &layout)?);
    f(&mut all)?;
    write(ctx, &all, out, &layout)
}

/// Fails if a tensor's type is not `expected`.
pub(crate) fn expect_type(name: &str, expected: ScalarType, found: ScalarType) -> Result<()> {
    ensure!(expected == found, "{name}: expected a tensor of {expected}, found one of {found}");
    Ok(())
}

/// The bytes of a scalar converted to an element of `dtype`; bytes past the first `dtype.size()` are unused.
pub(crate) fn scalar_bytes(dtype: ScalarType, value: Scalar) -> Result<[u8; 16]> {
    let mut bytes = [0u128; 1];
    let into: &mut [u8] = bytemuck::cast_slice_mut(&mut bytes);
    let into = &mut into[..dtype.size()];
    expect_aligned(into, dtype)?;
    match value {
        Scalar::Double(v) if dtype == ScalarType::Double => f64::storer(dtype)?(&[v], into),
        Scalar::Double(v) if dtype.is_floating() => f32::storer(dtype)?(&[v as f32], into),
        Scalar::Double(v) => f64::storer(dtype)?(&[v], into),
        other => i64::storer(dtype)?(&[other.to_i64()], into),
    }
    Ok(bytemuck::cast(bytes))
}
