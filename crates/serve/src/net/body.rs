//! Request bodies, which are read within limits, and response bodies, which are sent in chunks.

use super::activity::{Activity, ResponseGuard};
use crate::budget::Reservation;
use crate::refusal::{Reason, Refusal, Result};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// Reads a body of at most `limit` bytes within `time`; charges its memory to `reservation` as it arrives.
pub(super) async fn read_body(
    body: Incoming,
    limit: u64,
    time: Duration,
    reservation: &mut Reservation,
) -> Result<Bytes> {
    let hint = body.size_hint();
    if hint.lower() > limit {
        discard_body(body);
        return Err(too_large_error(limit));
    }
    let slow = |_| Err(Refusal::new(Reason::Deadline, format!("the body has not come within {time:?}")));
    let most = hint.exact().unwrap_or(limit);
    tokio::time::timeout(time, read_frames(body, limit, most, reservation)).await.unwrap_or_else(slow)
}

async fn read_frames(
    mut body: Incoming,
    limit: u64,
    most: u64,
    reservation: &mut Reservation,
) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    let (mut len, mut charged) = (0u64, 0u64);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| broken_body_error(&e))?.into_data() else { continue };
        len += data.len() as u64;
        if len > limit {
            return Err(too_large_error(limit));
        }
        if len == data.len() as u64 {
            reservation.grow(len)?;
            (first, charged) = (data, len);
            continue;
        }
        let capacity = capacity_for(len, all.capacity() as u64, most);
        reservation.grow(capacity.saturating_sub(charged))?;
        charged = charged.max(capacity);
        let more = usize::try_from(capacity).map_or(usize::MAX, |capacity| capacity - all.len());
        all.try_reserve_exact(more).map_err(|_| out_of_memory_error())?;
        all.extend_from_slice(&std::mem::take(&mut first));
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// The capacity for the first `len` bytes of a body that has at most `most`: half as much again as there was, so that a
/// byte is moved a bounded number of times.
fn capacity_for(len: u64, capacity: u64, most: u64) -> u64 {
    if len <= capacity { capacity } else { (capacity + capacity / 2).min(most).max(len) }
}

/// The bytes of an unwanted body that are received and dropped, and how long they are waited for: a client that sends a
/// little more than was wanted gets its response before the connection is closed.
const DRAINED_BYTES: u64 = 256 << 10;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Reads and discards an unwanted body in the background, up to a limit.
pub(super) fn discard_body(mut body: Incoming) {
    if body.is_end_stream() || body.size_hint().lower() > DRAINED_BYTES {
        return;
    }
    let drained = async move {
        let mut len = 0;
        while let Some(Ok(frame)) = body.frame().await {
            len += frame.data_ref().map_or(0, Bytes::len) as u64;
            if len > DRAINED_BYTES {
                return;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(DRAIN_TIME, drained));
}

/// The refusal for a body that ends early: the client has disconnected, or the chunked encoding is malformed.
fn broken_body_error(error: &hyper::Error) -> Refusal {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause {
        Some(cause) if matches!(cause.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
            Refusal::invalid(format!("the body is malformed: {cause}"))
        }
        _ => Refusal::new(Reason::Cancelled, format!("the body has not come as a whole: {error}")),
    }
}

fn out_of_memory_error() -> Refusal {
    Refusal::new(Reason::Busy, "there is not enough memory for the body; try again later")
}

fn too_large_error(limit: u64) -> Refusal {
    Refusal::new(Reason::TooLarge, format!("the body is larger than {limit} bytes"))
}

/// The maximum size in bytes of a response's data frames. What a slow reader has not been sent stays in the budget.
const FRAME_BYTES: usize = 64 << 10;

/// The body of a response.
pub(super) struct Reply {
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    /// The guard that tells the connection when the client accepts a part of the response.
    watch: Weak<ResponseGuard>,
}

/// Bytes of a response, and an owner that is dropped when they have been sent.
struct Owned<T> {
    bytes: Bytes,
    _owner: T,
}

impl<T> AsRef<[u8]> for Owned<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Reply {
    /// An empty response.
    pub(super) fn empty() -> Self {
        Self { bytes: Bytes::new(), trailers: None, watch: Weak::new() }
    }

    /// A response of bytes that are charged to `reservation`.
    pub(super) fn from_bytes(bytes: impl Into<Bytes>, reservation: Reservation) -> Self {
        let bytes = Bytes::from_owner(Owned { bytes: bytes.into(), _owner: reservation });
        Self { bytes, ..Self::empty() }
    }

    /// A response of a short text, which is not charged to the budget.
    pub(super) fn from_text(text: String) -> Self {
        Self { bytes: text.into(), ..Self::empty() }
    }

    /// The number of bytes of the response.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of the response, which share its reservation.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The response with other bytes, which are charged to `reservation`, and the same trailers.
    pub(super) fn with_bytes(self, bytes: impl Into<Bytes>, reservation: Reservation) -> Self {
        Self { trailers: self.trailers, ..Self::from_bytes(bytes, reservation) }
    }

    pub(super) fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }

    /// Adds a guard through which a connection watches whether the client accepts the response.
    pub(super) fn with_watch(self, activity: &Arc<Activity>) -> Self {
        if self.bytes.is_empty() {
            return self;
        }
        let guard = activity.track_response();
        let watch = Arc::downgrade(&guard);
        Self { bytes: Bytes::from_owner(Owned { bytes: self.bytes, _owner: guard }), watch, ..self }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(watch) = self.watch.upgrade() {
            watch.note_progress();
        }
        let len = self.bytes.len().min(FRAME_BYTES);
        let frame = match len {
            0 => self.trailers.take().map(Frame::trailers),
            _ => Some(Frame::data(self.bytes.split_to(len))),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
