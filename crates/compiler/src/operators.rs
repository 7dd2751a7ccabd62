//! Which operators a compiled program may call, and which of them a node becomes.

use ir::exported::{Argument, ExportedNode, ExportedProgram, IntArgument, VarType};
use operator::{ArgType, Kernel, KernelRegistry, Schema, SchemaArg, closest};
use std::collections::HashMap;
use std::sync::Arc;

/// The operators of ExecuTorch 1.5's portable, optimized and primitive kernels: what a program may call that is to
/// run on the reference runtime too.
const PORTABLE: &str = include_str!("portable_operators.txt");

/// The operators that a compiled program may call.
pub struct OperatorTable {
    by_base: HashMap<String, Vec<Arc<dyn Kernel>>>,
    /// Whether what the reference's kernels refuse is refused, too.
    is_portable: bool,
}

/// What stands at a position of a call.
#[derive(Debug, Clone)]
pub(crate) enum Slot {
    /// An argument of the node.
    Given(Argument),
    /// The default of the schema, as it spells it; `None` where there is none.
    Default(Option<String>),
    /// Results of the node: the first, and how many.
    Out(usize, usize),
}

/// The operator that a node becomes.
pub(crate) struct Selection {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) slots: Vec<Slot>,
}

impl OperatorTable {
    /// Every operator of a registry.
    pub fn all(registry: &KernelRegistry) -> Self {
        Self::filtered(registry, |_| true)
    }

    /// The operators of a registry that the reference runtime has too, and those of namespaces that it knows
    /// nothing of, which somebody registers there.
    pub fn portable(registry: &KernelRegistry) -> Self {
        let known: std::collections::HashSet<&str> = PORTABLE.lines().collect();
        let own = ["aten::", "executorch_prim::", "dim_order_ops::", "et_copy::", "llama::"];
        let keep = |name: &str| known.contains(name) || !own.iter().any(|o| name.starts_with(o));
        Self { is_portable: true, ..Self::filtered(registry, keep) }
    }

    fn filtered(registry: &KernelRegistry, keep: impl Fn(&str) -> bool) -> Self {
        let mut table = Self { by_base: HashMap::new(), is_portable: false };
        for name in registry.names().into_iter().filter(|name| keep(name)) {
            if let Some(kernel) = registry.get(name) {
                let base = name.split('.').next().unwrap_or(name).to_owned();
                table.by_base.entry(base).or_default().push(kernel);
            }
        }
        table
    }

    /// A kernel by its full name, `aten::add.out`.
    pub(crate) fn kernel(&self, name: &str) -> Option<Arc<dyn Kernel>> {
        let of_base = self.by_base.get(name.split('.').next()?)?;
        of_base.iter().find(|kernel| kernel.schema().name == name).cloned()
    }

    /// The operator that takes a node's arguments, if there is one.
    pub(crate) fn select(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        if self.is_portable && is_refused_by_the_reference(program, node) {
            return None;
        }
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
    pub(crate) fn hint(&self, node: &ExportedNode) -> String {
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

/// Arguments that a kernel of the reference does not take, although its schema does.
fn is_refused_by_the_reference(program: &ExportedProgram, node: &ExportedNode) -> bool {
    let rank =
        |name: &str| node.arg(name).and_then(Argument::var).and_then(|v| program.spec(v)).map(|s| s.rank());
    match &*node.target {
        "aten._fft_r2c.default" => matches!(node.arg("onesided"), Some(Argument::Bool(false))),
        // Images and signals, no volumes.
        "aten.convolution.default" => rank("input").is_some_and(|r| r > 4),
        _ => false,
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

/// The integer of a list, for those who fill lists.
pub(crate) fn int_argument(int: IntArgument) -> Argument {
    match int {
        IntArgument::Int(v) => Argument::Int(v),
        IntArgument::Var(v) => Argument::Var(v),
    }
}
