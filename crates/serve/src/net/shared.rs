//! The state that all connections share, and calls of the service.

use super::options::ServerOptions;
use crate::budget::Reservation;
use crate::buffer::Buffer;
use crate::generation::Generation;
use crate::metrics;
use crate::models::IndexEntry;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::{InferRequest, InferResponse};
use crate::service::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::oneshot;

/// The size in bytes above which bodies are parsed and written on a blocking thread, not on the one that serves
/// connections.
const MAX_INLINE_BYTES: usize = 32 << 10;

/// The state that all connections share.
pub(super) struct Shared {
    pub(super) service: Arc<Service>,
    pub(super) options: ServerOptions,
    pub(super) connections: AtomicU64,
    /// Held while a model is loaded on request, so that one is loaded at a time.
    pub(super) loads: Arc<tokio::sync::Mutex<()>>,
    /// The maximum number of open connections since memory was last reclaimed.
    pub(super) peak_connections: AtomicU64,
    /// The number of connections that were closed at once because too many were open.
    pub(super) rejected: AtomicU64,
}

impl Shared {
    /// Executes a request and waits for its result. Dropping the future cancels the request.
    pub(super) async fn infer(&self, mut request: InferRequest) -> Result<InferResponse> {
        let latest = Instant::now() + self.service.options().deadline;
        let deadline = request.deadline.map_or(latest, |deadline| deadline.min(latest));
        request.deadline = Some(deadline);
        let loading = self.model(&request.model, &request.version);
        let late =
            |_| Err(Refusal::new(Reason::Deadline, "the model was not loaded by the request's deadline"));
        // The reference keeps a model that is loaded on demand until the request is accepted.
        let _loaded = tokio::time::timeout_at(deadline.into(), loading).await.unwrap_or_else(late)?;
        if !request.pictures.is_empty() {
            let service = Arc::clone(&self.service);
            request = self.run_blocking(usize::MAX, move || service.decode_pictures(request)).await?;
        }
        let (send, receive) = oneshot::channel();
        let _ticket = self.service.infer(request, move |result| drop(send.send(result)))?;
        match tokio::time::timeout_at(deadline.into(), receive).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Refusal::new(Reason::Cancelled, "the request was dropped")),
            Err(_) => Err(Refusal::new(Reason::Deadline, "the request's deadline has passed")),
        }
    }

    /// The versions of a model that answer requests, and the generation of the selected one, which is loaded if necessary.
    /// The load goes on if the future is dropped.
    pub(super) async fn model(&self, name: &str, version: &str) -> Result<(Vec<String>, Arc<Generation>)> {
        if let Some(loaded) = self.service.loaded_model(name, version)? {
            return Ok(loaded);
        }
        let alone = Arc::clone(&self.loads).lock_owned().await;
        let (service, name, version) = (Arc::clone(&self.service), name.to_owned(), version.to_owned());
        let load = move || {
            let _alone = alone;
            service.model(&name, &version)
        };
        self.run_blocking(usize::MAX, load).await
    }

    /// Runs work whose time is proportional to `bytes`: on a blocking thread if it is large, so that it does not delay
    /// other connections.
    pub(super) async fn run_blocking<T: Send + 'static>(
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

    /// The entries of the repository index. Their memory is charged to `reservation`.
    pub(super) async fn index(
        &self,
        only_ready: bool,
        mut reservation: Reservation,
    ) -> Result<(Vec<IndexEntry>, Reservation)> {
        let service = Arc::clone(&self.service);
        let index = move || {
            let mut all = service.charged_index(&mut reservation)?;
            all.retain(|model| model.is_ready || !only_ready);
            Ok((all, reservation))
        };
        self.run_blocking(usize::MAX, index).await
    }

    pub(super) async fn load(&self, name: String) -> Result<()> {
        // Loads wait here for each other, not on the few threads that also parse requests.
        let alone = Arc::clone(&self.loads).lock_owned().await;
        let service = Arc::clone(&self.service);
        let load = move || {
            let _alone = alone;
            service.load(&name)
        };
        self.run_blocking(usize::MAX, load).await
    }

    pub(super) async fn unload(&self, name: String) -> Result<()> {
        let service = Arc::clone(&self.service);
        self.run_blocking(usize::MAX, move || service.unload(&name)).await
    }

    /// The metrics as text, whose memory is charged to `reservation`.
    pub(super) fn metrics(&self, reservation: Reservation) -> Result<(Vec<u8>, Reservation)> {
        let mut out = Buffer::new(reservation);
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
