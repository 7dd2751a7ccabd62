use super::PrintOptions;
use crate::show::{
    byte_text, bytes, count, items, layout_of_fields, line, name, number, quoted, write_table,
};
use pteron_format::pte::{
    Chain, DataLocation, EValue, ExecutionPlan, Frame, Instruction, InvalidMethod, Tensor, TensorData,
    TensorShapeDynamism, VerifiedProgram,
};
use pteron_runtime::Program;
use std::collections::HashSet;
use std::fmt::{self, Write};

pub(super) fn print(out: &mut dyn Write, program: &Program, options: PrintOptions) -> fmt::Result {
    let (tables, header) = (program.tables(), program.header());
    let methods = count(tables.execution_plan.len(), "method");
    write!(out, "program of {methods}, schema version {}, ", tables.version)?;
    let archive = program.loader().source_archive_bytes();
    match archive {
        Some(archive) => writeln!(out, "compiled from an archive of {}", bytes(archive))?,
        None => writeln!(out, "{}", bytes(header.file_len))?,
    }
    match &header.extended {
        _ if archive.is_some() => {}
        None => writeln!(out, "no extended header: all {} bytes are tables", header.program_size)?,
        Some(extended) => {
            write!(
                out,
                "extended header of {} bytes: tables up to byte {}, segments from byte {}",
                extended.length, extended.program_size, extended.segment_base_offset
            )?;
            match extended.segment_data_size {
                Some(size) => writeln!(out, ", {size} bytes")?,
                None => writeln!(out)?,
            }
        }
    }
    if !tables.unknown_fields().is_empty() {
        writeln!(out, "fields of a newer schema: {}", items(tables.unknown_fields().iter()))?;
    }
    for plan in &tables.execution_plan {
        writeln!(out)?;
        print_method(out, tables, plan, options, &HashSet::new())?;
    }
    for invalid in tables.invalid_methods() {
        writeln!(out)?;
        print_invalid_method(out, tables, invalid, options)?;
    }
    print_data(out, tables)
}

/// Prints the readable parts of an invalid method.
fn print_invalid_method(
    out: &mut dyn Write,
    program: &VerifiedProgram,
    invalid: &InvalidMethod,
    options: PrintOptions,
) -> fmt::Result {
    let unnamed = invalid.name.as_deref().unwrap_or("without a name");
    writeln!(out, "method {}, which is not valid: {}", name(unnamed), invalid.error)?;
    for error in &invalid.unknown {
        writeln!(out, "  unknown to this reader: {}, {}", error.path(), line(error.found()))?;
    }
    let Some(plan) = &invalid.plan else { return Ok(()) };
    let unknown =
        invalid.unknown.iter().filter_map(|error| error.path().split_once("].")).map(|(_, path)| path);
    print_method(out, program, plan, options, &unknown.collect())
}

/// Prints a method. `unknown` are the paths of the members of unions that this reader does not know.
fn print_method(
    out: &mut dyn Write,
    program: &VerifiedProgram,
    plan: &ExecutionPlan,
    options: PrintOptions,
    unknown: &HashSet<&str>,
) -> fmt::Result {
    let ids = |ids: &[i32]| ids.iter().map(|id| format!("%{id}")).collect::<Vec<_>>().join(", ");
    writeln!(out, "method {}({}) -> ({})", name(&plan.name), ids(&plan.inputs), ids(&plan.outputs))?;
    if let Some(meta) = &plan.container_meta_type {
        for (what, text) in [("inputs", &meta.encoded_inp_str), ("outputs", &meta.encoded_out_str)] {
            if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
                writeln!(out, "  {what} as Python has them: {}", line(&format!("{text:?}")))?;
            }
        }
    }
    for (id, size) in plan.non_const_buffer_sizes.iter().enumerate().skip(1) {
        write!(out, "  arena {id}: {size} bytes")?;
        let device = plan.non_const_buffer_device.iter().find(|d| usize::try_from(d.buffer_idx) == Ok(id));
        match device {
            Some(device) => writeln!(out, " on {}", device.name())?,
            None => writeln!(out)?,
        }
    }
    writeln!(out, "  values")?;
    let (inputs, outputs): (HashSet<i32>, HashSet<i32>) =
        (plan.inputs.iter().copied().collect(), plan.outputs.iter().copied().collect());
    let is_unknown = |path: &str| !unknown.is_empty() && unknown.contains(path);
    let rows = plan.values.iter().enumerate().map(|(id, value)| {
        let id = id as i32;
        let role = match (inputs.contains(&id), outputs.contains(&id)) {
            (true, true) => "input, output",
            (true, false) => "input",
            (false, true) => "output",
            (false, false) => "",
        };
        match value {
            EValue::Tensor(tensor) => {
                vec![format!("%{id}"), tensor_type(tensor), place_text(program, tensor), role.to_owned()]
            }
            EValue::Null if is_unknown(&format!("values[{id}].val")) => {
                vec![
                    format!("%{id}"),
                    "a value of an unknown kind".to_owned(),
                    String::new(),
                    role.to_owned(),
                ]
            }
            other => vec![format!("%{id}"), scalar_text(plan, other, false), String::new(), role.to_owned()],
        }
    });
    write_table(out, rows, "<<<<", 4)?;
    for (index, chain) in plan.chains.iter().enumerate() {
        match plan.chains.len() {
            1 => writeln!(out, "  instructions")?,
            _ => writeln!(out, "  instructions of chain {index}")?,
        }
        let unknown = |at: usize| is_unknown(&format!("chains[{index}].instructions[{at}].instr_args"));
        print_chain(out, plan, chain, options, &unknown)?;
    }
    if !plan.delegates.is_empty() {
        writeln!(out, "  delegates")?;
        let rows = plan.delegates.iter().enumerate().map(|(index, delegate)| {
            let place = match delegate.processed.location {
                DataLocation::Inline => format!("inline {}", delegate.processed.index),
                DataLocation::Segment => format!("segment {}", delegate.processed.index),
            };
            let range = program.delegate_data(delegate);
            let specs = delegate.compile_specs.iter();
            let specs = specs.map(|spec| format!("{}={}", name(&spec.key), byte_text(&spec.value)));
            vec![
                index.to_string(),
                name(&delegate.id).to_string(),
                place,
                format!("{} bytes", range.end - range.start),
                specs.take(FEW_SPECS).collect::<Vec<_>>().join(", "),
            ]
        });
        write_table(out, rows, "><<><", 4)?;
    }
    Ok(())
}

/// Maximum number of compile specs of a delegate that are printed.
const FEW_SPECS: usize = 20;

fn print_chain(
    out: &mut dyn Write,
    plan: &ExecutionPlan,
    chain: &Chain,
    options: PrintOptions,
    is_unknown: &dyn Fn(usize) -> bool,
) -> fmt::Result {
    if options.frames {
        let ids = |ids: &[i32]| items(ids.iter().map(|id| format!("%{id}")));
        writeln!(out, "    takes {}, gives {}", ids(&chain.inputs), ids(&chain.outputs))?;
    }
    let width = chain.instructions.len().saturating_sub(1).to_string().len();
    for (index, step) in chain.instructions.iter().enumerate() {
        match is_unknown(index) {
            true => write!(out, "    {index:>width$}  an instruction of an unknown kind")?,
            false => write!(out, "    {index:>width$}  {}", instruction_text(plan, step))?,
        }
        let frames = chain.stacktrace.get(index).map_or(&[][..], |list| &list.items);
        match frames {
            [.., last] if !options.frames => writeln!(out, "  ; {}", frame_text(last))?,
            _ => writeln!(out)?,
        }
        if options.frames {
            for each in frames {
                writeln!(out, "    {:width$}    ; {}", "", frame_text(each))?;
                if let Some(context) = each.context.as_deref().filter(|context| !context.is_empty()) {
                    writeln!(out, "    {:width$}    ;   {}", "", name(context.trim()))?;
                }
            }
        }
    }
    Ok(())
}

/// An instruction as text: `aten::add.out(%0, %1, %2=1, %4, %4) -> float32[2, 2]`. Operands that are not tensors are
/// printed with their values.
pub fn instruction_text(plan: &ExecutionPlan, step: &Instruction) -> String {
    let args = |ids: &[i32]| {
        let list = items(ids.iter().map(|&id| argument_text(plan, id)));
        list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(&list).to_owned()
    };
    match step {
        Instruction::KernelCall { op_index, args: ids } => {
            let operator = usize::try_from(*op_index).ok().and_then(|index| plan.operators.get(index));
            let operator = operator.map_or_else(|| format!("operator {op_index}"), |op| op.full_name());
            let mut text = format!("{}({})", name(&operator), args(ids));
            let last = ids.last().and_then(|&id| plan.values.get(usize::try_from(id).ok()?));
            if let Some(EValue::Tensor(tensor)) = last {
                let _ = write!(text, " -> {}", tensor_type(tensor));
            }
            text
        }
        Instruction::DelegateCall { delegate_index, args: ids } => {
            let id = usize::try_from(*delegate_index).ok().and_then(|index| plan.delegates.get(index));
            let id = id.map_or("unknown", |delegate| delegate.id.as_str());
            format!("delegate {delegate_index} `{}`({})", name(id), args(ids))
        }
        Instruction::MoveCall { move_from, move_to } => format!("%{move_to} = move %{move_from}"),
        Instruction::JumpFalseCall { cond_value_index, destination_instruction } => {
            format!(
                "jump to {destination_instruction} if {} is false",
                argument_text(plan, *cond_value_index)
            )
        }
        Instruction::FreeCall { value_index } => format!("free %{value_index}"),
    }
}

/// An operand of an instruction: `%3`, or `%4=1` if it is not a tensor.
pub fn argument_text(plan: &ExecutionPlan, id: i32) -> String {
    match usize::try_from(id).ok().and_then(|index| plan.values.get(index)) {
        None | Some(EValue::Tensor(_)) => format!("%{id}"),
        Some(other) => format!("%{id}={}", scalar_text(plan, other, true)),
    }
}

/// A value as text; mostly used for values that are not tensors. The items of an int list are values themselves; their
/// integers are printed. `short` omits the kind.
fn scalar_text(plan: &ExecutionPlan, value: &EValue, short: bool) -> String {
    let kind = |kind: &str, text: String| if short { text } else { format!("{kind} {text}") };
    match value {
        EValue::Null => "none".to_owned(),
        EValue::Int(v) => kind("int", v.to_string()),
        EValue::Bool(v) => kind("bool", v.to_string()),
        EValue::Double(v) => kind("double", number(*v)),
        EValue::String(v) => kind("string", quoted(v).to_string()),
        EValue::Tensor(tensor) => tensor_type(tensor),
        EValue::IntList(ids) => {
            let item = |&id: &i64| match usize::try_from(id).ok().and_then(|index| plan.values.get(index)) {
                Some(EValue::Int(v)) if short => v.to_string(),
                Some(EValue::Int(v)) => format!("%{id}={v}"),
                _ => format!("%{id}"),
            };
            kind("int[]", items(ids.iter().map(item)))
        }
        EValue::DoubleList(all) => kind("double[]", items(all.iter().map(|v| format!("{v:?}")))),
        EValue::BoolList(all) => kind("bool[]", items(all.iter())),
        EValue::TensorList(ids) => kind("tensor[]", tensor_list_text(ids)),
        EValue::OptionalTensorList(ids) => kind("tensor?[]", tensor_list_text(ids)),
    }
}

fn tensor_list_text(ids: &[i32]) -> String {
    let item = |&id: &i32| if id < 0 { "none".to_owned() } else { format!("%{id}") };
    items(ids.iter().map(item))
}

/// Type, sizes and dim order of a tensor: `float32[at most 8, 2]` if the sizes are upper bounds.
pub fn tensor_type(tensor: &Tensor) -> String {
    let text = layout_of_fields(tensor.scalar_type, &tensor.sizes, &tensor.dim_order);
    match tensor.shape_dynamism {
        TensorShapeDynamism::Static => text,
        TensorShapeDynamism::DynamicBound => text.replacen('[', "[at most ", 1),
        TensorShapeDynamism::DynamicUnbound => text.replacen('[', "[unbounded ", 1),
    }
}

/// Where a tensor's data is stored, and the tensor's name, as text.
pub fn place_text(program: &VerifiedProgram, tensor: &Tensor) -> String {
    let mut text = match program.tensor_data(tensor) {
        TensorData::Constant(range) => {
            format!("constant {}, bytes {}..{} of the file", tensor.data_buffer_idx, range.start, range.end)
        }
        TensorData::Initial(range) => {
            format!("{}, starts as bytes {}..{} of the file", arena_text(tensor), range.start, range.end)
        }
        TensorData::External(key) => format!("outside, key {}", quoted(key)),
        TensorData::ExternalInitial(key) => format!("{}, starts as key {}", arena_text(tensor), quoted(key)),
        TensorData::Planned => arena_text(tensor),
        TensorData::Unplanned => "memory of the caller".to_owned(),
    };
    if let Some(name) = tensor.fully_qualified_name().filter(|_| !tensor.is_external()) {
        let _ = write!(text, " {}", quoted(name));
    }
    if let Some(device) = tensor.device() {
        let _ = write!(text, " on {device}");
    }
    text
}

fn arena_text(tensor: &Tensor) -> String {
    tensor.allocation_info.map_or_else(String::new, |place| {
        let start = place.offset();
        let end = start.saturating_add(tensor.nbytes().unwrap_or(0));
        format!("arena {} {start}..{end}", place.memory_id)
    })
}

/// A source frame: `model.py:12 in forward`.
pub(super) fn frame_text(frame: &Frame) -> String {
    let file = frame.filename.as_deref().unwrap_or("?");
    format!("{}:{} in {}", name(file), frame.lineno, name(frame.name.as_deref().unwrap_or("?")))
}

fn print_data(out: &mut dyn Write, program: &VerifiedProgram) -> fmt::Result {
    if !program.segments.is_empty() {
        writeln!(out, "\n{}", count(program.segments.len(), "segment"))?;
        let uses = crate::inspect::uses_of_segments(program);
        let rows = program.segments.iter().enumerate().map(|(i, s)| {
            vec![i.to_string(), format!("+{}", s.offset), format!("{} bytes", s.size), uses[i].join("; ")]
        });
        write_table(out, rows, ">>><", 2)?;
    }
    let inline = program.constant_buffer.iter().map(|b| &b.storage);
    let inline: Vec<_> = inline.enumerate().filter(|(_, range)| range.start < range.end).collect();
    if !inline.is_empty() {
        writeln!(out, "\n{}", count(inline.len(), "inline constant"))?;
        let rows = inline.into_iter().map(|(i, range)| {
            vec![i.to_string(), format!("bytes {}..{} of the file", range.start, range.end)]
        });
        write_table(out, rows, "><", 2)?;
    }
    if !program.named_data.is_empty() {
        writeln!(out, "\nnamed data")?;
        let rows = program
            .named_data
            .iter()
            .map(|entry| vec![quoted(&entry.key).to_string(), format!("segment {}", entry.segment_index)]);
        write_table(out, rows, "<<", 2)?;
    }
    Ok(())
}
