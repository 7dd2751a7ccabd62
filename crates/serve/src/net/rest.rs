//! REST: routing of paths, and the handlers.

use super::body::Reply;
use super::connection::Shared;
use super::json::{self, Control};
use super::log::Entry;
use crate::budget::Held;
use crate::datatype;
use crate::metadata::TensorSpec;
use crate::refusal::{Reason, Refusal, Result};
use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use pteron::ScalarType;
use serde_json::{Value, json};
use std::sync::Arc;

/// The header with the number of bytes of JSON in a request or response that has binary tensor data after it.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// The platform in the metadata of models.
pub(super) const PLATFORM: &str = "pteron_pte";

/// The supported extensions of the protocol.
pub(super) const EXTENSIONS: [&str; 3] = ["binary_tensor_data", "model_repository", "parameters"];

pub(super) fn dtype(name: &str) -> Result<ScalarType> {
    datatype::parse(name).ok_or_else(|| {
        let name: String = name.chars().take(32).collect();
        Refusal::invalid(format!("`{name}` is no datatype of a tensor; programs have no strings"))
    })
}

/// The response for a refusal.
pub(super) fn refused(refusal: &Refusal) -> Response<Reply> {
    let mut response = document(&json!({ "error": refusal.message }));
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

fn document(value: &Value) -> Response<Reply> {
    with_type(value.to_string(), "application/json", None)
}

fn with_type(bytes: impl Into<Bytes>, kind: &'static str, held: Option<Held>) -> Response<Reply> {
    let mut response = Response::new(Reply::bytes(bytes, held));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn empty(yes: bool, otherwise: &str) -> Result<Response<Reply>> {
    match yes {
        true => Ok(Response::new(Reply::bytes(Bytes::new(), None))),
        false => Err(Refusal::new(Reason::Unavailable, otherwise)),
    }
}

/// Answers a request whose body has been read.
pub(super) async fn route(
    shared: &Arc<Shared>,
    parts: &Parts,
    body: Bytes,
    held: Held,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let path: Vec<&str> = parts.uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let service = &shared.service;
    let (get, post) = (parts.method == Method::GET, parts.method == Method::POST);
    match &path[..] {
        ["v2"] if get => Ok(document(&json!({
            "name": "pteron", "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS,
        }))),
        ["v2", "health", "live"] if get => empty(true, ""),
        ["v2", "health", "ready"] if get => empty(service.is_ready(), "the server is not ready"),
        ["metrics"] if get => Ok(with_type(shared.metrics(), "text/plain; version=0.0.4", None)),
        ["v2", "repository", "index"] if post => index(shared, &body).await,
        ["v2", "repository", "models", name, "load"] if post => {
            control_has_no_parameters(&body)?;
            shared.load(name.to_string()).await?;
            empty(true, "")
        }
        ["v2", "repository", "models", name, "unload"] if post => {
            shared.unload(name.to_string()).await?;
            empty(true, "")
        }
        ["v2", "models", name, rest @ ..] => {
            let (version, rest) = match rest {
                ["versions", version, rest @ ..] => (*version, rest),
                rest => ("", rest),
            };
            match rest {
                [] if get => metadata(shared, name, version),
                ["ready"] if get => empty(service.is_model_ready(name, version)?, "the model is not ready"),
                ["infer"] if post => infer(shared, parts, (name, version), body, held, entry).await,
                _ => Err(no_path(parts)),
            }
        }
        _ => Err(no_path(parts)),
    }
}

fn no_path(parts: &Parts) -> Refusal {
    let path: String = parts.uri.path().chars().take(256).collect();
    Refusal::not_found(format!("there is no {} {path}", parts.method))
}

fn metadata(shared: &Shared, name: &str, version: &str) -> Result<Response<Reply>> {
    let (versions, model) = shared.service.model(name, version)?;
    let tensor = |spec: &TensorSpec| json!({ "name": spec.name, "datatype": datatype::name(spec.dtype), "shape": spec.shape() });
    Ok(document(&json!({
        "name": name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": model.inputs().map(tensor).collect::<Vec<_>>(),
        "outputs": model.outputs().iter().map(tensor).collect::<Vec<_>>(),
    })))
}

async fn index(shared: &Arc<Shared>, body: &Bytes) -> Result<Response<Reply>> {
    let only_ready = Control::read(body)?.ready;
    let models = shared.index(only_ready).await?.into_iter().map(|model| {
        let state = if model.is_ready { "READY" } else { "UNAVAILABLE" };
        json!({ "name": model.name, "version": model.version, "state": state, "reason": model.reason })
    });
    Ok(document(&models.collect()))
}

/// Refuses a configuration or files in a request to load a model.
fn control_has_no_parameters(body: &Bytes) -> Result<()> {
    match Control::read(body)?.has_parameters() {
        true => Err(super::connection::no_load_parameters()),
        false => Ok(()),
    }
}

async fn infer(
    shared: &Arc<Shared>,
    parts: &Parts,
    (name, version): (&str, &str),
    body: Bytes,
    held: Held,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    if parts.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Refusal::new(Reason::Unsupported, "compressed bodies are not supported"));
    }
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
    let mut response = shared.infer(request).await?;
    entry.computed(&response.timing);
    let size = response.outputs.iter().map(|output| output.data.len()).sum();
    let write = move || {
        let (bytes, header) = json::write(&response, &binary)?;
        response.held.grow(bytes.len() as u64)?;
        Ok((bytes, header, response.held))
    };
    let (bytes, header, held) = shared.off_reactor(size, write).await?;
    let is_json = header == bytes.len();
    let kind = if is_json { "application/json" } else { "application/octet-stream" };
    let mut response = with_type(bytes, kind, Some(held));
    if !is_json {
        response.headers_mut().insert(HEADER_LENGTH, HeaderValue::from(header));
    }
    Ok(response)
}
