use crate::data::Data;
use crate::error::Result;
use crate::raise::{max_metas, raise};
use crate::{BACKEND_ID, Payload};
use pteron_engine::Graph;
use pteron_operator::{Budget, KernelRegistry};
use pteron_runtime::{
    Backend, BackendError, BackendInitContext, CompileSpec, Delegate, DelegateGraph, FreeableBuffer,
    GraphDelegate, GraphRequest, PayloadContents,
};
use std::sync::Arc;

/// Runs the delegates that Pteron's compiler creates.
///
/// Calls in payloads use the kernels of a registry, so that a kernel that the user has replaced is used in delegates,
/// too.
pub struct BefBackend {
    kernels: Arc<KernelRegistry>,
}

impl BefBackend {
    /// A backend that calls these kernels.
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

    fn check(&self, processed: &[u8]) -> Result<(), BackendError> {
        let payload = read(processed)?;
        let data = Data::absent(&payload);
        let stored = StoredGraph { payload, data, kernels: Arc::clone(&self.kernels) };
        Ok(stored.check(usize::MAX, &Budget::default())?)
    }

    fn contents(&self, processed: &[u8]) -> Option<Result<PayloadContents, BackendError>> {
        Some(read(processed).map(|payload| payload.contents()))
    }
}

fn read(processed: &[u8]) -> Result<Payload, BackendError> {
    Payload::read(processed).map_err(|e| BackendError::new(format!("the payload: {e}")))
}

/// A payload that is raised to a graph for each call of its delegate.
struct StoredGraph {
    payload: Payload,
    data: Data,
    kernels: Arc<KernelRegistry>,
}

impl StoredGraph {
    /// Checks that the payload can be raised for the maximum sizes that it was exported for.
    fn check(&self, bytes: usize, budget: &Budget) -> Result<()> {
        let inputs = max_metas(&self.payload, &(0..self.payload.inputs).collect::<Vec<_>>())?;
        let outputs = max_metas(&self.payload, &self.payload.outputs)?;
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
