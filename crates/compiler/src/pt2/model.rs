//! One model of an archive: its graph, signature and weights.

use super::archive::Archive;
use super::graph::GraphReader;
use super::schema::{InputSpec, Model, OutputSpec, Signature};
use super::weights::Weights;
use super::{SAVE_ANEW, expression};
use crate::{Error, Result};
use pteron_exported::{
    Argument, Bounds, ExportedProgram, InputKind, Mutation, Ranges, Size, SymExpr, Var, VarId, VarType,
    containers,
};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// The supported major version of the schema.
const SCHEMA_MAJOR: u32 = 8;

pub(super) fn read(archive: &mut Archive<'_>, name: &str) -> Result<ExportedProgram> {
    let model = parse(archive, name)?;
    let record = model_record(name);
    let method = if name == "model" { "forward" } else { name };
    let mut program = ExportedProgram::new(method);
    program.budget = archive.budget().clone();
    program.ranges = read_ranges(&model)?;
    let module = &model.graph_module;
    let mut arguments = Vec::new();
    if let Some(outermost) = module.module_call_graph.iter().find(|m| m.fqn.is_empty()) {
        let signature = outermost.signature.as_ref();
        program.in_spec = signature.map(|s| s.in_spec.clone());
        program.out_spec = signature.map(|s| s.out_spec.clone());
        arguments = signature.and_then(|s| s.forward_arg_names.clone()).unwrap_or_default();
    }

    let mut reader = GraphReader::new(&mut program, &record);
    let (mut graph, scope) = reader.read_outermost(&module.graph)?;
    read_inputs(archive, name, &record, &mut program, &module.signature, &graph.inputs, &scope)?;
    read_mutations(&record, &mut program, &module.signature, &mut graph.outputs, &graph.inputs)?;
    program.graph = graph;
    name_values(&mut program, &arguments);
    program.verify()?;
    Ok(program)
}

/// Names the inputs and outputs of a program by the arguments of `forward` and the keys of its containers. A value that
/// gets no name this way keeps its name in the exported graph; an output that is the new value of an input has the
/// input's name.
fn name_values(program: &mut ExportedProgram, arguments: &[String]) {
    let var_name = |var: VarId| Some(program.var(var).name.to_string());
    let passed = program.graph.inputs.iter().zip(&program.inputs);
    let passed = passed.filter(|(_, kind)| matches!(kind, InputKind::User | InputKind::Fixed(_)));
    let inputs: Vec<_> = passed.map(|(&input, _)| var_name(input)).collect();
    let outputs: Vec<_> =
        program.graph.outputs.iter().map(|output| output.var().and_then(var_name)).collect();
    let by_argument = program.in_spec.as_deref().and_then(|spec| containers::input_names(spec, arguments));
    let by_key = program.out_spec.as_deref().and_then(containers::output_names);
    program.input_names = merge_names(inputs, by_argument);
    // The new values of inputs come before the model's own outputs.
    program.output_names = merge_names(outputs, by_key);
}

/// Merges `by` into `names`: a shorter list names the last values; absent entries keep the old names.
fn merge_names(mut names: Vec<Option<String>>, by: Option<Vec<Option<String>>>) -> Vec<Option<String>> {
    if let Some(by) = by
        && let Some(first) = names.len().checked_sub(by.len())
    {
        let both = names[first..].iter_mut().zip(by);
        both.for_each(|(name, by)| *name = by.or_else(|| name.take()));
    }
    names
}

fn model_record(name: &str) -> String {
    format!("models/{name}.json")
}

/// Parses the JSON of a model.
pub(super) fn parse(archive: &mut Archive<'_>, name: &str) -> Result<Model> {
    let record = model_record(name);
    let text = archive.read_text(&record)?;
    check_version(text.bytes(), &record)?;
    archive.read_json(&record)
}

/// Fails if the schema's version is not supported. Parses only the version: other schemas may differ in the rest.
fn check_version(text: &[u8], record: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct VersionOnly {
        schema_version: super::schema::Version,
    }
    let only: VersionOnly =
        serde_json::from_slice(text).map_err(|e| Error::archive(record, e.to_string()))?;
    let version = only.schema_version;
    if version.major == SCHEMA_MAJOR {
        return Ok(());
    }
    let problem =
        format!("schema version {}.{} where {SCHEMA_MAJOR}.x is read", version.major, version.minor);
    Err(Error::archive_with_help(record, problem, SAVE_ANEW))
}

fn read_ranges(model: &Model) -> Result<Ranges> {
    let mut ranges = Ranges::new();
    for (symbol, range) in &model.range_constraints {
        let min = range.min_val.unwrap_or(0).max(0);
        // PyTorch writes its largest integer, or one less, for a symbol without an upper bound.
        let max = range.max_val.filter(|&max| max < i64::MAX / 2).unwrap_or(i64::MAX);
        let key: Arc<str> = match expression::parse(symbol) {
            Ok(Size::Sym(e)) => match &*e {
                SymExpr::Symbol(name) => Arc::clone(name),
                _ => symbol.as_str().into(),
            },
            _ => symbol.as_str().into(),
        };
        ranges.insert(key, Bounds { min, max });
    }
    Ok(ranges)
}

fn read_inputs(
    archive: &mut Archive<'_>,
    name: &str,
    record: &str,
    program: &mut ExportedProgram,
    signature: &Signature,
    inputs: &[VarId],
    fixed: &HashMap<VarId, Argument>,
) -> Result<()> {
    let (specs, count) = (&signature.input_specs, inputs.len());
    if specs.len() != count {
        let problem = format!("{} input_specs for {count} inputs", specs.len());
        return Err(Error::archive(record, problem));
    }
    let mut weights = Weights::open(archive, name)?;
    for (&input, spec) in inputs.iter().zip(specs) {
        let (kind, key) = match spec {
            InputSpec::UserInput {} => match fixed.get(&input) {
                Some(value) => (InputKind::Fixed(value.clone()), None),
                None if program.spec(input).is_some() => (InputKind::User, None),
                None => return Err(no_tensor_error(record, program.var(input))),
            },
            InputSpec::ConstantInput { name, value } => {
                let value = super::graph::fixed_argument(value);
                let value =
                    value.ok_or_else(|| Error::archive(record, format!("input `{name}` has no value")))?;
                program.var_mut(input).name = name.as_str().into();
                (InputKind::Fixed(value), None)
            }
            InputSpec::Parameter { parameter_name } => (InputKind::Parameter, Some(parameter_name)),
            InputSpec::Buffer { buffer_name } => (InputKind::Buffer, Some(buffer_name)),
            InputSpec::TensorConstant { tensor_constant_name } => {
                (InputKind::Constant, Some(tensor_constant_name))
            }
            InputSpec::CustomObj { custom_obj_name } => {
                let problem =
                    format!("the input `{custom_obj_name}` is a script object, which is pickled code");
                return Err(Error::archive_with_help(record, problem, "replace it by tensors and operators"));
            }
            InputSpec::Token {} => {
                program.var_mut(input).ty = VarType::Opaque;
                (InputKind::Token, None)
            }
        };
        if let Some(key) = key {
            let (constant, dim_order) = weights.load(archive, key, program.spec(input))?;
            if let VarType::Tensor(spec) = &mut program.var_mut(input).ty {
                spec.dim_order = dim_order;
            }
            program.constants.insert(input, constant);
        }
        program.inputs.push(kind);
    }
    Ok(())
}

/// The error for an input that is neither a tensor nor fixed when the model was exported.
fn no_tensor_error(record: &str, input: &Var) -> Error {
    let what = match input.ty {
        VarType::Opaque => "a script object",
        _ => "a number that varies, and a program's numbers are fixed",
    };
    let problem = format!("the input `{}` is {what}", input.name);
    Error::archive_with_help(
        record,
        problem,
        "pass it as a tensor, or export the model with a constant in its place",
    )
}

/// Resolves the outputs that the model writes back to its inputs. State is written back at run time: a mutation. What
/// is written to an input of the caller is returned, before the model's own outputs.
fn read_mutations(
    record: &str,
    program: &mut ExportedProgram,
    signature: &Signature,
    outputs: &mut Vec<Argument>,
    inputs: &[VarId],
) -> Result<()> {
    if signature.output_specs.len() != outputs.len() {
        let problem = format!("{} output_specs for {} outputs", signature.output_specs.len(), outputs.len());
        return Err(Error::archive(record, problem));
    }
    let targets = Targets::from_signature(signature, program, inputs);
    let (mut returned, mut own) = (Vec::new(), Vec::with_capacity(outputs.len()));
    for (output, spec) in std::mem::take(outputs).into_iter().zip(&signature.output_specs) {
        let (kind, key, input) = match spec {
            OutputSpec::UserOutput {} | OutputSpec::LossOutput {} => {
                own.push(output);
                continue;
            }
            OutputSpec::Token {} => continue,
            OutputSpec::BufferMutation { buffer_name: key } => ("buffer", key, targets.buffers.get(&**key)),
            OutputSpec::ParameterMutation { parameter_name: key } => {
                ("parameter", key, targets.parameters.get(&**key))
            }
            OutputSpec::UserInputMutation { user_input_name: key } => {
                ("user input", key, targets.user_inputs.get(&**key))
            }
            OutputSpec::GradientToParameter { parameter_name: key }
            | OutputSpec::GradientToUserInput { user_input_name: key } => {
                let help = "export the forward pass, or train with `TrainingModule`";
                return Err(Error::archive_with_help(
                    record,
                    format!("an output is the gradient of `{key}`"),
                    help,
                ));
            }
        };
        match (input, output.var()) {
            (Some(&input), Some(value)) if kind != "user input" => {
                program.mutations.push(Mutation { input, value });
            }
            (Some(_), Some(_)) => returned.push(output),
            (Some(_), None) => {
                let problem = format!("the new value of the {kind} `{key}` is no tensor");
                return Err(Error::archive(record, problem));
            }
            (None, _) => {
                let problem = format!("an output is written to the {kind} `{key}`, which is not there");
                return Err(Error::archive(record, problem));
            }
        }
    }
    returned.append(&mut own);
    *outputs = returned;
    Ok(())
}

/// The inputs that outputs may be written back to, by the names that the signature gives them.
struct Targets {
    parameters: HashMap<String, VarId>,
    buffers: HashMap<String, VarId>,
    user_inputs: HashMap<String, VarId>,
}

impl Targets {
    fn from_signature(signature: &Signature, program: &ExportedProgram, inputs: &[VarId]) -> Self {
        let mut targets =
            Self { parameters: HashMap::new(), buffers: HashMap::new(), user_inputs: HashMap::new() };
        for (&input, spec) in inputs.iter().zip(&signature.input_specs) {
            let (named, key) = match spec {
                InputSpec::Parameter { parameter_name } => (&mut targets.parameters, parameter_name.clone()),
                InputSpec::Buffer { buffer_name } => (&mut targets.buffers, buffer_name.clone()),
                InputSpec::UserInput {} => (&mut targets.user_inputs, program.var(input).name.to_string()),
                _ => continue,
            };
            named.insert(key, input);
        }
        targets
    }
}
