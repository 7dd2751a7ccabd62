//! Conversion between the tensors of a call and the payload's inputs and outputs.

use super::{Layout, NCHW_TO_NHWC, Recovery, Slot};
use crate::error::{Error, Result, fail};
use crate::layout::LayoutViews;
use pteron_exported::{Argument, InputKind, Size, TensorSpec, VarId, VarType};

impl Recovery<'_> {
    /// Adds the inputs of a call.
    pub(super) fn add_inputs(&mut self, specs: &[TensorSpec]) -> Result<()> {
        let (count, expected) = (specs.len(), self.payload.inputs.len());
        if count != expected {
            return fail(format!("{count} inputs for the {expected} of the payload"));
        }
        for (i, spec) in specs.iter().enumerate() {
            let var = self.program.add_var(format!("input{i}"), VarType::Tensor(spec.clone()));
            self.program.graph.inputs.push(var);
            self.program.inputs.push(InputKind::User);
            self.has_payload_sizes |= self.matches_payload_sizes(self.payload.inputs[i], spec);
            self.add_input(self.payload.inputs[i], var, spec)?;
        }
        Ok(())
    }

    fn add_input(&mut self, v: usize, var: VarId, spec: &TensorSpec) -> Result<()> {
        let value = &self.payload.values[v];
        if spec.dtype != value.datatype.scalar_type() {
            return fail(format!(
                "an input of {} for value %{} of {}",
                spec.dtype,
                value.id,
                value.datatype.name()
            ));
        }
        let order: Vec<usize> = spec.dim_order.iter().map(|&d| usize::from(d)).collect();
        let layout = if spec.dim_order.is_contiguous() || self.matches_payload_sizes(v, spec) {
            let sizes = with_rank(&spec.sizes, value.dims.len());
            let sizes = sizes.ok_or_else(|| {
                Error::new(format!("an input of other dimensions than value %{}", value.id))
            })?;
            Layout::Nhwc(self.view(var, sizes)?)
        } else if order == NCHW_TO_NHWC && value.dims.len() == 4 {
            Layout::Nchw(var)
        } else {
            return fail(format!("an input in dim order {}", spec.dim_order));
        };
        let layout = self.dequantize_value(v, layout)?;
        self.set_layout(v, layout)
    }

    /// Whether the sizes of a tensor match the payload's dimensions directly, but not in its dim order. The first
    /// releases wrote channels-last images this way.
    fn matches_payload_sizes(&self, v: usize, spec: &TensorSpec) -> bool {
        let dims = self.payload.values[v].dims.iter().map(|&n| Some(n as i64));
        let max = |size: &Size| Some(size.bounds(&self.program.ranges).max);
        let stored = spec.dim_order.iter().map(|&d| max(&spec.sizes[usize::from(d)]));
        !stored.eq(dims.clone()) && spec.sizes.iter().map(max).eq(dims)
    }

    /// Adds the outputs of a call.
    pub(super) fn add_outputs(&mut self, specs: &[TensorSpec]) -> Result<()> {
        let (count, expected) = (specs.len(), self.payload.outputs.len());
        if count != expected {
            return fail(format!("{count} outputs for the {expected} of the payload"));
        }
        for (i, spec) in specs.iter().enumerate() {
            let v = self.payload.outputs[i];
            let var = self.output(v, spec)?;
            if self.dtype(var) != spec.dtype {
                return fail(format!("an output of {} for a tensor of {}", self.dtype(var), spec.dtype));
            }
            self.program.graph.outputs.push(Argument::Var(var));
        }
        Ok(())
    }

    /// An output in the layout and rank that the call expects.
    fn output(&mut self, v: usize, spec: &TensorSpec) -> Result<VarId> {
        let Slot { quantized, .. } = self.values[v];
        let order: Vec<usize> = spec.dim_order.iter().map(|&d| usize::from(d)).collect();
        let is_image =
            order == NCHW_TO_NHWC && self.payload.values[v].dims.len() == 4 && !self.has_payload_sizes;
        if !is_image && !spec.dim_order.is_contiguous() && !self.has_payload_sizes {
            return fail(format!("an output in dim order {}", spec.dim_order));
        }
        let var = match (quantized, is_image) {
            (Some(Layout::Nhwc(var)), false) | (Some(Layout::Nchw(var)), true) => var,
            (Some(Layout::Nhwc(var)), true) => self.permute(var, &super::NHWC_TO_NCHW)?,
            (Some(Layout::Nchw(var)), false) => self.permute(var, &NCHW_TO_NHWC)?,
            (None, true) => self.nchw(v)?,
            (None, false) => self.nhwc(v)?,
        };
        let sizes = with_rank(&self.spec(var).sizes, spec.rank());
        let sizes = sizes.ok_or_else(|| Error::new("an output of other dimensions than the payload's"))?;
        self.view(var, sizes)
    }
}

/// Adds or removes leading dimensions of size 1 to reach a rank. `None` if a removed dimension has another size.
fn with_rank(sizes: &[Size], rank: usize) -> Option<Vec<Size>> {
    let cut = sizes.len().saturating_sub(rank);
    if sizes[..cut].iter().any(|size| *size != Size::Int(1)) {
        return None;
    }
    let mut all = vec![Size::Int(1); rank.saturating_sub(sizes.len())];
    all.extend_from_slice(&sizes[cut..]);
    Some(all)
}
