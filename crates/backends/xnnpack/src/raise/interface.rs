//! Conversion between the caller's tensors and the payload's inputs and outputs.
//!
//! A payload lists the dimensions of a tensor in memory order: a channels-last image is `[N, H, W, C]`.

use super::{Layout, NCHW_TO_NHWC, Raise};
use crate::error::{Error, Result, fail};
use crate::layout::LayoutViews;
use pteron_engine::{OpKind, Permute, Relayout, ValueId};
use pteron_runtime::GraphRequest;
use pteron_tensor::{DimOrder, ScalarType, TensorMeta};

impl Raise<'_> {
    /// Adds the inputs of a call.
    pub(super) fn add_inputs(&mut self, metas: &[TensorMeta]) -> Result<()> {
        let (count, expected) = (metas.len(), self.payload.inputs.len());
        if count != expected {
            return fail(format!("{count} inputs for the {expected} of the payload"));
        }
        for (i, meta) in metas.iter().enumerate() {
            self.add_input(i, meta)?;
        }
        Ok(())
    }

    fn add_input(&mut self, i: usize, meta: &TensorMeta) -> Result<()> {
        let v = self.payload.inputs[i];
        let value = &self.payload.values[v];
        let (dtype, rank) = (value.datatype.scalar_type(), value.dims.len());
        let order = dims_of(meta.dim_order());
        let stored: Vec<usize> = order.iter().map(|&d| meta.sizes()[d]).collect();
        let Some(sizes) = with_rank(&stored, rank).filter(|_| meta.dtype() == dtype) else {
            return fail(format!("input {i} is {meta}, the payload's is {dtype} of {rank} dimensions"));
        };
        let id = self.emit.graph.input(meta.clone());
        if self.is_copied(i, meta) {
            let copy = self.emit.node(Relayout, vec![id], dtype, &value.dims)?;
            return self.set_layout(v, &value.dims, Layout::Nhwc(copy));
        }
        let stored = self.permuted_view(id, &order, TensorMeta::contiguous(dtype, &stored)?);
        if order == NCHW_TO_NHWC && rank == 4 {
            self.set_layout(v, &sizes, Layout::Nchw(id))?;
        }
        let nhwc = self.emit.view(stored, &sizes)?;
        self.set_layout(v, &sizes, Layout::Nhwc(nhwc))
    }

    /// Whether the sizes of an input match the payload's dimensions directly, but not in memory order. The first
    /// releases wrote channels-last images this way. Such an input is copied to the payload's layout.
    fn is_copied(&self, i: usize, meta: &TensorMeta) -> bool {
        let dims = &self.payload.values[self.payload.inputs[i]].dims;
        let stored = dims_of(meta.dim_order()).into_iter().map(|d| meta.sizes()[d]).collect::<Vec<_>>();
        with_rank(&stored, dims.len()).as_ref() != Some(dims) && meta.sizes()[..] == **dims
    }

    /// A view of a value's bytes with permuted dimensions.
    fn permuted_view(&mut self, value: ValueId, dims: &[usize], meta: TensorMeta) -> ValueId {
        if *self.emit.meta(value) == meta {
            return value;
        }
        let node = self.emit.graph.append(OpKind::new(Permute { dims: dims.into() }), &[value], [meta]);
        self.emit.graph.node(node).outputs()[0]
    }

    /// Adds the outputs of a call.
    pub(super) fn add_outputs(&mut self, request: &GraphRequest<'_>) -> Result<()> {
        let (count, expected) = (request.outputs.len(), self.payload.outputs.len());
        if count != expected {
            return fail(format!("{count} outputs for the {expected} of the payload"));
        }
        let is_copied = request.inputs.iter().enumerate().any(|(i, meta)| self.is_copied(i, meta));
        for (i, meta) in request.outputs.iter().enumerate() {
            let v = self.payload.outputs[i];
            let id = match is_copied {
                true => self.output(v, &DimOrder::contiguous(meta.rank()))?,
                false => self.output(v, meta.dim_order())?,
            };
            let id = self.cast_output(id, meta.dtype())?;
            self.emit.graph.output(id);
        }
        Ok(())
    }

    /// An output in the caller's dimension order and rank.
    fn output(&mut self, v: usize, order: &DimOrder) -> Result<ValueId> {
        let (dims, rank) = (self.dims(v), order.len());
        if order.is_contiguous() || dims.len() != rank {
            let sizes = with_rank(&dims, rank).filter(|_| order.is_contiguous());
            let sizes =
                sizes.ok_or_else(|| Error::new(format!("an output of {rank} dimensions for {dims:?}")))?;
            let nhwc = self.nhwc(v)?;
            return self.emit.view(nhwc, &sizes);
        }
        if dims_of(order) == NCHW_TO_NHWC
            && let Layout::Nchw(image) = self.available_layout(v)?
        {
            return Ok(image);
        }
        let nhwc = self.nhwc(v)?;
        // The payload's dimension `j` is dimension `order[j]` of the caller's tensor.
        let mut perm = vec![0; rank];
        dims_of(order).into_iter().enumerate().for_each(|(j, d)| perm[d] = j);
        let sizes: Vec<usize> = perm.iter().map(|&j| dims[j]).collect();
        let meta = TensorMeta::new(self.emit.dtype(nhwc), &sizes, *order)?;
        Ok(self.permuted_view(nhwc, &perm, meta))
    }

    /// Casts an output to the caller's type.
    fn cast_output(&mut self, id: ValueId, dtype: ScalarType) -> Result<ValueId> {
        match (self.emit.dtype(id), dtype) {
            (from, to) if from == to => Ok(id),
            (ScalarType::Int, ScalarType::Long) | (ScalarType::Long, ScalarType::Int) => {
                self.emit.cast(id, dtype)
            }
            (from, to) => fail(format!("an output of {from} for a tensor of {to}")),
        }
    }
}

fn dims_of(order: &DimOrder) -> Vec<usize> {
    order.iter().map(|&d| usize::from(d)).collect()
}

/// Adds or removes leading dimensions of size 1 to reach a rank. `None` if a removed dimension has another size.
fn with_rank(sizes: &[usize], rank: usize) -> Option<Vec<usize>> {
    let cut = sizes.len().saturating_sub(rank);
    if sizes[..cut].iter().any(|&n| n != 1) {
        return None;
    }
    let mut all = vec![1; rank.saturating_sub(sizes.len())];
    all.extend_from_slice(&sizes[cut..]);
    Some(all)
}
