//! What is computed, element by element, of one tensor of 8-bit values and of numbers, and is quantized: a function of 256
//! values, of which there is a table.
//!
//! The table is computed by the code of the steps that it stands for, on the 256 values: results are the same.

use crate::graph::{Graph, NodeId, ValueId};
use crate::operation::{Fused, as_op};
use crate::steps::lookup::Lookup;
use crate::steps::pointwise::{Access, Pass, Pointwise};
use crate::steps::quantize::{Dequantize, Quantize};
use ::pool::Pool;
use kernels::compute::{Isa, dequantize, quantize};
use std::collections::HashMap;
use std::sync::Arc;
use tensor::ScalarType;

/// The results for each of 256 values.
#[derive(Clone)]
enum Results {
    Bytes(Arc<[u8; 256]>),
    Floats(Arc<[f32; 256]>),
}

/// A value that is a function of another, element by element.
struct Function {
    of: ValueId,
    results: Results,
    /// The uses of the value that the pass has not come to.
    uses: usize,
}

/// Makes a table of every quantization whose result is a function of 8-bit values.
pub(super) fn run(graph: &mut Graph, isa: Isa) {
    let mut tables = Tables { isa, functions: HashMap::new() };
    for node in graph.order() {
        let &[out] = graph.node(node).outputs() else { continue };
        let found = tables.function(graph, node);
        // Most graphs are long, and a table is needed as long as something uses it.
        for v in graph.node(node).inputs() {
            tables.used(*v);
        }
        let Some((of, results)) = found else { continue };
        if let Results::Bytes(table) = &results {
            replace(graph, node, of, table);
        }
        let uses = graph.uses(out).len();
        if uses > 0 {
            tables.functions.insert(out, Function { of, results, uses });
        }
    }
}

/// Makes a look-up of a node, and takes the nodes away that are dead then.
fn replace(graph: &mut Graph, node: NodeId, of: ValueId, table: &Arc<[u8; 256]>) {
    let mut before: Vec<NodeId> = graph.producer(graph.node(node).inputs()[0]).into_iter().collect();
    graph.rewrite(node, Fused::kind(Lookup(Arc::clone(table))), &[of]);
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
    fn used(&mut self, v: ValueId) {
        if let Some(function) = self.functions.get_mut(&v) {
            function.uses -= 1;
            if function.uses == 0 {
                self.functions.remove(&v);
            }
        }
    }

    /// The 8-bit values that a node's result is a function of, and its results.
    fn function(&self, graph: &Graph, node: NodeId) -> Option<(ValueId, Results)> {
        let (inputs, out) = (graph.node(node).inputs(), graph.node(node).outputs()[0]);
        if let Some(&Dequantize(affine)) = as_op(graph, node) {
            let &[v] = inputs else { return None };
            let (of, bytes) = self.bytes(graph, v)?;
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
                    access.push(Access::Same);
                }
                _ => {
                    operands.push(graph.floats(v).filter(|x| x.len() == 1)?);
                    access.push(Access::Cyclic { inner: 1, count: 1 });
                }
            }
        }
        let pass = Pass::with_access(expression, access, self.isa);
        let mut results = [0.0; 256];
        pass.part(&operands, 0, &mut results);
        Some((of, Results::Floats(Arc::new(results))))
    }

    /// The 8-bit values that a value is a function of: those of another, or its own.
    fn bytes(&self, graph: &Graph, v: ValueId) -> Option<(ValueId, Arc<[u8; 256]>)> {
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
