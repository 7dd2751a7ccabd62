//! Index tensors that replace one coordinate, as in gather, scatter and related operators.

use crate::support::convert::{Values, indices, values};
use crate::support::dims::wrap_dim;
use crate::support::layout::Layout;
use pteron_operator::{Args, KernelContext, Result, ensure};
use pteron_tensor::{Shape, TensorMeta};

/// Maps every element of an index tensor to an element of another tensor: the one with the same coordinates
/// except along one dimension, whose coordinate is the index.
pub(crate) struct GatherIndex<'a> {
    /// The sizes of the index tensor, of at least one dimension.
    pub(crate) sizes: Shape,
    index: Values<'a, i64>,
    base: Layout,
    stride: usize,
}

/// The layout of a tensor; a zero-dim tensor gets one dimension of size one.
pub(crate) fn at_least_1d(meta: &TensorMeta) -> Result<Layout> {
    let layout = Layout::of_tensor(meta);
    if layout.rank() == 0 { layout.insert(0, 1, 1) } else { Ok(layout) }
}

impl<'a> GatherIndex<'a> {
    /// The argument `index` as indices into a tensor like `x`, along the dimension that the argument `dim` gives.
    pub(crate) fn new<'b: 'a>(ctx: &KernelContext<'a>, args: &Args<'b>, x: &TensorMeta) -> Result<Self> {
        let tensor = args.tensor("index")?;
        let layout = at_least_1d(tensor.meta())?;
        let d = wrap_dim("dim", args.int("dim")?, x.rank())?;
        let indices = indices(ctx, "index", &tensor)?;
        if layout.sizes.contains(&0) {
            // Nothing is indexed, so the other shape does not matter.
            let base = Layout::contiguous(&layout.sizes);
            return Ok(Self { sizes: layout.sizes, index: indices, base, stride: 0 });
        }
        Self::of("index", layout.sizes, indices, &at_least_1d(x)?, d)
    }

    /// Like [`Self::new`], but the index tensor is one-dimensional and is broadcast along the other dimensions of
    /// `x`. If `wrap`, negative indices count from the end.
    pub(crate) fn from_1d_index<'b: 'a>(
        ctx: &KernelContext<'a>,
        args: &Args<'b>,
        x: &TensorMeta,
        wrap: bool,
    ) -> Result<Self> {
        let tensor = args.tensor("index")?;
        let x = at_least_1d(x)?;
        let d = wrap_dim("dim", args.int("dim")?, x.rank())?;
        ensure!(tensor.rank() <= 1, "index: expected one dimension, found {}", tensor.meta());
        ensure!(
            tensor.dtype().is_integral(),
            "index: expected a tensor of integers, found one of {}",
            tensor.dtype()
        );
        let mut layout = at_least_1d(tensor.meta())?;
        let len = x.sizes[d];
        for (i, &size) in x.sizes.iter().enumerate() {
            if i != d {
                layout = layout.insert(i, size, 0)?;
            }
        }
        let mut index_values = values::<i64>(ctx, &tensor, &layout)?;
        if wrap && index_values.iter().any(|&i| i < 0) {
            let mut wrapped = ctx.scratch::<i64>(index_values.len())?;
            let add = |i: i64| if i < 0 { i.saturating_add(len as i64) } else { i };
            wrapped.iter_mut().zip(index_values.iter()).for_each(|(w, &i)| *w = add(i));
            index_values = Values::Copy(wrapped);
        }
        Self::of("index", layout.sizes, index_values, &x, d)
    }

    fn of(name: &str, sizes: Shape, index: Values<'a, i64>, x: &Layout, dim: usize) -> Result<Self> {
        ensure!(
            sizes.rank() == x.rank(),
            "{name}: {sizes} has another number of dimensions than the tensor of shape {}",
            x.sizes
        );
        let len = x.sizes[dim];
        let mut base = *x;
        for d in 0..x.rank() {
            if d != dim {
                ensure!(
                    sizes[d] <= x.sizes[d],
                    "{name}: {sizes} is larger than the tensor of shape {} in dimension {d}",
                    x.sizes
                );
                base = base.slice(d, 0, sizes[d], 1);
            }
        }
        if let Some(i) = index.iter().find(|&&i| i < 0 || i as u64 >= len as u64) {
            return Err(pteron_operator::Error::invalid(format!(
                "{name}: index {i} is out of range for dimension {dim} of size {len}"
            )));
        }
        let stride = x.strides()[dim] as usize;
        if !index.is_empty() {
            base = base.select(dim, 0).insert(dim, sizes[dim], 0)?;
        }
        Ok(Self { sizes, index, base, stride })
    }

    /// Calls `f` with each position in the index tensor, in row-major order, and the offset of the element indexed there.
    #[inline]
    pub(crate) fn for_each(&self, mut f: impl FnMut(usize, usize)) {
        let mut position = 0;
        self.base.walk().each_run(0..self.index.len(), |at, stride, n| {
            let mut at = at as isize;
            for &i in &self.index[position..position + n] {
                f(position, at as usize + i as usize * self.stride);
                at += stride;
                position += 1;
            }
        });
    }

    /// The part of `src` that corresponds to the index tensor: the leading elements of each dimension, as many as the
    /// index tensor has.
    pub(crate) fn part_of(&self, name: &str, src: &TensorMeta) -> Result<Layout> {
        let mut layout = at_least_1d(src)?;
        if self.index.is_empty() {
            return Ok(Layout::contiguous(&self.sizes));
        }
        ensure!(
            layout.rank() == self.sizes.rank()
                && self.sizes.iter().zip(layout.sizes.iter()).all(|(i, s)| i <= s),
            "{name}: the index of shape {} is larger than the tensor of shape {}",
            self.sizes,
            layout.sizes
        );
        for (d, &size) in self.sizes.iter().enumerate() {
            layout = layout.slice(d, 0, size, 1);
        }
        Ok(layout)
    }
}
