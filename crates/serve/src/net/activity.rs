//! What a connection is doing, so that clients that do nothing are disconnected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The requests of a connection, and the responses that its client has not accepted yet.
///
/// Timeouts of reads and writes do not suffice for HTTP/2: its client can answer pings, and never send a request nor
/// open a window for a response.
pub(super) struct Activity {
    state: Mutex<State>,
}

struct State {
    /// The number of requests on the connection that have no response yet.
    requests: usize,
    /// For each response being sent, when it last made progress.
    responses: BTreeMap<u64, Instant>,
    next_id: u64,
    /// When the last request or response on the connection ended.
    idle_since: Instant,
}

/// What is to be done with a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Keep the connection open, and judge it again at this time.
    Until(Instant),
    /// Close the connection gracefully, as it was idle for too long, and forcibly if it is still open at this time.
    Idle(Instant),
    /// Close the connection forcibly: its client does not accept a response, or does not close it when asked to.
    Stalled,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        let state = State { requests: 0, responses: BTreeMap::new(), next_id: 0, idle_since: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request as unanswered until the returned guard is dropped.
    pub(super) fn track_request(self: &Arc<Self>) -> RequestGuard {
        self.lock().requests += 1;
        RequestGuard(Arc::clone(self))
    }

    /// Tracks a response as being sent until the returned guard is dropped.
    pub(super) fn track_response(self: &Arc<Self>) -> Arc<ResponseGuard> {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.responses.insert(id, Instant::now());
        Arc::new(ResponseGuard { activity: Arc::clone(self), id })
    }

    /// Judges the connection: `idle` is the longest time without a request, `stalled` the longest without progress of a
    /// response.
    pub(super) fn verdict(&self, idle: Duration, stalled: Duration) -> Verdict {
        let (state, now) = (self.lock(), Instant::now());
        let slowest = state.responses.values().min().map(|&last| last + stalled);
        if slowest.is_some_and(|end| end <= now) {
            return Verdict::Stalled;
        }
        let idle_end = state.idle_since + idle;
        // A request or response that begins after this check is checked again before it can be idle or stalled for too long.
        let next = now + idle.min(stalled);
        match state.requests == 0 && slowest.is_none() {
            false => Verdict::Until(slowest.unwrap_or(next).min(next)),
            true if now < idle_end => Verdict::Until(idle_end.min(next)),
            true if now < idle_end + stalled => Verdict::Idle(idle_end + stalled),
            true => Verdict::Stalled,
        }
    }
}

impl State {
    fn end_exchange(&mut self) {
        if self.requests == 0 && self.responses.is_empty() {
            self.idle_since = Instant::now();
        }
    }
}

/// A guard that counts a request as unanswered until the guard is dropped.
pub(super) struct RequestGuard(Arc<Activity>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.requests -= 1;
        state.end_exchange();
    }
}

/// A guard that tracks a response as being sent until the guard is dropped.
pub(super) struct ResponseGuard {
    activity: Arc<Activity>,
    id: u64,
}

impl ResponseGuard {
    /// Notes that the client has accepted a part of the response.
    pub(super) fn note_progress(&self) {
        if let Some(last) = self.activity.lock().responses.get_mut(&self.id) {
            *last = Instant::now();
        }
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        let mut state = self.activity.lock();
        state.responses.remove(&self.id);
        state.end_exchange();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_connection_is_idle_without_requests_and_stalled_without_progress() {
        let activity = Activity::new();
        assert!(matches!(activity.verdict(LONG, LONG), Verdict::Until(_)));
        assert!(matches!(activity.verdict(Duration::ZERO, LONG), Verdict::Idle(_)));
        assert_eq!(activity.verdict(Duration::ZERO, Duration::ZERO), Verdict::Stalled);
        let request = activity.track_request();
        assert!(matches!(activity.verdict(Duration::ZERO, Duration::ZERO), Verdict::Until(_)));
        let response = activity.track_response();
        drop(request);
        assert!(matches!(activity.verdict(Duration::ZERO, LONG), Verdict::Until(_)));
        assert_eq!(activity.verdict(LONG, Duration::ZERO), Verdict::Stalled);
        response.note_progress();
        drop(response);
        assert!(matches!(activity.verdict(LONG, Duration::ZERO), Verdict::Until(_)));
        assert!(matches!(activity.verdict(Duration::ZERO, LONG), Verdict::Idle(_)));
    }
}
