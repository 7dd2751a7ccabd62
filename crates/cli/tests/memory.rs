//! A command that runs out of memory ends with an error and is not aborted, for any `ulimit -v` that lets the command
//! start.
#![cfg(target_os = "linux")]

use pteron::format::container::Blob;
use pteron::format::pte::{
    AllocationDetails, Builder, Chain, EValue as Value, ExecutionPlan, Instruction, Operator, Tensor,
};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Rows and columns of each layer's weights.
const SIDE: usize = 2048;
/// The number of linear layers, with 16 MiB of weights each.
const LAYERS: usize = 2;
/// Rows of the input, which make outputs of 512 KiB.
const ROWS: usize = 64;

fn tensor(sizes: [usize; 2]) -> Tensor {
    let sizes = sizes.map(|n| n as i32).to_vec();
    Tensor { scalar_type: 6, dim_order: vec![0, 1], sizes, ..Tensor::default() }
}

/// Writes a program of linear layers.
fn program(path: &Path) {
    let mut builder = Builder::new();
    let bytes = (4 * ROWS * SIDE) as u64;
    let activation = |i: usize| {
        let allocation_info = Some(AllocationDetails::new(1, (i % 2) as u64 * bytes));
        Value::Tensor(Tensor { allocation_info, ..tensor([ROWS, SIDE]) })
    };
    let (mut values, mut instructions) = (vec![Value::Null, activation(0)], Vec::new());
    for layer in 0..LAYERS {
        let mut weights = vec![0u8; 4 * SIDE * SIDE];
        weights[..4].copy_from_slice(&(layer as f32).to_le_bytes());
        let data_buffer_idx = builder.add_constant(Blob::bytes(weights));
        values.push(Value::Tensor(Tensor { data_buffer_idx, ..tensor([SIDE, SIDE]) }));
        values.push(activation(layer + 1));
        let w = 2 * layer as i32 + 2;
        instructions.push(Instruction::KernelCall { op_index: 0, args: vec![w - 1, w, 0, w + 1, w + 1] });
    }
    builder.execution_plan.push(ExecutionPlan {
        name: "forward".to_owned(),
        inputs: vec![1],
        outputs: vec![values.len() as i32 - 1],
        values,
        chains: vec![Chain { instructions, ..Chain::default() }],
        operators: vec![Operator { name: "aten::linear".to_owned(), overload: "out".to_owned() }],
        non_const_buffer_sizes: vec![0, 2 * bytes as i64],
        ..ExecutionPlan::default()
    });
    let mut file = std::fs::File::create(path).expect("a file");
    builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
}

/// Runs a command with this many KiB of address space.
fn within(kilobytes: usize, args: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -c 0; ulimit -v \"$0\"; exec \"$@\"", &kilobytes.to_string()])
        .arg(env!("CARGO_BIN_EXE_pteron"))
        .args(args)
        .output()
        .expect("sh runs")
}

/// The KiB by which the address space shrinks in each step.
const STEP: usize = 4 << 10;
/// The KiB reserved for small allocations of fixed size, whose failure aborts the process: stacks, tables of the system's
/// libraries, buffers of a few KiB.
const FIXED: usize = 8 << 10;

/// The least address space in which the command starts, in KiB.
fn least_room() -> usize {
    let mut room = 200 << 10;
    while within(room - STEP, &["--version"]).status.success() {
        room -= STEP;
    }
    room
}

/// Runs a command with less and less address space, down to `least` KiB.
fn squeeze(args: &[&str], least: usize) {
    let (mut room, mut succeeded, mut refused) = (least + (160 << 10), 0, 0);
    while room >= least {
        let output = within(room, args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => succeeded += 1,
            Some(1) if stderr.contains("error: ") => refused += 1,
            _ => panic!("{args:?} within {room} KiB: {:?}, {stderr}", output.status.signal()),
        }
        room -= if succeeded > 0 && refused == 0 { 4 * STEP } else { STEP };
    }
    assert!(succeeded > 0 && refused > 0, "{args:?}: {succeeded} succeeded, {refused} refused");
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pteron-cli-memory-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn no_command_is_aborted_for_lack_of_memory() {
    let folder = folder("squeeze");
    let model = folder.join("m.pte");
    program(&model);
    let path = |name: &str| folder.join(name).display().to_string();
    let (model, out, data) = (path("m.pte"), path("out"), path("w.ptd"));
    let first = within(1 << 20, &["externalize", &model, "-o", &path("x.pte"), "--data", &data]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let least = least_room() + FIXED;
    for args in [
        &["run", &model, "-t", "1"][..],
        &["run", &model, "-t", "1", "--no-prepare"],
        &["run", &model, "-t", "1", "--json"],
        &["run", &model, "-t", "1", "--top", "3"],
        &["run", &model, "-t", "1", "--output", &out],
        &["extract", &model, "--constants", "-o", &out],
        &["convert", &data, "-o", &path("w.npz")],
        &["profile", &model, "-t", "1"],
    ] {
        squeeze(args, least);
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}

/// Cases run concurrently only if there is enough address space for the threads.
#[test]
fn verify_is_not_aborted_for_lack_of_memory() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus/tiny");
    let cases = ["ModuleAdd", "ModuleIndex"].map(|case| cases.join(case).display().to_string());
    let (args, least) = (["verify", &cases[0], &cases[1]], least_room() + FIXED);
    for room in (least..least + (300 << 10)).step_by(3 * STEP) {
        let output = within(room, &args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(0),
            "within {room} KiB: {:?}, {stderr}",
            output.status.signal()
        );
    }
}
