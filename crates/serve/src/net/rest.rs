//! REST: routing of paths, and the handlers.

use super::body::Reply;
use super::json::{self, Control};
use super::log::Entry;
use super::protocol::{EXTENSIONS, PLATFORM, no_load_parameters};
use super::shared::Shared;
use crate::budget::Reservation;
use crate::buffer::Buffer;
use crate::datatype;
use crate::metadata::TensorSpec;
use crate::refusal::{Reason, Refusal, Result};
use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use pteron::tools::task::TaskMetadata;
use serde::{Serialize, Serializer};
use serde_json::json;
use std::sync::Arc;

/// The header with the number of bytes of JSON in a request or response that has binary tensor data after it.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// What a request asks for.
pub(super) enum Route<'a> {
    Server,
    Live,
    Ready,
    Metrics,
    Index,
    Load(&'a str),
    Unload(&'a str),
    /// Of a model and version.
    Metadata(&'a str, &'a str),
    ModelReady(&'a str, &'a str),
    Infer(&'a str, &'a str),
}

impl<'a> Route<'a> {
    /// The route of a path.
    pub(super) fn of(parts: &'a Parts) -> Result<Self> {
        let path: Vec<&str> = parts.uri.path().split('/').filter(|part| !part.is_empty()).take(8).collect();
        let (get, post) = (parts.method == Method::GET, parts.method == Method::POST);
        Ok(match path[..] {
            ["v2"] if get => Self::Server,
            ["v2", "health", "live"] if get => Self::Live,
            ["v2", "health", "ready"] if get => Self::Ready,
            ["metrics"] if get => Self::Metrics,
            ["v2", "repository", "index"] if post => Self::Index,
            ["v2", "repository", "models", name, "load"] if post => Self::Load(name),
            ["v2", "repository", "models", name, "unload"] if post => Self::Unload(name),
            ["v2", "models", name, ref rest @ ..] => {
                let (version, rest) = match rest {
                    ["versions", version, rest @ ..] => (*version, rest),
                    rest => ("", rest),
                };
                match rest {
                    [] if get => Self::Metadata(name, version),
                    ["ready"] if get => Self::ModelReady(name, version),
                    ["infer"] if post => Self::Infer(name, version),
                    _ => return Err(no_path(parts)),
                }
            }
            _ => return Err(no_path(parts)),
        })
    }

    /// Whether it needs no token.
    pub(super) fn is_health(&self) -> bool {
        matches!(self, Self::Live | Self::Ready)
    }

    /// Whether it loads or unloads models.
    pub(super) fn is_control(&self) -> bool {
        matches!(self, Self::Load(_) | Self::Unload(_))
    }

    /// The maximum size of the body: the server's for tensors. Bodies that mean nothing are not read.
    pub(super) fn max_body(&self, of_tensors: u64) -> u64 {
        match self {
            Self::Infer(..) => of_tensors,
            Self::Index | Self::Load(_) | Self::Unload(_) => json::MAX_CONTROL.min(of_tensors),
            _ => 0,
        }
    }

    /// Refuses a request that its head shows to be wrong.
    pub(super) fn check_head(&self, shared: &Shared, parts: &Parts) -> Result<()> {
        let Self::Infer(name, version) = self else { return Ok(()) };
        if parts.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(Refusal::new(Reason::Unsupported, "compressed bodies are not supported"));
        }
        shared.service.check_loaded(name, version)
    }
}

/// The response for a refusal.
pub(super) fn refused(refusal: &Refusal) -> Response<Reply> {
    let text = json!({ "error": refusal.shown() }).to_string();
    let mut response = with_type(Reply::short(text), "application/json");
    *response.status_mut() =
        StatusCode::from_u16(refusal.reason.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
    if refusal.reason == Reason::Unauthenticated {
        response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Bearer"));
    }
    if refusal.reason == Reason::Busy {
        response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
    }
    response
}

/// A JSON document, charged to `held`.
fn document(value: &impl Serialize, held: Reservation) -> Result<Response<Reply>> {
    let mut out = Buffer::new(held);
    out.json(value)?;
    let (bytes, held) = out.finish()?;
    Ok(with_type(Reply::charged(bytes, held), "application/json"))
}

fn with_type(reply: Reply, kind: &'static str) -> Response<Reply> {
    let mut response = Response::new(reply);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn empty(yes: bool, otherwise: &str) -> Result<Response<Reply>> {
    match yes {
        true => Ok(Response::new(Reply::empty())),
        false => Err(Refusal::new(Reason::Unavailable, otherwise)),
    }
}

/// Answers a request whose body has been read.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    route: Route<'_>,
    parts: &Parts,
    body: Bytes,
    held: Reservation,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let service = &shared.service;
    match route {
        Route::Server => {
            let (name, version) = ("pteron", env!("CARGO_PKG_VERSION"));
            document(&json!({ "name": name, "version": version, "extensions": EXTENSIONS }), held)
        }
        Route::Live => empty(true, ""),
        Route::Ready => empty(service.is_ready(), "the server is not ready"),
        Route::Metrics => {
            let (bytes, held) = shared.metrics(held)?;
            Ok(with_type(Reply::charged(bytes, held), "text/plain; version=0.0.4"))
        }
        Route::Index => index(shared, &body, held).await,
        Route::Load(name) => {
            control_has_no_parameters(&body)?;
            shared.load(name.to_string()).await?;
            empty(true, "")
        }
        Route::Unload(name) => {
            shared.unload(name.to_string()).await?;
            empty(true, "")
        }
        Route::Metadata(name, version) => metadata(shared, name, version, held),
        Route::ModelReady(name, version) => {
            empty(service.is_model_ready(name, version)?, "the model is not ready")
        }
        Route::Infer(name, version) => infer(shared, parts, (name, version), body, held, entry).await,
    }
}

fn no_path(parts: &Parts) -> Refusal {
    let path: String = parts.uri.path().chars().take(256).collect();
    let method: String = parts.method.as_str().chars().take(32).collect();
    Refusal::not_found(format!("there is no {method} {path}"))
}

/// The metadata of a model.
#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    versions: Vec<String>,
    platform: &'static str,
    #[serde(serialize_with = "tensors")]
    inputs: Vec<&'a TensorSpec>,
    #[serde(serialize_with = "tensors")]
    outputs: Vec<&'a TensorSpec>,
    /// The task metadata that the program stores: labels, preprocessing and more.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a TaskMetadata>,
}

#[derive(Serialize)]
struct TensorMetadata<'a> {
    name: &'a str,
    datatype: Option<&'static str>,
    shape: Vec<i64>,
}

/// Tensors, converted one by one.
fn tensors<S: Serializer>(specs: &[&TensorSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(specs.iter().map(|spec| TensorMetadata {
        name: &spec.name,
        datatype: datatype::name(spec.dtype),
        shape: spec.shape(),
    }))
}

fn metadata(shared: &Shared, name: &str, version: &str, held: Reservation) -> Result<Response<Reply>> {
    let (versions, model) = shared.service.model(name, version)?;
    let (inputs, outputs) = (model.inputs().collect(), model.outputs().iter().collect());
    let parameters = model.task();
    document(&Metadata { name, versions, platform: PLATFORM, inputs, outputs, parameters }, held)
}

#[derive(Serialize)]
struct IndexEntry<'a> {
    name: &'a str,
    version: &'a str,
    state: &'static str,
    reason: &'a str,
}

async fn index(shared: &Arc<Shared>, body: &Bytes, held: Reservation) -> Result<Response<Reply>> {
    let only_ready = Control::read(body)?.ready;
    let (models, held) = shared.index(only_ready, held).await?;
    let entries = models.iter().map(|model| IndexEntry {
        name: &model.name,
        version: &model.version,
        state: if model.is_ready { "READY" } else { "UNAVAILABLE" },
        reason: &model.reason,
    });
    let mut out = Buffer::new(held);
    out.push(b"[")?;
    for (i, entry) in entries.enumerate() {
        if i > 0 {
            out.push(b",")?;
        }
        out.json(&entry)?;
    }
    out.push(b"]")?;
    let (bytes, held) = out.finish()?;
    Ok(with_type(Reply::charged(bytes, held), "application/json"))
}

/// Refuses a configuration or files in a request to load a model.
fn control_has_no_parameters(body: &Bytes) -> Result<()> {
    match Control::read(body)?.has_parameters() {
        true => Err(no_load_parameters()),
        false => Ok(()),
    }
}

async fn infer(
    shared: &Arc<Shared>,
    parts: &Parts,
    (name, version): (&str, &str),
    body: Bytes,
    held: Reservation,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let header = match parts.headers.get(HEADER_LENGTH) {
        None => body.len(),
        Some(value) => {
            let length = value.to_str().ok().and_then(|text| text.parse().ok());
            let length = length.filter(|&length: &usize| length <= body.len());
            length.ok_or_else(|| Refusal::invalid(format!("{HEADER_LENGTH} is no length within the body")))?
        }
    };
    entry.line.model = Some(name.chars().take(128).collect());
    let (name, version) = (name.to_owned(), version.to_owned());
    let json::Parsed { request, binary } =
        shared.off_reactor(header, move || json::read(&body, header, name, version, held)).await?;
    let response = shared.infer(request).await?;
    entry.computed(&response.timing);
    let size = response.outputs.iter().map(|output| output.data.len()).sum();
    let (bytes, header, held) = shared.off_reactor(size, move || json::write(response, &binary)).await?;
    let is_json = header == bytes.len();
    let kind = if is_json { "application/json" } else { "application/octet-stream" };
    let mut response = with_type(Reply::charged(bytes, held), kind);
    if !is_json {
        response.headers_mut().insert(HEADER_LENGTH, HeaderValue::from(header));
    }
    Ok(response)
}
