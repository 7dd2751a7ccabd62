//! Extensions of the protocol that Triton's clients use, such as `perf_analyzer`: the configuration of a model, and its
//! statistics. REST and gRPC have the same messages, with the field names and numbers of Triton's specification.

use super::protocol::PLATFORM;
use crate::budget::Reservation;
use crate::datatype;
use crate::generation::Generation;
use crate::metadata::TensorSpec;
use crate::metrics::Totals;
use crate::refusal::Result;
use crate::service::Service;
use prost::Message;
use serde::{Serialize, Serializer};

/// Triton's types of elements, each at its number; as text they have the prefix `TYPE_`.
const TYPES: [&str; 15] = [
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "FP32", "FP64", "STRING", "BF16",
];

fn serialize_type<S: Serializer>(number: &i32, to: S) -> std::result::Result<S::Ok, S::Error> {
    let name = usize::try_from(*number).ok().and_then(|number| TYPES.get(number)).unwrap_or(&TYPES[0]);
    to.collect_str(&format_args!("TYPE_{name}"))
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct ModelConfig {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    platform: String,
    #[prost(string, tag = "17")]
    backend: String,
    /// The maximum number of rows; 0 if requests are not batched. Dims are without the batch dimension unless this is
    /// 0.
    #[prost(int32, tag = "4")]
    pub(super) max_batch_size: i32,
    #[prost(message, repeated, tag = "5")]
    input: Vec<InputConfig>,
    #[prost(message, repeated, tag = "6")]
    output: Vec<OutputConfig>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct InputConfig {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    #[serde(serialize_with = "serialize_type")]
    data_type: i32,
    #[prost(int64, repeated, tag = "4")]
    dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct OutputConfig {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    #[serde(serialize_with = "serialize_type")]
    data_type: i32,
    #[prost(int64, repeated, tag = "3")]
    dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<ModelConfig>,
}

/// The configuration of a model. Its size is charged to `reservation`.
pub(super) fn config(
    name: &str,
    generation: &Generation,
    reservation: &mut Reservation,
) -> Result<ModelConfig> {
    let specs = || generation.inputs().chain(generation.outputs());
    let size = |spec: &TensorSpec| size_of::<InputConfig>() + spec.name.len() + 16 * spec.bounds.len();
    reservation.grow(specs().map(size).sum::<usize>() as u64)?;
    let most = generation.max_batch();
    let of_spec = |spec: &TensorSpec| {
        let name = datatype::name(spec.dtype).unwrap_or_default();
        let number = TYPES.iter().position(|own| *own == name).unwrap_or(0);
        let batch_dims = usize::from(most > 1);
        let dims = spec.shape().split_off(batch_dims.min(spec.bounds.len()));
        (spec.name.clone(), i32::try_from(number).unwrap_or(0), dims)
    };
    let input = generation.inputs().map(of_spec);
    let output = generation.outputs().iter().map(of_spec);
    Ok(ModelConfig {
        name: name.to_owned(),
        platform: PLATFORM.to_owned(),
        backend: "pteron".to_owned(),
        max_batch_size: if most > 1 { i32::try_from(most).unwrap_or(i32::MAX) } else { 0 },
        input: input.map(|(name, data_type, dims)| InputConfig { name, data_type, dims }).collect(),
        output: output.map(|(name, data_type, dims)| OutputConfig { name, data_type, dims }).collect(),
    })
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct Statistics {
    #[prost(message, repeated, tag = "1")]
    pub(super) model_stats: Vec<ModelStatistics>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct ModelStatistics {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
    /// The time of the last successful request, in milliseconds since 1970; 0 if there was none.
    #[prost(uint64, tag = "3")]
    last_inference: u64,
    /// The number of successful requests, whatever their rows.
    #[prost(uint64, tag = "4")]
    inference_count: u64,
    #[prost(uint64, tag = "5")]
    execution_count: u64,
    #[prost(message, optional, tag = "6")]
    inference_stats: Option<InferenceStatistics>,
    /// Always empty.
    #[prost(message, repeated, tag = "7")]
    batch_stats: Vec<BatchStatistics>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct InferenceStatistics {
    #[prost(message, optional, tag = "1")]
    success: Option<DurationStatistics>,
    /// The failed requests: only their number is recorded, not their time.
    #[prost(message, optional, tag = "2")]
    fail: Option<DurationStatistics>,
    #[prost(message, optional, tag = "3")]
    queue: Option<DurationStatistics>,
    /// Always 0: copies of inputs and outputs are part of `compute_infer`.
    #[prost(message, optional, tag = "4")]
    compute_input: Option<DurationStatistics>,
    #[prost(message, optional, tag = "5")]
    compute_infer: Option<DurationStatistics>,
    #[prost(message, optional, tag = "6")]
    compute_output: Option<DurationStatistics>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct BatchStatistics {
    #[prost(uint64, tag = "1")]
    batch_size: u64,
}

/// A number of requests, and their time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Message, Serialize)]
struct DurationStatistics {
    #[prost(uint64, tag = "1")]
    count: u64,
    #[prost(uint64, tag = "2")]
    ns: u64,
}

/// The statistics of a version of a model: of all versions if `version` is empty, and of all models if `name` is. Their
/// size is charged to `reservation`.
pub(super) fn statistics(
    service: &Service,
    (name, version): (&str, &str),
    reservation: &mut Reservation,
) -> Result<Statistics> {
    let mut model_stats = Vec::new();
    service.for_each_totals((name, version), |name, version, totals| {
        let size = size_of::<ModelStatistics>() + name.len() + 32;
        reservation.grow(size as u64)?;
        model_stats.push(to_statistics(name, version, totals));
        Ok(())
    })?;
    Ok(Statistics { model_stats })
}

fn to_statistics(name: &str, version: u64, totals: &Totals) -> ModelStatistics {
    let count = totals.successes;
    let of_time =
        |microseconds: u64| Some(DurationStatistics { count, ns: microseconds.saturating_mul(1000) });
    ModelStatistics {
        name: name.to_owned(),
        version: version.to_string(),
        last_inference: totals.last_success,
        inference_count: count,
        execution_count: totals.executions,
        inference_stats: Some(InferenceStatistics {
            success: of_time(totals.queued.saturating_add(totals.computed)),
            fail: Some(DurationStatistics { count: totals.failures, ns: 0 }),
            queue: of_time(totals.queued),
            compute_input: of_time(0),
            compute_infer: of_time(totals.computed),
            compute_output: of_time(0),
        }),
        batch_stats: Vec::new(),
    }
}
