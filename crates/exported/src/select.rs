//! Overload resolution: the registered kernel that a node calls, and the argument for each position of its schema.

use super::{Argument, ExportedNode, ExportedProgram, VarType};
use pteron_operator::{Arg, ArgType, Kernel, KernelRegistry, Schema, SchemaArg, closest};
use std::collections::HashMap;
use std::sync::Arc;

/// The operators that the nodes of a program may be lowered to.
#[derive(Clone)]
pub struct Callable {
    by_base: HashMap<String, Vec<Arc<dyn Kernel>>>,
}

/// The argument at a position of a call.
#[derive(Debug, Clone)]
pub enum Slot {
    /// An argument of the node.
    Given(Argument),
    /// The default of the schema, as the schema's text; `None` for an optional argument without a default.
    Default(Option<String>),
    /// Results of the node: the index of the first, and their number.
    Out(usize, usize),
}

/// The kernel selected for a node.
pub struct Selection {
    /// The selected kernel.
    pub kernel: Arc<dyn Kernel>,
    /// The argument for each position of the kernel's schema.
    pub slots: Vec<Slot>,
}

impl Callable {
    /// The operators of a registry whose names satisfy `keep`.
    pub fn from_registry(registry: &KernelRegistry, keep: impl Fn(&str) -> bool) -> Self {
        let mut by_base: HashMap<String, Vec<Arc<dyn Kernel>>> = HashMap::new();
        for name in registry.names().into_iter().filter(|name| keep(name)) {
            if let Some(kernel) = registry.get(name) {
                let base = name.split('.').next().unwrap_or(name).to_owned();
                by_base.entry(base).or_default().push(kernel);
            }
        }
        Self { by_base }
    }

    /// A kernel by its full name, such as `aten::add.out`.
    pub fn kernel(&self, name: &str) -> Option<&Arc<dyn Kernel>> {
        let of_base = self.by_base.get(name.split('.').next()?)?;
        of_base.iter().find(|kernel| kernel.schema().name == name)
    }

    /// The kernel, if any, whose schema accepts the node's arguments and whose overload matches the node's best.
    pub fn select(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        let (base, overload) = split_target(&node.target);
        let copies = format!("{base}_copy");
        let kernels =
            [base.as_str(), copies.as_str()].into_iter().filter_map(|b| self.by_base.get(b)).flatten();
        let fitting = kernels.filter_map(|kernel| {
            let slots = assign_slots(program, node, kernel.schema())?;
            let declared = kernel.schema().name.split_once('.').map_or("", |(_, o)| o);
            Some((overload_rank(declared, overload), Selection { kernel: Arc::clone(kernel), slots }))
        });
        fitting.min_by_key(|(rank, _)| *rank).map(|(_, selection)| selection)
    }

    /// Explains why no kernel accepts a node: lists overloads that do not fit, or operators with similar names.
    pub fn hint(&self, node: &ExportedNode) -> String {
        let (base, _) = split_target(&node.target);
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
    /// Parses the default of a schema argument from the schema's text.
    pub fn from_default(text: Option<&str>, declared: &SchemaArg) -> Self {
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

/// Splits a target into `namespace::name`, as registries spell it, and the overload.
fn split_target(target: &str) -> (String, &str) {
    let mut parts = target.splitn(3, '.');
    let (namespace, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let overload = parts.next().unwrap_or_default();
    (format!("{namespace}::{name}"), if overload == "default" { "" } else { overload })
}

/// How well a kernel's overload matches that of a node; lower is better.
fn overload_rank(declared: &str, overload: &str) -> u8 {
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

/// Whether an argument that a schema lacks may be dropped: the out tensor determines it, or it has no effect.
fn is_implied_by_out(name: &str, arg: &Argument) -> bool {
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

/// Assigns the arguments of a node to the positions of a schema, if they fit.
fn assign_slots(program: &ExportedProgram, node: &ExportedNode, schema: &Schema) -> Option<Vec<Slot>> {
    let mut is_used = vec![false; node.args.len()];
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
                is_used[i] = true;
                let arg = &node.args[i].1;
                if !accepts_argument(program, arg, declared) {
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
    let spare = node.args.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    if spare.into_iter().any(|((name, arg), _)| !is_implied_by_out(name, arg)) {
        return None;
    }
    let fresh = usize::from(schema.fresh_result().is_some());
    (next_out + fresh == node.outputs.len() || (next_out == 0 && fresh == 0)).then_some(slots)
}

fn is_out(arg: &SchemaArg) -> bool {
    arg.written && arg.name != "self"
}

fn accepts_argument(program: &ExportedProgram, arg: &Argument, declared: &SchemaArg) -> bool {
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
