//! Memory accounting of a method: arenas, weights, packed weights and workspaces.

use pteron::format::container::Blob;
use pteron::format::pte::{
    AllocationDetails, Builder, Chain, EValue as Value, ExecutionPlan, Instruction, Operator,
    Tensor as Planned,
};
use pteron::{DataLoader, EValue, FileLoader, Limits, LoadOptions, Method, Pool, Program, Tensor};
use std::path::PathBuf;
use std::sync::Arc;

/// Rows and columns of each layer's weights.
const SIDE: usize = 256;
/// Bytes of each layer's weights.
const WEIGHTS: u64 = (4 * SIDE * SIDE) as u64;
/// The number of linear layers.
const LAYERS: usize = 8;

/// A file that is removed on drop.
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

/// A chain of linear layers, each with its own weights, which average the elements of the input.
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
        // The first element is the layer's number, so that no two layers have equal weights; the others are 1 / SIDE.
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

/// Packed weights give the same sums up to rounding.
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
    // The packed weights and a workspace; the weights as read are released.
    assert!((all..all + WEIGHTS / 4).contains(&prepared.memory()), "{}", prepared.memory());
    assert_close(&run(&mut written), &run(&mut prepared));

    let fork = prepared.fork().unwrap();
    let both = prepared.memory();
    assert!((all..all + WEIGHTS / 4).contains(&both), "{both}");
    drop(fork);
    assert!(prepared.memory() < both);
}

#[test]
fn loading_holds_at_most_one_layer_twice_while_packing() {
    let file = chain("peak");
    let all = LAYERS as u64 * WEIGHTS;
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    // Room for all weights and two more layers, but not for all of them twice.
    let mut method = load(&file, all + 2 * WEIGHTS, false).unwrap();
    assert_close(&run(&mut method), &expected);
    // Each was read once, so all were packed: weights that cannot be packed are read again to run as written.
    let read = method.program().loader().bytes_loaded();
    assert!((all..all + WEIGHTS / 2).contains(&read), "{read}");
}

#[test]
fn packing_on_several_threads_gives_the_results_of_one_thread() {
    let file = chain("threads");
    let all = LAYERS as u64 * WEIGHTS;
    let mut one = load(&file, u64::MAX, false).unwrap();
    let expected = run(&mut one);
    // The second limit has no room for all weights and their packed copies at once: some are packed one after another.
    for memory in [u64::MAX, all + 2 * WEIGHTS] {
        let mut method = load_on(3, &file, memory, false).unwrap();
        assert_eq!(method.memory(), one.memory(), "within {memory}");
        assert_eq!(run(&mut method), expected, "within {memory}");
    }
}

#[test]
fn without_memory_for_packing_instructions_run_as_written() {
    let file = chain("tight");
    let all = LAYERS as u64 * WEIGHTS;
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    let mut method = load(&file, all + WEIGHTS / 8, false).unwrap();
    assert!(method.memory() <= all + WEIGHTS / 8);
    assert_close(&run(&mut method), &expected);
}

/// A chain of additions of float16 constants, which regions convert to f32.
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
fn constants_computed_by_passes_count() {
    let file = halves("halves");
    let (halves, arenas) = (LAYERS as u64 * WEIGHTS / 2, WEIGHTS);
    let run = |method: &mut Method| -> Vec<pteron::f16> {
        let x = Tensor::from_slice(&[SIDE, SIDE], &[pteron::f16::ONE; SIDE * SIDE]).unwrap();
        method.execute(&[x.into()]).unwrap()[0].as_tensor().unwrap().to_vec().unwrap()
    };
    let mut written = load(&file, u64::MAX, true).unwrap();
    let (as_written, expected) = (written.memory(), run(&mut written));
    assert!((halves + arenas..halves + arenas + WEIGHTS).contains(&as_written), "{as_written}");
    let floats = LAYERS as u64 * WEIGHTS;
    let prepared = load(&file, u64::MAX, false).unwrap().memory();
    assert!(prepared >= floats + arenas, "{prepared} of {floats} and {arenas}");
    // Without room for the converted constants, all or some instructions run as written.
    for memory in [as_written, as_written + 2 * WEIGHTS, prepared] {
        let mut method = load(&file, memory, false).unwrap();
        assert!(method.memory() <= memory, "{} within {memory}", method.memory());
        assert_eq!(run(&mut method), expected, "within {memory}");
    }
}

/// A method of many instructions on few bytes, whose memory is mostly tables.
#[test]
fn tables_of_a_method_count() {
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
    // With room for the tables alone, instructions run as written.
    let mut method = load(&file, tables + 1024, false).unwrap();
    assert_eq!(run(&mut method), [1.0, 0.0, 3.0, 0.0]);
    let mut method = load(&file, 4 * tables, false).unwrap();
    assert_eq!(run(&mut method), [1.0, 0.0, 3.0, 0.0]);
    let e = load(&file, tables / 2, false).unwrap_err().to_string();
    assert!(e.starts_with("a method with its tables needs"), "{e}");
    // The program itself is not read if it exceeds the limit.
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
fn a_method_that_loads_within_a_limit_also_runs() {
    let file = chain("limits");
    let all = LAYERS as u64 * WEIGHTS;
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    for memory in (all - WEIGHTS..all + 3 * WEIGHTS).step_by(WEIGHTS as usize / 8) {
        match load(&file, memory, false) {
            Ok(mut method) => assert_close(&run(&mut method), &expected),
            Err(e) => assert!(e.to_string().contains("Limits::memory"), "{memory}: {e}"),
        }
    }
    // Small constants, which calls in regions read unpacked.
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

/// The resident bytes of a mapped file.
#[cfg(target_os = "linux")]
fn mapped(path: &std::path::Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let held = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the file is mapped");
    held.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn mapped_pages_are_released_once_weights_are_packed() {
    let file = chain("mapped");
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    // SAFETY: only this test uses the file, and it does not write to it again.
    let unchanged = unsafe { pteron::Unchanged::promise() };
    let program = Program::map(&file.0, unchanged).unwrap();
    let mut method = program.load_method("forward", pteron::load_options()).unwrap();
    let held = mapped(&file.0);
    assert!(held <= WEIGHTS, "{held} bytes of {LAYERS} weights of {WEIGHTS}");
    assert_close(&run(&mut method), &expected);
    // As written, instructions read the weights in the map.
    let options = LoadOptions { no_prepare: true, ..pteron::load_options() };
    let mut written = program.load_method("forward", options).unwrap();
    assert_close(&run(&mut written), &expected);
    assert!(mapped(&file.0) >= LAYERS as u64 * WEIGHTS);
}
