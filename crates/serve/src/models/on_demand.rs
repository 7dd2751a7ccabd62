//! Models that are loaded by their first request, and let go when they are idle or others need their memory.

use super::{Entry, Failure, Found, Models, State};
use crate::event::{Event, Release};
use crate::generation::Generation;
use crate::options::ServiceOptions;
use crate::refusal::{Reason, Refusal, Result};
use crate::repository::Files;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The time of a model's last request.
#[derive(Debug)]
pub(crate) struct LastUse {
    since: Instant,
    /// In nanoseconds after `since`.
    nanos: AtomicU64,
}

impl Default for LastUse {
    fn default() -> Self {
        Self { since: Instant::now(), nanos: AtomicU64::new(0) }
    }
}

impl LastUse {
    /// Records a request, or the end of one.
    pub(crate) fn touch(&self) {
        let nanos = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    fn get(&self) -> Instant {
        self.since + Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

impl Models {
    /// Whether a version is loaded.
    pub(super) fn is_ready(&self, name: &str, version: u64) -> bool {
        let models = self.read();
        let entry = models.get(name).and_then(|versions| versions.get(&version));
        entry.is_some_and(|entry| matches!(entry.state, State::Ready(_)))
    }

    /// Leaves files of a version, which is not loaded, to the next request for it.
    pub(super) fn defer(&self, name: &str, version: u64, files: Files) {
        let mut models = self.write();
        let entries = models.entry(name.to_owned()).or_default();
        entries.entry(version).or_insert_with(|| self.new_entry()).state = State::OnDemand(Arc::new(files));
    }

    /// A version of a model that is loaded, if necessary by this call, which then takes as long; the highest that answers
    /// requests if `version` is empty.
    ///
    /// # Errors
    /// There is no such model or version, or it cannot be loaded.
    pub(crate) fn find_or_load(
        &self,
        name: &str,
        version: &str,
        options: &ServiceOptions,
    ) -> Result<(u64, Entry, Arc<Generation>)> {
        let version = match self.find(name, version)? {
            Found::Loaded(version, entry, generation) => {
                entry.last_use.touch();
                return Ok((version, entry, generation));
            }
            Found::OnDemand(version) => version,
        };
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let deferred = match self.read().get(name).and_then(|versions| versions.get(&version)) {
            Some(Entry { state: State::OnDemand(files), .. }) => Some(Arc::clone(files)),
            // Another request loaded it in the meantime.
            _ => None,
        };
        if let Some(files) = deferred {
            let loaded = self.load_files(name, version, &files, 0, options);
            let generation = loaded.inspect_err(|refusal| {
                // What failed for want of memory, for example, is tried again by the next request.
                if refusal.is_permanent() {
                    let is_kept = self.note_failure(name, Some(version), refusal);
                    let failure = Failure { files: Some(Files::clone(&files)), refusal: refusal.clone() };
                    failures.models.insert((name.to_owned(), Some(version)), failure);
                    let (model, version, refusal) = (name.to_owned(), Some(version), refusal.clone());
                    options.events.report(&Event::Failed { model, version, refusal, is_kept });
                }
            })?;
            let all: BTreeSet<u64> =
                self.read().get(name).into_iter().flat_map(|versions| versions.keys().copied()).collect();
            self.replace_versions(name, &all, vec![(version, generation)], options);
        }
        // Requests of others cannot make it let go before it is found: that takes the lock on failures.
        match self.find(name, &version.to_string())? {
            Found::Loaded(version, entry, generation) => Ok((version, entry, generation)),
            Found::OnDemand(_) => Err(Refusal::new(
                Reason::Busy,
                format!("the model `{name}` was let go again before it could be used; try again later"),
            )),
        }
    }

    /// The memory of the loaded models in bytes.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        let models = self.read();
        let loaded = models.values().flat_map(|versions| versions.values()).filter_map(loaded_generation);
        loaded.map(|generation| generation.memory).sum()
    }

    /// Lets models go, the least recently used first, until `bytes` more fit the memory for models, of which `others` are
    /// taken already. Models in use, and those whose state persists, stay.
    ///
    /// # Errors
    /// They do not fit.
    pub(super) fn make_room(&self, bytes: u64, others: u64, options: &ServiceOptions) -> Result<()> {
        let Some(limit) = options.on_demand.and_then(|on_demand| on_demand.memory) else { return Ok(()) };
        if bytes > limit {
            let message = format!("it takes {bytes} bytes of memory, all models together may take {limit}");
            return Err(Refusal::new(Reason::Failed, message));
        }
        let needed = bytes.saturating_add(others);
        loop {
            let used = self.loaded_bytes();
            if used.saturating_add(needed) <= limit {
                return Ok(());
            }
            if !self.release_one(Release::Memory, options, |_| true) {
                let used = used.saturating_add(others);
                let message = format!(
                    "it takes {bytes} bytes of memory, and models that are in use take {used} of {limit}; try again later"
                );
                return Err(Refusal::new(Reason::Busy, message));
            }
        }
    }

    /// Lets go models that had no request for `time`. Models in use, and those whose state persists, stay.
    pub(crate) fn release_idle(&self, time: Duration, options: &ServiceOptions) {
        let _alone = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |last_use: Instant| last_use.elapsed() >= time;
        while self.release_one(Release::Idle, options, is_idle) {}
    }

    /// Lets go the least recently used model that is not in use, has no state that persists, and whose last use fits.
    /// Returns false if there is none.
    fn release_one(&self, why: Release, options: &ServiceOptions, fits: impl Fn(Instant) -> bool) -> bool {
        let mut models = self.write();
        let entries = models.iter_mut().flat_map(|(name, versions)| {
            versions.iter_mut().map(move |(version, entry)| (name, *version, entry))
        });
        // Requests take their reference under the lock.
        let is_unused = |entry: &Entry| {
            loaded_generation(entry).is_some_and(|generation| {
                Arc::strong_count(generation) == 1 && !generation.has_persistent_state()
            })
        };
        let oldest = entries
            .filter(|(.., entry)| is_unused(entry) && fits(entry.last_use.get()))
            .min_by_key(|(.., entry)| entry.last_use.get());
        let Some((name, version, entry)) = oldest else { return false };
        let Some(generation) = loaded_generation(entry) else { return false };
        let deferred = State::OnDemand(Arc::new(generation.files.clone()));
        let (model, released) = (name.clone(), std::mem::replace(&mut entry.state, deferred));
        drop(models);
        // Free the generation after releasing the lock.
        drop(released);
        options.events.report(&Event::Released { model, version, why });
        true
    }
}

fn loaded_generation(entry: &Entry) -> Option<&Arc<Generation>> {
    match &entry.state {
        State::Ready(generation) => Some(generation),
        _ => None,
    }
}
