//! Handling of requests that both protocols share: routing between them, the token check, and calls of the service.

use super::activity::Activity;
use super::body::{self, Reply};
use super::log::Entry;
use super::server::ServerOptions;
use super::{grpc, rest};
use crate::budget::Reservation;
use crate::buffer::Buffer;
use crate::metrics;
use crate::models::IndexEntry;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::{InferRequest, InferResponse};
use crate::service::Service;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::oneshot;

/// The size above which bodies are parsed and written on a blocking thread instead of the reactor.
const MAX_INLINE_BYTES: usize = 32 << 10;

/// State shared by all connections.
pub(super) struct Shared {
    pub(super) service: Arc<Service>,
    pub(super) options: ServerOptions,
    pub(super) connections: AtomicU64,
    /// Held while a model is loaded on request.
    pub(super) loads: tokio::sync::Mutex<()>,
    /// The maximum number of open connections since memory was last reclaimed.
    pub(super) peak_connections: AtomicU64,
    /// The number of connections that were closed at once because of the limit.
    pub(super) rejected: AtomicU64,
}

impl Shared {
    /// Answers a request.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: SocketAddr,
        activity: Arc<Activity>,
    ) -> Response<Reply> {
        let _guard = activity.request();
        let (parts, body) = request.into_parts();
        let is_grpc = parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let method = if is_grpc { "gRPC" } else { parts.method.as_str() };
        let mut entry = Entry::new(self.options.log.clone(), peer, method, parts.uri.path());
        let response = match is_grpc {
            true => self.grpc(&parts, body, &mut entry).await,
            false => self.rest(&parts, body, &mut entry).await,
        };
        entry.outcome(response.as_ref().err().map(|refusal| refusal.reason));
        let response = response.unwrap_or_else(|refusal| match is_grpc {
            true => grpc::refused(&refusal),
            false => rest::refused(&refusal),
        });
        response.map(|reply| reply.watched(&activity))
    }

    async fn rest(
        self: &Arc<Self>,
        parts: &Parts,
        body: Incoming,
        entry: &mut Entry,
    ) -> Result<Response<Reply>> {
        let route = rest::Route::of(parts);
        let is_health = route.as_ref().is_ok_and(rest::Route::is_health);
        let admitted = self.admit(parts, is_health).and(route).and_then(|route| {
            self.check_control(route.is_control())?;
            route.check_head(self, parts)?;
            Ok(route)
        });
        let limit = admitted.as_ref().map_or(0, |route| route.max_body(self.options.max_body));
        let (route, body, held) = self.read(admitted, body, limit, entry).await?;
        rest::answer(self, route, parts, body, held, entry).await
    }

    async fn grpc(
        self: &Arc<Self>,
        parts: &Parts,
        body: Incoming,
        entry: &mut Entry,
    ) -> Result<Response<Reply>> {
        let route = grpc::Route::of(parts);
        let is_health = route.as_ref().is_ok_and(|route| route.is_health());
        let admitted = self.admit(parts, is_health).and(route).and_then(|route| {
            self.check_control(route.is_control())?;
            Ok(route)
        });
        let limit = admitted.as_ref().map_or(0, |route| route.max_body(self.options.max_body));
        let (route, body, held) = self.read(admitted, body, limit, entry).await?;
        grpc::answer(self, route, parts, body, held, entry).await
    }

    /// Reads the body of a request that was admitted by its head. No other body is kept or charged.
    async fn read<R>(
        &self,
        admitted: Result<R>,
        body: Incoming,
        limit: u64,
        entry: &mut Entry,
    ) -> Result<(R, Bytes, Reservation)> {
        let mut held = self.service.hold();
        let route = match admitted {
            Ok(route) if limit > 0 => route,
            other => {
                body::drain(body);
                return Ok((other?, Bytes::new(), held));
            }
        };
        let body = body::read(body, limit, self.options.body_timeout, &mut held).await?;
        entry.line.bytes_in = body.len();
        Ok((route, body, held))
    }

    /// Checks the bearer token. Health checks need none.
    fn admit(&self, parts: &Parts, is_health: bool) -> Result<()> {
        let Some(token) = self.options.token.as_ref().filter(|_| !is_health) else { return Ok(()) };
        let given = parts.headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
        match constant_time_eq(given, token.as_bytes()) {
            true => Ok(()),
            false => Err(Refusal::new(
                Reason::Unauthenticated,
                "a bearer token is needed: `authorization: Bearer …`",
            )),
        }
    }

    /// Executes a request and waits for its result. Dropping the future cancels the request.
    pub(super) async fn infer(&self, mut request: InferRequest) -> Result<InferResponse> {
        let latest = Instant::now() + self.service.options().deadline;
        let deadline = request.deadline.map_or(latest, |deadline| deadline.min(latest));
        request.deadline = Some(deadline);
        let (send, receive) = oneshot::channel();
        let _ticket = self.service.infer(request, move |result| drop(send.send(result)))?;
        match tokio::time::timeout_at(deadline.into(), receive).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Refusal::new(Reason::Cancelled, "the request was dropped")),
            Err(_) => Err(Refusal::new(Reason::Deadline, "the request's deadline has passed")),
        }
    }

    /// Runs work whose time is proportional to `bytes`: on a blocking thread if it is large, so that it does not delay other
    /// connections.
    pub(super) async fn off_reactor<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if bytes <= MAX_INLINE_BYTES {
            return work();
        }
        let panicked = |_| Err(Refusal::new(Reason::Failed, "the server panicked"));
        tokio::task::spawn_blocking(work).await.unwrap_or_else(panicked)
    }

    /// The entries of the index, which are charged to `held`.
    pub(super) async fn index(
        &self,
        only_ready: bool,
        mut held: Reservation,
    ) -> Result<(Vec<IndexEntry>, Reservation)> {
        let service = Arc::clone(&self.service);
        let index = move || {
            let mut all = service.charged_index(&mut held)?;
            all.retain(|model| model.is_ready || !only_ready);
            Ok((all, held))
        };
        self.off_reactor(usize::MAX, index).await
    }

    pub(super) async fn load(&self, name: String) -> Result<()> {
        // Loads wait here for each other, not on the few threads that also parse requests.
        let _alone = self.loads.lock().await;
        let service = Arc::clone(&self.service);
        self.off_reactor(usize::MAX, move || service.load(&name)).await
    }

    pub(super) async fn unload(&self, name: String) -> Result<()> {
        let service = Arc::clone(&self.service);
        self.off_reactor(usize::MAX, move || service.unload(&name)).await
    }

    fn check_control(&self, is_control: bool) -> Result<()> {
        match self.options.allow_control || !is_control {
            true => Ok(()),
            false => {
                Err(Refusal::new(Reason::Forbidden, "loading and unloading models on request is not enabled"))
            }
        }
    }

    /// The metrics, charged to `held`.
    pub(super) fn metrics(&self, held: Reservation) -> Result<(Vec<u8>, Reservation)> {
        let mut out = Buffer::new(held);
        self.service.write_metrics(&mut out);
        let connections = self.connections.load(Ordering::Relaxed);
        metrics::write_number(
            &mut out,
            ("pteron_connections", "Connections that are open.", "gauge"),
            connections,
        );
        let rejected = self.rejected.load(Ordering::Relaxed);
        let family =
            ("pteron_rejected_connections_total", "Connections above the limit, closed at once.", "counter");
        metrics::write_number(&mut out, family, rejected);
        out.finish()
    }
}

/// The refusal of a request to load a model with its own files or configuration.
pub(super) fn no_load_parameters() -> Refusal {
    Refusal::new(
        Reason::Unsupported,
        "models are loaded from the server's folder: load parameters are not supported",
    )
}

/// Compares in a time that does not depend on where the slices differ.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
