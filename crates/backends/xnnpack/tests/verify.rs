//! Invalid payloads are refused, and errors give the offset.

mod support;

use proptest::prelude::*;
use pteron_backend_xnnpack::Payload;
use pteron_backend_xnnpack::payload::{Binary, Op, Quantization, Role};
use pteron_format::Limits;
use support::{Node, Part, Value, payload};

const ADD: u8 = 1;
const FULLY_CONNECTED: u8 = 2;
const TRANSPOSE: u8 = 5;
const ABS: u8 = 30;
const NONE: u32 = u32::MAX;

/// `%2 = add(%0, %1)`.
fn add() -> (Vec<Value>, Vec<Node>) {
    let values = vec![Value::input(0, 0, &[2, 3]), Value::input(1, 1, &[2, 3]), Value::output(2, 2, &[2, 3])];
    (values, vec![Node::new(ADD, &[0, 1, 2])])
}

fn read(values: &[Value], nodes: &[Node]) -> Result<Payload, String> {
    Payload::read(&payload(values, nodes, &[vec![0; 24]]), &Limits::default()).map_err(|e| e.to_string())
}

#[track_caller]
fn refused(values: &[Value], nodes: &[Node], expected: &str) {
    let error = read(values, nodes).expect_err("is refused");
    assert!(error.contains(expected), "{error}");
    assert!(error.contains("(at byte 0x"), "{error}");
}

#[test]
fn a_payload_is_read() {
    let (values, mut nodes) = add();
    nodes[0].bounds = Some((0.0, f32::INFINITY));
    let payload = read(&values, &nodes).unwrap();
    assert_eq!(payload.nodes[0].op, Op::Binary(Binary::Add));
    assert_eq!((&payload.inputs[..], &payload.outputs[..]), (&[0, 1][..], &[2][..]));
    assert_eq!(payload.values[2].role, Role::Output(2));
    assert_eq!(payload.values[0].quantization, Quantization::None);
    assert_eq!(
        payload.contents().to_string(),
        "XNNPACK graph XN01, version \"0\": 3 values, 1 node\n\
         values\n  %0  fp32[2, 3]  input 0\n  %1  fp32[2, 3]  input 1\n  %2  fp32[2, 3]  output 2\n\
         nodes\n  0  Add(%0, %1) -> %2 fp32[2, 3], at least 0\n"
    );
}

#[test]
fn ids_are_defined_once_and_before_their_use() {
    let (values, nodes) = add();
    let change = |change: &dyn Fn(&mut Vec<Value>, &mut Vec<Node>)| {
        let (mut values, mut nodes) = (values.clone(), nodes.clone());
        change(&mut values, &mut nodes);
        (values, nodes)
    };
    let (v, n) = change(&|_, n| n[0] = Node::new(ADD, &[0, 9, 2]));
    refused(&v, &n, "xnodes[0].input2_id: expected the id of one of 3 values, found 9");
    let (v, n) = change(&|_, n| n[0] = Node::new(ADD, &[0, 2, 2]));
    refused(
        &v,
        &n,
        "xnodes[0].input2_id: expected a value that is an input, a constant, or written by a node before",
    );
    let (v, n) = change(&|_, n| n.push(Node::new(ABS, &[0, 2])));
    refused(
        &v,
        &n,
        "xnodes[1].output_id: expected a value that nothing else writes, found value 2 (xvalues[2]), which xnodes[0]",
    );
    let (v, n) = change(&|_, n| n[0] = Node::new(ADD, &[0, 1, 1]));
    refused(&v, &n, "xnodes[0].output_id: expected a value that nothing else writes");
    let (v, n) = change(&|v, _| v[1].id = 0);
    refused(&v, &n, "xvalues[1].id_out: expected an id of its own");
    let (v, n) = change(&|v, _| v[1].external = Some((0, 1)));
    refused(&v, &n, "xvalues[1].external_id: expected an external id of its own below 3");
    let (v, n) = change(&|v, _| v[1].external = Some((3, 1)));
    refused(&v, &n, "external_id");
    let (v, n) = change(&|v, _| v[1].external = Some((1, 5)));
    refused(&v, &n, "xvalues[1].flags");
    let (v, n) = change(&|_, n| n.clear());
    refused(&v, &n, "expected nodes that write every output, found the output value 2 (xvalues[2])");
}

#[test]
fn cycles_are_refused() {
    let values =
        [Value::input(0, 0, &[2]), Value::new(1, &[2]), Value::new(2, &[2]), Value::output(3, 1, &[2])];
    let nodes = [Node::new(ADD, &[0, 2, 1]), Node::new(ABS, &[1, 2]), Node::new(ABS, &[2, 3])];
    refused(&values, &nodes, "xnodes[0].input2_id: expected a value that is an input");
}

#[test]
fn values_are_checked() {
    let (values, nodes) = add();
    let change = |change: &dyn Fn(&mut Value)| {
        let mut values = values.clone();
        change(&mut values[1]);
        values
    };
    refused(
        &change(&|v| v.datatype = 15),
        &nodes,
        "xvalues[1].datatype: expected a type of elements up to 14, found 15",
    );
    refused(&change(&|v| v.datatype = 0), &nodes, "xvalues[1].datatype");
    refused(&change(&|v| v.datatype = 3), &nodes, "expected quantization parameters, found none for qint8");
    refused(
        &change(&|v| v.dims = vec![1; 7]),
        &nodes,
        "xvalues[1].dims: expected at most 6 dimensions, found 7",
    );
    refused(&change(&|v| v.dims = vec![u32::MAX; 3]), &nodes, "xvalues[1].dims: expected at most");
    let quantized = |scale, zero| {
        change(&|v| {
            v.datatype = 3;
            v.per_tensor = Some((scale, zero));
        })
    };
    refused(&quantized(0.0, 0), &nodes, "xvalues[1].scale: expected a finite scale above 0");
    refused(&quantized(f32::NAN, 0), &nodes, "scale");
    refused(&quantized(1.0, 128), &nodes, "expected a zero point of -128 to 127, found 128");
    let channels = |dim, scales: &[f32]| {
        change(&|v| {
            v.datatype = 6;
            v.per_channel = Some((scales.to_vec(), dim));
        })
    };
    refused(&channels(2, &[1.0; 3]), &nodes, "expected a channel dimension below 2, found 2");
    refused(&channels(-1, &[1.0; 3]), &nodes, "channel_dim: expected a number of 0 or more");
    refused(
        &channels(1, &[1.0, -1.0, 1.0]),
        &nodes,
        "scale: expected finite scales above 0, found -1 at index 1",
    );
}

#[test]
fn constants_are_in_bounds() {
    let (mut values, nodes) = add();
    values[1] = Value { constant: 1, ..Value::new(1, &[2, 3]) };
    values[2].external = Some((1, 2));
    assert!(read(&values, &nodes).is_ok());
    values[1].dims = vec![7];
    refused(
        &values,
        &nodes,
        "expected a constant of at least 28 bytes, as type and sizes say, found one of 24",
    );
    values[1].constant = 2;
    refused(
        &values,
        &nodes,
        "xvalues[1].constant_buffer_idx: expected the index of one of 2 constants, found 2",
    );
}

#[test]
fn nodes_fit_their_values() {
    let (values, _) = add();
    let perm = |perm: Vec<u32>| Node {
        fields: vec![Part::Number(perm.len() as u32), Part::Numbers(perm), Part::Number(0), Part::Number(2)],
        ..Node::new(TRANSPOSE, &[])
    };
    let externals =
        [values[0].clone(), Value::new(1, &[1]), Value { external: Some((1, 2)), ..values[2].clone() }];
    assert!(read(&externals, &[perm(vec![1, 0])]).is_ok());
    refused(&externals, &[perm(vec![1, 1])], "expected a permutation of 2 dimensions, found [1, 1]");
    refused(&externals, &[perm(vec![0, 1, 2])], "permutation");
    let matrix = Value { constant: 1, ..Value::new(1, &[2, 3]) };
    let bias = Value { constant: 1, ..Value::new(4, &[3]) };
    let linear = [externals[0].clone(), matrix, externals[2].clone(), bias];
    assert!(read(&linear, &[Node::new(FULLY_CONNECTED, &[0, 1, NONE, 2])]).is_ok());
    refused(
        &linear,
        &[Node::new(FULLY_CONNECTED, &[0, 1, 4, 2])],
        "xnodes[0]: expected a bias of [2], found one of [3]",
    );
    let bounded = Node { bounds: Some((1.0, 0.0)), ..Node::new(ABS, &[0, 2]) };
    refused(&externals, &[bounded], "output_min: expected bounds, the lower one first, found 1 to 0");
    refused(&externals, &[Node::new(48, &[0, 2])], "expected a kind of node up to 47, found 48");
}

#[test]
fn headers_are_checked() {
    let (values, nodes) = add();
    let good = payload(&values, &nodes, &[]);
    let change = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Payload::read(&file, &Limits::default()).unwrap_err().to_string()
    };
    assert!(
        change(8, &[29]).starts_with("header.length: expected at least 30 bytes, found 29 (at byte 0x8)")
    );
    assert!(change(10, &[0xff; 4]).starts_with("header.flatbuffer_offset"));
    assert!(change(14, &[4, 0, 0, 0]).starts_with("header.flatbuffer_size: expected at least 8 bytes"));
    assert!(
        change(18, &[33, 0, 0, 0])
            .starts_with("header.constant_data_offset: expected a place behind the flatbuffer")
    );
    assert!(change(22, &[0xff; 8]).starts_with("header.constant_data_offset"));
    assert!(
        change(36, b"XN02")
            .starts_with("identifier: expected `XN00` or `XN01` of an XNNPACK payload, found `XN02`")
    );
    // Without a header, the whole payload is the flatbuffer.
    let bare = &good[32..];
    assert!(Payload::read(bare, &Limits::default()).unwrap().header.is_none());
}

proptest! {
    /// A chain of unary nodes in any order is accepted if and only if it is in topological order.
    #[test]
    fn nodes_must_be_in_topological_order(order in Just((0..6u32).collect::<Vec<_>>()).prop_shuffle()) {
        let mut values = vec![Value::input(0, 0, &[4])];
        values.extend((1..6).map(|id| Value::new(id, &[4])));
        values.push(Value::output(6, 1, &[4]));
        let nodes: Vec<Node> = order.iter().map(|&i| Node::new(ABS, &[i, i + 1])).collect();
        prop_assert_eq!(read(&values, &nodes).is_ok(), order.is_sorted());
    }
}
