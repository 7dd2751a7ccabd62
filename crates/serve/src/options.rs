use pteron::LoadOptions;
use std::path::PathBuf;
use std::time::Duration;

/// How a [`Service`](crate::Service) works.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The folder with the models (see [`Repository`](crate::Repository)).
    pub models: PathBuf,
    /// How programs are loaded. Its pool is what the executions of all workers share.
    pub load: LoadOptions,
    /// Threads that execute programs.
    pub workers: usize,
    /// Rows that requests are joined to, for models with a batch dimension whose rows are independent; 1 joins none.
    pub max_batch: usize,
    /// How long a request waits for others to join while a worker is idle.
    pub batch_delay: Duration,
    /// Requests of one version of a model that wait at a time.
    pub max_queue: usize,
    /// Requests of all models that wait or are executed at a time.
    pub max_requests: usize,
    /// Bytes of bodies, inputs and outputs that all requests hold at a time.
    pub max_bytes: u64,
    /// How long a request may take, whatever it says itself.
    pub deadline: Duration,
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
        }
    }
}
