//! A backend that computes `a · x + b` for 2x2 matrices.

use crate::Result;
use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendRegistry, CompileSpec,
    Delegate, Out,
};
use pteron::{FreeableBuffer, Module, Tensor};
use std::path::Path;

struct Affine;

impl Backend for Affine {
    fn id(&self) -> &str {
        "BackendWithCompilerDemo"
    }

    fn init(
        &self,
        _: &BackendInitContext<'_>,
        payload: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> std::result::Result<Box<dyn Delegate>, BackendError> {
        if !payload.starts_with(b"2version:0#") {
            return Err(BackendError::new("the payload is not two instructions of version 0"));
        }
        Ok(Box::new(Affine))
    }
}

impl Delegate for Affine {
    fn num_inputs(&self) -> usize {
        3
    }

    fn execute(
        &mut self,
        _: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> std::result::Result<(), BackendError> {
        let ([Arg::Tensor(a), Arg::Tensor(x), Arg::Tensor(b)], [Out::Tensor(out)]) = (inputs, outputs) else {
            return Err(BackendError::new("a call has three inputs and one output, all tensors"));
        };
        let (a, x, b) = (a.to_vec::<f32>()?, x.to_vec::<f32>()?, b.to_vec::<f32>()?);
        for (i, out) in out.storage_mut::<f32>()?.iter_mut().enumerate() {
            let (row, column) = (i / 2, i % 2);
            *out = a[2 * row] * x[column] + a[2 * row + 1] * x[2 + column] + b[i];
        }
        Ok(())
    }
}

pub(crate) fn check(root: &Path) -> Result {
    let mut backends = BackendRegistry::new();
    backends.register(Affine)?;
    let program = root.join("testdata/corpus/wild/demo_backend/model.pte");
    let mut module = Module::open(program, pteron::load_options().backends(backends))?;
    let ones = Tensor::from_slice(&[2, 2], &[1f32; 4])?;
    let outputs = module.forward(&[ones.clone().into(), ones.clone().into(), ones.into()])?;
    // The program itself adds 1 to a row of its delegate's result.
    let found = outputs[0].to_vec::<f32>()?;
    if found != [4.0, 4.0] {
        return Err(format!("{found:?}").into());
    }
    Ok(())
}
