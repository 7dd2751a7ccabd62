use crate::data::Data;
use crate::error::{Result, fail};
use crate::example::example_metas;
use crate::payload::Role;
use crate::raise::raise;
use crate::support::check_support;
use crate::{BACKEND_ID, Payload};
use pteron_engine::Graph;
use pteron_operator::KernelRegistry;
use pteron_runtime::{
    BackendError, BackendInitContext, DelegateGraph, FreeableBuffer, GraphRequest, NamedDataMap,
    PayloadBackend, PayloadContents, PayloadSupport,
};
use pteron_tensor::TensorMeta;
use std::sync::Arc;

/// Runs the XNNPACK delegates of programs.
///
/// Payloads are raised to calls of operators in a kernel registry, so kernels that the user has replaced are used here,
/// too.
pub struct XnnpackBackend {
    kernels: Arc<KernelRegistry>,
}

impl XnnpackBackend {
    /// A backend that computes with these kernels.
    pub fn new(kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        Self { kernels: kernels.into() }
    }
}

impl PayloadBackend for XnnpackBackend {
    const ID: &'static str = BACKEND_ID;
    type Payload = Payload;
    type Graph = RaisedPayload;

    fn read(processed: &[u8]) -> Result<Payload, String> {
        Payload::read(processed, &pteron_format::Limits::default()).map_err(|e| e.to_string())
    }

    fn describe(payload: &Payload) -> PayloadContents {
        payload.contents()
    }

    fn load(
        &self,
        payload: Payload,
        processed: &FreeableBuffer,
        ctx: &BackendInitContext<'_>,
    ) -> Result<RaisedPayload, BackendError> {
        let num_inputs = inputs_of_calls(&payload)?;
        let data = Data::load(&payload, processed, ctx.named_data(), ctx.memory())?;
        Ok(RaisedPayload { payload, data, num_inputs, kernels: Arc::clone(&self.kernels) })
    }

    fn exported_metas(graph: &RaisedPayload) -> Result<[Vec<TensorMeta>; 2], BackendError> {
        Ok(example_metas(&graph.payload)?)
    }

    fn raise_exported(
        graph: &RaisedPayload,
        request: &GraphRequest<'_>,
    ) -> Result<Option<Graph>, BackendError> {
        match graph.raise(request) {
            Ok(graph) => Ok(Some(graph)),
            // Whether the values' sizes fit each other is known only when a call gives their actual sizes.
            Err(e) if e.depends_on_sizes() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn node_support(
        &self,
        payload: &Payload,
        processed: &FreeableBuffer,
        named_data: Option<&dyn NamedDataMap>,
    ) -> Option<PayloadSupport> {
        Some(check_support(payload, &self.kernels, processed, named_data))
    }
}

/// The number of inputs of a delegate call. Fails unless the external ids of the payload's inputs and outputs are
/// consecutive, with the inputs first.
pub(crate) fn inputs_of_calls(payload: &Payload) -> Result<usize> {
    let ids = payload.inputs.iter().chain(&payload.outputs).map(|&v| payload.values[v].role);
    for (expected, role) in ids.enumerate() {
        if let Role::Input(id) | Role::Output(id) = role
            && id as usize != expected
        {
            return fail(format!(
                "argument {expected} of a call is none of the payload's inputs and outputs"
            ));
        }
    }
    Ok(payload.inputs.len())
}

/// A payload that is raised to a graph for each requested combination of sizes.
pub struct RaisedPayload {
    payload: Payload,
    data: Data,
    num_inputs: usize,
    kernels: Arc<KernelRegistry>,
}

impl RaisedPayload {
    fn raise(&self, request: &GraphRequest<'_>) -> Result<Graph> {
        raise(&self.payload, &self.data, &self.kernels, request)
    }
}

impl DelegateGraph for RaisedPayload {
    fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError> {
        Ok(self.raise(request)?)
    }
}
