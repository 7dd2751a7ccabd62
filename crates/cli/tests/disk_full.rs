//! On a full disk, every verb that writes names the file, and leaves the old file unchanged and no temporary files.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a command with a full disk of 64 KiB mounted at `$1`, and checks that it changes no file there.
const SCRIPT: &str = r#"
    disk=$1; shift
    mount -t tmpfs -o size=64k pteron "$disk" || exit 77
    echo old > "$disk/out"
    mkdir "$disk/folder"
    dd if=/dev/zero of="$disk/filler" bs=4k 2> /dev/null
    before=$(find "$disk" -type f; cat "$disk/out")
    "$@"
    status=$?
    after=$(find "$disk" -type f; cat "$disk/out")
    [ "$before" = "$after" ] || { echo "LEFT BEHIND: $after" >&2; exit 99; }
    exit $status
"#;

/// The exit status if this process may not mount a disk.
const NO_DISK: i32 = 77;

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pteron-disk-full-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("disk")).expect("a folder");
    folder
}

/// Runs the command in a new mount namespace in which `disk` is a full disk. `None` if the system does not allow that.
fn on_full_disk(disk: &Path, args: &[String]) -> Option<Output> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(disk).arg(env!("CARGO_BIN_EXE_pteron")).args(args);
    let output = command.output().ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    (output.status.code() != Some(NO_DISK) && !stderr.starts_with("unshare:")).then_some(output)
}

#[test]
fn every_verb_that_writes_names_the_file_and_leaves_nothing_behind() {
    let folder = folder();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = |name: &str| folder.join(name).display().to_string();
    let (code, data) = (path("code.pte"), path("data.ptd"));
    let digits = root.join("examples/digits/digits.pte").display().to_string();
    let bef = root.join("crates/tfrt/bef/tests/data/fib_recursive.bef").display().to_string();
    let made = Command::new(env!("CARGO_BIN_EXE_pteron"))
        .args(["externalize", &digits, "-o", &code, "--data", &data])
        .status();
    assert!(made.expect("pteron runs").success());

    let disk = folder.join("disk");
    let mut writers = vec![
        format!("strip {digits} -o %/out"),
        format!("merge {data} -o %/out"),
        format!("embed {code} --data {data} -o %/out"),
        format!("externalize {digits} -o /dev/null --data %/out"),
        format!("externalize {digits} -o %/out --data /dev/null"),
        format!("bundle {digits} -o %/out"),
        format!("extract {digits} --constants -o %/folder"),
        format!("extract {digits} --segments -o %/folder"),
        format!("run {digits} --output %/folder"),
        format!("run {digits} --checkpoint %/out"),
        format!("profile {digits} --trace %/out"),
        format!("profile {digits} --etdump %/out"),
        format!("profile {digits} --etdump /dev/null --debug-buffer %/out"),
        format!("ops --file {digits} --emit %/out"),
        format!("translate {bef} -o %/out"),
        format!("print --bytes {bef} -o %/out"),
    ];
    writers.extend(["ptd", "safetensors", "npz"].map(|to| format!("convert {data} --to {to} -o %/out")));
    writers.extend(
        ["inspect", "plan", "print", "validate", "ops --file"].map(|v| format!("{v} {digits} -o %/out")),
    );
    for writer in &writers {
        let args: Vec<String> =
            writer.split(' ').map(|word| word.replace('%', &disk.display().to_string())).collect();
        let Some(output) = on_full_disk(&disk, &args) else {
            eprintln!("did not run: this system gives its users no disks of their own");
            break;
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{writer}: {:?}, {stderr}", output.status);
        let named = stderr.contains(&format!("cannot write {}", disk.display()));
        assert!(named && stderr.contains("No space left"), "{writer}: {stderr}");
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}
