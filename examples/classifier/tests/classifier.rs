//! The application classifies the digits that are beside their program, in any order, and says what it could not read.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pteron::Program;
use pteron::tools::{edit, picture::Preset, task};

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../digits")
}

/// The program of the digits with its task metadata, in a file of this name.
fn labelled(name: &str) -> PathBuf {
    let labels = std::fs::read_to_string(digits().join("labels.txt")).unwrap();
    let mut preparation = Default::default();
    Preset::Unit.apply(&mut preparation);
    let mut task = task::TaskMetadata::default();
    task.labels = labels.lines().map(str::to_owned).collect();
    task.preprocessing = Some(task::Preprocessing::default().with(&preparation));
    let program = Program::open(digits().join("digits.pte")).unwrap();
    let set = edit::set_task(&program, task, &Default::default()).unwrap();
    let path = std::env::temp_dir().join(format!("pteron-classifier-{name}-{}.pte", std::process::id()));
    set.program.write_to(&mut std::fs::File::create(&path).unwrap()).unwrap();
    path
}

fn classifier(model: &Path, pictures: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pteron-classifier")).arg(model).args(pictures).output().unwrap()
}

#[test]
fn pictures_get_the_labels_that_the_program_stores() {
    let model = labelled("labels");
    let pictures: Vec<_> = (0..10).map(|digit| digits().join(format!("{digit}.png"))).collect();
    let output = classifier(&model, &pictures);
    let _ = std::fs::remove_file(&model);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<_> = text.lines().map(|line| line.split('\t').collect::<Vec<_>>()).collect();
    lines.sort();
    assert_eq!(lines.len(), 10);
    for (digit, line) in lines.iter().enumerate() {
        assert!(line[0].ends_with(&format!("{digit}.png")), "{line:?}");
        assert_eq!(line[1], digit.to_string());
    }
}

#[test]
fn what_is_no_picture_is_said_and_the_others_are_classified() {
    let model = labelled("errors");
    let output = classifier(&model, &[digits().join("labels.txt"), digits().join("3.png")]);
    let _ = std::fs::remove_file(&model);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("labels.txt: "));
    assert!(String::from_utf8_lossy(&output.stdout).contains("3.png\t3\t0.9"));
}
