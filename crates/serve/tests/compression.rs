//! Compressed requests and responses, over REST and gRPC.

mod common;

use common::call::{Channel, InferRequest, InferResponse, Tensor, block_on, framed};
use common::socket::{Fixture, Response, mlp_request};
use common::{Folder, assert_close, expected_of_mlp, request};
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use prost::Message;
use std::io::{Read, Write};

fn compress(coding: &str, bytes: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        _ => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
    }
}

fn decompress(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => GzDecoder::new(bytes).read_to_end(&mut out).unwrap(),
        _ => ZlibDecoder::new(bytes).read_to_end(&mut out).unwrap(),
    };
    out
}

fn infer(fixture: &Fixture, headers: &str, body: &[u8]) -> Response {
    fixture.send("POST", "/v2/models/mlp/infer", headers, body)
}

fn floats_of(response: &serde_json::Value) -> Vec<f32> {
    let numbers = response["outputs"][0]["data"].as_array().unwrap();
    numbers.iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn bodies_of_rest_are_compressed() {
    let fixture = Fixture::new(Folder::with_mlp());
    let body = mlp_request(9, 3).to_string();
    for coding in ["gzip", "deflate"] {
        let headers = format!("content-encoding: {coding}\r\n");
        let response = infer(&fixture, &headers, &compress(coding, body.as_bytes()));
        // The response is small, and the client accepts no compression.
        assert!(!response.head.contains("content-encoding"), "{}", response.head);
        assert_close(&floats_of(&response.json()), &expected_of_mlp(9, 3));
        let headers = format!("accept-encoding: br, {coding}\r\n");
        let metrics = fixture.send("GET", "/metrics", &headers, b"");
        assert!(metrics.head.contains(&format!("content-encoding: {coding}")), "{}", metrics.head);
        assert!(metrics.head.contains("vary: accept-encoding"), "{}", metrics.head);
        let text = String::from_utf8(decompress(coding, &metrics.body)).unwrap();
        assert!(text.contains("pteron_requests_total") && metrics.body.len() * 2 < text.len());
    }
    let plain = fixture.get("/metrics");
    assert!(plain.head.contains("vary: accept-encoding") && !plain.head.contains("content-encoding"));
}

#[test]
fn binary_tensors_are_compressed() {
    let fixture = Fixture::new(Folder::with_mlp());
    let input = &request("mlp", &[9, 12], 5).inputs[0];
    let json = r#"{"inputs": [{"name": "input_0", "datatype": "FP32", "shape": [9, 12],
        "parameters": {"binary_data_size": 432}}], "parameters": {"binary_data_output": true}}"#;
    let body = [json.as_bytes(), (*input.data).as_ref()].concat();
    let headers = format!("inference-header-content-length: {}\r\ncontent-encoding: gzip\r\n", json.len());
    let response = infer(&fixture, &headers, &compress("gzip", &body));
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    let found = response.body[response.body.len() - 108..].chunks_exact(4);
    let found: Vec<f32> = found.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_close(&found, &expected_of_mlp(9, 5));
}

#[test]
fn bombs_and_other_codings_are_refused() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.max_body = 1 << 20);
    let bomb = compress("gzip", &vec![b' '; 8 << 20]);
    assert!(bomb.len() < 1 << 20);
    let gzip = "content-encoding: gzip\r\n";
    assert!(infer(&fixture, gzip, &bomb).error(413).contains("larger than 1048576 bytes"));
    assert!(infer(&fixture, gzip, b"{}").error(400).contains("no valid gzip data"));
    assert!(infer(&fixture, gzip, b"").error(400).contains("no valid gzip data"));
    assert!(infer(&fixture, "content-encoding: br\r\n", b"").error(501).contains("`br` is not supported"));
    assert!(infer(&fixture, "content-encoding: gzip, gzip\r\n", b"").error(501).contains("not supported"));
    let index = |body: &[u8]| fixture.send("POST", "/v2/repository/index", gzip, body);
    assert_eq!(index(&compress("gzip", b"{\"ready\": true}")).json().as_array().unwrap().len(), 1);
    index(&compress("gzip", &vec![b' '; 65 << 10])).error(413);
    let body = mlp_request(1, 0).to_string();
    assert_eq!(infer(&fixture, "content-encoding: identity\r\n", body.as_bytes()).status, 200);
}

/// The gRPC form of [`request`] for `mlp`, with a name of an output that makes the response long.
fn mlp(rows: usize, seed: usize) -> Vec<u8> {
    let input = &request("mlp", &[rows, 12], seed).inputs[0];
    let tensor = Tensor {
        name: "input_0".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![i64::try_from(rows).unwrap(), 12],
        contents: None,
    };
    let message = InferRequest {
        model_name: "mlp".to_owned(),
        // The response has the request's id.
        id: "a".repeat(4000),
        inputs: vec![tensor],
        raw_input_contents: vec![(*input.data).as_ref().to_vec()],
        ..InferRequest::default()
    };
    message.encode_to_vec()
}

#[test]
fn messages_of_grpc_are_compressed() {
    let fixture = Fixture::new(Folder::with_mlp());
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        for coding in ["gzip", "deflate"] {
            let headers = [("grpc-encoding", coding), ("grpc-accept-encoding", "identity,deflate,gzip")];
            let body = framed(1, &compress(coding, &mlp(2, 7)));
            let (flag, head, answer) = channel.exchange("ModelInfer", body, &headers).await;
            assert_eq!((answer.code, flag), (0, 1), "{}", answer.text);
            assert_eq!(head["grpc-encoding"], coding);
            assert_eq!(head["grpc-accept-encoding"], "identity,deflate,gzip");
            let message = decompress(coding, &answer.message);
            assert!(answer.message.len() < message.len());
            let response = InferResponse::decode(&message[..]).unwrap();
            let found = response.raw_output_contents[0].chunks_exact(4);
            let found: Vec<f32> = found.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            assert_close(&found, &expected_of_mlp(2, 7));
            // A message may be sent as it is, and a client that compresses nothing gets nothing compressed.
            let (flag, _, answer) = channel.exchange("ModelInfer", framed(0, &mlp(2, 7)), &headers).await;
            assert_eq!((answer.code, flag), (0, 1));
            let (flag, head, answer) =
                channel.exchange("ModelInfer", framed(0, &mlp(2, 7)), &headers[1..]).await;
            assert_eq!((answer.code, flag, head.get("grpc-encoding")), (0, 0, None));
        }
    });
}

#[test]
fn bombs_and_other_codings_of_grpc_are_refused() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.max_body = 1 << 20);
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        let gzip = [("grpc-encoding", "gzip")];
        let bomb = compress("gzip", &vec![0; 8 << 20]);
        let packed = compress("gzip", &mlp(1, 0));
        for (body, headers, code, text) in [
            (framed(1, &bomb), &gzip[..], 8, "larger than 1048576 bytes"),
            (framed(1, b"none"), &gzip, 3, "no valid gzip data"),
            (framed(1, &packed), &[], 3, "does not say how"),
            (framed(2, &packed), &gzip, 3, "neither 0 nor 1"),
            (framed(1, &packed), &[("grpc-encoding", "br")], 12, "`br` is not supported"),
            (framed(1, &packed[..packed.len() - 10]), &gzip, 3, "no valid gzip data"),
        ] {
            let (_, head, answer) = channel.exchange("ModelInfer", body, headers).await;
            assert!(answer.code == code && answer.text.contains(text), "{}: {}", answer.code, answer.text);
            assert_eq!(head["grpc-accept-encoding"], "identity,deflate,gzip");
        }
        // A model's metadata takes a message of at most 64 KiB.
        let zeros = framed(1, &compress("gzip", &vec![0; 1 << 20]));
        assert_eq!(channel.exchange("ModelMetadata", zeros, &gzip).await.2.code, 8);
        let (_, _, answer) = channel.exchange("ModelInfer", framed(1, &packed), &gzip).await;
        assert_eq!(answer.code, 0, "{}", answer.text);
    });
}
