//! How the command treats its standard streams.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn pteron() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pteron"))
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        pteron().arg("ops").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pteron starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("pteron ends");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_program_may_come_from_stdin() {
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

#[test]
fn colour_is_given_when_asked_for() {
    let coloured = |when: &str| {
        let output =
            pteron().args(["inspect", "/no/such/file", "--color", when]).output().expect("pteron runs");
        output.stderr.contains(&0x1b)
    };
    assert!(coloured("always"));
    assert!(!coloured("never"));
    assert!(!coloured("auto"));
}
