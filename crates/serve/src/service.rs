use crate::budget::{Budget, Reservation};
use crate::check::{check_inputs, output_indices};
use crate::execute::Outputs;
use crate::generation::Generation;
use crate::guard;
use crate::metrics;
#[cfg(feature = "net")]
use crate::metrics::Totals;
#[cfg(feature = "net")]
use crate::models::Found;
use crate::models::{Entry, IndexEntry, Models, ScanPolicy};
use crate::options::ServiceOptions;
use crate::pictures;
use crate::queue::{Bounds, Job, Queue, Ticket};
use crate::refusal::{Reason, Refusal, Result};
use crate::repository::Repository;
use crate::request::{InferRequest, InferResponse, Timing};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
    models: Arc<Models>,
    queue: Arc<Queue>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Ends the thread that lets idle models go, if there is one, when it is dropped.
    _stop_releasing: Option<mpsc::Sender<()>>,
    budget: Arc<Budget>,
    is_started: AtomicBool,
    is_stopping: AtomicBool,
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
        let budget = Budget::new(options.max_bytes);
        let queue = Queue::new(bounds, Arc::clone(&budget));
        let mut workers = Vec::new();
        for i in 0..options.workers.max(1) {
            let queue = Arc::clone(&queue);
            let worker = guard::program_thread(format!("worker-{i}")).spawn(move || queue.run_worker());
            workers.push(worker.map_err(|e| Refusal::from_error(Reason::Unavailable, &e))?);
        }
        let models = Arc::new(Models::new(repository));
        let stop_releasing = match options.on_demand.and_then(|on_demand| on_demand.idle) {
            Some(time) => Some(release_idle(&models, time, &options)?),
            None => None,
        };
        Ok(Arc::new(Self {
            budget,
            options,
            models,
            queue,
            workers: Mutex::new(workers),
            _stop_releasing: stop_releasing,
            is_started: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        }))
    }

    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }

    /// Loads every model of the folder, unless models are loaded on demand; after that the server is ready. As [`Self::reload`] otherwise.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn load_all(&self) -> Result<Vec<(String, Refusal)>> {
        let failed = self.reload()?;
        self.is_started.store(true, Ordering::Release);
        Ok(failed)
    }

    /// Looks at the folder, to which its path may lead by another link than before: loads new and replaced models,
    /// tries again what failed, and removes models whose files are gone. Models that were unloaded on request stay
    /// unloaded. A version that cannot be loaded stays as it was. Returns the models that failed with their errors.
    ///
    /// # Errors
    /// The folder cannot be read; then nothing changes.
    pub fn reload(&self) -> Result<Vec<(String, Refusal)>> {
        self.models.update_from_folder(ScanPolicy::Afresh, &self.options)
    }

    /// As [`Self::reload`], but files that were found to be invalid are not tried again unless they were replaced, and
    /// failures that were reported before are not returned.
    ///
    /// # Errors
    /// The folder cannot be read; then nothing changes.
    pub fn reload_changed(&self) -> Result<Vec<(String, Refusal)>> {
        self.models.update_from_folder(ScanPolicy::ForChanges, &self.options)
    }

    /// Loads a model, or swaps in files that were replaced: afterwards it has the versions that are in the folder now.
    /// Requests that were accepted before run on the generation that they were checked against. A version that cannot
    /// be loaded stays as it was.
    ///
    /// # Errors
    /// There is no such model in the folder, or a version cannot be loaded.
    pub fn load(&self, name: &str) -> Result<()> {
        self.models.load(name, &self.options)
    }

    /// Unloads all versions of a model. Requests that have been accepted are still answered.
    ///
    /// # Errors
    /// There is no such model.
    pub fn unload(&self, name: &str) -> Result<()> {
        self.models.unload(name, &self.options)
    }

    /// An entry for every version of every model, including models in the folder that were never loaded.
    pub fn index(&self) -> Vec<IndexEntry> {
        let mut all = Vec::new();
        let pushed = self.models.for_each_version(|entry| {
            all.push(entry);
            Ok(())
        });
        debug_assert_eq!(pushed, Ok(()));
        all
    }

    /// As [`Self::index`]; the entries are charged to `reservation`.
    ///
    /// # Errors
    /// The budget is exceeded.
    #[cfg(feature = "net")]
    pub(crate) fn charged_index(&self, reservation: &mut Reservation) -> Result<Vec<IndexEntry>> {
        let mut all = Vec::new();
        self.models.for_each_version(|entry| {
            let texts = entry.name.len() + entry.version.len() + entry.reason.len();
            reservation.grow((texts + size_of::<IndexEntry>()) as u64)?;
            all.push(entry);
            Ok(())
        })?;
        Ok(all)
    }

    /// Whether the models of the folder have been loaded and the server is not stopping.
    pub fn is_ready(&self) -> bool {
        self.is_started.load(Ordering::Acquire) && !self.is_stopping.load(Ordering::Acquire)
    }

    /// Whether a version of a model answers requests, if necessary by loading it; any version if `version` is empty.
    ///
    /// # Errors
    /// There is no such model or version.
    pub fn is_model_ready(&self, name: &str, version: &str) -> Result<bool> {
        match self.models.find(name, version) {
            Ok(_) => Ok(!self.is_stopping.load(Ordering::Acquire)),
            Err(refusal) if refusal.reason == Reason::Unavailable => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// The versions of a model that answer requests, and the generation of the selected one; the highest if `version` is
    /// empty. A model that is loaded on demand is loaded, unless it was.
    ///
    /// # Errors
    /// There is no such model or version, or it is not loaded, or cannot be.
    pub fn model(&self, name: &str, version: &str) -> Result<(Vec<String>, Arc<Generation>)> {
        let (_, _, generation) = self.models.find_or_load(name, version, &self.options)?;
        Ok((self.models.versions(name), generation))
    }

    /// As [`Self::model`], but `None` if the model would have to be loaded.
    ///
    /// # Errors
    /// As [`Self::model`].
    #[cfg(feature = "net")]
    pub(crate) fn loaded_model(
        &self,
        name: &str,
        version: &str,
    ) -> Result<Option<(Vec<String>, Arc<Generation>)>> {
        Ok(match self.models.find(name, version)? {
            Found::Loaded(_, entry, generation) => {
                entry.last_use.touch();
                Some((self.models.versions(name), generation))
            }
            Found::OnDemand(_) => None,
        })
    }

    /// Calls `each` with the sums of a version of a model: of all its versions if `version` is empty, and of all models
    /// if `name` is.
    ///
    /// # Errors
    /// There is no such model or version, or `each` fails.
    #[cfg(feature = "net")]
    pub(crate) fn for_each_totals(
        &self,
        model: (&str, &str),
        each: impl FnMut(&str, u64, &Totals) -> Result<()>,
    ) -> Result<()> {
        self.models.for_each_totals(model, each)
    }

    /// Fails in the way [`Self::infer`] does if the model or version does not answer requests.
    #[cfg(feature = "net")]
    pub(crate) fn check_loaded(&self, name: &str, version: &str) -> Result<()> {
        let model = self.models.find(name, version);
        model.map(drop)
    }

    /// An empty reservation, which can grow, from the memory budget of requests.
    pub fn hold(&self) -> Reservation {
        Reservation::empty(&self.budget)
    }

    /// An empty reservation that can grow whatever other requests hold: for the few bytes of a health check, which a server
    /// must answer when it is busy.
    pub(crate) fn hold_uncounted(&self) -> Reservation {
        Reservation::empty(&Budget::new(u64::MAX))
    }

    /// Checks a request and enqueues it for a worker, which calls `reply`. Dropping the ticket before that cancels the
    /// request. A model that is loaded on demand is loaded first, if necessary.
    ///
    /// # Errors
    /// The model is not loaded, or cannot be, the request does not fit it, the queue is full, or the service is stopping. `reply` is
    /// not called in these cases.
    pub fn infer(
        &self,
        request: InferRequest,
        reply: impl FnOnce(Result<InferResponse>) + Send + 'static,
    ) -> Result<Ticket> {
        let request = self.decode_pictures(request)?;
        let (version, entry, generation) =
            self.models.find_or_load(&request.model, &request.version, &self.options)?;
        let metrics = Arc::clone(&entry.metrics);
        let accepted = self.enqueue(request, version, entry, generation, reply);
        accepted.inspect_err(|refusal| metrics.count_failure(refusal.reason))
    }

    /// Decodes the pictures of a request, which become inputs.
    ///
    /// # Errors
    /// As [`Self::infer`].
    pub(crate) fn decode_pictures(&self, mut request: InferRequest) -> Result<InferRequest> {
        if request.pictures.is_empty() {
            return Ok(request);
        }
        let (_, entry, generation) =
            self.models.find_or_load(&request.model, &request.version, &self.options)?;
        let reservation = request.reservation.get_or_insert_with(|| self.hold());
        for input in std::mem::take(&mut request.pictures) {
            let decoded = pictures::decode(&generation, input, reservation, self.hold());
            let decoded = decoded.inspect_err(|refusal| entry.metrics.count_failure(refusal.reason));
            request.inputs.push(decoded?);
        }
        Ok(request)
    }

    fn enqueue(
        &self,
        request: InferRequest,
        version: u64,
        entry: Entry,
        generation: Arc<Generation>,
        reply: impl FnOnce(Result<InferResponse>) + Send + 'static,
    ) -> Result<Ticket> {
        let InferRequest { model, id, inputs, outputs, deadline, reservation, .. } = request;
        let wanted = output_indices(&generation, &outputs)?;
        let inputs = check_inputs(&generation, inputs)?;
        let latest = Instant::now() + self.options.deadline;
        let deadline = deadline.map_or(latest, |deadline| deadline.min(latest));
        let mut reservation = reservation.unwrap_or_else(|| self.hold());
        let (source, metrics, last_use) = (Arc::clone(&generation), entry.metrics, entry.last_use);
        let reply = move |result: Result<(Outputs, Timing)>| {
            last_use.touch();
            let result = result.map(|(outputs, timing)| {
                reservation.absorb(outputs.reservation);
                metrics.count_success(&timing);
                let (version, outputs) = (version.to_string(), outputs.tensors);
                let generation = source.number;
                InferResponse { model, version, id, generation, outputs, timing, reservation, source }
            });
            if let Err(refusal) = &result {
                metrics.count_failure(refusal.reason);
            }
            reply(result);
        };
        self.queue.push(entry.lane, Job { generation, inputs, wanted, deadline, reply: Box::new(reply) })
    }

    /// As [`Self::infer`], but waits for the result.
    ///
    /// # Errors
    /// As [`Self::infer`], or the execution fails.
    pub fn infer_blocking(&self, request: InferRequest) -> Result<InferResponse> {
        let (send, receive) = mpsc::channel();
        let _ticket = self.infer(request, move |result| drop(send.send(result)))?;
        let gone = |_| Err(Refusal::new(Reason::Cancelled, "the request was dropped"));
        receive.recv().unwrap_or_else(gone)
    }

    /// The metrics, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let mut out = String::new();
        self.write_metrics(&mut out);
        out
    }

    /// Writes the metrics. Errors of the writer are ignored.
    pub(crate) fn write_metrics(&self, out: &mut impl fmt::Write) {
        let all = self.models.metrics();
        let all: Vec<_> = all.iter().map(|(labels, metrics)| (labels.clone(), &**metrics)).collect();
        metrics::write_models(out, &all);
        let load = self.queue.load();
        let gauge = |name, help| (name, help, "gauge");
        let mut number = |family, value| metrics::write_number(out, family, value);
        number(gauge("pteron_waiting_requests", "Requests that wait for a worker."), load.waiting as u64);
        number(gauge("pteron_running_requests", "Requests that are executed."), load.running as u64);
        number(
            gauge(
                "pteron_model_bytes",
                "Memory of the loaded models: files, and planned memory of the workers.",
            ),
            self.models.loaded_bytes(),
        );
        number(
            gauge("pteron_held_bytes", "Bytes of bodies, inputs and outputs that requests hold."),
            self.budget.bytes_held(),
        );
    }

    /// Accepts no more requests, answers the accepted ones, and stops the workers. Requests that are not done at `end`
    /// are cancelled. Returns when all workers have stopped.
    pub fn stop(&self, end: Instant) {
        self.is_stopping.store(true, Ordering::Release);
        self.queue.drain(end);
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // A worker that panicked has ended, too.
            let _ = worker.join();
        }
    }

    /// Reports to clients that the server is no longer ready. Requests are still answered, but do not wait for others
    /// to join their batch.
    pub fn announce_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.queue.disable_delay();
    }
}

/// Starts a thread that lets go models without requests for `time`. It ends when the sender is dropped.
fn release_idle(models: &Arc<Models>, time: Duration, options: &ServiceOptions) -> Result<mpsc::Sender<()>> {
    let (stop, stopped) = mpsc::channel();
    let (models, options) = (Arc::clone(models), options.clone());
    // Models are let go at most a quarter later than the options say.
    let interval = (time / 4).clamp(Duration::from_millis(10), Duration::from_secs(60));
    let work = move || {
        while stopped.recv_timeout(interval) == Err(mpsc::RecvTimeoutError::Timeout) {
            models.release_idle(time, &options);
        }
    };
    let thread = guard::program_thread("idle-models").spawn(work);
    thread.map_err(|e| Refusal::from_error(Reason::Unavailable, &e))?;
    Ok(stop)
}
