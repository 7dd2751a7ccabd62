//! Builders for loops.

use super::Rewriter;
use crate::Result;
use ir::exported::{Argument, ExportedGraph, ExportedNode, VarId};

impl Rewriter<'_> {
    /// Emits a loop: computes `step` of the carried tensors while `goes_on` of them is true, and returns their last values. Both
    /// may use values from outside.
    pub(crate) fn repeat_while(
        &mut self,
        initial: &[VarId],
        goes_on: impl FnOnce(&mut Self, &[VarId]) -> Result<VarId>,
        step: impl FnOnce(&mut Self, &[VarId]) -> Result<Vec<VarId>>,
    ) -> Result<Vec<VarId>> {
        let condition = self.nested(initial, |cx, inputs| Ok(vec![goes_on(cx, inputs)?]))?;
        let body = self.nested(initial, step)?;
        let args = vec![
            ("", Argument::Graph(Box::new(condition))),
            ("", Argument::Graph(Box::new(body))),
            ("", Argument::Vars(initial.to_vec())),
            ("", Argument::Vars(Vec::new())),
        ];
        let types = initial.iter().map(|&v| self.program.var(v).ty.clone()).collect();
        Ok(self.emit_many("higher_order.while_loop", args, types))
    }

    /// A graph whose inputs have the types of `like`.
    fn nested(
        &mut self,
        like: &[VarId],
        build: impl FnOnce(&mut Self, &[VarId]) -> Result<Vec<VarId>>,
    ) -> Result<ExportedGraph> {
        let inputs: Vec<VarId> = like
            .iter()
            .map(|&v| {
                let (name, ty) =
                    (format!("{}_{}", self.stem, self.program.num_vars()), self.program.var(v).ty.clone());
                self.program.add_var(name, ty)
            })
            .collect();
        let around: Vec<ExportedNode> = std::mem::take(&mut self.made);
        let scope = self.scope.clone();
        let built = build(self, &inputs);
        self.scope = scope;
        let nodes = std::mem::replace(&mut self.made, around);
        let outputs = built?.into_iter().map(Argument::Var).collect();
        Ok(ExportedGraph { inputs, nodes, outputs })
    }
}
