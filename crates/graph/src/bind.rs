//! Calling a kernel from a graph: from a node's inputs and outputs to the arguments of its schema.

use crate::node::{Call, CallArg, CallOut};
use operator::{Arg, Args, KernelContext, Out, Outs, Result};
use smallvec::SmallVec;
use tensor::{Scalar, TensorView, TensorViewMut};

/// Executes a call on the node's inputs and outputs, in their order.
pub(crate) fn execute<'a>(
    call: &'a Call,
    ctx: &KernelContext<'_>,
    inputs: &[TensorView<'a>],
    outputs: impl IntoIterator<Item = TensorViewMut<'a>>,
) -> Result<()> {
    let args = Args::new(call.kernel.schema(), arguments(call, inputs.iter().copied().map(Arg::Tensor)));
    let mut outputs = outputs.into_iter();
    let mut list = SmallVec::new();
    for out in &call.outs {
        list.push(match out {
            CallOut::Tensor => match outputs.next() {
                Some(view) => Out::Tensor(view),
                None => return Err(operator::Error::invalid("a call with too few outputs")),
            },
            CallOut::Tensors(n) => Out::Tensors(outputs.by_ref().take(*n).collect()),
        });
    }
    let mut outs = Outs::new(list);
    match &call.prepared {
        Some(prepared) => prepared.execute(ctx, &args, &mut outs),
        None => call.kernel.execute(ctx, &args, &mut outs),
    }
}

/// The arguments of a call whose tensors are `tensors`, one for each input of the node.
pub(crate) fn arguments<'a>(
    call: &'a Call,
    mut tensors: impl Iterator<Item = Arg<'a>>,
) -> SmallVec<[Arg<'a>; 12]> {
    let mut view = || match tensors.next() {
        Some(Arg::Tensor(view)) => Some(view),
        _ => None,
    };
    call.args
        .iter()
        .map(|arg| match arg {
            CallArg::None => Arg::None,
            CallArg::Scalar(Scalar::Int(v)) => Arg::Int(*v),
            CallArg::Scalar(Scalar::Double(v)) => Arg::Double(*v),
            CallArg::Scalar(Scalar::Bool(v)) => Arg::Bool(*v),
            CallArg::Str(s) => Arg::Str(s),
            CallArg::Ints(v) => Arg::Ints(SmallVec::from_slice(v)),
            CallArg::Doubles(v) => Arg::Doubles(v),
            CallArg::Bools(v) => Arg::Bools(v),
            CallArg::Out(i) => Arg::Out(*i),
            CallArg::Tensor => view().map_or(Arg::Unknown, Arg::Tensor),
            CallArg::Tensors(n) => {
                let list: Option<_> = (0..*n).map(|_| view()).collect();
                list.map_or(Arg::Unknown, Arg::Tensors)
            }
            CallArg::OptionalTensors(present) => {
                Arg::OptionalTensors(present.iter().map(|p| if *p { view() } else { None }).collect())
            }
        })
        .collect()
}
