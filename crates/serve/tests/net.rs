//! The protocols over loopback, including malformed requests, and clients that are slow or disconnect.

mod common;

use common::socket::{Fixture, Response, mlp_request, until};
use common::{FOREVER, Folder, assert_close, bytes, expected_of_mlp};
use pteron::Program;
use pteron::tools::edit::set_task;
use pteron::tools::file::Progress;
use pteron::tools::task::TaskMetadata;
use pteron_serve::ServiceOptions;
use pteron_serve::net::{RequestLog, Server, ServerOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn metadata_has_the_task_that_the_program_stores() {
    let folder = Folder::with_mlp();
    let path = folder.0.join("mlp.pte");
    let task = json!({ "version": 1, "labels": ["a", "b", "c"], "license": "MIT" });
    let parsed = TaskMetadata::parse(&task.to_string()).unwrap();
    let set = set_task(&Program::open(&path).unwrap(), parsed, &Progress::default()).unwrap();
    std::fs::write(&path, set.program.to_vec().unwrap()).unwrap();
    let fixture = Fixture::new(folder);
    assert_eq!(fixture.get("/v2/models/mlp").json()["parameters"], task);
}

#[test]
fn rest_follows_the_protocol() {
    let fixture = Fixture::new(Folder::with_mlp());
    for path in
        ["/v2/health/live", "/v2/health/ready", "/v2/models/mlp/ready", "/v2/models/mlp/versions/1/ready"]
    {
        assert_eq!(fixture.get(path).status, 200, "{path}");
    }
    assert_eq!(fixture.get("/v2").json()["name"], "pteron");
    let tensor = |name, shape| json!([{ "name": name, "datatype": "FP32", "shape": shape }]);
    assert_eq!(
        fixture.get("/v2/models/mlp").json(),
        json!({
            "name": "mlp", "versions": ["1"], "platform": "pteron_pte",
            "inputs": tensor("input_0", [-1, -1]), "outputs": tensor("output_0", [-1, -1]),
        })
    );
    let mut body = mlp_request(2, 7);
    body["id"] = "abc".into();
    let response = fixture.post("/v2/models/mlp/versions/1/infer", &body).json();
    assert_eq!((&response["id"], &response["model_version"]), (&json!("abc"), &json!("1")));
    assert_eq!(response["outputs"][0]["shape"], json!([2, 3]));
    let numbers = response["outputs"][0]["data"].as_array().unwrap();
    let found: Vec<f32> = numbers.iter().map(|x| x.as_f64().unwrap() as f32).collect();
    assert_close(&found, &expected_of_mlp(2, 7));
    let metrics = String::from_utf8(fixture.get("/metrics").body).unwrap();
    assert!(
        metrics.contains("outcome=\"ok\"} 1\n") && metrics.contains("pteron_connections 1\n"),
        "{metrics}"
    );
}

#[test]
fn configuration_and_statistics_are_those_of_triton() {
    let fixture = Fixture::new(Folder::with_mlp());
    let extensions = fixture.get("/v2").json()["extensions"].clone();
    for extension in ["model_configuration", "statistics"] {
        assert!(extensions.as_array().unwrap().contains(&extension.into()), "{extensions}");
    }
    let tensor = |name| json!([{ "name": name, "data_type": "TYPE_FP32", "dims": [-1, -1] }]);
    assert_eq!(
        fixture.get("/v2/models/mlp/config").json(),
        json!({
            "name": "mlp", "platform": "pteron_pte", "backend": "pteron", "max_batch_size": 0,
            "input": tensor("input_0"), "output": tensor("output_0"),
        })
    );
    for seed in 0..3 {
        assert_eq!(fixture.post("/v2/models/mlp/infer", &mlp_request(1, seed)).status, 200);
    }
    fixture.post("/v2/models/mlp/infer", &json!({ "inputs": [] })).error(400);
    let stats = fixture.get("/v2/models/mlp/versions/1/stats").json();
    for path in ["/v2/models/mlp/stats", "/v2/models/stats"] {
        assert_eq!(fixture.get(path).json(), stats, "{path}");
    }
    let model = &stats["model_stats"][0];
    assert_eq!((&model["name"], &model["version"]), (&json!("mlp"), &json!("1")));
    assert_eq!((&model["inference_count"], &model["execution_count"]), (&json!(3), &json!(3)));
    assert!(model["last_inference"].as_u64().unwrap() > 1_600_000_000_000);
    let of = |kind: &str, field: &str| model["inference_stats"][kind][field].as_u64().unwrap();
    assert_eq!((of("success", "count"), of("fail", "count")), (3, 1));
    assert_eq!(of("success", "ns"), of("queue", "ns") + of("compute_infer", "ns"));
    fixture.get("/v2/models/mlp/versions/2/stats").error(404);
    fixture.get("/v2/models/other/config").error(404);
}

#[test]
fn a_batched_model_configures_its_batches() {
    let fixture = Fixture::with(Folder::with_mlp(), |service| service.max_batch = 4, |_| ());
    let config = fixture.get("/v2/models/mlp/config").json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(4), &json!([-1])));
}

#[test]
fn the_page_lists_the_models() {
    let fixture = Fixture::new(Folder::with_mlp());
    let page = fixture.get("/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html"), "{}", page.head);
    let text = String::from_utf8(page.body).unwrap();
    assert!(text.contains("<a href=\"/v2/models/mlp/versions/1\">mlp</a>"), "{text}");
}

#[test]
fn only_pages_of_allowed_origins_may_send_requests() {
    let allowed = "https://example.com";
    let fixture = Fixture::with(
        Folder::with_mlp(),
        |_| (),
        |server| {
            server.allowed_origins = vec![allowed.to_owned()];
            server.token = Some("secret".to_owned());
        },
    );
    let ask = |origin: &str| {
        let headers = format!("origin: {origin}\r\naccess-control-request-method: POST\r\n");
        fixture.send("OPTIONS", "/v2/models/mlp/infer", &headers, b"")
    };
    let granted = ask(allowed);
    assert_eq!(granted.status, 204, "{}", granted.head);
    for header in [
        "access-control-allow-origin: https://example.com",
        "access-control-allow-methods: get, post",
        "authorization",
    ] {
        assert!(granted.head.contains(header), "{}", granted.head);
    }
    assert!(!ask("https://other.example").head.contains("access-control"));
    let get = |origin: &str| {
        fixture.send("GET", "/v2", &format!("origin: {origin}\r\nauthorization: Bearer secret\r\n"), b"")
    };
    assert!(get(allowed).head.contains("access-control-allow-origin: https://example.com"));
    assert!(!get("https://other.example").head.contains("access-control"));
    // Pages can read errors, too.
    let refused = fixture.send("GET", "/v2", &format!("origin: {allowed}\r\n"), b"");
    assert!(
        refused.status == 401 && refused.head.contains("access-control-allow-origin"),
        "{}",
        refused.head
    );
}

#[test]
fn the_log_names_the_trace_of_a_request() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let fixture = Fixture::with(
        Folder::with_mlp(),
        |_| (),
        |server| server.log = Some(Arc::new(move |line| log.lock().unwrap().push(line.clone()))),
    );
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for header in [trace, "00-4bf92f35", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"] {
        fixture.send("GET", "/v2", &format!("traceparent: {header}\r\n"), b"");
    }
    let traces =
        || lines.lock().unwrap().iter().map(|line: &RequestLog| line.traceparent.clone()).collect::<Vec<_>>();
    while traces().len() < 3 {
        std::thread::yield_now();
    }
    assert_eq!(traces(), [Some(trace.to_owned()), None, None]);
    assert!(lines.lock().unwrap()[0].to_string().ends_with(&format!("traceparent {trace}")));
}

#[test]
fn inputs_and_outputs_are_sent_as_binary_data() {
    let fixture = Fixture::new(Folder::with_mlp());
    let elements: Vec<f32> = (0..24).map(|i| ((i + 31 * 5) as f32 * 0.7).sin()).collect();
    let head = json!({
        "inputs": [{ "name": "input_0", "datatype": "FP32", "shape": [2, 12], "parameters": { "binary_data_size": 96 } }],
        "outputs": [{ "name": "output_0", "parameters": { "binary_data": true } }],
    })
    .to_string();
    let body = [head.as_bytes(), &bytes(&elements)].concat();
    let length = format!("Inference-Header-Content-Length: {}\r\n", head.len());
    let response = fixture.send("POST", "/v2/models/mlp/infer", &length, &body);
    assert_eq!(response.status, 200);
    let at = response.body.len() - 24;
    assert!(response.head.contains(&format!("inference-header-content-length: {at}")));
    let found: Vec<f32> =
        response.body[at..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_close(&found, &expected_of_mlp(2, 5));
    let short = fixture.send("POST", "/v2/models/mlp/infer", &length, &body[..body.len() - 1]);
    assert!(short.error(400).contains("ends before its binary data"));
    let long = fixture.send("POST", "/v2/models/mlp/infer", &length, &[&body[..], b"x"].concat());
    assert!(long.error(400).contains("1 bytes behind the JSON belong to no input"));
}

#[test]
fn invalid_requests_are_errors() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), |server| server.max_body = 10_000);
    let infer = |body: &str| fixture.send("POST", "/v2/models/mlp/infer", "", body.as_bytes());
    for (body, message) in [
        ("", "no inference request"),
        ("{}", "missing field `inputs`"),
        (r#"{"inputs": [{}]}"#, "missing field `name`"),
        (
            r#"{"inputs": [{"name": "input_0", "shape": [1, 12], "datatype": "BYTES", "data": ["x"]}]}"#,
            "no Base64",
        ),
        (
            r#"{"inputs": [{"name": "input_0", "shape": [-1, 12], "datatype": "FP32", "data": []}]}"#,
            "no inference request",
        ),
        (
            r#"{"inputs": [{"name": "input_0", "shape": [18446744073709551615, 12], "datatype": "FP32", "data": []}]}"#,
            "64 bits",
        ),
        (
            r#"{"inputs": [{"name": "input_0", "shape": [1000000, 1000000], "datatype": "FP32", "data": []}]}"#,
            "fewer elements",
        ),
        (
            r#"{"inputs": [{"name": "input_0", "shape": [1, 12], "datatype": "FP32"}]}"#,
            "`data` or the parameter",
        ),
        (
            r#"{"inputs": [{"name": "input_0", "shape": [1, 12], "datatype": "FP32", "parameters": {"binary_data_size": 18446744073709551615}}]}"#,
            "ends before its binary data",
        ),
    ] {
        assert!(infer(body).error(400).contains(message), "{body}: {}", infer(body).error(400));
    }
    assert!(infer(&"[".repeat(9_999)).error(400).contains("no inference request"));
    assert!(infer(&" ".repeat(10_001)).error(413).contains("larger than 10000 bytes"));
    for path in [
        "/index.html",
        "/v2/models/../mlp",
        "/v2/models/%2e%2e%2fmlp/infer",
        "/v2/models/mlp/other",
        "/etc/passwd",
    ] {
        fixture.get(path).error(404);
    }
    let shared = json!({ "inputs": [{
        "name": "input_0", "shape": [1, 12], "datatype": "FP32", "parameters": { "shared_memory_region": "x" },
    }] });
    assert!(fixture.post("/v2/models/mlp/infer", &shared).error(501).contains("shared memory"));
    // Bytes that are not HTTP.
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.write_all(&[0xff; 4096]).unwrap();
    assert_eq!(Response::read(&mut stream).status, 400);
    assert_eq!(fixture.post("/v2/models/mlp/infer", &mlp_request(1, 0)).status, 200);
}

#[test]
fn grpc_reports_status_codes() {
    let fixture = Fixture::new(Folder::with_mlp());
    let live = fixture.call("ServerLive", b"");
    assert!(live.status == 200 && live.body.windows(2).any(|w| w == [8, 1]), "{:?}", live.body);
    let unknown = fixture.call("ModelReady", b"\x0a\x03nlp");
    assert!(unknown.head.contains("grpc-status: 5") && unknown.head.contains("there is no model `nlp`"));
    assert!(fixture.call("Other", b"").head.contains("grpc-status: 12"));
    assert!(fixture.call("ModelInfer", b"\xff\xff\xff").head.contains("grpc-status: 3"));
    let cut = fixture.send(
        "POST",
        "/inference.GRPCInferenceService/ModelInfer",
        "content-type: application/grpc\r\n",
        &[0, 255, 255, 255, 255, 1],
    );
    assert!(cut.head.contains("grpc-status: 3"));
}

#[test]
fn requests_need_the_token() {
    let fixture =
        Fixture::with(Folder::with_mlp(), |_| (), |server| server.token = Some("secret".to_owned()));
    assert!(fixture.get("/v2/models/mlp").error(401).contains("bearer token"));
    assert_eq!(fixture.send("GET", "/v2/models/mlp", "authorization: Bearer secre\r\n", b"").status, 401);
    assert_eq!(fixture.send("GET", "/v2/models/mlp", "authorization: Bearer secret\r\n", b"").status, 200);
    assert_eq!(fixture.get("/v2/health/live").status, 200);
    assert_eq!(fixture.get("/metrics").status, 401);
    assert!(fixture.call("ModelMetadata", b"\x0a\x03mlp").head.contains("grpc-status: 16"));
}

#[test]
fn models_are_loaded_and_unloaded_on_request_if_allowed() {
    let closed = Fixture::new(Folder::with_linear());
    closed.post("/v2/repository/models/linear/unload", &Value::Null).error(403);
    let fixture = Fixture::with(Folder::with_linear(), |_| (), |server| server.allow_control = true);
    let post = |path: &str| fixture.send("POST", path, "", b"");
    let index = || post("/v2/repository/index").json()[0]["state"].clone();
    assert_eq!(index(), "READY");
    assert_eq!(post("/v2/repository/models/linear/unload").status, 200);
    assert_eq!(index(), "UNAVAILABLE");
    fixture.get("/v2/models/linear/ready").error(503);
    assert_eq!(post("/v2/repository/models/linear/load").status, 200);
    assert_eq!((index(), fixture.get("/v2/models/linear/ready").status), (json!("READY"), 200));
    let files = json!({ "parameters": { "file:1/model.pte": "AAAA" } });
    fixture.post("/v2/repository/models/linear/load", &files).error(501);
    post("/v2/repository/models/..%2f..%2fetc/load").error(404);
    let ask = || {
        let body =
            json!({ "inputs": [{ "name": "input_0", "datatype": "FP32", "shape": [3], "data": [1, 2, 3] }] });
        let response = fixture.post("/v2/models/linear/infer", &body).json();
        response["outputs"][0]["data"][0].as_f64().unwrap() as f32
    };
    let before = ask();
    fixture.folder.write_weights(2.0);
    assert_eq!(post("/v2/repository/models/linear/load").status, 200);
    assert_eq!(ask(), before * 2.0);
}

#[test]
fn a_client_that_disconnects_leaves_the_queue() {
    let join = |options: &mut ServiceOptions| {
        (options.max_batch, options.batch_delay, options.deadline, options.max_queue) =
            (9, FOREVER, FOREVER, 1);
    };
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let fixture = Fixture::with(Folder::with_mlp(), join, |server| {
        server.log = Some(Arc::new(move |line| log.lock().unwrap().push(line.outcome)));
    });
    let body = mlp_request(1, 0).to_string();
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    let head =
        format!("POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    until(&fixture.service, "pteron_waiting_requests 1\n");
    let busy = fixture.post("/v2/models/mlp/infer", &mlp_request(1, 1));
    assert!(busy.error(429).contains("try again later") && busy.head.contains("retry-after"));
    drop(stream);
    until(&fixture.service, "pteron_waiting_requests 0\n");
    until(&fixture.service, "pteron_held_bytes 0\n");
    // A request that fills the batch does not wait.
    assert_eq!(fixture.post("/v2/models/mlp/infer", &mlp_request(9, 1)).status, 200);
    let mut outcomes = lines.lock().unwrap().clone();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["busy", "cancelled", "ok"]);
}

#[test]
fn a_request_ends_at_its_deadline() {
    let join = |options: &mut ServiceOptions| {
        (options.max_batch, options.batch_delay, options.deadline) = (9, FOREVER, FOREVER);
    };
    let fixture = Fixture::with(Folder::with_mlp(), join, |_| ());
    let mut body = mlp_request(1, 0);
    body["parameters"] = json!({ "timeout": 1000 });
    fixture.post("/v2/models/mlp/infer", &body).error(504);
    assert!(fixture.service.metrics().contains("pteron_waiting_requests 0\n"));
}

#[test]
fn too_many_slow_clients_do_not_block_others() {
    let short = Duration::from_millis(50);
    let fixture = Fixture::with(
        Folder::with_mlp(),
        |_| (),
        |server| {
            (server.max_connections, server.head_timeout, server.body_timeout) = (8, short, short);
        },
    );
    let mut slow: Vec<_> = (0..40).map(|_| TcpStream::connect(fixture.address).unwrap()).collect();
    for (i, stream) in slow.iter_mut().enumerate() {
        let part: &[u8] = match i % 3 {
            0 => b"",
            1 => b"POST /v2/models/mlp/inf",
            _ => b"POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{",
        };
        let _ = stream.write_all(part);
    }
    // The server closes all of them.
    for stream in &mut slow {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    until(&fixture.service, "pteron_held_bytes 0\n");
    let ok = || {
        TcpStream::connect(fixture.address).is_ok()
            && fixture.post("/v2/models/mlp/infer", &mlp_request(1, 0)).status == 200
    };
    assert!(ok());
}

#[test]
fn stopping_answers_waiting_requests() {
    let join = |options: &mut ServiceOptions| {
        (options.max_batch, options.batch_delay, options.deadline) = (9, FOREVER, FOREVER);
    };
    let folder = Folder::with_mlp();
    let mut fixture = Fixture::with(folder, join, |_| ());
    let address = fixture.address;
    let client = std::thread::spawn(move || {
        let body = mlp_request(1, 0).to_string();
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        Response::read(&mut stream).status
    });
    until(&fixture.service, "pteron_waiting_requests 1\n");
    fixture.server.take().unwrap().stop();
    assert_eq!(client.join().unwrap(), 200);
    assert!(TcpStream::connect(address).is_err());
    let restarted = ServerOptions { listen: vec![([127, 0, 0, 1], 0).into()], ..ServerOptions::default() };
    fixture.server = Some(Server::start(Arc::clone(&fixture.service), restarted).unwrap());
}
