//! Delegate backends at run time: what a backend implements, and where backends are found.

mod contents;
mod graph;

pub use contents::{
    PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadSupport, PayloadValue, RefusedNode,
};
pub(crate) use graph::at_node;
pub use graph::{DelegateGraph, GraphDelegate, GraphRequest};

use crate::{FreeableBuffer, NamedDataMap};
use ::graph::Packs;
use operator::{Arg, Budget, Held, Isa, KernelContext, Out};
use pool::Pool;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tensor::AlignedBuffer;
use trace::Tracer;

/// A number or text given to a backend: at load as a runtime spec, or later as an option.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionValue {
    /// A flag.
    Bool(bool),
    /// A number.
    Int(i64),
    /// A text.
    Str(String),
}

/// Options by key.
pub type BackendOptions = BTreeMap<String, OptionValue>;

/// Why a backend refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(String);

impl BackendError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl From<operator::Error> for BackendError {
    fn from(e: operator::Error) -> Self {
        Self(crate::one_line(&e))
    }
}

impl From<tensor::Error> for BackendError {
    fn from(e: tensor::Error) -> Self {
        Self(crate::one_line(&e))
    }
}

/// A key and bytes that the ahead-of-time half of a backend left in the program.
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

    /// Whether it can run on this machine, now.
    fn is_available(&self) -> bool {
        true
    }

    /// Makes a delegate from its payload. Payload bytes live as long as a clone of `processed`
    /// does; a backend that has copied what it needs drops it.
    ///
    /// A backend that knows the payload as a graph answers with a [`GraphDelegate`], whose nodes the runtime takes
    /// into the region of calls around it; any other delegate is opaque, and is called.
    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        compile_specs: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError>;

    /// The nodes and tensors of a payload, for listings, comparisons and reports. `None` where the backend does not show
    /// its payloads.
    fn contents(&self, processed: &[u8]) -> Option<Result<PayloadContents, BackendError>> {
        let _ = processed;
        None
    }

    /// Which nodes of a payload this backend does not run, all of them, where [`Self::init`] names the first. `None`
    /// where the backend cannot say without loading.
    fn support(
        &self,
        processed: &FreeableBuffer,
        named_data: Option<&dyn NamedDataMap>,
    ) -> Option<Result<PayloadSupport, BackendError>> {
        let _ = (processed, named_data);
        None
    }

    /// Changes an option of the whole backend.
    fn set_option(&self, key: &str, value: &OptionValue) -> Result<(), BackendError> {
        let _ = value;
        Err(BackendError::new(format!("the backend `{}` has no option `{key}`", self.id())))
    }

    /// Reads an option of the whole backend.
    fn get_option(&self, key: &str) -> Result<OptionValue, BackendError> {
        Err(BackendError::new(format!("the backend `{}` has no option `{key}`", self.id())))
    }
}

/// What a backend made of one payload: the handle that the reference calls `DelegateHandle`.
/// Dropping it destroys it.
pub trait Delegate: Send {
    /// Another delegate of the same payload, for another instance of the method: with its own memory and
    /// state, sharing weights. `None`, the default, means that there is no other way than to load the method
    /// again.
    fn fork(&self) -> Option<Box<dyn Delegate>> {
        None
    }

    /// What it computes as a graph, which may run in its place. `None`, the default, of a delegate that is opaque or
    /// keeps state.
    fn graph(&self) -> Option<Arc<dyn DelegateGraph>> {
        None
    }

    /// How many of a call's arguments, from the first on, are inputs. The rest are outputs.
    fn num_inputs(&self) -> usize;

    /// Computes the outputs. Outputs are resized by the delegate where they are dynamic. Inputs and
    /// outputs never overlap.
    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError>;
}

/// What a backend may use while it makes a delegate.
pub struct BackendInitContext<'a> {
    pub(crate) method: &'a str,
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

    /// Named data of the program and of the `.ptd` files, if there are any.
    pub fn named_data(&self) -> Option<&'a dyn NamedDataMap> {
        self.named_data
    }

    /// An option that the caller gave for this backend when loading the method.
    pub fn runtime_spec(&self, key: &str) -> Option<&'a OptionValue> {
        self.specs.get(key)
    }

    /// The listener for events.
    pub fn tracer(&self) -> Tracer<'a> {
        self.tracer
    }

    /// The threads that the delegate may split its work over; it may keep a clone.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// The machine's instructions that the delegate may use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes that are left of the limit for backends: for those that do not take them from [`Self::allocate`].
    pub fn bytes_left(&self) -> usize {
        self.memory.left.get()
    }

    /// Zeroed memory to keep, counted against the limit for backends, and as memory of the method while that lives.
    pub fn allocate(&self, bytes: usize) -> Result<AlignedBuffer, BackendError> {
        self.memory.allocate(bytes)
    }

    /// What the method may hold: bytes that a delegate takes by itself are taken from it, and are seen in
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
    /// Packed weights that the delegates and regions of a method share.
    pub(crate) packs: &'a Packs,
    pub(crate) memory: BackendMemory,
}

impl<'a> BackendExecutionContext<'a> {
    /// The name of the method that is executed.
    pub fn method_name(&self) -> &'a str {
        self.method
    }

    /// The listener for events.
    pub fn tracer(&self) -> Tracer<'a> {
        self.tracer
    }

    /// The threads to split work over.
    pub fn pool(&self) -> &'a Pool {
        self.kernels.pool()
    }

    /// The machine's instructions that the delegate may use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    /// Bytes that are left of the limit for backends: for those that do not take them from [`Self::allocate`].
    pub fn bytes_left(&self) -> usize {
        self.memory.left.get()
    }

    /// Zeroed memory for this execution, counted against the limit for backends, and as memory of the method while
    /// it executes.
    pub fn allocate(&self, bytes: usize) -> Result<AlignedBuffer, BackendError> {
        self.memory.allocate(bytes)
    }
}

/// What a backend takes through a context.
pub(crate) struct BackendMemory {
    /// Bytes that are left of the limit for backends.
    left: Cell<usize>,
    /// What the method may hold.
    budget: Budget,
    held: RefCell<Vec<Held>>,
}

impl BackendMemory {
    pub(crate) fn new(limit: usize, budget: &Budget) -> Self {
        Self { left: Cell::new(limit), budget: budget.clone(), held: RefCell::default() }
    }

    fn allocate(&self, bytes: usize) -> Result<AlignedBuffer, BackendError> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            BackendError::new(format!(
                "the backend asked for {bytes} bytes, {} are left of `Limits::backend_bytes`",
                self.left.get()
            ))
        })?;
        self.held.borrow_mut().push(self.budget.take("its backends", bytes)?);
        self.left.set(left);
        Ok(AlignedBuffer::zeroed(bytes)?)
    }

    /// The memory that was taken.
    pub(crate) fn into_held(self) -> Vec<Held> {
        self.held.into_inner()
    }
}

/// Where backends are found by id. A value, as the kernel registry is.
#[derive(Clone, Default)]
pub struct BackendRegistry {
    backends: BTreeMap<String, Arc<dyn Backend>>,
}

/// A second backend under an id that is taken.
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

    /// The same, with a backend under its id, in the place of one that is there.
    #[must_use]
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.insert(backend.id().to_owned(), Arc::new(backend));
        self
    }

    /// The backend of an id.
    pub fn get(&self, id: &str) -> Option<&Arc<dyn Backend>> {
        self.backends.get(id)
    }

    /// Leaves out the backends whose ids `keep` refuses.
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
