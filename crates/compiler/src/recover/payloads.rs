//! Lifts delegate calls to the operators that their payloads compute.

use super::Recovery;
use crate::Result;
use pteron_exported::delegate::{CompileSpec, LoweredCall, Recover};
use pteron_exported::{Argument, ConstantTensor, ExportedNode, ExportedProgram, TensorSpec, VarId, VarType};
use std::collections::HashMap;
use std::sync::Arc;

impl Recovery<'_> {
    /// The number of inputs among the arguments of a delegate call.
    pub(super) fn count_delegate_inputs(&self, index: usize) -> Result<usize> {
        let payload = self.file_constant(self.source.program.delegate_data(&self.plan.delegates[index]))?;
        Ok(self.backend_of(index)?.num_inputs(payload.data())?)
    }

    fn backend_of(&self, index: usize) -> Result<Arc<dyn Recover + Send + Sync>> {
        let id = &self.plan.delegates[index].id;
        match self.source.backends.iter().find(|backend| backend.backend_id() == id) {
            Some(backend) => Ok(Arc::clone(backend)),
            None => self.fail(format_args!("payloads of {id} are not brought back to operators here")),
        }
    }

    pub(super) fn lift_delegate_call(&mut self, index: usize, args: &[i32]) -> Result<()> {
        let source = self.source;
        let delegate = &self.plan.delegates[index];
        let backend = self.backend_of(index)?;
        let payload = self.file_constant(source.program.delegate_data(delegate))?;
        let inputs = backend.num_inputs(payload.data())?;
        if inputs > args.len() {
            return self.fail(format_args!("{} arguments for {inputs} inputs of a payload", args.len()));
        }
        let (input_values, output_values) = args.split_at(inputs);
        let operands =
            input_values.iter().map(|&v| self.current_value(v as usize)).collect::<Result<Vec<_>>>()?;
        let spec = |recovery: &Self, var: VarId| recovery.program.spec(var).cloned();
        let inputs = operands.iter().filter_map(|&var| spec(self, var)).collect::<Vec<_>>();
        let mut outputs = Vec::with_capacity(output_values.len());
        for &value in output_values {
            let tensor = self.tensor(value as usize)?;
            outputs.push(self.spec_of(tensor)?);
        }
        let named = |key: &str| -> Option<ConstantTensor> {
            let range = source.program.named_data(key);
            let range =
                range.and_then(|r| Some(usize::try_from(r.start).ok()?..usize::try_from(r.end).ok()?));
            let bytes = || Arc::clone(&source.file);
            let own = range.map(|range| ConstantTensor { name: None, bytes: bytes(), range });
            own.or_else(|| (source.data)(key))
        };
        let specs: Vec<CompileSpec> = delegate
            .compile_specs
            .iter()
            .map(|spec| CompileSpec { key: spec.key.clone(), value: spec.value.clone() })
            .collect();
        let part = backend.recover(&LoweredCall {
            processed: payload.data(),
            compile_specs: &specs,
            inputs: &inputs,
            outputs: &outputs,
            ranges: &self.program.ranges,
            named_data: &named,
        })?;
        let results = self.inline_payload(part, &operands);
        if results.len() != output_values.len() {
            return self.fail(format_args!(
                "{} results of a payload for {}",
                results.len(),
                output_values.len()
            ));
        }
        for ((&value, var), spec) in output_values.iter().zip(results).zip(outputs) {
            let var = self.reorder_as(var, &spec);
            self.define(value as usize, var)?;
        }
        Ok(())
    }

    /// Converts a result to the dim order that the plan declares.
    fn reorder_as(&mut self, var: VarId, spec: &TensorSpec) -> VarId {
        let Some(current) =
            self.program.spec(var).filter(|current| current.dim_order != spec.dim_order).cloned()
        else {
            return var;
        };
        self.push_reorder(var, TensorSpec { dim_order: spec.dim_order, ..current })
    }

    /// A copy of a tensor in the dim order of `spec`.
    pub(super) fn push_reorder(&mut self, var: VarId, spec: TensorSpec) -> VarId {
        let order: Vec<i64> = spec.dim_order.iter().map(|&d| i64::from(d)).collect();
        let args = vec![("self".into(), Argument::Var(var)), ("dim_order".into(), Argument::ints(&order))];
        self.push_node("dim_order_ops._clone_dim_order.default", args, vec![VarType::Tensor(spec)])[0]
    }

    /// Inlines a lifted payload with these operands as its inputs, and returns its outputs.
    fn inline_payload(&mut self, part: ExportedProgram, operands: &[VarId]) -> Vec<VarId> {
        let mut vars: HashMap<VarId, VarId> =
            part.graph.inputs.iter().copied().zip(operands.iter().copied()).collect();
        let ids: Vec<VarId> = part.var_ids().filter(|var| !vars.contains_key(var)).collect();
        for var in ids {
            let name = format!("v{}", self.program.num_vars());
            let name = part.constants.get(&var).and_then(|c| c.name.as_deref()).map_or(name, str::to_owned);
            vars.insert(var, self.program.add_var(name, part.var(var).ty.clone()));
        }
        let map = |var: VarId| vars.get(&var).copied().unwrap_or(var);
        for (var, data) in part.constants {
            self.program.constants.insert(map(var), data);
        }
        self.program.ranges.extend(part.ranges);
        for node in part.graph.nodes {
            let mut args = node.args;
            args.iter_mut().for_each(|(_, arg)| arg.map_vars(&mut |v| map(v)));
            self.program.graph.nodes.push(ExportedNode {
                target: node.target,
                args,
                outputs: node.outputs.into_iter().map(map).collect(),
                source: Arc::clone(&self.origin),
            });
        }
        part.graph.outputs.iter().filter_map(Argument::var).map(map).collect()
    }
}
