//! Compares the output of programs with transcripts of the reference executor.
//!
//! `tests/data` has a sample; the full corpus is looked up in `$PTERON_CORPUS/bef`.

use pteron_tfrt_kernels::driver::{self, Options, Queue};
use serde_json::Value as Json;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

fn run(bef: &Path, options: &Options) -> (i32, String, String) {
    let bytes: pteron_host::Bytes = Arc::new(fs::read(bef).unwrap());
    let (stdout, stderr) = (Buffer::default(), Buffer::default());
    let code = driver::run(bytes, options, stdout.clone(), stderr.clone());
    (code, stdout.text(), stderr.text())
}

fn options(program: &Json, queue: Queue) -> Options {
    let mut options = Options { queue, ..Options::default() };
    for arg in program["run_args"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        if let Some(list) = arg.strip_prefix("--functions=") {
            options.functions = list.split(',').map(str::to_owned).collect();
        } else if let Some(name) = arg.strip_prefix("--test_init_function=") {
            options.init = Some(name.to_owned());
        } else if arg == "--print_error_code" {
            options.print_error_code = true;
        } else {
            panic!("{arg}: no such option");
        }
    }
    options
}

/// The transcript without the lines about the allocator and the work queue.
fn transcript(path: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(path).ok()?).into_owned();
    Some(text.split_inclusive('\n').filter(|l| !l.starts_with("Choosing ")).collect())
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    lines.sort_unstable();
    lines
}

/// The reference loses the locations of unknown kernels in files with arguments or results; the driver does not. Cuts
/// the location, and the source line behind the message, from an error that is located here only.
fn unlocated<'t>(want: &'t str, found: &'t str) -> (&'t str, &'t str) {
    let message = |text: &'t str| {
        text.split_once(": error: ").map_or("", |(_, rest)| rest.lines().next().unwrap_or(""))
    };
    let lost = want.starts_with("<unknown>:0: ") && want.contains("unknown kernel name");
    if lost && !found.starts_with("<unknown>") { (message(want), message(found)) } else { (want, found) }
}

/// Runs every executable program of a set and appends differences to `failures`. Returns the number of compared
/// transcripts.
fn check(set: &Path, failures: &mut Vec<String>) -> usize {
    let index: Json = serde_json::from_slice(&fs::read(set.join("index.json")).unwrap()).unwrap();
    let mut compared = 0;
    for program in index["programs"].as_array().unwrap() {
        let name = program["name"].as_str().unwrap();
        let path = |suffix: &str| PathBuf::from(format!("{name}.{suffix}"));
        if program["executable"] == false || !path("s.stdout").exists() {
            continue;
        }
        for bef in ["bef", "noopt.bef"].map(path).iter().filter(|p| p.exists()) {
            for (key, queue) in [("s", Queue::SingleThreaded), ("mt", Queue::MultiThreaded(4))] {
                let (code, stdout, stderr) = run(bef, &options(program, queue));
                let mut differ = |what: &str, want: &str, got: &str| {
                    if want != got {
                        let file = bef.display();
                        failures.push(format!("{file} {key} {what}\n--- expected\n{want}\n--- found\n{got}"));
                    }
                };
                let exit = program[key]["exit"].as_i64().unwrap_or(0);
                differ("exit code", &exit.to_string(), &code.to_string());
                if let Some(want) = transcript(&path(&format!("{key}.stdout"))) {
                    compared += 1;
                    differ("stdout", &want, &stdout);
                    let want = fs::read(path(&format!("{key}.stderr"))).unwrap_or_default();
                    let want = String::from_utf8_lossy(&want);
                    let (want, stderr) = unlocated(&want, &stderr);
                    if key == "s" || program[key]["deterministic_stderr"] == true {
                        differ("stderr", want, stderr);
                    }
                } else if let Some(want) = transcript(&path("mt.sorted")) {
                    compared += 1;
                    differ("sorted stdout", &sorted(&want).join("\n"), &sorted(&stdout).join("\n"));
                }
            }
        }
    }
    compared
}

/// A single test, because programs run with their folder as the current directory, which is global to the process.
#[test]
fn transcripts_match() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let corpus = std::env::var_os("PTERON_CORPUS").map(|c| PathBuf::from(c).join("bef"));
    if corpus.is_none() {
        eprintln!("SKIPPED: the whole corpus (PTERON_CORPUS is not set); only the sample was run");
    }
    let mut failures = Vec::new();
    for set in std::iter::once(sample).chain(corpus) {
        std::env::set_current_dir(&set).unwrap();
        let compared = check(&set, &mut failures);
        eprintln!("{}: {compared} transcripts compared", set.display());
        assert!(compared > 0, "{}: no transcripts", set.display());
    }
    assert!(failures.is_empty(), "{} differences\n\n{}", failures.len(), failures.join("\n\n"));
}

/// Malformed files fail with an exit code, and within the limits.
#[test]
fn malformed_files_fail_cleanly() {
    let Some(corpus) = std::env::var_os("PTERON_CORPUS") else {
        eprintln!("SKIPPED: malformed files (PTERON_CORPUS is not set)");
        return;
    };
    let limits =
        pteron_host::Limits { kernels: 1 << 20, executions: 1 << 16, value_bytes: 1 << 24, memory: 1 << 26 };
    let folder = PathBuf::from(corpus).join("bef/bad");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "bef") {
            for queue in [Queue::SingleThreaded, Queue::MultiThreaded(2)] {
                let options = Options { queue, limits, ..Options::default() };
                let (code, _, _) = run(&path, &options);
                assert!(code == 0 || code == 1, "{}", path.display());
            }
            count += 1;
        }
    }
    eprintln!("{count} malformed files ended cleanly");
    assert!(count > 0);
}
