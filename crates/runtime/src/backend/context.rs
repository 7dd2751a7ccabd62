//! What backends and delegates may use.

use super::arguments::{CallArgument, CallArguments};
use super::options::{BackendOptions, OptionValue};
use crate::{BackendError, NamedDataMap};
use pteron_clock::Instant;
use pteron_engine::Packs;
use pteron_operator::{Budget, Isa, KernelContext, Reservation};
use pteron_pool::{Interrupted, Pool};
use pteron_tensor::AlignedBuffer;
use pteron_trace::Tracer;
use std::cell::{Cell, RefCell};

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

    /// The value of an option that the caller has set for this backend when loading the method; `None` if the option is
    /// not set.
    pub fn runtime_spec(&self, key: &str) -> Option<&'a OptionValue> {
        self.specs.get(key)
    }

    /// The arguments of the call for which the delegate is made, inputs first, then outputs, as the file declares them.
    /// Sizes of dynamic tensors are upper bounds. Empty if no instruction calls the delegate; if several do, these are the
    /// arguments of the first.
    pub fn arguments(&self) -> Vec<CallArgument> {
        self.call.map_or_else(Vec::new, CallArguments::arguments)
    }

    /// How many of [`Self::arguments`] are inputs; `None` if the tables of the method do not determine it.
    pub fn num_inputs(&self) -> Option<usize> {
        self.call.and_then(CallArguments::num_inputs)
    }

    /// Why loading is to end early, if it is: it was cancelled, or its deadline has passed. A backend that takes long
    /// should call this from time to time, and return the reason as its error (`Err(why.into())`).
    pub fn interrupted(&self) -> Option<Interrupted> {
        thread_interruption()
    }

    /// The time at which loading is interrupted, if there is a deadline.
    pub fn deadline(&self) -> Option<Instant> {
        thread_deadline()
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
    /// [`Self::pool`] end by themselves. A delegate that waits for a device or loops in another way should call this
    /// from time to time, and return the reason as its error (`Err(why.into())`).
    pub fn interrupted(&self) -> Option<Interrupted> {
        thread_interruption()
    }

    /// The time at which the execution is interrupted, if there is a deadline.
    pub fn deadline(&self) -> Option<Instant> {
        thread_deadline()
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

/// Why this thread's computation has to stop, if it was interrupted.
fn thread_interruption() -> Option<Interrupted> {
    pteron_pool::armed()?.check().err()
}

/// The deadline of the computation that this thread runs, if there is one.
fn thread_deadline() -> Option<Instant> {
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
