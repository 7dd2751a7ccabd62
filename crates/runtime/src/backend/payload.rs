//! Backends whose payloads say which operators they compute.

use super::graph::{DelegateGraph, GraphRequest};
use super::{
    Backend, BackendInitContext, CompileSpec, Delegate, GraphDelegate, PayloadContents, PayloadSupport,
};
use crate::{BackendError, FreeableBuffer, NamedDataMap};
use pteron_engine::Graph;
use pteron_operator::Budget;
use pteron_tensor::TensorMeta;
use std::sync::{Mutex, PoisonError};

/// A backend whose payloads say which operators they compute. It is a [`Backend`] of [`GraphDelegate`]s: the methods here
/// are what differs between payload formats.
pub trait PayloadBackend: Send + Sync {
    /// The id by which programs name the backend.
    const ID: &'static str;
    /// A payload that has been read and verified.
    type Payload;
    /// A payload with its constants, from which graphs are raised.
    type Graph: DelegateGraph + 'static;

    /// Reads and verifies a payload.
    fn read(processed: &[u8]) -> Result<Self::Payload, String>;

    /// Lists the nodes and tensors of a payload: see [`Backend::contents`].
    fn describe(payload: &Self::Payload) -> PayloadContents;

    /// Looks up the constants of a payload: ranges of the payload's bytes `processed`, or named data.
    fn load(
        &self,
        payload: Self::Payload,
        processed: &FreeableBuffer,
        ctx: &BackendInitContext<'_>,
    ) -> Result<Self::Graph, BackendError>;

    /// A payload whose constants have sizes, but no bytes, so that it can be raised as a check without its named data.
    /// `None`, the default, if that is not possible.
    fn without_data(&self, payload: Self::Payload) -> Option<Self::Graph> {
        let _ = payload;
        None
    }

    /// The metas of the tensor inputs and of the tensor outputs at export. Dynamic sizes are upper bounds.
    fn exported_metas(graph: &Self::Graph) -> Result<[Vec<TensorMeta>; 2], BackendError>;

    /// Raises a payload for the metas of [`Self::exported_metas`], which is how a payload is checked when it is loaded.
    /// `None` if that fails only because the exported sizes do not fit each other; other sizes may fit.
    fn raise_exported(
        graph: &Self::Graph,
        request: &GraphRequest<'_>,
    ) -> Result<Option<Graph>, BackendError> {
        graph.graph(request).map(Some)
    }

    /// Which of the payload's nodes the backend supports: see [`Backend::support`].
    fn node_support(
        &self,
        payload: &Self::Payload,
        processed: &FreeableBuffer,
        named_data: Option<&dyn NamedDataMap>,
    ) -> Option<PayloadSupport> {
        let _ = (payload, processed, named_data);
        None
    }
}

impl<B: PayloadBackend> Backend for B {
    fn id(&self) -> &str {
        B::ID
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let graph = self.load(read::<B>(&processed)?, &processed, ctx)?;
        let exported = raise_exported::<B>(&graph, ctx.bytes_left(), ctx.memory())?;
        Ok(Box::new(GraphDelegate::new(CheckedGraph { graph, exported: Mutex::new(exported) })))
    }

    fn contents(&self, processed: &[u8]) -> Option<Result<PayloadContents, BackendError>> {
        Some(read::<B>(processed).map(|payload| B::describe(&payload)))
    }

    fn check(&self, processed: &[u8]) -> Result<(), BackendError> {
        match self.without_data(read::<B>(processed)?) {
            Some(graph) => raise_exported::<B>(&graph, usize::MAX, &Budget::default()).map(drop),
            None => Ok(()),
        }
    }

    fn support(
        &self,
        processed: &FreeableBuffer,
        named_data: Option<&dyn NamedDataMap>,
    ) -> Option<Result<PayloadSupport, BackendError>> {
        match read::<B>(processed) {
            Ok(payload) => self.node_support(&payload, processed, named_data).map(Ok),
            Err(e) => Some(Err(e)),
        }
    }
}

fn read<B: PayloadBackend>(processed: &[u8]) -> Result<B::Payload, BackendError> {
    B::read(processed).map_err(|e| BackendError::new(format!("the payload: {e}")))
}

/// A graph, and the request for which it was raised.
struct Raised {
    inputs: Vec<TensorMeta>,
    outputs: Vec<TensorMeta>,
    bytes: usize,
    graph: Graph,
}

fn raise_exported<B: PayloadBackend>(
    graph: &B::Graph,
    bytes: usize,
    budget: &Budget,
) -> Result<Option<Raised>, BackendError> {
    let [inputs, outputs] = B::exported_metas(graph)?;
    let request = GraphRequest::new(&inputs, &outputs, bytes).with_budget(budget);
    let raised = B::raise_exported(graph, &request)?;
    Ok(raised.map(|graph| Raised { inputs, outputs, bytes, graph }))
}

/// A payload that was raised once, to check it when it was loaded.
struct CheckedGraph<G> {
    graph: G,
    /// The graph raised by the check. The first request takes it, and uses it if it was raised for an equal request.
    exported: Mutex<Option<Raised>>,
}

impl<G: DelegateGraph> DelegateGraph for CheckedGraph<G> {
    fn num_inputs(&self) -> usize {
        self.graph.num_inputs()
    }

    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError> {
        let answers = |raised: &Raised| {
            raised.inputs == request.inputs
                && raised.outputs == request.outputs
                && raised.bytes == request.bytes
        };
        let raised = self.exported.lock().unwrap_or_else(PoisonError::into_inner).take();
        match raised.filter(answers) {
            Some(raised) => Ok(raised.graph),
            None => self.graph.graph(request),
        }
    }
}
