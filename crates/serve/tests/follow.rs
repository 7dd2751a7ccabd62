//! Models that follow their folder: links that are re-pointed, folders that cannot be read, files that fail.

mod common;

use common::{Folder, floats, request};
use pteron::backend::{Backend, BackendError, BackendInitContext, CompileSpec, Delegate};
use pteron::{BackendRegistry, FreeableBuffer};
use pteron_serve::{Event, Events, Reason, Service, ServiceOptions};
use std::fs;
use std::sync::{Arc, Mutex, mpsc};

/// The events of a service since the last call.
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Recorder {
    fn new(options: &mut ServiceOptions) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&events);
        options.events = Events::new(move |event| all.lock().unwrap().push(event.clone()));
        Self(events)
    }

    /// A word for each event, and its model.
    fn take(&self) -> Vec<String> {
        let events = std::mem::take(&mut *self.0.lock().unwrap());
        let short = |event: Event| match event {
            Event::Loaded { model, version, .. } => format!("loaded {model} {version}"),
            Event::Failed { model, version, is_kept, .. } => format!("failed {model} {version:?} {is_kept}"),
            Event::Removed { model, version } => format!("removed {model} {version}"),
            Event::Unloaded { model } => format!("unloaded {model}"),
            Event::Released { model, version, .. } => format!("released {model} {version}"),
            Event::FolderFailed(_) => "folder failed".to_owned(),
            Event::FolderReadable => "folder readable".to_owned(),
        };
        events.into_iter().map(short).collect()
    }
}

fn is_ready(service: &Service, model: &str) -> bool {
    service.is_model_ready(model, "").unwrap_or(false)
}

/// A deployment by a link that is re-pointed to another release.
#[cfg(unix)]
#[test]
fn a_link_to_the_folder_is_resolved_at_every_look() {
    let (folder, release) = (Folder::new(), Folder::with_linear());
    folder.copy("dynamic/mlp/model.pte", "1/mlp.pte");
    let current = folder.0.join("current");
    std::os::unix::fs::symlink("1", &current).unwrap();
    let mut options = ServiceOptions::new(&current, pteron::load_options());
    let events = Recorder::new(&mut options);
    let service = Service::start(options).unwrap();
    service.load_all().unwrap();
    assert_eq!(events.take(), ["loaded mlp 1"]);

    std::os::unix::fs::symlink(&release.0, folder.0.join("next")).unwrap();
    fs::rename(folder.0.join("next"), &current).unwrap();
    service.reload_changed().unwrap();
    assert_eq!(events.take(), ["removed mlp 1", "loaded linear 1"]);
    let before = floats(&service.infer_blocking(request("linear", &[3], 0)).unwrap().outputs[0]);

    // The same release again, with other weights behind the same names.
    let second = Folder::with_linear();
    second.write_weights(2.0);
    fs::remove_file(&current).unwrap();
    assert_eq!(service.reload_changed().unwrap_err().reason, Reason::Unavailable);
    std::os::unix::fs::symlink(&second.0, &current).unwrap();
    service.reload_changed().unwrap();
    assert_eq!(events.take(), ["folder failed", "folder readable", "loaded linear 1"]);
    let after = floats(&service.infer_blocking(request("linear", &[3], 0)).unwrap().outputs[0]);
    assert_eq!(after, before.iter().map(|x| x * 2.0).collect::<Vec<_>>());
}

#[test]
fn a_folder_that_cannot_be_read_changes_nothing() {
    let folder = Folder::new();
    folder.copy("dynamic/mlp/model.pte", "models/mlp.pte");
    let (models, away) = (folder.0.join("models"), folder.0.join("away"));
    let mut options = ServiceOptions::new(&models, pteron::load_options());
    let events = Recorder::new(&mut options);
    let service = Service::start(options).unwrap();
    service.load_all().unwrap();
    events.take();
    fs::rename(&models, &away).unwrap();
    for _ in 0..3 {
        let refusal = service.reload_changed().unwrap_err();
        assert!(!refusal.message.contains('/'), "{refusal}");
        assert!(service.infer_blocking(request("mlp", &[2, 12], 0)).is_ok());
    }
    assert_eq!(events.take(), ["folder failed"]);
    fs::rename(&away, &models).unwrap();
    let generation = service.infer_blocking(request("mlp", &[2, 12], 0)).unwrap().generation;
    service.reload_changed().unwrap();
    assert_eq!(events.take(), ["folder readable"]);
    assert_eq!(service.infer_blocking(request("mlp", &[2, 12], 0)).unwrap().generation, generation);
}

#[test]
fn failures_are_reported_once_until_something_changes() {
    let folder = Folder::with_mlp();
    let mut options = folder.options();
    let events = Recorder::new(&mut options);
    let service = Service::start(options).unwrap();
    service.load_all().unwrap();
    events.take();
    fs::write(folder.0.join("bad.pte"), "no program").unwrap();
    fs::create_dir(folder.0.join("empty")).unwrap();
    assert_eq!(service.reload_changed().unwrap().len(), 2);
    assert_eq!(service.reload_changed().unwrap(), []);
    assert_eq!(events.take(), ["failed bad Some(1) false", "failed empty None false"]);
    // On request, files that failed are tried again, and the failures are reported again.
    assert_eq!(service.reload().unwrap().len(), 2);
    assert_eq!(events.take().len(), 2);
    let refusal = service.load("bad").unwrap_err();
    assert!(refusal.message.contains("bad.pte") && !refusal.message.contains('/'), "{refusal}");
    // The client is told; the events already have it.
    assert!(events.take().is_empty());
    for entry in service.index() {
        assert!(!entry.reason.contains(folder.0.to_str().unwrap()), "{entry:?}");
    }

    fs::write(folder.0.join("bad.pte"), "nor this one").unwrap();
    folder.copy("dynamic/mlp/model.pte", "empty/model.pte");
    service.reload_changed().unwrap();
    assert_eq!(events.take(), ["failed bad Some(1) false", "loaded empty 1"]);
    fs::write(folder.0.join("mlp.pte"), "no longer").unwrap();
    fs::remove_file(folder.0.join("bad.pte")).unwrap();
    service.reload_changed().unwrap();
    assert_eq!(events.take(), ["removed bad 1", "failed mlp Some(1) true"]);
    assert!(service.infer_blocking(request("mlp", &[2, 12], 0)).is_ok());
    assert!(is_ready(&service, "empty") && service.is_model_ready("bad", "").is_err());
}

#[test]
fn a_version_that_fails_does_not_affect_the_others() {
    let folder = Folder::new();
    folder.copy("dynamic/mlp/model.pte", "net/1/model.pte");
    fs::create_dir_all(folder.0.join("net/2")).unwrap();
    fs::write(folder.0.join("net/2/model.pte"), "no program").unwrap();
    let service = Service::start(folder.options()).unwrap();
    assert_eq!(service.load_all().unwrap().len(), 1);
    assert_eq!(service.model("net", "").unwrap().0, ["1"]);
    assert_eq!(service.model("net", "2").unwrap_err().reason, Reason::Unavailable);
    folder.copy("dynamic/mlp/model.pte", "net/2/model.pte");
    assert_eq!(service.reload_changed().unwrap(), []);
    assert_eq!(service.model("net", "").unwrap().0, ["1", "2"]);
}

/// Panics, and uses more stack than threads have by default.
struct Panics;

impl Backend for Panics {
    fn id(&self) -> &str {
        "XnnpackBackend"
    }

    fn init(
        &self,
        _: &BackendInitContext<'_>,
        _: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let stack = std::hint::black_box([1u8; 4 << 20]);
        panic!("at /a/b/c with {}", stack[7]);
    }
}

#[test]
fn a_load_that_panics_costs_that_model_only() {
    let folder = Folder::with_mlp();
    let mut options = folder.options();
    options.load.backends = Arc::new(BackendRegistry::new().with(Panics));
    let events = Recorder::new(&mut options);
    let service = Service::start(options).unwrap();
    service.load_all().unwrap();
    assert_eq!(events.take(), ["loaded mlp 1"]);
    folder.copy("corpus/tiny/xnn_mlp/model.pte", "evil.pte");
    assert_eq!(service.reload_changed().unwrap().len(), 1);
    assert_eq!(service.reload_changed().unwrap(), []);
    assert_eq!(service.load("evil").unwrap_err().reason, Reason::Failed);
    folder.copy("dynamic/mlp/model.pte", "later.pte");
    service.reload_changed().unwrap();
    assert!(is_ready(&service, "later") && is_ready(&service, "mlp") && !is_ready(&service, "evil"));
    assert_eq!(events.take(), ["failed evil Some(1) false", "loaded later 1"]);
}

/// A reply that panics does not take the worker with it.
#[test]
fn a_reply_that_panics_costs_that_request_only() {
    let folder = Folder::with_mlp();
    let service = folder.service();
    let (send, receive) = mpsc::channel();
    let _ticket = service.infer(request("mlp", &[1, 12], 0), move |_| {
        send.send(()).unwrap();
        panic!("a reply");
    });
    receive.recv().unwrap();
    assert!(service.infer_blocking(request("mlp", &[1, 12], 0)).is_ok());
    assert!(service.metrics().contains("pteron_held_bytes 0"));
}

#[test]
fn outputs_are_charged_before_they_are_copied() {
    let folder = Folder::with_mlp();
    let service = folder.service_with(ServiceOptions { max_bytes: 20, ..folder.options() });
    // Two rows of three floats.
    assert_eq!(service.infer_blocking(request("mlp", &[2, 12], 0)).unwrap_err().reason, Reason::TooLarge);
    assert!(service.infer_blocking(request("mlp", &[1, 12], 0)).is_ok());
    assert!(service.metrics().contains("pteron_held_bytes 0"));
}
