//! Models give the same results on the accelerator, through the library, the command and the server.

use pteron::FileLoader;
use pteron::compile::{OperatorTable, Options, from_loader};
use pteron::testing::Check;
use pteron_accelerator::{delegation, registries};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

fn archive(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives").join(name).join("model.pt2")
}

/// A folder of its own, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pteron-accelerator-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the command of the example prints. It must succeed.
fn accelerator(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pteron-accelerator")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn models_give_the_same_results() {
    let models = ["activations", "channels_last_rows", "dynamic", "related_sizes", "transformer", "windows"];
    let mut delegates = 0;
    for model in models {
        let file = Arc::new(FileLoader::open(archive(model)).unwrap());
        let report = Check::new(registries(), vec![delegation()]).run(file);
        let report = report.unwrap_or_else(|failed| panic!("{model}: {failed}"));
        assert!(report.compared > 0);
        delegates += report.delegates;
    }
    assert!(delegates > 10, "{delegates}");
}

#[test]
fn an_operator_is_kept_whole_and_reasons_are_given() {
    let table =
        OperatorTable::portable(&pteron::kernel_registry()).with_kept_operators(["aten.hardswish.default"]);
    let options = Options { delegation: vec![delegation()], ..Options::default() };
    let file: Arc<dyn pteron::DataLoader> = Arc::new(FileLoader::open(archive("activations")).unwrap());
    let compiled = from_loader(&file, &table, &options, &mut |_, _, _| {}).unwrap();
    let method = &compiled.methods[0];
    let taken = |name: &str| method.delegates.iter().any(|delegate| delegate.operators.contains_key(name));
    assert!(taken("aten.hardswish.default"), "{:?}", method.delegates);

    let file: Arc<dyn pteron::DataLoader> = Arc::new(FileLoader::open(archive("transformer")).unwrap());
    let compiled = from_loader(&file, &table, &options, &mut |_, _, _| {}).unwrap();
    let left = &compiled.methods[0].left;
    assert!(left.iter().any(|left| left.reason == "its operands are broadcast or scaled"), "{left:?}");
}

#[test]
fn the_command_compiles_runs_profiles_and_retargets() {
    let folder = Folder::new("command");
    let path = |name: &str| folder.0.join(name).display().to_string();
    let (lowered, plain) = (path("lowered.pte"), path("plain.pte"));
    let model = archive("transformer").display().to_string();
    let compile = ["compile", &model, "--backend", "accelerator", "--source-frames", "-o", &lowered];
    assert!(accelerator(&compile).contains("7 of 9 nodes in 4 delegates"));
    assert!(accelerator(&["validate", &lowered]).contains("valid"));
    let input = "3x8xf32=0.5";
    let found = accelerator(&["run", &lowered, input]);
    let profile = accelerator(&["profile", "-v", &lowered, input]);
    assert!(
        profile.contains("aten.linear.default") && profile.contains("in forward; l.linear1"),
        "{profile}"
    );
    assert!(accelerator(&["retarget", &lowered, "--backend", "none", "-o", &plain]).contains("forward"));
    assert!(!accelerator(&["inspect", &plain]).contains("Accelerator"));
    let numbers = |text: &str| -> Vec<f64> {
        text.split(|c: char| !"+-.e0123456789".contains(c)).filter_map(|number| number.parse().ok()).collect()
    };
    let (found, plain) = (numbers(&found), numbers(&accelerator(&["run", &plain, input])));
    assert!(found.len() > 24 && found.len() == plain.len());
    assert!(found.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {plain:?}");
}

#[test]
fn the_server_answers_a_request() {
    let folder = Folder::new("server");
    std::fs::create_dir_all(folder.0.join("rows")).unwrap();
    let program = folder.0.join("rows/model.pte").display().to_string();
    let model = archive("transformer").display().to_string();
    accelerator(&["compile", &model, "--backend", "accelerator", "-o", &program]);
    let mut server = Command::new(env!("CARGO_BIN_EXE_pteron-accelerator"))
        .args(["serve", &folder.0.display().to_string(), "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut address = None;
    for line in lines {
        address = line.strip_prefix("listening on ").map(str::to_owned).or(address);
        if line == "ready" {
            break;
        }
    }
    let numbers = vec!["0.5"; 24].join(",");
    let input = format!(r#"{{"name":"x","datatype":"FP32","shape":[3,8],"data":[{numbers}]}}"#);
    let body = format!(r#"{{"inputs":[{input}]}}"#);
    let request = format!(
        "POST /v2/models/rows/infer HTTP/1.1\r\nHost: rows\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address.expect("the server says where it listens")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""shape":[1,3,8]"#), "{answer}");
}
