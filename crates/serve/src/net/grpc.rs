//! gRPC: `inference.GRPCInferenceService`, and `grpc.health.v1.Health/Check`.
//!
//! All methods are unary, and bodies are read before the method is dispatched: a request is one message with a prefix
//! of five bytes, a response the same with trailers.

mod infer;

use super::body::Reply;
use super::compression::{self, Coding, GRPC_CODINGS};
use super::log::Entry;
use super::messages as m;
use super::protocol::{EXTENSIONS, PLATFORM, load_parameters_error};
use super::shared::Shared;
use super::{contents, triton};
use crate::budget::Reservation;
use crate::datatype;
use crate::metadata::TensorSpec;
use crate::refusal::{Reason, Refusal, Result};
use bytes::{BufMut, Bytes, BytesMut};
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use prost::Message;
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
    insert_headers(&mut response);
    response
}

fn insert_headers(response: &mut Response<Reply>) {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static(GRPC_CODINGS));
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

/// The message of a call for this method, decompressed to at most `limit` bytes. `body` must consist of one message with
/// its 5-byte prefix, unless the method takes none.
pub(super) async fn read_message(
    shared: &Shared,
    route: Route,
    body: Bytes,
    coding: Option<Coding>,
    limit: u64,
    reservation: Reservation,
) -> Result<(Bytes, Reservation)> {
    if matches!(route, Route::ServerLive | Route::ServerReady | Route::ServerMetadata) {
        return Ok((Bytes::new(), reservation));
    }
    let head = body.get(..5).ok_or_else(|| Refusal::invalid("the call has no message"))?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    if !usize::try_from(len).is_ok_and(|len| len == body.len() - 5) {
        return Err(Refusal::invalid("the call is not one message of the length in its prefix"));
    }
    let message = body.slice(5..);
    match (head[0], coding) {
        (0, _) => Ok((message, reservation)),
        (1, Some(coding)) => compression::decompress(shared, message, coding, limit, reservation).await,
        (1, None) => Err(Refusal::invalid("the message is compressed, but `grpc-encoding` does not say how")),
        _ => Err(Refusal::invalid("the first byte of the message's prefix is neither 0 nor 1")),
    }
}

/// Decodes a message. Its decoded size is charged to `reservation` first.
fn decode_message<Q: Message + Default>(message: &Bytes, reservation: &mut Reservation) -> Result<Q> {
    reservation.grow(contents::check_head(message)?)?;
    Q::decode(message.clone()).map_err(|e| Refusal::invalid(format!("the message cannot be read: {e}")))
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
    insert_headers(&mut response);
    Ok(response)
}

/// Answers a request whose message has been read.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    route: Route,
    parts: &Parts,
    message: Bytes,
    mut reservation: Reservation,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let service = &shared.service;
    match route {
        Route::ServerLive => encode_message(&m::Live { yes: true }, reservation),
        Route::ServerReady => encode_message(&m::Live { yes: service.is_ready() }, reservation),
        Route::ModelReady => {
            let model: m::NameVersion = decode_message(&message, &mut reservation)?;
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
            answer_metadata(shared, decode_message(&message, &mut reservation)?, reservation).await
        }
        Route::ModelConfig => {
            let model: m::NameVersion = decode_message(&message, &mut reservation)?;
            let (_, generation) = shared.model(&model.name, &model.version).await?;
            let config = triton::config(&model.name, &generation, &mut reservation)?;
            encode_message(&triton::ConfigResponse { config: Some(config) }, reservation)
        }
        Route::ModelStatistics => {
            let model: m::NameVersion = decode_message(&message, &mut reservation)?;
            let statistics = triton::statistics(service, (&model.name, &model.version), &mut reservation)?;
            encode_message(&statistics, reservation)
        }
        Route::Infer => {
            let timeout =
                parts.headers.get("grpc-timeout").and_then(|value| parse_timeout(value.to_str().ok()?));
            infer::answer(
                shared,
                message,
                timeout.and_then(|time| Instant::now().checked_add(time)),
                reservation,
                entry,
            )
            .await
        }
        Route::Index => {
            let request: m::IndexRequest = decode_message(&message, &mut reservation)?;
            answer_index(shared, request.ready, reservation).await
        }
        Route::Load => {
            let request: m::ControlRequest = decode_message(&message, &mut reservation)?;
            if !request.parameters.is_empty() {
                return Err(load_parameters_error());
            }
            shared.load(request.model_name).await?;
            encode_message(&m::Empty {}, reservation)
        }
        Route::Unload => {
            let request: m::ControlRequest = decode_message(&message, &mut reservation)?;
            shared.unload(request.model_name).await?;
            encode_message(&m::Empty {}, reservation)
        }
        Route::Health => {
            // The decoded message is small, and not charged: clients without a token hold only its few bytes.
            let request = m::HealthRequest::decode(message);
            let request =
                request.map_err(|e| Refusal::invalid(format!("the message cannot be read: {e}")))?;
            encode_message(&health(shared, &request)?, reservation)
        }
    }
}

async fn answer_metadata(
    shared: &Shared,
    model: m::NameVersion,
    mut reservation: Reservation,
) -> Result<Response<Reply>> {
    let (versions, generation) = shared.model(&model.name, &model.version).await?;
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
