//! The models that are loaded, and how they follow the folder.

mod index;
mod on_demand;

pub use index::IndexEntry;
pub(crate) use on_demand::LastUse;

use crate::event::Event;
use crate::generation::Generation;
use crate::guard::catch_panics;
use crate::load::load_version;
use crate::metrics::ModelMetrics;
use crate::options::ServiceOptions;
use crate::refusal::{Reason, Refusal, Result};
use crate::repository::{Files, Repository, Versions};
use crate::stateful::StatefulModules;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The versions of each model, by model name and version number.
type Entries = BTreeMap<String, BTreeMap<u64, Entry>>;

/// A version of a model.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The id of the queue's lane for this version.
    pub(crate) lane: u64,
    state: State,
    pub(crate) metrics: Arc<ModelMetrics>,
    /// The time of the last request.
    pub(crate) last_use: Arc<LastUse>,
}

#[derive(Debug, Clone)]
enum State {
    Ready(Arc<Generation>),
    /// The next request for the version loads these files.
    OnDemand(Arc<Files>),
    /// The version could not be loaded; the text says why.
    Failed(String),
    /// The version was unloaded on request.
    Unloaded,
}

impl Entry {
    /// Whether the version answers requests: it is loaded, or is loaded by the next request.
    fn is_available(&self) -> bool {
        matches!(self.state, State::Ready(_) | State::OnDemand(_))
    }
}

/// The failures at the last look at the folder. They are not reported again, and invalid files are not loaded again, until something
/// changes.
#[derive(Debug, Default)]
struct Failures {
    folder: Option<Refusal>,
    /// Failures by model and version; `None` as the version for a failure of the whole model.
    models: BTreeMap<(String, Option<u64>), Failure>,
}

#[derive(Debug, PartialEq, Eq)]
struct Failure {
    /// The files that failed to load; `None` if the failure came before files were found.
    files: Option<Files>,
    refusal: Refusal,
}

/// How a scan of the folder treats earlier failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanPolicy {
    /// Does not retry files that failed permanently, and reports no failure twice. For periodic checks.
    ForChanges,
    /// Retries all models that are not loaded; returns all failures, but reports only new ones.
    OnRequest,
    /// Retries all models that are not loaded; reports all failures, even those reported before.
    Afresh,
}

/// The models that are served from a folder.
#[derive(Debug)]
pub(crate) struct Models {
    repository: Repository,
    entries: RwLock<Entries>,
    /// The failures so far. Locked while models are loaded, so that one is loaded at a time.
    failures: Mutex<Failures>,
    stateful: StatefulModules,
    /// The next number to be given to a generation, or as the id of a lane of the queue.
    next_number: AtomicU64,
}

/// A version of a model that answers requests.
pub(crate) enum Found {
    Loaded(u64, Entry, Arc<Generation>),
    /// The version with this number is loaded by the next request for it.
    OnDemand(u64),
}

impl Models {
    pub(crate) fn new(repository: Repository) -> Self {
        let (entries, failures) = (RwLock::default(), Mutex::default());
        let stateful = StatefulModules::default();
        Self { repository, entries, failures, stateful, next_number: AtomicU64::new(1) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Scans the folder: loads new and replaced models, and removes those whose files are gone. Models that were
    /// unloaded on request stay unloaded. Returns the failures; with [`ScanPolicy::ForChanges`] only new ones.
    ///
    /// # Errors
    /// The folder cannot be read; then nothing changes.
    pub(crate) fn update_from_folder(
        &self,
        look: ScanPolicy,
        options: &ServiceOptions,
    ) -> Result<Vec<(String, Refusal)>> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let scanned = match catch_panics(|| self.repository.scan()) {
            Ok(scanned) => scanned,
            Err(refusal) => {
                if look == ScanPolicy::Afresh || failures.folder.as_ref() != Some(&refusal) {
                    options.events.report(&Event::FolderFailed(refusal.clone()));
                }
                failures.folder = Some(refusal.clone());
                return Err(refusal);
            }
        };
        if failures.folder.take().is_some() {
            options.events.report(&Event::FolderReadable);
        }
        self.remove_missing(&scanned, options);
        failures.models.retain(|(name, _), _| scanned.contains_key(name));
        let unloaded = self.unloaded_models();
        let mut reported = Vec::new();
        for (name, versions) in scanned.into_iter().filter(|(name, _)| !unloaded.contains(name)) {
            let failed = self.load_versions(&mut failures, &name, versions, look, options);
            reported.extend(failed.into_iter().map(|refusal| (name.clone(), refusal)));
        }
        Ok(reported)
    }

    /// The names of the models all of whose versions were unloaded on request.
    fn unloaded_models(&self) -> BTreeSet<String> {
        let is_unloaded = |entry: &Entry| matches!(entry.state, State::Unloaded);
        let models = self.read();
        let all = models.iter().filter(|(_, versions)| versions.values().all(is_unloaded));
        all.map(|(name, _)| name.clone()).collect()
    }

    fn remove_missing(&self, scanned: &BTreeMap<String, Result<Versions>>, options: &ServiceOptions) {
        // If a model is invalid as a whole, it is not known which models of its methods there are: they stay.
        let invalid: Vec<String> =
            scanned.iter().filter(|(_, v)| v.is_err()).map(|(name, _)| format!("{name}.")).collect();
        let is_missing = |name: &String| {
            !scanned.contains_key(name) && !invalid.iter().any(|prefix| name.starts_with(prefix))
        };
        let mut models = self.write();
        let removed: Entries = models.extract_if(.., |name, _| is_missing(name)).collect();
        drop(models);
        for (model, versions) in removed {
            for version in versions.into_keys() {
                options.events.report(&Event::Removed { model: model.clone(), version });
            }
        }
    }

    /// Loads a model on request: afterwards it has the versions that are in the folder now, except those that fail.
    ///
    /// # Errors
    /// There is no such model in the folder, or a version cannot be loaded.
    pub(crate) fn load(&self, name: &str, options: &ServiceOptions) -> Result<()> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scanned = catch_panics(|| self.repository.scan())?;
        let versions = scanned.remove(name).ok_or_else(|| no_model_error(name))?;
        let failed = self.load_versions(&mut failures, name, versions, ScanPolicy::OnRequest, options);
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// Loads the versions of a model that are new or were replaced, and swaps them in together. A version that cannot
    /// be loaded stays as it is. Returns the failures; with [`ScanPolicy::ForChanges`] only new ones.
    fn load_versions(
        &self,
        failures: &mut Failures,
        name: &str,
        versions: Result<Versions>,
        look: ScanPolicy,
        options: &ServiceOptions,
    ) -> Vec<Refusal> {
        let mut reported = Vec::new();
        let mut fail = |failures: &mut Failures, version, files, refusal: Refusal| {
            let failure = Failure { files, refusal: refusal.clone() };
            let key = (name.to_owned(), version);
            let is_kept = self.note_failure(name, version, &refusal);
            let is_new = failures.models.get(&key) != Some(&failure);
            if look == ScanPolicy::Afresh || is_new {
                let (model, refusal) = (name.to_owned(), refusal.clone());
                options.events.report(&Event::Failed { model, version, refusal, is_kept });
            }
            if look != ScanPolicy::ForChanges || is_new {
                reported.push(refusal);
            }
            failures.models.insert(key, failure);
        };
        let versions = match versions {
            Ok(versions) => versions,
            Err(refusal) => {
                fail(failures, None, None, refusal);
                return reported;
            }
        };
        let numbers: BTreeSet<u64> = versions.keys().copied().collect();
        failures.models.retain(|(model, version), _| {
            model != name || version.is_some_and(|version| numbers.contains(&version))
        });
        let mut loaded: Vec<(u64, Arc<Generation>)> = Vec::new();
        for (version, files) in versions {
            let key = (name.to_owned(), Some(version));
            if self.is_loaded(name, version, &files) {
                failures.models.remove(&key);
                continue;
            }
            let known = failures.models.get(&key).filter(|failure| failure.files.as_ref() == Some(&files));
            if look == ScanPolicy::ForChanges && known.is_some_and(|failure| failure.refusal.is_permanent()) {
                continue;
            }
            if options.on_demand.is_some() && look != ScanPolicy::OnRequest && !self.is_ready(name, version) {
                failures.models.remove(&key);
                self.defer(name, version, files);
                continue;
            }
            let others: u64 = loaded.iter().map(|(_, generation)| generation.memory).sum();
            match self.load_files(name, version, &files, others, options) {
                Ok(generation) => {
                    failures.models.remove(&key);
                    loaded.push((version, generation));
                }
                Err(refusal) => fail(failures, Some(version), Some(files), refusal),
            }
        }
        self.replace_versions(name, &numbers, loaded, options);
        reported
    }

    fn is_loaded(&self, name: &str, version: u64, files: &Files) -> bool {
        let models = self.read();
        let entry = models.get(name).and_then(|versions| versions.get(&version));
        entry.is_some_and(|entry| matches!(&entry.state, State::Ready(present) if present.files == *files))
    }

    /// Loads files as a version of a model. `others` is the memory of versions that were loaded with it, and do not count as
    /// loaded yet.
    fn load_files(
        &self,
        name: &str,
        version: u64,
        files: &Files,
        others: u64,
        options: &ServiceOptions,
    ) -> Result<Arc<Generation>> {
        let number = self.next_number();
        let make_room = |bytes: u64| self.make_room(bytes, others, options);
        let loaded = catch_panics(|| load_version(files, options, &self.stateful, number, &make_room));
        loaded.map(Arc::new).map_err(|mut refusal| {
            refusal.message = format!("model `{name}`, version {version}: {}", refusal.message);
            refusal
        })
    }

    /// Records why a version or model could not be loaded. Returns true if an earlier load is still served.
    fn note_failure(&self, name: &str, version: Option<u64>, refusal: &Refusal) -> bool {
        let mut models = self.write();
        let entries = models.entry(name.to_owned()).or_default();
        let is_ready = |entry: &Entry| matches!(entry.state, State::Ready(_));
        if version.is_none() && entries.values().any(Entry::is_available) {
            return true;
        }
        let entry = entries.entry(version.unwrap_or(1)).or_insert_with(|| self.new_entry());
        if !is_ready(entry) {
            entry.state = State::Failed(refusal.message.clone());
        }
        is_ready(entry)
    }

    /// Installs the newly loaded generations of a model, and removes versions that are no longer in the folder.
    fn replace_versions(
        &self,
        name: &str,
        numbers: &BTreeSet<u64>,
        loaded: Vec<(u64, Arc<Generation>)>,
        options: &ServiceOptions,
    ) {
        let mut models = self.write();
        let entries = models.entry(name.to_owned()).or_default();
        let removed: BTreeMap<u64, Entry> =
            entries.extract_if(.., |version, _| !numbers.contains(version)).collect();
        let mut replaced = Vec::new();
        for (version, generation) in &loaded {
            let entry = entries.entry(*version).or_insert_with(|| self.new_entry());
            entry.metrics.count_load();
            entry.last_use.touch();
            replaced.push(std::mem::replace(&mut entry.state, State::Ready(Arc::clone(generation))));
        }
        drop(models);
        // Free the generations after releasing the lock.
        drop(replaced);
        let model = || name.to_owned();
        for version in removed.into_keys() {
            options.events.report(&Event::Removed { model: model(), version });
        }
        for (version, generation) in loaded {
            let unbatched = generation.unbatched_reason().map(str::to_owned);
            let generation = generation.number;
            options.events.report(&Event::Loaded { model: model(), version, generation, unbatched });
        }
    }

    fn new_entry(&self) -> Entry {
        let state = State::Failed("not loaded".to_owned());
        Entry { lane: self.next_number(), state, metrics: Arc::default(), last_use: Arc::default() }
    }

    /// Unloads all versions of a model. Requests that have been accepted are still answered.
    ///
    /// # Errors
    /// There is no such model.
    pub(crate) fn unload(&self, name: &str, options: &ServiceOptions) -> Result<()> {
        let mut models = self.write();
        let entries = models.get_mut(name).ok_or_else(|| no_model_error(name))?;
        let old: Vec<_> =
            entries.values_mut().map(|entry| std::mem::replace(&mut entry.state, State::Unloaded)).collect();
        drop(models);
        // Free the generations after releasing the lock.
        drop(old);
        options.events.report(&Event::Unloaded { model: name.to_owned() });
        Ok(())
    }

    /// A version of a model that answers requests; the highest that does if `version` is empty.
    ///
    /// # Errors
    /// There is no such model or version, or it does not answer requests.
    pub(crate) fn find(&self, name: &str, version: &str) -> Result<Found> {
        let models = self.read();
        let versions = models.get(name).ok_or_else(|| no_model_error(name))?;
        let ready = |(version, entry): (&u64, &Entry)| {
            let why = match &entry.state {
                State::Ready(generation) => {
                    return Ok(Found::Loaded(*version, entry.clone(), Arc::clone(generation)));
                }
                State::OnDemand(_) => return Ok(Found::OnDemand(*version)),
                State::Failed(why) => why,
                State::Unloaded => "unloaded",
            };
            let message = format!("version {version} of the model `{name}` is not loaded: {why}");
            Err(Refusal::new(Reason::Unavailable, message))
        };
        if version.is_empty() {
            let available = versions.iter().rev().find(|(_, entry)| entry.is_available());
            return available
                .or(versions.last_key_value())
                .ok_or_else(|| no_model_error(name))
                .and_then(ready);
        }
        let number = version.parse().ok().and_then(|number: u64| versions.get_key_value(&number));
        number.ok_or_else(|| no_version_error(name, version, versions.keys())).and_then(ready)
    }
}

fn no_model_error(name: &str) -> Refusal {
    let name: String = name.chars().take(128).collect();
    Refusal::not_found(format!("there is no model `{name}`"))
}

fn no_version_error<'a>(name: &str, version: &str, there: impl Iterator<Item = &'a u64>) -> Refusal {
    let version: String = version.chars().take(32).collect();
    let there: Vec<_> = there.map(u64::to_string).collect();
    Refusal::not_found(format!("the model `{name}` has no version `{version}`; it has {}", there.join(", ")))
}
