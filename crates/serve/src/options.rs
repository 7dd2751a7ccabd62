use crate::event::Events;
use pteron::LoadOptions;
use std::path::PathBuf;
use std::time::Duration;

/// When models that are loaded by their first request are let go. A model in use stays, and so does one whose state
/// persists between requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnDemand {
    /// The maximum memory of all loaded models in bytes: their files, and the planned memory of each worker. The least
    /// recently used ones are let go for others.
    pub memory: Option<u64>,
    /// How long a model stays loaded without requests.
    pub idle: Option<Duration>,
}

/// Options of a [`Service`](crate::Service).
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The folder with the models (see [`Repository`](crate::Repository)).
    pub models: PathBuf,
    /// How programs are loaded. The executions of all workers share its thread pool, which by default has one thread:
    /// give it the cores divided by the workers.
    pub load: LoadOptions,
    /// The number of threads that execute programs; 0 counts as 1.
    pub workers: usize,
    /// The maximum number of rows of a batch, for models with a batch dimension whose rows are independent; 0 or 1
    /// disables batching.
    pub max_batch: usize,
    /// How long a request waits for others to join its batch while a worker is idle; no longer if the batch is full.
    pub batch_delay: Duration,
    /// The maximum number of waiting requests per version of a model.
    pub max_queue: usize,
    /// The maximum number of requests of all models that wait or are executed.
    pub max_requests: usize,
    /// The maximum number of bytes of bodies, inputs and outputs that all requests hold together.
    pub max_bytes: u64,
    /// The maximum time that a request may take; a deadline of the request can only be earlier.
    pub deadline: Duration,
    /// If set, models are loaded by their first request, not by scans of the folder.
    pub on_demand: Option<OnDemand>,
    /// Called for every change of the models, and for every failure to make one.
    pub events: Events,
}

impl ServiceOptions {
    /// The models of a folder, executed by one worker, without batches.
    pub fn new(models: impl Into<PathBuf>, load: LoadOptions) -> Self {
        Self {
            models: models.into(),
            load,
            workers: 1,
            max_batch: 1,
            batch_delay: Duration::ZERO,
            max_queue: 256,
            max_requests: 1024,
            max_bytes: 1 << 30,
            deadline: Duration::from_secs(60),
            on_demand: None,
            events: Events::default(),
        }
    }
}
