//! Cross-origin requests of pages in browsers.

use super::body::Reply;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

/// The `access-control-allow-origin` for the request's origin: `None` if the request has none, or one that is not among
/// `allowed`, where `*` allows every origin.
pub(super) fn allowed_origin(allowed: &[String], parts: &Parts) -> Option<HeaderValue> {
    let origin = parts.headers.get(ORIGIN)?;
    if allowed.iter().any(|own| own == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    allowed.iter().any(|own| own.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

/// Whether a browser asks if a page may send a request.
pub(super) fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The response to a browser that asks if a page of an allowed origin may send a request.
pub(super) fn preflight_response() -> Response<Reply> {
    let mut response = Response::new(Reply::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let list = "authorization, content-encoding, content-type, inference-header-content-length, traceparent";
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(list));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// Lets pages of the origin read a response.
pub(super) fn allow_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers
        .insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("inference-header-content-length"));
    headers.append(VARY, HeaderValue::from_static("origin"));
}
