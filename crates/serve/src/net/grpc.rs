//! gRPC: `inference.GRPCInferenceService`, and `grpc.health.v1.Health/Check`.
//!
//! All methods are unary, and bodies are read before the method is dispatched: a request is one message with a prefix
//! of five bytes, a response the same with trailers.

use super::body::Reply;
use super::log::Entry;
use super::messages::{self as m, ParameterChoice};
use super::protocol::{EXTENSIONS, PLATFORM, load_parameters_error, parse_dtype};
use super::shared::Shared;
use super::{contents, json, triton};
use crate::budget::Reservation;
use crate::datatype;
use crate::metadata::TensorSpec;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::{Data, InferRequest, InferResponse, InputTensor};
use bytes::{BufMut, Bytes, BytesMut};
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A method of the server's gRPC services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    ServerLive,
    ServerReady,
    ModelReady,
    ServerMetadata,
    ModelMetadata,
    ModelConfig,
    ModelStatistics,
    Infer,
    Index,
    Load,
    Unload,
    Health,
}

/// The maximum size of a message without tensors, with its prefix; and that of a probe, which is not charged to the memory
/// budget.
const MAX_SMALL: u64 = 5 + contents::MAX_HEAD as u64;
const MAX_PROBE: u64 = 256;

impl Route {
    /// The method that a path names.
    pub(super) fn parse(parts: &Parts) -> Result<Self> {
        let path = parts.uri.path();
        Ok(match path.strip_prefix("/inference.GRPCInferenceService/") {
            Some("ServerLive") => Self::ServerLive,
            Some("ServerReady") => Self::ServerReady,
            Some("ModelReady") => Self::ModelReady,
            Some("ServerMetadata") => Self::ServerMetadata,
            Some("ModelMetadata") => Self::ModelMetadata,
            Some("ModelConfig") => Self::ModelConfig,
            Some("ModelStatistics") => Self::ModelStatistics,
            Some("ModelInfer") => Self::Infer,
            Some("RepositoryIndex") => Self::Index,
            Some("RepositoryModelLoad") => Self::Load,
            Some("RepositoryModelUnload") => Self::Unload,
            _ if path == "/grpc.health.v1.Health/Check" => Self::Health,
            _ => {
                let path: String = path.chars().take(256).collect();
                return Err(Refusal::new(Reason::Unsupported, format!("there is no method {path}")));
            }
        })
    }

    /// Whether the method is a health check, which needs no token.
    pub(super) fn is_health(self) -> bool {
        self == Self::Health
    }

    /// Whether the method asks for the state of the server, which is answered even if requests hold the whole memory budget.
    pub(super) fn is_probe(self) -> bool {
        matches!(self, Self::Health | Self::ServerLive | Self::ServerReady)
    }

    /// Whether the method loads or unloads models.
    pub(super) fn is_control(self) -> bool {
        matches!(self, Self::Load | Self::Unload)
    }

    /// The maximum size of the body in bytes: `of_tensors`, the server's limit, if the method takes tensors.
    pub(super) fn max_body(self, of_tensors: u64) -> u64 {
        match self {
            Self::Infer => of_tensors,
            _ if self.is_probe() => MAX_PROBE,
            _ => MAX_SMALL.min(of_tensors),
        }
    }
}

/// The response for a refusal.
pub(super) fn refusal_response(refusal: &Refusal) -> Response<Reply> {
    let mut response = Response::new(Reply::empty());
    *response.headers_mut() = status_trailers(refusal.reason.grpc_code(), &refusal.shown_message());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The gRPC status of a call, as trailers.
fn status_trailers(code: i32, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from(code));
    let mut text = String::new();
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    if let Ok(text) = HeaderValue::from_str(&text)
        && !message.is_empty()
    {
        headers.insert("grpc-message", text);
    }
    headers
}

/// The message in a body that consists of one message with its 5-byte prefix.
fn message_of_body(body: &Bytes) -> Result<Bytes> {
    let head = body.get(..5).ok_or_else(|| Refusal::invalid("the call has no message"))?;
    if head[0] != 0 {
        return Err(Refusal::new(Reason::Unsupported, "compressed messages are not supported"));
    }
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    match usize::try_from(len).is_ok_and(|len| len == body.len() - 5) {
        true => Ok(body.slice(5..)),
        false => Err(Refusal::invalid("the call is not one message of the length in its prefix")),
    }
}

/// Decodes the message in a body. Its decoded size is charged to `reservation` first.
fn decode_message<Q: Message + Default>(body: &Bytes, reservation: &mut Reservation) -> Result<Q> {
    let message = message_of_body(body)?;
    reservation.grow(contents::check_head(&message)?)?;
    Q::decode(message).map_err(|e| Refusal::invalid(format!("the message cannot be read: {e}")))
}

/// Encodes a message as a response. Its size is charged to `reservation` first.
fn encode_message(answer: &impl Message, mut reservation: Reservation) -> Result<Response<Reply>> {
    let len = answer.encoded_len();
    reservation.grow(5 + len as u64)?;
    let prefix = u32::try_from(len);
    let prefix = prefix.map_err(|_| Refusal::new(Reason::TooLarge, "the answer is larger than 4 GiB"))?;
    let mut bytes = BytesMut::with_capacity(5 + len);
    bytes.put_u8(0);
    bytes.put_u32(prefix);
    answer.encode(&mut bytes).map_err(|e| Refusal::from_error(Reason::Failed, &e))?;
    let mut response =
        Response::new(Reply::from_bytes(bytes, reservation).with_trailers(status_trailers(0, "")));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// Answers a request whose body has been read.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    route: Route,
    parts: &Parts,
    body: Bytes,
    mut reservation: Reservation,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let service = &shared.service;
    match route {
        Route::ServerLive => encode_message(&m::Live { yes: true }, reservation),
        Route::ServerReady => encode_message(&m::Live { yes: service.is_ready() }, reservation),
        Route::ModelReady => {
            let model: m::NameVersion = decode_message(&body, &mut reservation)?;
            encode_message(
                &m::Live { yes: service.is_model_ready(&model.name, &model.version)? },
                reservation,
            )
        }
        Route::ServerMetadata => {
            let (name, version) = ("pteron".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
            let extensions = EXTENSIONS.map(str::to_owned).to_vec();
            encode_message(&m::ServerMetadata { name, version, extensions }, reservation)
        }
        Route::ModelMetadata => {
            answer_metadata(shared, decode_message(&body, &mut reservation)?, reservation)
        }
        Route::ModelConfig => {
            let model: m::NameVersion = decode_message(&body, &mut reservation)?;
            let config = triton::config(service, (&model.name, &model.version), &mut reservation)?;
            encode_message(&triton::ConfigResponse { config: Some(config) }, reservation)
        }
        Route::ModelStatistics => {
            let model: m::NameVersion = decode_message(&body, &mut reservation)?;
            let statistics = triton::statistics(service, (&model.name, &model.version), &mut reservation)?;
            encode_message(&statistics, reservation)
        }
        Route::Infer => {
            let timeout =
                parts.headers.get("grpc-timeout").and_then(|value| parse_timeout(value.to_str().ok()?));
            answer_infer(
                shared,
                body,
                timeout.and_then(|time| Instant::now().checked_add(time)),
                reservation,
                entry,
            )
            .await
        }
        Route::Index => {
            let request: m::IndexRequest = decode_message(&body, &mut reservation)?;
            answer_index(shared, request.ready, reservation).await
        }
        Route::Load => {
            let request: m::ControlRequest = decode_message(&body, &mut reservation)?;
            if !request.parameters.is_empty() {
                return Err(load_parameters_error());
            }
            shared.load(request.model_name).await?;
            encode_message(&m::Empty {}, reservation)
        }
        Route::Unload => {
            let request: m::ControlRequest = decode_message(&body, &mut reservation)?;
            shared.unload(request.model_name).await?;
            encode_message(&m::Empty {}, reservation)
        }
        Route::Health => {
            // The decoded message is small, and not charged: clients without a token hold only its few bytes.
            let request = m::HealthRequest::decode(message_of_body(&body)?);
            let request =
                request.map_err(|e| Refusal::invalid(format!("the message cannot be read: {e}")))?;
            encode_message(&health(shared, &request)?, reservation)
        }
    }
}

fn answer_metadata(
    shared: &Shared,
    model: m::NameVersion,
    mut reservation: Reservation,
) -> Result<Response<Reply>> {
    let (versions, generation) = shared.service.model(&model.name, &model.version)?;
    let specs = || generation.inputs().chain(generation.outputs());
    let size = |spec: &TensorSpec| size_of::<m::TensorMetadata>() + spec.name.len() + 16 * spec.bounds.len();
    reservation.grow(specs().map(size).sum::<usize>() as u64)?;
    let tensor = |spec: &TensorSpec| m::TensorMetadata {
        name: spec.name.clone(),
        datatype: datatype::name(spec.dtype).unwrap_or_default().to_owned(),
        shape: spec.shape(),
    };
    let inputs = generation.inputs().map(tensor).collect();
    let outputs = generation.outputs().iter().map(tensor).collect();
    let platform = PLATFORM.to_owned();
    let task = generation
        .task()
        .map(|task| task.to_json().map_err(|e| Refusal::from_error(Reason::Failed, &e)))
        .transpose()?;
    reservation.grow(task.as_ref().map_or(0, String::len) as u64)?;
    let properties = task.into_iter().map(|task| ("task".to_owned(), task)).collect();
    encode_message(
        &m::ModelMetadata { name: model.name, versions, platform, inputs, outputs, properties },
        reservation,
    )
}

async fn answer_index(
    shared: &Arc<Shared>,
    only_ready: bool,
    reservation: Reservation,
) -> Result<Response<Reply>> {
    let (models, mut reservation) = shared.index(only_ready, reservation).await?;
    reservation.grow((models.len() * size_of::<m::ModelIndex>()) as u64)?;
    let models = models.into_iter().map(|model| m::ModelIndex {
        name: model.name,
        version: model.version,
        state: if model.is_ready { "READY" } else { "UNAVAILABLE" }.to_owned(),
        reason: model.reason,
    });
    encode_message(&m::IndexResponse { models: models.collect() }, reservation)
}

/// The health of the server for an empty name or that of the inference service, otherwise that of a model.
fn health(shared: &Shared, request: &m::HealthRequest) -> Result<m::HealthResponse> {
    let is_ready = match request.service.as_str() {
        "" | "inference.GRPCInferenceService" => shared.service.is_ready(),
        model => shared.service.is_model_ready(model, "")?,
    };
    Ok(m::HealthResponse { status: if is_ready { 1 } else { 2 } })
}

/// Parses a `grpc-timeout`: at most eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = number.parse::<u32>().ok().filter(|_| number.len() <= 8)?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * number)
}

async fn answer_infer(
    shared: &Arc<Shared>,
    body: Bytes,
    deadline: Option<Instant>,
    mut reservation: Reservation,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let call: m::InferRequest = decode_message(&body, &mut reservation)?;
    entry.line.model = Some(call.model_name.chars().take(128).collect());
    // Raw contents are not converted, so they do not count.
    let heavy = call.inputs.iter().filter_map(|input| Some(input.contents.as_ref()?.len())).sum();
    let request = shared.run_blocking(heavy, move || to_request(call, deadline, reservation)).await?;
    let response = shared.infer(request).await?;
    entry.set_timing(&response.timing);
    let size = response.outputs.iter().map(|output| output.data.len()).sum();
    shared.run_blocking(size, move || to_response(response)).await
}

/// Converts a message to a request.
fn to_request(
    call: m::InferRequest,
    deadline: Option<Instant>,
    mut reservation: Reservation,
) -> Result<InferRequest> {
    let raw = call.raw_input_contents;
    if !raw.is_empty() && raw.len() != call.inputs.len() {
        return Err(Refusal::invalid(format!("{} raw contents for {} inputs", raw.len(), call.inputs.len())));
    }
    let mut raw = raw.into_iter();
    let mut inputs = Vec::with_capacity(call.inputs.len());
    for input in call.inputs {
        inputs.push(to_input_tensor(input, raw.next(), &mut reservation)?);
    }
    let own = match call.parameters.get("timeout").and_then(|parameter| parameter.choice.as_ref()) {
        Some(&ParameterChoice::Int64(time)) => json::deadline(u64::try_from(time).unwrap_or(0)),
        Some(&ParameterChoice::Uint64(time)) => json::deadline(time),
        _ => None,
    };
    for output in &call.outputs {
        refuse_unsupported(&output.name, &output.parameters)?;
    }
    Ok(InferRequest {
        model: call.model_name,
        version: call.model_version,
        id: call.id,
        inputs,
        outputs: call.outputs.into_iter().map(|output| output.name).collect(),
        deadline: [deadline, own].into_iter().flatten().min(),
        reservation: Some(reservation),
    })
}

fn refuse_unsupported(name: &str, parameters: &HashMap<String, m::Parameter>) -> Result<()> {
    for what in ["shared_memory_region", "classification"] {
        if parameters.contains_key(what) {
            return Err(Refusal::new(Reason::Unsupported, format!("`{name}`: {what} is not supported")));
        }
    }
    Ok(())
}

fn to_input_tensor(
    input: m::InputTensor,
    raw: Option<Bytes>,
    reservation: &mut Reservation,
) -> Result<InputTensor> {
    let m::InputTensor { name, datatype, shape, parameters, contents } = input;
    refuse_unsupported(&name, &parameters)?;
    let at_input =
        |refusal: Refusal| Refusal::new(refusal.reason, format!("input `{name}`: {}", refusal.message));
    let dtype = parse_dtype(&datatype).map_err(at_input)?;
    let shape = shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>();
    let shape = shape.ok_or_else(|| at_input(Refusal::invalid("a size is negative")))?;
    let data: Data = match (raw, contents) {
        // An empty message is as good as none.
        (Some(raw), contents) if contents.as_ref().is_none_or(Bytes::is_empty) => Box::new(raw),
        (Some(_), _) => {
            return Err(at_input(Refusal::invalid("both contents and raw contents were sent")));
        }
        (None, contents) => {
            let contents = contents.unwrap_or_default();
            // An element of eight bytes may be encoded in one, and vectors grow by doubling.
            reservation.grow(contents.len() as u64 * 16)?;
            Box::new(contents::elements(contents, dtype).map_err(at_input)?)
        }
    };
    Ok(InputTensor { name, dtype, shape, data })
}

fn to_response(response: InferResponse) -> Result<Response<Reply>> {
    let InferResponse { model, version, id, generation, outputs, reservation, .. } = response;
    let generation = m::Parameter { choice: Some(ParameterChoice::Uint64(generation)) };
    let mut answer = m::InferResponse {
        model_name: model,
        model_version: version,
        id,
        parameters: HashMap::from([("generation".to_owned(), generation)]),
        ..m::InferResponse::default()
    };
    for output in outputs {
        answer.outputs.push(m::OutputTensor {
            name: output.name,
            datatype: datatype::name(output.dtype).unwrap_or_default().to_owned(),
            shape: output.shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect(),
        });
        answer.raw_output_contents.push(output.data.into());
    }
    encode_message(&answer, reservation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_parsed_with_units() {
        assert_eq!(parse_timeout("20m"), Some(Duration::from_millis(20)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for text in ["", "m", "1", "123456789S", "-1S", "1x", "1ä"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }

    #[test]
    fn status_messages_are_percent_encoded() {
        let headers = status_trailers(3, "50 % of `ä`\n");
        assert_eq!(headers["grpc-message"], "50 %25 of `%C3%A4`%0A");
    }
}
