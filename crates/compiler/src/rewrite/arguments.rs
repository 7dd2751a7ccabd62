//! Reads a node's arguments by name, and passes symbolic sizes to new nodes.

use super::Rewriter;
use crate::Result;
use crate::limits::{MAX_NODES, MAX_TABLE, NODE_BYTES, TABLE_ENTRY_BYTES};
use pteron_exported::{
    Argument, ExportedNode, IntArgument, Size, SymExpr, SymOp, TensorSpec, VarId, VarType,
};
use pteron_tensor::ScalarType;
use std::sync::Arc;

impl Rewriter<'_> {
    /// The spec of a tensor operand.
    pub(crate) fn spec(&self, node: &ExportedNode, var: VarId) -> Result<TensorSpec> {
        match self.program.spec(var) {
            Some(spec) => Ok(spec.clone()),
            None => self.fail(node, format!("`{}` is no tensor", self.program.var(var).name)),
        }
    }

    /// The spec of a tensor value; that of an f32 scalar for other values.
    pub(crate) fn spec_of(&self, var: VarId) -> TensorSpec {
        let none = || TensorSpec::contiguous(ScalarType::Float, Vec::new());
        self.program.spec(var).cloned().unwrap_or_else(none)
    }

    /// A size of a tensor.
    pub(crate) fn size_of(&self, node: &ExportedNode, var: VarId, dim: usize) -> Result<Size> {
        let sizes = self.spec(node, var)?.sizes;
        match sizes.get(dim) {
            Some(size) => Ok(size.clone()),
            None => self.fail(node, format!("it asks for dimension {dim} of a tensor of {}", sizes.len())),
        }
    }

    /// A tensor argument.
    pub(crate) fn tensor(&self, node: &ExportedNode, name: &str) -> Result<VarId> {
        match self.optional_tensor(node, name) {
            Some(var) => Ok(var),
            None => self.fail(node, format!("it has no tensor `{name}`")),
        }
    }

    /// A tensor argument that may be absent; `self` and `input` stand for each other.
    pub(crate) fn optional_tensor(&self, node: &ExportedNode, name: &str) -> Option<VarId> {
        // An in-place operator may name its operand differently from the functional one: `dropout_` does.
        let other = match name {
            "input" => "self",
            "self" => "input",
            _ => name,
        };
        let arg = node.arg(name).or_else(|| node.arg(other));
        arg.and_then(Argument::var).filter(|&v| self.program.spec(v).is_some())
    }

    /// The spec of a node's first result.
    pub(crate) fn result_spec(&self, node: &ExportedNode) -> Result<TensorSpec> {
        match node.outputs.first() {
            Some(&v) => self.spec(node, v),
            None => self.fail(node, "it has no result"),
        }
    }

    /// An integer argument that is known; `default` if it is absent.
    pub(crate) fn int(&self, node: &ExportedNode, name: &str, default: i64) -> Result<i64> {
        match node.arg(name) {
            None | Some(Argument::None) => Ok(default),
            Some(Argument::Int(v)) => Ok(*v),
            Some(Argument::Bool(v)) => Ok(i64::from(*v)),
            Some(Argument::Var(v)) if matches!(self.program.var(*v).ty, VarType::Int(Size::Int(_))) => {
                match self.program.var(*v).ty {
                    VarType::Int(Size::Int(v)) => Ok(v),
                    _ => Ok(default),
                }
            }
            Some(_) => self.fail(node, format!("`{name}` is no integer that is known")),
        }
    }

    /// A boolean argument that is known; `default` if it is absent.
    pub(crate) fn bool(&self, node: &ExportedNode, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(node, name, i64::from(default))? != 0)
    }

    /// A scalar argument that is known, as a float; `default` if it is absent.
    pub(crate) fn float(&self, node: &ExportedNode, name: &str, default: f64) -> Result<f64> {
        match node.arg(name) {
            None | Some(Argument::None) => Ok(default),
            Some(Argument::Float(v)) => Ok(*v),
            Some(Argument::Int(v)) => Ok(*v as f64),
            Some(Argument::Bool(v)) => Ok(f64::from(u8::from(*v))),
            Some(_) => self.fail(node, format!("`{name}` is no number that is known")),
        }
    }

    /// A list of constant integers; a single integer stands for a list of one. `None` if it is absent.
    pub(crate) fn ints(&self, node: &ExportedNode, name: &str) -> Result<Option<Vec<i64>>> {
        match node.arg(name) {
            None | Some(Argument::None) => Ok(None),
            Some(Argument::Int(v)) => Ok(Some(vec![*v])),
            Some(list) => match list.known_ints() {
                Some(list) => Ok(Some(list)),
                None => self.fail(node, format!("`{name}` is no list of known integers")),
            },
        }
    }

    /// A list of tensors, at least one.
    pub(crate) fn tensors(&self, node: &ExportedNode, name: &str) -> Result<Vec<VarId>> {
        match node.arg(name) {
            Some(Argument::Vars(list)) if list.is_empty() => {
                self.fail(node, format!("`{name}` is an empty list"))
            }
            Some(Argument::Vars(list)) => {
                list.iter().try_for_each(|&v| self.spec(node, v).map(|_| ()))?;
                Ok(list.clone())
            }
            _ => self.fail(node, format!("`{name}` is no list of tensors")),
        }
    }

    /// A dimension of a tensor of this rank; negative ones count from the end. A 0-d tensor has the dimension 0.
    pub(crate) fn dim(&self, node: &ExportedNode, dim: i64, rank: usize) -> Result<usize> {
        let rank = i64::try_from(rank.max(1)).unwrap_or(1);
        match dim {
            d if (0..rank).contains(&d) => Ok(d as usize),
            d if (-rank..0).contains(&d) => Ok((d + rank) as usize),
            d => self.fail(node, format!("{d} is no dimension of {rank}")),
        }
    }

    /// A list of dimensions; all of them if it is absent or empty.
    pub(crate) fn dims(&self, node: &ExportedNode, name: &str, rank: usize) -> Result<Vec<usize>> {
        match self.ints(node, name)? {
            Some(list) if !list.is_empty() => list.iter().map(|&d| self.dim(node, d, rank)).collect(),
            _ => Ok((0..rank).collect()),
        }
    }

    /// The paddings of a tensor of this rank as (dimension, before, after), from the last dimension to the first.
    pub(crate) fn pads(&self, node: &ExportedNode, rank: usize) -> Result<Vec<(usize, i64, i64)>> {
        let pads = self.ints(node, "pad")?.unwrap_or_default();
        let (pairs, rest) = pads.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() > rank {
            let problem = format!("`pad` has {} numbers for {rank} dimensions", pads.len());
            return self.fail(node, problem);
        }
        Ok(pairs.iter().zip((0..rank).rev()).map(|(&[before, after], dim)| (dim, before, after)).collect())
    }

    /// Fails if a table of constants with as many entries as the product of `counts` is too large to be computed.
    pub(crate) fn check_table_size(&self, node: &ExportedNode, counts: &[usize]) -> Result<()> {
        let entries = counts.iter().try_fold(1usize, |n, &count| n.checked_mul(count));
        let Some(entries) = entries.filter(|&n| n <= MAX_TABLE) else {
            return self.fail(node, format!("it needs a table of more than {MAX_TABLE} constants"));
        };
        match self.program.budget.take("a table of constants", entries.saturating_mul(TABLE_ENTRY_BYTES)) {
            Ok(_) => Ok(()),
            Err(limit) => self.fail(node, limit.to_string()),
        }
    }

    /// Fails if a loop of `steps` steps is too long to be unrolled to about `each` nodes a step.
    pub(crate) fn check_unrolled_size(&self, node: &ExportedNode, steps: i64, each: usize) -> Result<()> {
        let nodes = usize::try_from(steps.max(0)).ok().and_then(|steps| steps.checked_mul(each));
        let Some(nodes) = nodes.filter(|&nodes| nodes <= MAX_NODES) else {
            return self.fail(node, format!("its {steps} steps need more than {MAX_NODES} nodes"));
        };
        match self.program.budget.take("the nodes of its steps", nodes.saturating_mul(NODE_BYTES)) {
            Ok(_) => Ok(()),
            Err(limit) => self.fail(node, limit.to_string()),
        }
    }

    /// A size as an argument: a constant, or a value that is in scope or computed from values in scope.
    pub(crate) fn size_argument(&mut self, node: &ExportedNode, size: &Size) -> Result<IntArgument> {
        match size {
            Size::Int(v) => Ok(IntArgument::Int(*v)),
            Size::Sym(e) => {
                let expr = (**e).clone();
                self.expression_argument(node, &expr)
            }
        }
    }

    fn expression_argument(&mut self, node: &ExportedNode, expr: &SymExpr) -> Result<IntArgument> {
        if let SymExpr::Int(v) = expr {
            return Ok(IntArgument::Int(*v));
        }
        if let Some(&var) = self.scope.ints.get(expr) {
            return Ok(IntArgument::Var(var));
        }
        let var = match expr {
            SymExpr::Symbol(name) => {
                let Some(&(tensor, dim)) = self.scope.dims.get(name) else {
                    self.attempt.lacks_size = true;
                    return self.fail(node, format!("nothing before it has the size `{name}`"));
                };
                let args = vec![("self", Argument::Var(tensor)), ("dim", Argument::Int(dim as i64))];
                self.emit_many("aten.sym_size.int", args, vec![VarType::Int(Size::symbol(Arc::clone(name)))])
                    [0]
            }
            SymExpr::Op(op, operands) => {
                let mut operands = operands.iter();
                let Some(first) = operands.next() else { return self.fail(node, "a size of nothing") };
                let mut value = self.expression_argument(node, first)?;
                let mut so_far = first.simplify();
                for next in operands {
                    let with = self.expression_argument(node, next)?;
                    so_far = so_far.combine(*op, &next.simplify());
                    value = IntArgument::Var(self.int_operation(node, *op, value, with, so_far.clone())?);
                }
                match value {
                    IntArgument::Var(v) => v,
                    known => return Ok(known),
                }
            }
            SymExpr::Int(_) => return self.fail(node, "a known size"),
        };
        self.attempt.ints.push(expr.clone());
        self.scope.ints.insert(expr.clone(), var);
        Ok(IntArgument::Var(var))
    }

    fn int_operation(
        &mut self,
        node: &ExportedNode,
        op: SymOp,
        a: IntArgument,
        b: IntArgument,
        result: Size,
    ) -> Result<VarId> {
        let target = match op {
            SymOp::Add => "_operator.add",
            SymOp::Mul => "_operator.mul",
            SymOp::FloorDiv => "_operator.floordiv",
            SymOp::Mod => "_operator.mod",
            SymOp::Max => "torch.sym_max",
            SymOp::Min => "torch.sym_min",
            SymOp::CeilDiv | SymOp::Pow => {
                return self
                    .fail(node, format!("the size `{result}` cannot be computed from those before it"));
            }
        };
        let arg = |i: IntArgument| match i {
            IntArgument::Int(v) => Argument::Int(v),
            IntArgument::Var(v) => Argument::Var(v),
        };
        let args = vec![("a", arg(a)), ("b", arg(b))];
        Ok(self.emit_many(target, args, vec![VarType::Int(result)])[0])
    }

    /// Sizes as an argument of a view. A single dynamic size is passed as -1, which the kernel infers.
    pub(crate) fn view_sizes_argument(&mut self, node: &ExportedNode, sizes: &[Size]) -> Result<Argument> {
        let unknown = sizes.iter().filter(|s| s.known().is_none()).count();
        let empty = sizes.contains(&Size::Int(0));
        if unknown == 1 && !empty {
            return Ok(Argument::ints(&sizes.iter().map(|s| s.known().unwrap_or(-1)).collect::<Vec<_>>()));
        }
        self.sizes_argument(node, sizes)
    }

    /// Sizes as an argument.
    pub(crate) fn sizes_argument(&mut self, node: &ExportedNode, sizes: &[Size]) -> Result<Argument> {
        Ok(Argument::Ints(sizes.iter().map(|s| self.size_argument(node, s)).collect::<Result<_>>()?))
    }
}
