//! Limits on instructions, time and memory, and cancellation.

use pteron::format::container::Blob;
use pteron::format::pte::{self, Builder, Instruction};
use pteron::{
    BytesLoader, EValue, Error, FnKernel, Interrupt, Interrupted, Limits, LoadOptions, Module, Program,
    Tensor,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The digit classifier as an endless loop, by a jump from its last instruction to its first that is always taken, and the
/// number of instructions per iteration.
fn endless() -> (Program, u64) {
    let file = std::fs::read(root().join("examples/digits/digits.pte")).unwrap();
    let program = Program::load(Arc::new(BytesLoader::new(file.clone())), &Limits::default()).unwrap();
    let part =
        |range: std::ops::Range<u64>| Blob::bytes(file[range.start as usize..range.end as usize].to_vec());
    let mut builder = Builder::from_program(program.tables(), part);
    let plan = &mut builder.execution_plan[0];
    plan.values.push(pte::EValue::Bool(false));
    let condition = plan.values.len() as i32 - 1;
    let instructions = &mut plan.chains[0].instructions;
    instructions.push(Instruction::JumpFalseCall { cond_value_index: condition, destination_instruction: 0 });
    let turn = instructions.len() as u64;
    plan.chains[0].stacktrace.clear();
    let mut file = Vec::new();
    builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
    (Program::load(Arc::new(BytesLoader::new(file)), &Limits::default()).unwrap(), turn)
}

fn picture() -> EValue {
    Tensor::from_slice(&[1, 1, 8, 8], &[0.5f32; 64]).unwrap().into()
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

#[test]
fn a_region_counts_as_the_instructions_that_it_replaces() {
    let (program, turn) = endless();
    for limit in [0, 1, turn - 1, turn, 5 * turn + 3] {
        let end = |no_prepare| {
            let limits = Limits { instructions: limit, ..Limits::default() };
            let options = LoadOptions { no_prepare, ..pteron::load_options().limits(limits) };
            causes(&Module::new(program.clone(), options).forward(&[picture()]).unwrap_err())
        };
        let (prepared, as_written) = (end(false), end(true));
        assert!(prepared.contains(&format!("{limit} instructions have been executed")), "{prepared}");
        assert_eq!(prepared, as_written);
    }
}

#[test]
fn an_execution_ends_on_timeout_or_cancellation() {
    let (program, _) = endless();
    for no_prepare in [false, true] {
        let limits = Limits { time: Some(Duration::from_millis(30)), ..Limits::none() };
        let options = LoadOptions { no_prepare, ..pteron::load_options().limits(limits) };
        let mut module = Module::new(program.clone(), options);
        for _ in 0..2 {
            let e = causes(&module.forward(&[picture()]).unwrap_err());
            assert!(e.ends_with("the execution was interrupted: its time is over"), "{e}");
        }

        let handle = Interrupt::new();
        let options = pteron::load_options().limits(Limits::none()).interrupt(handle.clone());
        let mut module = Module::new(program.clone(), LoadOptions { no_prepare, ..options });
        module.load_method("forward").unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            handle.cancel();
        });
        let e = causes(&module.forward(&[picture()]).unwrap_err());
        assert!(e.ends_with("the execution was interrupted: it was cancelled"), "{e}");
        other.join().unwrap();
    }
}

#[test]
fn a_parallel_loop_is_cancelled_between_work_items() {
    const ITEMS: usize = 1 << 20;
    let (handle, done) = (Interrupt::new(), Arc::new(AtomicUsize::new(0)));
    let (cancel, count) = (handle.clone(), Arc::clone(&done));
    let schema = "my_ops::mul3.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
    let mul3 = FnKernel::new(schema, move |ctx, args, outs| {
        outs.tensor(0)?.resize(args.tensor("self")?.sizes())?;
        ctx.pool().parallel_for(ITEMS, 1, &|range| {
            if count.fetch_add(range.len(), Ordering::Relaxed) > 0 {
                cancel.cancel();
            }
        });
        Ok(())
    });
    let mut kernels = pteron::kernel_registry();
    kernels.register(mul3.unwrap()).unwrap();
    let path = root().join("crates/pteron/examples/mul3.pte");
    let options = LoadOptions::new(kernels).interrupt(handle.clone());
    let mut module = Module::open(path, options).unwrap();
    let input = [Tensor::from_slice(&[2, 2], &[1f32; 4]).unwrap().into()];
    for _ in 0..2 {
        let e = causes(&module.forward(&input).unwrap_err());
        assert!(e.ends_with("it was cancelled"), "{e}");
        assert!(done.swap(0, Ordering::Relaxed) < ITEMS);
        handle.reset();
    }
    handle.cancel();
    module.unload_method("forward");
    assert!(module.forward(&input).is_err());
    assert_eq!(handle.check(), Err(Interrupted::Cancelled));
}

#[test]
fn the_memory_limit_covers_weights_and_arenas_together() {
    let path = root().join("examples/digits/digits.pte");
    let load = |memory| {
        let limits = Limits::none().within_memory(memory);
        Module::open(&path, pteron::load_options().limits(limits)).and_then(|mut m| m.load_method("forward"))
    };
    load(1 << 20).unwrap();
    let Err(Error::Limit { field: "memory", needed, .. }) = load(1 << 12) else { panic!("it needs more") };
    // The weights alone are less than the method needs with its arenas.
    assert!(matches!(load(needed - 1), Err(Error::Limit { field: "memory", .. })));
}

/// The resident bytes of this process.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
#[test]
fn arenas_use_memory_only_for_the_sizes_that_occur() {
    // The plan has 2 GiB of arenas, of which the inputs use 1/256.
    let path = root().join("testdata/limits/large_bound.pte");
    for no_prepare in [false, true] {
        let before = resident();
        let options = LoadOptions { no_prepare, ..pteron::load_options().limits(Limits::none()) };
        let mut module = Module::open(&path, options).unwrap();
        let input = [Tensor::from_slice(&[1 << 20], &vec![1f32; 1 << 20]).unwrap().into()];
        for _ in 0..3 {
            let [EValue::Tensor(sum)] = &module.forward(&input).unwrap()[..] else { panic!("one tensor") };
            assert_eq!(sum.as_slice::<f32>().unwrap(), [3.0 * (1 << 20) as f32]);
        }
        let resident_bytes = resident().saturating_sub(before);
        assert!(resident_bytes < 64 << 20, "{resident_bytes} bytes");
    }
    let limits = Limits { arena_bytes: 1 << 30, ..Limits::none() };
    let e = Module::open(&path, pteron::load_options().limits(limits)).unwrap().load_method("forward");
    assert!(matches!(e, Err(Error::Limit { field: "arena_bytes", .. })), "{e:?}");
}
