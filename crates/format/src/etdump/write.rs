use super::{
    Allocator, DebugEvent, ETDump, Event, IDENTIFIER, ProfileEvent, RunData, Tensor, Value, ValueKind,
};
use crate::Result;
use crate::flatbuffer::{Field, Ref, Writer};
use std::io::Write;

/// Writes a recording.
///
/// The file is a single flatbuffer, so it is built in memory and limited to 2 GiB.
pub fn write(dump: &ETDump, out: &mut dyn Write) -> Result<()> {
    let mut w = Writer::new();
    let run_data = w.tables(&dump.run_data, write_run_data);
    let root = w.table(&[Field::scalar(dump.version, 0), run_data.into()]);
    Ok(out.write_all(&w.finish_size_prefixed(root, IDENTIFIER)?.bytes)?)
}

fn write_optional_string(w: &mut Writer, text: &Option<String>) -> Field {
    text.as_ref().map(|text| w.string(text)).into()
}

fn write_run_data(w: &mut Writer, run: &RunData) -> Ref {
    let events = w.tables(&run.events, |w, event: &Event| {
        let profile = event.profile_event.as_ref().map(|event| write_profile_event(w, event));
        let allocation = event.allocation_event.as_ref().map(|event| {
            w.table(&[Field::scalar(event.allocator_id, 0), Field::scalar(event.allocation_size, 0)])
        });
        let debug = event.debug_event.as_ref().map(|event| write_debug_event(w, event));
        w.table(&[profile.into(), allocation.into(), debug.into()])
    });
    let allocators = w.tables(&run.allocators, |w, allocator: &Allocator| {
        let name = write_optional_string(w, &allocator.name);
        w.table(&[name])
    });
    let name = write_optional_string(w, &run.name);
    w.table(&[name, Field::scalar(run.bundled_input_index, -1), allocators.into(), events.into()])
}

fn write_profile_event(w: &mut Writer, event: &ProfileEvent) -> Ref {
    let metadata = &event.delegate_debug_metadata;
    let metadata = (!metadata.is_empty()).then(|| w.scalars(metadata));
    let id = write_optional_string(w, &event.delegate_debug_id_str);
    let name = write_optional_string(w, &event.name);
    w.table(&[
        name,
        Field::scalar(event.chain_index, 0),
        Field::scalar(event.instruction_id, -1),
        Field::scalar(event.delegate_debug_id_int, -1),
        id,
        metadata.into(),
        Field::scalar(event.start_time, 0),
        Field::scalar(event.end_time, 0),
    ])
}

fn write_debug_event(w: &mut Writer, event: &DebugEvent) -> Ref {
    let name = write_optional_string(w, &event.name);
    let id = write_optional_string(w, &event.delegate_debug_id_str);
    let entry = event.debug_entry.as_ref().map(|entry| write_value(w, entry));
    w.table(&[
        Field::scalar(event.chain_index, 0),
        Field::scalar(event.instruction_id, -1),
        entry.into(),
        Field::scalar(event.delegate_debug_id_int, -1),
        id,
        name,
    ])
}

fn write_value(w: &mut Writer, value: &Value) -> Ref {
    let output = value.output.map(|output| w.table(&[Field::scalar(output, false)]));
    let mut fields = [Field::Absent; 8];
    fields[7] = output.into();
    let (number, id, table) = match &value.kind {
        ValueKind::Null => (0i8, 0, None),
        ValueKind::Int(value) => (1, 3, Some(w.table(&[Field::scalar(*value, 0)]))),
        ValueKind::Bool(value) => (2, 6, Some(w.table(&[Field::scalar(*value, false)]))),
        // Compared by bits: -0.0 == 0.0, the default, so a comparison of numbers would omit -0.0.
        ValueKind::Float(value) => (3, 4, Some(w.table(&[Field::scalar(value.to_bits(), 0)]))),
        ValueKind::Double(value) => (4, 5, Some(w.table(&[Field::scalar(value.to_bits(), 0)]))),
        ValueKind::Tensor(value) => (5, 1, Some(write_tensor(w, value))),
        ValueKind::TensorList(values) => {
            let tensors = w.tables(values, write_tensor);
            (6, 2, Some(w.table(&[tensors.into()])))
        }
        ValueKind::String => (7, 0, None),
    };
    fields[id] = table.into();
    fields[0] = Field::scalar(number, 0);
    w.table(&fields)
}

fn write_tensor(w: &mut Writer, tensor: &Tensor) -> Ref {
    let strides = w.scalars(&tensor.strides);
    let sizes = w.scalars(&tensor.sizes);
    w.table(&[
        Field::scalar(tensor.scalar_type, 0),
        sizes.into(),
        strides.into(),
        Field::scalar(tensor.offset, 0),
    ])
}
