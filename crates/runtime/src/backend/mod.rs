//! Delegate backends at run time: the traits that a backend implements, and the registry of backends.

mod arguments;
mod contents;
mod entry;
mod graph;
mod guard;

pub use arguments::CallArgument;
pub(crate) use arguments::CallArguments;
pub use contents::{
    PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadSupport, PayloadValue, RefusedNode,
};
pub(crate) use entry::DelegateEntry;
pub(crate) use graph::at_node;
pub use graph::{DelegateGraph, GraphDelegate, GraphRequest};
pub(crate) use guard::guarded;

use crate::{BackendError, FreeableBuffer, NamedDataMap};
use pteron_clock::Instant;
use pteron_engine::Packs;
use pteron_operator::{Arg, Budget, Isa, KernelContext, Out, Reservation};
use pteron_pool::{Interrupted, Pool};
use pteron_tensor::AlignedBuffer;
use pteron_trace::Tracer;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The value of a backend option, given at load time as a runtime spec or later with `set_option`.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionValue {
    /// A flag.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A string.
    Str(String),
}

/// Options by key.
pub type BackendOptions = BTreeMap<String, OptionValue>;

/// A key and value that the ahead-of-time half of a backend stored in the program.
#[derive(Debug, Clone, Copy)]
pub struct CompileSpec<'a> {
    /// The key.
    pub key: &'a str,
    /// The bytes.
    pub value: &'a [u8],
}

/// The run-time half of a backend.
pub trait Backend: Send + Sync {
    /// The id by which programs name it.
    fn id(&self) -> &str;

    /// Whether the backend can run on this machine now.
    fn is_available(&self) -> bool {
        true
    }

    /// Creates a delegate from its payload. The payload bytes stay in memory as long as a clone of `processed` does; a
    /// backend that has copied what it needs should drop it.
    ///
    /// [`BackendInitContext::arguments`] lists the arguments of the call for which the delegate is made, so that a payload
    /// that does not fit it is refused here.
    ///
    /// A backend that can express the payload as a graph returns a [`GraphDelegate`], whose nodes the runtime inlines
    /// into the surrounding region. Any other delegate is opaque: the runtime calls its `execute`.
    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        compile_specs: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError>;

    /// The nodes and tensors of a payload, for listings, comparisons and reports. `None` if the backend cannot list its
    /// payloads.
    fn contents(&self, processed: &[u8]) -> Option<Result<PayloadContents, BackendError>> {
        let _ = processed;
        None
    }

    /// Checks a payload as [`Self::init`] does, as far as that needs no named data: what validates a file calls it. By default, whatever [`Self::contents`] can list is valid.
    ///
    /// # Errors
    /// The payload is malformed, and where.
    fn check(&self, processed: &[u8]) -> Result<(), BackendError> {
        self.contents(processed).map_or(Ok(()), |contents| contents.map(|_| ()))
    }

    /// All nodes of a payload that this backend does not support; [`Self::init`] only reports the first. `None` if the
    /// backend cannot tell without loading the payload.
    fn support(
        &self,
        processed: &FreeableBuffer,
        named_data: Option<&dyn NamedDataMap>,
    ) -> Option<Result<PayloadSupport, BackendError>> {
        let _ = (processed, named_data);
        None
    }

    /// Sets a backend-wide option.
    fn set_option(&self, key: &str, value: &OptionValue) -> Result<(), BackendError> {
        let _ = value;
        Err(BackendError::new(format!("the backend `{}` has no option `{key}`", self.id())))
    }

    /// Reads a backend-wide option.
    fn get_option(&self, key: &str) -> Result<OptionValue, BackendError> {
        Err(BackendError::new(format!("the backend `{}` has no option `{key}`", self.id())))
    }
}

/// An initialized payload: the reference's `DelegateHandle`. Dropping it destroys it.
pub trait Delegate: Send {
    /// Another delegate for the same payload, for another instance of the method. It shares weights, and has its own
    /// memory and state. `None`, the default, means that the method has to be loaded again instead.
    fn fork(&self) -> Option<Box<dyn Delegate>> {
        None
    }

    /// The graph that the delegate computes, which may run in its place. `None`, the default, if the delegate is opaque
    /// or keeps state.
    fn graph(&self) -> Option<Arc<dyn DelegateGraph>> {
        None
    }

    /// The number of leading arguments of a call that are inputs. The remaining arguments are outputs.
    fn num_inputs(&self) -> usize;

    /// Computes the outputs. Inputs never alias outputs.
    ///
    /// The delegate resizes every output of dynamic shape, even if its sizes stay the same. If it does not, and an input is
    /// smaller than its upper bound, the execution fails: the output would keep the sizes of its upper bound.
    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError>;
}

/// What a backend may use while it creates a delegate.
pub struct BackendInitContext<'a> {
    pub(crate) method: &'a str,
    pub(crate) call: Option<&'a CallArguments<'a>>,
    pub(crate) named_data: Option<&'a dyn NamedDataMap>,
    pub(crate) specs: &'a BackendOptions,
    pub(crate) tracer: Tracer<'a>,
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    pub(crate) memory: BackendMemory,
}

impl<'a> BackendInitContext<'a> {
    /// The name of the method that is being loaded.
    pub fn method_name(&self) -> &'a str {
        self.method
    }

    /// The named data of the program and of the `.ptd` files, if there is any.
    pub fn named_data(&self) -> Option<&'a dyn NamedDataMap> {
        self.named_data
    }

    /// An option that the caller set for this backend when it loaded the method.
    pub fn runtime_spec(&self, key: &str) -> Option<&'a OptionValue> {
        self.specs.get(key)
    }

    /// The arguments of the call for which the delegate is made, inputs first, then outputs, as the file declares them.
    /// Sizes of dynamic tensors are upper bounds. Empty if no instruction calls the delegate; if several do, these are the
    /// arguments of the first.
    pub fn arguments(&self) -> Vec<CallArgument> {
        self.call.map_or_else(Vec::new, CallArguments::list)
    }

    /// How many of [`Self::arguments`] are inputs, if the tables of the method tell.
    pub fn num_inputs(&self) -> Option<usize> {
        self.call.and_then(CallArguments::num_inputs)
    }

    /// Why loading is to end early, if it is: it was cancelled. A backend that takes long looks at it from time to time,
    /// and returns the reason as its error (`Err(why.into())`).
    pub fn interrupted(&self) -> Option<Interrupted> {
        interrupted()
    }

    /// When loading has to be done, if there is a deadline.
    pub fn deadline(&self) -> Option<Instant> {
        deadline()
    }

    /// The tracer for events.
    pub fn tracer(&self) -> Tracer<'a> {
        self.tracer
    }

    /// The thread pool for the delegate's work. The delegate may keep a clone.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// The instruction set that the delegate may use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes left of `Limits::backend_bytes`, for backends that do not use [`Self::allocate`].
    pub fn bytes_left(&self) -> usize {
        self.memory.left.get()
    }

    /// Zeroed memory for the delegate to keep. It counts against `Limits::backend_bytes`, and against the method's
    /// memory budget for as long as the method lives.
    pub fn allocate(&self, bytes: usize) -> Result<AlignedBuffer, BackendError> {
        self.memory.allocate(bytes)
    }

    /// The method's memory budget. A delegate that allocates on its own charges its bytes here; they are included in
    /// `Method::memory`.
    pub fn memory(&self) -> &Budget {
        &self.memory.budget
    }
}

/// What a delegate may use while it executes.
pub struct BackendExecutionContext<'a> {
    pub(crate) method: &'a str,
    pub(crate) tracer: Tracer<'a>,
    pub(crate) kernels: &'a KernelContext<'a>,
    /// Packed weights, shared by the delegates and regions of a method.
    pub(crate) packs: &'a Packs,
    pub(crate) memory: BackendMemory,
}

impl<'a> BackendExecutionContext<'a> {
    /// The name of the method that is being executed.
    pub fn method_name(&self) -> &'a str {
        self.method
    }

    /// Why the execution is to end early, if it is: it was cancelled, or its deadline has passed. Loops of
    /// [`Self::pool`] end by themselves. A delegate that waits for a device or loops in another way looks at it from time to
    /// time, and returns the reason as its error (`Err(why.into())`).
    pub fn interrupted(&self) -> Option<Interrupted> {
        interrupted()
    }

    /// When the execution has to be done, if there is a deadline.
    pub fn deadline(&self) -> Option<Instant> {
        deadline()
    }

    /// The tracer for events.
    pub fn tracer(&self) -> Tracer<'a> {
        self.tracer
    }

    /// The thread pool for the delegate's work.
    pub fn pool(&self) -> &'a Pool {
        self.kernels.pool()
    }

    /// The instruction set that the delegate may use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    /// Bytes left of `Limits::backend_bytes`, for backends that do not use [`Self::allocate`].
    pub fn bytes_left(&self) -> usize {
        self.memory.left.get()
    }

    /// Zeroed memory for this execution. It counts against `Limits::backend_bytes`, and against the method's memory
    /// budget until the execution ends.
    pub fn allocate(&self, bytes: usize) -> Result<AlignedBuffer, BackendError> {
        self.memory.allocate(bytes)
    }
}

/// Why the computation of this thread is to end early, if it is.
fn interrupted() -> Option<Interrupted> {
    pteron_pool::armed()?.check().err()
}

/// The deadline of the computation of this thread.
fn deadline() -> Option<Instant> {
    pteron_pool::armed()?.deadline()
}

/// Accounts for the memory that a backend allocates through a context.
pub(crate) struct BackendMemory {
    /// Bytes left of `Limits::backend_bytes`.
    left: Cell<usize>,
    /// The method's memory budget.
    budget: Budget,
    reservations: RefCell<Vec<Reservation>>,
}

impl BackendMemory {
    pub(crate) fn new(limit: usize, budget: &Budget) -> Self {
        Self { left: Cell::new(limit), budget: budget.clone(), reservations: RefCell::default() }
    }

    fn allocate(&self, bytes: usize) -> Result<AlignedBuffer, BackendError> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            BackendError::new(format!(
                "the backend asked for {bytes} bytes, {} are left of `Limits::backend_bytes`",
                self.left.get()
            ))
        })?;
        self.reservations.borrow_mut().push(self.budget.take("its backends", bytes)?);
        self.left.set(left);
        Ok(AlignedBuffer::zeroed(bytes)?)
    }

    /// The reservations of the memory that was allocated.
    pub(crate) fn into_reservations(self) -> Vec<Reservation> {
        self.reservations.into_inner()
    }
}

/// Backends by id. A plain value, like the kernel registry.
#[derive(Clone, Default)]
pub struct BackendRegistry {
    backends: BTreeMap<String, Arc<dyn Backend>>,
}

/// A backend was registered under an id that is already in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a backend `{id}` is registered already")]
pub struct DuplicateBackend {
    /// The backend's id.
    pub id: String,
}

impl BackendRegistry {
    /// A registry without backends.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a backend under its id.
    pub fn register(&mut self, backend: impl Backend + 'static) -> Result<(), DuplicateBackend> {
        let id = backend.id().to_owned();
        if self.backends.contains_key(&id) {
            return Err(DuplicateBackend { id });
        }
        self.backends.insert(id, Arc::new(backend));
        Ok(())
    }

    /// Adds a backend under its id, replacing any previous one.
    #[must_use]
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.insert(backend.id().to_owned(), Arc::new(backend));
        self
    }

    /// The backend with this id.
    pub fn get(&self, id: &str) -> Option<&Arc<dyn Backend>> {
        self.backends.get(id)
    }

    /// Keeps only the backends for whose id `keep` returns `true`.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.backends.retain(|id, _| keep(id));
    }

    /// The ids, sorted.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.backends.keys().map(String::as_str)
    }
}

impl fmt::Debug for BackendRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ids()).finish()
    }
}
