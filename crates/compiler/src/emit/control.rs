//! Emits branches and loops as jumps.

use super::Emitter;
use crate::{Error, Result};
use pteron_exported::{Argument, ExportedGraph, ExportedNode, VarId};
use pteron_format::pte::{EValue, Instruction};
use std::sync::Arc;

impl Emitter<'_> {
    pub(super) fn emit_control(&mut self, node: &ExportedNode, first: &ExportedGraph) -> Result<()> {
        match &*node.target {
            "higher_order.cond" => self.emit_cond(node),
            "higher_order.map_impl" | "higher_order.map" => self.emit_scan(node, first, 0),
            "higher_order.scan" => {
                let initial = operand_list(node, 0).len();
                self.emit_scan(node, first, initial)
            }
            "higher_order.while_loop" => self.emit_while_loop(node),
            _ => Err(self.control_error(node, "control flow that is not known")),
        }
    }

    fn control_error(&self, node: &ExportedNode, problem: &str) -> Error {
        Error::node(self.program, node, problem)
    }

    fn emit_jump_if_false(&mut self, node: &ExportedNode, condition: i32) -> usize {
        let jump = Instruction::JumpFalseCall { cond_value_index: condition, destination_instruction: 0 };
        self.push(jump, &node.source)
    }

    fn set_jump_target(&mut self, jump: usize, to: usize) {
        if let Instruction::JumpFalseCall { destination_instruction, .. } = &mut self.instructions[jump] {
            *destination_instruction = to as i32;
        }
    }

    /// Copies the value `from`, a tensor or scalar, over the plan's value `to`.
    fn emit_assign(&mut self, node: &ExportedNode, to: i32, from: VarId) {
        let at = self.instructions.len();
        self.values.record_use(from, at);
        let source = self.values.index_of(from);
        self.emit_assign_value(node, to, from, source);
    }

    /// Copies `from`, whose type is that of `var`, over another value. A dynamic tensor is resized to the sizes of the
    /// source, which `copy_` does not do.
    fn emit_assign_value(&mut self, node: &ExportedNode, to: i32, var: VarId, from: i32) {
        if to == from {
            return;
        }
        let Some(spec) = self.program.spec(var) else {
            self.push(Instruction::MoveCall { move_from: from, move_to: to }, &node.source);
            return;
        };
        if spec.known_sizes().is_none() {
            return self.emit_clone(to, from, spec, &node.source);
        }
        let blocking = self.values.push(EValue::Bool(false));
        self.push_kernel_call("aten::copy_", vec![to, from, blocking, to], &node.source);
    }

    fn emit_cond(&mut self, node: &ExportedNode) -> Result<()> {
        let graphs: Vec<&ExportedGraph> = node.graphs().collect();
        let (Some((_, condition)), &[then, otherwise]) = (node.args.first(), graphs.as_slice()) else {
            return Err(self.control_error(node, "a branch has a condition and two graphs"));
        };
        let at = self.instructions.len();
        let condition = self.emit_argument(node, condition, false, at)?;
        let outputs: Vec<i32> = node.outputs.iter().map(|&v| self.define(node, v)).collect::<Result<_>>()?;
        let to_else = self.emit_jump_if_false(node, condition);
        self.emit_branch(node, then, &outputs)?;
        let never = self.values.push(EValue::Bool(false));
        let to_end = self.emit_jump_if_false(node, never);
        let start = self.instructions.len();
        self.set_jump_target(to_else, start);
        self.emit_branch(node, otherwise, &outputs)?;
        let end = self.instructions.len();
        self.set_jump_target(to_end, end);
        node.outputs.iter().for_each(|&v| self.values.keep_live(v, end));
        Ok(())
    }

    fn emit_branch(&mut self, node: &ExportedNode, graph: &ExportedGraph, outputs: &[i32]) -> Result<()> {
        self.emit_graph(graph)?;
        if graph.outputs.len() != outputs.len() {
            return Err(self.control_error(node, "its graphs give other results than it has"));
        }
        for (output, &to) in graph.outputs.iter().zip(outputs) {
            match output {
                Argument::Var(v) => self.emit_assign(node, to, *v),
                known => {
                    let value = super::constant_value(known);
                    let from = self.values.push(value);
                    self.push(Instruction::MoveCall { move_from: from, move_to: to }, &node.source);
                }
            }
        }
        Ok(())
    }

    /// Runs the body once per row of the scanned operands. `carried` values pass from row to row; a map has none.
    fn emit_scan(&mut self, node: &ExportedNode, body: &ExportedGraph, carried: usize) -> Result<()> {
        let rows = operand_list(node, usize::from(carried > 0 || node.target.ends_with("scan")));
        let initial = if carried > 0 { operand_list(node, 0) } else { Vec::new() };
        if body.inputs.len() != carried + rows.len() || body.outputs.len() != node.outputs.len() {
            return Err(self.control_error(node, "its graph takes or gives other values than it does"));
        }
        let Some(&first) = rows.first() else { return Err(self.control_error(node, "it runs over no rows")) };
        let source = Arc::clone(&node.source);
        for (i, &output) in node.outputs.iter().enumerate() {
            self.define(node, output)?;
            // The reference runtime's `et_copy_index` resizes its destination for every row.
            if i >= carried {
                self.values.make_resizable(output);
            }
        }
        let (index, count) = (self.values.push(EValue::Int(0)), self.values.push(EValue::Int(0)));
        let (zero, one) = (self.values.add_int(0), self.values.add_int(1));
        let at = self.instructions.len();
        self.values.record_use(first, at);
        let of_first = self.values.index_of(first);
        self.push_kernel_call("aten::sym_size.int", vec![of_first, zero, count], &source);
        // The carried values are stored in the results, which hold the final ones in the end.
        for (i, &value) in initial.iter().enumerate() {
            let to = self.values.index_of(node.outputs[i]);
            self.emit_assign(node, to, value);
            let at = self.instructions.len();
            self.values
                .make_same_value(body.inputs[i], node.outputs[i], at)
                .map_err(|p| self.control_error(node, &p))?;
        }
        let start = self.instructions.len();
        for (&row, &input) in rows.iter().zip(&body.inputs[carried..]) {
            let at = self.instructions.len();
            self.values.record_use(row, at);
            let (from, to) = (self.values.index_of(row), self.define(node, input)?);
            self.push_kernel_call("aten::select_copy.int_out", vec![from, zero, index, to, to], &source);
        }
        self.emit_graph(body)?;
        let results: Vec<VarId> = body.outputs.iter().filter_map(Argument::var).collect();
        if results.len() != node.outputs.len() {
            return Err(self.control_error(node, "its graph gives a number that is fixed"));
        }
        self.emit_carried(node, &results[..carried])?;
        for (&result, &output) in results.iter().zip(&node.outputs).skip(carried) {
            let at = self.instructions.len();
            self.values.record_use(result, at);
            self.values.record_use(output, at);
            let (to, from) = (self.values.index_of(output), self.values.index_of(result));
            self.push_kernel_call("executorch_prim::et_copy_index.tensor", vec![to, from, index], &source);
        }
        self.push_kernel_call("executorch_prim::add.Scalar", vec![index, one, index], &source);
        let done = self.values.push(EValue::Bool(false));
        self.push_kernel_call("executorch_prim::eq.Scalar", vec![index, count, done], &source);
        let jump = self.emit_jump_if_false(node, done);
        self.set_jump_target(jump, start);
        self.values.add_loop(start, jump);
        // Resets the index for the next execution.
        self.push_kernel_call("executorch_prim::sub.Scalar", vec![index, count, index], &source);
        let end = self.instructions.len();
        node.outputs.iter().for_each(|&v| self.values.keep_live(v, end));
        Ok(())
    }

    /// Writes the body's results over the carried values, by way of a copy if a result is another carried value.
    fn emit_carried(&mut self, node: &ExportedNode, results: &[VarId]) -> Result<()> {
        let targets: Vec<i32> =
            node.outputs[..results.len()].iter().map(|&v| self.values.index_of(v)).collect();
        let mut sources = Vec::new();
        for (i, &result) in results.iter().enumerate() {
            let carried =
                node.outputs.iter().enumerate().any(|(j, &v)| j != i && self.values.shares_memory(v, result));
            let from = match carried && self.program.spec(result).is_some() {
                true => self.emit_copy(result, &node.source)?,
                false => self.values.index_of(result),
            };
            sources.push(from);
        }
        for ((&result, &to), from) in results.iter().zip(&targets).zip(sources) {
            let at = self.instructions.len();
            self.values.record_use(result, at);
            self.emit_assign_value(node, to, result, from);
        }
        Ok(())
    }

    fn emit_while_loop(&mut self, node: &ExportedNode) -> Result<()> {
        let graphs: Vec<&ExportedGraph> = node.graphs().collect();
        let &[condition, body] = graphs.as_slice() else {
            return Err(self.control_error(node, "a loop has a condition and a body"));
        };
        let initial = operand_list(node, 0);
        let fits = initial.len() == node.outputs.len()
            && [condition, body].iter().all(|g| g.inputs.len() == initial.len())
            && body.outputs.len() == initial.len();
        if !fits {
            return Err(self.control_error(node, "its graphs take or give other values than it does"));
        }
        for (i, (&output, &value)) in node.outputs.iter().zip(&initial).enumerate() {
            let to = self.define(node, output)?;
            self.emit_assign(node, to, value);
            let at = self.instructions.len();
            for graph in [condition, body] {
                self.values
                    .make_same_value(graph.inputs[i], output, at)
                    .map_err(|p| self.control_error(node, &p))?;
            }
        }
        let start = self.instructions.len();
        self.emit_graph(condition)?;
        let Some(goes_on) = condition.outputs.first() else {
            return Err(self.control_error(node, "it has no condition"));
        };
        let at = self.instructions.len();
        let goes_on = self.emit_argument(node, goes_on, false, at)?;
        let leave = self.emit_jump_if_false(node, goes_on);
        self.emit_graph(body)?;
        let results: Vec<VarId> = body.outputs.iter().filter_map(Argument::var).collect();
        if results.len() != initial.len() {
            return Err(self.control_error(node, "its body gives a number that is fixed"));
        }
        self.emit_carried(node, &results)?;
        let never = self.values.push(EValue::Bool(false));
        let back = self.emit_jump_if_false(node, never);
        self.set_jump_target(back, start);
        self.values.add_loop(start, back);
        let end = self.instructions.len();
        self.set_jump_target(leave, end);
        node.outputs.iter().for_each(|&v| self.values.keep_live(v, end));
        Ok(())
    }
}

/// The values in the node's list argument number `place`, counted from 0 among its list arguments.
fn operand_list(node: &ExportedNode, place: usize) -> Vec<VarId> {
    let lists = node.args.iter().filter(|(_, a)| matches!(a, Argument::Vars(_) | Argument::OptionalVars(_)));
    lists.map(|(_, a)| a.vars()).nth(place).unwrap_or_default()
}
