//! A command that is killed while it writes leaves nothing behind.
#![cfg(unix)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of the uint8 tensor that is written. The source file is sparse and takes no disk space.
const BYTES: u64 = SIDE * SIDE;
/// Rows and columns of the tensor.
const SIDE: u64 = 1 << 16;

/// A new folder, and in it a file that takes a while to convert.
fn folder(name: &str) -> (PathBuf, PathBuf) {
    let folder = std::env::temp_dir().join(format!("pteron-interrupted-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let folder = fs::canonicalize(folder).expect("the folder");
    let source = folder.join("big.safetensors");
    let mut header =
        format!(r#"{{"a":{{"dtype":"U8","shape":[{SIDE},{SIDE}],"data_offsets":[0,{BYTES}]}}}}"#);
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = File::create(&source).expect("a file");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("its length");
    file.write_all(header.as_bytes()).expect("its header");
    file.set_len(8 + header.len() as u64 + BYTES).expect("its data");
    (folder, source)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Whether the process has begun to write: it has an unnamed file open in the folder, or there is a `.part` file.
fn is_writing(child: &Child, folder: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", child.id()));
    let mut files = open.into_iter().flatten().flatten().filter_map(|e| fs::read_link(e.path()).ok());
    files.any(|file| file.starts_with(folder) && file.to_string_lossy().ends_with("(deleted)"))
        || names(folder).iter().any(|name| name.ends_with(".part"))
}

fn pteron(folder: &Path, source: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pteron"));
    command.arg("convert").arg(source).arg("-o").arg(folder.join("out.ptd")).stderr(Stdio::null());
    command
}

/// Starts a conversion, sends this signal while it writes, and returns the signal that ended it.
fn interrupt(folder: &Path, source: &Path, signal: &str) -> Option<i32> {
    let mut child = pteron(folder, source).spawn().expect("pteron starts");
    let start = Instant::now();
    while !is_writing(&child, folder) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        assert_eq!(child.try_wait().expect("its state"), None, "ended before it was interrupted");
        std::thread::sleep(Duration::from_millis(1));
    }
    let killed = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    child.wait().expect("pteron ends").signal()
}

/// Whether this process ignores a signal, which its children inherit: shells start background jobs that way.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[test]
fn a_signal_ends_the_process_and_leaves_nothing_behind() {
    let (folder, source) = folder("signals");
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        if is_ignored(number) {
            continue;
        }
        assert_eq!(interrupt(&folder, &source, name), Some(number));
        assert_eq!(names(&folder), ["big.safetensors"], "{name}");
    }
    fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn the_next_write_removes_the_files_of_a_killed_one() {
    let (folder, source) = folder("killed");
    assert_eq!(interrupt(&folder, &source, "KILL"), Some(9));
    if cfg!(target_os = "linux") {
        assert_eq!(names(&folder), ["big.safetensors"]);
    }
    fs::write(folder.join(".out.ptd.4294967294-0.part"), "half of it").expect("a file");
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/convert/python.safetensors");
    assert!(pteron(&folder, &small).status().expect("pteron runs").success());
    assert_eq!(names(&folder), ["big.safetensors", "out.ptd"]);
    fs::remove_dir_all(folder).expect("the folder");
}

#[cfg(target_os = "linux")]
#[test]
fn an_ignored_sighup_stays_ignored() {
    let (folder, source) = folder("nohup");
    let pteron = pteron(&folder, &source);
    let mut line = vec!["trap '' HUP; exec".to_owned(), pteron.get_program().to_string_lossy().into_owned()];
    line.extend(pteron.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    let mut child = Command::new("sh").args(["-c", &line.join(" ")]).spawn().expect("sh starts");
    while !is_writing(&child, &folder) {
        assert_eq!(child.try_wait().expect("its state"), None, "ended before it was interrupted");
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = |signal: &str| Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    assert!(kill("HUP").expect("kill runs").success());
    assert!(kill("TERM").expect("kill runs").success());
    assert_eq!(child.wait().expect("pteron ends").signal(), Some(15));
    fs::remove_dir_all(folder).expect("the folder");
}
