use crate::budget::{Budget, Held};
use crate::execute::Inputs;
use crate::generation::Generation;
use crate::metrics::{self, ModelMetrics};
use crate::options::ServiceOptions;
use crate::queue::{Bounds, Job, Queue, Ticket};
use crate::refusal::{Reason, Refusal, Result};
use crate::repository::{Files, Repository, Versions};
use crate::request::{InferRequest, InferResponse, InputTensor, OutputTensor, Timing};
use crate::stateful::StatefulModules;
use pteron::ScalarType;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

/// The models of a folder, and threads that execute them. The protocols are thin layers over a service.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pteron_serve::{InferRequest, Service, ServiceOptions};
///
/// let service = Service::start(ServiceOptions::new("models", pteron::load_options()))?;
/// service.load_all();
/// let response = service.infer_blocking(InferRequest { model: "digits".to_owned(), ..Default::default() });
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Service {
    options: ServiceOptions,
    repository: Repository,
    models: RwLock<BTreeMap<String, BTreeMap<u64, Entry>>>,
    /// Serializes loading of models.
    loading: Mutex<()>,
    queue: Arc<Queue>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    budget: Arc<Budget>,
    stateful: StatefulModules,
    /// The next number of a generation or a lane.
    next_number: AtomicU64,
    is_started: AtomicBool,
    is_stopping: AtomicBool,
}

/// A version of a model.
#[derive(Debug, Clone)]
struct Entry {
    /// Its lane in the queue.
    lane: u64,
    state: State,
    metrics: Arc<ModelMetrics>,
}

#[derive(Debug, Clone)]
enum State {
    Ready(Arc<Generation>),
    Unloaded(String),
}

/// An entry of the repository index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// Its version; empty for a model that was never loaded.
    pub version: String,
    /// Whether it is loaded and answers requests.
    pub is_ready: bool,
    /// Why it is not ready.
    pub reason: String,
}

impl Service {
    /// Opens the folder and starts the workers. No model is loaded yet.
    ///
    /// # Errors
    /// The folder cannot be read, or threads cannot be started.
    pub fn start(options: ServiceOptions) -> Result<Arc<Self>> {
        let repository = Repository::open(&options.models)?;
        let bounds =
            Bounds { lane: options.max_queue, all: options.max_requests, delay: options.batch_delay };
        let queue = Queue::new(bounds);
        let mut workers = Vec::new();
        for i in 0..options.workers.max(1) {
            let queue = Arc::clone(&queue);
            let builder = std::thread::Builder::new().name(format!("worker-{i}"));
            let worker = builder.spawn(move || queue.work());
            workers.push(worker.map_err(|e| Refusal::of(Reason::Unavailable, &e))?);
        }
        Ok(Arc::new(Self {
            budget: Budget::new(options.max_bytes),
            stateful: StatefulModules::default(),
            options,
            repository,
            models: RwLock::default(),
            loading: Mutex::default(),
            queue,
            workers: Mutex::new(workers),
            next_number: AtomicU64::new(1),
            is_started: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        }))
    }

    /// The options.
    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }

    /// Loads every model of the folder; after that the server is ready. Returns the models that failed with their errors.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn load_all(&self) -> Result<Vec<(String, Refusal)>> {
        let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.repository.scan()?;
        let failed = self.load_found(found.into_iter());
        self.is_started.store(true, Ordering::Release);
        Ok(failed)
    }

    /// Loads new and replaced models of the folder, and removes those whose files are gone. Models that were unloaded on
    /// request stay unloaded. Returns the models that failed with their errors.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn reload_changed(&self) -> Result<Vec<(String, Refusal)>> {
        let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.repository.scan()?;
        let unloaded: BTreeSet<String> = {
            let models = self.models();
            let unloaded = |entry: &Entry| matches!(&entry.state, State::Unloaded(why) if why == UNLOADED);
            let all = models.iter().filter(|(_, versions)| versions.values().all(unloaded));
            all.map(|(name, _)| name.clone()).collect()
        };
        self.write().retain(|name, _| found.contains_key(name));
        Ok(self.load_found(found.into_iter().filter(|(name, _)| !unloaded.contains(name))))
    }

    fn load_found(&self, found: impl Iterator<Item = (String, Result<Versions>)>) -> Vec<(String, Refusal)> {
        let load = |(name, versions): (String, Result<Versions>)| {
            let loaded = self.load_versions(&name, versions);
            loaded.err().map(|refusal| (name, refusal))
        };
        found.filter_map(load).collect()
    }

    /// Loads a model, or swaps in files that were replaced: afterwards it has the versions that are in the folder now.
    /// Requests that were accepted before run on the generation that they were checked against. After an error the loaded
    /// versions stay.
    ///
    /// # Errors
    /// There is no such model in the folder, or it cannot be loaded.
    pub fn load(&self, name: &str) -> Result<()> {
        let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = self.repository.scan()?;
        let versions = found.remove(name).ok_or_else(|| no_model(name))?;
        self.load_versions(name, versions)
    }

    fn load_versions(&self, name: &str, versions: Result<Versions>) -> Result<()> {
        let loaded = versions.and_then(|versions| {
            let load = |(version, files)| Ok((version, self.generation(name, version, &files)?));
            versions.into_iter().map(load).collect::<Result<BTreeMap<_, _>>>()
        });
        let mut models = self.write();
        let entries = models.entry(name.to_owned()).or_default();
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(refusal) => {
                if entries.is_empty() {
                    let state = State::Unloaded(refusal.message.clone());
                    entries.insert(1, self.entry(state));
                }
                return Err(refusal);
            }
        };
        entries.retain(|version, _| loaded.contains_key(version));
        for (version, generation) in loaded {
            let entry = entries.entry(version).or_insert_with(|| self.entry(State::Unloaded(String::new())));
            let is_new = !matches!(&entry.state, State::Ready(old) if Arc::ptr_eq(old, &generation));
            if is_new {
                entry.metrics.loaded();
                entry.state = State::Ready(generation);
            }
        }
        Ok(())
    }

    fn entry(&self, state: State) -> Entry {
        Entry { lane: self.next_number.fetch_add(1, Ordering::Relaxed), state, metrics: Arc::default() }
    }

    /// The loaded generation of a version if its files are unchanged, or a new one.
    fn generation(&self, name: &str, version: u64, files: &Files) -> Result<Arc<Generation>> {
        if let Ok((_, _, present)) = self.find(name, &version.to_string())
            && present.files == *files
        {
            return Ok(present);
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let at = |mut refusal: Refusal| {
            refusal.message = format!("model `{name}`, version {version}: {}", refusal.message);
            refusal
        };
        Ok(Arc::new(Generation::load(files, &self.options, &self.stateful, number).map_err(at)?))
    }

    /// Unloads all versions of a model. Requests that have been accepted are still answered.
    ///
    /// # Errors
    /// There is no such model.
    pub fn unload(&self, name: &str) -> Result<()> {
        let mut models = self.write();
        let entries = models.get_mut(name).ok_or_else(|| no_model(name))?;
        let old: Vec<_> = entries
            .values_mut()
            .map(|entry| std::mem::replace(&mut entry.state, State::Unloaded(UNLOADED.to_owned())))
            .collect();
        drop(models);
        // Free the generations after releasing the lock.
        drop(old);
        Ok(())
    }

    /// Every version of every model, including models in the folder that were never loaded.
    pub fn index(&self) -> Vec<IndexEntry> {
        let mut index = Vec::new();
        let models = self.models();
        for (name, versions) in models.iter() {
            for (version, entry) in versions {
                let (is_ready, reason) = match &entry.state {
                    State::Ready(_) => (true, String::new()),
                    State::Unloaded(why) => (false, why.clone()),
                };
                index.push(IndexEntry { name: name.clone(), version: version.to_string(), is_ready, reason });
            }
        }
        let found = self.repository.scan().unwrap_or_default();
        for name in found.into_keys().filter(|name| !models.contains_key(name)) {
            let reason = "not loaded".to_owned();
            index.push(IndexEntry { name, version: String::new(), is_ready: false, reason });
        }
        index
    }

    /// Whether the models of the folder have been loaded and the server is not stopping.
    pub fn is_ready(&self) -> bool {
        self.is_started.load(Ordering::Acquire) && !self.is_stopping.load(Ordering::Acquire)
    }

    /// Whether a version of a model answers requests; any version if `version` is empty.
    ///
    /// # Errors
    /// There is no such model or version.
    pub fn is_model_ready(&self, name: &str, version: &str) -> Result<bool> {
        match self.find(name, version) {
            Ok(_) => Ok(!self.is_stopping.load(Ordering::Acquire)),
            Err(refusal) if refusal.reason == Reason::Unavailable => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// The loaded versions of a model, and the generation of the selected one; the highest if `version` is empty.
    ///
    /// # Errors
    /// There is no such model or version, or it is not loaded.
    pub fn model(&self, name: &str, version: &str) -> Result<(Vec<String>, Arc<Generation>)> {
        let (_, _, generation) = self.find(name, version)?;
        let models = self.models();
        let ready =
            models.get(name).into_iter().flatten().filter(|(_, e)| matches!(e.state, State::Ready(_)));
        Ok((ready.map(|(version, _)| version.to_string()).collect(), generation))
    }

    fn find(&self, name: &str, version: &str) -> Result<(u64, Entry, Arc<Generation>)> {
        let models = self.models();
        let versions = models.get(name).ok_or_else(|| no_model(name))?;
        let ready = |(version, entry): (&u64, &Entry)| match &entry.state {
            State::Ready(generation) => Ok((*version, entry.clone(), Arc::clone(generation))),
            State::Unloaded(why) => Err(Refusal::new(
                Reason::Unavailable,
                format!("version {version} of the model `{name}` is not loaded: {why}"),
            )),
        };
        if version.is_empty() {
            let loaded = versions.iter().rev().find(|(_, entry)| matches!(entry.state, State::Ready(_)));
            return loaded.or(versions.last_key_value()).ok_or_else(|| no_model(name)).and_then(ready);
        }
        let number = version.parse().ok().and_then(|number: u64| versions.get_key_value(&number));
        number.ok_or_else(|| no_version(name, version, versions.keys())).and_then(ready)
    }

    /// A share of the memory budget of requests, which is empty at first.
    pub fn hold(&self) -> Held {
        Held::none(&self.budget)
    }

    /// Checks a request and enqueues it for a worker, which calls `reply`. Dropping the ticket before that cancels the
    /// request.
    ///
    /// # Errors
    /// The request does not fit the model, or the queue is full. `reply` is not called in these cases.
    pub fn infer(
        &self,
        request: InferRequest,
        reply: impl FnOnce(Result<InferResponse>) + Send + 'static,
    ) -> Result<Ticket> {
        let (version, entry, generation) = self.find(&request.model, &request.version)?;
        let metrics = Arc::clone(&entry.metrics);
        let accepted = self.accept(request, version, entry, generation, reply);
        accepted.inspect_err(|refusal| metrics.failed(refusal.reason))
    }

    fn accept(
        &self,
        request: InferRequest,
        version: u64,
        entry: Entry,
        generation: Arc<Generation>,
        reply: impl FnOnce(Result<InferResponse>) + Send + 'static,
    ) -> Result<Ticket> {
        let InferRequest { model, id, inputs, outputs, deadline, held, .. } = request;
        let wanted = wanted(&generation, &outputs)?;
        let inputs = checked(&generation, inputs)?;
        let latest = Instant::now() + self.options.deadline;
        let deadline = deadline.map_or(latest, |deadline| deadline.min(latest));
        let mut held = held.unwrap_or_else(|| self.hold());
        let (number, metrics) = (generation.number, entry.metrics);
        let reply = move |result: Result<(Vec<OutputTensor>, Timing)>| {
            let result = result.and_then(|(outputs, timing)| {
                let bytes: usize = outputs.iter().map(|o| o.data.len()).sum();
                held.grow(bytes as u64)?;
                metrics.succeeded(&timing);
                let version = version.to_string();
                Ok(InferResponse { model, version, id, generation: number, outputs, timing, held })
            });
            if let Err(refusal) = &result {
                metrics.failed(refusal.reason);
            }
            reply(result);
        };
        self.queue.push(entry.lane, Job { generation, inputs, wanted, deadline, reply: Box::new(reply) })
    }

    /// As [`Self::infer`], but waits for the result.
    ///
    /// # Errors
    /// The request does not fit the model, the queue is full, or the execution fails.
    pub fn infer_blocking(&self, request: InferRequest) -> Result<InferResponse> {
        let (send, receive) = mpsc::channel();
        let _ticket = self.infer(request, move |result| drop(send.send(result)))?;
        let gone = |_| Err(Refusal::new(Reason::Cancelled, "the request was dropped"));
        receive.recv().unwrap_or_else(gone)
    }

    /// The metrics, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let mut out = String::new();
        let models = self.models();
        let label = |(name, versions): (&String, &BTreeMap<u64, Entry>)| {
            let name = name.clone();
            let all = versions.iter().map(move |(version, entry)| {
                (format!("model=\"{name}\",version=\"{version}\""), Arc::clone(&entry.metrics))
            });
            all.collect::<Vec<_>>()
        };
        let all: Vec<_> = models.iter().flat_map(label).collect();
        drop(models);
        let all: Vec<_> = all.iter().map(|(labels, metrics)| (labels.clone(), &**metrics)).collect();
        metrics::write_models(&mut out, &all);
        let load = self.queue.load();
        let gauge = |name, help| (name, help, "gauge");
        let mut number = |family, value| metrics::write_number(&mut out, family, value);
        number(gauge("pteron_waiting_requests", "Requests that wait for a worker."), load.waiting as u64);
        number(gauge("pteron_running_requests", "Requests that are executed."), load.running as u64);
        number(
            gauge("pteron_held_bytes", "Bytes of bodies, inputs and outputs that requests hold."),
            self.budget.held(),
        );
        out
    }

    /// Accepts no more requests, answers the accepted ones, and stops the workers. Requests that are not done at `end` are
    /// cancelled. Returns when all workers have stopped.
    pub fn stop(&self, end: Instant) {
        self.is_stopping.store(true, Ordering::Release);
        self.queue.drain(end);
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // A worker that panicked has ended, too.
            let _ = worker.join();
        }
    }

    /// Reports to clients that the server is no longer ready. Requests are still answered, but do not wait for others to
    /// join their batch.
    pub fn announce_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.queue.disable_delay();
    }

    fn models(&self) -> RwLockReadGuard<'_, BTreeMap<String, BTreeMap<u64, Entry>>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, BTreeMap<u64, Entry>>> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason of a model that was unloaded on request.
const UNLOADED: &str = "unloaded";

fn no_model(name: &str) -> Refusal {
    let name: String = name.chars().take(128).collect();
    Refusal::not_found(format!("there is no model `{name}`"))
}

fn no_version<'a>(name: &str, version: &str, there: impl Iterator<Item = &'a u64>) -> Refusal {
    let version: String = version.chars().take(32).collect();
    let there: Vec<_> = there.map(u64::to_string).collect();
    Refusal::not_found(format!("the model `{name}` has no version `{version}`; it has {}", there.join(", ")))
}

/// The indices of the requested outputs.
fn wanted(generation: &Generation, names: &[String]) -> Result<Vec<usize>> {
    let outputs = generation.outputs();
    if names.is_empty() {
        return Ok((0..outputs.len()).collect());
    }
    if names.len() > outputs.len() {
        return Err(Refusal::invalid(format!(
            "{} outputs are asked for, the model has {}",
            names.len(),
            outputs.len()
        )));
    }
    let index = |name: &String| {
        outputs
            .iter()
            .position(|spec| spec.name == *name)
            .ok_or_else(|| no_tensor("output", name, outputs.iter().map(|s| &s.name)))
    };
    let indices: Vec<usize> = names.iter().map(index).collect::<Result<_>>()?;
    match indices.iter().collect::<BTreeSet<_>>().len() == indices.len() {
        true => Ok(indices),
        false => Err(Refusal::invalid("an output is asked for twice")),
    }
}

/// Checks the types, shapes and sizes of the inputs, and returns them in the model's order.
fn checked(generation: &Generation, inputs: Vec<InputTensor>) -> Result<Inputs> {
    let specs = &generation.signature.inputs;
    if inputs.len() != specs.len() {
        return Err(Refusal::invalid(format!(
            "{} inputs were sent, the model has {}",
            inputs.len(),
            specs.len()
        )));
    }
    let mut given: Vec<Option<InputTensor>> = specs.iter().map(|_| None).collect();
    for input in inputs {
        let place = specs.iter().position(|(_, spec)| spec.name == input.name);
        let place =
            place.ok_or_else(|| no_tensor("input", &input.name, specs.iter().map(|(_, s)| &s.name)))?;
        let bytes = (*input.data).as_ref();
        let expected = specs[place].1.check(input.dtype, &input.shape)?;
        if bytes.len() != expected {
            let found = bytes.len();
            return Err(Refusal::invalid(format!(
                "input `{}`: its shape takes {expected} bytes, {found} were sent",
                input.name
            )));
        }
        if input.dtype == ScalarType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Refusal::invalid(format!("input `{}`: a boolean is a byte 0 or 1", input.name)));
        }
        if given[place].is_some() {
            return Err(Refusal::invalid(format!("input `{}` was sent twice", input.name)));
        }
        given[place] = Some(input);
    }
    let (shapes, data) = given.into_iter().flatten().map(|input| (input.shape, input.data)).unzip();
    Ok(Inputs { shapes, data })
}

fn no_tensor<'a>(what: &str, name: &str, there: impl Iterator<Item = &'a String>) -> Refusal {
    let name: String = name.chars().take(128).collect();
    let there: Vec<_> = there.map(|name| format!("`{name}`")).take(16).collect();
    Refusal::invalid(format!("there is no {what} `{name}`; the model has {}", there.join(", ")))
}
