//! Handling of requests that both protocols share: routing between them, the token check, and reading of bodies.

use super::activity::Activity;
use super::body::{self, Reply};
use super::compression::{self, Coding, compress_grpc, compress_rest};
use super::log::Entry;
use super::shared::Shared;
use super::{cors, grpc, rest};
use crate::budget::Reservation;
use crate::refusal::{Reason, Refusal, Result};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use std::net::SocketAddr;
use std::sync::Arc;

impl Shared {
    /// Answers one request of a connection.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: SocketAddr,
        activity: Arc<Activity>,
    ) -> Response<Reply> {
        let _guard = activity.track_request();
        let (parts, body) = request.into_parts();
        let is_grpc = parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let method = if is_grpc { "gRPC" } else { parts.method.as_str() };
        let mut entry = Entry::new(self.options.log.clone(), peer, method, parts.uri.path());
        if let Some(traceparent) = parts.headers.get("traceparent") {
            entry.set_traceparent(traceparent.as_bytes());
        }
        let origin = cors::allowed_origin(&self.options.allowed_origins, &parts);
        let response = match (is_grpc, &origin) {
            (true, _) => self.answer_grpc(&parts, body, &mut entry).await,
            // Browsers send no token with a preflight request.
            (false, Some(_)) if cors::is_preflight(&parts) => {
                body::discard_body(body);
                Ok(cors::preflight_response())
            }
            (false, _) => self.answer_rest(&parts, body, &mut entry).await,
        };
        entry.set_outcome(response.as_ref().err().map(|refusal| refusal.reason));
        let mut response = response.unwrap_or_else(|refusal| match is_grpc {
            true => grpc::refusal_response(&refusal),
            false => rest::refusal_response(&refusal),
        });
        if let Some(origin) = origin {
            cors::allow_origin(response.headers_mut(), origin);
        }
        response.map(|reply| reply.with_watch(&activity))
    }

    async fn answer_rest(
        self: &Arc<Self>,
        parts: &Parts,
        body: Incoming,
        entry: &mut Entry,
    ) -> Result<Response<Reply>> {
        let route = rest::Route::parse(parts);
        let is_health = route.as_ref().is_ok_and(rest::Route::is_health);
        let admitted = self.check_token(parts, is_health).and(route).and_then(|route| {
            self.check_control(route.is_control())?;
            route.check_head(self)?;
            Ok((route, Coding::of_content(&parts.headers)?))
        });
        let limit = admitted.as_ref().map_or(0, |(route, _)| route.max_body(self.options.max_body));
        let reservation = self.service.hold();
        let ((route, coding), mut body, mut reservation) =
            self.read_admitted(admitted, body, limit, reservation, entry).await?;
        if let Some(coding) = coding.filter(|_| limit > 0) {
            (body, reservation) = compression::decompress(self, body, coding, limit, reservation).await?;
        }
        let response = rest::answer(self, route, parts, body, reservation, entry).await?;
        Ok(compress_rest(self, &parts.headers, response).await)
    }

    async fn answer_grpc(
        self: &Arc<Self>,
        parts: &Parts,
        body: Incoming,
        entry: &mut Entry,
    ) -> Result<Response<Reply>> {
        let route = grpc::Route::parse(parts);
        let is_health = route.as_ref().is_ok_and(|route| route.is_health());
        let admitted = self.check_token(parts, is_health).and(route).and_then(|route| {
            self.check_control(route.is_control())?;
            Ok((route, Coding::of_messages(&parts.headers)?))
        });
        let limit = admitted.as_ref().map_or(0, |(route, _)| route.max_body(self.options.max_body));
        let reservation = match admitted.as_ref().is_ok_and(|(route, _)| route.is_probe()) {
            true => self.service.hold_uncounted(),
            false => self.service.hold(),
        };
        let ((route, coding), body, reservation) =
            self.read_admitted(admitted, body, limit, reservation, entry).await?;
        let (message, reservation) =
            grpc::read_message(self, route, body, coding, limit, reservation).await?;
        let response = grpc::answer(self, route, parts, message, reservation, entry).await?;
        Ok(compress_grpc(self, coding, response).await)
    }

    /// Reads the body of a request, if it was admitted; otherwise discards the body and returns the refusal.
    async fn read_admitted<R>(
        &self,
        admitted: Result<R>,
        body: Incoming,
        limit: u64,
        mut reservation: Reservation,
        entry: &mut Entry,
    ) -> Result<(R, Bytes, Reservation)> {
        let route = match admitted {
            Ok(route) if limit > 0 => route,
            other => {
                body::discard_body(body);
                return Ok((other?, Bytes::new(), reservation));
            }
        };
        let body = body::read_body(body, limit, self.options.body_timeout, &mut reservation).await?;
        entry.line.bytes_in = body.len();
        Ok((route, body, reservation))
    }

    /// Checks the bearer token of a request. Health checks need none.
    fn check_token(&self, parts: &Parts, is_health: bool) -> Result<()> {
        let Some(token) = self.options.token.as_ref().filter(|_| !is_health) else { return Ok(()) };
        let header = parts.headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let sent = header.strip_prefix(b"Bearer ").unwrap_or_default();
        match constant_time_eq(sent, token.as_bytes()) {
            true => Ok(()),
            false => Err(Refusal::new(
                Reason::Unauthenticated,
                "a bearer token is needed: `authorization: Bearer …`",
            )),
        }
    }

    fn check_control(&self, is_control: bool) -> Result<()> {
        match self.options.allow_control || !is_control {
            true => Ok(()),
            false => {
                Err(Refusal::new(Reason::Forbidden, "loading and unloading models on request is not enabled"))
            }
        }
    }
}

/// Compares slices in a time that does not depend on where they differ.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
