//! What a method holds, counted: arenas, weights, what they are packed to, and workspaces.

use pteron::format::container::Blob;
use pteron::format::pte::{
    AllocationDetails, Builder, Chain, EValue as Value, ExecutionPlan, Instruction, Operator,
    Tensor as Planned,
};
use pteron::{DataLoader, EValue, FileLoader, Limits, LoadOptions, Method, Pool, Program, Tensor};
use std::path::PathBuf;
use std::sync::Arc;

/// Rows and columns of the weights of each product.
const SIDE: usize = 256;
/// Bytes of the weights of each product.
const WEIGHTS: u64 = (4 * SIDE * SIDE) as u64;
/// The number of products.
const LAYERS: usize = 8;

/// A file, removed with the value.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn plain(sizes: &[usize]) -> Planned {
    let sizes: Vec<i32> = sizes.iter().map(|&n| n as i32).collect();
    Planned { scalar_type: 6, dim_order: (0..sizes.len() as u8).collect(), sizes, ..Planned::default() }
}

/// A chain of products with weights of their own: each element of the result is the sum of the input's.
fn chain(name: &str) -> Temporary {
    let mut builder = Builder::new();
    let row = 4 * SIDE as u64;
    let activation = |i: usize| {
        let allocation_info = Some(AllocationDetails::new(1, (i % 2) as u64 * row));
        Value::Tensor(Planned { allocation_info, ..plain(&[1, SIDE]) })
    };
    let mut values = vec![Value::Null, activation(0)];
    let mut instructions = Vec::new();
    for layer in 0..LAYERS {
        // Weights of their own: a layer's number in the first element, then ones over the side.
        let mut weights = vec![1.0 / SIDE as f32; SIDE * SIDE];
        weights[0] = layer as f32;
        let data_buffer_idx = builder.add_constant(Blob::bytes(bytes(&weights)));
        values.push(Value::Tensor(Planned { data_buffer_idx, ..plain(&[SIDE, SIDE]) }));
        values.push(activation(layer + 1));
        let (x, w, y) = (2 * layer as i32 + 1, 2 * layer as i32 + 2, 2 * layer as i32 + 3);
        let x = if layer == 0 { 1 } else { x };
        instructions.push(Instruction::KernelCall { op_index: 0, args: vec![x, w, 0, y, y] });
    }
    let output = values.len() as i32 - 1;
    builder.execution_plan.push(ExecutionPlan {
        name: "forward".to_owned(),
        values,
        inputs: vec![1],
        outputs: vec![output],
        chains: vec![Chain { instructions, ..Chain::default() }],
        operators: vec![Operator { name: "aten::linear".to_owned(), overload: "out".to_owned() }],
        non_const_buffer_sizes: vec![0, 2 * row as i64],
        ..ExecutionPlan::default()
    });
    write(builder, name)
}

fn write(builder: Builder<'_>, name: &str) -> Temporary {
    let mut file = Vec::new();
    builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
    let path = std::env::temp_dir().join(format!("pteron-memory-{name}-{}.pte", std::process::id()));
    std::fs::write(&path, file).expect("a file");
    Temporary(path)
}

fn bytes(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn load(file: &Temporary, memory: u64, no_prepare: bool) -> pteron::Result<Method> {
    load_on(1, file, memory, no_prepare)
}

fn load_on(threads: usize, file: &Temporary, memory: u64, no_prepare: bool) -> pteron::Result<Method> {
    let loader: Arc<dyn DataLoader> = Arc::new(FileLoader::open(&file.0)?);
    let program = Program::load(loader, &Limits::default())?;
    let limits = Limits { memory, ..Limits::default() };
    let options = pteron::load_options().pool(Pool::new(threads));
    program.load_method("forward", LoadOptions { no_prepare, limits, ..options })
}

fn run(method: &mut Method) -> Vec<f32> {
    let x: EValue = Tensor::from_slice(&[1, SIDE], &[0.5f32; SIDE]).unwrap().into();
    method.execute(&[x]).unwrap()[0].as_tensor().unwrap().to_vec().unwrap()
}

/// Packed or not, elements are the same sums, rounded otherwise.
fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{a} and {b}");
    }
}

#[test]
fn weights_are_held_once() {
    let file = chain("once");
    let all = LAYERS as u64 * WEIGHTS;
    let mut written = load(&file, u64::MAX, true).unwrap();
    assert!((all..all + WEIGHTS / 4).contains(&written.memory()), "{}", written.memory());
    let mut prepared = load(&file, u64::MAX, false).unwrap();
    // Packed, with a workspace, and nothing of what was read.
    assert!((all..all + WEIGHTS / 4).contains(&prepared.memory()), "{}", prepared.memory());
    assert_close(&run(&mut written), &run(&mut prepared));

    let fork = prepared.fork().unwrap();
    let both = prepared.memory();
    assert!((all..all + WEIGHTS / 4).contains(&both), "{both}");
    drop(fork);
    assert!(prepared.memory() < both);
}

#[test]
fn loading_holds_the_weights_once_and_one_that_is_packed_twice() {
    let file = chain("peak");
    let all = LAYERS as u64 * WEIGHTS;
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    // Room for all and for one more, not for all of them twice.
    let mut method = load(&file, all + 2 * WEIGHTS, false).unwrap();
    assert_close(&run(&mut method), &expected);
    // Each was read once: what cannot be packed is read again to run as it stands.
    let read = method.program().loader().bytes_loaded();
    assert!((all..all + WEIGHTS / 2).contains(&read), "{read}");
}

#[test]
fn weights_that_threads_pack_side_by_side_are_those_of_one_thread() {
    let file = chain("threads");
    let all = LAYERS as u64 * WEIGHTS;
    let mut one = load(&file, u64::MAX, false).unwrap();
    let expected = run(&mut one);
    // The second has no room for all of them beside what is packed: some are packed in their turn.
    for memory in [u64::MAX, all + 2 * WEIGHTS] {
        let mut method = load_on(3, &file, memory, false).unwrap();
        assert_eq!(method.memory(), one.memory(), "within {memory}");
        assert_eq!(run(&mut method), expected, "within {memory}");
    }
}

#[test]
fn where_packing_has_no_room_instructions_run_as_they_stand() {
    let file = chain("tight");
    let all = LAYERS as u64 * WEIGHTS;
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    let mut method = load(&file, all + WEIGHTS / 8, false).unwrap();
    assert!(method.memory() <= all + WEIGHTS / 8);
    assert_close(&run(&mut method), &expected);
}

/// A chain of additions of constants in half precision, which regions keep in f32.
fn halves(name: &str) -> Temporary {
    let mut builder = Builder::new();
    let bytes = 2 * (SIDE * SIDE) as u64;
    let half = |allocation_info, data_buffer_idx| {
        Value::Tensor(Planned { scalar_type: 5, allocation_info, data_buffer_idx, ..plain(&[SIDE, SIDE]) })
    };
    let activation = |i: usize| half(Some(AllocationDetails::new(1, (i % 2) as u64 * bytes)), 0);
    let (mut values, mut instructions) = (vec![Value::Int(1), activation(0)], Vec::new());
    for layer in 0..LAYERS {
        let data = builder.add_constant(Blob::bytes([layer as u8, 0x3c].repeat(SIDE * SIDE)));
        values.extend([half(None, data), activation(layer + 1)]);
        let y = 2 * layer as i32 + 3;
        instructions.push(Instruction::KernelCall { op_index: 0, args: vec![y - 2, y - 1, 0, y, y] });
    }
    builder.execution_plan.push(ExecutionPlan {
        name: "forward".to_owned(),
        inputs: vec![1],
        outputs: vec![values.len() as i32 - 1],
        values,
        chains: vec![Chain { instructions, ..Chain::default() }],
        operators: vec![Operator { name: "aten::add".to_owned(), overload: "out".to_owned() }],
        non_const_buffer_sizes: vec![0, 2 * bytes as i64],
        ..ExecutionPlan::default()
    });
    write(builder, name)
}

#[test]
fn constants_that_passes_compute_count() {
    let file = halves("halves");
    let (halves, arenas) = (LAYERS as u64 * WEIGHTS / 2, WEIGHTS);
    let run = |method: &mut Method| -> Vec<pteron::f16> {
        let x = Tensor::from_slice(&[SIDE, SIDE], &[pteron::f16::ONE; SIDE * SIDE]).unwrap();
        method.execute(&[x.into()]).unwrap()[0].as_tensor().unwrap().to_vec().unwrap()
    };
    let mut written = load(&file, u64::MAX, true).unwrap();
    let (as_they_stand, expected) = (written.memory(), run(&mut written));
    assert!((halves + arenas..halves + arenas + WEIGHTS).contains(&as_they_stand), "{as_they_stand}");
    let floats = LAYERS as u64 * WEIGHTS;
    let prepared = load(&file, u64::MAX, false).unwrap().memory();
    assert!(prepared >= floats + arenas, "{prepared} of {floats} and {arenas}");
    // Without room for them, instructions run as they stand, or some of them.
    for memory in [as_they_stand, as_they_stand + 2 * WEIGHTS, prepared] {
        let mut method = load(&file, memory, false).unwrap();
        assert!(method.memory() <= memory, "{} within {memory}", method.memory());
        assert_eq!(run(&mut method), expected, "within {memory}");
    }
}

/// A method of many instructions on few bytes: its tables are what it takes.
#[test]
fn tables_count() {
    const CALLS: u64 = 4_000;
    let mut builder = Builder::new();
    let at = |i: u64| {
        Value::Tensor(Planned { allocation_info: Some(AllocationDetails::new(1, i % 2 * 16)), ..plain(&[4]) })
    };
    let call =
        |i: u64| Instruction::KernelCall { op_index: 0, args: vec![i as i32, i as i32 + 1, i as i32 + 1] };
    builder.execution_plan.push(ExecutionPlan {
        name: "forward".to_owned(),
        values: (0..=CALLS).map(at).collect(),
        inputs: vec![0],
        outputs: vec![CALLS as i32],
        chains: vec![Chain { instructions: (0..CALLS).map(call).collect(), ..Chain::default() }],
        operators: vec![Operator { name: "aten::relu".to_owned(), overload: "out".to_owned() }],
        non_const_buffer_sizes: vec![0, 32],
        ..ExecutionPlan::default()
    });
    let file = write(builder, "tables");
    let run = |method: &mut Method| -> Vec<f32> {
        let x = Tensor::from_slice(&[4], &[1f32, -2.0, 3.0, -4.0]).unwrap();
        method.execute(&[x.into()]).unwrap()[0].as_tensor().unwrap().to_vec().unwrap()
    };
    let mut method = load(&file, u64::MAX, true).unwrap();
    let tables = method.memory();
    assert!((500 * CALLS..1500 * CALLS).contains(&tables), "{tables}");
    assert_eq!(run(&mut method), [1.0, 0.0, 3.0, 0.0]);
    let fork = method.fork().unwrap();
    assert!(method.memory() >= 2 * tables - 1024);
    drop(fork);
    // With room for the tables alone, instructions run as they stand.
    let mut method = load(&file, tables + 1024, false).unwrap();
    assert_eq!(run(&mut method), [1.0, 0.0, 3.0, 0.0]);
    let mut method = load(&file, 4 * tables, false).unwrap();
    assert_eq!(run(&mut method), [1.0, 0.0, 3.0, 0.0]);
    let e = load(&file, tables / 2, false).unwrap_err().to_string();
    assert!(e.starts_with("a method with its tables needs"), "{e}");
    // The program itself is not read where it has no room.
    let limits = Limits { memory: 1 << 10, ..Limits::default() };
    let e = Program::load(Arc::new(FileLoader::open(&file.0).unwrap()), &limits).unwrap_err().to_string();
    assert!(e.starts_with("the program of "), "{e}");
}

#[test]
fn weights_over_the_limit_are_refused_before_they_are_read() {
    let file = chain("refused");
    let loader: Arc<dyn DataLoader> = Arc::new(FileLoader::open(&file.0).unwrap());
    let program = Program::load(Arc::clone(&loader), &Limits::default()).unwrap();
    let read = loader.bytes_loaded();
    let limits = Limits { memory: LAYERS as u64 * WEIGHTS - 1, ..Limits::default() };
    let e = program.load_method("forward", LoadOptions { limits, ..pteron::load_options() }).unwrap_err();
    assert!(e.to_string().starts_with("method `forward` with its weights needs"), "{e}");
    assert_eq!(loader.bytes_loaded(), read);
}

#[test]
fn no_limit_lets_a_method_load_that_cannot_run() {
    let file = chain("limits");
    let all = LAYERS as u64 * WEIGHTS;
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    for memory in (all - WEIGHTS..all + 3 * WEIGHTS).step_by(WEIGHTS as usize / 8) {
        match load(&file, memory, false) {
            Ok(mut method) => assert_close(&run(&mut method), &expected),
            Err(e) => assert!(e.to_string().contains("Limits::memory"), "{memory}: {e}"),
        }
    }
    // Small constants, which calls in regions read as they are.
    let digits = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pte");
    let program = Program::open(digits).unwrap();
    for memory in (20_000..200_000).step_by(4_000) {
        let limits = Limits { memory, ..Limits::default() };
        let options = LoadOptions { limits, ..pteron::load_options() };
        match program.load_method("forward", options) {
            Ok(mut method) => {
                let x: EValue = Tensor::from_slice(&[1, 1, 8, 8], &[0.5f32; 64]).unwrap().into();
                method.execute(&[x]).unwrap();
            }
            Err(e) => assert!(e.to_string().contains("Limits::memory"), "{memory}: {e}"),
        }
    }
}

/// Bytes of a file's map that are in this process's memory.
#[cfg(target_os = "linux")]
fn mapped(path: &std::path::Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let held = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the file is mapped");
    held.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn mapped_weights_are_given_back_once_they_are_packed() {
    let file = chain("mapped");
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    // SAFETY: the file is this test's own, and is not written to again.
    let unchanged = unsafe { pteron::Unchanged::promise() };
    let program = Program::map(&file.0, unchanged).unwrap();
    let mut method = program.load_method("forward", pteron::load_options()).unwrap();
    let held = mapped(&file.0);
    assert!(held <= WEIGHTS, "{held} bytes of {LAYERS} weights of {WEIGHTS}");
    assert_close(&run(&mut method), &expected);
    // As they stand, instructions read the weights where they are.
    let options = LoadOptions { no_prepare: true, ..pteron::load_options() };
    let mut written = program.load_method("forward", options).unwrap();
    assert_close(&run(&mut written), &expected);
    assert!(mapped(&file.0) >= LAYERS as u64 * WEIGHTS);
}
