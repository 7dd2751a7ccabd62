//! Lifts kernel calls to nodes.

use super::Recovery;
use crate::Result;
use crate::emit::PRIMS;
use crate::names::target_of;
use crate::passes::call_meaning;
use crate::rewrite::broadcast_sizes;
use crate::sizes::{sizes_of, wrap_dim};
use pteron_exported::{Argument, Bounds, ExportedNode, IntArgument, Size, SymOp, TensorSpec, VarId, VarType};
use pteron_format::pte::{EValue, TensorShapeDynamism};
use pteron_operator::facts::Meaning;
use pteron_operator::{ArgType, Kernel, Schema, SchemaArg};
use pteron_tensor::ScalarType;
use std::sync::Arc;

type Args = Vec<(Arc<str>, Argument)>;

/// The primitive operator that makes a view.
pub(super) const ET_VIEW: &str = "executorch_prim::et_view.default";

/// The operator that overwrites a tensor.
pub(super) const COPY: &str = "aten::copy_";

/// The name of a primitive operator on scalars, as current or older programs spell it.
pub(super) fn scalar_primitive(operator: &str) -> Option<&str> {
    let (name, overload) = operator.strip_prefix("executorch_prim::")?.split_once('.')?;
    matches!(overload, "Scalar" | "int").then_some(name)
}

impl Recovery<'_> {
    /// Appends a node to the program.
    pub(super) fn push_node(&mut self, target: &str, args: Args, types: Vec<VarType>) -> Vec<VarId> {
        let mut outputs = Vec::with_capacity(types.len());
        for ty in types {
            outputs.push(self.program.add_var(format!("v{}", self.program.num_vars()), ty));
        }
        self.program.graph.nodes.push(ExportedNode {
            target: target.into(),
            args,
            outputs: outputs.clone(),
            source: Arc::clone(&self.origin),
        });
        outputs
    }

    pub(super) fn lift_call(&mut self, operator: &str, values: &[i32]) -> Result<()> {
        let values: Vec<usize> = values.iter().map(|&v| v as usize).collect();
        if operator == ET_VIEW {
            return self.lift_view(&values);
        }
        let prim = scalar_primitive(operator);
        if let Some(&(target, _)) = PRIMS.iter().find(|(_, known)| Some(*known) == prim) {
            return self.lift_scalar_op(target, &values);
        }
        let Some(kernel) = self.source.operators.kernel(operator) else {
            return self.fail(format_args!("there is no operator `{operator}`"));
        };
        let schema = kernel.schema();
        if values.len() != schema.instruction_args() {
            return self.fail(format_args!("{} values for `{schema}`", values.len()));
        }
        if operator == COPY {
            return self.lift_copy(&values);
        }
        let trailing = schema.args.iter().rev().take_while(|arg| arg.written).count();
        let outs = schema.args.len() - trailing;
        let mut args: Args = Vec::with_capacity(outs);
        let mut in_place = None;
        for (declared, &value) in schema.args[..outs].iter().zip(&values) {
            if declared.written {
                if in_place.is_some() || trailing > 0 || declared.list {
                    return self.fail(format_args!("`{operator}` writes into what it reads"));
                }
                in_place = Some(value);
            }
            let argument = self.schema_argument(declared, value)?;
            args.push((declared.name.as_str().into(), argument));
        }
        match in_place {
            Some(value) => self.lift_in_place(operator, args, value, &values, schema),
            None => self.lift_out_of_place(&*kernel, args, &values[outs..]),
        }
    }

    /// Lifts a call that writes out arguments or returns a result of its own.
    fn lift_out_of_place(&mut self, kernel: &dyn Kernel, args: Args, rest: &[usize]) -> Result<()> {
        let schema = kernel.schema();
        let target = target_of(&schema.name);
        let mut outs = Vec::new();
        for (&value, declared) in rest.iter().zip(schema.args.iter().rev().take_while(|a| a.written)) {
            match &self.plan.values[value] {
                EValue::TensorList(list) if declared.list => outs.extend(list.iter().map(|&v| v as usize)),
                _ => outs.push(value),
            }
        }
        if schema.fresh_result().is_some() {
            outs.extend(rest.last());
        }
        let node = ExportedNode {
            target: target.as_str().into(),
            args,
            outputs: Vec::new(),
            source: Arc::default(),
        };
        let mut types = Vec::with_capacity(outs.len());
        for (i, &out) in outs.iter().enumerate() {
            types.push(self.out_type(out, i, &node, kernel)?);
        }
        let vars = self.push_node(&target, node.args, types);
        for (out, var) in outs.into_iter().zip(vars) {
            self.define_tensor_or_scalar(out, var)?;
        }
        Ok(())
    }

    /// Lifts an in-place call to the functional operator that computes what it writes.
    fn lift_in_place(
        &mut self,
        operator: &str,
        args: Args,
        value: usize,
        values: &[usize],
        schema: &Schema,
    ) -> Result<()> {
        let base = operator.split('.').next().unwrap_or(operator);
        let Some(functional) = base.strip_suffix('_') else {
            return self.fail(format_args!("`{operator}` writes into what it reads"));
        };
        let target = target_of(&operator.replacen(base, functional, 1));
        let current = self.current_value(value)?;
        let ty = self.program.var(current).ty.clone();
        let var = self.push_node(&target, args, vec![ty])[0];
        self.define_or_mutate(value, var)?;
        match values.get(schema.args.len()) {
            Some(&result) if result != value => self.define_tensor_or_scalar(result, var),
            _ => Ok(()),
        }
    }

    /// Lifts a copy. If sizes, type and dim order match, the destination simply has the source's value from then on.
    fn lift_copy(&mut self, values: &[usize]) -> Result<()> {
        let &[into, from, _, result] = values else { return self.fail("a copy of nothing") };
        let tensor = self.tensor(into)?;
        let source = self.current_value(from)?;
        let spec = self.program.spec(source).cloned();
        let sizes = |spec: &TensorSpec| {
            spec.sizes
                .iter()
                .map(|s| s.bounds(&self.program.ranges).max)
                .eq(tensor.sizes.iter().map(|&n| i64::from(n)))
        };
        let same = spec.is_some_and(|spec| {
            sizes(&spec) && Some(spec.dtype) == tensor.dtype() && *spec.dim_order == *tensor.dim_order
        });
        let var = match same {
            true => source,
            false => {
                let current = self.current_value(into)?;
                let ty = self.program.var(current).ty.clone();
                let args =
                    vec![("self".into(), Argument::Var(current)), ("src".into(), Argument::Var(source))];
                self.push_node("aten.copy.default", args, vec![ty])[0]
            }
        };
        self.define_or_mutate(into, var)?;
        if result == into { Ok(()) } else { self.define(result, var) }
    }

    /// Like [`Self::define`], for a tensor that may be an input of the caller.
    fn define_or_mutate(&mut self, value: usize, var: VarId) -> Result<()> {
        let input = self.plan.inputs.iter().position(|&input| input as usize == value);
        if let Some(input) = input {
            let user: Vec<VarId> = self.program.graph.inputs[..self.plan.inputs.len()].to_vec();
            self.written_inputs.push((value, user[input]));
        }
        self.define(value, var)
    }

    /// Makes `var` the current value of a tensor or scalar.
    pub(super) fn define_tensor_or_scalar(&mut self, value: usize, var: VarId) -> Result<()> {
        match &self.plan.values[value] {
            EValue::Tensor(_) => self.define_or_mutate(value, var),
            _ => {
                self.set_number(value, Argument::Var(var));
                Ok(())
            }
        }
    }

    /// Lifts an instruction that makes a view.
    fn lift_view(&mut self, values: &[usize]) -> Result<()> {
        let &[of, size, out] = values else { return self.fail("a view of nothing") };
        let x = self.current_value(of)?;
        let sizes = self.list_of_ints(size)?;
        let tensor = self.tensor(out)?;
        let mut spec = self.spec_of(tensor)?;
        let node = ExportedNode {
            target: "aten.view.default".into(),
            args: vec![("self".into(), Argument::Var(x)), ("size".into(), Argument::Ints(sizes))],
            outputs: Vec::new(),
            source: Arc::default(),
        };
        if tensor.shape_dynamism != TensorShapeDynamism::Static
            && let Some(sizes) = sizes_of(&self.program, &node, 0)
        {
            self.adopt_sizes(&mut spec, sizes);
        }
        let var = self.push_node(&node.target, node.args, vec![VarType::Tensor(spec)])[0];
        let viewed = self.stored_extent(of);
        self.set_unplaced(out, var, viewed);
        Ok(())
    }

    /// Adopts inferred sizes in `spec` if their upper bounds do not exceed those of the plan.
    fn adopt_sizes(&self, spec: &mut TensorSpec, known: Vec<Size>) {
        let max = |size: &Size| size.bounds(&self.program.ranges).max;
        if known.len() == spec.rank() {
            let fitting = spec.sizes.iter_mut().zip(known).filter(|(size, known)| max(known) <= max(size));
            fitting.for_each(|(size, known)| *size = known);
        }
    }

    /// The type of a result of a call: from the plan, with dynamic sizes inferred from the call.
    fn out_type(
        &mut self,
        value: usize,
        result: usize,
        node: &ExportedNode,
        kernel: &dyn Kernel,
    ) -> Result<VarType> {
        let tensor = match &self.plan.values[value] {
            EValue::Tensor(tensor) => tensor,
            EValue::Double(_) => return Ok(VarType::Float),
            EValue::Bool(_) => return Ok(VarType::Bool),
            _ => return Ok(VarType::Int(self.size_of_dim(node))),
        };
        let mut spec = self.spec_of(tensor)?;
        if tensor.shape_dynamism == TensorShapeDynamism::Static {
            return Ok(VarType::Tensor(spec));
        }
        if let Some(sizes) = sizes_of(&self.program, node, result) {
            self.adopt_sizes(&mut spec, sizes);
        } else if result == 0
            && matches!(call_meaning(&self.program, node, kernel), Some(Meaning::Elementwise(_)))
        {
            let operands = node.operands().filter_map(|v| self.program.spec(v));
            let sizes = operands.map(|s| s.sizes.clone()).reduce(|a, b| broadcast_sizes(&a, &b));
            if let Some(sizes) = sizes.filter(|sizes| sizes.len() == spec.rank()) {
                spec.sizes = sizes;
            }
        }
        Ok(VarType::Tensor(spec))
    }

    /// The size that a `sym_size` node returns; a new unknown size for other nodes.
    fn size_of_dim(&mut self, node: &ExportedNode) -> Size {
        if let ("aten.sym_size.int", Some(x), Some(Argument::Int(dim))) =
            (&*node.target, node.arg("self").and_then(Argument::var), node.arg("dim"))
            && let Some(spec) = self.program.spec(x)
            && let Some(size) = wrap_dim(*dim, spec.rank()).and_then(|dim| spec.sizes.get(dim))
        {
            return size.clone();
        }
        self.unknown_size()
    }

    pub(super) fn unknown_size(&mut self) -> Size {
        self.new_symbol("u", Bounds { min: i64::MIN, max: i64::MAX })
    }

    /// Lifts an operator on scalars.
    fn lift_scalar_op(&mut self, target: &str, values: &[usize]) -> Result<()> {
        let Some((&out, operands)) = values.split_last() else { return self.fail("an operator on nothing") };
        let mut args: Args = Vec::with_capacity(operands.len());
        for &operand in operands {
            args.push(("".into(), self.scalar_argument(operand)?));
        }
        let ty = match &self.plan.values[out] {
            EValue::Double(_) => VarType::Float,
            EValue::Bool(_) => VarType::Bool,
            _ => VarType::Int(self.result_size(target, &args)),
        };
        let var = self.push_node(target, args, vec![ty])[0];
        self.set_number(out, Argument::Var(var));
        Ok(())
    }

    fn result_size(&mut self, target: &str, args: &Args) -> Size {
        let size = |arg: &Argument| match arg {
            Argument::Int(v) => Some(Size::Int(*v)),
            Argument::Var(v) => match &self.program.var(*v).ty {
                VarType::Int(size) => Some(size.clone()),
                _ => None,
            },
            _ => None,
        };
        let [(_, a), (_, b)] = &args[..] else { return self.unknown_size() };
        let op = match target {
            "_operator.add" => SymOp::Add,
            "_operator.sub" => SymOp::Add,
            "_operator.mul" => SymOp::Mul,
            "_operator.floordiv" => SymOp::FloorDiv,
            "_operator.mod" => SymOp::Mod,
            "torch.sym_max" => SymOp::Max,
            "torch.sym_min" => SymOp::Min,
            _ => return self.unknown_size(),
        };
        match (size(a), size(b)) {
            (Some(a), Some(b)) if target == "_operator.sub" => a.add(&b.mul(&Size::Int(-1))),
            (Some(a), Some(b)) => a.combine(op, &b),
            _ => self.unknown_size(),
        }
    }

    /// A scalar of the plan, constant or computed.
    pub(super) fn scalar_argument(&self, value: usize) -> Result<Argument> {
        match self.known_number(value) {
            Some(number) => Ok(number),
            None => self.fail(format_args!("value {value} is no number")),
        }
    }

    pub(super) fn known_number(&self, value: usize) -> Option<Argument> {
        let fixed = || Some(super::scalar_of(self.plan.values.get(value)?)?.0);
        self.now.numbers.get(&value).cloned().or_else(fixed)
    }

    fn list_of_ints(&self, value: usize) -> Result<Vec<IntArgument>> {
        let Some(EValue::IntList(items)) = self.plan.values.get(value) else {
            return self.fail(format_args!("value {value} is no list of integers"));
        };
        let int = |&item: &i64| match self.scalar_argument(item as usize)? {
            Argument::Int(v) => Ok(IntArgument::Int(v)),
            Argument::Var(v) => Ok(IntArgument::Var(v)),
            _ => self.fail(format_args!("value {item} is no integer")),
        };
        items.iter().map(int).collect()
    }

    fn schema_argument(&mut self, declared: &SchemaArg, value: usize) -> Result<Argument> {
        Ok(match &self.plan.values[value] {
            EValue::Tensor(_) => Argument::Var(self.current_value(value)?),
            EValue::TensorList(list) => {
                Argument::Vars(list.iter().map(|&v| self.current_value(v as usize)).collect::<Result<_>>()?)
            }
            EValue::OptionalTensorList(list) => {
                let read = |&v: &i32| usize::try_from(v).ok().map(|v| self.current_value(v)).transpose();
                Argument::OptionalVars(list.iter().map(read).collect::<Result<_>>()?)
            }
            EValue::IntList(_) => Argument::Ints(self.list_of_ints(value)?),
            EValue::DoubleList(list) => Argument::Floats(list.clone()),
            EValue::BoolList(list) => Argument::Bools(list.clone()),
            EValue::Null => Argument::None,
            EValue::Int(number) => match declared.ty {
                ArgType::ScalarType => match i8::try_from(*number).ok().map(ScalarType::from_i8) {
                    Some(Ok(dtype)) => Argument::Dtype(dtype),
                    _ => return self.fail(format_args!("{number} is no type")),
                },
                ArgType::Layout | ArgType::Device | ArgType::MemoryFormat => Argument::Ignored,
                _ => self.scalar_argument(value)?,
            },
            EValue::Bool(_) | EValue::Double(_) | EValue::String(_) => self.scalar_argument(value)?,
        })
    }
}
