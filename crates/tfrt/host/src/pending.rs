//! The values that a request waits for, which its cancellation makes available.
//!
//! A kernel may return a value that nobody ever resolves, or that several requests share. So executions and callers do
//! not wait for that value itself but for a [`Relay`] of it, which takes the value, or the error that the request is
//! cancelled with, whichever comes first.

use crate::async_value::{AsyncValue, Promise};
use crate::error::ErrorValue;
use crate::sync::{Mutex, lock};
use crate::value::Value;
use pteron_pool::{Resume, Task};
use std::sync::{Arc, Weak};

/// Resolves a promise with the value of a source, or with the request's cancellation if that comes first.
pub(crate) struct Relay(Mutex<Option<Source>>);

struct Source {
    promise: Promise,
    source: AsyncValue,
}

impl Relay {
    fn take_source(&self) -> Option<Source> {
        lock(&self.0).take()
    }

    fn cancel(&self, error: &ErrorValue) {
        if let Some(source) = self.take_source() {
            source.promise.set(Value::Error(error.clone()));
        }
    }
}

impl Resume for Relay {
    /// Resolves the promise with the value of the source, which is available.
    fn resume(self: Arc<Self>, _: u64) {
        if let Some(Source { promise, source }) = self.take_source() {
            promise.set(Value::Async(source));
        }
    }
}

/// The relays of a request: values that its cancellation resolves.
#[derive(Default)]
pub(crate) struct Pending(Mutex<List>);

#[derive(Default)]
struct List {
    relays: Vec<Weak<Relay>>,
    /// The length of `relays` at which relays that were dropped are removed from it.
    sweep_at: usize,
    cancelled: Option<ErrorValue>,
}

/// Minimum of [`List::sweep_at`].
const MIN_SWEEP: usize = 64;

impl Pending {
    /// A value that becomes that of `source`, or the request's error if the request is cancelled first. `target` is the promise of the
    /// value, and the value.
    pub(crate) fn relay(&self, target: (Promise, AsyncValue), source: AsyncValue) -> Value {
        let (promise, value) = target;
        let relay = Arc::new(Relay(Mutex::new(Some(Source { promise, source: source.clone() }))));
        if let Some(error) = self.add(&relay) {
            relay.cancel(&error);
        } else {
            source.run_when_available(Task::resume(relay, 0));
        }
        Value::Async(value).settle()
    }

    /// Adds a relay, or returns the error if the request is cancelled.
    fn add(&self, relay: &Arc<Relay>) -> Option<ErrorValue> {
        let mut list = lock(&self.0);
        if list.cancelled.is_some() {
            return list.cancelled.clone();
        }
        if list.relays.len() >= list.sweep_at {
            list.relays.retain(|relay| relay.strong_count() > 0);
            list.sweep_at = MIN_SWEEP.max(2 * list.relays.len());
        }
        list.relays.push(Arc::downgrade(relay));
        None
    }

    /// Resolves the values of all relays to `error`, including relays that are added later.
    pub(crate) fn cancel(&self, error: &ErrorValue) {
        let mut list = lock(&self.0);
        list.cancelled.get_or_insert_with(|| error.clone());
        let relays = std::mem::take(&mut list.relays);
        drop(list);
        relays.iter().filter_map(Weak::upgrade).for_each(|relay| relay.cancel(error));
    }
}
