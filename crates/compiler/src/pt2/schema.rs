//! The JSON schema of a model, PyTorch's `torch/_export/serde/schema.py`, as far as it is used.

use serde::{Deserialize, Deserializer};
use std::collections::HashMap;

#[derive(Deserialize)]
pub(super) struct Model {
    pub(super) graph_module: GraphModule,
    #[serde(default)]
    pub(super) range_constraints: HashMap<String, Range>,
}

#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

#[derive(Deserialize)]
pub(super) struct Range {
    pub(super) min_val: Option<i64>,
    pub(super) max_val: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct GraphModule {
    pub(super) graph: Graph,
    pub(super) signature: Signature,
    #[serde(default)]
    pub(super) module_call_graph: Vec<ModuleCall>,
}

#[derive(Deserialize)]
pub(super) struct ModuleCall {
    pub(super) fqn: String,
    pub(super) signature: Option<ModuleSignature>,
}

#[derive(Deserialize)]
pub(super) struct ModuleSignature {
    pub(super) in_spec: String,
    pub(super) out_spec: String,
    /// The arguments of `forward`, keyword arguments last. PyTorch writes them since 2.6.
    #[serde(default)]
    pub(super) forward_arg_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
pub(super) struct Signature {
    pub(super) input_specs: Vec<InputSpec>,
    pub(super) output_specs: Vec<OutputSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec {
    UserInput {},
    Parameter { parameter_name: String },
    Buffer { buffer_name: String },
    TensorConstant { tensor_constant_name: String },
    CustomObj { custom_obj_name: String },
    ConstantInput { name: String, value: Argument },
    Token {},
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutputSpec {
    UserOutput {},
    LossOutput {},
    BufferMutation { buffer_name: String },
    ParameterMutation { parameter_name: String },
    UserInputMutation { user_input_name: String },
    GradientToParameter { parameter_name: String },
    GradientToUserInput { user_input_name: String },
    Token {},
}

#[derive(Deserialize)]
pub(super) struct Graph {
    pub(super) inputs: Vec<Argument>,
    pub(super) outputs: Vec<Argument>,
    pub(super) nodes: Vec<Node>,
    #[serde(default)]
    pub(super) tensor_values: HashMap<String, TensorMeta>,
    #[serde(default)]
    pub(super) sym_int_values: HashMap<String, SymInt>,
}

#[derive(Deserialize)]
pub(super) struct Node {
    pub(super) target: String,
    pub(super) inputs: Vec<NamedArgument>,
    pub(super) outputs: Vec<Argument>,
    #[serde(default)]
    pub(super) metadata: HashMap<String, String>,
}

#[derive(Deserialize)]
pub(super) struct NamedArgument {
    #[serde(default)]
    pub(super) name: String,
    pub(super) arg: Argument,
}

#[derive(Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct NestedGraph {
    pub(super) graph: Graph,
}

#[derive(Deserialize)]
#[expect(clippy::enum_variant_names, reason = "the names of the schema")]
#[serde(rename_all = "snake_case")]
pub(super) enum Argument {
    AsNone(serde::de::IgnoredAny),
    AsTensor(Named),
    AsTensors(Vec<Named>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsString(String),
    AsStrings(Vec<String>),
    AsSymInt(SymArgument),
    AsSymInts(Vec<SymArgument>),
    AsSymFloat(SymArgument),
    AsSymFloats(Vec<SymArgument>),
    AsSymBool(SymArgument),
    AsSymBools(Vec<SymArgument>),
    AsScalarType(u32),
    AsMemoryFormat(u32),
    AsLayout(serde::de::IgnoredAny),
    AsDevice(serde::de::IgnoredAny),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsGraph(Box<NestedGraph>),
    AsOptionalTensor(OptionalTensor),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsCustomObj(Named),
    AsOperator(String),
    AsComplex(Complex),
    AsNestedTensors(serde::de::IgnoredAny),
    AsIntLists(serde::de::IgnoredAny),
    AsFloatLists(serde::de::IgnoredAny),
    AsStringToArgument(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
pub(super) struct Complex {
    pub(super) real: Float,
    pub(super) imag: Float,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OptionalTensor {
    AsTensor(Named),
    AsNone(serde::de::IgnoredAny),
}

/// A scalar argument or list element: a value of the graph, or a constant.
#[derive(Deserialize)]
#[expect(clippy::enum_variant_names, reason = "the names of the schema")]
#[serde(rename_all = "snake_case")]
pub(super) enum SymArgument {
    AsName(String),
    AsInt(i64),
    AsFloat(Float),
    AsBool(bool),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymInt {
    AsInt(i64),
    AsExpr(Expression),
}

#[derive(Deserialize)]
pub(super) struct Expression {
    pub(super) expr_str: String,
    pub(super) hint: Option<Hint>,
}

/// The value of an expression when the model was exported.
#[derive(Deserialize)]
pub(super) struct Hint {
    pub(super) as_int: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct TensorMeta {
    pub(super) dtype: u32,
    pub(super) sizes: Vec<SymInt>,
    pub(super) strides: Vec<SymInt>,
    pub(super) storage_offset: SymInt,
}

/// A floating-point number. The JSON has infinities and NaN as strings.
pub(super) struct Float(pub(super) f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        let value = match Written::deserialize(deserializer)? {
            Written::Number(v) => v,
            Written::Text(text) => match text.as_str() {
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                "NaN" => f64::NAN,
                other => return Err(serde::de::Error::custom(format!("`{other}` is no number"))),
            },
        };
        Ok(Self(value))
    }
}

/// Where the tensors of a model are stored: `weights_config.json`, `constants_config.json`.
#[derive(Deserialize, Default)]
pub(super) struct PayloadConfig {
    pub(super) config: HashMap<String, Payload>,
}

#[derive(Deserialize)]
pub(super) struct Payload {
    pub(super) path_name: String,
    #[serde(default)]
    pub(super) use_pickle: bool,
    pub(super) tensor_meta: Option<TensorMeta>,
}
