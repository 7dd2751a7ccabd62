//! Checkpoints: saved state is restored exactly, and a process that is killed while it saves leaves either the old
//! file or the new one.

use pteron::format::ptd::{Builder, TensorLayout};
use pteron::{EValue, Module, PtdDataMap, Sgd, SgdOptions, Tensor, TrainingModule};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn corpus(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus").join(path)
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pteron-checkpoint-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn floats(value: &EValue) -> Vec<f32> {
    value.as_tensor().unwrap().to_vec().unwrap()
}

/// The names and bytes of every tensor whose contents persist between executions.
fn state(module: &mut Module) -> Vec<(String, Vec<u8>)> {
    let method = module.method("forward").unwrap();
    method.state().map(|(key, view)| (key, view.bytes().to_vec())).collect()
}

/// A model in training. Training is deterministic: the state after `n` steps is always the same.
struct Trained {
    model: TrainingModule,
    sgd: Sgd,
    steps: usize,
}

impl Trained {
    fn new() -> Self {
        let model = TrainingModule::open(corpus("wild/train_xor/model.pte"), pteron::load_options()).unwrap();
        let sgd = Sgd::new(SgdOptions { lr: 0.1, ..SgdOptions::default() }).unwrap();
        let mut trained = Self { model, sgd, steps: 0 };
        // Parameters get their names on the first request.
        trained.model.named_parameters("forward").unwrap();
        trained
    }

    fn step(&mut self) {
        let bits = [self.steps & 1, self.steps >> 1 & 1];
        let x = Tensor::from_slice(&[1, 2], &bits.map(|b| b as f32)).unwrap();
        let y = Tensor::from_slice(&[1], &[(bits[0] ^ bits[1]) as i64]).unwrap();
        self.model.execute_forward_backward("forward", &[x.into(), y.into()]).unwrap();
        self.model.step("forward", &mut self.sgd).unwrap();
        self.steps += 1;
    }

    fn state(&mut self) -> Vec<(String, Vec<u8>)> {
        state(self.model.module())
    }
}

#[test]
fn parameters_are_restored_and_training_continues_from_them() {
    let folder = folder("parameters");
    let file = folder.join("trained.ptd");
    let mut first = Trained::new();
    (0..5).for_each(|_| first.step());
    first.model.save_checkpoint("forward", &file).unwrap();
    let keys: Vec<String> = first.state().into_iter().map(|(key, _)| key).collect();
    assert!(keys.contains(&"net.linear.weight".to_owned()), "{keys:?}");
    let mut second = Trained { steps: 5, ..Trained::new() };
    assert_ne!(second.state(), first.state());
    second.model.load_checkpoint("forward", &file).unwrap();
    assert_eq!(second.state(), first.state());
    (0..5).for_each(|_| (first.step(), second.step()).0);
    assert_eq!(second.state(), first.state());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn unnamed_state_is_restored() {
    let folder = folder("state");
    for case in ["mutable_initialized", "mutable_default", "mutable_names"] {
        let file = folder.join(case);
        let model = corpus("tiny").join(case).join("model.pte");
        let mut first = pteron::open(&model).unwrap();
        let meta = first.method_meta("forward").unwrap();
        let inputs: Vec<EValue> = meta
            .inputs()
            .into_iter()
            .map(|v| {
                let meta = v.tensor.unwrap().meta;
                let elements: Vec<f32> = (0..meta.numel()).map(|i| i as f32 + 1.0).collect();
                Tensor::from_slice(meta.sizes(), &elements).unwrap().into()
            })
            .collect();
        let fresh = floats(&first.forward(&inputs).unwrap()[0]);
        first.save_checkpoint("forward", &file).unwrap();
        let later = floats(&first.forward(&inputs).unwrap()[0]);
        assert_ne!(fresh, later, "{case} has state");
        let mut second = pteron::open(&model).unwrap();
        second.load_checkpoint("forward", &file).unwrap();
        assert_eq!(floats(&second.forward(&inputs).unwrap()[0]), later, "{case}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn arenas_shared_by_methods_are_saved_with_each_method() {
    let folder = folder("shared");
    let file = folder.join("shared.ptd");
    let open = || {
        let mut module = pteron::open(corpus("tiny/ModuleSharedState/model.pte")).unwrap();
        module.share_memory_arenas().unwrap();
        module
    };
    let set = |v: f32| [Tensor::from_slice(&[1], &[v]).unwrap().into()];
    let mut first = open();
    first.execute("set_state", &set(7.0)).unwrap();
    first.save_checkpoint("get_state", &file).unwrap();
    let mut second = open();
    second.load_checkpoint("get_state", &file).unwrap();
    assert_eq!(floats(&second.execute("get_state", &[]).unwrap()[0]), [7.0]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_checkpoint_that_does_not_fit_changes_nothing() {
    let folder = folder("else");
    let file = folder.join("other.ptd");
    let mut model = Trained::new();
    model.step();
    model.model.save_checkpoint("forward", &file).unwrap();
    let before = model.state();
    let map = PtdDataMap::open(&file).unwrap();
    for (change, expected) in [
        ("drop", "`net.linear2.bias` is not in the file"),
        ("dtype", "`net.linear2.bias` is float32[2] in the method and int32[2] in the file"),
        ("shape", "`net.linear2.bias` is float32[2] in the method and float32[1] in the file"),
        ("blob", "`net.linear2.bias` is float32[2] in the method and a blob in the file"),
    ] {
        let mut builder = Builder::new();
        for entry in &map.tables().named_data {
            let data = pteron::NamedDataMap::data(&map, &entry.key).unwrap().to_vec();
            let mut layout = entry.tensor_layout.clone().unwrap();
            // The entries that fit have other bytes than the state, so that a partial load would be detected.
            let mut data: Vec<u8> = data.iter().map(|b| !b).collect();
            if entry.key == "net.linear2.bias" {
                match change {
                    "drop" => continue,
                    "dtype" => layout.scalar_type = 3,
                    "shape" => {
                        (layout, data) = (TensorLayout { sizes: vec![1], ..layout }, data[..4].to_vec())
                    }
                    _ => {
                        builder.blob(&entry.key, pteron::format::container::Blob::bytes(data));
                        continue;
                    }
                }
            }
            builder.tensor(&entry.key, layout, pteron::format::container::Blob::bytes(data));
        }
        let other = folder.join(change);
        builder.write(&mut std::fs::File::create(&other).unwrap()).unwrap();
        let e = model.model.load_checkpoint("forward", &other).unwrap_err().to_string();
        assert!(e.contains(expected) && e.contains(&*other.to_string_lossy()), "{e}");
        assert_eq!(model.state(), before, "{change}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

const FILE: &str = "PTERON_CHECKPOINT_FILE";
const STEPS: &str = "PTERON_CHECKPOINT_STEPS";

/// The process that is killed: continues from the checkpoint, and saves after every step.
#[test]
#[ignore = "run by killed_saves_leave_the_old_or_the_new_state"]
fn train_and_save() {
    let file = PathBuf::from(std::env::var_os(FILE).unwrap());
    let mut model = Trained { steps: std::env::var(STEPS).unwrap().parse().unwrap(), ..Trained::new() };
    if file.exists() {
        model.model.load_checkpoint("forward", &file).unwrap();
    }
    let mut out = std::io::stdout();
    loop {
        model.step();
        model.model.save_checkpoint("forward", &file).unwrap();
        writeln!(out, "\nsaved {}", model.steps).unwrap();
        out.flush().unwrap();
    }
}

/// Suspends a process with `SIGSTOP`. `false` on systems where this cannot be observed.
fn stop(child: &Child) -> bool {
    if !cfg!(target_os = "linux") {
        return false;
    }
    let stopped = Command::new("kill").args(["-s", "STOP", &child.id().to_string()]).status();
    assert!(stopped.unwrap().success());
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next())
    };
    let start = Instant::now();
    while state() != Some('T') {
        assert!(start.elapsed() < Duration::from_secs(10), "the process does not stop");
        std::thread::sleep(Duration::from_micros(100));
    }
    true
}

/// Whether a suspended process has another file than the checkpoint open in its folder, named or unnamed: it is saving.
fn is_saving(child: &Child, folder: &Path, file: &Path) -> bool {
    let folder = std::fs::canonicalize(folder).unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().flatten();
    let mut files = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    files.any(|path| path.starts_with(&folder) && path.file_name() != file.file_name())
}

#[test]
fn killed_saves_leave_the_old_or_the_new_state() {
    let kills: usize = std::env::var("PTERON_KILLS").map_or(200, |n| n.parse().unwrap());
    let folder = folder("killed");
    let file = folder.join("checkpoint.ptd");
    let mut replay = Trained::new();
    let mut states = vec![replay.state()];
    let (mut steps, mut midway) = (0, 0);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for kill in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "train_and_save", "--ignored", "--nocapture"])
            .env(FILE, &file)
            .env(STEPS, steps.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let saved = |line: std::io::Result<String>| -> Option<usize> {
            line.ok()?.strip_prefix("saved ")?.parse().ok()
        };
        let first = lines.by_ref().find_map(saved).expect("the process saves");
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((random >> 33) % 10_000));
        let writes = stop(&child) && is_saving(&child, &folder, &file);
        child.kill().unwrap();
        child.wait().unwrap();
        midway += usize::from(writes);
        let reported = lines.filter_map(saved).last().unwrap_or(first);

        // The file holds the last state whose save was reported, or the next one.
        while states.len() <= reported + 1 {
            replay.step();
            states.push(replay.state());
        }
        let mut model = Trained::new();
        model.model.load_checkpoint("forward", &file).unwrap_or_else(|e| {
            panic!("kill {kill}: the file is broken: {e}");
        });
        let state = model.state();
        steps = (reported..=reported + 1).find(|&n| states[n] == state).unwrap_or_else(|| {
            panic!("kill {kill}: the file holds neither the state after {reported} steps nor the next");
        });
        // Temporary files left behind by an interrupted save.
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path != file {
                midway += usize::from(!writes);
                std::fs::remove_file(path).unwrap();
            }
        }
    }
    println!("{kills} processes killed, {midway} of them in the middle of a save, after {steps} steps");
    assert!(steps >= kills && midway > 0, "{midway} of {kills} kills met a save");
    std::fs::remove_dir_all(folder).unwrap();
}
