//! Which nodes of a payload are refused, and how a payload is listed.

mod support;

use pteron_backend_xnnpack::XnnpackBackend;
use pteron_runtime::{Backend, FreeableBuffer, PayloadRole, PayloadSupport};
use std::sync::Arc;
use support::{Node, Part, Value, payload};

const ADD: u8 = 1;
const SIGMOID: u8 = 4;
const TRANSPOSE: u8 = 5;
const ATTENTION: u8 = 36;

fn backend() -> XnnpackBackend {
    XnnpackBackend::new(Arc::new(pteron_kernels::registry()))
}

fn support_of(values: &[Value], nodes: &[Node]) -> PayloadSupport {
    let bytes = FreeableBuffer::from_bytes(&payload(values, nodes, &[vec![0; 24]])).unwrap();
    backend().support(&bytes, None).unwrap().unwrap()
}

#[test]
fn exactly_the_unsupported_nodes_are_listed() {
    let half = |value: Value| Value { datatype: 2, ..value };
    let values = [
        Value::input(0, 0, &[2, 3]),
        half(Value::input(1, 1, &[2, 3])),
        Value::new(2, &[2, 3]),
        Value::new(3, &[2, 3]),
        Value::output(4, 2, &[2, 3]),
        Value::output(5, 3, &[3, 2]),
    ];
    let transpose = Node {
        kind: TRANSPOSE,
        fields: vec![Part::Number(2), Part::Numbers(vec![1, 0]), Part::Number(3), Part::Number(5)],
        bounds: None,
    };
    let nodes = [
        // Operands of different types.
        Node::new(ADD, &[0, 1, 2]),
        Node::new(SIGMOID, &[2, 3]),
        Node::new(ATTENTION, &[0, 0, 0, 0, 0, 4]),
        transpose,
    ];
    let support = support_of(&values, &nodes);
    assert!(support.absent.is_empty());
    let refused: Vec<_> = support.refused.iter().map(|node| (node.node, node.kind.as_str())).collect();
    assert_eq!(refused, [(0, "Add"), (2, "ScaledDotProductAttention")]);
    assert!(support.refused[0].reason.contains("from fp32, fp16 to fp32"), "{}", support.refused[0].reason);
}

#[test]
fn loadable_payloads_have_no_unsupported_nodes() {
    let backend = backend();
    let mut looked_at = 0;
    for (name, bytes) in support::payloads() {
        let payload = FreeableBuffer::from_bytes(&bytes).unwrap();
        let support = backend.support(&payload, None).unwrap().unwrap();
        assert_eq!(support.refused, [], "{name}");
        looked_at += usize::from(support.absent.is_empty());
    }
    assert!(looked_at > 0);
}

#[test]
fn contents_give_the_ranges_of_constants() {
    let values = [
        Value::input(0, 0, &[2, 3]),
        Value { constant: 1, ..Value::new(1, &[2, 3]) },
        Value::output(2, 1, &[2, 3]),
    ];
    let bytes = payload(&values, &[Node::new(ADD, &[0, 1, 2])], &[(0..24).collect()]);
    let contents = backend().contents(&bytes).unwrap().unwrap();
    let PayloadRole::Constant(place) = &contents.values[1].role else { panic!("{:?}", contents.values[1]) };
    let pteron_runtime::PayloadBytes::Payload(range) = place else { panic!("{place}") };
    assert_eq!(bytes[range.start as usize..range.end as usize], (0..24).collect::<Vec<u8>>());
    assert_eq!(contents.node_text(&contents.nodes[0]), "Add(%0, %1) -> %2 fp32[2, 3]");
}
