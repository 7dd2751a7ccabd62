use super::Verifier;
use crate::ErrorKind;
use crate::flatbuffer::Path;
use crate::pte::{
    BackendDelegate, Chain, DataLocation, EValue, ExecutionPlan, Instruction, NonConstBufferDevice,
};
use pteron_tensor::ScalarType;
use std::collections::HashMap;

impl Verifier<'_> {
    /// Checks an execution plan, except its name.
    pub(super) fn check_plan(&mut self, plan: &ExecutionPlan, path: Path<'_>) {
        let count = plan.values.len();
        if count as u64 > self.limits.values {
            self.fail_over_limit(path.field("values"), self.limits.values, "values", count);
            return;
        }
        self.check_arenas(plan, path);
        self.check_indices(path.field("inputs"), &plan.inputs, count);
        self.check_indices(path.field("outputs"), &plan.outputs, count);
        let values = path.field("values");
        for (index, value) in plan.values.iter().enumerate() {
            if self.is_full() {
                return;
            }
            self.check_value(plan, value, values.index(index));
        }
        for (index, operator) in plan.operators.iter().enumerate() {
            if operator.name.is_empty() {
                let path = path.field("operators");
                self.fail_invalid(path.index(index).field("name"), "an operator's name", "an empty one");
            }
        }
        let delegates = path.field("delegates");
        for (index, delegate) in plan.delegates.iter().enumerate() {
            self.check_delegate(delegate, delegates.index(index));
        }
        let chains = path.field("chains");
        if plan.chains.is_empty() {
            self.fail_invalid(chains, "at least one chain of instructions", "none");
        }
        for (index, chain) in plan.chains.iter().enumerate() {
            self.check_chain(plan, chain, chains.index(index));
        }
    }

    fn check_arenas(&mut self, plan: &ExecutionPlan, path: Path<'_>) {
        let sizes = path.field("non_const_buffer_sizes");
        let mut total = 0u64;
        for (index, &size) in plan.non_const_buffer_sizes.iter().enumerate() {
            match u64::try_from(size) {
                Ok(0) => {}
                Ok(_) if index == 0 => self.fail_invalid(sizes.index(0), "0, as the entry is reserved", size),
                Ok(size) => total = total.saturating_add(size),
                Err(_) => self.fail_invalid(sizes.index(index), "a size of 0 or more bytes", size),
            }
        }
        if total > self.limits.arena_bytes {
            self.fail_over_limit(sizes, self.limits.arena_bytes, "bytes of arenas in a plan", total);
        }
        let devices = path.field("non_const_buffer_device");
        let mut seen = HashMap::new();
        for (index, entry) in plan.non_const_buffer_device.iter().enumerate() {
            if self.is_full() {
                return;
            }
            let NonConstBufferDevice { buffer_idx, .. } = *entry;
            let device = devices.index(index);
            let path = device.field("buffer_idx");
            let buffer =
                self.check_index(path, buffer_idx, plan.non_const_buffer_sizes.len(), "planned buffers");
            if buffer == Some(0) {
                self.fail_invalid(path, "a planned buffer; entry 0 is reserved", 0);
            }
            if let Some(first) = seen.insert(buffer_idx, index) {
                let expected = format!("a buffer other than that of non_const_buffer_device[{first}]");
                self.fail_invalid(path, expected, buffer_idx);
            }
        }
    }

    fn check_value(&mut self, plan: &ExecutionPlan, value: &EValue, path: Path<'_>) {
        match value {
            EValue::Tensor(tensor) => self.check_tensor(plan, tensor, path),
            EValue::IntList(items) => {
                let is_int = |value: &EValue| matches!(value, EValue::Int(_));
                self.check_items(plan, path, items.iter().copied(), "Int", is_int);
            }
            EValue::TensorList(items) => {
                let is_tensor = |value: &EValue| matches!(value, EValue::Tensor(_));
                self.check_items(plan, path, items.iter().copied().map(i64::from), "Tensor", is_tensor);
            }
            EValue::OptionalTensorList(items) => {
                // -1 stands for None and keeps its position in the list.
                let is_tensor = |value: &EValue| matches!(value, EValue::Tensor(_));
                let some = items.iter().map(|&item| (item != -1).then_some(i64::from(item)));
                self.check_optional_items(plan, path, some, "Tensor", is_tensor);
            }
            EValue::Null
            | EValue::Int(_)
            | EValue::Bool(_)
            | EValue::Double(_)
            | EValue::String(_)
            | EValue::DoubleList(_)
            | EValue::BoolList(_) => {}
        }
    }

    fn check_items(
        &mut self,
        plan: &ExecutionPlan,
        path: Path<'_>,
        items: impl Iterator<Item = i64>,
        kind: &'static str,
        is_kind: impl Fn(&EValue) -> bool,
    ) {
        self.check_optional_items(plan, path, items.map(Some), kind, is_kind);
    }

    fn check_optional_items(
        &mut self,
        plan: &ExecutionPlan,
        path: Path<'_>,
        items: impl Iterator<Item = Option<i64>>,
        kind: &'static str,
        is_kind: impl Fn(&EValue) -> bool,
    ) {
        let field = path.field("items");
        for (i, item) in items.enumerate() {
            let Some(item) = item else { continue };
            if self.is_full() {
                return;
            }
            let Some(index) = self.check_index(field.index(i), item, plan.values.len(), "values of the plan")
            else {
                continue;
            };
            if !is_kind(&plan.values[index]) {
                let actual = format_args!("values[{index}], of kind {}", plan.values[index].kind());
                self.fail_invalid(field.index(i), format!("the index of a value of kind {kind}"), actual);
            }
        }
    }

    fn check_delegate(&mut self, delegate: &BackendDelegate, path: Path<'_>) {
        if delegate.id.is_empty() {
            self.fail_invalid(path.field("id"), "a backend's name", "an empty one");
        }
        let (len, what) = match delegate.processed.location {
            DataLocation::Inline => (self.program.backend_delegate_data.len(), "inline delegate payloads"),
            DataLocation::Segment => (self.program.segments.len(), "segments"),
        };
        self.check_index(path.field("processed").field("index"), delegate.processed.index, len, what);
    }

    fn check_chain(&mut self, plan: &ExecutionPlan, chain: &Chain, path: Path<'_>) {
        let (values, count) = (plan.values.len(), chain.instructions.len());
        self.check_indices(path.field("inputs"), &chain.inputs, values);
        self.check_indices(path.field("outputs"), &chain.outputs, values);
        let instructions = path.field("instructions");
        if count as u64 > self.limits.instructions {
            self.fail_over_limit(instructions, self.limits.instructions, "instructions in a chain", count);
            return;
        }
        const VALUES: &str = "values of the plan";
        for (i, instruction) in chain.instructions.iter().enumerate() {
            if self.is_full() {
                return;
            }
            let path = instructions.index(i);
            match *instruction {
                Instruction::KernelCall { op_index, ref args } => {
                    self.check_index(
                        path.field("op_index"),
                        op_index,
                        plan.operators.len(),
                        "operators of the plan",
                    );
                    self.check_indices(path.field("args"), args, values);
                }
                Instruction::DelegateCall { delegate_index, ref args } => {
                    let field = path.field("delegate_index");
                    self.check_index(field, delegate_index, plan.delegates.len(), "delegates of the plan");
                    self.check_indices(path.field("args"), args, values);
                }
                Instruction::MoveCall { move_from, move_to } => {
                    self.check_index(path.field("move_from"), move_from, values, VALUES);
                    self.check_index(path.field("move_to"), move_to, values, VALUES);
                }
                Instruction::JumpFalseCall { cond_value_index, destination_instruction } => {
                    let field = path.field("cond_value_index");
                    if let Some(index) = self.check_index(field, cond_value_index, values, VALUES) {
                        self.check_condition(&plan.values[index], index, field);
                    }
                    if usize::try_from(destination_instruction).is_ok_and(|to| to <= count) {
                        continue;
                    }
                    let expected = format!("one of the chain's {count} instructions, or {count} for its end");
                    self.fail_invalid(
                        path.field("destination_instruction"),
                        expected,
                        destination_instruction,
                    );
                }
                Instruction::FreeCall { value_index } => {
                    let field = path.field("value_index");
                    if let Some(index) = self.check_index(field, value_index, values, VALUES)
                        && plan.values[index].as_tensor().is_none()
                    {
                        let actual = format_args!("values[{index}], of kind {}", plan.values[index].kind());
                        self.fail_invalid(field, "the index of a value of kind Tensor", actual);
                    }
                }
            }
        }
    }

    /// Checks the condition of a jump. A scalar has the kind of the last write to it, so its declared kind does not
    /// matter: an exporter declares the comparison of a size as `Int`. A condition that is not a Bool when the jump is
    /// executed is an error of that execution.
    fn check_condition(&mut self, value: &EValue, index: usize, path: Path<'_>) {
        let expected = "the index of a scalar or of a tensor of bool";
        match value {
            EValue::Bool(_) | EValue::Int(_) | EValue::Double(_) | EValue::Null => {}
            EValue::Tensor(tensor) if tensor.dtype() == Some(ScalarType::Bool) => {}
            EValue::Tensor(tensor) => {
                let dtype = tensor.dtype().map_or("unknown type", ScalarType::name);
                self.fail_invalid(path, expected, format_args!("values[{index}], a tensor of {dtype}"));
            }
            other => {
                let actual = format_args!("values[{index}], of kind {}", other.kind());
                self.fail(ErrorKind::Invalid, path, expected, actual);
            }
        }
    }
}
