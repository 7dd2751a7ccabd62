//! Handmade archives: malformed ones are rejected with the node and its source line, valid ones compile.

use compiler::pt2::{ArchiveFile, SharedBytes};
use compiler::{Compiled, Error, OperatorTable, Options, compile};
use pteron_compiler as compiler;
use pteron_ir::Bytes;
use serde_json::{Value, json};
use std::io::{Cursor, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zip::write::SimpleFileOptions;

fn archive(model: &Value, weights: &Value, records: &[(&str, &[u8])]) -> SharedBytes {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut add = |name: &str, bytes: &[u8]| {
        writer.start_file(format!("m/{name}"), stored).unwrap();
        writer.write_all(bytes).unwrap();
    };
    add("models/model.json", model.to_string().as_bytes());
    add("data/weights/model_weights_config.json", json!({"config": weights}).to_string().as_bytes());
    records.iter().for_each(|(name, bytes)| add(name, bytes));
    Arc::new(writer.finish().unwrap().into_inner())
}

fn meta(sizes: &[i64]) -> Value {
    let ints = |list: &[i64]| list.iter().map(|v| json!({"as_int": v})).collect::<Vec<_>>();
    let mut strides = vec![1; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d];
    }
    json!({"dtype": 7, "sizes": ints(sizes), "strides": ints(&strides), "storage_offset": {"as_int": 0},
           "requires_grad": false, "device": {"type": "cpu"}, "layout": 7})
}

/// `w + op(x)`, with `x` and `w` of sizes [2, 3].
fn model(op: &str) -> Value {
    let tensor = |name: &str| json!({"as_tensor": {"name": name}});
    let node = |target: &str, args: Vec<(&str, Value)>, out: &str, line: u32| {
        let inputs: Vec<Value> =
            args.into_iter().map(|(name, arg)| json!({"name": name, "arg": arg})).collect();
        let trace = format!("File \"net.py\", line {line}, in forward\n    return f(x)");
        json!({"target": target, "inputs": inputs, "outputs": [tensor(out)], "metadata": {"stack_trace": trace}})
    };
    let values: serde_json::Map<_, _> =
        ["w", "x", "y", "z"].map(|n| (n.to_owned(), meta(&[2, 3]))).into_iter().collect();
    json!({
        "schema_version": {"major": 8, "minor": 20},
        "range_constraints": {},
        "graph_module": {
            "graph": {
                "inputs": [tensor("w"), tensor("x")],
                "nodes": [
                    node(op, vec![("self", tensor("x"))], "y", 3),
                    node("torch.ops.aten.add.Tensor", vec![("self", tensor("w")), ("other", tensor("y"))], "z", 4),
                ],
                "outputs": [tensor("z")],
                "tensor_values": values,
            },
            "signature": {
                "input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "net.w"}},
                                {"user_input": {"arg": tensor("x")}}],
                "output_specs": [{"user_output": {"arg": tensor("z")}}],
            },
        },
    })
}

fn weights() -> Value {
    json!({"net.w": {"path_name": "weight_0", "use_pickle": false, "tensor_meta": meta(&[2, 3])}})
}

const STORAGE: (&str, &[u8]) = ("data/weights/weight_0", &[0; 24]);

fn run(model: &Value, weights: &Value, records: &[(&str, &[u8])]) -> Result<Compiled, Error> {
    let table = OperatorTable::portable(&pteron_kernels::registry());
    compile(archive(model, weights, records), &table, &Options::default(), &mut |_, _, _| {})
}

fn problem(model: &Value, weights: &Value, records: &[(&str, &[u8])]) -> String {
    run(model, weights, records).err().expect("it is refused").to_string()
}

#[test]
fn a_model_becomes_a_program() {
    let compiled = run(&model("torch.ops.aten.silu.default"), &weights(), &[STORAGE]).unwrap();
    let method = &compiled.methods[0];
    assert_eq!((method.name.as_str(), method.constant_bytes), ("forward", 24));
    let calls: Vec<&str> = method.operators.keys().map(String::as_str).collect();
    assert_eq!(calls, ["aten::add.out", "aten::mul.out", "aten::sigmoid.out"]);
    let mut file = Vec::new();
    compiled.program.write_to(&mut file).unwrap();
    assert_eq!(file.len() as u64, compiled.program.header().file_len);
}

/// A file that counts how often weights are read.
struct Counted {
    file: SharedBytes,
    reads: Arc<AtomicUsize>,
}

/// A range of a [`Counted`] file.
#[derive(Clone)]
struct Part {
    file: SharedBytes,
    range: Range<usize>,
    reads: Arc<AtomicUsize>,
}

impl ArchiveFile for Counted {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, target: &mut [u8]) -> std::io::Result<()> {
        self.file.read_at(offset, target)
    }

    fn part(&self, range: Range<u64>) -> SharedBytes {
        let (file, reads) = (Arc::clone(&self.file), Arc::clone(&self.reads));
        Arc::new(Part { file, range: range.start as usize..range.end as usize, reads })
    }
}

impl Bytes for Part {
    fn bytes(&self) -> &[u8] {
        self.reads.fetch_add(usize::from(self.range.len() == STORAGE.1.len()), Ordering::Relaxed);
        &self.file.bytes()[self.range.clone()]
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    fn reopen(&self) -> Option<SharedBytes> {
        Some(Arc::new(self.clone()))
    }
}

#[test]
fn weights_are_read_when_the_program_is_written() {
    let reads = Arc::new(AtomicUsize::new(0));
    let model = model("torch.ops.aten.relu.default");
    let file = Counted { file: archive(&model, &weights(), &[STORAGE]), reads: Arc::clone(&reads) };
    let table = OperatorTable::portable(&pteron_kernels::registry());
    let compiled = compile(&file, &table, &Options::default(), &mut |_, _, _| {}).unwrap();
    assert_eq!(reads.load(Ordering::Relaxed), 0);
    compiled.program.write_to(&mut Vec::new()).unwrap();
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_bool_of_allclose_is_read_from_a_tensor() {
    let mut model = model("torch.ops.aten.allclose.default");
    let bool = json!({"as_sym_bool": {"as_name": "y"}});
    let graph = &mut model["graph_module"]["graph"];
    let other = json!({"name": "other", "arg": {"as_tensor": {"name": "w"}}});
    graph["nodes"][0]["inputs"].as_array_mut().unwrap().push(other);
    graph["nodes"][0]["outputs"] = json!([bool]);
    graph["nodes"].as_array_mut().unwrap().pop();
    graph["outputs"] = json!([bool]);
    model["graph_module"]["signature"]["output_specs"] = json!([{"user_output": {"arg": bool}}]);
    let kernels = pteron_kernels::registry();
    for table in [OperatorTable::portable(&kernels), OperatorTable::all(&kernels)] {
        let archive = archive(&model, &weights(), &[STORAGE]);
        let compiled = compile(&archive, &table, &Options::default(), &mut |_, _, _| {}).unwrap();
        let last = compiled.methods[0].operators.keys().any(|name| name == "aten::_local_scalar_dense");
        assert!(last, "{:?}", compiled.methods[0].operators);
    }
}

#[test]
fn unsupported_operators_are_listed_with_their_source_line() {
    let problem = problem(&model("torch.ops.aten.sigmod.default"), &weights(), &[STORAGE]);
    assert!(problem.contains("aten.sigmod.default") && problem.contains("`y`"), "{problem}");
    assert!(problem.contains("net.py:3, in forward") && problem.contains("aten::sigmoid"), "{problem}");
}

#[test]
fn types_that_no_kernel_of_the_reference_takes_are_refused_by_name() {
    let mut model = model("torch.ops.aten.neg.default");
    for value in ["x", "y"] {
        model["graph_module"]["graph"]["tensor_values"][value]["dtype"] = json!(30);
    }
    let text = problem(&model, &weights(), &[STORAGE]);
    let said = "the reference runtime's kernel of `aten::neg.out` takes no float8_e5m2 as `self`; it takes";
    assert!(text.contains("first `y`") && text.contains(said) && text.contains("net.py:3"), "{text}");
}

#[test]
fn operators_that_the_reference_lacks_are_refused_or_reported() {
    let lacking = model("torch.ops.aten.special_bessel_j0.default");
    let problem = problem(&lacking, &weights(), &[STORAGE]);
    let said = "the reference runtime has no kernel for it, Pteron has `aten::special_bessel_j0.out`";
    assert!(problem.contains(said), "{problem}");
    let table = OperatorTable::preferring_portable(&pteron_kernels::registry());
    let of = |model: &Value| {
        let archive = archive(model, &weights(), &[STORAGE]);
        compile(&archive, &table, &Options::default(), &mut |_, _, _| {}).unwrap().methods.remove(0)
    };
    assert_eq!(of(&lacking).not_on_reference, ["aten::special_bessel_j0.out"]);
    let portable = of(&model("torch.ops.aten.silu.default"));
    assert!(portable.not_on_reference.is_empty() && portable.operators.contains_key("aten::sigmoid.out"));
}

#[test]
fn missing_weights_are_named() {
    let model = model("torch.ops.aten.relu.default");
    assert!(problem(&model, &json!({}), &[STORAGE]).contains("`net.w` is missing"));
    assert!(problem(&model, &weights(), &[]).contains("no such record"));
    assert!(
        problem(&model, &weights(), &[("data/weights/weight_0", &[0; 23])])
            .contains("24 bytes of a storage of 23")
    );
    let mut far = weights();
    far["net.w"]["tensor_meta"]["storage_offset"] = json!({"as_int": i64::MAX});
    assert!(problem(&model, &far, &[STORAGE]).contains("overflows"));
    let mut pickled = weights();
    pickled["net.w"]["use_pickle"] = json!(true);
    assert!(problem(&model, &pickled, &[STORAGE]).contains("nothing is unpickled"));
}

#[test]
fn malformed_graphs_are_rejected() {
    let whole = model("torch.ops.aten.relu.default");
    for (path, value, part) in [
        (
            "/graph_module/graph/nodes/1/inputs/1/arg",
            json!({"as_tensor": {"name": "q"}}),
            "`q` is not defined",
        ),
        ("/graph_module/graph/nodes/1/outputs/0", json!({"as_tensor": {"name": "y"}}), "defined twice"),
        ("/graph_module/graph/tensor_values/y/dtype", json!(99), "99 is no type"),
        ("/graph_module/graph/tensor_values/y/sizes/0", json!({"as_int": -1}), "negative"),
        ("/graph_module/signature/input_specs", json!([]), "0 input_specs for 2 inputs"),
        ("/graph_module/graph/nodes/0", json!(7), "invalid type"),
    ] {
        let mut broken = whole.clone();
        *broken.pointer_mut(path).unwrap() = value;
        let found = problem(&broken, &weights(), &[STORAGE]);
        assert!(found.contains(part), "{path}: {found}");
    }
}

#[test]
fn an_unbounded_size_is_reported_with_a_remedy() {
    let mut unbounded = model("torch.ops.aten.relu.default");
    for name in ["x", "y", "z"] {
        let size = json!({"as_expr": {"expr_str": "Symbol('s0', integer=True)"}});
        unbounded["graph_module"]["graph"]["tensor_values"][name]["sizes"][0] = size;
    }
    let problem = problem(&unbounded, &weights(), &[STORAGE]);
    assert!(
        problem.contains("`s0` has no upper bound") && problem.contains("Dim(name, max=...)"),
        "{problem}"
    );
}

/// The error of compiling an archive with a memory limit that is too low.
fn problem_within(memory: u64, model: &Value, weights: &Value, records: &[(&str, &[u8])]) -> String {
    let table = OperatorTable::portable(&pteron_kernels::registry());
    let options = Options { memory, ..Options::default() };
    let compiled = compile(archive(model, weights, records), &table, &options, &mut |_, _, _| {});
    compiled.err().expect("it is refused").to_string()
}

#[test]
fn weights_beyond_the_memory_limit_are_named() {
    let silu = || model("torch.ops.aten.silu.default");
    let strided = |strides: [i64; 2]| {
        let mut weights = weights();
        let strides = strides.map(|n| json!({"as_int": n}));
        weights["net.w"]["tensor_meta"]["strides"] = json!(strides);
        weights
    };
    // Two rows that are one in the storage are copied.
    run(&silu(), &strided([0, 1]), &[STORAGE]).unwrap();
    let mut large = silu();
    large["graph_module"]["graph"]["tensor_values"]["w"] = meta(&[1 << 20, 3]);
    let mut weights = strided([0, 1]);
    weights["net.w"]["tensor_meta"]["sizes"][0] = json!({"as_int": 1 << 20});
    let error = problem_within(1 << 20, &large, &weights, &[STORAGE]);
    assert!(error.contains("`net.w`") && error.contains("the limit is 1048576"), "{error}");

    // Views that overlap in their storage are written one by one.
    let mut weights = json!({});
    let mut overlapping = silu();
    let graph = &mut overlapping["graph_module"];
    for i in 0..100 {
        let mut meta = meta(&[100_000]);
        meta["storage_offset"] = json!({"as_int": i});
        let name = format!("v{i}");
        graph["graph"]["tensor_values"][&name] = meta.clone();
        graph["graph"]["inputs"].as_array_mut().unwrap().push(json!({"as_tensor": {"name": name}}));
        let spec = json!({"parameter": {"arg": {"name": name}, "parameter_name": name}});
        graph["signature"]["input_specs"].as_array_mut().unwrap().push(spec);
        weights[&name] = json!({"path_name": "views", "use_pickle": false, "tensor_meta": meta});
    }
    weights["net.w"] = self::weights()["net.w"].clone();
    let views = ("data/weights/views", &[0; 400_400][..]);
    let error = problem_within(8 << 20, &overlapping, &weights, &[STORAGE, views]);
    assert!(error.contains("(`v") && error.contains("overlap"), "{error}");
}

#[test]
fn the_longest_list_of_a_json_beyond_the_memory_limit_is_named() {
    let mut model = model("torch.ops.aten.silu.default");
    let inputs = vec![json!({"as_int": 1}); 20_000];
    model["graph_module"]["graph"]["inputs"].as_array_mut().unwrap().extend(inputs);
    let error = problem_within(1 << 20, &model, &weights(), &[STORAGE]);
    assert!(error.contains("graph_module.graph.inputs") && error.contains("20002"), "{error}");
}

#[test]
fn sizes_of_many_terms_are_refused_with_the_tensor() {
    for join in [" + ", "*", "//", " - "] {
        let mut model = model("torch.ops.aten.silu.default");
        let terms: Vec<String> = (0..14_000).map(|i| format!("s{i}")).collect();
        let size = json!({"as_expr": {"expr_str": terms.join(join), "hint": {"as_int": 2}}});
        model["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = size;
        let error = problem(&model, &weights(), &[STORAGE]);
        assert!(error.contains("(`x`)") && error.contains("more than"), "{error}");
    }
}

#[test]
fn decompositions_that_do_not_end_are_refused_with_the_node() {
    let mut model = model("torch.ops.aten.cat.default");
    let empty = json!([{"name": "tensors", "arg": {"as_tensors": []}}]);
    model["graph_module"]["graph"]["nodes"][0]["inputs"] = empty;
    let error = problem(&model, &weights(), &[STORAGE]);
    assert!(error.contains("node `y` (aten.cat.default)") && error.contains("empty list"), "{error}");
}

#[test]
fn constants_count_as_they_are_in_the_file() {
    // An unused weight and a second name of another one add nothing to the file.
    let mut model = model("torch.ops.aten.silu.default");
    let mut weights = weights();
    for name in ["unused", "alias"] {
        let graph = &mut model["graph_module"];
        graph["graph"]["tensor_values"][name] = meta(&[2, 3]);
        graph["graph"]["inputs"].as_array_mut().unwrap().push(json!({"as_tensor": {"name": name}}));
        let spec = json!({"parameter": {"arg": {"name": name}, "parameter_name": name}});
        graph["signature"]["input_specs"].as_array_mut().unwrap().push(spec);
    }
    weights["unused"] = json!({"path_name": "weight_1", "use_pickle": false, "tensor_meta": meta(&[2, 3])});
    weights["alias"] = weights["net.w"].clone();
    let add = &mut model["graph_module"]["graph"]["nodes"][1]["inputs"];
    add[1]["arg"]["as_tensor"]["name"] = json!("alias");
    let other = ("data/weights/weight_1", &[1; 24][..]);
    let compiled = run(&model, &weights, &[STORAGE, other]).unwrap();
    assert_eq!(compiled.methods[0].constant_bytes, 24);
}
