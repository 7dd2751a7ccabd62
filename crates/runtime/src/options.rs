use crate::{BackendOptions, BackendRegistry, Limits, NamedDataMap};
use pteron_engine::PackStore;
use pteron_operator::{Isa, KernelRegistry};
use pteron_pool::{Interrupt, Pool};
use pteron_tensor::AlignedBuffer;
use pteron_trace::EventTracer;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Options for loading a method. Clones share everything except `memory`, which is copied.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// The kernels of operators.
    pub kernels: Arc<KernelRegistry>,
    /// The backends of delegates.
    pub backends: Arc<BackendRegistry>,
    /// The data of tensors that are stored outside the program, if the caller has any.
    pub data: Option<Arc<dyn NamedDataMap>>,
    /// The thread pool for kernels and delegates. By default everything runs on the calling thread; a pool of
    /// [`pteron_pool::available_threads`] uses all cores. Results are bit-identical with any pool.
    pub pool: Pool,
    /// The instruction set that kernels and delegates may use.
    pub isa: Isa,
    /// Run the instructions one by one as written: prepare no kernels, lower no regions.
    pub no_prepare: bool,
    /// Keep a copy of each region's graph before passes change it: see [`Method::graphs`](crate::Method::graphs).
    pub keep_graphs: bool,
    /// The resource limits of the method.
    pub limits: Limits,
    /// The store through which methods share packed weights. The default store is shared by the whole process.
    pub packed: PackStore,
    /// Options for individual backends, by backend id, which [`Backend::init`](crate::Backend::init) can read.
    pub backend_options: BTreeMap<String, BackendOptions>,
    /// The tracer that receives events, if there is one.
    pub tracer: Option<Arc<dyn EventTracer>>,
    /// A handle that can end loading and executions early. See
    /// [`Method::set_interrupt`](crate::Method::set_interrupt), and [`Limits::time`] to bound executions only.
    pub interrupt: Option<Interrupt>,
    /// The seed of random operators.
    pub seed: u64,
    /// Memory for the planned arenas: one buffer per memory id, in order, each at least as large as
    /// [`MethodMeta::memory_arenas`](crate::MethodMeta::memory_arenas) says. Missing buffers are allocated. Loading
    /// zeroes the buffers before it writes initial values.
    pub memory: Vec<AlignedBuffer>,
}

impl LoadOptions {
    /// Options with these kernels.
    pub fn new(kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        Self { kernels: kernels.into(), ..Self::default() }
    }

    /// Sets the backends.
    pub fn backends(mut self, backends: impl Into<Arc<BackendRegistry>>) -> Self {
        self.backends = backends.into();
        self
    }

    /// Sets the data of tensors that are stored outside the program.
    pub fn data(mut self, data: Arc<dyn NamedDataMap>) -> Self {
        self.data = Some(data);
        self
    }

    /// Sets the thread pool.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

    /// Sets the instruction set.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// Sets a handle that can end loading and executions early.
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = Some(interrupt);
        self
    }

    /// Sets the store through which packed weights are shared.
    pub fn packed(mut self, packed: PackStore) -> Self {
        self.packed = packed;
        self
    }

    /// Sets the resource limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("kernels", &self.kernels)
            .field("backends", &self.backends)
            .field("data", &self.data.as_ref().map(|d| d.name().to_owned()))
            .field("pool", &self.pool)
            .field("isa", &self.isa)
            .field("no_prepare", &self.no_prepare)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
