//! Memory layouts of tensors: what operations require, and the two image layouts.

use pteron_kernels::compute::Layout;
use pteron_tensor::{DimOrder, TensorMeta};

/// The memory layout that a node requires of an operand. The order of dimensions of size 1 never matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutReq {
    /// Any dim order.
    Any,
    /// Row-major.
    RowMajor,
    /// An image in this layout.
    Image(Layout),
    /// An image in either channels-first or channels-last layout.
    AnyImage,
    /// The sizes and layout of the node's first input are required.
    SameAsInput0,
    /// A layout in which a reshape of the node's first input keeps the order of elements in memory.
    ReshapeOfInput0,
}

/// Whether a tensor satisfies a requirement; `input0` is the node's first input.
pub(crate) fn satisfies(meta: &TensorMeta, req: LayoutReq, input0: Option<&TensorMeta>) -> bool {
    match req {
        LayoutReq::Any => true,
        LayoutReq::RowMajor => is_row_major(meta),
        LayoutReq::Image(layout) => has_layout(meta, layout),
        LayoutReq::AnyImage => image_layout(meta).is_some(),
        LayoutReq::SameAsInput0 => input0.is_some_and(|from| {
            from.sizes() == meta.sizes() && from.dim_order().same_layout(meta.dim_order(), meta.sizes())
        }),
        LayoutReq::ReshapeOfInput0 => input0.is_some_and(|from| is_reshape_of(from, meta)),
    }
}

/// Whether a tensor is row-major.
fn is_row_major(meta: &TensorMeta) -> bool {
    meta.dim_order().same_layout(&DimOrder::contiguous(meta.rank()), meta.sizes())
}

/// Whether a reshape between the metas moves no elements: both are row-major, or they have the same sizes and strides,
/// dimensions of size 1 left out.
fn is_reshape_of(from: &TensorMeta, to: &TensorMeta) -> bool {
    let steps = |m: &TensorMeta| -> Vec<(usize, usize)> {
        m.sizes().iter().copied().zip(m.strides().iter().copied()).filter(|(n, _)| *n != 1).collect()
    };
    let same = from.dtype() == to.dtype() && from.numel() == to.numel();
    same && (from.numel() == 0 || is_row_major(from) && is_row_major(to) || steps(from) == steps(to))
}

/// Whether a tensor is an image in this layout.
pub(crate) fn has_layout(meta: &TensorMeta, layout: Layout) -> bool {
    meta.rank() >= 3 && meta.dim_order().same_layout(&dim_order_of(layout, meta.rank()), meta.sizes())
}

/// The dim order of images `[N, C, space..]` in a layout.
pub(crate) fn dim_order_of(layout: Layout, rank: usize) -> DimOrder {
    let mut order: Vec<u8> = (0..rank as u8).collect();
    if layout == Layout::ChannelsLast && rank >= 3 {
        order[1..].rotate_left(1);
    }
    DimOrder::new(&order).unwrap_or_default()
}

/// The layout of an image `[N, C, space..]` with this meta, if that is channels-first or channels-last. If it is both,
/// because of dimensions of size 1, the one that the dim order names.
pub(crate) fn image_layout(meta: &TensorMeta) -> Option<Layout> {
    let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
    let named =
        layouts.into_iter().find(|&l| meta.rank() >= 3 && *meta.dim_order() == dim_order_of(l, meta.rank()));
    named.or_else(|| layouts.into_iter().find(|&l| has_layout(meta, l)))
}
