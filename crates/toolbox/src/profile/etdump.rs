//! Writes recordings as ETDumps, with the event names of the reference: an operator call is an event
//! `native_call_<operator>` and an event `OPERATOR_CALL` of the same span, a delegate call a `DELEGATE_CALL`; events
//! of the whole method have chain -1 and instruction 0. Times are in nanoseconds. Allocations are
//! left out, because the Inspector refuses a recording with allocations.
//!
//! The span of a node of a delegate's payload is an event whose delegate debug id is the node's kind and index,
//! `Conv2d #3`, wherever it ran; the id of a value that it computes is the index alone.

use super::{Recording, Span, Value};
use crate::delegates::NodeKinds;
use crate::{Context, Result};
use pteron_format::etdump::{
    DebugEvent, ETDump, Event, ProfileEvent, RunData, Tensor, Value as DebugValue, ValueKind,
};
use pteron_trace::SpanKind;
use std::io::Write;

/// Alignment of recorded tensors in the debug buffer.
const ALIGNMENT: usize = 64;

/// Writes an ETDump.
pub fn write(dump: &ETDump, out: &mut dyn Write) -> Result<()> {
    pteron_format::etdump::write(dump, out).context(|| "cannot write the ETDump".to_owned())
}

/// Converts a recording to an ETDump and the debug buffer that holds its tensors.
///
/// # Errors
/// If a value could not be recorded, or there is no memory for the buffer.
pub fn dump(recording: &Recording, nodes: &NodeKinds) -> Result<(ETDump, Vec<u8>)> {
    recording.expect_values()?;
    let mut buffer = Vec::new();
    let mut run_data = Vec::new();
    for block in &recording.blocks {
        let mut events = Vec::new();
        for value in &block.values {
            events.push(debug_event(value, &mut buffer)?);
        }
        for span in &block.spans {
            profile_events(span, nodes, &mut events);
        }
        run_data.push(RunData { name: Some(block.name.clone()), events, ..RunData::default() });
    }
    Ok((ETDump { version: 0, run_data }, buffer))
}

fn profile_events(span: &Span, nodes: &NodeKinds, events: &mut Vec<Event>) {
    let (chain_index, instruction_id) = match (span.place.chain, span.place.instruction) {
        (Some(c), Some(i)) => (i32::try_from(c).unwrap_or(-1), i32::try_from(i).unwrap_or(-1)),
        _ => (-1, 0),
    };
    let event = |name: Option<&str>, step: Option<&str>| Event {
        profile_event: Some(ProfileEvent {
            name: name.map(str::to_owned),
            chain_index,
            instruction_id,
            delegate_debug_id_str: step.map(str::to_owned),
            start_time: span.start,
            end_time: span.end,
            ..ProfileEvent::default()
        }),
        ..Event::default()
    };
    if let Some(node) = span.place.node {
        let kind = nodes.get(span.place).unwrap_or(&span.name);
        events.push(event(None, Some(&format!("{kind} #{node}"))));
        return;
    }
    match span.kind {
        SpanKind::Kernel => {
            let short = span.name.rsplit_once("::").map_or(&*span.name, |(_, name)| name);
            events.push(event(Some(&format!("native_call_{short}")), None));
            events.push(event(Some("OPERATOR_CALL"), None));
        }
        SpanKind::Delegate => events.push(event(Some("DELEGATE_CALL"), None)),
        SpanKind::DelegateStep => events.push(event(None, Some(&span.name))),
        SpanKind::LoadProgram => events.push(event(Some("Program::load"), None)),
        SpanKind::LoadMethod => events.push(event(Some("Program::load_method"), None)),
        SpanKind::Prepare => events.push(event(Some("Method::prepare"), None)),
        SpanKind::Execute => events.push(event(Some("Method::execute"), None)),
        _ => events.push(event(Some(&span.name), None)),
    }
}

fn debug_event(value: &Value, buffer: &mut Vec<u8>) -> Result<Event> {
    let more = value.tensor.nbytes() + ALIGNMENT;
    buffer.try_reserve(more).map_err(|_| pteron_tensor::Error::OutOfMemory(buffer.len() + more))?;
    buffer.resize(buffer.len().next_multiple_of(ALIGNMENT), 0);
    let offset = buffer.len();
    buffer.extend_from_slice(value.tensor.bytes());
    let long = |n: &usize| i64::try_from(*n).unwrap_or(i64::MAX);
    let tensor = Tensor {
        scalar_type: value.tensor.dtype() as i8,
        sizes: value.tensor.sizes().iter().map(long).collect(),
        strides: value.tensor.strides().iter().map(long).collect(),
        offset: long(&offset),
    };
    // An output of the method has chain -1, instruction 0, and the flag `output`.
    let output = value.place.instruction.is_none().then_some(true);
    Ok(Event {
        debug_event: Some(DebugEvent {
            chain_index: value.place.chain.map_or(u64::MAX, u64::from),
            instruction_id: value.place.instruction.map_or(0, |i| i32::try_from(i).unwrap_or(-1)),
            debug_entry: Some(DebugValue { kind: ValueKind::Tensor(tensor), output }),
            delegate_debug_id_int: value.place.node.map_or(-1, |node| i32::try_from(node).unwrap_or(-1)),
            ..DebugEvent::default()
        }),
        ..Event::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Block;
    use pteron_trace::Place;

    #[test]
    fn delegate_nodes_have_debug_ids() {
        let place = Place { node: Some(3), ..Place::instruction(0, 7) };
        let span =
            Span { kind: SpanKind::Kernel, name: "linear".into(), place, start: 10, end: 25, thread: 1 };
        let tensor = pteron_tensor::Tensor::from_slice(&[1], &[1.0f32]).unwrap();
        let value = Value { name: "linear".to_owned(), place, output: 0, tensor };
        let block = Block { spans: vec![span], values: vec![value], ..Block::default() };
        let recording = Recording { blocks: vec![block], ..Recording::default() };
        let (dump, _) = dump(&recording, &NodeKinds::default()).unwrap();
        let [value, step] = &dump.run_data[0].events[..] else { panic!("{dump:?}") };
        let value = value.debug_event.as_ref().unwrap();
        assert_eq!((value.instruction_id, value.delegate_debug_id_int), (7, 3));
        let step = step.profile_event.as_ref().unwrap();
        assert_eq!((step.instruction_id, step.end_time - step.start_time), (7, 15));
        assert_eq!((step.name.as_deref(), step.delegate_debug_id_str.as_deref()), (None, Some("linear #3")));
    }
}
