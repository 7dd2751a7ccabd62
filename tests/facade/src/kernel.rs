//! A kernel `my_ops::mul3`, executed as written and prepared.

use crate::Result;
use pteron::kernel::{self, Args, Kernel, KernelContext, Outs, PreparedKernel, Schema};
use pteron::{LoadOptions, Module, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Mul3 {
    schema: Schema,
    prepared: Arc<AtomicUsize>,
}

struct PreparedMul {
    factor: f32,
    runs: Arc<AtomicUsize>,
}

fn mul(factor: f32, args: &Args<'_>, outs: &mut Outs<'_>) -> kernel::Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    out.resize(x.sizes())?;
    x.relayout(out)?;
    out.storage_mut::<f32>()?.iter_mut().for_each(|v| *v *= factor);
    Ok(())
}

impl Kernel for Mul3 {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn prepare(&self, _: &Args<'_>) -> kernel::Result<Option<Box<dyn PreparedKernel>>> {
        Ok(Some(Box::new(PreparedMul { factor: 3.0, runs: Arc::clone(&self.prepared) })))
    }

    fn execute(&self, _: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> kernel::Result<()> {
        mul(3.0, args, outs)
    }
}

impl PreparedKernel for PreparedMul {
    fn execute(&self, _: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> kernel::Result<()> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        mul(self.factor, args, outs)
    }
}

pub(crate) fn check(root: &Path) -> Result {
    let program = root.join("crates/pteron/examples/mul3.pte");
    for (no_prepare, expected) in [(true, 0), (false, 1)] {
        let prepared = Arc::new(AtomicUsize::new(0));
        let schema = Schema::parse("my_ops::mul3.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)")?;
        let mut kernels = pteron::kernels![aten::add.out];
        kernels.register(Mul3 { schema, prepared: Arc::clone(&prepared) })?;
        let options = LoadOptions { no_prepare, ..LoadOptions::new(kernels) };
        let mut module = Module::open(&program, options)?;
        let outputs = module.forward(&[Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?.into()])?;
        let tripled = Tensor::try_from(outputs[0].clone())?;
        if tripled.as_slice::<f32>()? != [3.0, 6.0, 9.0, 12.0] {
            return Err(format!("{:?}", tripled.to_vec::<f32>()?).into());
        }
        let runs = prepared.load(Ordering::Relaxed);
        if runs != expected {
            return Err(format!("the prepared form ran {runs} times, not {expected}").into());
        }
    }
    Ok(())
}
