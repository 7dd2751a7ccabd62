//! The runtime on real programs: input checks, layout conversion, state, shared arenas, shared constants, limits, and
//! execution without allocations.

use pteron::{
    BytesLoader, DimOrder, EValue, KernelRegistry, Limits, LoadOptions, Module, NamedDataMap, Program,
    PtdDataMap, Tensor,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Promises that the mapped files do not change.
fn unchanged() -> pteron::Unchanged {
    // SAFETY: these tests only read the files of the corpus, and nothing else writes to them.
    unsafe { pteron::Unchanged::promise() }
}

fn path(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus/tiny").join(case).join("model.pte")
}

fn open(case: &str) -> Module {
    pteron::open(path(case)).unwrap()
}

fn tensor(sizes: &[usize], elements: &[f32]) -> EValue {
    Tensor::from_slice(sizes, elements).unwrap().into()
}

fn floats(value: &EValue) -> Vec<f32> {
    value.as_tensor().unwrap().to_vec().unwrap()
}

#[test]
fn a_bundled_program_opens_as_its_program() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let module = pteron::open(folder.join("corpus/wild/bundled_linear/model.bpte")).unwrap();
    assert!(module.method_meta("forward").is_ok());
    let error = pteron::open(folder.join("hostile/no_program.bpte")).unwrap_err();
    assert!(message(&error).contains("is not valid"), "{}", message(&error));
}

/// The messages of an error and its sources, joined by colons.
fn message(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text += &format!(": {source}");
        next = source.source();
    }
    text
}

fn refusal(module: &mut Module, inputs: &[EValue]) -> String {
    message(&module.forward(inputs).unwrap_err())
}

#[test]
fn errors_describe_wrong_inputs() {
    let mut m = open("ModuleAdd");
    let good = || tensor(&[2, 2], &[1.0; 4]);
    let e = refusal(&mut m, &[good()]);
    assert!(e.contains("takes 3 input(s), 1 were given"), "{e}");
    let e = refusal(&mut m, &[good(), tensor(&[1, 2], &[1.0; 2]), EValue::Double(1.0)]);
    assert!(
        e.contains("input 1 has shape [2, 2], a tensor of shape [1, 2]") && e.contains("dynamic shapes"),
        "{e}"
    );
    let e = refusal(
        &mut m,
        &[good(), Tensor::from_slice(&[2, 2], &[0i32; 4]).unwrap().into(), EValue::Double(1.0)],
    );
    assert!(e.contains("input 1 is a tensor of float32, one of int32"), "{e}");
    let e = refusal(&mut m, &[good(), good(), EValue::Double(2.0)]);
    assert!(e.contains("input 2 was fixed to 1.0"), "{e}");
    let e = refusal(&mut m, &[good(), good(), EValue::Int(1)]);
    assert!(e.contains("input 2 is Double, Int was given"), "{e}");
    let e = refusal(&mut m, &[EValue::None, good(), EValue::Double(1.0)]);
    assert!(e.contains("input 0 is Tensor, None was given"), "{e}");
    let e = message(&m.execute("nope", &[]).unwrap_err());
    assert!(e.contains("no method `nope`; the program has `forward`"), "{e}");
    assert_eq!(floats(&m.forward(&[good(), good(), EValue::Double(1.0)]).unwrap()[0]), [2.0; 4]);
}

#[test]
fn all_missing_operators_are_reported_at_once() {
    let program = Program::open(path("mutable_initialized")).unwrap();
    let e = program.load_method("forward", LoadOptions::new(KernelRegistry::new())).unwrap_err();
    let e = message(&e);
    for part in
        ["aten::add.out` (4 calls)", "aten::mul.out` (2 calls)", "aten::copy_` (3 calls)", "KernelRegistry"]
    {
        assert!(e.contains(part), "{part} in {e}");
    }
    assert_eq!(program.loader().bytes_loaded(), 64 + program.header().program_size, "a segment was read");
}

#[test]
fn inputs_are_converted_to_the_dim_order_of_the_program() {
    let mut m = open("channels_last_elementwise");
    let elements: Vec<f32> = (0..90).map(|i| i as f32 - 45.0).collect();
    let plain = Tensor::from_slice(&[1, 3, 6, 5], &elements).unwrap();
    let last = plain.to_dim_order(DimOrder::channels_last(4)).unwrap();
    let a = m.forward(&[plain.into()]).unwrap();
    let b = m.forward(&[last.into()]).unwrap();
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(floats(a), floats(b));
        assert!(a.as_tensor().unwrap().dim_order().is_channels_last());
    }
}

#[test]
fn methods_share_state_when_asked_to() {
    let set = |m: &mut Module, v: f32| m.execute("set_state", &[tensor(&[1], &[v])]).map(|_| ()).unwrap();
    let get = |m: &mut Module| floats(&m.execute("get_state", &[]).unwrap()[0])[0];
    let mut separate = open("ModuleSharedState");
    set(&mut separate, 7.0);
    assert_eq!(get(&mut separate), 0.0);
    let mut shared = open("ModuleSharedState");
    shared.share_memory_arenas().unwrap();
    set(&mut shared, 7.0);
    assert_eq!(get(&mut shared), 7.0);
    shared.forward(&[tensor(&[1], &[1.0])]).unwrap();
    assert_eq!(get(&mut shared), 8.0);
}

#[test]
fn threads_load_methods_of_one_program() {
    let file = path("ModuleAddMul");
    let program = Program::open(file).unwrap();
    let x = [1.0f32, 2.0, 3.0, 4.0];
    let expected = floats(
        &Module::new(program.clone(), pteron::load_options()).forward(&[tensor(&[2, 2], &x)]).unwrap()[0],
    );
    let loaded = program.loader().bytes_loaded();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut method = program.load_method("forward", pteron::load_options()).unwrap();
                for _ in 0..100 {
                    assert_eq!(floats(&method.execute(&[tensor(&[2, 2], &x)]).unwrap()[0]), expected);
                }
            });
        }
    });
    let constants = program.tables().constant_segment().map_or(0, |r| r.end - r.start);
    assert!(program.loader().bytes_loaded() <= loaded + 4 * constants);
}

#[test]
fn external_constants_come_from_exactly_one_data_file() {
    let file = path("ModuleAddMul_extconst");
    let mut without = pteron::open(&file).unwrap();
    let e = message(&without.forward(&[tensor(&[2, 2], &[1.0; 4])]).unwrap_err());
    assert!(e.contains("2 tensor(s) are stored outside the program") && e.contains(".ptd"), "{e}");
    let data = || {
        Arc::new(PtdDataMap::map(file.with_file_name("_default_external_constant.ptd"), unchanged()).unwrap())
    };
    let mut with = Module::map(&file, pteron::load_options().data(data()), unchanged()).unwrap();
    with.forward(&[tensor(&[2, 2], &[1.0; 4])]).unwrap();
    let twice = pteron::MergedDataMap::new(vec![data(), data()]).err().unwrap();
    assert!(message(&twice).contains("a key may come from one place only"), "{twice}");
    assert!(data().tensor_layout("nothing").is_err());
}

#[test]
fn limits_bound_memory_and_instructions() {
    let tight = |change: fn(&mut Limits)| {
        let mut limits = Limits::strict();
        change(&mut limits);
        Module::open(path("ModuleAddMul"), pteron::load_options().limits(limits))
    };
    let run = |m: pteron::Result<Module>| m.unwrap().forward(&[tensor(&[2, 2], &[1.0; 4])]);
    assert!(run(tight(|_| ())).is_ok());
    let e = message(&run(tight(|l| l.arena_bytes = 16)).unwrap_err());
    assert!(e.contains("Limits::arena_bytes"), "{e}");
    let e = message(&run(tight(|l| l.instructions = 0)).unwrap_err());
    assert!(e.contains("0 instructions have been executed, the limit"), "{e}");
    let e = message(&tight(|l| l.format.program_bytes = 100).err().unwrap());
    assert!(e.contains("Limits::format.program_bytes"), "{e}");
}

#[test]
fn a_planned_program_allocates_nothing_when_it_runs() {
    for no_prepare in [false, true] {
        let options = LoadOptions { no_prepare, ..pteron::load_options() };
        let program = Program::open(path("ModuleAddMul")).unwrap();
        let mut method = program.load_method("forward", options).unwrap();
        let x = Tensor::from_slice(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let mut run = || {
            method.set_input_tensor(0, x.view()).unwrap();
            method.run().unwrap();
            method.output_tensor(0).unwrap().storage::<f32>().unwrap()[0]
        };
        let first = run();
        let before = ALLOCATIONS.get();
        let second = run();
        assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in a run, no_prepare: {no_prepare}");
        assert_eq!(first, second);
    }
}

#[test]
fn constant_methods_and_metadata() {
    let mut m = open("multimethod_constmethods_share1");
    assert!(matches!(m.execute("get_vocab", &[]).unwrap()[..], [EValue::Int(_)]));
    assert!(matches!(m.execute("flag", &[]).unwrap()[..], [EValue::Bool(_)]));
    assert!(matches!(&m.execute("name", &[]).unwrap()[..], [EValue::String(_)]));
    let meta = m.method_meta("step").unwrap();
    assert_eq!(meta.memory_arenas().collect::<Vec<_>>(), [112, 16]);
    assert_eq!(meta.operators().iter().map(|op| op.calls).sum::<usize>(), meta.num_instructions());
    let input = &meta.inputs()[0];
    assert_eq!(&**input.tensor.as_ref().unwrap().meta.sizes(), &[4]);
    assert!(!meta.uses_backend("XnnpackBackend"));
}

#[test]
fn a_program_loads_from_bytes_as_from_a_file() {
    let bytes = std::fs::read(path("ModuleAddMul")).unwrap();
    let loader = Arc::new(BytesLoader::new(bytes));
    let mut from_bytes = Module::load(loader, pteron::load_options()).unwrap();
    let x = [tensor(&[2, 2], &[0.5, -1.0, 2.0, 3.0])];
    assert_eq!(
        floats(&from_bytes.forward(&x).unwrap()[0]),
        floats(&open("ModuleAddMul").forward(&x).unwrap()[0])
    );
}
