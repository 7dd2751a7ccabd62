use crate::{BackendOptions, BackendRegistry, Limits, NamedDataMap};
use graph::PackStore;
use operator::{Isa, KernelRegistry};
use pool::{Interrupt, Pool};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::AlignedBuffer;
use trace::EventTracer;

/// What loading a method needs besides the program. Cloning shares everything but `memory`.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// Where operators find their kernels.
    pub kernels: Arc<KernelRegistry>,
    /// Where delegates find their backends.
    pub backends: Arc<BackendRegistry>,
    /// The data of tensors that are stored outside the program.
    pub data: Option<Arc<dyn NamedDataMap>>,
    /// The threads that kernels and delegates split their work over.
    pub pool: Pool,
    /// The machine's instructions that kernels and delegates may use.
    pub isa: Isa,
    /// Run the instructions as they stand: prepare no kernel, lower no region.
    pub no_prepare: bool,
    /// Keep the graphs that runs of instructions are raised to, as they are before any pass: see
    /// [`Method::graphs`](crate::Method::graphs).
    pub keep_graphs: bool,
    /// What the method may use.
    pub limits: Limits,
    /// With whom packed weights are shared: with all methods of the process, unless it is a store of its own.
    pub packed: PackStore,
    /// Options for single backends, by id, that their delegates see when they are made.
    pub backend_options: BTreeMap<String, BackendOptions>,
    /// Where events go.
    pub tracer: Option<Arc<dyn EventTracer>>,
    /// What can end loading and executions early. See [`Method::set_interrupt`](crate::Method::set_interrupt),
    /// and [`Limits::time`] for executions alone.
    pub interrupt: Option<Interrupt>,
    /// The seed of random operators.
    pub seed: u64,
    /// Memory for the plan's arenas, a buffer for each memory id in order, each at least as large
    /// as [`MethodMeta::memory_arenas`](crate::MethodMeta::memory_arenas) says. Missing ones are
    /// allocated. The buffers are zeroed where the program gives no initial values.
    pub memory: Vec<AlignedBuffer>,
}

impl LoadOptions {
    /// Options with these kernels.
    pub fn new(kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        Self { kernels: kernels.into(), ..Self::default() }
    }

    /// The same, with these backends.
    pub fn backends(mut self, backends: impl Into<Arc<BackendRegistry>>) -> Self {
        self.backends = backends.into();
        self
    }

    /// The same, with data from outside the program.
    pub fn data(mut self, data: Arc<dyn NamedDataMap>) -> Self {
        self.data = Some(data);
        self
    }

    /// The same, with threads to split work over.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

    /// The same, with these instructions.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// The same, under a handle that can end loading and executions early.
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = Some(interrupt);
        self
    }

    /// The same, sharing packed weights with the methods of this store.
    pub fn packed(mut self, packed: PackStore) -> Self {
        self.packed = packed;
        self
    }

    /// The same, with other limits.
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
