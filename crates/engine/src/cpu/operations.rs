//! The operations that the CPU computes.

use super::call::CallStep;
use super::lowering::{Lower, Lowered, Lowering};
use super::packs::Packs;
use crate::graph::{Graph, NodeId};
use crate::operation::{Operation, operation};
use crate::ops::attention::Attention;
use crate::ops::cast::Cast;
use crate::ops::channel_shuffle::ChannelShuffle;
use crate::ops::conv::Convolution;
use crate::ops::conv_chain::ConvChain;
use crate::ops::conv_pass::ConvPass;
use crate::ops::global_mean::GlobalMean;
use crate::ops::group_factors::GroupFactors;
use crate::ops::linear::Linear;
use crate::ops::lookup::Lookup;
use crate::ops::pointwise::Pointwise;
use crate::ops::pool::Pool;
use crate::ops::quantize::{Dequantize, Quantize};
use crate::ops::quantized_conv::QuantizedConvolution;
use crate::ops::quantized_linear::QuantizedLinear;
use crate::ops::quantized_product::QuantizedProduct;
use crate::ops::quantized_sum::SumOfQuantized;
use crate::ops::relayout::{Permute, Relayout, Reshape};
use crate::ops::row_norm::RowNorm;
use crate::ops::viewed::Viewed;
use pteron_kernels::compute::Isa;
use pteron_operator::{Error, Result};
use std::any::Any;

/// A function that lowers nodes of one type of operation, and returns `None` for nodes of other types.
type LowerFn = fn(&dyn Any, &mut Lowering<'_>) -> Option<Result<Lowered>>;

const fn lower_fn<T: Operation + Lower>() -> LowerFn {
    |operation, node| Some(operation.downcast_ref::<T>()?.lower(node))
}

/// The lowering functions, one for each type of operation.
const OPERATIONS: &[LowerFn] = &[
    lower_fn::<Attention>(),
    lower_fn::<Cast>(),
    lower_fn::<ChannelShuffle>(),
    lower_fn::<ConvChain>(),
    lower_fn::<ConvPass>(),
    lower_fn::<Convolution>(),
    lower_fn::<Dequantize>(),
    lower_fn::<GlobalMean>(),
    lower_fn::<GroupFactors>(),
    lower_fn::<Linear>(),
    lower_fn::<Lookup>(),
    lower_fn::<Permute>(),
    lower_fn::<Pointwise>(),
    lower_fn::<Pool>(),
    lower_fn::<Quantize>(),
    lower_fn::<QuantizedConvolution>(),
    lower_fn::<QuantizedLinear>(),
    lower_fn::<QuantizedProduct>(),
    lower_fn::<Relayout>(),
    lower_fn::<Reshape>(),
    lower_fn::<RowNorm>(),
    lower_fn::<SumOfQuantized>(),
    lower_fn::<Viewed>(),
];

/// Lowers a node: an operation by its function in [`OPERATIONS`], a call to the step that runs its kernel.
pub(super) fn lower(graph: &Graph, id: NodeId, isa: Isa, packs: &Packs) -> Result<Lowered> {
    let node = graph.node(id);
    if let Some(call) = node.call() {
        return Ok(Lowered::step(CallStep::new(call.clone()), 0..node.inputs().len()));
    }
    let no_step = || {
        let name = node.name();
        Error::invalid(format!("{name} is neither a call nor an operation that can be lowered"))
    };
    let operation: &dyn Any = operation(graph, id).ok_or_else(no_step)?;
    let mut lowering = Lowering { graph, node: id, isa, packs };
    OPERATIONS.iter().find_map(|row| row(operation, &mut lowering)).unwrap_or_else(|| Err(no_step()))
}
