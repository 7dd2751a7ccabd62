//! Copies that change the type, and conversion of tensors into scratch memory of a given type.

use crate::support::copy::{PIECE, copy_bytes, copy_view};
use crate::support::dtype::{Compute, conversion_type};
use crate::support::layout::Layout;
use crate::support::map::{Input, elementwise, expect_aligned, map_sized};
use pteron_operator::{Arg, ArgKey, Args, KernelContext, Outs, Result, ScratchBuffer, ensure};
use pteron_tensor::{Element, ScalarType, Shape, TensorView, TensorViewMut};
use std::ops::Deref;

/// Sets the first out to argument `arg`, broadcast to `sizes` and converted to the out's type.
pub(crate) fn convert(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    arg: impl ArgKey,
    sizes: &Shape,
) -> Result<()> {
    let index = arg.position(args.schema());
    let (from, to) = (args.meta(index)?.dtype(), outs.tensor(0)?.dtype());
    if let (0, Arg::InPlace { meta, .. }) = (index, args.get(index))
        && meta.sizes() == sizes
        && *meta == outs.tensor(0)?.meta()
    {
        return Ok(());
    }
    if from == to && index == 0 && matches!(args.get(index), Arg::Tensor(_)) {
        return copy_view(args, outs, |x| x.expand(sizes));
    }
    let fns = elementwise! { real(x) => x; complex(z) => z };
    map_sized(ctx, args, outs, [Input::Arg(index)], *sizes, conversion_type(from, to), to, &fns)
}

/// Elements in row-major order: borrowed from a tensor, or a copy in scratch memory.
pub(crate) enum Values<'a, C> {
    /// The tensor's own memory.
    Own(&'a [C]),
    /// A converted or reordered copy.
    Copy(ScratchBuffer<'a, C>),
}

impl<C: Element> Deref for Values<'_, C> {
    type Target = [C];
    fn deref(&self) -> &[C] {
        match self {
            Self::Own(all) => all,
            Self::Copy(all) => all,
        }
    }
}

/// The elements of a view of a tensor in row-major order, as `C`.
pub(crate) fn values<'a, C: Compute>(
    ctx: &KernelContext<'a>,
    tensor: &TensorView<'a>,
    view: &Layout,
) -> Result<Values<'a, C>> {
    let numel = view.numel()?;
    let walk = view.walk();
    if tensor.dtype() == C::DTYPE
        && let Some(at) = walk.contiguous_start()
        && numel > 0
    {
        return Ok(Values::Own(&tensor.storage::<C>()?[at..at + numel]));
    }
    let mut all = ctx.scratch::<C>(numel)?;
    read(tensor, view, &mut all)?;
    Ok(Values::Copy(all))
}

/// Reads the elements of a view of a tensor, in row-major order, into `into`.
pub(crate) fn read<C: Compute>(tensor: &TensorView<'_>, view: &Layout, into: &mut [C]) -> Result<()> {
    expect_aligned(tensor.bytes(), tensor.dtype())?;
    pteron_pool::count(into.len());
    let load = C::loader(tensor.dtype())?;
    let mut done = 0;
    view.walk().each_run(0..into.len(), |at, stride, n| {
        load(tensor.bytes(), at, stride, &mut into[done..done + n]);
        done += n;
    });
    Ok(())
}

/// A whole tensor's elements in row-major order, as `C`.
pub(crate) fn all_values<'a, C: Compute>(
    ctx: &KernelContext<'a>,
    tensor: &TensorView<'a>,
) -> Result<Values<'a, C>> {
    values(ctx, tensor, &Layout::of_tensor(tensor.meta()))
}

/// The elements of an index tensor, in row-major order; fails if they are not integers.
pub(crate) fn indices<'a>(
    ctx: &KernelContext<'a>,
    name: &str,
    tensor: &TensorView<'a>,
) -> Result<Values<'a, i64>> {
    ensure!(
        tensor.dtype().is_integral(),
        "{name}: expected a tensor of integers, found one of {}",
        tensor.dtype()
    );
    all_values(ctx, tensor)
}

/// Writes elements, in row-major order, to a view of an out, converted to the out's type.
pub(crate) fn write<C: Compute>(
    ctx: &KernelContext<'_>,
    from: &[C],
    out: &mut TensorViewMut<'_>,
    into: &Layout,
) -> Result<()> {
    let numel = into.numel()?;
    ensure!(numel == from.len(), "{} elements for a view of shape {}", from.len(), into.sizes);
    pteron_pool::count(numel);
    if numel == 0 {
        return Ok(());
    }
    let (dtype, size) = (out.dtype(), out.dtype().size());
    let store = C::storer(dtype)?;
    expect_aligned(out.bytes(), dtype)?;
    if let Some(at) = into.walk().contiguous_start() {
        store(from, &mut out.bytes_mut()[at * size..(at + numel) * size]);
        return Ok(());
    }
    let rows = Layout::contiguous(&into.sizes);
    if dtype == C::DTYPE {
        return copy_bytes(size, bytemuck::cast_slice(from), &rows, out.bytes_mut(), into);
    }
    let mut converted = ctx.scratch::<u8>(numel * size)?;
    store(from, &mut converted);
    copy_bytes(size, &converted, &rows, out.bytes_mut(), into)
}

/// Calls `set` to write a whole out as `C`, in storage order: in the out's own memory or, if the out has another type,
/// in a temporary that is converted and stored afterwards. The initial contents are unspecified.
pub(crate) fn write_stored<C: Compute>(
    ctx: &KernelContext<'_>,
    out: &mut TensorViewMut<'_>,
    set: impl FnOnce(&mut [C]) -> Result<()>,
) -> Result<()> {
    expect_aligned(out.bytes(), out.dtype())?;
    if out.dtype() == C::DTYPE {
        return set(out.storage_mut::<C>()?);
    }
    let mut all = ctx.scratch::<C>(out.numel())?;
    set(&mut all)?;
    C::storer(out.dtype())?(&all, out.bytes_mut());
    Ok(())
}

/// Like [`write_stored`], but `set` writes in row-major order for any layout of the out.
pub(crate) fn write_row_major<C: Compute>(
    ctx: &KernelContext<'_>,
    out: &mut TensorViewMut<'_>,
    set: impl FnOnce(&mut [C]) -> Result<()>,
) -> Result<()> {
    let into = Layout::of_tensor(out.meta());
    if into.walk().contiguous_start().is_some() {
        return write_stored(ctx, out, set);
    }
    let mut all = ctx.scratch::<C>(out.numel())?;
    set(&mut all)?;
    write(ctx, &all, out, &into)
}

/// The elements of a tensor in the storage order of `out`, which must have the same sizes.
pub(crate) fn values_as_stored<'a, C: Compute>(
    ctx: &KernelContext<'a>,
    tensor: &TensorView<'a>,
    out: &pteron_tensor::TensorMeta,
) -> Result<Values<'a, C>> {
    let order: smallvec::SmallVec<[usize; 8]> = out.dim_order().iter().map(|&d| d as usize).collect();
    values(ctx, tensor, &Layout::of_tensor(tensor.meta()).permute(&order))
}

/// Fills an out with a value.
pub(crate) fn fill<C: Compute>(out: &mut TensorViewMut<'_>, value: C) -> Result<()> {
    let (dtype, size) = (out.dtype(), out.dtype().size());
    expect_aligned(out.bytes(), dtype)?;
    let store = C::storer(dtype)?;
    let block = [value; 256];
    for bytes in out.bytes_mut().chunks_mut(256 * size) {
        store(&block[..bytes.len() / size], bytes);
        pteron_pool::progress(256);
    }
    Ok(())
}

/// Fills an out with zero bytes.
pub(crate) fn fill_zero(out: &mut TensorViewMut<'_>) {
    for bytes in out.bytes_mut().chunks_mut(PIECE) {
        bytes.fill(0);
        pteron_pool::progress(bytes.len());
    }
}

/// Fills an out with a scalar.
pub(crate) fn fill_scalar(out: &mut TensorViewMut<'_>, value: pteron_tensor::Scalar) -> Result<()> {
    match value {
        pteron_tensor::Scalar::Double(v) if out.dtype() != ScalarType::Float => fill(out, v),
        pteron_tensor::Scalar::Double(v) => fill(out, v as f32),
        other => fill(out, other.to_i64()),
    }
}
