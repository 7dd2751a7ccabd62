//! Tests of the matcher.

use super::matcher::{MAX_STEPS, Search};
use super::*;
use crate::graph::{Graph, Kind, ValueId};
use crate::operation::OpKind;
use crate::ops::cast::Cast;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use pteron_operator::formula::{Algebra, Term};
use pteron_operator::{Binary, Expression, Unary};
use pteron_tensor::{ScalarType, Tensor, TensorMeta};
use std::sync::Arc;

/// A graph of elementwise nodes with two inputs.
struct Nodes {
    graph: Graph,
    x: ValueId,
    y: ValueId,
}

impl Nodes {
    fn new() -> Self {
        let mut graph = Graph::new();
        let (x, y) = (graph.input(meta()), graph.input(meta()));
        Self { graph, x, y }
    }

    fn add(&mut self, kind: Arc<dyn Kind>, inputs: &[ValueId]) -> ValueId {
        let node = self.graph.append(kind, inputs, [meta()]);
        self.graph.node(node).outputs()[0]
    }

    fn term(&mut self, term: Term, inputs: &[ValueId]) -> ValueId {
        self.add(OpKind::arc(Pointwise(term.into())), inputs)
    }

    fn unary(&mut self, f: Unary, x: ValueId) -> ValueId {
        self.add(OpKind::arc(Pointwise(Expression::unary(f))), &[x])
    }

    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.add(OpKind::arc(Pointwise(Expression::binary(f))), &[a, b])
    }

    fn find(&self, pattern: &Pattern, v: ValueId) -> Option<Match> {
        pattern.find(&self.graph, self.graph.producer(v).unwrap())
    }
}

fn meta() -> TensorMeta {
    TensorMeta::contiguous(ScalarType::Float, &[2, 3]).unwrap()
}

#[test]
fn operands_match_in_either_order_where_that_is_the_same() {
    let mut nodes = Nodes::new();
    let (x, y) = (nodes.x, nodes.y);
    let exp = nodes.unary(Unary::Exp, x);
    for (f, swapped) in [(Binary::Mul, true), (Binary::Sub, false)] {
        let pattern = |a: Pattern, b: Pattern| if f == Binary::Mul { a * b } else { a - b };
        let pattern = pattern(any("x").unary(Unary::Exp), any("y"));
        let (straight, other) = (nodes.binary(f, exp, y), nodes.binary(f, y, exp));
        let matched = nodes.find(&pattern, straight).unwrap();
        assert_eq!((matched.value("x"), matched.value("y")), (Some(x), Some(y)));
        assert_eq!(matched.parts.to_vec(), [straight, exp].map(|v| nodes.graph.producer(v).unwrap()));
        assert_eq!(nodes.find(&pattern, other).is_some(), swapped);
    }
}

#[test]
fn a_name_is_the_same_value_wherever_it_occurs() {
    let mut nodes = Nodes::new();
    let (x, y) = (nodes.x, nodes.y);
    let silu = any("x") * any("x").unary(Unary::Sigmoid);
    let [of_x, of_y] = [x, y].map(|v| nodes.unary(Unary::Sigmoid, v));
    let (same, other) = (nodes.binary(Binary::Mul, of_x, x), nodes.binary(Binary::Mul, x, of_y));
    assert_eq!(nodes.find(&silu, same).unwrap().value("x"), Some(x));
    assert!(nodes.find(&silu, other).is_none());
    assert!(silu.find_with(&nodes.graph, same, &[("x", y)]).is_none());
    let numbers = (any("x") + number("n")) * number("n");
    for (n, matches) in [(0.5, true), (0.25, false)] {
        let v = nodes.term((Term::input(0) + 0.5) * n, &[x]);
        assert_eq!(nodes.find(&numbers, v).map(|matched| matched.number("n")), matches.then_some(Some(0.5)));
    }
}

#[test]
fn instructions_match_within_a_node_and_across_nodes() {
    let mut nodes = Nodes::new();
    let x = nodes.x;
    let mut spread = nodes.unary(Unary::Square, x);
    let half = nodes.graph.computed_constant(Tensor::from_slice(&[1, 1], &[0.5f32]).unwrap()).unwrap();
    let half = nodes.add(OpKind::arc(Reshape), &[half]);
    spread = nodes.binary(Binary::Add, half, spread);
    spread = nodes.unary(Unary::Sqrt, spread);
    let square = Term::input(0).unary(Unary::Square);
    let root_of_sum = nodes.term((square + 0.5).unary(Unary::Sqrt), &[x]);
    let pattern = (any("x").unary(Unary::Square) + number("n")).unary(Unary::Sqrt);
    for (v, parts) in [(spread, 3), (root_of_sum, 1)] {
        let matched = nodes.find(&pattern, v).unwrap();
        assert_eq!(
            (matched.value("x"), matched.number("n"), matched.parts.len()),
            (Some(x), Some(0.5), parts)
        );
    }
    // What is computed in the middle of a node is no value of the graph.
    assert!(nodes.find(&any("root").unary(Unary::Sqrt), spread).is_some());
    assert!(nodes.find(&any("root").unary(Unary::Sqrt), root_of_sum).is_none());
}

#[test]
fn constants_match_apart_from_rounding() {
    let mut nodes = Nodes::new();
    let x = nodes.x;
    for (n, matches) in [(0.7, true), (0.700_000_05, true), (0.7001, false)] {
        let v = nodes.term(Term::input(0) * n, &[x]);
        assert_eq!(nodes.find(&(any("x") * constant(0.7)), v).is_some(), matches, "{n}");
    }
}

#[test]
fn alternatives_are_tried_until_the_rest_matches() {
    let mut nodes = Nodes::new();
    let (x, y) = (nodes.x, nodes.y);
    let root = any("v").unary(Unary::Rsqrt) | (constant(1.0) / any("v").unary(Unary::Sqrt));
    let divided = nodes.term(Term::number(1.0) / Term::input(0).unary(Unary::Sqrt), &[x]);
    let rsqrt = nodes.unary(Unary::Rsqrt, x);
    for v in [divided, rsqrt] {
        assert_eq!(nodes.find(&root, v).unwrap().value("v"), Some(x));
    }
    // The first alternative matches, but captures what contradicts the rest.
    let either = (any("a") * any("b")) * any("b");
    let product = nodes.binary(Binary::Mul, x, y);
    let v = nodes.binary(Binary::Mul, product, x);
    assert_eq!(nodes.find(&either, v).unwrap().value("a"), Some(y));
    let sum = nodes.binary(Binary::Add, x, y);
    let second =
        (any("a") + any("b")).such_that(|graph, matched| matched.value("a") == Some(graph.inputs()[1]));
    assert_eq!(nodes.find(&second, sum).unwrap().value("b"), Some(x));
    assert!(nodes.find(&(second & operation::<Cast>([any("a")])), sum).is_none());
}

#[test]
fn consecutive_clamps_are_one_or_as_many_as_a_condition_admits() {
    let mut nodes = Nodes::new();
    let x = nodes.x;
    let first = nodes.term(Term::input(0).clamp(0.0, f64::INFINITY), &[x]);
    let last = nodes.term(Term::input(0).clamp_f32(-2.0, 7.0).clamp_f32(-1.0, 6.0), &[first]);
    let clamp = any("x").clamp(number("low"), number("high"));
    let matched = nodes.find(&clamp, last).unwrap();
    assert_eq!(
        (matched.value("x"), matched.number("low"), matched.number("high")),
        (Some(x), Some(0.0), Some(6.0))
    );
    assert_eq!(matched.parts.len(), 2);
    let matched = nodes.find(&clamp.such_that(|_, matched| matched.parts.len() == 1), last).unwrap();
    assert_eq!(
        (matched.value("x"), matched.number("low"), matched.number("high")),
        (Some(first), Some(-1.0), Some(6.0))
    );
}

#[test]
fn parts_are_closed_if_nothing_else_uses_them() {
    let mut nodes = Nodes::new();
    let x = nodes.x;
    let sigmoid = nodes.unary(Unary::Sigmoid, x);
    let silu = nodes.binary(Binary::Mul, sigmoid, x);
    let pattern = any("x") * any("x").unary(Unary::Sigmoid);
    nodes.graph.output(silu);
    assert!(nodes.find(&pattern, silu).unwrap().is_closed(&nodes.graph));
    nodes.graph.output(sigmoid);
    assert!(!nodes.find(&pattern, silu).unwrap().is_closed(&nodes.graph));
}

#[test]
fn chains_are_followed_so_far_and_no_further() {
    let mut nodes = Nodes::new();
    let mut v = nodes.unary(Unary::Exp, nodes.x);
    let pattern = reshaped(any("x").unary(Unary::Exp)).unary(Unary::Neg);
    for (len, matches) in [(1, true), (60, true), (200, false)] {
        for _ in 0..len {
            v = nodes.add(OpKind::arc(Reshape), &[v]);
        }
        let last = nodes.unary(Unary::Neg, v);
        assert_eq!(nodes.find(&pattern, last).map(|matched| matched.parts.len()), matches.then_some(2));
    }
}

#[test]
fn the_work_for_a_node_does_not_grow_with_the_graph() {
    let work = |depth: usize, pattern: &Pattern| {
        let mut nodes = Nodes::new();
        let mut v = nodes.x;
        for _ in 0..depth {
            let exp = nodes.unary(Unary::Exp, v);
            v = nodes.binary(Binary::Mul, exp, v);
        }
        let mut search = Search::new(&nodes.graph);
        assert!(search.run(pattern, v, Match::default()).is_none());
        search.steps
    };
    let product =
        |of: Pattern| (any("x") * of.clone().unary(Unary::Exp)) | (of.clone() * of.unary(Unary::Exp));
    let bounded = (0..3).fold(any("x").unary(Unary::Neg), |of, _| product(of));
    assert_eq!(work(50, &bounded), work(500, &bounded));
    assert_eq!(work(50, &any("x").unary(Unary::Neg)), 1);
    // Alternatives of alternatives do not multiply without end.
    let any_order = (0..12).fold(any("a") * any("b"), |of, _| (of.clone() * any("c")) | (any("d") * of));
    assert!(work(500, &any_order.such_that(|_, _| false)) <= MAX_STEPS + 1);
}
