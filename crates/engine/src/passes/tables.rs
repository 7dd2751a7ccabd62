//! Replaces elementwise chains from one 8-bit tensor (and scalars) to a quantization by a lookup in a table of 256
//! entries.
//!
//! The code of the replaced steps computes the table from the 256 values, so that the results are identical.

use crate::cpu::{InputIndex, Pass};
use crate::graph::{Graph, NodeId, ValueId};
use crate::operation::{OpKind, as_op};
use crate::ops::lookup::Lookup;
use crate::ops::pointwise::Pointwise;
use crate::ops::quantize::{Dequantize, Quantize};
use pteron_kernels::compute::{Isa, dequantize, quantize};
use pteron_pool::Pool;
use pteron_tensor::ScalarType;
use std::collections::HashMap;
use std::sync::Arc;

/// The results of a function of an 8-bit value, one for each of the 256 values.
#[derive(Clone)]
enum Results {
    Bytes(Arc<[u8; 256]>),
    Floats(Arc<[f32; 256]>),
}

/// A value that is an elementwise function of the 8-bit value `of`.
struct Function {
    of: ValueId,
    results: Results,
    /// The number of uses of the value that the pass has not visited yet.
    uses: usize,
}

/// Replaces every quantization whose result is a function of an 8-bit tensor by a lookup.
pub(super) fn run(graph: &mut Graph, isa: Isa) {
    let mut tables = Tables { isa, functions: HashMap::new() };
    for node in graph.order() {
        let &[out] = graph.node(node).outputs() else { continue };
        let function = tables.as_function_of_8_bit(graph, node);
        // Tables are dropped after their last use, to bound the memory in long graphs.
        for v in graph.node(node).inputs() {
            tables.count_use(*v);
        }
        let Some((of, results)) = function else { continue };
        if let Results::Bytes(table) = &results {
            replace_by_lookup(graph, node, of, table);
        }
        let uses = graph.uses(out).len();
        if uses > 0 {
            tables.functions.insert(out, Function { of, results, uses });
        }
    }
}

/// Rewrites a node to a lookup, and removes the nodes that became dead.
fn replace_by_lookup(graph: &mut Graph, node: NodeId, of: ValueId, table: &Arc<[u8; 256]>) {
    let mut before: Vec<NodeId> = graph.producer(graph.node(node).inputs()[0]).into_iter().collect();
    graph.rewrite(node, OpKind::arc(Lookup(Arc::clone(table))), &[of]);
    while let Some(dead) = before.pop() {
        let outputs = graph.node(dead).outputs();
        if outputs.is_empty() || outputs.iter().any(|&v| graph.is_used(v)) {
            continue;
        }
        let inputs = graph.node(dead).inputs().to_vec();
        graph.absorb(node, dead);
        graph.remove(dead);
        before.extend(inputs.iter().filter_map(|&v| graph.producer(v)));
    }
}

struct Tables {
    isa: Isa,
    functions: HashMap<ValueId, Function>,
}

impl Tables {
    fn count_use(&mut self, v: ValueId) {
        if let Some(function) = self.functions.get_mut(&v) {
            function.uses -= 1;
            if function.uses == 0 {
                self.functions.remove(&v);
            }
        }
    }

    /// The 8-bit value of which a node's result is an elementwise function, and the table of the function's results.
    fn as_function_of_8_bit(&self, graph: &Graph, node: NodeId) -> Option<(ValueId, Results)> {
        let (inputs, out) = (graph.node(node).inputs(), graph.node(node).outputs()[0]);
        if let Some(&Dequantize(affine)) = as_op(graph, node) {
            let &[v] = inputs else { return None };
            let (of, bytes) = self.as_8_bit_table(graph, v)?;
            let mut results = [0.0; 256];
            let signed = graph.meta(v).dtype() == ScalarType::Char;
            dequantize(Pool::alone(), self.isa, affine, signed, &bytes[..], &mut results);
            return Some((of, Results::Floats(Arc::new(results))));
        }
        if let Some(Quantize(quantization)) = as_op(graph, node) {
            let Function { of, results: Results::Floats(x), .. } = self.functions.get(inputs.first()?)?
            else {
                return None;
            };
            let mut results = [0; 256];
            quantize(Pool::alone(), self.isa, quantization, &x[..], &mut results);
            return Some((*of, Results::Bytes(Arc::new(results))));
        }
        let Pointwise(expression) = as_op(graph, node)?;
        let of = inputs.iter().find_map(|v| Some(self.functions.get(v)?.of))?;
        let (from, to) = (graph.meta(of), graph.meta(out));
        if from.sizes() != to.sizes() || from.dim_order() != to.dim_order() {
            return None;
        }
        let (mut operands, mut access) = (Vec::new(), Vec::new());
        for &v in inputs {
            match self.functions.get(&v) {
                Some(Function { of: other, results: Results::Floats(x), .. }) if *other == of => {
                    operands.push(&x[..]);
                    access.push(InputIndex::Same);
                }
                _ => {
                    operands.push(graph.floats(v).filter(|x| x.len() == 1)?);
                    access.push(InputIndex::Cyclic { inner: 1, count: 1 });
                }
            }
        }
        let pass = Pass::with_access(expression, access, self.isa);
        let mut results = [0.0; 256];
        pass.compute_range(&operands, 0, &mut results);
        Some((of, Results::Floats(Arc::new(results))))
    }

    /// The 8-bit value of which `v` is an 8-bit function, and the table of that function; `v` itself and the identity
    /// if no function is known for `v`. `None` if `v` is a constant, or its function has f32 results.
    fn as_8_bit_table(&self, graph: &Graph, v: ValueId) -> Option<(ValueId, Arc<[u8; 256]>)> {
        match self.functions.get(&v) {
            Some(Function { of, results: Results::Bytes(table), .. }) => Some((*of, Arc::clone(table))),
            Some(_) => None,
            None => {
                let own = graph.value(v).constant().is_none();
                own.then(|| (v, Arc::new(std::array::from_fn(|i| i as u8))))
            }
        }
    }
}
