//! Pictures as inputs, and classes as outputs, over REST and gRPC.

mod common;

use common::call::{
    Channel, Contents, InferRequest, InferResponse, Parameter, RequestedOutput, Tensor, block_on,
};
use common::socket::{Fixture, Response};
use common::{Folder, testdata};
use pteron::Program;
use pteron::tools::edit::set_task;
use pteron::tools::file::Progress;
use pteron::tools::task::TaskMetadata;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;

const LABELS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// A folder with `digits`, f32[1, 1, 8, 8] to f32[1, 10], whose metadata is `task`.
fn digits(task: &Value) -> Folder {
    let folder = Folder::new();
    folder.copy("../examples/digits/digits.pte", "digits.pte");
    let path = folder.0.join("digits.pte");
    let task = TaskMetadata::parse(&task.to_string()).unwrap();
    let set = set_task(&Program::open(&path).unwrap(), task, &Progress::default()).unwrap();
    fs::write(&path, set.program.to_vec().unwrap()).unwrap();
    folder
}

fn fixture() -> Fixture {
    Fixture::new(digits(&json!({ "preprocessing": { "scale": 1.0 / 255.0 }, "labels": LABELS })))
}

fn picture(digit: usize) -> Vec<u8> {
    fs::read(testdata(&format!("../examples/digits/{digit}.png"))).unwrap()
}

fn element(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_le_bytes(), bytes].concat()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().chain([&0; 3]).take(3).fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
        for i in 0..4 {
            let sextet = ALPHABET[(bits >> (18 - 6 * i)) as usize & 63] as char;
            text.push(if i > group.len() { '=' } else { sextet });
        }
    }
    text
}

/// Sends a picture as binary data, and asks for classes.
fn send(fixture: &Fixture, shape: &[usize], data: &[u8], output: Value) -> Response {
    let json = json!({
        "inputs": [{
            "name": "input_0", "datatype": "BYTES", "shape": shape,
            "parameters": { "binary_data_size": data.len() },
        }],
        "outputs": [output],
    });
    let json = json.to_string();
    let body = [json.as_bytes(), data].concat();
    let headers = format!("inference-header-content-length: {}\r\n", json.len());
    fixture.send("POST", "/v2/models/digits/infer", &headers, &body)
}

fn three_classes() -> Value {
    json!({ "name": "output_0", "parameters": { "classification": 3 } })
}

#[test]
fn pictures_are_classified_over_rest() {
    let fixture = fixture();
    for (digit, label) in LABELS.iter().enumerate().take(9) {
        let file = picture(digit);
        let response = send(&fixture, &[1], &element(&file), three_classes()).json();
        let output = &response["outputs"][0];
        assert_eq!((&output["datatype"], &output["shape"]), (&json!("BYTES"), &json!([1, 3])), "{response}");
        let best = output["data"][0].as_str().unwrap();
        let parts: Vec<&str> = best.splitn(3, ':').collect();
        assert_eq!(parts[1..], [&*digit.to_string(), label], "{response}");
        // The same in JSON, and the response as binary data.
        let body = json!({
            "inputs": [{ "name": "input_0", "datatype": "BYTES", "shape": [1, 1], "data": [base64(&file)] }],
            "outputs": [{ "name": "output_0", "parameters": { "classification": 1, "binary_data": true } }],
        });
        let response = fixture.post("/v2/models/digits/infer", &body);
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        assert!(response.body.ends_with(&element(best.as_bytes())));
    }
}

#[test]
fn a_picture_gives_what_its_tensor_gives() {
    let fixture = fixture();
    let mut module = pteron::open(testdata("../examples/digits/digits.pte")).unwrap();
    let meta = pteron::tensor::TensorMeta::contiguous(pteron::ScalarType::Float, &[1, 1, 8, 8]).unwrap();
    let tensor = pteron::tools::picture::decode("3.png", &picture(3), &meta, &Default::default()).unwrap();
    let expected = module.forward(&[tensor.into()]).unwrap();
    let expected: Vec<f32> = expected[0].as_tensor().unwrap().to_vec().unwrap();
    let response = send(&fixture, &[1], &element(&picture(3)), json!({ "name": "output_0" })).json();
    let found = response["outputs"][0]["data"].as_array().unwrap();
    let found: Vec<f32> = found.iter().map(|x| x.as_f64().unwrap() as f32).collect();
    common::assert_close(&found, &expected);
}

#[test]
fn pictures_are_classified_over_grpc() {
    let fixture = fixture();
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        for raw in [true, false] {
            let contents = Contents { files: vec![picture(7)], ..Contents::default() };
            let parameter = Parameter { int64: Some(2), ..Parameter::default() };
            let parameters = HashMap::from([("classification".to_owned(), parameter)]);
            let message = InferRequest {
                model_name: "digits".to_owned(),
                inputs: vec![Tensor {
                    name: "input_0".to_owned(),
                    datatype: "BYTES".to_owned(),
                    shape: vec![1],
                    contents: (!raw).then_some(contents),
                }],
                outputs: vec![RequestedOutput { name: "output_0".to_owned(), parameters }],
                raw_input_contents: if raw { vec![element(&picture(7))] } else { Vec::new() },
                ..InferRequest::default()
            };
            let response: InferResponse = channel.call("ModelInfer", &message, &[]).await.read();
            let output = &response.outputs[0];
            assert_eq!((&*output.datatype, &output.shape[..]), ("BYTES", &[1, 2][..]));
            let text = String::from_utf8_lossy(&response.raw_output_contents[0]).into_owned();
            assert!(text.contains(":7:seven"), "{text}");
        }
    });
}

#[test]
fn wrong_pictures_are_errors_that_name_them() {
    let fixture = fixture();
    let file = picture(1);
    let bad = |shape: &[usize], data: &[u8]| send(&fixture, shape, data, three_classes()).error(400);
    for (shape, data, message) in [
        (&[1][..], element(b"no picture"), "the picture of input `input_0`"),
        (&[1], element(&file[..file.len() / 2]), "the picture of input `input_0`"),
        (&[1], element(b""), "the picture of input `input_0`"),
        (
            &[2],
            [element(&file), element(&file)].concat(),
            "shape [1, 1, 8, 8] is expected, [2, 1, 8, 8] was sent",
        ),
        (&[2], element(&file), "input `input_0`: 1 elements, the shape has 2"),
        (&[0], vec![], "input `input_0`: 0 elements, the shape has 0"),
        (&[1], file.clone(), "input `input_0`: "),
        (&[1], element(&file)[..file.len()].to_vec(), "ends early"),
    ] {
        let error = bad(shape, &data);
        assert!(error.contains(message), "{message}: {error}");
    }
    let body =
        |input: Value| fixture.post("/v2/models/digits/infer", &json!({ "inputs": [input] })).error(400);
    let error = body(json!({ "name": "input_0", "datatype": "BYTES", "shape": [1], "data": ["!"] }));
    assert!(error.contains("no Base64"), "{error}");
    let error = body(json!({ "name": "input_0", "datatype": "BYTES", "shape": [1], "data": [1] }));
    assert!(error.contains("input `input_0`: data: "), "{error}");
    let error = body(json!({ "name": "x", "datatype": "BYTES", "shape": [1], "data": ["AAAA"] }));
    assert!(error.contains("no input `x`"), "{error}");
    // A program that does not say how.
    let fixture = Fixture::new(digits(&json!({ "labels": LABELS })));
    let error = send(&fixture, &[1], &element(&file), three_classes()).error(400);
    assert!(error.contains("does not say how pictures are preprocessed"), "{error}");
}

/// A picture of few bytes that is large when it is decoded.
#[test]
fn the_memory_of_a_decoder_is_bounded() {
    let mut file = picture(0);
    // The width and height of a PNG.
    file[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x40, 0]);
    let fixture = Fixture::with(
        digits(&json!({ "preprocessing": { "resize": 8 } })),
        |service| service.max_bytes = 64 << 20,
        |_| (),
    );
    // The checksum of the header does not fit; most decoders see that first.
    let response = send(&fixture, &[1], &element(&file), three_classes());
    assert!([400, 413].contains(&response.status), "{}", String::from_utf8_lossy(&response.body));
    let bmp = bitmap(16384, 16384);
    let error = send(&fixture, &[1], &element(&bmp), three_classes()).error(413);
    assert!(error.contains("the picture of input `input_0` takes"), "{error}");
    assert_eq!(send(&fixture, &[1], &element(&picture(0)), three_classes()).status, 200);
}

/// The header of a bitmap of 24 bits a pixel, without its pixels.
fn bitmap(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"BM".to_vec();
    for value in [54, 0, 54, 40, width, height, 24 << 16 | 1, 0, 0, 2835, 2835, 0, 0u32] {
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

#[test]
fn extensions_are_announced() {
    let extensions = fixture().get("/v2").json()["extensions"].clone();
    assert!(extensions.as_array().unwrap().contains(&json!("classification")), "{extensions}");
}
