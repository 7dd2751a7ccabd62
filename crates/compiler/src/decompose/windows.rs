//! Gathers windows of a dimension, and the operators built on them: im2col, col2im, pooling without a kernel,
//! unpooling.

use super::Table;
use super::When::NoKernel;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.im2col", NoKernel, im2col),
    ("aten.col2im", NoKernel, col2im),
    ("aten.adaptive_max_pool1d", NoKernel, adaptive_max_pool),
    ("aten.adaptive_max_pool2d", NoKernel, adaptive_max_pool),
    ("aten.adaptive_max_pool3d", NoKernel, adaptive_max_pool),
    ("aten.max_unpool2d", NoKernel, max_unpool),
    ("aten.max_unpool3d", NoKernel, max_unpool),
    ("aten.pixel_unshuffle", NoKernel, pixel_unshuffle),
];

/// Splits a dimension into windows, given the indices of their elements. The dimension is replaced by two: the windows,
/// and the elements of a window. Windows shorter than the longest repeat their last element.
pub(super) fn windows(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    dim: usize,
    places: &[Vec<usize>],
) -> Result<VarId> {
    let longest = places.iter().map(Vec::len).max().unwrap_or(0).max(1);
    cx.check_table_size(node, &[places.len(), longest])?;
    let mut flat = Vec::with_capacity(places.len() * longest);
    for window in places {
        let Some(&last) = window.last() else { return cx.fail(node, "one of its windows is empty") };
        flat.extend((0..longest).map(|k| window.get(k).copied().unwrap_or(last)));
    }
    let count = flat.len();
    let index = cx.index_constant(flat, &[count])?;
    let mut sizes = cx.spec_of(x).sizes;
    let chosen = cx.index_select(x, dim, index);
    sizes.splice(dim..=dim, [Size::Int(places.len() as i64), Size::Int(longest as i64)]);
    cx.view(node, chosen, sizes)
}

/// The value of a size; fails if it is not static.
pub(super) fn static_size(cx: &Rewriter<'_>, node: &ExportedNode, size: Option<&Size>) -> Result<usize> {
    match size.and_then(Size::known).and_then(|v| usize::try_from(v).ok()) {
        Some(size) => Ok(size),
        None => cx.fail(node, "the sizes of its operand are not known"),
    }
}

/// One integer for each of `count` dimensions; a single one applies to all.
pub(super) fn ints_per_dim(
    cx: &Rewriter<'_>,
    node: &ExportedNode,
    name: &str,
    (count, default): (usize, i64),
) -> Result<Vec<i64>> {
    let list = cx.ints(node, name)?.unwrap_or_default();
    if let Some(number) = list.iter().find(|number| number.unsigned_abs() > 1 << 31) {
        return cx.fail(node, format!("`{name}` is {number}"));
    }
    match list.len() {
        0 => Ok(vec![default; count]),
        1 => Ok(vec![list[0]; count]),
        n if n == count => Ok(list),
        n => cx.fail(node, format!("`{name}` has {n} numbers for {count} dimensions")),
    }
}

/// The geometry of the patches of an image.
struct Patches {
    kernel: Vec<i64>,
    dilation: Vec<i64>,
    padding: Vec<i64>,
    stride: Vec<i64>,
}

impl Patches {
    fn from_node(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<Self> {
        Ok(Self {
            kernel: ints_per_dim(cx, node, "kernel_size", (2, 1))?,
            dilation: ints_per_dim(cx, node, "dilation", (2, 1))?,
            padding: ints_per_dim(cx, node, "padding", (2, 0))?,
            stride: ints_per_dim(cx, node, "stride", (2, 1))?,
        })
    }

    /// The indices, in the padded dimension, of each patch along a dimension of this size.
    fn patch_indices(
        &self,
        cx: &Rewriter<'_>,
        node: &ExportedNode,
        (axis, size): (usize, usize),
    ) -> Result<Vec<Vec<usize>>> {
        let number = |list: &[i64]| list.get(axis).and_then(|&n| usize::try_from(n).ok());
        let geometry = || {
            let (kernel, dilation) = (number(&self.kernel)?, number(&self.dilation)?);
            let (padding, stride) = (number(&self.padding)?, number(&self.stride)?);
            let padded = size.checked_add(padding.checked_mul(2)?)?;
            let reach = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
            let count = padded.checked_sub(reach)?.checked_div(stride)?.checked_add(1)?;
            Some((count, stride, kernel, dilation))
        };
        let Some((count, stride, kernel, dilation)) = geometry() else {
            return cx.fail(node, "its patches are larger than its images");
        };
        cx.check_table_size(node, &[count, kernel])?;
        Ok((0..count).map(|o| (0..kernel).map(|k| o * stride + k * dilation).collect()).collect())
    }
}

/// Adds a batch dimension if `x` has none, and returns whether it did.
fn add_batch_dim(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, rank: usize) -> Result<(VarId, bool)> {
    match cx.spec(node, x)?.rank() {
        r if r == rank => Ok((x, false)),
        r if r + 1 == rank => Ok((cx.unsqueeze(node, x, 0)?, true)),
        _ => cx.fail(node, "it takes images of another rank"),
    }
}

/// Extracts the patches of images as columns.
fn im2col(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (x, _) = add_batch_dim(cx, node, x, 4)?;
    let patches = Patches::from_node(cx, node)?;
    let mut value = x;
    for axis in [1, 0] {
        let dim = 2 + axis;
        let size = static_size(cx, node, cx.spec_of(value).sizes.get(dim))?;
        let places = patches.patch_indices(cx, node, (axis, size))?;
        let padded = cx.pad(value, dim, (patches.padding[axis], patches.padding[axis]), 0);
        value = windows(cx, node, padded, dim, &places)?;
    }
    // The dimensions are now batch, channel, patch row, row in the patch, patch column, column in the patch.
    let columns = cx.permute(value, &[0, 1, 3, 5, 2, 4]);
    let want = cx.result_spec(node)?.sizes;
    let new = cx.view(node, columns, want)?;
    cx.replace_node(node, new)
}

/// Adds up patches to images.
fn col2im(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let want = cx.result_spec(node)?;
    let (x, single) = add_batch_dim(cx, node, x, 3)?;
    let patches = Patches::from_node(cx, node)?;
    let size = ints_per_dim(cx, node, "output_size", (2, 1))?;
    let [Ok(height), Ok(width)] = [0, 1].map(|i: usize| usize::try_from(size[i])) else {
        return cx.fail(node, "a size of its images is negative");
    };
    let (down, across) =
        (patches.patch_indices(cx, node, (0, height))?, patches.patch_indices(cx, node, (1, width))?);
    let (padded_width, pad) = (width + 2 * patches.padding[1] as usize, &patches.padding);
    let padded_height = height + 2 * pad[0] as usize;
    let mut places = Vec::new();
    let (kernel_height, kernel_width) =
        (down.first().map_or(0, Vec::len), across.first().map_or(0, Vec::len));
    cx.check_table_size(node, &[kernel_height, kernel_width, down.len(), across.len()])?;
    for ky in 0..kernel_height {
        for kx in 0..kernel_width {
            for row in &down {
                places.extend(across.iter().map(|column| row[ky] * padded_width + column[kx]));
            }
        }
    }
    let batch = cx.spec_of(x).sizes[0].clone();
    let taps = Size::Int((kernel_height * kernel_width) as i64);
    let channels = cx.spec_of(x).sizes[1].combine(pteron_exported::SymOp::FloorDiv, &taps);
    let count = Size::Int(places.len() as i64);
    let flat = cx.view(node, x, vec![batch.clone(), channels.clone(), count.clone()])?;
    let len = places.len();
    let index = cx.index_constant(places, &[1, 1, len])?;
    let index = cx.expand(node, index, vec![batch.clone(), channels.clone(), count])?;
    let dtype = cx.spec_of(x).dtype;
    let plane = Size::Int(i64::try_from(padded_height.saturating_mul(padded_width)).unwrap_or(i64::MAX));
    let zeros = zeros(cx, node, vec![batch.clone(), channels.clone(), plane], dtype)?;
    let spec = cx.spec_of(zeros);
    let args = vec![
        ("self", Argument::Var(zeros)),
        ("dim", Argument::Int(2)),
        ("index", Argument::Var(index)),
        ("src", Argument::Var(flat)),
    ];
    let sums = cx.emit("aten.scatter_add.default", args, spec);
    let int = |v: usize| Size::Int(v as i64);
    let mut image = cx.view(node, sums, vec![batch, channels, int(padded_height), int(padded_width)])?;
    for (axis, size) in [(2, height), (3, width)] {
        let before = pad[axis - 2] as usize;
        image = cx.slice(node, image, axis, (&int(before), &int(before + size)))?;
    }
    let new = if single { cx.view(node, image, want.sizes)? } else { image };
    cx.replace_node(node, new)
}

pub(super) fn zeros(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    sizes: Vec<Size>,
    dtype: ScalarType,
) -> Result<VarId> {
    let zero = if dtype.is_floating() { Argument::Float(0.0) } else { Argument::Int(0) };
    cx.full(node, sizes, zero, dtype)
}

/// The windows of an adaptive pooling: they cover the input and may overlap.
fn adaptive_windows(input: usize, output: usize) -> Vec<Vec<usize>> {
    (0..output).map(|o| (o * input / output..((o + 1) * input).div_ceil(output)).collect()).collect()
}

/// The maximum of each window, one dimension at a time, and its index in the flattened image.
fn adaptive_max_pool(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    let count = match &*node.target {
        t if t.contains("pool1d") => 1,
        t if t.contains("pool2d") => 2,
        _ => 3,
    };
    let Some(first) = have.rank().checked_sub(count) else {
        return cx.fail(node, "it takes images of another rank");
    };
    let sizes: Vec<usize> =
        (first..have.rank()).map(|d| static_size(cx, node, have.sizes.get(d))).collect::<Result<_>>()?;
    cx.check_table_size(node, &sizes)?;
    let places = cx.index_constant(0..sizes.iter().product(), &sizes)?;
    let mut places = cx.expand(node, places, have.sizes.clone())?;
    let mut value = x;
    for dim in (first..have.rank()).rev() {
        let output = static_size(cx, node, want.sizes.get(dim))?;
        cx.check_table_size(node, &[output])?;
        let along = adaptive_windows(sizes[dim - first], output);
        let parts = windows(cx, node, value, dim, &along)?;
        let (most, at) = cx.min_or_max(parts, dim + 1, true, true);
        let part_places = windows(cx, node, places, dim, &along)?;
        let chosen = cx.gather(part_places, dim + 1, at);
        value = cx.squeeze(node, most, dim + 1)?;
        places = cx.squeeze(node, chosen, dim + 1)?;
    }
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, places);
    }
    cx.replace_node(node, value)
}

/// Scatters elements to the positions at which a max pooling found them.
fn max_unpool(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, indices) = (cx.tensor(node, "self")?, cx.tensor(node, "indices")?);
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    let space = if node.target.contains("unpool2d") { 2 } else { 3 };
    let Some(first) = have.rank().checked_sub(space) else {
        return cx.fail(node, "it takes images of another rank");
    };
    if want.rank() != have.rank() {
        return cx.fail(node, "its result has another rank than its operand");
    }
    let flat = |sizes: &[Size]| {
        let mut flat = sizes[..first].to_vec();
        flat.push(sizes[first..].iter().fold(Size::Int(1), |n, s| n.mul(s)));
        flat
    };
    let (from, to) = (flat(&have.sizes), flat(&want.sizes));
    let last = from.len() - 1;
    let (values, places) = (cx.view(node, x, from.clone())?, cx.view(node, indices, from)?);
    let zeros = zeros(cx, node, to.clone(), want.dtype)?;
    let args = vec![
        ("self", Argument::Var(zeros)),
        ("dim", Argument::Int(last as i64)),
        ("index", Argument::Var(places)),
        ("src", Argument::Var(values)),
    ];
    let spread = cx.emit("aten.scatter.src", args, TensorSpec::contiguous(want.dtype, to));
    let new = cx.view(node, spread, want.sizes)?;
    cx.replace_node(node, new)
}

fn pixel_unshuffle(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, factor) = (cx.tensor(node, "self")?, cx.int(node, "downscale_factor", 1)?);
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    let rank = have.rank();
    if rank < 3 {
        return cx.fail(node, "it takes images");
    }
    let part = |d: usize| have.sizes[d].combine(pteron_exported::SymOp::FloorDiv, &Size::Int(factor));
    let mut sizes = have.sizes[..rank - 2].to_vec();
    sizes.extend([part(rank - 2), Size::Int(factor), part(rank - 1), Size::Int(factor)]);
    let split = cx.view(node, x, sizes)?;
    let mut dims: Vec<usize> = (0..rank - 2).collect();
    dims.extend([rank - 1, rank + 1, rank - 2, rank]);
    let moved = cx.permute(split, &dims);
    let new = cx.view(node, moved, want.sizes)?;
    cx.replace_node(node, new)
}
