//! Adds nodes to the program under construction.

use super::Recovery;
use crate::error::Result;
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::ScalarType;
use std::sync::Arc;

/// A named argument.
pub(super) type NamedArg = (&'static str, Argument);

/// A list of integers as an argument.
pub(super) fn ints(values: impl IntoIterator<Item = usize>) -> Argument {
    Argument::ints(&values.into_iter().map(|n| n as i64).collect::<Vec<_>>())
}

impl Recovery<'_> {
    pub(super) fn spec(&self, var: VarId) -> &TensorSpec {
        static NONE: std::sync::LazyLock<TensorSpec> =
            std::sync::LazyLock::new(|| TensorSpec::contiguous(ScalarType::Float, Vec::new()));
        self.program.spec(var).unwrap_or(&NONE)
    }

    pub(super) fn dtype(&self, var: VarId) -> ScalarType {
        self.spec(var).dtype
    }

    /// Adds a node with several results.
    pub(super) fn emit_outputs(
        &mut self,
        target: &str,
        args: Vec<NamedArg>,
        specs: Vec<TensorSpec>,
    ) -> Vec<VarId> {
        let mut add = |spec| {
            let name = format!("x{}", self.program.num_vars());
            self.program.add_var(name, VarType::Tensor(spec))
        };
        let outputs: Vec<VarId> = specs.into_iter().map(&mut add).collect();
        let args = args.into_iter().map(|(name, arg)| (name.into(), arg)).collect();
        let (target, source) = (target.into(), Arc::default());
        self.program.graph.nodes.push(ExportedNode { target, args, outputs: outputs.clone(), source });
        outputs
    }

    /// Adds a node with one row-major result.
    pub(super) fn emit(
        &mut self,
        target: &str,
        args: Vec<NamedArg>,
        dtype: ScalarType,
        sizes: Vec<Size>,
    ) -> VarId {
        self.emit_outputs(target, args, vec![TensorSpec::contiguous(dtype, sizes)])[0]
    }

    /// Adds a node whose result has the type and sizes of its operand `self`.
    pub(super) fn emit_like(&mut self, target: &str, x: VarId, more: Vec<NamedArg>) -> VarId {
        let (dtype, sizes) = (self.dtype(x), self.spec(x).sizes.clone());
        let args = std::iter::once(("self", Argument::Var(x))).chain(more).collect();
        self.emit(target, args, dtype, sizes)
    }

    /// Permutes dimensions: `perm` gives for each dimension of the result the dimension of the operand.
    pub(super) fn permute(&mut self, x: VarId, perm: &[usize]) -> Result<VarId> {
        if perm.iter().copied().eq(0..perm.len()) {
            return Ok(x);
        }
        let from = &self.spec(x).sizes;
        let sizes = perm.iter().map(|&d| from.get(d).cloned().unwrap_or(Size::Int(1))).collect();
        let dtype = self.dtype(x);
        let args = vec![("self", Argument::Var(x)), ("dims", ints(perm.iter().copied()))];
        Ok(self.emit("aten.permute.default", args, dtype, sizes))
    }

    /// Views a tensor with other sizes, of which at most one may be unknown.
    pub(super) fn view(&mut self, x: VarId, sizes: Vec<Size>) -> Result<VarId> {
        if self.spec(x).sizes == sizes {
            return Ok(x);
        }
        let known: Vec<i64> = sizes.iter().map(|size| size.known().unwrap_or(-1)).collect();
        if known.iter().filter(|&&n| n < 0).count() > 1 {
            return crate::error::fail("more than one size of a view is computed");
        }
        let dtype = self.dtype(x);
        let args = vec![("self", Argument::Var(x)), ("size", Argument::ints(&known))];
        Ok(self.emit("aten.view.default", args, dtype, sizes))
    }

    /// Casts a tensor to another type.
    pub(super) fn cast(&mut self, x: VarId, dtype: ScalarType) -> VarId {
        if self.dtype(x) == dtype {
            return x;
        }
        let sizes = self.spec(x).sizes.clone();
        let args = vec![("self", Argument::Var(x)), ("dtype", Argument::Dtype(dtype))];
        self.emit("aten._to_copy.default", args, dtype, sizes)
    }

    /// Clamps a tensor.
    pub(super) fn clamp(&mut self, x: VarId, (low, high): (f32, f32)) -> VarId {
        let bound = |b: f32| if b.is_finite() { Argument::Float(f64::from(b)) } else { Argument::None };
        match (low.is_finite(), high.is_finite()) {
            (false, false) => x,
            (true, false) if low == 0.0 => self.emit_like("aten.relu.default", x, Vec::new()),
            _ => self.emit_like("aten.clamp.default", x, vec![("min", bound(low)), ("max", bound(high))]),
        }
    }
}
