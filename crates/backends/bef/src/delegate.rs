use crate::data::Data;
use crate::error::Result;
use crate::raise::{greatest, raise};
use crate::{BACKEND_ID, Payload};
use graph::Graph;
use operator::{Budget, KernelRegistry};
use runtime::{
    Backend, BackendError, BackendInitContext, CompileSpec, Delegate, DelegateGraph, FreeableBuffer,
    GraphDelegate, GraphRequest, PayloadContents,
};
use std::sync::Arc;

/// Runs the delegates that Pteron's compiler makes.
///
/// Calls in payloads are those of the operators of a registry, so that a kernel that the user has replaced is used here,
/// too.
pub struct BefBackend {
    kernels: Arc<KernelRegistry>,
}

impl BefBackend {
    /// A backend that computes with these operators.
    pub fn new(kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        Self { kernels: kernels.into() }
    }
}

impl Backend for BefBackend {
    fn id(&self) -> &str {
        BACKEND_ID
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let payload = read(&processed)?;
        let data = Data::load(&payload, ctx.named_data(), ctx.isa(), ctx.memory())?;
        let stored = StoredGraph { payload, data, kernels: Arc::clone(&self.kernels) };
        stored.check(ctx.bytes_left(), ctx.memory())?;
        Ok(Box::new(GraphDelegate::new(stored)))
    }

    fn contents(&self, processed: &[u8]) -> Option<Result<PayloadContents, BackendError>> {
        Some(read(processed).map(|payload| payload.contents()))
    }
}

fn read(processed: &[u8]) -> Result<Payload, BackendError> {
    Payload::read(processed).map_err(|e| BackendError::new(format!("the payload: {e}")))
}

/// A payload, of which a graph is made for each call of its delegate.
struct StoredGraph {
    payload: Payload,
    data: Data,
    kernels: Arc<KernelRegistry>,
}

impl StoredGraph {
    /// Fails for a payload that is no graph for the greatest sizes that it was exported for.
    fn check(&self, bytes: usize, budget: &Budget) -> Result<()> {
        let inputs = greatest(&self.payload, &(0..self.payload.inputs).collect::<Vec<_>>())?;
        let outputs = greatest(&self.payload, &self.payload.outputs)?;
        let request = GraphRequest::new(&inputs, &outputs, bytes).within(budget);
        raise(&self.payload, &self.data, &self.kernels, &request)?;
        Ok(())
    }
}

impl DelegateGraph for StoredGraph {
    fn num_inputs(&self) -> usize {
        self.payload.inputs
    }

    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError> {
        Ok(raise(&self.payload, &self.data, &self.kernels, request)?)
    }
}
