//! Resolves an operator by name and assigns the arguments of a call to its schema.

use crate::names::target_of;
use pteron_exported::{Argument, ExportedProgram, IntArgument, MemoryFormat, VarType};
use pteron_operator::{ArgType, KernelRegistry, Schema, SchemaArg, closest, did_you_mean};
use pteron_tensor::ScalarType;
use std::collections::HashMap;
use std::sync::Arc;

/// PyTorch's schemas of operators that the compiler decomposes and for which there is no kernel.
const COMPOSITES: &str = include_str!("composites.txt");

/// Operators without an overload whose results have the type that their argument `dtype` names. The schemas of their
/// kernels lack that argument, because the out tensor determines it.
const TYPED: &[&str] = &[
    "_to_copy",
    "_to_dim_order_copy",
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "scalar_tensor",
    "zeros",
    "zeros_like",
];

/// The operators that a graph may call.
pub(super) struct Signatures {
    /// The overloads of each operator, by namespace and name: `aten.add`.
    by_base: HashMap<String, Vec<Signature>>,
}

/// An overload of an operator.
struct Signature {
    /// The overload's name in exported programs, such as `aten.add.Tensor`.
    target: String,
    schema: Arc<Schema>,
}

/// A call whose arguments have been assigned to the arguments of a schema.
pub(super) struct BoundCall {
    /// The operator's name in exported programs.
    pub(super) target: String,
    /// The operator's schema.
    pub(super) schema: Arc<Schema>,
    /// The arguments in the schema's order, without arguments that are equal to their default.
    pub(super) args: Vec<(Arc<str>, Argument)>,
}

impl Signatures {
    /// Collects the signatures of a registry's operators, without in-place and `executorch_prim` ones, and of
    /// [`COMPOSITES`].
    pub(super) fn from_registry(registry: &KernelRegistry) -> Self {
        let mut all = Self { by_base: HashMap::new() };
        for kernel in registry.names().into_iter().filter_map(|name| registry.get(name)) {
            let schema = kernel.schema();
            if !schema.name.starts_with("executorch_prim::") && !is_in_place(schema) {
                all.add(target_of(&schema.name), Arc::new(schema.clone()));
            }
        }
        for schema in COMPOSITES.lines().filter_map(|line| Schema::parse(line).ok()) {
            all.add(target_of(&schema.name), Arc::new(schema));
        }
        all
    }

    fn add(&mut self, target: String, schema: Arc<Schema>) {
        let (base, _) = split_operator(&target);
        let (kernel, _) = split_operator(&schema.name);
        if kernel != base {
            let (target, schema) = (target.clone(), Arc::clone(&schema));
            self.by_base.entry(kernel).or_default().push(Signature { target, schema });
        }
        self.by_base.entry(base).or_default().push(Signature { target, schema });
    }

    /// The best overload that takes the arguments.
    ///
    /// # Errors
    /// There is no such operator, or why its overloads do not take the arguments.
    pub(super) fn bind(
        &self,
        program: &ExportedProgram,
        operator: &str,
        args: &[Argument],
        named: &[(&str, Argument)],
    ) -> Result<BoundCall, String> {
        let (base, overload) = split_operator(operator);
        let Some(all) = self.by_base.get(&base) else { return Err(self.unknown_operator(&base)) };
        let chosen = |signature: &&Signature| overload.is_none_or(|overload| signature.is_named(overload));
        if !all.iter().any(|signature| chosen(&signature)) {
            let known: Vec<&str> = all.iter().map(|signature| signature.target.as_str()).collect();
            return Err(format!("there is no such overload; there is {}", known.join(", ")));
        }
        let mut problems = Vec::new();
        let mut best: Option<(u8, BoundCall)> = None;
        for signature in all.iter().filter(chosen) {
            let Signature { target, schema } = signature;
            match assign_arguments(program, schema, args, named) {
                Ok(args) => {
                    let rank = signature.preference();
                    if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                        best = Some((
                            rank,
                            BoundCall { target: target.clone(), schema: Arc::clone(schema), args },
                        ));
                    }
                }
                Err(problem) => problems.push(format!("{problem} (`{schema}`)")),
            }
        }
        best.map(|(_, bound)| bound).ok_or_else(|| problems.join("; "))
    }

    fn unknown_operator(&self, base: &str) -> String {
        match closest(base, self.by_base.keys().map(String::as_str)).as_slice() {
            [] => "there is neither a kernel for it nor a schema by which it could be decomposed".to_owned(),
            near => {
                let near: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
                format!("there is no such operator; there is {}", near.join(", "))
            }
        }
    }
}

impl Signature {
    /// Whether `overload` names this overload, as exporters or as kernels spell it.
    fn is_named(&self, overload: &str) -> bool {
        split_operator(&self.target).1 == Some(overload)
            || split_operator(&self.schema.name).1 == Some(overload)
    }

    /// The preference among overloads that take the same arguments; lower is better.
    fn preference(&self) -> u8 {
        match split_operator(&self.schema.name).1 {
            None | Some("out") => 0,
            Some("Tensor_out" | "Tensor_Tensor_out" | "int_out" | "self_out" | "IntList_out") => 1,
            Some(_) => 2,
        }
    }
}

/// Splits `aten.add.Tensor` or `aten::add.out` into `aten.add` and the overload.
fn split_operator(operator: &str) -> (String, Option<&str>) {
    let (namespace, rest) =
        operator.split_once("::").or_else(|| operator.split_once('.')).unwrap_or(("", operator));
    match rest.split_once('.') {
        Some((name, overload)) => (format!("{namespace}.{name}"), Some(overload)),
        None => (format!("{namespace}.{rest}"), None),
    }
}

/// Whether an operator works in place. Out variants, whose written arguments come last, do not count.
fn is_in_place(schema: &Schema) -> bool {
    let outs = schema.args.iter().rev().take_while(|arg| arg.written).count();
    schema.written_args().any(|index| index + outs < schema.args.len()) || outs == schema.args.len()
}

/// Assigns positional and named arguments to a schema.
fn assign_arguments(
    program: &ExportedProgram,
    schema: &Schema,
    args: &[Argument],
    named: &[(&str, Argument)],
) -> Result<Vec<(Arc<str>, Argument)>, String> {
    let declared: Vec<&SchemaArg> = schema.args.iter().filter(|arg| !arg.written).collect();
    if args.len() > declared.len() {
        return Err(format!("it takes {} arguments, not {}", declared.len(), args.len()));
    }
    let mut assigned: Vec<Option<&Argument>> = args.iter().map(Some).collect();
    assigned.resize(declared.len(), None);
    let mut extra = Vec::new();
    for (name, arg) in named {
        match declared.iter().position(|declared| declared.name == *name) {
            Some(index) if assigned[index].is_some() => return Err(format!("`{name}` is given twice")),
            Some(index) => assigned[index] = Some(arg),
            None if *name == "dtype" && is_typed(schema) => extra.push(dtype_by_name(arg)?),
            None => {
                let like = did_you_mean(name, declared.iter().map(|declared| declared.name.as_str()));
                return Err(format!("it has no argument `{name}`{like}"));
            }
        }
    }
    let mut all = Vec::with_capacity(declared.len());
    for (declared, argument) in declared.into_iter().zip(assigned) {
        let may_be_absent = declared.default.is_some() || declared.optional;
        match argument {
            None | Some(Argument::None) if may_be_absent || declared.ty == ArgType::Generator => {}
            None => return Err(format!("`{}` is missing", declared.name)),
            Some(arg) => match convert_argument(program, arg, declared) {
                Some(arg) => all.push((declared.name.as_str().into(), arg)),
                None => return Err(format!("it does not take this `{}`", declared.name)),
            },
        }
    }
    all.extend(extra.into_iter().map(|dtype| ("dtype".into(), dtype)));
    Ok(all)
}

fn is_typed(schema: &Schema) -> bool {
    let (base, _) = split_operator(&schema.name);
    base.split_once('.').is_some_and(|(_, name)| TYPED.contains(&name))
}

/// Converts the name of an element type to the type.
fn dtype_by_name(arg: &Argument) -> Result<Argument, String> {
    match arg {
        Argument::Dtype(dtype) => Ok(Argument::Dtype(*dtype)),
        Argument::Str(name) => match ScalarType::parse(name) {
            Some(dtype) => Ok(Argument::Dtype(dtype)),
            None => Err(format!("there is no type `{name}`")),
        },
        _ => Err("`dtype` is no type".to_owned()),
    }
}

/// Converts an argument to what a schema declares: for example a single number to a list of one, an integer to a float,
/// the name of a type to the type. `None` if the schema does not take it.
fn convert_argument(program: &ExportedProgram, arg: &Argument, declared: &SchemaArg) -> Option<Argument> {
    let value = |arg: &Argument| Some(&program.var(arg.var()?).ty);
    let is_tensor = |arg: &Argument| matches!(value(arg), Some(VarType::Tensor(_)));
    if declared.list {
        return convert_list(program, arg, declared);
    }
    let is_number =
        matches!(arg, Argument::Int(_) | Argument::Float(_) | Argument::Bool(_) | Argument::Complex(..));
    let fits = match declared.ty {
        ArgType::Tensor => is_tensor(arg),
        ArgType::Scalar => {
            is_number || matches!(value(arg), Some(VarType::Int(_) | VarType::Float | VarType::Bool))
        }
        ArgType::Int => matches!(arg, Argument::Int(_)) || matches!(value(arg), Some(VarType::Int(_))),
        ArgType::Float => {
            if let Argument::Int(number) = arg {
                return Some(Argument::Float(*number as f64));
            }
            matches!(arg, Argument::Float(_)) || matches!(value(arg), Some(VarType::Float))
        }
        ArgType::Bool => {
            if let Argument::Int(number @ (0 | 1)) = arg {
                return Some(Argument::Bool(*number == 1));
            }
            matches!(arg, Argument::Bool(_)) || matches!(value(arg), Some(VarType::Bool))
        }
        ArgType::Str => matches!(arg, Argument::Str(_)),
        ArgType::ScalarType => return dtype_by_name(arg).ok(),
        ArgType::MemoryFormat => return memory_format_by_name(arg),
        ArgType::Layout | ArgType::Device => {
            return matches!(arg, Argument::Str(_) | Argument::Ignored).then_some(Argument::Ignored);
        }
        ArgType::Generator => false,
    };
    fits.then(|| arg.clone())
}

/// Converts a list to the list type that a schema declares.
fn convert_list(program: &ExportedProgram, arg: &Argument, declared: &SchemaArg) -> Option<Argument> {
    let is_empty = matches!(arg, Argument::Ints(items) if items.is_empty());
    let are_tensors = || arg.vars().iter().all(|&var| program.spec(var).is_some());
    match (declared.ty, arg) {
        (ArgType::Tensor, Argument::Vars(vars)) if declared.optional && are_tensors() => {
            Some(Argument::OptionalVars(vars.iter().copied().map(Some).collect()))
        }
        (ArgType::Tensor, Argument::Vars(_)) if are_tensors() => Some(arg.clone()),
        (ArgType::Tensor, Argument::OptionalVars(_)) => {
            (declared.optional && are_tensors()).then(|| arg.clone())
        }
        (ArgType::Tensor, _) if is_empty => Some(Argument::Vars(Vec::new())),
        (ArgType::Int, Argument::Int(number)) => Some(Argument::ints(&[*number])),
        (ArgType::Int, Argument::Var(var)) => match program.var(*var).ty {
            VarType::Int(_) => Some(Argument::Ints(vec![IntArgument::Var(*var)])),
            _ => None,
        },
        (ArgType::Int, Argument::Ints(_))
        | (ArgType::Float, Argument::Floats(_))
        | (ArgType::Bool, Argument::Bools(_)) => Some(arg.clone()),
        (ArgType::Int, Argument::Vars(vars)) => {
            let is_int = |var| matches!(program.var(var).ty, VarType::Int(_));
            let all: Option<Vec<_>> =
                vars.iter().map(|&var| is_int(var).then_some(IntArgument::Var(var))).collect();
            all.map(Argument::Ints)
        }
        (ArgType::Float, Argument::Ints(_)) => {
            Some(Argument::Floats(arg.known_ints()?.into_iter().map(|number| number as f64).collect()))
        }
        (ArgType::Float, Argument::Float(number)) => Some(Argument::Floats(vec![*number])),
        (ArgType::Bool, _) if is_empty => Some(Argument::Bools(Vec::new())),
        _ => None,
    }
}

fn memory_format_by_name(arg: &Argument) -> Option<Argument> {
    Some(Argument::MemoryFormat(match arg {
        Argument::MemoryFormat(format) => *format,
        Argument::Str(name) => match name.as_str() {
            "contiguous" => MemoryFormat::Contiguous,
            "channels_last" => MemoryFormat::ChannelsLast,
            "channels_last_3d" => MemoryFormat::ChannelsLast3d,
            "preserve" => MemoryFormat::Preserve,
            _ => return None,
        },
        _ => return None,
    }))
}
