use crate::data::Data;
use crate::raise::{max_metas, raise};
use crate::{BACKEND_ID, Payload};
use pteron_engine::Graph;
use pteron_operator::KernelRegistry;
use pteron_runtime::{
    BackendError, BackendInitContext, DelegateGraph, FreeableBuffer, GraphRequest, PayloadBackend,
    PayloadContents,
};
use pteron_tensor::TensorMeta;
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

impl PayloadBackend for BefBackend {
    const ID: &'static str = BACKEND_ID;
    type Payload = Payload;
    type Graph = StoredGraph;

    fn read(processed: &[u8]) -> Result<Payload, String> {
        Payload::read(processed).map_err(|e| e.to_string())
    }

    fn describe(payload: &Payload) -> PayloadContents {
        payload.contents()
    }

    fn load(
        &self,
        payload: Payload,
        _: &FreeableBuffer,
        ctx: &BackendInitContext<'_>,
    ) -> Result<StoredGraph, BackendError> {
        let data = Data::load(&payload, ctx.named_data(), ctx.isa(), ctx.memory())?;
        Ok(StoredGraph { payload, data, kernels: Arc::clone(&self.kernels) })
    }

    fn without_data(&self, payload: Payload) -> Option<StoredGraph> {
        let data = Data::without_bytes(&payload);
        Some(StoredGraph { payload, data, kernels: Arc::clone(&self.kernels) })
    }

    fn exported_metas(graph: &StoredGraph) -> Result<[Vec<TensorMeta>; 2], BackendError> {
        Ok(max_metas(&graph.payload)?)
    }
}

/// A payload that is raised to a graph for each call of its delegate.
pub struct StoredGraph {
    payload: Payload,
    data: Data,
    kernels: Arc<KernelRegistry>,
}

impl DelegateGraph for StoredGraph {
    fn num_inputs(&self) -> usize {
        self.payload.inputs
    }

    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError> {
        Ok(raise(&self.payload, &self.data, &self.kernels, request)?)
    }
}
