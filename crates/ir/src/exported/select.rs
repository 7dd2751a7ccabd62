//! Which operator of a registry a node calls, and what stands at each of its arguments.

use super::{Argument, ExportedNode, ExportedProgram, VarType};
use operator::{Arg, ArgType, Kernel, KernelRegistry, Schema, SchemaArg, closest};
use std::collections::HashMap;
use std::sync::Arc;

/// The operators that nodes of a program may become calls of.
pub struct Callable {
    by_base: HashMap<String, Vec<Arc<dyn Kernel>>>,
}

/// What stands at a position of a call.
#[derive(Debug, Clone)]
pub enum Slot {
    /// An argument of the node.
    Given(Argument),
    /// The default of the schema, as it spells it; `None` where there is none.
    Default(Option<String>),
    /// Results of the node: the first, and how many.
    Out(usize, usize),
}

/// The operator that a node becomes.
pub struct Selection {
    /// Its kernel.
    pub kernel: Arc<dyn Kernel>,
    /// What stands at each position of its schema.
    pub slots: Vec<Slot>,
}

impl Callable {
    /// The operators of a registry whose names are kept.
    pub fn of(registry: &KernelRegistry, keep: impl Fn(&str) -> bool) -> Self {
        let mut by_base: HashMap<String, Vec<Arc<dyn Kernel>>> = HashMap::new();
        for name in registry.names().into_iter().filter(|name| keep(name)) {
            if let Some(kernel) = registry.get(name) {
                let base = name.split('.').next().unwrap_or(name).to_owned();
                by_base.entry(base).or_default().push(kernel);
            }
        }
        Self { by_base }
    }

    /// A kernel by its full name, `aten::add.out`.
    pub fn kernel(&self, name: &str) -> Option<&Arc<dyn Kernel>> {
        let of_base = self.by_base.get(name.split('.').next()?)?;
        of_base.iter().find(|kernel| kernel.schema().name == name)
    }

    /// The operator that takes a node's arguments, if there is one.
    pub fn select(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        let (base, overload) = base_of(&node.target);
        let copies = format!("{base}_copy");
        let kernels =
            [base.as_str(), copies.as_str()].into_iter().filter_map(|b| self.by_base.get(b)).flatten();
        let fitting = kernels.filter_map(|kernel| {
            let slots = slots(program, node, kernel.schema())?;
            let declared = kernel.schema().name.split_once('.').map_or("", |(_, o)| o);
            Some((rank(declared, overload), Selection { kernel: Arc::clone(kernel), slots }))
        });
        fitting.min_by_key(|(rank, _)| *rank).map(|(_, selection)| selection)
    }

    /// Why nothing takes a node: what is like it.
    pub fn hint(&self, node: &ExportedNode) -> String {
        let (base, _) = base_of(&node.target);
        let of_base = |b: &str| self.by_base.get(b).into_iter().flatten();
        let same: Vec<String> = of_base(&base)
            .chain(of_base(&format!("{base}_copy")))
            .map(|k| format!("`{}`", k.schema()))
            .collect();
        if !same.is_empty() {
            return format!("; its arguments fit none of {}", same.join(", "));
        }
        let near = closest(&base, self.by_base.keys().map(String::as_str));
        match near.as_slice() {
            [] => String::new(),
            near => {
                let near: Vec<String> = near.iter().map(|n| format!("`{n}`")).collect();
                format!("; there is {}", near.join(", "))
            }
        }
    }
}

impl Argument {
    /// The default of an argument of a schema, which spells it as `text`.
    pub fn of_default(text: Option<&str>, declared: &SchemaArg) -> Self {
        match Arg::of_default(text, declared) {
            Arg::Bool(v) => Self::Bool(v),
            Arg::Ints(list) => Self::ints(&list),
            Arg::Int(v) => Self::Int(v),
            Arg::Double(v) => Self::Float(v),
            Arg::Str(text) => Self::Str(text.to_owned()),
            _ => Self::None,
        }
    }
}

/// Namespace and name as registries spell them, and the overload.
fn base_of(target: &str) -> (String, &str) {
    let mut parts = target.splitn(3, '.');
    let (namespace, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let overload = parts.next().unwrap_or_default();
    (format!("{namespace}::{name}"), if overload == "default" { "" } else { overload })
}

/// How well the overload of an operator with outs suits that of a node; less is better.
fn rank(declared: &str, overload: &str) -> u8 {
    if declared == format!("{overload}_out")
        || (overload.is_empty() && declared == "out")
        || declared == overload
    {
        return 0;
    }
    match declared {
        "out" => 1,
        _ => 2,
    }
}

/// Arguments that say nothing that the out does not say.
fn is_told_by_the_out(name: &str, arg: &Argument) -> bool {
    matches!(arg, Argument::None | Argument::Ignored)
        || matches!(
            name,
            "dtype"
                | "memory_format"
                | "layout"
                | "device"
                | "pin_memory"
                | "non_blocking"
                | "generator"
                | "copy"
                | "implicit"
        )
}

/// The arguments of a node at the positions of a schema, if they fit.
fn slots(program: &ExportedProgram, node: &ExportedNode, schema: &Schema) -> Option<Vec<Slot>> {
    let mut taken = vec![false; node.args.len()];
    let mut slots = Vec::with_capacity(schema.args.len());
    let mut next_out = 0;
    let outs = schema.args.iter().filter(|a| is_out(a)).count();
    for (position, declared) in schema.args.iter().enumerate() {
        if is_out(declared) {
            let count = if declared.list && outs == 1 { node.outputs.len() } else { 1 };
            slots.push(Slot::Out(next_out, count));
            next_out += count;
            continue;
        }
        let named = |(name, _): &(Arc<str>, Argument)| **name == *declared.name;
        let unnamed = || node.args.get(position).is_some_and(|(name, _)| name.is_empty()).then_some(position);
        match node.args.iter().position(named).or_else(unnamed) {
            Some(i) => {
                taken[i] = true;
                let arg = &node.args[i].1;
                if !fits(program, arg, declared) {
                    return None;
                }
                slots.push(Slot::Given(arg.clone()));
            }
            None if declared.default.is_some() || declared.optional => {
                slots.push(Slot::Default(declared.default.clone()));
            }
            None => return None,
        }
    }
    let spare = node.args.iter().zip(taken).filter(|(_, taken)| !taken);
    if spare.into_iter().any(|((name, arg), _)| !is_told_by_the_out(name, arg)) {
        return None;
    }
    let fresh = usize::from(schema.fresh_result().is_some());
    (next_out + fresh == node.outputs.len() || (next_out == 0 && fresh == 0)).then_some(slots)
}

fn is_out(arg: &SchemaArg) -> bool {
    arg.written && arg.name != "self"
}

fn fits(program: &ExportedProgram, arg: &Argument, declared: &SchemaArg) -> bool {
    let ty_of = |arg: &Argument| arg.var().map(|v| &program.var(v).ty);
    match (arg, declared.ty) {
        (Argument::None, _) => declared.optional || declared.ty == ArgType::Generator,
        (Argument::Ignored, ty) => matches!(ty, ArgType::Layout | ArgType::Device),
        (Argument::Vars(list), ArgType::Tensor) => {
            declared.list && list.iter().all(|&v| program.spec(v).is_some())
        }
        (Argument::OptionalVars(_), ArgType::Tensor) => declared.list && declared.optional,
        (Argument::Ints(_), ArgType::Int) => declared.list,
        (Argument::Floats(_), ArgType::Float) => declared.list,
        (Argument::Bools(_), ArgType::Bool) => declared.list,
        (Argument::Int(_), ArgType::Int) => true,
        _ if declared.list => false,
        (_, ArgType::Tensor) => matches!(ty_of(arg), Some(VarType::Tensor(_))),
        (Argument::Int(_) | Argument::Float(_) | Argument::Bool(_), ArgType::Scalar) => true,
        (Argument::Float(_) | Argument::Int(_), ArgType::Float) => true,
        (Argument::Bool(_) | Argument::Int(0 | 1), ArgType::Bool) => true,
        (Argument::Str(_), ArgType::Str) => true,
        (Argument::Dtype(_) | Argument::Int(_), ArgType::ScalarType) => true,
        (Argument::MemoryFormat(_) | Argument::Int(_), ArgType::MemoryFormat) => true,
        (Argument::Var(_), ArgType::Int) => matches!(ty_of(arg), Some(VarType::Int(_))),
        (Argument::Var(_), ArgType::Float) => matches!(ty_of(arg), Some(VarType::Float | VarType::Int(_))),
        (Argument::Var(_), ArgType::Bool) => matches!(ty_of(arg), Some(VarType::Bool)),
        (Argument::Var(_), ArgType::Scalar) => {
            matches!(ty_of(arg), Some(VarType::Int(_) | VarType::Float | VarType::Bool))
        }
        _ => false,
    }
}
