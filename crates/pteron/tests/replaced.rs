//! A kernel with which a user replaces one of the library is called wherever the program calls it, prepared or not: no
//! fusion bypasses it.

use pteron::{EValue, LoadOptions, Module, Program, Tensor};
use pteron_operator::{Args, Kernel, KernelContext, KernelRegistry, Outs, Schema};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Wraps a kernel of the library, counts its calls, and exposes nothing but its schema.
struct Counted {
    inner: Arc<dyn Kernel>,
    calls: Arc<AtomicUsize>,
}

impl Kernel for Counted {
    fn schema(&self) -> &Schema {
        self.inner.schema()
    }

    fn execute(
        &self,
        ctx: &KernelContext<'_>,
        args: &Args<'_>,
        outs: &mut Outs<'_>,
    ) -> pteron_operator::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.execute(ctx, args, outs)
    }
}

fn path(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus").join(case).join("model.pte")
}

fn inputs(module: &Module) -> Vec<EValue> {
    let input = |v: pteron::ValueMeta| {
        let meta = v.tensor.unwrap().meta;
        if meta.dtype() != pteron::ScalarType::Float {
            return Tensor::zeros(meta).unwrap().into();
        }
        let elements: Vec<f32> = (0..meta.numel()).map(|i| (i as f32 * 0.7).sin()).collect();
        Tensor::from_slice(meta.sizes(), &elements).unwrap().into()
    };
    module.method_meta("forward").unwrap().inputs().into_iter().map(input).collect()
}

fn run(case: &str, kernels: KernelRegistry, no_prepare: bool) -> Vec<f32> {
    let options = LoadOptions { no_prepare, ..LoadOptions::new(kernels) };
    let mut module = Module::open(path(case), options).unwrap();
    let inputs = inputs(&module);
    let outputs = module.forward(&inputs).unwrap();
    outputs[0].as_tensor().unwrap().to_vec().unwrap()
}

#[test]
fn a_replaced_kernel_is_called_wherever_the_program_calls_it() {
    for case in ["tiny/plan_multi_arena", "models/cnn_small", "models/unet_small", "models/mlp_q8"] {
        let program = Program::open(path(case)).unwrap();
        let operators = program.method_meta("forward").unwrap().operators();
        let expected = run(case, pteron::kernel_registry(), true);
        for name in operators.into_iter().map(|o| o.name) {
            let mut counts = Vec::new();
            for no_prepare in [true, false] {
                let calls = Arc::new(AtomicUsize::new(0));
                let mut kernels = pteron::kernel_registry();
                let inner = kernels.get(&name).unwrap();
                kernels.replace(Counted { inner, calls: Arc::clone(&calls) });
                let actual = run(case, kernels, no_prepare);
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 + 1e-3 * a.abs();
                assert!(expected.iter().zip(&actual).all(close), "{case}, {name} replaced");
                counts.push(calls.load(Ordering::Relaxed));
            }
            assert!(counts[0] > 0 && counts[1] >= counts[0], "{case}: {name} is called {counts:?} times");
        }
    }
}
