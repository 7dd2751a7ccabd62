use super::align::{Pair, align};
use super::dataflow::Dataflow;
use super::{Class, Notes, Registries, payload};
use crate::Result;
use crate::show::{byte_text, items, layout_of_fields, quoted};
use crate::task;
use pteron_format::pte::{
    DeviceType, EValue, ExecutionPlan, Instruction, InvalidMethod, TASK_KEY, Tensor, TensorData,
    TensorShapeDynamism, VerifiedProgram,
};
use pteron_runtime::Program;
use pteron_trace::Place;
use std::collections::HashSet;

pub(super) fn diff(a: &Program, b: &Program, registries: Registries<'_>, notes: &mut Notes) -> Result<()> {
    let (tables_a, tables_b) = (a.tables(), b.tables());
    notes.compare(Class::Form, || "header".to_owned(), &header_text(tables_a), &header_text(tables_b));
    let version = |p: &VerifiedProgram| format!("schema version {}", p.version);
    notes.compare(Class::Meaning, || "program".to_owned(), &version(tables_a), &version(tables_b));

    for plan in &tables_a.execution_plan {
        match tables_b.plan(&plan.name) {
            Some(other) => compare_methods((a, plan), (b, other), registries, notes)?,
            None => {
                notes.note(Class::Meaning, format!("method {}", plan.name), Some(method_outline(plan)), None)
            }
        }
    }
    for plan in tables_b.execution_plan.iter().filter(|plan| tables_a.plan(&plan.name).is_none()) {
        notes.note(Class::Meaning, format!("method {}", plan.name), None, Some(method_outline(plan)));
    }

    let invalid = |program: &VerifiedProgram| {
        let describe = |method: &InvalidMethod| {
            let name = method.name.as_deref().unwrap_or("without a name");
            format!("{}: {}", crate::show::name(name), method.error)
        };
        let all: Vec<String> = program.invalid_methods().iter().map(describe).collect();
        (!all.is_empty()).then(|| all.join("; "))
    };
    let unknown = |program: &VerifiedProgram| {
        let all = program.unknown_fields();
        (!all.is_empty()).then(|| items(all.iter()))
    };
    let (unknown_a, unknown_b) = (unknown(tables_a), unknown(tables_b));
    if unknown_a != unknown_b {
        notes.note(Class::Form, "fields of a newer schema".to_owned(), unknown_a, unknown_b);
    }

    let (invalid_a, invalid_b) = (invalid(tables_a), invalid(tables_b));
    if invalid_a != invalid_b {
        notes.note(Class::Meaning, "methods that are not valid".to_owned(), invalid_a, invalid_b);
    }

    let bytes = |program: &VerifiedProgram, key: &str| {
        let range = program.named_data(key).unwrap_or_default();
        format!("{} bytes", range.end - range.start)
    };
    let done = compare_task_metadata(a, b, notes);
    let is_compared = |key: &str| !done || key != TASK_KEY;
    for entry in tables_a.named_data.iter().filter(|entry| is_compared(&entry.key)) {
        let place = || format!("named data {}", quoted(&entry.key));
        let range = tables_a.named_data(&entry.key).unwrap_or_default();
        match tables_b.named_data(&entry.key) {
            Some(other) => notes.compare_bytes(place, (a.loader(), range), (b.loader(), other))?,
            None => notes.note(Class::Meaning, place(), Some(bytes(tables_a, &entry.key)), None),
        }
    }
    let only_b = |key: &str| is_compared(key) && tables_a.named_data(key).is_none();
    for entry in tables_b.named_data.iter().filter(|entry| only_b(&entry.key)) {
        let place = format!("named data {}", quoted(&entry.key));
        notes.note(Class::Meaning, place, None, Some(bytes(tables_b, &entry.key)));
    }
    Ok(())
}

/// Compares task metadata by field, and returns whether it could be read; otherwise its bytes are to be compared.
fn compare_task_metadata(a: &Program, b: &Program, notes: &mut Notes) -> bool {
    let (Ok(task_a), Ok(task_b)) = (task::of(a), task::of(b)) else { return false };
    for (name, x, y) in task::differences(task_a.unwrap_or_default(), task_b.unwrap_or_default()) {
        notes.note(Class::Meaning, format!("task metadata, {name}"), x, y);
    }
    true
}

fn header_text(program: &VerifiedProgram) -> String {
    let constants = if program.has_inline_constants() { "inline" } else { "in a segment" };
    match &program.header().extended {
        None => format!("no extended header, constants {constants}"),
        Some(extended) => {
            let starts = program.segments.iter().filter(|s| s.size > 0).map(|s| s.offset);
            let all = starts.fold(extended.segment_base_offset, |all, start| all | start);
            let alignment = super::alignment_of(all);
            format!(
                "extended header of {} bytes, segments aligned to {alignment}, constants {constants}{}",
                extended.length,
                constant_alignment_text(program)
            )
        }
    }
}

/// The alignment of the constants' offsets in their segment, as text; empty if all offsets are 0.
fn constant_alignment_text(program: &VerifiedProgram) -> String {
    let offsets = program.constant_segment.as_ref().map_or(&[][..], |constants| &constants.offsets);
    match offsets.iter().fold(0, |all, offset| all | offset) {
        0 => String::new(),
        all => format!(" aligned to {}", super::alignment_of(all).min(128)),
    }
}

fn method_outline(plan: &ExecutionPlan) -> String {
    let steps: usize = plan.chains.iter().map(|chain| chain.instructions.len()).sum();
    format!("{} inputs, {} outputs, {steps} instructions", plan.inputs.len(), plan.outputs.len())
}

fn compare_methods(
    a: (&Program, &ExecutionPlan),
    b: (&Program, &ExecutionPlan),
    registries: Registries<'_>,
    notes: &mut Notes,
) -> Result<()> {
    let (plan_a, plan_b) = (a.1, b.1);
    let name = &plan_a.name;
    let mut dataflow =
        Dataflow::new(a.0.raise(name, registries.kernels)?, b.0.raise(name, registries.kernels)?);
    for (what, ids_a, ids_b) in
        [("inputs", &plan_a.inputs, &plan_b.inputs), ("outputs", &plan_a.outputs, &plan_b.outputs)]
    {
        let list = |plan: &ExecutionPlan, ids: &[i32]| {
            ids.iter().map(|&id| value_text(plan, id)).collect::<Vec<_>>().join(", ")
        };
        let (text_a, text_b) = (list(plan_a, ids_a), list(plan_b, ids_b));
        notes.compare(Class::Meaning, || format!("{name}, {what}"), &text_a, &text_b);
        if what == "inputs" {
            ids_a.iter().zip(ids_b).for_each(|(&x, &y)| dataflow.pair_inputs(x, y));
        }
    }
    for (delegate_a, delegate_b, index) in
        plan_a.delegates.iter().zip(&plan_b.delegates).enumerate().map(|(i, (x, y))| (x, y, i))
    {
        let place = || format!("{name}, delegate {index}");
        notes.compare(Class::Meaning, place, &delegate_a.id, &delegate_b.id);
        let specs = |specs: &[pteron_format::pte::CompileSpec]| {
            let each = specs.iter().map(|spec| format!("{} = {}", spec.key, byte_text(&spec.value)));
            each.collect::<Vec<_>>().join(", ")
        };
        let place = || format!("{name}, compile specs of delegate {index}");
        if delegate_a.compile_specs != delegate_b.compile_specs {
            let (specs_a, specs_b) = (specs(&delegate_a.compile_specs), specs(&delegate_b.compile_specs));
            notes.note(Class::Meaning, place(), Some(specs_a), Some(specs_b));
        }
        let (range_a, range_b) =
            (a.0.tables().delegate_data(delegate_a), b.0.tables().delegate_data(delegate_b));
        let (of_a, of_b) = ((a.0.loader(), range_a), (b.0.loader(), range_b));
        if delegate_a.id == delegate_b.id && !notes.same_bytes(of_a.clone(), of_b.clone())? {
            let place = format!("{name}, delegate {index}");
            if payload::diff(&place, (a.0, delegate_a), (b.0, delegate_b), registries.backends, notes)? {
                continue;
            }
        }
        let place = || format!("{name}, payload of delegate {index} ({})", delegate_a.id);
        notes.compare_bytes(place, of_a, of_b)?;
    }
    let (extra_a, extra_b) = (plan_a.delegates.iter().enumerate(), plan_b.delegates.iter().enumerate());
    for (index, delegate) in extra_a.skip(plan_b.delegates.len()) {
        let place = format!("{name}, delegate {index}");
        notes.note(Class::Meaning, place, Some(delegate.id.clone()), None);
    }
    for (index, delegate) in extra_b.skip(plan_a.delegates.len()) {
        let place = format!("{name}, delegate {index}");
        notes.note(Class::Meaning, place, None, Some(delegate.id.clone()));
    }
    let chains = |plan: &ExecutionPlan| format!("{} chains", plan.chains.len());
    notes.compare(Class::Meaning, || name.clone(), &chains(plan_a), &chains(plan_b));
    for (index, (chain_a, chain_b)) in plan_a.chains.iter().zip(&plan_b.chains).enumerate() {
        let of = if plan_a.chains.len() > 1 { format!(" of chain {index}") } else { String::new() };
        let steps = |plan: &ExecutionPlan, steps: &[Instruction]| {
            steps.iter().map(|step| step_text(plan, step)).collect::<Vec<_>>()
        };
        let (steps_a, steps_b) = (steps(plan_a, &chain_a.instructions), steps(plan_b, &chain_b.instructions));
        for pair in align(&steps_a, &steps_b) {
            let before = notes.differences.len();
            match pair {
                Pair::OnlyA(i) => {
                    let place = format!("{name}, instruction {i}{of}");
                    notes.note(Class::Meaning, place, Some(steps_a[i].clone()), None);
                }
                Pair::OnlyB(j) => {
                    let place = format!("{name}, instruction {j}{of}");
                    notes.note(Class::Meaning, place, None, Some(steps_b[j].clone()));
                }
                Pair::Both(i, j) => {
                    let (step_a, step_b) = (&chain_a.instructions[i], &chain_b.instructions[j]);
                    let pairs = operand_ids(step_a).into_iter().zip(operand_ids(step_b));
                    if !dataflow.pair_instructions(
                        Place::instruction(index as u32, i as u32),
                        Place::instruction(index as u32, j as u32),
                        pairs,
                    ) {
                        let text = crate::print::instruction_text;
                        let place = format!("{name}, instruction {i}{of} works on other values");
                        let (x, y) = (text(plan_a, step_a), text(plan_b, step_b));
                        notes.note(Class::Meaning, place, Some(x), Some(y));
                    }
                }
            }
            if let Pair::OnlyA(i) | Pair::Both(i, _) = pair {
                notes.set_instruction(before, name, Place::instruction(index as u32, i as u32));
            }
        }
        for (what, ids_a, ids_b) in
            [("inputs", &chain_a.inputs, &chain_b.inputs), ("outputs", &chain_a.outputs, &chain_b.outputs)]
        {
            let list = |plan: &ExecutionPlan, ids: &[i32]| items(ids.iter().map(|&id| value_text(plan, id)));
            let place = || format!("{name}, {what} of chain {index}");
            notes.compare(Class::Form, place, &list(plan_a, ids_a), &list(plan_b, ids_b));
        }
        let frames = |chain: &pteron_format::pte::Chain| {
            let all = chain.stacktrace.iter().flat_map(|list| &list.items);
            all.map(|f| format!("{f:?}")).collect::<Vec<_>>()
        };
        let (frames_a, frames_b) = (frames(chain_a), frames(chain_b));
        if frames_a != frames_b {
            let count = |frames: &[String]| Some(format!("{} source frames", frames.len()));
            let place = format!("{name}, source frames{of}");
            notes.note(Class::Form, place, count(&frames_a), count(&frames_b));
        }
    }
    let outputs = plan_a.outputs.iter().zip(&plan_b.outputs);
    if outputs.filter(|&(&x, &y)| !dataflow.outputs_match(x, y)).count() > 0 {
        let place = format!("{name}, outputs");
        let (x, y) = (format!("%{:?}", plan_a.outputs), format!("%{:?}", plan_b.outputs));
        notes.note(Class::Meaning, place, Some(x), Some(y));
    }
    for (x, y) in dataflow.into_pairs() {
        if let (EValue::Tensor(x_tensor), EValue::Tensor(y_tensor)) = (&plan_a.values[x], &plan_b.values[y]) {
            compare_tensor_data(name, (a.0, x, x_tensor), (b.0, y, y_tensor), notes)?;
        }
    }
    let devices = |plan: &ExecutionPlan| {
        let each = plan.non_const_buffer_device.iter().filter(|entry| entry.device_type != DeviceType::Cpu);
        let mut each: Vec<_> = each.map(|entry| (entry.buffer_idx, entry.name())).collect();
        each.sort();
        let all = each.iter().map(|(arena, device)| format!("arena {arena} on {device}"));
        if each.is_empty() { "all arenas on the CPU".to_owned() } else { all.collect::<Vec<_>>().join(", ") }
    };
    let place = || format!("{name}, devices");
    notes.compare(Class::Meaning, place, &devices(plan_a), &devices(plan_b));
    let unused = |plan: &ExecutionPlan| {
        let used = used_values(plan);
        let mut all: Vec<String> = (0..plan.values.len() as i32)
            .filter(|id| !used.contains(id))
            .map(|id| value_text(plan, id))
            .collect();
        all.sort();
        items(all.iter())
    };
    notes.compare(
        Class::Form,
        || format!("{name}, values that nothing uses"),
        &unused(plan_a),
        &unused(plan_b),
    );
    let arenas = |plan: &ExecutionPlan| {
        let sizes = plan.non_const_buffer_sizes.iter().skip(1);
        format!("arenas of {} bytes", sizes.map(i64::to_string).collect::<Vec<_>>().join(", "))
    };
    notes.compare(Class::Form, || format!("{name}, memory plan"), &arenas(plan_a), &arenas(plan_b));
    let containers = |plan: &ExecutionPlan| match &plan.container_meta_type {
        None => "none".to_owned(),
        Some(meta) => {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            format!("`{}` to `{}`", text(&meta.encoded_inp_str), text(&meta.encoded_out_str))
        }
    };
    let place = || format!("{name}, Python's containers");
    notes.compare(Class::Form, place, &containers(plan_a), &containers(plan_b));
    Ok(())
}

/// The values that inputs, outputs and instructions refer to, items of lists included.
fn used_values(plan: &ExecutionPlan) -> HashSet<i32> {
    let operands = plan.chains.iter().flat_map(|chain| &chain.instructions).flat_map(operand_ids);
    let mut used: HashSet<i32> = operands.chain(plan.inputs.iter().chain(&plan.outputs).copied()).collect();
    for value in used.clone().into_iter().filter_map(|id| plan.values.get(usize::try_from(id).ok()?)) {
        match value {
            EValue::TensorList(ids) | EValue::OptionalTensorList(ids) => used.extend(ids),
            EValue::IntList(ids) => used.extend(ids.iter().filter_map(|&id| i32::try_from(id).ok())),
            _ => {}
        }
    }
    used
}

/// The ids of an instruction's operands, in order.
fn operand_ids(step: &Instruction) -> Vec<i32> {
    match step {
        Instruction::KernelCall { args, .. } | Instruction::DelegateCall { args, .. } => args.clone(),
        Instruction::MoveCall { move_from, move_to } => vec![*move_from, *move_to],
        Instruction::JumpFalseCall { cond_value_index, .. } => vec![*cond_value_index],
        Instruction::FreeCall { value_index } => vec![*value_index],
    }
}

/// An instruction as text without value ids.
fn step_text(plan: &ExecutionPlan, step: &Instruction) -> String {
    let args = operand_ids(step).into_iter().map(|id| value_text(plan, id)).collect::<Vec<_>>().join(", ");
    match step {
        Instruction::KernelCall { op_index, .. } => {
            let operator = usize::try_from(*op_index).ok().and_then(|index| plan.operators.get(index));
            format!("{}({args})", operator.map_or_else(String::new, |op| op.full_name()))
        }
        Instruction::DelegateCall { delegate_index, .. } => format!("delegate {delegate_index}({args})"),
        Instruction::JumpFalseCall { destination_instruction, .. } => {
            format!("jump to {destination_instruction} if {args} is false")
        }
        Instruction::MoveCall { .. } => format!("move({args})"),
        Instruction::FreeCall { .. } => format!("free {args}"),
    }
}

/// A value as text without its id: the type of a tensor, the contents of anything else.
fn value_text(plan: &ExecutionPlan, id: i32) -> String {
    let Some(value) = usize::try_from(id).ok().and_then(|index| plan.values.get(index)) else {
        return "none".to_owned();
    };
    let each = |ids: &[i32]| {
        // Items are tensors or null: lists do not nest.
        let item = |&id: &i32| match usize::try_from(id).ok().and_then(|index| plan.values.get(index)) {
            Some(EValue::Tensor(tensor)) => tensor_text(tensor),
            _ => "none".to_owned(),
        };
        format!("[{}]", ids.iter().map(item).collect::<Vec<_>>().join(", "))
    };
    match value {
        EValue::Tensor(tensor) => tensor_text(tensor),
        EValue::TensorList(ids) | EValue::OptionalTensorList(ids) => each(ids),
        EValue::IntList(ids) => {
            let item = |&id: &i64| match usize::try_from(id).ok().and_then(|index| plan.values.get(index)) {
                Some(EValue::Int(v)) => v.to_string(),
                _ => "int".to_owned(),
            };
            format!("[{}]", ids.iter().map(item).collect::<Vec<_>>().join(", "))
        }
        EValue::Null => "none".to_owned(),
        EValue::Int(v) => v.to_string(),
        EValue::Bool(v) => v.to_string(),
        EValue::Double(v) => format!("{v:?}"),
        EValue::String(v) => quoted(v).to_string(),
        EValue::DoubleList(v) => format!("{v:?}"),
        EValue::BoolList(v) => format!("{v:?}"),
    }
}

fn tensor_text(tensor: &Tensor) -> String {
    let text = layout_of_fields(tensor.scalar_type, &tensor.sizes, &tensor.dim_order);
    match tensor.shape_dynamism {
        TensorShapeDynamism::Static => text,
        _ => text.replacen('[', "[at most ", 1),
    }
}

/// Compares the data of two corresponding tensors: where it is stored and, for constants and initial values, its bytes.
fn compare_tensor_data(
    method: &str,
    (program_a, id_a, a): (&Program, usize, &Tensor),
    (program_b, id_b, b): (&Program, usize, &Tensor),
    notes: &mut Notes,
) -> Result<()> {
    let ids = if id_a == id_b { format!("%{id_a}") } else { format!("%{id_a} and %{id_b}") };
    let name = a.fully_qualified_name().map_or_else(String::new, |name| format!(" {}", quoted(name)));
    let place = || format!("{method}, {ids}{name}, {}", tensor_text(a));
    match (program_a.tables().tensor_data(a), program_b.tables().tensor_data(b)) {
        (TensorData::Constant(x), TensorData::Constant(y))
        | (TensorData::Initial(x), TensorData::Initial(y)) => {
            notes.compare_bytes(place, (program_a.loader(), x), (program_b.loader(), y))?;
        }
        (x, y) => notes.compare(Class::Meaning, place, &storage_text(&x), &storage_text(&y)),
    }
    let device = |tensor: &Tensor| tensor.device().unwrap_or_else(|| "CPU".to_owned());
    notes.compare(Class::Meaning, || format!("{}, device", place()), &device(a), &device(b));
    let gradient = |tensor: &Tensor| match tensor.requires_grad {
        true => "requires a gradient",
        false => "requires no gradient",
    };
    notes.compare(Class::Form, || format!("{}, training", place()), gradient(a), gradient(b));
    if a.layout != b.layout {
        let layout = |tensor: &Tensor| Some(format!("layout {}", tensor.layout));
        notes.note(Class::Form, place(), layout(a), layout(b));
    }
    let names = (a.fully_qualified_name(), b.fully_qualified_name());
    if names.0 != names.1 && !a.is_external() && !b.is_external() {
        let show =
            |name: Option<&str>| Some(name.map_or_else(|| "no name".to_owned(), |n| quoted(n).to_string()));
        notes.note(Class::Form, format!("{method}, {ids}, name"), show(names.0), show(names.1));
    }
    Ok(())
}

fn storage_text(data: &TensorData<'_>) -> String {
    match data {
        TensorData::Constant(_) => "a constant of the program".to_owned(),
        TensorData::Initial(_) => "planned, with an initial value in the program".to_owned(),
        TensorData::External(key) => format!("outside the program, key {}", quoted(key)),
        TensorData::ExternalInitial(key) => {
            format!("planned, with an initial value outside, key {}", quoted(key))
        }
        TensorData::Planned => "planned".to_owned(),
        TensorData::Unplanned => "memory of the caller".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::diff::{Class, Registries, diff};
    use crate::file::{File, Progress};
    use pteron_format::pte::{
        AllocationDetails, Builder, Chain, DeviceType, EValue, ExecutionPlan, ExtraTensorInfo, Instruction,
        NonConstBufferDevice, Operator, Tensor,
    };
    use pteron_runtime::{BackendRegistry, BytesLoader, Limits, Program};
    use std::sync::Arc;

    /// `y = relu(x)`, changed by `change`.
    fn program(change: impl FnOnce(&mut ExecutionPlan)) -> File {
        let tensor = |offset| Tensor {
            scalar_type: 6,
            sizes: vec![4],
            dim_order: vec![0],
            allocation_info: Some(AllocationDetails::new(1, offset)),
            ..Tensor::default()
        };
        let mut plan = ExecutionPlan {
            name: "forward".to_owned(),
            values: vec![EValue::Tensor(tensor(0)), EValue::Tensor(tensor(16)), EValue::Int(3)],
            inputs: vec![0],
            outputs: vec![1],
            chains: vec![Chain {
                inputs: vec![0],
                instructions: vec![Instruction::KernelCall { op_index: 0, args: vec![0, 1, 1] }],
                ..Chain::default()
            }],
            operators: vec![Operator { name: "aten::relu".to_owned(), overload: "out".to_owned() }],
            non_const_buffer_sizes: vec![0, 64],
            ..ExecutionPlan::default()
        };
        change(&mut plan);
        let mut builder = Builder::new();
        builder.execution_plan.push(plan);
        let mut file = Vec::new();
        builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
        let loader = Arc::new(BytesLoader::new(file));
        File::Program(Program::load(loader, &Limits::default()).expect("it is sound"))
    }

    fn changed(plan: &mut ExecutionPlan, change: impl FnOnce(&mut Tensor)) {
        if let EValue::Tensor(tensor) = &mut plan.values[1] {
            change(tensor);
        }
    }

    #[test]
    fn devices_gradients_and_chains_are_compared() {
        let (kernels, backends) = (pteron_kernels::registry(), BackendRegistry::new());
        let registries = Registries { kernels: &kernels, backends: &backends };
        let differences = |other: &File| {
            let report =
                diff(&program(|_| ()), other, registries, &Progress::default()).expect("both are read");
            report.differences.into_iter().map(|d| (d.class, d.place)).collect::<Vec<_>>()
        };
        assert_eq!(differences(&program(|_| ())), []);
        let device = |tensor: &mut Tensor| {
            let info = ExtraTensorInfo { device_type: DeviceType::Cuda, ..ExtraTensorInfo::default() };
            tensor.extra_tensor_info = Some(info);
        };
        let arena = NonConstBufferDevice { buffer_idx: 1, device_type: DeviceType::Cuda, device_index: 1 };
        let cases = [
            (program(|plan| changed(plan, device)), Class::Meaning, "forward, %1, float32[4], device"),
            (program(|plan| plan.non_const_buffer_device.push(arena)), Class::Meaning, "forward, devices"),
            (
                program(|plan| changed(plan, |tensor| tensor.requires_grad = true)),
                Class::Form,
                "forward, %1, float32[4], training",
            ),
            (program(|plan| plan.chains[0].inputs.clear()), Class::Form, "forward, inputs of chain 0"),
            (
                program(|plan| plan.values[2] = EValue::Int(4)),
                Class::Form,
                "forward, values that nothing uses",
            ),
        ];
        for (other, class, place) in cases {
            assert_eq!(differences(&other), [(class, place.to_owned())]);
        }
    }
}
