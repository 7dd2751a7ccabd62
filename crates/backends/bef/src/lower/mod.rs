//! The ahead-of-time half: selects the nodes of a program to delegate, and creates their payloads.

mod accept;
mod build;

use crate::data::Data;
use crate::payload::Payload;
use crate::raise::{max_metas, raise};
use crate::{BACKEND_ID, Error};
use accept::accept;
use build::{Blobs, Builder, payload_of_graph, store_weights, with_final_keys};
use pteron_engine::{Executable, Graph, Packs};
use pteron_exported::delegate::{
    CompileSpec, DebugHandle, DelegationError, DelegationSpec, PartitionResult, Partitioner, Preprocess,
    PreprocessResult, tag_supported,
};
use pteron_exported::{Callable, ExportedProgram, Size, SymExpr, VarId, VarType};
use pteron_operator::{Generator, Isa, KernelContext, KernelRegistry, Scratch};
use pteron_pool::Pool;
use pteron_runtime::GraphRequest;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The limit of scratch memory for computing a constant, in bytes.
const SCRATCH_BYTES: usize = 1 << 28;

/// Delegates every node that a payload can contain and a registry has a kernel for, in parts as large as possible.
#[derive(Clone)]
pub struct BefPartitioner {
    operators: Arc<Callable>,
}

/// Compiles parts to payloads.
#[derive(Clone)]
pub struct BefPreprocess {
    kernels: Arc<KernelRegistry>,
    operators: Arc<Callable>,
    /// The instruction set for which packed weights are stored in addition to plain ones, if any.
    target: Option<Isa>,
}

impl BefPartitioner {
    /// A partitioner for the operators of a registry.
    pub fn new(kernels: &KernelRegistry) -> Self {
        Self { operators: Arc::new(Callable::from_registry(kernels, |_| true)) }
    }
}

impl BefPreprocess {
    /// A compiler of payloads that call the operators of a registry; it stores no packed weights.
    pub fn new(kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        let kernels = kernels.into();
        Self { operators: Arc::new(Callable::from_registry(&kernels, |_| true)), kernels, target: None }
    }

    /// Also stores weights packed for this instruction set. Machines with it use them in place; other machines pack the
    /// plain weights, which are always stored.
    #[must_use]
    pub fn packed_for(self, isa: Isa) -> Self {
        Self { target: Some(isa), ..self }
    }
}

impl Partitioner for BefPartitioner {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let mut program = program.clone();
        let reasons = RefCell::new(BTreeMap::new());
        let operators = &self.operators;
        let tags =
            tag_supported(&mut program, "bef", &|program, node| match accept(program, node, operators) {
                Ok(_) => true,
                Err(reason) => {
                    reasons.borrow_mut().extend(node.outputs.first().map(|&var| (var, reason)));
                    false
                }
            });
        let mut reasons = reasons.into_inner();
        let unbound = unbound_tags(&program);
        let without = program.tags.iter().filter_map(|(&var, tag)| Some((var, unbound.get(tag)?)));
        reasons.extend(without.map(|(var, symbol)| {
            (var, format!("the size {symbol} does not follow from the sizes of the part's tensor inputs"))
        }));
        program.tags.retain(|_, tag| !unbound.contains_key(tag));
        let spec = DelegationSpec { backend_id: BACKEND_ID.to_owned(), compile_specs: Vec::new() };
        let tags = tags.into_iter().filter(|tag| !unbound.contains_key(tag));
        let partition_tags = tags.map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons })
    }
}

/// The tags of parts with size symbols that the parts' tensor inputs do not determine, each with one such symbol.
fn unbound_tags(program: &ExportedProgram) -> BTreeMap<Arc<str>, Arc<str>> {
    #[derive(Default)]
    struct Symbols {
        produced: HashSet<VarId>,
        bound: HashSet<Arc<str>>,
        used: Vec<Arc<str>>,
    }
    let mut of_tag: BTreeMap<Arc<str>, Symbols> = BTreeMap::new();
    program.graph.for_each_node(&mut |node| {
        let Some(tag) = program.tag_of(node) else { return };
        let symbols = of_tag.entry(Arc::clone(tag)).or_default();
        for var in node.operands() {
            let is_input = !symbols.produced.contains(&var);
            match &program.var(var).ty {
                VarType::Tensor(spec) if is_input => {
                    for size in &spec.sizes {
                        collect_symbols(size, &mut symbols.used);
                        if let Size::Sym(expression) = size
                            && let SymExpr::Symbol(name) = &**expression
                        {
                            symbols.bound.insert(Arc::clone(name));
                        }
                    }
                }
                VarType::Int(size) => collect_symbols(size, &mut symbols.used),
                _ => {}
            }
        }
        for &var in &node.outputs {
            symbols.produced.insert(var);
            let sizes = program.spec(var).map_or(&[][..], |spec| &spec.sizes);
            sizes.iter().for_each(|size| collect_symbols(size, &mut symbols.used));
        }
    });
    let unbound = |(tag, symbols): (Arc<str>, Symbols)| {
        let free = symbols.used.into_iter().find(|symbol| !symbols.bound.contains(symbol));
        free.map(|symbol| (tag, symbol))
    };
    of_tag.into_iter().filter_map(unbound).collect()
}

fn collect_symbols(size: &Size, used: &mut Vec<Arc<str>>) {
    if let Size::Sym(expression) = size {
        expression.for_each_symbol(&mut |name| used.push(Arc::clone(name)));
    }
}

impl Preprocess for BefPreprocess {
    fn backend_id(&self) -> &str {
        BACKEND_ID
    }

    fn preprocess(
        &self,
        part: &ExportedProgram,
        _: &[CompileSpec],
    ) -> Result<PreprocessResult, DelegationError> {
        let fail = |problem: String| DelegationError::Payload { backend_id: BACKEND_ID.to_owned(), problem };
        let mut builder = Builder::new(part).map_err(fail)?;
        for node in &part.graph.nodes {
            let refused = |problem: String| DelegationError::Preprocess {
                backend_id: BACKEND_ID.to_owned(),
                node: part.node_name(node),
                target: node.target.to_string(),
                problem,
            };
            let accepted = accept(part, node, &self.operators).map_err(refused)?;
            builder.add_node(node, accepted).map_err(refused)?;
        }
        let (calls, data) = builder.finish().map_err(fail)?;
        let names: Vec<String> = part.graph.nodes.iter().map(|node| part.node_name(node)).collect();
        let lowered = self.optimize(calls, &data, names).map_err(fail)?;
        let processed_bytes = lowered.payload.to_bytes().map_err(|e| fail(e.to_string()))?;
        let handles = lowered.names.into_iter().enumerate();
        let debug_handle_map =
            handles.map(|(handle, names)| (DebugHandle::Int(handle as u32), names)).collect();
        let named_data = lowered.blobs.into_list();
        Ok(PreprocessResult { processed_bytes, debug_handle_map, named_data, ..Default::default() })
    }
}

/// A payload, its named data, and for each of the payload's nodes the names of the part's nodes that it implements.
struct Lowered {
    payload: Payload,
    blobs: Blobs,
    names: Vec<Vec<String>>,
}

impl BefPreprocess {
    /// Converts a payload of calls to its stored form: optimized by the passes if its sizes are static, all its inputs
    /// are tensors, and payloads can contain the result.
    fn optimize(&self, calls: Payload, data: &Data, names: Vec<String>) -> Result<Lowered, String> {
        let graph = self.raise_maximum(&calls, data).map_err(|e| e.to_string())?;
        let is_static = calls.expressions.is_empty() && calls.inputs == graph.inputs().len();
        if let Some(graph) = is_static.then(|| run_portable_passes(graph.clone())) {
            let mut blobs = Blobs::default();
            if let Some(mut payload) = payload_of_graph(&graph, &calls, &mut blobs) {
                let of_node = |id| {
                    let places = graph.node(id).origins().iter();
                    places.filter_map(|place| names.get(place.node? as usize).cloned()).collect()
                };
                let names = graph.order().into_iter().map(of_node).collect();
                self.store_packed_weights(graph, &mut payload, &mut blobs)?;
                return Ok(Lowered { payload, blobs, names });
            }
        }
        let mut blobs = Blobs::default();
        let mut payload = with_final_keys(calls, data, &mut blobs)?;
        self.store_packed_weights(graph, &mut payload, &mut blobs)?;
        Ok(Lowered { payload, blobs, names: names.into_iter().map(|name| vec![name]).collect() })
    }

    /// Stores the weights that the graph's executable packs, if a target is set.
    fn store_packed_weights(
        &self,
        graph: Graph,
        payload: &mut Payload,
        blobs: &mut Blobs,
    ) -> Result<(), String> {
        let Some(isa) = self.target else { return Ok(()) };
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(SCRATCH_BYTES), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(isa);
        let mut packs = Packs::new_storing();
        Executable::with_packs(graph, &ctx, &mut packs).map_err(|e| e.to_string())?;
        store_weights(payload, packs.take_stored(), blobs);
        Ok(())
    }

    /// Raises the payload for its maximum sizes.
    fn raise_maximum(&self, payload: &Payload, data: &Data) -> Result<Graph, Error> {
        let [inputs, outputs] = max_metas(payload)?;
        raise(payload, data, &self.kernels, &GraphRequest::new(&inputs, &outputs, usize::MAX))
    }
}

/// Runs the portable passes. Constants are computed with the baseline instruction set, so that compilation is
/// deterministic across machines.
fn run_portable_passes(mut graph: Graph) -> Graph {
    let (pool, scratch, generator) = (Pool::serial(), Scratch::new(SCRATCH_BYTES), Generator::new(0));
    let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::portable());
    pteron_engine::passes::run_until(&mut graph, &ctx, pteron_engine::passes::PORTABLE);
    graph
}
