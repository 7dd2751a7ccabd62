//! Models that are loaded by their first request, and let go.

mod common;

use common::call::{Channel, block_on};
use common::socket::{Fixture, mlp_request};
use common::{Folder, request};
use pteron_serve::{Event, Events, OnDemand, Reason, Service, ServiceOptions};
use serde_json::json;
use std::fs;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Three models of the same size.
fn three() -> Folder {
    let folder = Folder::new();
    for name in ["a", "b", "c"] {
        folder.copy("dynamic/mlp/model.pte", &format!("{name}.pte"));
    }
    folder
}

/// A service that loads models on demand, and a function that takes a word for each event so far.
fn start(folder: &Folder, on_demand: OnDemand) -> (Arc<Service>, impl Fn() -> Vec<String>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&events);
    let options = ServiceOptions {
        on_demand: Some(on_demand),
        events: Events::new(move |event| {
            all.lock().unwrap().push(match event {
                Event::Loaded { model, .. } => format!("loaded {model}"),
                Event::Released { model, why, .. } => format!("released {model} {why:?}"),
                Event::Failed { model, .. } => format!("failed {model}"),
                other => format!("{other:?}"),
            });
        }),
        ..folder.options()
    };
    (folder.service_with(options), move || std::mem::take(&mut *events.lock().unwrap()))
}

fn memory_of(folder: &Folder, model: &str) -> u64 {
    let (service, _) = start(folder, OnDemand::default());
    service.model(model, "").unwrap().1.memory()
}

fn run(service: &Service, model: &str) -> Result<(), pteron_serve::Refusal> {
    service.infer_blocking(request(model, &[1, 12], 0)).map(drop)
}

#[test]
fn the_first_request_loads_a_model() {
    let folder = three();
    let (service, events) = start(&folder, OnDemand::default());
    assert!(service.is_ready() && service.is_model_ready("a", "").unwrap());
    assert!(service.metrics().contains("pteron_model_bytes 0\n"));
    let index = service.index();
    assert!(index.iter().all(|entry| entry.is_ready && entry.reason.contains("next request")), "{index:?}");
    assert_eq!(events(), [""; 0]);
    run(&service, "b").unwrap();
    run(&service, "b").unwrap();
    assert_eq!(events(), ["loaded b"]);
    // So does a request for its metadata, and one to load it.
    assert_eq!(service.model("c", "1").unwrap().0, ["1"]);
    service.load("a").unwrap();
    service.reload_changed().unwrap();
    assert_eq!(events(), ["loaded c", "loaded a"]);
    let metrics = service.metrics();
    assert!(!metrics.contains("pteron_model_bytes 0\n"), "{metrics}");
    // What was unloaded on request is not loaded by others.
    service.unload("b").unwrap();
    assert_eq!(run(&service, "b").unwrap_err().reason, Reason::Unavailable);
    assert!(!service.is_model_ready("b", "").unwrap());
    assert_eq!(run(&service, "d").unwrap_err().reason, Reason::NotFound);
}

#[test]
fn models_follow_the_folder() {
    let folder = three();
    fs::write(folder.0.join("bad.pte"), "no program").unwrap();
    let (service, events) = start(&folder, OnDemand::default());
    // Nothing is known of it until a request needs it.
    assert!(service.is_model_ready("bad", "").unwrap());
    assert_eq!(run(&service, "bad").unwrap_err().reason, Reason::Failed);
    assert!(!service.is_model_ready("bad", "").unwrap());
    assert!(run(&service, "bad").unwrap_err().message.contains("bad.pte"));
    assert_eq!(events(), ["failed bad"]);
    service.reload_changed().unwrap();
    assert!(!service.is_model_ready("bad", "").unwrap());
    folder.copy("dynamic/mlp/model.pte", "bad.pte");
    service.reload_changed().unwrap();
    run(&service, "bad").unwrap();
    run(&service, "a").unwrap();
    assert_eq!(events(), ["loaded bad", "loaded a"]);
    // A loaded model is swapped at once, one that is not at its next request.
    for name in ["a", "b"] {
        folder.copy("dynamic/mlp/model.pte", "new");
        fs::rename(folder.0.join("new"), folder.0.join(format!("{name}.pte"))).unwrap();
    }
    fs::remove_file(folder.0.join("c.pte")).unwrap();
    service.reload_changed().unwrap();
    assert_eq!(events(), [r#"Removed { model: "c", version: 1 }"#, "loaded a"]);
    run(&service, "b").unwrap();
    assert_eq!(run(&service, "c").unwrap_err().reason, Reason::NotFound);
}

#[test]
fn the_least_recently_used_model_is_let_go() {
    let folder = three();
    let one = memory_of(&folder, "a");
    assert!(one > fs::metadata(folder.0.join("a.pte")).unwrap().len());
    let (service, events) = start(&folder, OnDemand { memory: Some(2 * one), idle: None });
    for model in ["a", "b", "a", "c", "b"] {
        run(&service, model).unwrap();
    }
    let expected = ["loaded a", "loaded b", "released b Memory", "loaded c", "released a Memory", "loaded b"];
    assert_eq!(events(), expected);
    assert!(service.metrics().contains(&format!("pteron_model_bytes {}\n", 2 * one)));
    assert!(service.is_model_ready("a", "").unwrap(), "its next request loads it again");

    // A model in use stays, even for others that then cannot be loaded.
    let (first, second) = (service.model("b", "").unwrap(), service.model("c", "").unwrap());
    let refusal = run(&service, "a").unwrap_err();
    assert_eq!(refusal.reason, Reason::Busy);
    assert!(refusal.message.contains(&format!("takes {one} bytes")), "{refusal}");
    assert!(refusal.message.contains(&format!("in use take {} of {}", 2 * one, 2 * one)), "{refusal}");
    drop((first, second));
    assert_eq!(events(), [""; 0]);
    run(&service, "a").unwrap();
    assert_eq!(events(), ["released b Memory", "loaded a"]);
}

#[test]
fn a_model_that_never_fits_is_an_error_with_sizes() {
    let folder = three();
    let one = memory_of(&folder, "a");
    let (service, _) = start(&folder, OnDemand { memory: Some(one - 1), idle: None });
    for _ in 0..2 {
        let refusal = run(&service, "a").unwrap_err();
        let sizes = format!("it takes {one} bytes of memory, all models together may take {}", one - 1);
        assert!(refusal.message.contains(&sizes), "{refusal}");
    }
    assert!(!service.is_model_ready("a", "").unwrap());
    assert!(service.load("b").unwrap_err().message.contains(&format!("takes {one} bytes")));
}

#[test]
fn idle_models_are_let_go() {
    let folder = three();
    let (service, events) = start(&folder, OnDemand { memory: None, idle: Some(Duration::from_millis(100)) });
    run(&service, "a").unwrap();
    let in_use = service.model("b", "").unwrap();
    let begin = Instant::now();
    let mut seen = Vec::new();
    while !seen.contains(&"released a Idle".to_owned()) {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
        seen.extend(events());
    }
    assert_eq!(seen, ["loaded a", "loaded b", "released a Idle"]);
    drop(in_use);
    while !seen.contains(&"released b Idle".to_owned()) {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
        seen.extend(events());
    }
    run(&service, "a").unwrap();
}

/// Requests of many threads for more models than fit: each is answered, and no model in use is let go.
#[test]
fn requests_load_and_release_models_at_once() {
    let folder = three();
    let one = memory_of(&folder, "a");
    let (service, _) =
        start(&folder, OnDemand { memory: Some(2 * one), idle: Some(Duration::from_millis(10)) });
    let (send, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for i in 0..3usize {
            let (service, send) = (&service, send.clone());
            scope.spawn(move || {
                for j in 0..40 {
                    let result = run(service, ["a", "b", "c"][(i + j) % 3]);
                    send.send(result.err().map(|refusal| refusal.reason)).unwrap();
                }
            });
        }
    });
    drop(send);
    let all: Vec<_> = results.iter().collect();
    assert_eq!(all.len(), 120);
    assert!(all.iter().all(|reason| reason.is_none_or(|reason| reason == Reason::Busy)), "{all:?}");
    assert!(all.iter().any(Option::is_none));
}

#[derive(Clone, PartialEq, prost::Message)]
struct ModelName {
    #[prost(string, tag = "1")]
    name: String,
}

#[test]
fn both_protocols_load_on_demand() {
    let on_demand = |service: &mut ServiceOptions| service.on_demand = Some(OnDemand::default());
    let fixture = Fixture::with(three(), on_demand, |server| server.allow_control = true);
    assert_eq!(fixture.get("/v2/models/a/ready").status, 200);
    let index = fixture.post("/v2/repository/index", &json!({})).json();
    assert_eq!((&index[0]["state"], &index[0]["version"]), (&json!("READY"), &json!("1")), "{index}");
    assert!(index[0]["reason"].as_str().unwrap().contains("next request loads it"));
    let bytes = || {
        fixture.service.metrics().lines().find(|l| l.starts_with("pteron_model_bytes")).unwrap().to_owned()
    };
    assert_eq!(bytes(), "pteron_model_bytes 0");
    assert_eq!(fixture.post("/v2/models/a/infer", &mlp_request(2, 0)).status, 200);
    let one = bytes();
    assert_ne!(one, "pteron_model_bytes 0");
    assert_eq!(fixture.get("/v2/models/a").json()["versions"], json!(["1"]));
    assert_eq!(bytes(), one);
    block_on(async {
        let mut channel = Channel::open(fixture.address).await;
        let answer = channel.call("ModelConfig", &ModelName { name: "b".to_owned() }, &[]).await;
        assert_eq!(answer.code, 0, "{}", answer.text);
    });
    assert_ne!(bytes(), one);
    assert_eq!(fixture.send("POST", "/v2/repository/models/c/load", "", b"").status, 200);
    assert_eq!(fixture.post("/v2/models/none/infer", &mlp_request(2, 0)).status, 404);
}
