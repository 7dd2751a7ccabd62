//! The ahead-of-time half: which nodes of a program are taken, and their payloads.

mod build;
mod taken;

use crate::data::Data;
use crate::payload::Payload;
use crate::raise::{greatest, raise};
use crate::{BACKEND_ID, Error};
use build::{Blobs, Builder, of_graph, store_weights, with_keys};
use graph::{Executable, Graph, Packs};
use ir::exported::delegate::{
    CompileSpec, DebugHandle, DelegationError, DelegationSpec, PartitionResult, Partitioner, Preprocess,
    PreprocessResult, tag_supported,
};
use ir::exported::{Callable, ExportedProgram, Size, SymExpr, VarId, VarType};
use operator::{Generator, Isa, KernelContext, KernelRegistry, Level, Scratch};
use pool::Pool;
use runtime::GraphRequest;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use taken::taken;

/// Bytes that a kernel may take while a constant is computed.
const SCRATCH_BYTES: usize = 1 << 28;

/// Takes every node that a kernel of a registry computes, in the largest parts that can run at once.
#[derive(Clone)]
pub struct BefPartitioner {
    operators: Arc<Callable>,
}

/// Makes payloads of parts.
#[derive(Clone)]
pub struct BefPreprocess {
    kernels: Arc<KernelRegistry>,
    operators: Arc<Callable>,
    /// For which instructions packed weights are stored, too.
    target: Option<Isa>,
}

impl BefPartitioner {
    /// A partitioner for these operators.
    pub fn new(kernels: &KernelRegistry) -> Self {
        Self { operators: Arc::new(Callable::of(kernels, |_| true)) }
    }
}

impl BefPreprocess {
    /// Makes payloads that call these operators.
    pub fn new(kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        let kernels = kernels.into();
        Self { operators: Arc::new(Callable::of(&kernels, |_| true)), kernels, target: None }
    }

    /// The same, which also stores weights as machines with these instructions pack them. There they are used where they
    /// lie; on others they are packed from the weights that every machine has.
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
            tag_supported(&mut program, "bef", &|program, node| match taken(program, node, operators) {
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
            (var, format!("the size {symbol} follows from no size of a tensor that is given"))
        }));
        program.tags.retain(|_, tag| !unbound.contains_key(tag));
        let spec = DelegationSpec { backend_id: BACKEND_ID.to_owned(), compile_specs: Vec::new() };
        let tags = tags.into_iter().filter(|tag| !unbound.contains_key(tag));
        let partition_tags = tags.map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons })
    }
}

/// The tags whose nodes have sizes that do not follow from those of the tensors that they are given, each with a symbol.
fn unbound_tags(program: &ExportedProgram) -> BTreeMap<Arc<str>, Arc<str>> {
    #[derive(Default)]
    struct Symbols {
        made: HashSet<VarId>,
        bound: HashSet<Arc<str>>,
        used: Vec<Arc<str>>,
    }
    let mut of_tag: BTreeMap<Arc<str>, Symbols> = BTreeMap::new();
    program.graph.for_each_node(&mut |node| {
        let Some(tag) = program.tag_of(node) else { return };
        let symbols = of_tag.entry(Arc::clone(tag)).or_default();
        for var in node.operands() {
            let is_given = !symbols.made.contains(&var);
            match &program.var(var).ty {
                VarType::Tensor(spec) if is_given => {
                    for size in &spec.sizes {
                        use_symbols(size, &mut symbols.used);
                        if let Size::Sym(expression) = size
                            && let SymExpr::Symbol(name) = &**expression
                        {
                            symbols.bound.insert(Arc::clone(name));
                        }
                    }
                }
                VarType::Int(size) => use_symbols(size, &mut symbols.used),
                _ => {}
            }
        }
        for &var in &node.outputs {
            symbols.made.insert(var);
            let sizes = program.spec(var).map_or(&[][..], |spec| &spec.sizes);
            sizes.iter().for_each(|size| use_symbols(size, &mut symbols.used));
        }
    });
    let unbound = |(tag, symbols): (Arc<str>, Symbols)| {
        let free = symbols.used.into_iter().find(|symbol| !symbols.bound.contains(symbol));
        free.map(|symbol| (tag, symbol))
    };
    of_tag.into_iter().filter_map(unbound).collect()
}

fn use_symbols(size: &Size, used: &mut Vec<Arc<str>>) {
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
            let taken = taken(part, node, &self.operators).map_err(refused)?;
            builder.add(node, taken).map_err(refused)?;
        }
        let (calls, data) = builder.finish().map_err(fail)?;
        let names: Vec<String> = part.graph.nodes.iter().map(|node| part.node_name(node)).collect();
        let lowered = self.lowered(calls, &data, names).map_err(fail)?;
        let processed_bytes = lowered.payload.to_bytes().map_err(|e| fail(e.to_string()))?;
        let handles = lowered.names.into_iter().enumerate();
        let debug_handle_map =
            handles.map(|(handle, names)| (DebugHandle::Int(handle as u32), names)).collect();
        let named_data = lowered.blobs.into_list();
        Ok(PreprocessResult { processed_bytes, debug_handle_map, named_data, reads_past_end: 0 })
    }
}

/// A payload, its bytes, and the nodes of the part that each of its nodes stands for.
struct Lowered {
    payload: Payload,
    blobs: Blobs,
    names: Vec<Vec<String>>,
}

impl BefPreprocess {
    /// The payload of calls as it is stored: after all passes if its sizes are known.
    fn lowered(&self, calls: Payload, data: &Data, names: Vec<String>) -> Result<Lowered, String> {
        let graph = self.check(&calls, data).map_err(|e| e.to_string())?;
        let is_static = calls.expressions.is_empty() && calls.inputs == graph.inputs().len();
        if let Some(graph) = is_static.then(|| fused(graph.clone())) {
            let mut blobs = Blobs::default();
            if let Some(mut payload) = of_graph(&graph, &calls, &mut blobs) {
                let of_node = |id| {
                    let places = graph.node(id).origins().iter();
                    places.filter_map(|place| names.get(place.node? as usize).cloned()).collect()
                };
                let names = graph.order().into_iter().map(of_node).collect();
                self.pack(graph, &mut payload, &mut blobs)?;
                return Ok(Lowered { payload, blobs, names });
            }
        }
        let mut blobs = Blobs::default();
        let mut payload = with_keys(calls, data, &mut blobs)?;
        self.pack(graph, &mut payload, &mut blobs)?;
        Ok(Lowered { payload, blobs, names: names.into_iter().map(|name| vec![name]).collect() })
    }

    /// Stores the weights that the graph's executable packs, if that is asked for.
    fn pack(&self, graph: Graph, payload: &mut Payload, blobs: &mut Blobs) -> Result<(), String> {
        let Some(isa) = self.target else { return Ok(()) };
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(SCRATCH_BYTES), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(isa);
        let mut packs = Packs::storing();
        Executable::with_packs(graph, &ctx, &mut packs).map_err(|e| e.to_string())?;
        store_weights(payload, packs.stored(), blobs);
        Ok(())
    }

    /// The graph of the payload's greatest sizes.
    fn check(&self, payload: &Payload, data: &Data) -> Result<Graph, Error> {
        let inputs = greatest(payload, &(0..payload.inputs).collect::<Vec<_>>())?;
        let outputs = greatest(payload, &payload.outputs)?;
        raise(payload, data, &self.kernels, &GraphRequest::new(&inputs, &outputs, usize::MAX))
    }
}

/// The graph after all passes. Constants are computed by the instructions that every machine has, so that the same
/// program is compiled to the same bytes everywhere.
fn fused(mut graph: Graph) -> Graph {
    let (pool, scratch, generator) = (Pool::serial(), Scratch::new(SCRATCH_BYTES), Generator::new(0));
    let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::limited(Level::Portable));
    graph::passes::run_until(&mut graph, &ctx, graph::passes::PORTABLE);
    graph
}
