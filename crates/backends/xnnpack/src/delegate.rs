use crate::data::Data;
use crate::error::{Result, fail};
use crate::example::metas;
use crate::payload::Role;
use crate::raise::raise;
use crate::support::support;
use crate::{BACKEND_ID, Payload};
use pteron_engine::Graph;
use pteron_operator::{Budget, KernelRegistry};
use pteron_runtime::{
    Backend, BackendError, BackendInitContext, CompileSpec, Delegate, DelegateGraph, FreeableBuffer,
    GraphDelegate, GraphRequest, NamedDataMap, PayloadContents, PayloadSupport,
};
use pteron_tensor::TensorMeta;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

impl Backend for XnnpackBackend {
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
        let num_inputs = inputs_of_calls(&payload)?;
        let data = Data::load(&payload, &processed, ctx.named_data(), ctx.memory())?;
        let (kernels, checked) = (Arc::clone(&self.kernels), Mutex::default());
        let mut raised = RaisedPayload { payload, data, num_inputs, kernels, checked };
        raised.check(ctx.bytes_left(), ctx.memory())?;
        Ok(Box::new(GraphDelegate::new(raised)))
    }

    fn contents(&self, processed: &[u8]) -> Option<Result<PayloadContents, BackendError>> {
        Some(read(processed).map(|payload| payload.contents()))
    }

    fn support(
        &self,
        processed: &FreeableBuffer,
        named_data: Option<&dyn NamedDataMap>,
    ) -> Option<Result<PayloadSupport, BackendError>> {
        Some(read(processed).map(|payload| support(&payload, &self.kernels, processed, named_data)))
    }
}

fn read(processed: &[u8]) -> Result<Payload, BackendError> {
    let payload = Payload::read(processed, &pteron_format::Limits::default());
    payload.map_err(|e| BackendError::new(format!("the payload: {e}")))
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
struct RaisedPayload {
    payload: Payload,
    data: Data,
    num_inputs: usize,
    kernels: Arc<KernelRegistry>,
    /// The graph for the example sizes, which was raised as a check. The first request takes it if it matches.
    checked: Mutex<Option<Checked>>,
}

/// A graph with the request that it answers.
struct Checked {
    inputs: Vec<TensorMeta>,
    outputs: Vec<TensorMeta>,
    bytes: usize,
    graph: Graph,
}

impl RaisedPayload {
    /// Fails if the payload cannot be raised for the sizes with which it was exported, unless only sizes that do not
    /// fit each other prevent it.
    fn check(&mut self, bytes: usize, budget: &Budget) -> Result<()> {
        let (inputs, outputs) =
            (metas(&self.payload, &self.payload.inputs)?, metas(&self.payload, &self.payload.outputs)?);
        let request = GraphRequest::new(&inputs, &outputs, bytes).within(budget);
        match raise(&self.payload, &self.data, &self.kernels, &request) {
            Ok(graph) => *self.checked() = Some(Checked { inputs, outputs, bytes, graph }),
            // Whether values fit each other is known when a call gives their actual sizes.
            Err(e) if e.is_of_sizes() => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn checked(&self) -> MutexGuard<'_, Option<Checked>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelegateGraph for RaisedPayload {
    fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError> {
        let answers = |checked: &Checked| {
            checked.inputs == request.inputs
                && checked.outputs == request.outputs
                && checked.bytes == request.bytes
        };
        if let Some(checked) = self.checked().take().filter(answers) {
            return Ok(checked.graph);
        }
        Ok(raise(&self.payload, &self.data, &self.kernels, request)?)
    }
}
