//! Handling of the standard streams.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn pteron() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pteron"))
}

#[test]
fn a_closed_stdout_is_no_error() {
    let mut child =
        pteron().arg("ops").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pteron starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("pteron ends");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_program_is_read_from_stdin() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pte");
    let program = std::fs::read(&digits).expect("digits.pte");
    for verb in ["inspect", "validate"] {
        let mut child = pteron()
            .args([verb, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("pteron starts");
        child.stdin.take().expect("a pipe").write_all(&program).expect("pteron reads");
        let output = child.wait_with_output().expect("pteron ends");
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("stdin: "), "{verb}");
    }
}

/// Every option that takes a file accepts a pipe, which is read to its end, and stdin.
#[cfg(unix)]
#[test]
fn pipes_are_read_as_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tiny = root.join("testdata/corpus/tiny");
    let digits = root.join("examples/digits");
    let script = format!(
        "set -e; cd {}
        pteron=$1
        $pteron inspect <(cat {digits}/digits.pte) | grep -q 'method forward'
        $pteron inspect /dev/stdin < {digits}/digits.pte | grep -q 'method forward'
        $pteron run {digits}/digits.pte <(cat {digits}/3.png) 2>&1 | grep -q 'is no input'
        $pteron run ModuleAdd/model.pte 2x2xf32=@- 2x2xf32 < <(head -c 16 /dev/zero) | grep -q '0, 0'
        $pteron run ModuleAdd/model.pte 2x2xf32=@<(head -c 16 /dev/zero) 2x2xf32 | grep -q '0, 0'
        $pteron run ModuleLinear_extconst/model.pte --data <(cat ModuleLinear_extconst/*.ptd) | grep -q output
        $pteron run ModuleLinear_extconst/model.pte --data - < ModuleLinear_extconst/*.ptd | grep -q output
        $pteron run {digits}/digits.pte --top 1 --labels <(cat {digits}/labels.txt) | grep -q .
        $pteron validate <(cat {digits}/digits.pte) -o >(cat > /dev/null)",
        tiny.display(),
        digits = digits.display()
    );
    let output = Command::new("bash")
        .args(["-c", &script, "bash", env!("CARGO_BIN_EXE_pteron")])
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_gives_an_error_that_names_the_file() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pte");
    let digits = digits.to_str().expect("a path");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    for args in [&["ops"][..], &["strip", digits], &["inspect", digits, "--json"], &["run", digits]] {
        let output = pteron().args(args).stdout(full()).output().expect("pteron runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("cannot write stdout"), "{args:?}: {stderr}");
        assert!(stderr.contains("No space left"), "{args:?}: {stderr}");
    }
    for args in [
        &["strip", digits, "-o", "/dev/full"][..],
        &["inspect", digits, "-o", "/dev/full"],
        &["profile", digits, "--trace", "/dev/full"],
        &["profile", digits, "--etdump", "/dev/full"],
        &["bundle", digits, "-o", "/dev/full"],
        &["externalize", digits, "-o", "/dev/null", "--data", "/dev/full"],
    ] {
        let output = pteron().args(args).output().expect("pteron runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("cannot write /dev/full\n"), "{args:?}: {stderr}");
        assert!(stderr.contains("No space left"), "{args:?}: {stderr}");
    }
    let output = pteron().args(["run", digits]).stderr(full()).output().expect("pteron runs");
    assert!(output.status.success());
}

/// If stdin is redirected from a file, the same file may also be named: unlike a pipe, it can be read twice.
#[test]
fn stdin_and_an_argument_may_be_the_same_file() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pte");
    let stdin = std::fs::File::open(&digits).expect("the example");
    let output = pteron().arg("diff").arg("-").arg(&digits).stdin(stdin).output().expect("pteron runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn colour_follows_the_option() {
    let coloured = |when: &str| {
        let output =
            pteron().args(["inspect", "/no/such/file", "--color", when]).output().expect("pteron runs");
        output.stderr.contains(&0x1b)
    };
    assert!(coloured("always"));
    assert!(!coloured("never"));
    assert!(!coloured("auto"));
}
