//! Inference over gRPC on HTTP/2: contents of every type, deadlines, clients that disconnect.

mod common;

use common::call::{
    Channel, Contents, InferRequest, InferResponse, Parameter, RequestedOutput, Tensor, block_on,
};
use common::socket::{Fixture, until};
use common::{FOREVER, Folder, assert_close, bytes, expected_of_mlp, request};
use pteron::tensor::{DimOrder, TensorMeta};
use pteron::{ScalarType, bf16, f16};
use pteron_serve::ServiceOptions;
use pteron_serve::datatype;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

/// The gRPC form of [`request`] for `mlp`, with typed or raw contents.
fn mlp(rows: usize, seed: usize, raw: bool) -> InferRequest {
    let input = &request("mlp", &[rows, 12], seed).inputs[0];
    let data = (*input.data).as_ref();
    let fp32s = data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let contents = (!raw).then(|| Contents { fp32s, ..Contents::default() });
    let tensor = Tensor {
        name: "input_0".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![i64::try_from(rows).unwrap(), 12],
        contents,
    };
    InferRequest {
        model_name: "mlp".to_owned(),
        inputs: vec![tensor],
        raw_input_contents: if raw { vec![data.to_vec()] } else { Vec::new() },
        ..InferRequest::default()
    }
}

#[test]
fn infer_takes_typed_and_raw_contents() {
    let fixture = Fixture::new(Folder::with_mlp());
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        for (seed, raw) in [(3, true), (4, false)] {
            let mut message = mlp(2, seed, raw);
            message.id = "abc".to_owned();
            message.model_version = "1".to_owned();
            message.outputs = vec![RequestedOutput { name: "output_0".to_owned(), ..Default::default() }];
            let response: InferResponse = channel.call("ModelInfer", &message, &[]).await.read();
            assert_eq!((&*response.model_name, &*response.model_version, &*response.id), ("mlp", "1", "abc"));
            assert!(response.parameters["generation"].uint64.is_some_and(|number| number > 0));
            let output = &response.outputs[0];
            assert_eq!(
                (&*output.name, &*output.datatype, &output.shape[..]),
                ("output_0", "FP32", &[2, 3][..])
            );
            let found: Vec<f32> = response.raw_output_contents[0]
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            assert_close(&found, &expected_of_mlp(2, seed));
        }
    });
}

#[derive(Clone, PartialEq, prost::Message)]
struct ModelName {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Config {
    #[prost(message, optional, tag = "1")]
    config: Option<ModelName>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Statistics {
    #[prost(message, repeated, tag = "1")]
    models: Vec<ModelStatistics>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ModelStatistics {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "4")]
    inferences: u64,
}

#[test]
fn configuration_and_statistics_are_messages_of_triton() {
    let fixture = Fixture::new(Folder::with_mlp());
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        let model = ModelName { name: "mlp".to_owned() };
        let config: Config = channel.call("ModelConfig", &model, &[]).await.read();
        assert_eq!(config.config, Some(model.clone()));
        assert_eq!(channel.call("ModelInfer", &mlp(2, 0, true), &[]).await.code, 0);
        for asked in [model, ModelName::default()] {
            let statistics: Statistics = channel.call("ModelStatistics", &asked, &[]).await.read();
            assert_eq!(statistics.models, [ModelStatistics { name: "mlp".to_owned(), inferences: 1 }]);
        }
        let other = ModelName { name: "other".to_owned() };
        assert_eq!(channel.call("ModelStatistics", &other, &[]).await.code, 5);
    });
}

#[test]
fn invalid_requests_get_a_code_and_a_message() {
    let fixture = Fixture::new(Folder::with_mlp());
    let cases: [(&dyn Fn(&mut InferRequest), i32, &str); 11] = [
        (&|m| m.model_name = "../mlp".to_owned(), 5, "there is no model"),
        (&|m| m.model_version = "7".to_owned(), 5, "no version"),
        (&|m| m.inputs[0].name = "x".to_owned(), 3, "there is no input `x`; the model has `input_0`"),
        (&|m| m.inputs[0].datatype = "FP64".to_owned(), 3, "FP32 is expected, FP64 was sent"),
        (&|m| m.inputs[0].datatype = "BYTES".to_owned(), 3, "an element of BYTES"),
        (&|m| m.inputs[0].shape = vec![-1, 12], 3, "a size is negative"),
        (&|m| m.inputs[0].shape = vec![i64::MAX, i64::MAX], 3, "shape [9, 12]"),
        (&|m| m.inputs[0].shape = vec![1; 10_000], 3, "shape [9, 12]"),
        (&|m| m.raw_input_contents[0].truncate(5), 3, "takes 96 bytes, 5 were sent"),
        (&|m| m.raw_input_contents.push(vec![0; 4]), 3, "2 raw contents for 1 inputs"),
        (
            &|m| m.outputs = vec![RequestedOutput { name: "y".to_owned(), ..Default::default() }],
            3,
            "no output `y`",
        ),
    ];
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        for (change, code, text) in cases {
            let mut message = mlp(2, 0, true);
            change(&mut message);
            let answer = channel.call("ModelInfer", &message, &[]).await;
            assert!(answer.code == code && answer.text.contains(text), "{answer:?}");
        }
        let mut both = mlp(2, 0, true);
        // Empty contents count as absent.
        both.inputs[0].contents = Some(Contents::default());
        assert_eq!(channel.call("ModelInfer", &both, &[]).await.code, 0);
        both.inputs[0].contents = Some(Contents { fp32s: vec![0.0; 24], ..Contents::default() });
        assert!(channel.call("ModelInfer", &both, &[]).await.text.contains("both contents and raw contents"));
        let mut other = mlp(2, 0, false);
        other.inputs[0].contents = Some(Contents { int64s: vec![0; 24], ..Contents::default() });
        assert!(channel.call("ModelInfer", &other, &[]).await.text.contains("takes 96 bytes, 0 were sent"));
        assert_eq!(channel.call("ModelInfer", &mlp(2, 0, true), &[]).await.code, 0);
    });
}

/// A value that every type represents exactly.
fn number(dtype: ScalarType, index: usize) -> i16 {
    let number = i16::try_from(index % 5).unwrap();
    if dtype == ScalarType::Bool { number % 2 } else { number }
}

fn element(dtype: ScalarType, number: i16) -> Vec<u8> {
    let float = f32::from(number);
    match dtype {
        ScalarType::Bool | ScalarType::Byte | ScalarType::Char => vec![number.to_le_bytes()[0]],
        ScalarType::Short => number.to_le_bytes().to_vec(),
        ScalarType::Int => i32::from(number).to_le_bytes().to_vec(),
        ScalarType::Long => i64::from(number).to_le_bytes().to_vec(),
        ScalarType::Half => f16::from_f32(float).to_le_bytes().to_vec(),
        ScalarType::BFloat16 => bf16::from_f32(float).to_le_bytes().to_vec(),
        ScalarType::Float => float.to_le_bytes().to_vec(),
        ScalarType::Double => f64::from(number).to_le_bytes().to_vec(),
        other => panic!("no model of {other:?}"),
    }
}

/// The values as typed contents, in the protocol's field for their type.
fn contents(dtype: ScalarType, numbers: &[i16]) -> Contents {
    let mut contents = Contents::default();
    match dtype {
        ScalarType::Bool => contents.bools = numbers.iter().map(|&x| x != 0).collect(),
        ScalarType::Char | ScalarType::Short | ScalarType::Int => {
            contents.ints = numbers.iter().map(|&x| x.into()).collect();
        }
        ScalarType::Long => contents.int64s = numbers.iter().map(|&x| x.into()).collect(),
        ScalarType::Byte => contents.uints = numbers.iter().map(|&x| x.try_into().unwrap()).collect(),
        ScalarType::Double => contents.fp64s = numbers.iter().map(|&x| x.into()).collect(),
        _ => contents.fp32s = numbers.iter().map(|&x| x.into()).collect(),
    }
    contents
}

/// Every element type in every encoding of both protocols: the results equal those of the program, bit for bit.
#[test]
fn elements_of_every_type_are_transferred_exactly() {
    const TYPES: [&str; 9] =
        ["bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"];
    let folder = Folder::new();
    for name in TYPES {
        folder.copy(&format!("corpus/tiny/dtype_{name}/model.pte"), &format!("{name}.pte"));
    }
    let fixture = Fixture::new(folder);
    for name in TYPES {
        let (_, model) = fixture.service.model(name, "").unwrap();
        let inputs: Vec<_> = model.inputs().cloned().collect();
        let numbers = |i: usize| -> Vec<i16> {
            (0..inputs[i].bounds.iter().product()).map(|k| number(inputs[i].dtype, k + 7 * i)).collect()
        };
        let raw: Vec<Vec<u8>> = (0..inputs.len())
            .map(|i| numbers(i).iter().flat_map(|&x| element(inputs[i].dtype, x)).collect())
            .collect();
        let expected = expected(name, &inputs.iter().zip(&raw).collect::<Vec<_>>());
        assert!(!expected.is_empty());

        for typed in [false, true] {
            let tensors = inputs.iter().enumerate().map(|(i, spec)| Tensor {
                name: spec.name.clone(),
                datatype: datatype::name(spec.dtype).unwrap().to_owned(),
                shape: spec.bounds.iter().map(|&size| i64::try_from(size).unwrap()).collect(),
                contents: typed.then(|| contents(spec.dtype, &numbers(i))),
            });
            let message = InferRequest {
                model_name: name.to_owned(),
                inputs: tensors.collect(),
                raw_input_contents: if typed { Vec::new() } else { raw.clone() },
                ..InferRequest::default()
            };
            let found: InferResponse = block_on(async {
                Channel::open(fixture.address).await.call("ModelInfer", &message, &[]).await.read()
            });
            assert_eq!(found.raw_output_contents, expected, "{name}, typed: {typed}");
        }

        let head = |i: usize, rest: Value| {
            let spec = &inputs[i];
            let mut head = json!({
                "name": spec.name, "datatype": datatype::name(spec.dtype), "shape": spec.bounds,
            });
            head.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            head
        };
        let ask = |inputs: Vec<Value>, behind: &[u8]| {
            let text = json!({ "inputs": inputs, "parameters": { "binary_data_output": true } }).to_string();
            let length = format!("inference-header-content-length: {}\r\n", text.len());
            let path = format!("/v2/models/{name}/infer");
            let response = fixture.send("POST", &path, &length, &[text.as_bytes(), behind].concat());
            assert_eq!(response.status, 200, "{name}: {}", String::from_utf8_lossy(&response.body));
            response.body[response.body.len() - expected.concat().len()..].to_vec()
        };
        let texts = |i: usize| match inputs[i].dtype {
            ScalarType::Bool => json!(numbers(i).iter().map(|&x| x != 0).collect::<Vec<_>>()),
            _ => json!(numbers(i)),
        };
        let as_text = ask((0..inputs.len()).map(|i| head(i, json!({ "data": texts(i) }))).collect(), b"");
        assert_eq!(as_text, expected.concat(), "{name} as text");
        let sized = |i: usize| head(i, json!({ "parameters": { "binary_data_size": raw[i].len() } }));
        let as_bytes = ask((0..inputs.len()).map(sized).collect(), &raw.concat());
        assert_eq!(as_bytes, expected.concat(), "{name} as binary data");
    }
}

/// The bytes of a program's outputs, without a server.
fn expected(name: &str, inputs: &[(&pteron_serve::TensorSpec, &Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut module = pteron::open(common::testdata(&format!("corpus/tiny/dtype_{name}/model.pte"))).unwrap();
    let tensor = |(spec, bytes): &(&pteron_serve::TensorSpec, &Vec<u8>)| {
        let order = DimOrder::contiguous(spec.bounds.len());
        let mut tensor =
            pteron::Tensor::zeros(TensorMeta::new(spec.dtype, &spec.bounds, order).unwrap()).unwrap();
        tensor.view_mut().bytes_mut().copy_from_slice(bytes);
        tensor.into()
    };
    let outputs = module.forward(&inputs.iter().map(tensor).collect::<Vec<_>>()).unwrap();
    outputs.iter().map(|output| output.as_tensor().unwrap().bytes().to_vec()).collect()
}

/// Options under which one request waits forever for others, and a second one is refused.
fn waiting(options: &mut ServiceOptions) {
    (options.max_batch, options.batch_delay, options.deadline, options.max_queue) = (9, FOREVER, FOREVER, 1);
}

#[test]
fn a_call_ends_at_its_deadline() {
    let fixture = Fixture::with(Folder::with_mlp(), waiting, |_| ());
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        let late = channel.call("ModelInfer", &mlp(1, 0, true), &[("grpc-timeout", "2m")]).await;
        assert_eq!(late.code, 4, "{late:?}");
        let mut message = mlp(1, 0, true);
        let timeout = Parameter { int64: Some(2000), uint64: None };
        message.parameters = HashMap::from([("timeout".to_owned(), timeout)]);
        // The earlier of both deadlines counts.
        let late = channel.call("ModelInfer", &message, &[("grpc-timeout", "1H")]).await;
        assert_eq!(late.code, 4, "{late:?}");
        until(&fixture.service, "pteron_waiting_requests 0\n");
        assert!(fixture.service.metrics().contains("outcome=\"ok\"} 0\n"));
        // A full batch does not wait.
        assert_eq!(channel.call("ModelInfer", &mlp(9, 0, true), &[("grpc-timeout", "1H")]).await.code, 0);
    });
}

#[test]
fn a_client_that_disconnects_leaves_the_queue() {
    let fixture = Fixture::with(Folder::with_mlp(), waiting, |_| ());
    block_on(async {
        let mut other = Channel::open(fixture.address).await;
        // Once by resetting the stream, once by closing the connection.
        for resets in [true, false] {
            let mut channel = Channel::open(fixture.address).await;
            let response = channel.start("ModelInfer", &mlp(1, 0, true), &[]).await;
            until(&fixture.service, "pteron_waiting_requests 1\n");
            let busy = other.call("ModelInfer", &mlp(1, 1, true), &[]).await;
            assert!(busy.code == 8 && busy.text.contains("try again later"), "{busy:?}");
            match resets {
                true => drop(response),
                false => channel.driver.abort(),
            }
            until(&fixture.service, "pteron_waiting_requests 0\n");
            until(&fixture.service, "pteron_held_bytes 0\n");
        }
        assert_eq!(other.call("ModelInfer", &mlp(9, 1, true), &[]).await.code, 0);
    });
}

#[test]
fn calls_of_one_connection_are_batched() {
    let delay = |options: &mut ServiceOptions| {
        (options.max_batch, options.batch_delay, options.deadline) = (8, FOREVER, FOREVER);
    };
    let fixture = Fixture::with(Folder::with_mlp(), delay, |_| ());
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        let mut calls = Vec::new();
        for seed in 0..4 {
            calls.push(channel.start("ModelInfer", &mlp(2, seed, true), &[]).await);
        }
        for (seed, call) in calls.into_iter().enumerate() {
            let mut body = call.await.unwrap().into_body();
            let message = body.data().await.unwrap().unwrap();
            let response = <InferResponse as prost::Message>::decode(&message[5..]).unwrap();
            let expected = bytes(&expected_of_mlp(2, seed));
            assert_eq!(response.raw_output_contents[0].len(), expected.len());
        }
        let metrics = fixture.service.metrics();
        assert!(metrics.contains("pteron_joined_requests_total{model=\"mlp\",version=\"1\"} 4"), "{metrics}");
    });
}

/// The client answers pings by itself.
#[test]
fn an_idle_connection_is_closed_although_it_answers_pings() {
    let short = Duration::from_millis(100);
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.head_timeout = short);
    block_on(async {
        let silent = Channel::open(fixture.address).await;
        silent.driver.await.unwrap();
        // A request in time keeps it open for as long again.
        let mut used = Channel::open(fixture.address).await;
        for seed in 0..4 {
            tokio::time::sleep(short / 2).await;
            assert_eq!(used.call("ModelInfer", &mlp(2, seed, true), &[]).await.code, 0);
        }
        used.driver.await.unwrap();
    });
}

/// A client that opens no window for a response keeps it, and its share of the budget, until the connection is closed.
#[test]
fn a_response_that_is_not_accepted_is_dropped() {
    let short = Duration::from_millis(100);
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.write_timeout = short);
    block_on(async {
        let stream = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
        let mut builder = h2::client::Builder::new();
        let (send, connection) =
            builder.initial_window_size(0).handshake::<_, bytes::Bytes>(stream).await.unwrap();
        let driver = tokio::spawn(async move { drop(connection.await) });
        let mut channel = Channel { send, driver };
        let response = channel.start("ModelInfer", &mlp(2, 0, true), &[]).await.await.unwrap();
        assert!(!fixture.service.metrics().contains("pteron_held_bytes 0\n"));
        channel.driver.await.unwrap();
        drop(response);
    });
    until(&fixture.service, "pteron_held_bytes 0\n");
}

#[derive(Clone, PartialEq, prost::Message)]
struct Live {
    #[prost(bool, tag = "1")]
    yes: bool,
}

#[test]
fn probes_are_answered_when_requests_hold_all_memory() {
    let fixture = Fixture::with(Folder::with_mlp(), |service| service.max_bytes = 4000, |_| ());
    let mut held = fixture.service.hold();
    held.grow(4000).unwrap();
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        for method in ["ServerLive", "ServerReady"] {
            assert!(channel.call(method, &(), &[]).await.read::<Live>().yes, "{method}");
        }
        let name = ModelName { name: "mlp".to_owned() };
        assert_ne!(channel.call("ModelReady", &name, &[]).await.code, 0);
    });
}
