//! The service without sockets.

mod common;

use common::{FOREVER, Folder, assert_close, expected_of_mlp, floats, request};
use pteron::ScalarType;
use pteron_serve::{InferRequest, Reason, ServiceOptions};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn batching(folder: &Folder, max_batch: usize) -> ServiceOptions {
    ServiceOptions { max_batch, batch_delay: FOREVER, deadline: FOREVER, ..folder.options() }
}

#[test]
fn a_response_has_the_outputs_of_the_program() {
    let folder = Folder::with_mlp();
    let service = folder.service();
    let (versions, model) = service.model("mlp", "").unwrap();
    assert_eq!(versions, ["1"]);
    assert_eq!(model.inputs().next().unwrap().shape(), [-1, -1]);
    for rows in [2, 9, 1, 0] {
        let response = service.infer_blocking(request("mlp", &[rows, 12], rows)).unwrap();
        assert_eq!(response.outputs[0].shape, [rows, 3]);
        assert_close(&floats(&response.outputs[0]), &expected_of_mlp(rows, rows));
    }
    assert!(
        service.metrics().contains("pteron_requests_total{model=\"mlp\",version=\"1\",outcome=\"ok\"} 4")
    );
}

#[test]
fn inputs_have_the_names_of_keyword_arguments() {
    let folder = Folder::new();
    folder.copy("archives/keywords/model.pt2", "keywords.pt2");
    let (_, model) = folder.service().model("keywords", "").unwrap();
    let names: Vec<&str> = model.inputs().map(|input| &*input.name).collect();
    assert_eq!(names, ["x", "scale", "offset.early", "offset.late"]);
}

/// The values are those that the reference's `Module` computes with `share_memory_arenas`.
#[test]
fn methods_share_their_state() {
    let folder = Folder::new();
    folder.copy("shared/counter/model.pte", "counter/counter.pte");
    let config = r#"{"methods": ["set_total", "mean"], "share_memory_arenas": true}"#;
    fs::write(folder.0.join("counter/pteron.json"), config).unwrap();
    let service = folder.service();
    let call = |model: &str, elements: &[f32]| {
        let mut request = request(model, &[3], 0);
        match elements {
            [] => request.inputs.clear(),
            elements => request.inputs[0].data = Box::new(common::bytes(elements)),
        }
        floats(&service.infer_blocking(request).unwrap().outputs[0])
    };
    assert_eq!(call("counter.mean", &[]), [0.0, 0.0, 0.0]);
    assert_eq!(call("counter", &[1.0, 1.0, 1.0]), [2.0, 2.0, 2.0]);
    assert_eq!(call("counter.mean", &[]), [1.0, 1.0, 1.0]);
    assert_eq!(call("counter.set_total", &[8.0, 16.0, 32.0]), [9.0, 17.0, 33.0]);
    assert_eq!(call("counter", &[0.0, 4.0, -2.0]), [16.0, 40.0, 60.0]);
    assert_eq!(call("counter.mean", &[]), [4.0, 10.0, 15.0]);
}

#[test]
fn a_method_that_is_not_valid_does_not_affect_the_others() {
    let folder = Folder::new();
    folder.copy("corpus/tiny/ModuleMultipleEntry/model.pte", "two/two.pte");
    let mut file = fs::read(folder.0.join("two/two.pte")).unwrap();
    // The index of the second method's constant.
    file[720] = 99;
    fs::write(folder.0.join("two/two.pte"), file).unwrap();
    fs::write(folder.0.join("two/pteron.json"), r#"{"methods": ["forward2"]}"#).unwrap();
    let service = pteron_serve::Service::start(folder.options()).unwrap();
    let failed = service.load_all().unwrap();
    let [(name, refusal)] = &failed[..] else { panic!("{failed:?}") };
    assert_eq!(name, "two.forward2");
    assert!(refusal.message.contains("forward2"), "{refusal}");
    assert!(service.infer_blocking(request("two", &[2, 2], 0)).is_ok());
}

#[test]
fn requests_that_do_not_fit_the_model_are_refused() {
    let folder = Folder::with_mlp();
    let service = folder.service();
    let with = |change: &dyn Fn(&mut InferRequest)| {
        let mut request = request("mlp", &[2, 12], 0);
        change(&mut request);
        service.infer_blocking(request).unwrap_err()
    };
    let cases: [(&dyn Fn(&mut InferRequest), Reason, &str); 12] = [
        (&|r| r.model = "nlp".into(), Reason::NotFound, "no model `nlp`"),
        (&|r| r.model = "../mlp".into(), Reason::NotFound, "no model"),
        (&|r| r.version = "2".into(), Reason::NotFound, "no version `2`; it has 1"),
        (&|r| r.version = "one".into(), Reason::NotFound, "no version"),
        (&|r| r.inputs.clear(), Reason::Invalid, "0 inputs were sent, the model has 1"),
        (&|r| r.inputs[0].name = "x".into(), Reason::Invalid, "no input `x`; the model has `input_0`"),
        (&|r| r.inputs[0].dtype = ScalarType::Long, Reason::Invalid, "FP32 is expected, INT64 was sent"),
        (&|r| r.inputs[0].shape = vec![10, 12], Reason::Invalid, "shape [9, 12]"),
        (&|r| r.inputs[0].shape = vec![usize::MAX, 12], Reason::Invalid, "shape [9, 12]"),
        (&|r| r.inputs[0].shape = vec![24], Reason::Invalid, "shape [9, 12]"),
        (&|r| r.inputs[0].data = Box::new(vec![0u8; 95]), Reason::Invalid, "takes 96 bytes, 95 were sent"),
        (&|r| r.outputs = vec!["y".into()], Reason::Invalid, "no output `y`; the model has `output_0`"),
    ];
    for (change, reason, message) in cases {
        let refusal = with(change);
        assert_eq!(refusal.reason, reason, "{refusal}");
        assert!(refusal.message.contains(message), "{refusal}");
    }
    // The second dimension is not dynamic in the model, although the program declares all sizes as dynamic.
    let refusal = service.infer_blocking(request("mlp", &[2, 11], 0)).unwrap_err();
    assert_eq!(refusal.reason, Reason::Failed, "{refusal}");
    assert!(service.infer_blocking(request("mlp", &[2, 12], 0)).is_ok());
}

#[test]
fn requests_are_batched_and_their_outputs_split() {
    let folder = Folder::with_mlp();
    let service = folder.service_with(batching(&folder, 8));
    let sizes = [1, 3, 2, 2];
    let (send, receive) = mpsc::channel();
    let tickets: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(seed, &rows)| {
            let send = send.clone();
            let reply = move |result| send.send((seed, result)).unwrap();
            service.infer(request("mlp", &[rows, 12], seed), reply).unwrap()
        })
        .collect();
    for (seed, result) in receive.iter().take(sizes.len()) {
        let response = result.unwrap();
        assert_eq!(response.timing.batch_rows, 8);
        assert_close(&floats(&response.outputs[0]), &expected_of_mlp(sizes[seed], seed));
    }
    drop(tickets);
}

#[test]
fn a_request_waits_for_others_for_the_batch_delay() {
    let folder = Folder::with_mlp();
    let delay = Duration::from_millis(30);
    let service = folder.service_with(ServiceOptions { batch_delay: delay, ..batching(&folder, 8) });
    let alone = service.infer_blocking(request("mlp", &[1, 12], 0)).unwrap();
    assert_eq!(alone.timing.batch_rows, 0);
    // After the delay, far before the deadline.
    assert!((delay..FOREVER / 60).contains(&alone.timing.queued), "{:?}", alone.timing);
    let full = service.infer_blocking(request("mlp", &[8, 12], 0)).unwrap();
    assert!(full.timing.queued < FOREVER / 60, "{:?}", full.timing);
    // A request that is too large for a batch does not wait.
    let large = service.infer_blocking(request("mlp", &[9, 12], 0)).unwrap();
    assert_eq!(large.outputs[0].shape, [9, 3]);
}

#[test]
fn a_failing_request_does_not_fail_the_others_of_its_batch() {
    let folder = Folder::with_mlp();
    let options = ServiceOptions { batch_delay: Duration::from_millis(1), ..batching(&folder, 9) };
    let service = folder.service_with(options);
    std::thread::scope(|threads| {
        for seed in 0..8 {
            let service = &service;
            threads.spawn(move || {
                for round in 0..20 {
                    let (rows, features) = (1 + seed % 3, if seed % 4 == 3 { 11 } else { 12 });
                    let result = service.infer_blocking(request("mlp", &[rows, features], seed + round));
                    match features {
                        12 => {
                            let found = floats(&result.unwrap().outputs[0]);
                            assert_close(&found, &expected_of_mlp(rows, seed + round));
                        }
                        _ => assert_eq!(result.unwrap_err().reason, Reason::Failed),
                    }
                }
            });
        }
    });
}

#[test]
fn models_with_dependent_rows_are_not_batched() {
    for (model, reason) in
        [("branch", "the program has jumps"), ("state", "`output_1` has no first dimension")]
    {
        let folder = Folder::new();
        folder.copy(&format!("dynamic/{model}/model.pte"), "model.pte");
        let service = folder.service_with(batching(&folder, 8));
        let (_, generation) = service.model("model", "").unwrap();
        assert_eq!(generation.max_batch(), 1);
        assert!(
            generation.unbatched_reason().unwrap().contains(reason),
            "{:?}",
            generation.unbatched_reason()
        );
    }
}

#[test]
fn a_full_queue_refuses_until_a_ticket_is_dropped() {
    let folder = Folder::with_mlp();
    let options = ServiceOptions { max_queue: 2, ..batching(&folder, 9) };
    let service = folder.service_with(options);
    let push = |seed| service.infer(request("mlp", &[1, 12], seed), |_| ());
    let first = push(0).unwrap();
    let _second = push(1).unwrap();
    assert_eq!(push(2).unwrap_err().reason, Reason::Busy);
    drop(first);
    let _third = push(3).unwrap();
    assert_eq!(push(4).unwrap_err().reason, Reason::Busy);
    assert!(service.metrics().contains("pteron_waiting_requests 2"));
}

#[test]
fn memory_held_by_requests_is_limited() {
    let folder = Folder::with_mlp();
    let service = folder.service_with(ServiceOptions { max_bytes: 30, ..folder.options() });
    assert!(service.infer_blocking(request("mlp", &[2, 12], 0)).is_ok());
    let response = service.infer_blocking(request("mlp", &[2, 12], 0)).unwrap();
    assert_eq!(service.infer_blocking(request("mlp", &[2, 12], 0)).unwrap_err().reason, Reason::Busy);
    drop(response);
    assert!(service.infer_blocking(request("mlp", &[2, 12], 0)).is_ok());
    assert!(service.metrics().contains("pteron_held_bytes 0"));
}

#[test]
fn a_request_past_its_deadline_is_not_executed() {
    let folder = Folder::with_mlp();
    let service = folder.service();
    let late = InferRequest { deadline: Some(Instant::now()), ..request("mlp", &[1, 12], 0) };
    assert_eq!(service.infer_blocking(late).unwrap_err().reason, Reason::Deadline);
}

#[test]
fn weights_are_swapped_while_requests_run() {
    let folder = Folder::with_linear();
    let service = folder.service_with(ServiceOptions { workers: 2, ..folder.options() });
    let once = floats(&service.infer_blocking(request("linear", &[3], 0)).unwrap().outputs[0]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let requests = || {
            let mut seen = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let response = service.infer_blocking(request("linear", &[3], 0)).unwrap();
                let factor = [1.0f32, 2.0, 4.0].into_iter().find(|factor| {
                    let expected: Vec<f32> = once.iter().map(|x| x * factor).collect();
                    floats(&response.outputs[0]) == expected
                });
                let factor = factor.unwrap_or_else(|| panic!("mixed weights: {:?}", response.outputs));
                seen.push((response.generation, factor.to_bits()));
            }
            seen.dedup();
            seen
        };
        let clients: Vec<_> = (0..3).map(|_| threads.spawn(requests)).collect();
        for round in 0..30 {
            folder.write_weights([2.0, 4.0, 1.0][round % 3]);
            service.load("linear").unwrap();
            service.infer_blocking(request("linear", &[3], 0)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let mut seen: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        seen.sort_unstable();
        seen.dedup();
        // Each generation has exactly one factor.
        assert!(seen.windows(2).all(|pair| pair[0].0 != pair[1].0), "{seen:?}");
    });
}

#[test]
fn a_failed_swap_keeps_the_loaded_generation() {
    let folder = Folder::with_linear();
    let service = folder.service();
    let before = service.infer_blocking(request("linear", &[3], 0)).unwrap();
    fs::write(folder.0.join("linear.ptd"), "nothing").unwrap();
    assert_eq!(service.load("linear").unwrap_err().reason, Reason::Failed);
    let after = service.infer_blocking(request("linear", &[3], 0)).unwrap();
    assert_eq!((before.generation, &before.outputs), (after.generation, &after.outputs));
    folder.write_weights(2.0);
    assert_eq!(service.reload_changed().unwrap(), []);
    let swapped = service.infer_blocking(request("linear", &[3], 0)).unwrap();
    assert!(swapped.generation > after.generation);
    assert_eq!(service.reload_changed().unwrap(), []);
    let same = service.infer_blocking(request("linear", &[3], 0)).unwrap();
    assert_eq!(same.generation, swapped.generation, "nothing was replaced, nothing is loaded");
}

#[test]
fn models_have_versions_and_are_loaded_and_unloaded() {
    let folder = Folder::new();
    folder.copy("dynamic/mlp/model.pte", "net/1/model.pte");
    folder.copy("dynamic/branch/model.pte", "net/12/model.pte");
    fs::write(folder.0.join("net/12/pteron.json"), r#"{"inputs": ["x"], "outputs": ["y"]}"#).unwrap();
    fs::create_dir(folder.0.join("empty")).unwrap();
    let service = pteron_serve::Service::start(folder.options()).unwrap();
    assert!(!service.is_ready());
    let failed = service.load_all().unwrap();
    assert!(failed[0].1.message.contains("holds 0 programs"), "{failed:?}");
    assert!(service.is_ready() && !service.is_model_ready("empty", "").unwrap());
    let (versions, latest) = service.model("net", "").unwrap();
    assert_eq!((versions.len(), latest.inputs().next().unwrap().name.as_str()), (2, "x"));
    assert_eq!(service.model("net", "1").unwrap().1.inputs().next().unwrap().name, "input_0");
    assert_eq!(service.model("net", "2").unwrap_err().reason, Reason::NotFound);

    service.unload("net").unwrap();
    assert!(!service.is_model_ready("net", "12").unwrap());
    assert_eq!(service.infer_blocking(request("net", &[1, 12], 0)).unwrap_err().reason, Reason::Unavailable);
    service.reload_changed().unwrap();
    assert!(!service.is_model_ready("net", "").unwrap(), "what was unloaded by hand stays so");
    fs::remove_dir_all(folder.0.join("net/12")).unwrap();
    service.load("net").unwrap();
    assert_eq!(service.model("net", "").unwrap().0, ["1"]);
    assert_eq!(service.load("other").unwrap_err().reason, Reason::NotFound);
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused() {
    let folder = Folder::new();
    let outside = Folder::with_mlp();
    std::os::unix::fs::symlink(outside.0.join("mlp.pte"), folder.0.join("file.pte")).unwrap();
    std::os::unix::fs::symlink(&outside.0, folder.0.join("folder")).unwrap();
    std::os::unix::fs::symlink("../..", folder.0.join("above")).unwrap();
    fs::create_dir(folder.0.join("versions")).unwrap();
    std::os::unix::fs::symlink(&outside.0, folder.0.join("versions/1")).unwrap();
    // A linked pteron.json outside is not read, so no message can quote it.
    folder.copy("dynamic/mlp/model.pte", "config/mlp.pte");
    fs::write(outside.0.join("secret"), "\"secret\"").unwrap();
    std::os::unix::fs::symlink(outside.0.join("secret"), folder.0.join("config/pteron.json")).unwrap();
    folder.copy("corpus/tiny/ModuleLinear_extconst/model.pte", "weights.pte");
    std::os::unix::fs::symlink("/dev/zero", folder.0.join("weights.ptd")).unwrap();
    std::os::unix::fs::symlink(outside.0.join("none"), folder.0.join("dangling.pte")).unwrap();
    // A link within the folder is allowed.
    folder.copy("dynamic/mlp/model.pte", "good.pte");
    std::os::unix::fs::symlink("good.pte", folder.0.join("alias.pte")).unwrap();
    let service = pteron_serve::Service::start(folder.options()).unwrap();
    let failed = service.load_all().unwrap();
    let names: Vec<&str> = failed.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["above", "config", "dangling", "file", "folder", "versions", "weights"], "{failed:?}");
    for (name, refusal) in &failed {
        assert_eq!(refusal.message.contains("leads out of"), name != "dangling", "{refusal}");
        assert!(!refusal.message.contains("secret\""), "{refusal}");
    }
    assert!(service.is_model_ready("good", "").unwrap() && service.is_model_ready("alias", "").unwrap());
}

#[test]
fn stopping_answers_accepted_requests() {
    let folder = Folder::with_mlp();
    let service = folder.service_with(batching(&folder, 9));
    let (send, receive) = mpsc::channel();
    let ticket =
        service.infer(request("mlp", &[2, 12], 0), move |result| send.send(result).unwrap()).unwrap();
    service.stop(Instant::now() + FOREVER);
    assert_close(&floats(&receive.recv().unwrap().unwrap().outputs[0]), &expected_of_mlp(2, 0));
    assert_eq!(service.infer_blocking(request("mlp", &[1, 12], 0)).unwrap_err().reason, Reason::Unavailable);
    assert!(!service.is_ready());
    drop(ticket);
}
