//! Runs the requests of JavaScript natively.

use pteron::Program;
use pteron_toolbox::edit::set_task;
use pteron_toolbox::file::Progress;
use pteron_toolbox::task::TaskMetadata;
use pteron_web::Engine;
use serde_json::{Value, json};
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// An engine, and the client side of the interface.
#[derive(Default)]
struct Client(Engine);

impl Client {
    fn give(&mut self, bytes: &[u8]) -> u32 {
        let buffer = self.0.create_buffer(bytes.len()).unwrap();
        self.0.bytes_mut(buffer).unwrap().copy_from_slice(bytes);
        buffer
    }

    fn take(&mut self, buffer: &Value) -> Vec<u8> {
        let buffer = buffer.as_u64().unwrap() as u32;
        let bytes = self.0.bytes(buffer).unwrap().to_vec();
        self.0.free(buffer);
        bytes
    }

    fn answer(&mut self, request: &Value) -> Value {
        let request = self.give(request.to_string().as_bytes());
        let answer = self.0.call(request).unwrap();
        assert!(self.0.bytes(request).is_none(), "the request is freed");
        serde_json::from_slice(&self.take(&json!(answer))).unwrap()
    }

    fn call(&mut self, request: Value) -> Value {
        let answer = self.answer(&request);
        assert!(answer["error"].is_null(), "{answer}");
        answer["ok"].clone()
    }

    fn fail(&mut self, request: Value) -> Value {
        let answer = self.answer(&request);
        assert!(answer["ok"].is_null(), "{answer}");
        answer["error"].clone()
    }

    fn file(&mut self, path: &str) -> Value {
        let path = Path::new(ROOT).join(path);
        let name = path.file_name().unwrap().to_str().unwrap();
        json!({ "name": name, "buffer": self.give(&std::fs::read(&path).unwrap()) })
    }

    fn load(&mut self, path: &str) -> Value {
        let file = self.file(path);
        self.call(json!({ "call": "load", "file": file, "data": [] }))
    }

    /// The numbers of open modules and buffers.
    fn open_handles(&mut self) -> (u64, u64) {
        let about = self.call(json!({ "call": "about" }));
        (about["modules"].as_u64().unwrap(), about["buffers"].as_u64().unwrap())
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

#[test]
fn a_picture_is_classified() {
    let mut client = Client::default();
    let opened = client.load("examples/digits/digits.pte");
    assert_eq!((&opened["main"], &opened["methods"][0]["name"]), (&json!("forward"), &json!("forward")));
    let input = &opened["methods"][0]["inputs"][0];
    assert_eq!((&input["kind"], &input["fixed"]), (&json!("Tensor"), &Value::Null));
    let tensor = &input["tensor"];
    assert_eq!((&tensor["dtype"], &tensor["sizes"]), (&json!("float32"), &json!([1, 1, 8, 8])));

    let module = &opened["module"];
    let picture = client.file("examples/digits/3.png");
    let buffer = picture["buffer"].clone();
    let request = json!({
        "call": "picture", "module": module, "input": 0, "picture": picture, "preparation": { "preset": "unit" },
    });
    let input = client.call(request);
    client.take(&buffer);
    let request = json!({ "call": "run", "module": module, "inputs": [&input], "repeat": 3 });
    let ran = client.call(request);
    client.take(&input["buffer"]);
    assert_eq!((&ran["method"], &ran["latency"]["runs"]), (&json!("forward"), &json!(3)));
    assert!(ran["ms"].as_f64().unwrap() > 0.0 && ran["latency"]["mean"].as_f64().unwrap() > 0.0);
    let scores = &ran["outputs"][0];
    let labels: Vec<String> = (0..10).map(|digit| format!("a {digit}")).collect();
    let top = client.call(json!({ "call": "top", "tensor": scores, "count": 2, "labels": labels }));
    assert_eq!((&top[0][0]["index"], &top[0][0]["label"]), (&json!(3), &json!("a 3")));
    assert!((top[0][0]["value"].as_f64().unwrap() - 0.9595).abs() < 1e-4);
    let scores = floats(&client.take(&scores["buffer"]));
    assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{scores:?}");

    assert_eq!(client.open_handles(), (1, 0));
    assert_eq!(client.call(json!({ "call": "close", "module": module })), json!(true));
    let failed = client.fail(json!({ "call": "random", "module": module }));
    assert_eq!(failed["message"], "there is no module 1: it has been disposed of");
    assert_eq!(client.open_handles(), (0, 0));
}

#[test]
fn a_picture_is_preprocessed_as_the_program_stores_it() {
    let mut client = Client::default();
    let task = json!({ "preprocessing": { "mean": [1] }, "labels": ["a", "b"] });
    let task = TaskMetadata::parse(&task.to_string()).unwrap();
    let digits = Program::open(Path::new(ROOT).join("examples/digits/digits.pte")).unwrap();
    let program = set_task(&digits, task, &Progress::default()).unwrap().program.to_vec().unwrap();
    let file = json!({ "name": "labelled.pte", "buffer": client.give(&program) });
    let opened = client.call(json!({ "call": "load", "file": file, "data": [] }));
    assert_eq!(opened["task"]["labels"], json!(["a", "b"]));
    let mut made = |preparation: Value| {
        let picture = client.file("examples/digits/3.png");
        let buffer = picture["buffer"].clone();
        let made = client.call(json!({
            "call": "picture", "module": opened["module"], "input": 0, "picture": picture, "preparation": preparation,
        }));
        client.take(&buffer);
        floats(&client.take(&made["buffer"]))
    };
    let (stored, unit) = (made(json!({})), made(json!({ "preset": "unit" })));
    assert!(unit.iter().any(|&value| value > 0.5));
    assert_eq!(stored, unit.iter().map(|value| value - 1.0).collect::<Vec<_>>());
}

#[test]
fn reports_show_the_file_and_the_times_of_its_nodes() {
    let mut client = Client::default();
    let module = client.load("examples/digits/digits.pte")["module"].clone();
    let inputs = client.call(json!({ "call": "random", "module": module }));
    let page = |client: &mut Client, profile: Value| {
        let response = client.call(json!({ "call": "report", "module": module, "profile": profile }));
        String::from_utf8(client.take(&response["buffer"])).unwrap()
    };
    let plain = page(&mut client, Value::Null);
    assert!(plain.starts_with("<!doctype html>") && plain.contains("digits.pte"));
    let timed = page(&mut client, json!({ "inputs": inputs, "repeat": 2 }));
    let has_times = |page: &str| page.contains("\"time_unit\":");
    assert!(has_times(&timed) && !has_times(&plain));
    let inspected = client.call(json!({ "call": "inspect", "module": module }));
    assert_eq!(inspected["file"], "digits.pte");
}

#[test]
fn archives_are_compiled_and_other_files_are_shown() {
    let mut client = Client::default();
    let archive = Path::new(ROOT).join("testdata/archives/activations/model.pt2");
    let opened = client.load(archive.to_str().unwrap());
    let module = &opened["module"];
    let inputs = client.call(json!({ "call": "random", "module": module }));
    let ran = client.call(json!({ "call": "run", "module": module, "inputs": inputs, "repeat": 0 }));
    assert_eq!((ran["outputs"][0]["kind"].as_str(), &ran["latency"]), (Some("tensor"), &Value::Null));

    let file = client.file(WEIGHTS);
    let opened = client.call(json!({ "call": "load", "file": file, "data": [] }));
    assert_eq!(opened["methods"], json!([]));
    let response = client.call(json!({ "call": "report", "module": opened["module"], "profile": null }));
    assert!(String::from_utf8(client.take(&response["buffer"])).unwrap().contains("external_constant.ptd"));
    let failed = client.fail(json!({ "call": "run", "module": opened["module"], "inputs": [], "repeat": 0 }));
    assert_eq!(failed["message"], "_default_external_constant.ptd has no methods: only programs run");
}

#[test]
fn functions_of_bef_programs_and_mlir_text_run() {
    let mut client = Client::default();
    let text = "func.func @sum() -> i32 {\n  %x = tfrt.constant.i32 40\n  %y = tfrt.constant.i32 2\n  \
        %z = tfrt.add.i32 %x, %y\n  tfrt.return %z : i32\n}\nfunc.func @same(%x: i32) -> i32 {\n  tfrt.return %x : i32\n}\n";
    let buffer = client.give(text.as_bytes());
    let file = json!({ "name": "sum.mlir", "buffer": buffer });
    let opened = client.call(json!({ "call": "load", "file": file, "data": [] }));
    assert_eq!(opened["methods"], json!([]));
    assert_eq!(opened["functions"][0], json!({ "name": "sum", "arguments": [], "results": ["i32"] }));
    assert_eq!(opened["functions"][1]["arguments"], json!(["i32"]));
    let module = &opened["module"];
    let all = client.call(json!({ "call": "runFunctions", "module": module, "functions": [] }));
    assert_eq!((&all["exitCode"], &all["errors"]), (&json!(0), &json!("")));
    assert!(all["output"].as_str().unwrap().contains("'sum' returned 42"), "{all}");
    let one = client.call(json!({ "call": "runFunctions", "module": module, "functions": ["same(7)"] }));
    assert!(one["output"].as_str().unwrap().contains("'same' returned 7"), "{one}");
    let response = client.call(json!({ "call": "report", "module": module, "profile": null }));
    assert!(String::from_utf8(client.take(&response["buffer"])).unwrap().contains("tfrt.add.i32"));

    let buffer = client.give(b"func.func @f() { tfrt.no_such_op }");
    let file = json!({ "name": "wrong.mlir", "buffer": buffer });
    let failed = client.fail(json!({ "call": "load", "file": file, "data": [] }));
    assert!(failed["message"].as_str().unwrap().contains("wrong.mlir:1:"), "{failed}");
    let digits = client.load("examples/digits/digits.pte");
    let failed = client.fail(json!({ "call": "runFunctions", "module": digits["module"], "functions": [] }));
    assert!(failed["message"].as_str().unwrap().contains("runFunctions takes BEF programs"), "{failed}");
}

const WEIGHTS: &str = "testdata/corpus/tiny/ModuleLinear_extconst/_default_external_constant.ptd";

#[test]
fn external_weights_are_loaded() {
    let mut client = Client::default();
    let program = "testdata/corpus/tiny/ModuleLinear_extconst/model.pte";
    let run = |client: &mut Client, data: Value| {
        let file = client.file(program);
        let module = client.call(json!({ "call": "load", "file": file, "data": data }))["module"].clone();
        let inputs = client.call(json!({ "call": "random", "module": module }));
        client.answer(&json!({ "call": "run", "module": module, "inputs": inputs, "repeat": 0 }))
    };
    let failed = run(&mut client, json!([]));
    assert_eq!(failed["error"]["kind"], "data", "{failed}");
    assert!(failed["error"]["remedy"].as_str().unwrap().contains("`data`"));
    let weights = client.file(WEIGHTS);
    let ran = run(&mut client, json!([weights]));
    assert_eq!(ran["ok"]["outputs"][0]["kind"], "tensor", "{ran}");
}

#[test]
fn errors_have_a_kind_a_message_and_a_location() {
    let mut client = Client::default();
    let digits = std::fs::read(Path::new(ROOT).join("examples/digits/digits.pte")).unwrap();
    let load = |client: &mut Client, bytes: &[u8]| {
        let file = json!({ "name": "model.pte", "buffer": client.give(bytes) });
        client.fail(json!({ "call": "load", "file": file, "data": [] }))
    };
    let cut = load(&mut client, &digits[..100]);
    assert_eq!((&cut["kind"], &cut["file"]), (&json!("format"), &json!("model.pte")));
    assert!(cut["message"].as_str().unwrap().starts_with("model.pte"), "{cut}");
    assert!(cut["remedy"].is_string() && (cut["offset"].is_u64() || cut["path"].is_string()), "{cut}");
    let text = load(&mut client, b"hello");
    assert_eq!(text["kind"], "format");
    assert!(text["message"].as_str().unwrap().contains("model.pte is text"), "{text}");
    assert_eq!(client.open_handles(), (0, 0));

    let module = client.load("examples/digits/digits.pte")["module"].clone();
    let zeros = client.give(&[0; 252]);
    let mut run = |inputs: Value| {
        client.fail(json!({ "call": "run", "module": module, "inputs": inputs, "repeat": 0 }))
    };
    let tensor = |dtype: &str, sizes: Value| json!([{ "kind": "tensor", "dtype": dtype, "sizes": sizes, "buffer": zeros }]);
    for (inputs, problem) in [
        (json!([]), "the method takes 1 inputs; it was given 0"),
        (tensor("float32", json!([1, 1, 8, 8])), "64 elements, which are 256 bytes; 252 bytes were given"),
        (tensor("float32", json!([1, 1, 7, 9])), "[1, 1, 8, 8]"),
        (tensor("uint8", json!([252])), "float32"),
        (tensor("float33", json!([63])), "there is no type of elements `float33`"),
        (json!([{ "kind": "number", "value": "a" }]), "input 0: `a` is not"),
        (json!([{ "kind": "bool", "value": true }]), "input"),
        (
            json!([{ "kind": "tensor", "dtype": "float32", "sizes": [64], "buffer": 99 }]),
            "there is no buffer 99",
        ),
    ] {
        let failed = run(inputs);
        let message = failed["message"].as_str().unwrap();
        assert!(failed["kind"] == "input" && message.contains(problem), "{problem}: {failed}");
    }
    let failed = client
        .fail(json!({ "call": "run", "module": module, "method": "backward", "inputs": [], "repeat": 0 }));
    assert_eq!((&failed["kind"], &failed["method"]), (&json!("input"), &json!("backward")));
    let failed = client.fail(json!({ "call": "sing" }));
    assert!(failed["kind"] == "error" && failed["message"].as_str().unwrap().contains("sing"), "{failed}");
    let short = client.0.create_buffer(0).unwrap();
    assert!(client.0.call(short).is_some() && client.0.call(short).is_some());
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut client = Client::default();
    let mut outputs = Vec::new();
    for threads in [1, 3] {
        assert_eq!(client.call(json!({ "call": "setThreads", "threads": threads })), json!(threads));
        assert_eq!(client.call(json!({ "call": "about" }))["threads"], json!(threads));
        let module = client.load("examples/digits/digits.pte")["module"].clone();
        let inputs = client.call(json!({ "call": "random", "module": module, "method": null }));
        let ran = client
            .call(json!({ "call": "run", "module": module, "method": null, "inputs": inputs, "repeat": 0 }));
        outputs.push(client.take(&ran["outputs"][0]["buffer"]));
    }
    assert_eq!(outputs[0], outputs[1]);
}
