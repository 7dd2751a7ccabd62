//! Strided views: sees through reshapes, permutations, expansions and slices, which programs copy, for readers that can
//! access strided memory directly.

use crate::graph::{Graph, NodeId, ValueId, meaning};
use crate::operation::as_op;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use pteron_operator::facts::ViewOf;
use pteron_operator::{Binary, Expression, Instr, Meaning};
use pteron_tensor::ScalarType;
use smallvec::SmallVec;

/// The size and stride of a run of elements.
type SizeStride = (usize, usize);

/// The maximum number of nodes that a view sees through: a program may chain any number.
const MAX_NODES: usize = 64;

/// The maximum number of (size, stride) parts of a view, in all dimensions together.
const MAX_PARTS: usize = 16;

/// A value as a strided view of another, scaled by a factor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View {
    /// The value whose elements are viewed; `None` for a view without one ([`Self::from_stored`], [`Self::row_major`]).
    pub(crate) root: Option<ValueId>,
    /// The offset of the first element.
    pub(crate) offset: usize,
    /// The factor by which every element is multiplied.
    pub(crate) factor: f32,
    /// The (size, stride) parts of each dimension, slowest-varying first; a dimension of size 1 has none.
    dims: Vec<SmallVec<[SizeStride; 2]>>,
}

impl View {
    /// A value as a view of the earliest value whose elements it has, at most [`MAX_NODES`] nodes back. `None` unless
    /// it is f32, row-major and not empty.
    pub(crate) fn of(graph: &Graph, value: ValueId) -> Option<Self> {
        Self::through_nodes(graph, value, |_| true)
    }

    /// Like [`Self::of`], but sees only through nodes whose results pass the test `sees`.
    pub(crate) fn through_nodes(
        graph: &Graph,
        value: ValueId,
        sees: impl Fn(ValueId) -> bool,
    ) -> Option<Self> {
        // Walks back from the value as long as each node is a view of its input.
        let mut chain = Vec::new();
        let mut at = value;
        while let Some(node) = graph.producer(at).filter(|_| sees(at) && chain.len() < MAX_NODES) {
            let Some(change) = ViewOp::of(graph, node) else { break };
            chain.push((node, change));
            at = graph.node(node).inputs()[0];
        }
        let mut view = Self::identity(graph, at)?;
        for (node, change) in chain.into_iter().rev() {
            let out = graph.node(node).outputs()[0];
            view = match view.apply(&change, graph.meta(out).sizes()) {
                Some(next) if next.sizes() == **graph.meta(out).sizes() => next,
                _ => Self::identity(graph, out)?,
            };
        }
        Some(view)
    }

    /// A row-major view of these sizes without a value: its offset is 0 and its factor 1.
    pub(crate) fn row_major(sizes: &[usize]) -> Self {
        let mut stride = 1;
        let mut dims: Vec<_> = Vec::with_capacity(sizes.len());
        for &n in sizes.iter().rev() {
            dims.push(dim_parts(n, stride));
            stride *= n;
        }
        dims.reverse();
        Self { root: None, offset: 0, factor: 1.0, dims }
    }

    /// A row-major f32 value as a view of itself.
    fn identity(graph: &Graph, value: ValueId) -> Option<Self> {
        let meta = graph.meta(value);
        if !is_row_major_f32(graph, value) || meta.numel() == 0 {
            return None;
        }
        let dims = meta.sizes().iter().zip(meta.strides().iter()).map(|(&n, &s)| dim_parts(n, s)).collect();
        Some(Self { root: Some(value), offset: 0, factor: 1.0, dims })
    }

    /// The view with this serialized description: its offset, its factor, and the parts of each dimension.
    pub(crate) fn from_stored(offset: usize, factor: f32, dims: &[Vec<SizeStride>]) -> Self {
        Self { root: None, offset, factor, dims: dims.iter().map(|dim| dim.as_slice().into()).collect() }
    }

    /// What a node moves in memory if its result is a view of its only input: a reshape moves nothing, a call moves the
    /// elements. `None` for other nodes.
    pub(crate) fn data_movement(graph: &Graph, node: NodeId) -> Option<DataMovement> {
        match ViewOp::of(graph, node)? {
            ViewOp::Reshape => Some(DataMovement::Nothing),
            ViewOp::View(_) => Some(DataMovement::Elements),
            ViewOp::Scale(_) => None,
        }
    }

    /// The sizes and strides of the parts of each dimension.
    pub(crate) fn dims(&self) -> Vec<Vec<SizeStride>> {
        self.dims.iter().map(|dim| dim.to_vec()).collect()
    }

    /// Whether the view is not empty and in bounds of a value of `len` elements. Sizes, strides and offset must be
    /// below 2^31.
    pub(crate) fn is_in_bounds(&self, len: usize) -> bool {
        let parts = || self.dims.iter().flatten();
        let count = parts().try_fold(1usize, |count, part| count.checked_mul(part.0));
        let last = parts()
            .try_fold(self.offset, |at, &(n, stride)| at.checked_add(n.checked_sub(1)?.checked_mul(stride)?));
        count.is_some_and(|count| count > 0) && last.is_some_and(|last| last < len)
    }

    /// The size of each dimension.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.dims.iter().map(dim_size).collect()
    }

    /// The parts of all dimensions, with adjacent ones merged where their strides allow it.
    pub(crate) fn parts(&self) -> Vec<SizeStride> {
        let mut parts: Vec<SizeStride> = Vec::new();
        for &(n, s) in self.dims.iter().flatten() {
            match parts.last_mut() {
                Some((m, t)) if *t == n * s => (*m, *t) = (*m * n, s),
                _ => parts.push((n, s)),
            }
        }
        parts
    }

    /// The size and stride of a dimension; `None` if it has several parts.
    pub(crate) fn single_part(&self, dim: usize) -> Option<SizeStride> {
        match self.dims[dim].as_slice() {
            [] => Some((1, 0)),
            [part] => Some(*part),
            _ => None,
        }
    }

    /// The offset of each index of a dimension, including the offset of the view.
    pub(crate) fn offsets_along(&self, dim: usize) -> Vec<usize> {
        let mut starts = vec![self.offset];
        for &(n, s) in &self.dims[dim] {
            starts = starts.iter().flat_map(|&at| (0..n).map(move |i| at + i * s)).collect();
        }
        starts
    }

    /// The view reshaped to other sizes. `None` if a part would have to be split unevenly.
    pub(crate) fn reshape(&self, sizes: &[usize]) -> Option<Self> {
        let parts = self.parts();
        let mut left = parts.into_iter();
        let mut rest: Option<SizeStride> = None;
        let mut dims = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let (mut need, mut dim) = (size, SmallVec::new());
            while need > 1 {
                let (n, s) = rest.take().or_else(|| left.next())?;
                if need.is_multiple_of(n) {
                    dim.push((n, s));
                    need /= n;
                } else if n.is_multiple_of(need) {
                    dim.push((need, s * (n / need)));
                    rest = Some((n / need, s));
                    need = 1;
                } else {
                    return None;
                }
            }
            dims.push(dim);
        }
        (rest.is_none() && left.next().is_none()).then_some(Self { dims, ..self.clone() })
    }

    /// The view broadcast to `sizes`, which have at least as many dimensions.
    pub(crate) fn expand(&self, sizes: &[usize]) -> Option<Self> {
        let lead = sizes.len().checked_sub(self.dims.len())?;
        let mut dims: Vec<_> = sizes[..lead].iter().map(|&n| dim_parts(n, 0)).collect();
        for (dim, &n) in self.dims.iter().zip(&sizes[lead..]) {
            dims.push(match dim_size(dim) {
                m if m == n => dim.clone(),
                1 => dim_parts(n, 0),
                _ => return None,
            });
        }
        Some(Self { dims, ..self.clone() })
    }

    /// Applies the view operation of a node whose result has the sizes `sizes`.
    fn apply(mut self, change: &ViewOp, sizes: &[usize]) -> Option<Self> {
        match change {
            ViewOp::Reshape => return self.reshape(sizes),
            ViewOp::Scale(factor) => self.factor *= factor,
            ViewOp::View(ViewOf::Expand) => return self.expand(sizes),
            ViewOp::View(ViewOf::Permute(order)) => {
                self.dims = order.iter().map(|&d| self.dims.get(d).cloned()).collect::<Option<_>>()?;
            }
            &ViewOp::View(ViewOf::Select { dim, index }) => {
                let (_, stride) = self.single_part(dim)?;
                self.offset += index * stride;
                self.dims.remove(dim);
            }
            &ViewOp::View(ViewOf::Slice { dim, start, end, step }) => {
                let (_, stride) = self.single_part(dim)?;
                let len = end.saturating_sub(start).div_ceil(step);
                if len == 0 {
                    return None;
                }
                self.offset += start * stride;
                self.dims[dim] = dim_parts(len, step * stride);
            }
        }
        (self.dims.iter().map(|d| d.len()).sum::<usize>() <= MAX_PARTS).then_some(self)
    }
}

/// What a node moves to make its result, a view of its input: see [`View::data_movement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataMovement {
    Nothing,
    Elements,
}

/// The view operation of a node on its only input.
enum ViewOp {
    Reshape,
    Scale(f32),
    View(ViewOf),
}

impl ViewOp {
    fn of(graph: &Graph, id: NodeId) -> Option<Self> {
        let node = graph.node(id);
        let (&[from], &[to]) = (node.inputs(), node.outputs()) else { return None };
        if !is_row_major_f32(graph, from) || !is_row_major_f32(graph, to) {
            return None;
        }
        if as_op::<Reshape>(graph, id).is_some() {
            return Some(Self::Reshape);
        }
        if let Some(Pointwise(expression)) = as_op(graph, id) {
            return scale_of(expression).map(Self::Scale);
        }
        match meaning(graph, id)? {
            Meaning::View(view) => Some(Self::View(view)),
            _ => None,
        }
    }
}

/// Whether a value is f32 and row-major; only such values can be viewed.
fn is_row_major_f32(graph: &Graph, value: ValueId) -> bool {
    let meta = graph.meta(value);
    meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous()
}

/// The factor by which an expression multiplies its input; `None` if it computes anything else.
pub(crate) fn scale_of(expression: &Expression) -> Option<f32> {
    match expression.instrs.as_slice() {
        [Instr::Input(0), Instr::Const(c), Instr::Binary(Binary::Mul, 0, 1)] => Some(*c),
        [Instr::Input(0), Instr::Const(c), Instr::Binary(Binary::Div, 0, 1)] => Some(1.0 / *c),
        _ => None,
    }
}

fn dim_parts(n: usize, stride: usize) -> SmallVec<[SizeStride; 2]> {
    if n == 1 { SmallVec::new() } else { SmallVec::from_slice(&[(n, stride)]) }
}

fn dim_size(dim: &SmallVec<[SizeStride; 2]>) -> usize {
    dim.iter().map(|p| p.0).product()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::TensorMeta;

    fn view(sizes: &[usize]) -> View {
        let mut graph = Graph::new();
        let x = graph.input(TensorMeta::contiguous(ScalarType::Float, sizes).unwrap());
        View::of(&graph, x).unwrap()
    }

    #[test]
    fn reshapes_split_and_merge_parts() {
        let x = view(&[6, 4]);
        assert_eq!(x.reshape(&[2, 12]).unwrap().sizes(), [2, 12]);
        assert_eq!(x.reshape(&[24]).unwrap().parts(), [(24, 1)]);
        assert!(x.reshape(&[5, 5]).is_none() && x.reshape(&[6]).is_none());
        let mut turned = x;
        turned.dims.swap(0, 1);
        assert_eq!(turned.reshape(&[2, 2, 3, 2]).unwrap().parts(), [(4, 1), (6, 4)]);
        assert!(turned.reshape(&[8, 3]).unwrap().single_part(0).is_none());
        assert!(turned.reshape(&[3, 8]).is_none());
        assert_eq!(turned.reshape(&[8, 3]).unwrap().offsets_along(0), [0, 12, 1, 13, 2, 14, 3, 15]);
    }

    #[test]
    fn expanded_dimensions_have_stride_zero() {
        let x = view(&[3, 1]).expand(&[2, 3, 4]).unwrap();
        assert_eq!((x.sizes(), x.parts()), (vec![2, 3, 4], vec![(2, 0), (3, 1), (4, 0)]));
        assert_eq!(x.reshape(&[6, 4]).unwrap().offsets_along(0), [0, 1, 2, 0, 1, 2]);
    }
}
