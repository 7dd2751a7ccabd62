//! Delegate backends at run time: the traits that a backend implements, and the registry of backends.

mod arguments;
mod contents;
mod context;
mod entry;
mod graph;
mod graph_delegate;
mod guard;
mod options;
mod payload;
mod registry;

pub use arguments::CallArgument;
pub(crate) use arguments::CallArguments;
pub use contents::{
    PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadSupport, PayloadValue, RefusedNode,
};
pub(crate) use context::BackendMemory;
pub use context::{BackendExecutionContext, BackendInitContext};
pub(crate) use entry::DelegateEntry;
pub(crate) use graph::at_node;
pub use graph::{DelegateGraph, GraphRequest};
pub use graph_delegate::GraphDelegate;
pub(crate) use guard::guarded;
pub use options::{BackendOptions, OptionValue};
pub use payload::PayloadBackend;
pub use registry::{BackendRegistry, DuplicateBackend};

use crate::{BackendError, FreeableBuffer, NamedDataMap};
use pteron_operator::{Arg, Out};
use std::sync::Arc;

/// A key and value that the ahead-of-time half of a backend stored in the program.
#[derive(Debug, Clone, Copy)]
pub struct CompileSpec<'a> {
    /// The key of the spec.
    pub key: &'a str,
    /// The value of the spec.
    pub value: &'a [u8],
}

/// The run-time half of a backend.
pub trait Backend: Send + Sync {
    /// The id by which programs name the backend.
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
    /// into the surrounding region; see also [`PayloadBackend`]. Any other delegate is opaque: the runtime calls its `execute`.
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

    /// Checks a payload as [`Self::init`] does, as far as that needs no named data. Called when a file is validated. By
    /// default, whatever [`Self::contents`] can list is valid, and so is any payload if the backend lists none.
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

/// An initialized payload, as `DelegateHandle` in ExecuTorch. Dropping it destroys the backend's instance.
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
