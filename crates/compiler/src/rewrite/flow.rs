//! Builders for loops.

use super::Rewriter;
use crate::Result;
use pteron_exported::{Argument, VarId, VarType};

impl Rewriter<'_> {
    /// Emits a loop: computes `step` of the carried tensors while `goes_on` of them is true, and returns their last
    /// values. Both may use values from outside.
    pub(crate) fn repeat_while(
        &mut self,
        initial: &[VarId],
        goes_on: impl FnOnce(&mut Self, &[VarId]) -> Result<VarId>,
        step: impl FnOnce(&mut Self, &[VarId]) -> Result<Vec<VarId>>,
    ) -> Result<Vec<VarId>> {
        let types: Vec<VarType> = initial.iter().map(|&v| self.program.var(v).ty.clone()).collect();
        let condition = self.build_graph(types.clone(), |cx, inputs| Ok(vec![goes_on(cx, inputs)?]))?;
        let body = self.build_graph(types.clone(), step)?;
        let args = vec![
            ("", Argument::Graph(Box::new(condition))),
            ("", Argument::Graph(Box::new(body))),
            ("", Argument::Vars(initial.to_vec())),
            ("", Argument::Vars(Vec::new())),
        ];
        Ok(self.emit_many("higher_order.while_loop", args, types))
    }
}
