//! Hostile clients: malformed requests, and limits on the memory and time that clients can take.

mod common;

use common::socket::{Fixture, Response, mlp_request, until};
use common::{FOREVER, Folder};
use pteron_serve::net::ServerOptions;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The bytes that requests hold.
fn reservation(fixture: &Fixture) -> u64 {
    let metrics = fixture.service.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix("pteron_held_bytes "));
    line.unwrap().parse().unwrap()
}

fn infer(fixture: &Fixture, body: &str) -> Response {
    fixture.send("POST", "/v2/models/mlp/infer", "", body.as_bytes())
}

/// A request in which one field of the input is replaced.
fn changed(key: &str, value: Value) -> String {
    let mut body = mlp_request(2, 0);
    body["inputs"][0][key] = value;
    body.to_string()
}

#[test]
fn names_are_not_interpreted_as_paths() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.allow_control = true);
    std::fs::create_dir(fixture.folder.0.join("inside")).unwrap();
    fixture.folder.copy("dynamic/mlp/model.pte", "inside/1/mlp.pte");
    let request = mlp_request(2, 0).to_string();
    for name in [
        "..",
        ".",
        "../mlp",
        "..%2fmlp",
        "%2e%2e",
        "mlp.pte",
        "mlp%00",
        "inside%2f1",
        "inside/1",
        "%2fetc%2fpasswd",
        "..\\mlp",
        "MLP",
        "mlp%20",
        "ml%70",
    ] {
        for (method, rest) in [("GET", ""), ("GET", "/ready"), ("POST", "/infer"), ("GET", "/versions/1")] {
            let path = format!("/v2/models/{name}{rest}");
            fixture.send(method, &path, "", request.as_bytes()).error(404);
        }
        fixture.send("POST", &format!("/v2/repository/models/{name}/load"), "", b"").error(404);
    }
    for version in ["0", "2", "-1", "1.0", "..", "18446744073709551616", "one", "%31"] {
        fixture.get(&format!("/v2/models/mlp/versions/{version}")).error(404);
    }
    assert_eq!(infer(&fixture, &mlp_request(2, 0).to_string()).status, 200);
}

#[test]
fn hostile_shapes_and_types_are_refused() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.max_body = 4 << 20);
    for (key, value, message) in [
        ("shape", json!([0, 12]), "more elements than the shape has"),
        ("shape", json!([2, 13]), "24 elements, the shape has 26"),
        ("shape", json!([24]), "shape [9, 12]"),
        ("shape", json!([2, 12, 1]), "shape [9, 12]"),
        ("shape", json!([10, 12]), "24 elements"),
        ("shape", json!([u64::MAX, u64::MAX]), "64 bits"),
        ("shape", json!([0, u64::MAX, u64::MAX]), "more elements"),
        ("shape", json!([1.5, 12]), "no inference request"),
        ("shape", json!(vec![1; 65]), "at most 64 items"),
        ("datatype", json!("FP64"), "FP32 is expected, FP64 was sent"),
        ("datatype", json!("fp32"), "no datatype"),
        ("datatype", json!("x".repeat(100_000)), "no datatype"),
        ("name", json!("input_1"), "there is no input `input_1`; the model has `input_0`"),
        ("name", json!("x".repeat(100_000)), "there is no input"),
        ("data", json!("text"), "data: "),
        ("data", json!({ "a": 1 }), "data: "),
        ("data", json!(vec![1e300; 24]), "1e300 is no float32"),
        ("data", json!([[[[]]]]), "fewer elements"),
    ] {
        let error = infer(&fixture, &changed(key, value.clone())).error(400);
        assert!(error.contains(message) && error.len() < 1000, "{key} {value:.99}: {error:.999}");
    }
    let mut twice = mlp_request(2, 0);
    let input = twice["inputs"][0].clone();
    twice["inputs"].as_array_mut().unwrap().push(input);
    assert!(infer(&fixture, &twice.to_string()).error(400).contains("2 inputs were sent"));
    let mut unknown = mlp_request(2, 0);
    unknown["outputs"] = json!([{ "name": "output_1" }]);
    assert!(infer(&fixture, &unknown.to_string()).error(400).contains("no output `output_1`"));
    // Lists whose parsed items take more memory than their text.
    let input = r#"{"name":"","shape":[],"datatype":"FP32","data":0}"#;
    let many = format!("{{\"inputs\":[{}]}}", vec![input; 5000].join(","));
    assert!(infer(&fixture, &many).error(400).contains("at most 4096 items"));
    let sizes = format!("[{}]", vec!["1"; 1 << 20].join(","));
    let long = format!("{{\"inputs\":[{{\"name\":\"\",\"datatype\":\"FP32\",\"shape\":{sizes}}}]}}");
    assert!(infer(&fixture, &long).error(400).contains("at most 64 items"));
    let index = |body: &str| fixture.send("POST", "/v2/repository/index", "", body.as_bytes());
    assert!(index(&format!("[{}0]", "0,".repeat(100_000))).error(413).contains("larger than 65536 bytes"));
    assert!(index("[").error(400).contains("the body"));
    assert_eq!(index(r#"{"ready": true}"#).json().as_array().unwrap().len(), 1);
    assert_eq!(infer(&fixture, &mlp_request(2, 0).to_string()).status, 200);
}

#[test]
fn heads_and_bodies_are_limited() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.max_body = 10_000);
    let head = |headers: &str| fixture.send("GET", "/v2/health/live", headers, b"").status;
    assert_eq!(head(&format!("x-large: {}\r\n", "x".repeat(30_000))), 200);
    assert_eq!(head(&format!("x-large: {}\r\n", "x".repeat(100_000))), 431);
    let many: String = (0..1000).map(|i| format!("x-{i}: 1\r\n")).collect();
    assert_eq!(head(&many), 431);
    let path = fixture.send("GET", &format!("/{}", "x".repeat(60_000)), "", b"");
    assert!(path.status == 404 && path.body.len() < 1000);
    assert!([414, 431].contains(&fixture.send("GET", &format!("/{}", "x".repeat(100_000)), "", b"").status));

    // A chunked body does not declare its length: it is read up to the limit.
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.write_all(b"POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..100 {
        // The server answers and closes the connection before everything has been sent.
        if stream.write_all(&[b"3e8\r\n", &b" ".repeat(1000)[..], b"\r\n"].concat()).is_err() {
            break;
        }
    }
    assert!(Response::read(&mut stream).error(413).contains("larger than 10000 bytes"));
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    let body = mlp_request(2, 0).to_string();
    let (left, right) = body.split_at(body.len() / 2);
    let chunks = format!("{:x}\r\n{left}\r\n{:x}\r\n{right}\r\n0\r\n\r\n", left.len(), right.len());
    let head = "POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all((head.to_owned() + &chunks).as_bytes()).unwrap();
    assert_eq!(Response::read(&mut stream).status, 200);
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.write_all((head.to_owned() + "ffffffffffffffffff\r\n").as_bytes()).unwrap();
    assert_eq!(Response::read(&mut stream).status, 400);
    for length in ["-1", "99999999999999999999", "1, 2"] {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        write!(
            stream,
            "POST /v2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        )
        .unwrap();
        assert_eq!(Response::read(&mut stream).status, 400, "{length}");
    }
    // A declared length that is too large is refused before the body arrives.
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.write_all(b"POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 10001\r\n\r\n").unwrap();
    assert_eq!(Response::read(&mut stream).status, 413);
}

#[test]
fn bodies_share_a_memory_budget() {
    let fixture = Fixture::with(
        Folder::with_mlp(),
        |service| service.max_bytes = 100_000,
        |server| (server.max_body, server.body_timeout) = (60_000, FOREVER),
    );
    let head =
        "POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 60000\r\n\r\n";
    let mut first = TcpStream::connect(fixture.address).unwrap();
    first.write_all((head.to_owned() + &" ".repeat(59_999)).as_bytes()).unwrap();
    // What is allocated for a body is charged, at most its declared size.
    while !(59_999..=60_000).contains(&reservation(&fixture)) {
        std::thread::yield_now();
    }
    let mut second = TcpStream::connect(fixture.address).unwrap();
    second.write_all((head.to_owned() + &" ".repeat(59_999)).as_bytes()).unwrap();
    assert!(Response::read(&mut second).error(429).contains("try again later"));
    assert_eq!(infer(&fixture, &mlp_request(2, 0).to_string()).status, 200);
    drop(first);
    until(&fixture.service, "pteron_held_bytes 0\n");
}

/// Hundreds of silent or slow connections: requests are answered meanwhile, and `reclaim` is called when they are closed.
#[test]
fn many_idle_connections_do_not_block_requests() {
    const EACH: usize = 60;
    static RECLAIMED: AtomicUsize = AtomicUsize::new(0);
    let patient = |options: &mut ServerOptions| {
        (options.max_connections, options.head_timeout, options.body_timeout) =
            (5 * EACH + 2, FOREVER, FOREVER);
        options.reclaim = Some(|| {
            RECLAIMED.fetch_add(1, Ordering::Relaxed);
        });
    };
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), patient);
    let beginnings: [&[u8]; 5] = [
        b"",
        b"POST /v2/models/mlp/inf",
        b"POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    let mut slow = Vec::new();
    for i in 0..5 * EACH {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.write_all(beginnings[i % 5]).unwrap();
        slow.push(stream);
        if i % 10 == 0 {
            assert_eq!(infer(&fixture, &mlp_request(1, i).to_string()).status, 200);
        }
    }
    let connections = || {
        let metrics = String::from_utf8(fixture.get("/metrics").body).unwrap();
        let line = metrics.lines().find(|line| line.starts_with("pteron_connections ")).unwrap().to_owned();
        line.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    while connections() < 5 * EACH + 1 {
        std::thread::yield_now();
    }
    assert_eq!(RECLAIMED.load(Ordering::Relaxed), 0);
    drop(slow);
    while connections() > 1 || RECLAIMED.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    until(&fixture.service, "pteron_held_bytes 0\n");
    assert_eq!(infer(&fixture, &mlp_request(9, 1).to_string()).status, 200);
}

/// A connection above the limit is closed. When another ends, a new one is accepted.
#[test]
fn connections_above_the_limit_are_closed() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.max_connections = 1);
    let mut first = TcpStream::connect(fixture.address).unwrap();
    let ask = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n";
    first.write_all(ask).unwrap();
    let mut answer = [0; 12];
    first.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let mut second = TcpStream::connect(fixture.address).unwrap();
    let _ = second.write_all(ask);
    let mut nothing = Vec::new();
    let _ = second.read_to_end(&mut nothing);
    assert!(nothing.is_empty());
    drop(first);
    while TcpStream::connect(fixture.address)
        .and_then(|mut stream| {
            stream.write_all(ask)?;
            stream.read_exact(&mut answer)
        })
        .is_err()
    {
        std::thread::yield_now();
    }
}

#[test]
fn a_model_can_have_many_versions() {
    let folder = Folder::new();
    for version in 1..=100 {
        folder.copy("dynamic/mlp/model.pte", &format!("mlp/{version}/model.pte"));
    }
    // Folder names that are not version numbers.
    for other in ["01", "+5", "latest", "-1", "99999999999999999999999"] {
        folder.copy("dynamic/mlp/model.pte", &format!("mlp/{other}/model.pte"));
    }
    let fixture = Fixture::new(folder);
    let metadata = fixture.get("/v2/models/mlp").json();
    assert_eq!(metadata["versions"].as_array().unwrap().len(), 100);
    for version in ["1", "57", "100"] {
        let path = format!("/v2/models/mlp/versions/{version}/infer");
        assert_eq!(fixture.post(&path, &mlp_request(2, 0)).json()["model_version"], version);
    }
    assert_eq!(fixture.post("/v2/models/mlp/infer", &mlp_request(2, 0)).json()["model_version"], "100");
    fixture.get("/v2/models/mlp/versions/101").error(404);
}

/// Bodies that no request needs are not read, nor those of requests without the token: they take nothing of the budget.
#[test]
fn bodies_are_charged_only_to_requests_that_may_be_made() {
    let fixture = Fixture::with(
        Folder::with_mlp(),
        |_| (),
        |server| (server.token, server.body_timeout) = (Some("secret".to_owned()), FOREVER),
    );
    let stalled = |path: &str, headers: &str, sent: usize| {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.write_all(&vec![b' '; sent]);
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        (String::from_utf8(answer[9..].to_vec()).unwrap(), stream)
    };
    let grpc = "content-type: application/grpc\r\n";
    for (path, headers, status) in [
        ("/v2/health/live", "", "401"),
        ("/v2/models/mlp/infer", "", "401"),
        ("/inference.GRPCInferenceService/ModelInfer", grpc, "200"),
        // A health check over gRPC has a small body.
        ("/grpc.health.v1.Health/Check", grpc, "200"),
        ("/v2/models/nlp/infer", "authorization: Bearer secret\r\n", "404"),
        ("/v2/repository/models/mlp/load", "authorization: Bearer secret\r\n", "403"),
    ] {
        for sent in [0, 50_000] {
            let (found, _stream) = stalled(path, headers, sent);
            assert_eq!((found.as_str(), reservation(&fixture)), (status, 0), "{path}");
        }
    }
    // A client that sends a little too much gets its answer, on a connection that it can use again.
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    let ask = |connection: &str| {
        format!(
            "GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\ncontent-length: 40000\r\n\r\n"
        )
    };
    for connection in ["keep-alive", "close"] {
        stream.write_all((ask(connection) + &" ".repeat(40_000)).as_bytes()).unwrap();
    }
    let mut answers = String::new();
    let _ = stream.read_to_string(&mut answers);
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
}

#[test]
fn optional_fields_may_be_null() {
    let fixture = Fixture::new(Folder::with_mlp());
    let mut body = mlp_request(2, 0);
    for field in ["id", "parameters", "outputs"] {
        body[field] = Value::Null;
    }
    body["inputs"][0]["parameters"] = Value::Null;
    assert_eq!(fixture.post("/v2/models/mlp/infer", &body).status, 200);
    body["outputs"] = json!([{ "name": "output_0", "parameters": null }]);
    body["parameters"] = json!({
        "binary_data_output": null, "timeout": null, "classification": null, "shared_memory_region": null, "other": null,
    });
    body["inputs"][0]["parameters"] = json!({ "binary_data_size": null, "binary_data": null });
    assert_eq!(fixture.post("/v2/models/mlp/infer", &body).status, 200);
    for index in ["null", r#"{"ready": null}"#, r#"{"ready": null, "parameters": null}"#] {
        assert_eq!(fixture.send("POST", "/v2/repository/index", "", index.as_bytes()).status, 200);
    }
    for required in ["name", "shape", "datatype"] {
        let mut without = body.clone();
        without["inputs"][0][required] = Value::Null;
        assert_eq!(fixture.post("/v2/models/mlp/infer", &without).status, 400, "{required}");
    }
    let config = r#"{"method": null, "inputs": null, "outputs": null, "max_batch": null}"#;
    fixture.folder.copy("dynamic/mlp/model.pte", "other/model.pte");
    std::fs::write(fixture.folder.0.join("other/pteron.json"), config).unwrap();
    assert_eq!(fixture.service.load("other"), Ok(()));
}

/// A document whose texts and lists are charged before they are built.
#[test]
fn every_response_is_charged() {
    let fixture = Fixture::with(Folder::with_mlp(), |service| service.max_bytes = 400, |_| ());
    for path in ["/metrics", "/v2/models/mlp"] {
        assert!(fixture.get(path).error(413).contains("hold at most 400 bytes"), "{path}");
    }
    assert_eq!(fixture.get("/v2/health/ready").status, 200);
    assert_eq!(reservation(&fixture), 0);
}
