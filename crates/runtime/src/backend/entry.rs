//! The delegates of a loaded method.

use super::Delegate;
use super::graph::{DelegateGraph, GraphRequest, checked_graph};
use super::guard::{drop_guarded, guarded};
use crate::BackendError;
use pteron_engine::Graph;
use pteron_tensor::TensorMeta;
use std::cell::RefCell;
use std::sync::Arc;

/// A delegate of the method, with the id of its backend for messages and events.
pub(crate) struct DelegateEntry {
    pub(crate) backend: Arc<str>,
    /// The delegate; `None` once it is released, because regions compute all that it computes.
    pub(crate) delegate: Option<Box<dyn Delegate>>,
    pub(crate) num_inputs: usize,
    graph: Option<Arc<dyn DelegateGraph>>,
    /// The last graph request and its answer.
    last: RefCell<Option<CachedGraph>>,
}

/// A graph request to a delegate, and its answer.
struct CachedGraph {
    inputs: Vec<TensorMeta>,
    outputs: Vec<TensorMeta>,
    graph: Option<Arc<Graph>>,
}

impl DelegateEntry {
    /// An entry for a delegate, with the delegate's graph and number of inputs. Fails if the delegate panics.
    pub(crate) fn new(backend: Arc<str>, delegate: Box<dyn Delegate>) -> Result<Self, BackendError> {
        // Whatever fails, the delegate is dropped with the entry.
        let mut entry =
            Self { backend, delegate: Some(delegate), num_inputs: 0, graph: None, last: RefCell::default() };
        let known = guarded(|| Ok(entry.delegate.as_ref().map(|d| (d.graph(), d.num_inputs()))))?;
        (entry.graph, entry.num_inputs) = known.unwrap_or_default();
        Ok(entry)
    }

    /// Whether the delegate exposes a graph.
    pub(crate) fn has_graph(&self) -> bool {
        self.graph.is_some()
    }

    /// The delegate's graph for a call, if it has one. It is cached until the graph for another call is requested.
    pub(crate) fn graph(&self, request: &GraphRequest<'_>) -> Option<Arc<Graph>> {
        let source = self.graph.as_ref()?;
        let mut last = self.last.borrow_mut();
        match &*last {
            Some(cached) if cached.inputs == request.inputs && cached.outputs == request.outputs => {
                cached.graph.clone()
            }
            _ => {
                // If there is no graph for the call, the error is reported when the call is executed.
                let graph = checked_graph(&**source, request).ok().map(Arc::new);
                let (inputs, outputs) = (request.inputs.to_vec(), request.outputs.to_vec());
                *last = Some(CachedGraph { inputs, outputs, graph: graph.clone() });
                graph
            }
        }
    }

    /// Drops the cached graph.
    pub(crate) fn forget_graph(&self) {
        self.last.take();
    }

    /// Drops the delegate with its payload.
    pub(crate) fn release(&mut self) {
        drop_guarded((self.delegate.take(), self.graph.take(), self.last.take()));
    }

    /// Forks the delegate for another instance of the method. `None` if it cannot be forked.
    ///
    /// # Errors
    /// The delegate panics.
    pub(crate) fn fork(&self) -> Result<Option<Self>, BackendError> {
        let backend = Arc::clone(&self.backend);
        match &self.delegate {
            Some(delegate) => match guarded(|| Ok(delegate.fork()))? {
                Some(delegate) => Self::new(backend, delegate).map(Some),
                None => Ok(None),
            },
            None => {
                let (graph, last) = (None, RefCell::default());
                Ok(Some(Self { backend, delegate: None, num_inputs: self.num_inputs, graph, last }))
            }
        }
    }
}

impl Drop for DelegateEntry {
    fn drop(&mut self) {
        self.release();
    }
}
