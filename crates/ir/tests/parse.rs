//! Listings are read back, and errors name the line.

use pteron_ir::{CallArg, CallOut, Effect, Graph, Live, Memory};
use pteron_operator::{FnKernel, KernelRegistry};
use pteron_tensor::Scalar;

const SCHEMAS: [&str; 8] = [
    "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
    "aten::relu.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
    "aten::convolution.out(Tensor input, Tensor weight, Tensor? bias, int[2] stride, bool transposed, *, Tensor(a!) out) -> Tensor(a!)",
    "aten::cat.out(Tensor[] tensors, int dim=0, *, Tensor(a!) out) -> Tensor(a!)",
    "aten::index_put.out(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, *, Tensor(a!) out) -> Tensor(a!)",
    "aten::split_copy.Tensor_out(Tensor self, int split_size, int dim=0, *, Tensor(a!)[] out) -> ()",
    "aten::sym_size.int(Tensor self, int dim) -> int",
    "test::options.out(Tensor self, *, float[] scales=[], str mode='none', float eps=0.5, Tensor(a!) out) -> Tensor(a!)",
];

fn parse(text: &str) -> Result<Graph, String> {
    let mut kernels = KernelRegistry::new();
    for schema in SCHEMAS {
        kernels.replace(FnKernel::new(schema, |_, _, _| Ok(())).unwrap());
    }
    Graph::parse(text, &kernels).map_err(|e| e.to_string())
}

/// The graph of a listing; asserts that the graph prints as that listing.
fn same(text: &str) -> Graph {
    let graph = parse(text).unwrap();
    graph.verify().unwrap();
    assert_eq!(graph.to_string(), text);
    graph
}

#[test]
fn calls_are_read_as_they_are_printed() {
    let graph = same(concat!(
        "graph forward(%0: float32[1, 2, 4, 4] in dim order [0, 2, 3, 1], %1: float32[3, 2, 1, 1]) {\n",
        "  %2: float32[] = constant 0.25  // 0:1\n",
        "  %3: float32[1, 3, 4, 4] = aten::convolution.out(%0, %1) {stride: [1, 1], transposed: false}  // 0:2, 0:3.5\n",
        "  %4: float32[1, 3, 4, 4] = aten::add.out(%3, %2) {alpha: -2.5}  // node 7\n",
        "  %5: float32[2, 3, 4, 4] = aten::cat.out(%4, %3)\n",
        "  %6: float32[2, 3, 4, 4] = test::options.out(%5) {scales: [1.0, inf], mode: \"a \\\"b\\\"  // c\\n\", eps: 0.125}\n",
        "  return %6, %3\n",
        "}\n",
    ));
    assert_eq!(graph.floats(graph.node(graph.order()[1]).inputs()[1]), Some(&[0.25][..]));
    let calls: Vec<_> = graph.order().iter().map(|&node| graph.node(node).call().unwrap()).collect();
    assert!(calls[0].is_none(2), "an optional tensor is absent where the inputs do not suffice");
    assert_eq!(calls[1].scalar(2), Some(Scalar::Double(-2.5)));
    assert!(matches!(calls[2].args[0], CallArg::Tensors(2)));
    assert_eq!(calls[2].int(1), Some(0), "the default");
    let CallArg::Str(mode) = &calls[3].args[2] else { panic!("{:?}", calls[3].args) };
    assert_eq!(&**mode, "a \"b\"  // c\n");
}

#[test]
fn absent_tensors_and_results_follow_the_schema() {
    let graph = parse(concat!(
        "graph(%x: float32[4, 2], %i: int64[2]) {\n",
        "  %p: float32[4, 2] = aten::index_put.out(%x, none, %i, %x) {accumulate: True}\n",
        "  %a: float32[2, 2], %b: float32[2, 2] = aten::split_copy.Tensor_out(%p) {split_size: 2}\n",
        "  return %b, %a\n",
        "}\n",
    ))
    .unwrap();
    graph.verify().unwrap();
    let calls: Vec<_> = graph.order().iter().map(|&node| graph.node(node).call().unwrap()).collect();
    assert!(matches!(&calls[0].args[1], CallArg::OptionalTensors(present) if present[..] == [false, true]));
    assert_eq!(calls[1].outs, [CallOut::Tensors(2)]);
}

#[test]
fn blocks_scalars_and_state_are_read_as_they_are_printed() {
    let graph = same(concat!(
        "graph(%0: float32[8, 2] at most, %1: float32[2] state 0, %2: bool, %3: bool[]) {\n",
        "  %4: float = 0.5\n",
        "  %5: int = 3\n",
        "  %6: int = aten::sym_size.int(%0) {dim: 0}\n",
        "  branch %2, ^1(%1, %6), ^2()\n",
        "^1(%7: float32[2], %8: int):\n",
        "  %9: float32[2] = aten::add.out(%7, %7, %4)\n",
        "  %10: float32[2] = aten::cat.out(%9, %8)\n",
        "  return %0, %10 state 0\n",
        "^2():\n",
        "  jump ^1(%1, %5)\n",
        "}\n",
    ));
    assert_eq!(graph.results(), [Live::Output, Live::State(0)]);
    assert!(graph.value(graph.inputs()[0]).is_bounded());
    let node = graph.nodes_of(graph.blocks().nth(1).unwrap()).next().unwrap();
    assert!(matches!(graph.node(node).call().unwrap().args[2], CallArg::Value));
}

#[test]
fn effects_are_read_as_they_are_printed() {
    let mut graph = same(concat!(
        "graph(%0: float32[2]) {\n",
        "  %1: float32[2] = aten::relu.out(%0) Read(Memory(2)) External\n",
        "  %2: float32[2] = aten::relu.out(%1) Write(Memory(0))\n",
        "  return\n",
        "}\n",
    ));
    assert_eq!(graph.node(graph.order()[1]).effects().next(), Some(Effect::Write(Memory(0))));
    assert_eq!(graph.memory(), Memory(3));
}

#[test]
fn constants_repeat_their_numbers() {
    let graph = parse(concat!(
        "graph() {\n",
        "  %a: int64[5] = constant 9007199254740993 -1\n",
        "  %b: float32[2] = constant\n",
        "  %c: int8[0] = constant 1\n",
        "  return %a, %b, %c\n",
        "}\n",
    ))
    .unwrap();
    let [a, b, _] = *graph.outputs() else { panic!("{graph}") };
    let long = 9_007_199_254_740_993;
    assert_eq!(graph.view(a).unwrap().storage::<i64>().unwrap(), [long, -1, long, -1, long]);
    assert_eq!(graph.floats(b).unwrap(), [0.0, 0.0]);
}

#[test]
fn errors_name_the_line() {
    let body = |line: &str| format!("graph(%x: float32[2], %n: int) {{\n\n  {line}\n  return %x\n}}\n");
    for (line, problem) in [
        ("%y: float32[2] = aten::relu.out(%z)", "line 3: %z is not defined"),
        ("%x: float32[2] = aten::relu.out(%x)", "line 3: %x is defined twice"),
        (
            "%y: float[2] = aten::relu.out(%x)",
            "line 3: expected a type, found `float[2] = aten::relu.out(%x)`",
        ),
        ("%y: float32[2 = aten::relu.out(%x)", "line 3: expected `,` or `]`, found ` = aten::relu.out(%x)`"),
        ("%y: float32[2] aten::relu.out(%x)", "line 3: expected `,` or `=`, found ` aten::relu.out(%x)`"),
        ("%y: float32[2] = aten::gelu.out(%x)", "line 3: `aten::gelu.out` has no kernel"),
        ("%y: float32[2] = aten::relu.out()", "line 3: expected an input for `self`, found no more"),
        (
            "%y: float32[2] = aten::relu.out(%x) {alpha: 1}",
            "line 3: expected an argument's name, found `alpha: 1}`",
        ),
        ("%y: float32[2] = aten::add.out(%x, %x) {alpha: 1, alpha: 2}", "line 3: `alpha` is given twice"),
        (
            "%y: float32[2] = aten::add.out(%x, %x) {alpha: 1",
            "line 3: expected `,` or `}`, found the end of the line",
        ),
        ("%y: float32[2] = aten::add.out(%x, %x) {alpha: x}", "line 3: expected a number, found `x`"),
        ("%y: float32[2] = aten::relu.out(%x) Odd", "line 3: expected the end of the line, found ` Odd`"),
        ("%y: float32[2] = constant one", "line 3: expected a number, found `one`"),
        ("%y: int = 1.5", "line 3: expected the type int64, found `1.5`"),
        (
            "%y: float32[2] = test::options.out(%x) {mode: \"",
            "line 3: expected the end of a string, found the end of the line",
        ),
        (
            "%y: float32[18446744073709551616] = constant",
            "line 3: expected a number, found `18446744073709551616] = constant`",
        ),
        ("return %x, y", "line 3: expected `%`, found `y`"),
        ("jump ^7()", "line 4: expected `^`, found `return %x`"),
    ] {
        assert_eq!(parse(&body(line)).unwrap_err(), problem, "{line}");
    }
    for (text, problem) in [
        ("", "line 1: expected `}`, found the end of the text"),
        ("graph() {\n  return\n", "line 2: expected `}`, found the end of the text"),
        ("graph() {\n  jump ^7()\n}", "line 2: ^7 is not defined"),
        ("graph() {\n  return\n}\n}", "line 4: expected the end of the text, found `}`"),
        ("graph() {\n  jump ^1()\n^1():\n  return\n^1():\n  return\n}", "line 5: ^1 is defined twice"),
        (
            "graph(%x: float32[2] state 1) {\n  return\n}",
            "line 1: expected state 0 for input 0, found state 1",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err(), problem, "{text}");
    }
}

#[test]
fn sizes_are_bounded() {
    let of = |sizes: &str, constant: &str| {
        parse(&format!("graph(%x: float32[2]) {{\n  %y: float32[{sizes}] = {constant}\n  return %y\n}}\n"))
    };
    for sizes in ["4611686018427387904, 4611686018427387904", "0, 4611686018427387904, 8", &"1, ".repeat(99)]
    {
        assert!(of(sizes.trim_end_matches(", "), "aten::relu.out(%x)").is_err(), "{sizes}");
    }
    assert!(of("1099511627776", "aten::relu.out(%x)").is_ok(), "sizes of values cost nothing");
    assert!(
        of("1099511627776", "constant 1")
            .unwrap_err()
            .starts_with("line 2: a constant of 4398046511104 bytes")
    );
    let line = |i| format!("  %y{i}: float32[4194304] = constant\n");
    let many: String = (0..5).map(line).collect();
    let error = parse(&format!("graph() {{\n{many}  return\n}}\n")).unwrap_err();
    assert_eq!(error, "line 6: a constant of 16777216 bytes, where 0 of 67108864 are left");
}

#[test]
fn no_change_of_a_listing_panics() {
    let text = concat!(
        "graph(%0: float32[1] state 0, %1: bool) {\n",
        "  %2: float32[1] = constant 0.25  // 0:1\n",
        "  %3: float32[1] = test::options.out(%0) {scales: [1.0], mode: \"\\u{e9}\\n\"} Write(Memory(0))  // 0:2.1\n",
        "  branch %1, ^1(%3), ^1(%2)\n",
        "^1(%4: float32[1]):\n",
        "  return %4 state 0\n",
        "}\n",
    );
    parse(text).unwrap();
    for at in 0..text.len() {
        let _ = parse(&text[..at]);
        let _ = parse(&[&text[..at], &text[at + 1..]].concat());
        for inserted in ["é", "\"", "\\", "[", "(", "%", " ", "9", "\n", "none"] {
            let _ = parse(&[&text[..at], inserted, &text[at..]].concat());
        }
    }
}
