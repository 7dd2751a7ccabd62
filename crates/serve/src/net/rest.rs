//! REST: routing of paths, and the handlers.

use super::body::Reply;
use super::json::{self, Control};
use super::log::Entry;
use super::protocol::{EXTENSIONS, PLATFORM, load_parameters_error};
use super::shared::Shared;
use super::triton;
use crate::budget::Reservation;
use crate::buffer::Buffer;
use crate::datatype;
use crate::metadata::TensorSpec;
use crate::models::IndexEntry;
use crate::refusal::{Reason, Refusal, Result};
use bytes::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use pteron::tools::task::TaskMetadata;
use serde::{Serialize, Serializer};
use serde_json::json;
use std::sync::Arc;

/// The header that gives the number of bytes of JSON at the start of a body that has binary tensor data after them.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// The resource that the path of a request names.
pub(super) enum Route<'a> {
    /// The page that lists the models.
    Page,
    Server,
    Live,
    Ready,
    Metrics,
    Index,
    Load(&'a str),
    Unload(&'a str),
    /// The metadata of a model and version.
    Metadata(&'a str, &'a str),
    ModelReady(&'a str, &'a str),
    Config(&'a str, &'a str),
    /// The statistics of a model and version; of all models if the name is empty.
    Statistics(&'a str, &'a str),
    Infer(&'a str, &'a str),
}

impl<'a> Route<'a> {
    /// The resource that a path names.
    pub(super) fn parse(parts: &'a Parts) -> Result<Self> {
        let path: Vec<&str> = parts.uri.path().split('/').filter(|part| !part.is_empty()).take(8).collect();
        let (get, post) = (parts.method == Method::GET, parts.method == Method::POST);
        Ok(match path[..] {
            [] if get => Self::Page,
            ["v2"] if get => Self::Server,
            ["v2", "health", "live"] if get => Self::Live,
            ["v2", "health", "ready"] if get => Self::Ready,
            ["metrics"] if get => Self::Metrics,
            ["v2", "repository", "index"] if post => Self::Index,
            ["v2", "repository", "models", name, "load"] if post => Self::Load(name),
            ["v2", "repository", "models", name, "unload"] if post => Self::Unload(name),
            ["v2", "models", "stats"] if get => Self::Statistics("", ""),
            ["v2", "models", name, ref rest @ ..] => {
                let (version, rest) = match rest {
                    ["versions", version, rest @ ..] => (*version, rest),
                    rest => ("", rest),
                };
                match rest {
                    [] if get => Self::Metadata(name, version),
                    ["ready"] if get => Self::ModelReady(name, version),
                    ["config"] if get => Self::Config(name, version),
                    ["stats"] if get => Self::Statistics(name, version),
                    ["infer"] if post => Self::Infer(name, version),
                    _ => return Err(no_path_error(parts)),
                }
            }
            _ => return Err(no_path_error(parts)),
        })
    }

    /// Whether the path is a health check, which needs no token.
    pub(super) fn is_health(&self) -> bool {
        matches!(self, Self::Live | Self::Ready)
    }

    /// Whether the path loads or unloads models.
    pub(super) fn is_control(&self) -> bool {
        matches!(self, Self::Load(_) | Self::Unload(_))
    }

    /// The maximum size of the body in bytes: `of_tensors` if it carries tensors, 0 if the path takes no body.
    pub(super) fn max_body(&self, of_tensors: u64) -> u64 {
        match self {
            Self::Infer(..) => of_tensors,
            Self::Index | Self::Load(_) | Self::Unload(_) => json::MAX_CONTROL.min(of_tensors),
            _ => 0,
        }
    }

    /// Fails if the head of a request is invalid, so that the body need not be read.
    pub(super) fn check_head(&self, shared: &Shared) -> Result<()> {
        let Self::Infer(name, version) = self else { return Ok(()) };
        shared.service.check_loaded(name, version)
    }
}

/// The response for a refusal.
pub(super) fn refusal_response(refusal: &Refusal) -> Response<Reply> {
    let text = json!({ "error": refusal.shown_message() }).to_string();
    let mut response = with_content_type(Reply::from_text(text), "application/json");
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

/// A response with a JSON document, whose bytes are charged to `reservation`.
fn json_response(value: &impl Serialize, reservation: Reservation) -> Result<Response<Reply>> {
    let mut out = Buffer::new(reservation);
    out.write_json(value)?;
    let (bytes, reservation) = out.finish()?;
    Ok(with_content_type(Reply::from_bytes(bytes, reservation), "application/json"))
}

fn with_content_type(reply: Reply, kind: &'static str) -> Response<Reply> {
    let mut response = Response::new(reply);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn empty_response(yes: bool, otherwise: &str) -> Result<Response<Reply>> {
    match yes {
        true => Ok(Response::new(Reply::empty())),
        false => Err(Refusal::new(Reason::Unavailable, otherwise)),
    }
}

/// Answers a request for this resource, whose body has been read.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    route: Route<'_>,
    parts: &Parts,
    body: Bytes,
    mut reservation: Reservation,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let service = &shared.service;
    match route {
        Route::Page => answer_page(shared, reservation).await,
        Route::Server => {
            let (name, version) = ("pteron", env!("CARGO_PKG_VERSION"));
            json_response(&json!({ "name": name, "version": version, "extensions": EXTENSIONS }), reservation)
        }
        Route::Live => empty_response(true, ""),
        Route::Ready => empty_response(service.is_ready(), "the server is not ready"),
        Route::Metrics => {
            let (bytes, reservation) = shared.metrics(reservation)?;
            Ok(with_content_type(Reply::from_bytes(bytes, reservation), "text/plain; version=0.0.4"))
        }
        Route::Index => answer_index(shared, &body, reservation).await,
        Route::Load(name) => {
            refuse_load_parameters(&body)?;
            shared.load(name.to_string()).await?;
            empty_response(true, "")
        }
        Route::Unload(name) => {
            shared.unload(name.to_string()).await?;
            empty_response(true, "")
        }
        Route::Metadata(name, version) => answer_metadata(shared, name, version, reservation).await,
        Route::ModelReady(name, version) => {
            empty_response(service.is_model_ready(name, version)?, "the model is not ready")
        }
        Route::Config(name, version) => {
            let (_, generation) = shared.model(name, version).await?;
            let config = triton::config(name, &generation, &mut reservation)?;
            json_response(&config, reservation)
        }
        Route::Statistics(name, version) => {
            let statistics = triton::statistics(service, (name, version), &mut reservation)?;
            json_response(&statistics, reservation)
        }
        Route::Infer(name, version) => {
            answer_infer(shared, parts, (name, version), body, reservation, entry).await
        }
    }
}

fn no_path_error(parts: &Parts) -> Refusal {
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
    #[serde(serialize_with = "serialize_tensors")]
    inputs: Vec<&'a TensorSpec>,
    #[serde(serialize_with = "serialize_tensors")]
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

/// Serializes tensor specifications one by one.
fn serialize_tensors<S: Serializer>(specs: &[&TensorSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(specs.iter().map(|spec| TensorMetadata {
        name: &spec.name,
        datatype: datatype::name(spec.dtype),
        shape: spec.shape(),
    }))
}

async fn answer_metadata(
    shared: &Shared,
    name: &str,
    version: &str,
    reservation: Reservation,
) -> Result<Response<Reply>> {
    let (versions, model) = shared.model(name, version).await?;
    let (inputs, outputs) = (model.inputs().collect(), model.outputs().iter().collect());
    let parameters = model.task();
    json_response(&Metadata { name, versions, platform: PLATFORM, inputs, outputs, parameters }, reservation)
}

#[derive(Serialize)]
struct IndexItem<'a> {
    name: &'a str,
    version: &'a str,
    state: &'static str,
    reason: &'a str,
}

async fn answer_index(
    shared: &Arc<Shared>,
    body: &Bytes,
    reservation: Reservation,
) -> Result<Response<Reply>> {
    let only_ready = Control::read(body)?.ready;
    let (models, reservation) = shared.index(only_ready, reservation).await?;
    let entries = models.iter().map(|model| IndexItem {
        name: &model.name,
        version: &model.version,
        state: if model.is_ready { "READY" } else { "UNAVAILABLE" },
        reason: &model.reason,
    });
    let mut out = Buffer::new(reservation);
    out.push(b"[")?;
    for (i, entry) in entries.enumerate() {
        if i > 0 {
            out.push(b",")?;
        }
        out.write_json(&entry)?;
    }
    out.push(b"]")?;
    let (bytes, reservation) = out.finish()?;
    Ok(with_content_type(Reply::from_bytes(bytes, reservation), "application/json"))
}

/// The start of the page that lists the models.
const PAGE: &str = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>pteron serve</title>\n\
    <style>body{font:16px/1.5 system-ui,sans-serif;margin:2em;color-scheme:light dark}td,th{padding:0 1em 0 0;text-align:left}</style>\n\
    <h1>pteron serve</h1>\n<p><a href=\"/v2\">server</a> <a href=\"/metrics\">metrics</a>\n<table>\n\
    <tr><th>model<th>version<th>state<th>\n";

/// The page that lists the models. Their names consist of letters, digits, `_`, `-` and `.`, so nothing is escaped.
async fn answer_page(shared: &Arc<Shared>, reservation: Reservation) -> Result<Response<Reply>> {
    let (models, reservation) = shared.index(false, reservation).await?;
    let mut out = Buffer::new(reservation);
    out.push(PAGE.as_bytes())?;
    for IndexEntry { name, version, is_ready, .. } in &models {
        let row = match is_ready {
            true => format!(
                "<tr><td><a href=\"/v2/models/{name}/versions/{version}\">{name}</a><td>{version}<td>ready<td>\
                 <a href=\"/v2/models/{name}/versions/{version}/config\">configuration</a> \
                 <a href=\"/v2/models/{name}/versions/{version}/stats\">statistics</a>\n"
            ),
            false => format!("<tr><td>{name}<td>{version}<td>not ready<td>\n"),
        };
        out.push(row.as_bytes())?;
    }
    out.push(b"</table>\n")?;
    let (bytes, reservation) = out.finish()?;
    let mut response = with_content_type(Reply::from_bytes(bytes, reservation), "text/html; charset=utf-8");
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}

/// Fails if a request to load a model brings files or a configuration of its own.
fn refuse_load_parameters(body: &Bytes) -> Result<()> {
    match Control::read(body)?.has_parameters() {
        true => Err(load_parameters_error()),
        false => Ok(()),
    }
}

async fn answer_infer(
    shared: &Arc<Shared>,
    parts: &Parts,
    (name, version): (&str, &str),
    body: Bytes,
    reservation: Reservation,
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
    let json::Parsed { request, binary, classes } = shared
        .run_blocking(header, move || json::read_request(&body, header, name, version, reservation))
        .await?;
    let response = shared.infer(request).await?;
    entry.set_timing(&response.timing);
    let size = response.outputs.iter().map(|output| output.data.len()).sum();
    let (bytes, header, reservation) =
        shared.run_blocking(size, move || json::write_response(response, &binary, &classes)).await?;
    let is_json = header == bytes.len();
    let kind = if is_json { "application/json" } else { "application/octet-stream" };
    let mut response = with_content_type(Reply::from_bytes(bytes, reservation), kind);
    if !is_json {
        response.headers_mut().insert(HEADER_LENGTH, HeaderValue::from(header));
    }
    Ok(response)
}
