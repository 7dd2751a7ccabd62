//! The messages of the protocol's gRPC service, `inference.GRPCInferenceService`, and of `grpc.health.v1.Health`.
//!
//! Names and numbers of fields follow the protocol's specification, with one exception: `contents` of an inference
//! request is declared as bytes, which have the same wire format, so that it is decoded only once the tensor's type is
//! known.

use bytes::Bytes;
use prost::Message;
use std::collections::HashMap;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Live {
    #[prost(bool, tag = "1")]
    pub(super) yes: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NameVersion {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) extensions: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) platform: String,
    #[prost(message, repeated, tag = "4")]
    pub(super) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<TensorMetadata>,
    #[prost(map = "string, string", tag = "6")]
    pub(super) properties: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Parameter {
    #[prost(oneof = "ParameterChoice", tags = "1, 2, 3, 4, 5")]
    pub(super) choice: Option<ParameterChoice>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum ParameterChoice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(uint64, tag = "5")]
    Uint64(u64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InputTensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub(super) parameters: HashMap<String, Parameter>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(super) contents: Option<Bytes>,
}

/// The elements of a tensor, in the one field that is for the tensor's type.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub(super) bools: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub(super) ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub(super) int64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) uints: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(super) uint64s: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub(super) fp32s: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub(super) fp64s: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestedOutput {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(map = "string, message", tag = "2")]
    pub(super) parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferRequest {
    #[prost(string, tag = "1")]
    pub(super) model_name: String,
    #[prost(string, tag = "2")]
    pub(super) model_version: String,
    #[prost(string, tag = "3")]
    pub(super) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(super) parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub(super) inputs: Vec<InputTensor>,
    #[prost(message, repeated, tag = "6")]
    pub(super) outputs: Vec<RequestedOutput>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(super) raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OutputTensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferResponse {
    #[prost(string, tag = "1")]
    pub(super) model_name: String,
    #[prost(string, tag = "2")]
    pub(super) model_version: String,
    #[prost(string, tag = "3")]
    pub(super) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(super) parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<OutputTensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) raw_output_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct IndexRequest {
    #[prost(string, tag = "1")]
    pub(super) repository_name: String,
    #[prost(bool, tag = "2")]
    pub(super) ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct IndexResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) models: Vec<ModelIndex>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelIndex {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
    #[prost(string, tag = "3")]
    pub(super) state: String,
    #[prost(string, tag = "4")]
    pub(super) reason: String,
}

/// A request to load or to unload a model. Of the parameters, only whether there are any matters.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ControlRequest {
    #[prost(string, tag = "1")]
    pub(super) repository_name: String,
    #[prost(string, tag = "2")]
    pub(super) model_name: String,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub(super) parameters: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthResponse {
    /// The health status: 1 serving, 2 not serving.
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}
