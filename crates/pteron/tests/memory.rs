//! Memory accounting of a method: arenas, weights, packed weights and workspaces.

use pteron::compile::{self, OperatorTable, Options};
use pteron::data::{BytesLoader, Purpose};
use pteron::format::container::Blob;
use pteron::format::pte::{
    AllocationDetails, Builder, Chain, EValue as Value, ExecutionPlan, Instruction, Operator,
    Tensor as Planned,
};
use pteron::{
    DataLoader, EValue, FileLoader, FreeableBuffer, Limits, LoadOptions, Method, Pool, Program, Tensor,
    Unchanged,
};
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
    chain_of(name, LAYERS, SIDE)
}

/// As [`chain`], with this many layers and elements of the input.
fn chain_of(name: &str, layers: usize, side: usize) -> Temporary {
    let mut builder = Builder::new();
    let row = 4 * side as u64;
    let activation = |i: usize| {
        let allocation_info = Some(AllocationDetails::new(1, (i % 2) as u64 * row));
        Value::Tensor(Planned { allocation_info, ..plain(&[1, side]) })
    };
    let mut values = vec![Value::Null, activation(0)];
    let mut instructions = Vec::new();
    for layer in 0..layers {
        // The first element is the layer's number, so that no two layers have equal weights; the others average.
        let mut weights = vec![1.0 / side as f32; side * side];
        weights[0] = layer as f32;
        let data_buffer_idx = builder.add_constant(Blob::bytes(bytes(&weights)));
        values.push(Value::Tensor(Planned { data_buffer_idx, ..plain(&[side, side]) }));
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
    run_on(method, SIDE)
}

fn run_on(method: &mut Method, side: usize) -> Vec<f32> {
    let x: EValue = Tensor::from_slice(&[1, side], &vec![0.5f32; side]).unwrap().into();
    method.execute(&[x]).unwrap()[0].as_tensor().unwrap().to_vec().unwrap()
}

/// Packed weights give the same sums up to rounding.
fn assert_close(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    for (a, b) in actual.iter().zip(expected) {
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
fn a_large_matrix_is_packed_without_being_in_memory_as_a_whole() {
    let side = 1600;
    let (file, weights) = (chain_of("pieces", 1, side), (4 * side * side) as u64);
    let mut written = load(&file, u64::MAX, true).unwrap();
    // Room for the packed matrix and some pieces of the unpacked one.
    let mut method = load(&file, weights + (6 << 20), false).unwrap();
    let read = method.program().loader().bytes_loaded();
    assert!((weights..weights + weights / 8).contains(&read), "{read}");
    assert_close(&run_on(&mut method, side), &run_on(&mut written, side));
}

#[test]
fn what_exceeds_the_limit_runs_as_written_and_is_named() {
    let file = chain("limited");
    let expected = run(&mut load(&file, u64::MAX, false).unwrap());
    // SAFETY: only this test uses the file, and it does not write to it.
    let unchanged = unsafe { Unchanged::promise() };
    let program = Program::map(&file.0, unchanged).unwrap();
    // Mapped weights take no memory: half of them can be packed, and the others are used as they are.
    let limits = Limits { memory: LAYERS as u64 * WEIGHTS / 2, ..Limits::default() };
    let mut method =
        program.load_method("forward", LoadOptions { limits, ..pteron::load_options() }).unwrap();
    assert_close(&run(&mut method), &expected);
    assert!(method.memory() > 2 * WEIGHTS, "{}", method.memory());
    let noted = method.as_written();
    let instructions: usize = noted.iter().map(|noted| noted.instructions.len()).sum();
    assert!((1..LAYERS).contains(&instructions), "{noted:?}");
    assert!(noted.iter().all(|noted| noted.reason.contains("packed weights")), "{noted:?}");
    assert!(load(&file, u64::MAX, false).unwrap().as_written().is_empty());
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
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the file is mapped");
    resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
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
    let resident = mapped(&file.0);
    assert!(resident <= WEIGHTS, "{resident} bytes of {LAYERS} weights of {WEIGHTS}");
    assert_close(&run(&mut method), &expected);
    // As written, instructions read the weights in the map.
    let options = LoadOptions { no_prepare: true, ..pteron::load_options() };
    let mut written = program.load_method("forward", options).unwrap();
    assert_close(&run(&mut written), &expected);
    assert!(mapped(&file.0) >= LAYERS as u64 * WEIGHTS);
}

/// An archive in memory, with the address range of its bytes.
fn archive() -> (Arc<dyn DataLoader>, std::ops::Range<*const u8>) {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives/transformer/model.pt2");
    let bytes = FreeableBuffer::from_bytes(&std::fs::read(path).unwrap()).unwrap();
    let addresses = bytes.as_ptr_range();
    (Arc::new(BytesLoader::named("model.pt2", bytes)), addresses)
}

#[test]
fn weights_of_an_archive_are_used_where_they_are() {
    let (file, archive) = archive();
    let table = OperatorTable::all(&pteron::kernel_registry());
    let compiled = compile::from_loader(&file, &table, &Options::default(), &mut |_, _, _| {}).unwrap();
    let served = compile::in_memory(Arc::clone(&file), &compiled);
    let parts = compiled.program.parts();
    let in_place = parts.iter().filter(|(at, blob)| {
        let part = served.load(*at, blob.len(), Purpose::Constant).unwrap();
        archive.contains(&part.as_ptr())
    });
    let weights = method_weights(&served);
    assert!(in_place.count() >= weights / 2, "{weights} weights, {} parts", parts.len());
}

/// The number of weights of a program.
fn method_weights(served: &Arc<dyn DataLoader>) -> usize {
    let program = Program::load(Arc::clone(served), &Limits::default()).unwrap();
    program.tables().execution_plan[0]
        .values
        .iter()
        .filter(|v| matches!(v, Value::Tensor(t) if t.data_buffer_idx > 0 && t.allocation_info.is_none()))
        .count()
}

#[test]
fn a_served_program_is_the_file_that_would_be_written() {
    let (file, _) = archive();
    let table = OperatorTable::all(&pteron::kernel_registry());
    let compiled = compile::from_loader(&file, &table, &Options::default(), &mut |_, _, _| {}).unwrap();
    let served = compile::in_memory(file, &compiled);
    let mut written = Vec::new();
    compiled.program.write_to(&mut written).unwrap();
    assert_eq!(served.size(), written.len() as u64);
    for len in [1, 7, 128, 1000, written.len() / 2] {
        for start in (0..written.len() - len).step_by(391) {
            let part = served.load(start as u64, len as u64, Purpose::Program).unwrap();
            assert!(*part == written[start..start + len], "{len} bytes at {start}");
        }
    }
    assert!(served.load(1, written.len() as u64, Purpose::Program).is_err());
}
