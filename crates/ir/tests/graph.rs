//! The graph keeps definitions, use lists and node order consistent under any sequence of edits, and the verifier names
//! broken invariants.

use proptest::prelude::*;
use pteron_ir::{Constant, Effect, Graph, Kind, Live, NodeId, Terminator, Type, ValueId};
use pteron_tensor::{Scalar, ScalarType, Tensor, TensorMeta};
use pteron_trace::Place;
use std::sync::Arc;

#[derive(Debug)]
struct Op(&'static str);

impl Kind for Op {
    fn name(&self) -> &str {
        self.0
    }
}

#[derive(Debug)]
struct Draw;

impl Kind for Draw {
    fn name(&self) -> &str {
        "draw"
    }

    fn effects(&self) -> &[Effect] {
        &[Effect::Random]
    }
}

fn meta() -> TensorMeta {
    TensorMeta::contiguous(ScalarType::Float, &[2]).unwrap()
}

fn result(graph: &Graph, node: NodeId) -> ValueId {
    graph.node(node).outputs()[0]
}

/// A chain of `length` nodes.
fn chain(length: usize) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut at = graph.input(meta());
    let mut nodes = Vec::new();
    for _ in 0..length {
        nodes.push(graph.append(Op("relu"), &[at], [meta()]));
        at = result(&graph, nodes[nodes.len() - 1]);
    }
    graph.output(at);
    (graph, nodes)
}

#[test]
fn a_fused_node_replaces_the_last_node_of_its_pattern() {
    let mut graph = Graph::new();
    let x = graph.input(meta());
    graph.set_origin(Place::instruction(0, 3));
    let conv = graph.append(Op("conv"), &[x], [meta()]);
    graph.set_origin(Place::instruction(0, 5));
    let relu = graph.append(Op("relu"), &[result(&graph, conv)], [meta()]);
    let out = result(&graph, relu);
    graph.output(out);
    assert_eq!(graph.only_user(result(&graph, conv)), Some(relu));
    graph.rewrite(relu, Op("conv_relu"), &[x]);
    graph.absorb(relu, conv);
    graph.remove_dead(conv);
    graph.verify().unwrap();
    assert_eq!(graph.num_nodes(), 1);
    assert_eq!(graph.outputs(), [out]);
    assert_eq!(graph.node(relu).origins(), [Place::instruction(0, 3), Place::instruction(0, 5)]);
    assert_eq!(graph.node(relu).origin(), Place::instruction(0, 5));
    let listing = graph.listing(&|p| (p.instruction == Some(5)).then(|| "aten::relu.out".into()));
    let expected = "graph(%0: float32[2]) {\n  %2: float32[2] = conv_relu(%0)  // 0:3, 0:5 aten::relu.out\n  \
                    return %2\n}\n";
    assert_eq!(listing.to_string(), expected);
}

/// Absorbs the nodes of a chain one after another. Returns how many origins each node keeps, and the work done.
fn absorbed(len: usize) -> (Vec<usize>, u64) {
    let (mut graph, nodes) = chain(len);
    for (i, &node) in nodes.iter().enumerate() {
        graph.set_origins(node, &[Place::instruction(0, i as u32)]);
    }
    let before = graph.work();
    for pair in nodes.windows(2) {
        let inputs = graph.node(pair[0]).inputs().to_vec();
        graph.set_inputs(pair[1], &inputs);
        graph.absorb(pair[1], pair[0]);
        graph.remove_dead(pair[0]);
    }
    graph.verify().unwrap();
    let counts = nodes.iter().map(|&node| graph.node(node).origins().len());
    (counts.collect(), graph.work() - before)
}

/// The node that a chain is fused to has each instruction once, and origin lists are moved, not copied.
#[test]
fn absorbed_nodes_keep_no_origins() {
    let (counts, work) = absorbed(100);
    assert_eq!((counts.iter().sum::<usize>(), counts[99]), (100, 100));
    let (_, more) = absorbed(1000);
    assert!(more <= 11 * work, "{work} steps, {more} of ten times the nodes");
}

/// In whatever order nodes absorb, each instruction is listed once, and the node's own instruction last.
#[test]
fn shared_origins_are_listed_once() {
    let (mut graph, nodes) = chain(3);
    let places = |list: &[u32]| list.iter().map(|&i| Place::instruction(0, i)).collect::<Vec<_>>();
    for (&node, list) in nodes.iter().zip([&[4, 7][..], &[2, 7, 5], &[4, 9]]) {
        graph.set_origins(node, &places(list));
    }
    graph.absorb(nodes[1], nodes[0]);
    assert_eq!(graph.node(nodes[1]).origins(), places(&[4, 2, 7, 5]));
    graph.absorb(nodes[2], nodes[1]);
    assert_eq!(graph.node(nodes[2]).origins(), places(&[2, 7, 5, 4, 9]));
    graph.absorb(nodes[2], nodes[0]);
    assert_eq!(graph.node(nodes[2]).origins(), places(&[2, 7, 5, 4, 9]));
}

#[test]
fn effects_other_than_reads_keep_unused_nodes() {
    let mut graph = Graph::new();
    let x = graph.input(meta());
    let memory = graph.memory();
    let read = graph.append(Op("read"), &[x], [meta()]);
    graph.add_effect(read, Effect::Read(memory));
    let write = graph.append(Op("write"), &[x], []);
    graph.add_effect(write, Effect::Write(memory));
    let draw = graph.append(Draw, &[x], [meta()]);
    let unused = graph.append(Op("relu"), &[result(&graph, read)], [meta()]);
    graph.sweep();
    graph.verify().unwrap();
    assert_eq!(graph.order(), [write, draw]);
    assert!(!graph.contains(unused) && !graph.contains(read));
}

#[test]
fn bounded_sizes_are_printed_and_verified() {
    let long = TensorMeta::contiguous(ScalarType::Float, &[3]).unwrap();
    let passes = |bounded: bool, meta_of_input: TensorMeta| {
        let mut graph = Graph::new();
        let x = graph.input(meta_of_input);
        let end = graph.add_block();
        let parameter = graph.parameter(end, Type::Tensor, meta());
        if bounded {
            graph.set_bounded(parameter);
        }
        graph.set_terminator(graph.entry(), Terminator::jump(end, &[x]));
        graph.set_cursor(end);
        graph.output(parameter);
        (graph.verify().is_ok(), graph)
    };
    let short = TensorMeta::contiguous(ScalarType::Float, &[1]).unwrap();
    assert!(passes(false, meta()).0 && !passes(false, short.clone()).0);
    assert!(!passes(true, long).0);
    let (holds, mut graph) = passes(true, short);
    assert!(holds);
    assert!(graph.to_string().contains("^1(%1: float32[2] at most):"), "{graph}");
    graph.specialize_to_bounds();
    assert!(!graph.to_string().contains("at most"));
    assert!(graph.verify().is_err());
}

#[test]
fn terminators_pass_values_to_blocks() {
    let mut graph = Graph::new();
    let x = graph.input(meta());
    let (state, number) = graph.state(meta());
    let condition = graph.append_typed(
        Op("gt"),
        &[x],
        [(Type::Scalar, TensorMeta::contiguous(ScalarType::Bool, &[]).unwrap())],
    );
    let condition = result(&graph, condition);
    let (then, end) = (graph.add_block(), graph.add_block());
    let merged = graph.parameter(end, Type::Tensor, meta());
    graph.set_terminator(graph.entry(), Terminator::branch(condition, (then, &[]), (end, &[x])));
    graph.set_cursor(then);
    let doubled = graph.append(Op("double"), &[x], [meta()]);
    let doubled = result(&graph, doubled);
    graph.set_terminator(then, Terminator::jump(end, &[doubled]));
    graph.set_cursor(end);
    graph.set_results(vec![Live::Output, Live::State(number)]);
    graph.set_terminator(end, Terminator::returns(&[merged, state]));
    graph.verify().unwrap();
    let text = graph.to_string();
    assert!(text.contains("branch %2, ^1(), ^2(%0)"), "{text}");
    assert!(text.contains("%1: float32[2] state 0"), "{text}");
    assert!(text.contains("return %3, %1 state 0"), "{text}");

    // A value defined in one branch does not dominate the block after both.
    graph.append(Op("relu"), &[doubled], [meta()]);
    assert!(graph.verify().unwrap_err().problem.contains("on every path"));
}

#[test]
fn the_verifier_names_broken_invariants() {
    let (mut graph, nodes) = chain(3);
    graph.move_before(nodes[2], nodes[0]);
    assert!(graph.verify().unwrap_err().problem.contains("not defined before it"));
    let mut graph = Graph::new();
    let short = graph.constant(meta(), Constant::Shared(Arc::new([0u8; 4])));
    graph.output(short);
    assert!(graph.verify().unwrap_err().problem.contains("bytes are fewer"));
    let mut graph = Graph::new();
    let other = graph.add_block();
    graph.set_terminator(graph.entry(), Terminator::jump(other, &[]));
    graph.parameter(other, Type::Tensor, meta());
    assert!(graph.verify().unwrap_err().problem.contains("does not pass what block 1 takes"));
}

#[test]
fn rollback_restores_the_graph() {
    let (mut graph, _) = chain(2);
    let before = graph.to_string();
    let mark = graph.mark();
    let y = graph.input(meta());
    let one = graph.constant(meta(), Constant::from(Tensor::zeros(meta()).unwrap()));
    let used = graph.inputs()[0];
    graph.append(Op("add"), &[y, one, used], [meta()]);
    graph.rollback(&mark);
    graph.verify().unwrap();
    assert_eq!(graph.to_string(), before);
}

#[test]
fn listings_show_constants_once_and_types_of_scalars() {
    let mut graph = Graph::new();
    let two = graph.scalar(Scalar::Int(2));
    let n = graph.scalar_input(ScalarType::Double);
    let node = graph.append(Op("f"), &[two, n, two], [meta()]);
    graph.output(result(&graph, node));
    graph.verify().unwrap();
    let expected = "graph(%1: float) {\n  %0: int = 2\n  %2: float32[2] = f(%0, %1, %0)\n  return %2\n}\n";
    assert_eq!(graph.to_string(), expected);
}

#[test]
fn edits_are_linear_in_the_graph() {
    // The expensive cases: edits of every node of a chain, many insertions before and after the same node, and a value
    // with many uses that are removed one by one.
    let work = |n: usize| {
        let (mut graph, nodes) = chain(n);
        let x = graph.inputs()[0];
        for &node in &nodes {
            graph.insert_before(nodes[0], Op("a"), &[x], [meta()]);
            graph.insert_after(nodes[0], Op("b"), &[x], [meta()]);
            graph.insert_first(graph.entry(), Op("c"), &[x], [meta()]);
            graph.set_input(node, 0, x);
        }
        graph.verify().unwrap();
        graph.sweep();
        assert_eq!(graph.num_nodes(), 1);
        graph.work()
    };
    let (small, large) = (work(500), work(4000));
    assert!(large <= 9 * small, "{small} steps for 500 nodes, {large} for 4000");
}

proptest! {
    #[test]
    fn any_edits_keep_the_invariants(edits in prop::collection::vec((0..7u8, 0..64usize, 0..64usize), 1..80)) {
        let (mut graph, _) = chain(6);
        for (what, a, b) in edits {
            let order = graph.order();
            if order.is_empty() {
                break;
            }
            let (node, other) = (order[a % order.len()], order[b % order.len()]);
            let value = graph.node(node).outputs().first().copied();
            match what {
                0 => drop(graph.insert_before(node, Op("n"), &[graph.inputs()[0]], [meta()])),
                1 => drop(graph.insert_after(node, Op("n"), &[result(&graph, node)], [meta()])),
                2 if graph.comes_before(node, other) => {
                    graph.set_inputs(other, &[result(&graph, node), graph.inputs()[0], result(&graph, node)]);
                }
                3 => if let Some(value) = value {
                    let earlier = graph.node(node).inputs()[0];
                    graph.replace_uses(value, earlier);
                },
                4 => graph.remove_dead(node),
                5 => if let Some(value) = value { graph.output(value) },
                _ => graph.rewrite(node, Op("other"), &[graph.inputs()[0]]),
            }
            graph.verify().unwrap();
        }
        graph.sweep();
        graph.verify().unwrap();
    }
}

#[test]
fn changing_the_type_of_a_result_drops_its_known_contents() {
    let mut graph = Graph::new();
    let x = graph.input(meta());
    let node = graph.append(Op("copy"), &[x], [meta()]);
    let y = result(&graph, node);
    graph.output(y);
    graph.set_constant(y, Constant::from(Tensor::zeros(meta()).unwrap()));
    graph.set_meta(y, TensorMeta::contiguous(ScalarType::Double, &[2]).unwrap());
    assert!(graph.value(y).constant().is_none());
    graph.verify().unwrap();
}
