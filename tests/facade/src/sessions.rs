//! Typed access to outputs, outputs written into caller memory, and one loaded method for many threads.

use crate::Result;
use pteron::{DimOrder, EValue, Module, Program, SharedMethod, Tensor};
use std::path::Path;

fn image() -> pteron::Result<Tensor> {
    Ok(Tensor::from_slice(&[1, 1, 8, 8], &[0.5f32; 64])?)
}

/// Reads outputs by kind and by element type, in row-major order, and writes them into caller memory.
pub(crate) fn outputs(root: &Path) -> Result {
    let mut module = Module::open(root.join("examples/digits/digits.pte"), pteron::load_options())?;
    let outputs = module.forward(&[image()?.into()])?;
    let tensor = outputs[0].as_tensor()?;
    let expected = tensor.as_slice::<f32>()?.to_vec();
    if tensor.as_slice::<i64>().is_ok() || i64::try_from(outputs[0].clone()).is_ok() {
        return Err("the output was read as another type".into());
    }
    if Tensor::try_from(outputs[0].clone())?.to_vec::<f32>()? != expected {
        return Err("the output was taken as something else".into());
    }
    // `as_slice` promises row-major order and refuses other dim orders; `to_vec` converts.
    let rows = Tensor::from_slice(&[1, 2, 1, 2], &[1f32, 2.0, 3.0, 4.0])?;
    let last = rows.to_dim_order(DimOrder::new(&[0, 2, 3, 1])?)?;
    if last.as_slice::<f32>().is_ok() || last.to_vec::<f32>()? != [1.0, 2.0, 3.0, 4.0] {
        return Err("channels were read as rows".into());
    }
    let mut method = Program::open(root.join("examples/digits/digits.pte"))?
        .load_method("forward", pteron::load_options())?;
    let mut written = Tensor::from_slice(&[1, 10], &[0f32; 10])?;
    method.run_into(&[image()?.view()], &mut [written.view_mut()])?;
    if written.to_vec::<f32>()? != expected || method.input_index("no such name").is_some() {
        return Err(format!("{:?} was written", written.to_vec::<f32>()?).into());
    }
    Ok(())
}

/// Executes a shared method (`&self`) from several threads, with one copy of the weights.
pub(crate) fn sessions(root: &Path) -> Result {
    let program = Program::open(root.join("examples/digits/digits.pte"))?;
    let method = program.load_method("forward", pteron::load_options())?;
    let alone = method.memory();
    let shared = SharedMethod::new(method)?;
    let inputs: [EValue; 1] = [image()?.into()];
    let expected = shared.execute(&inputs)?[0].to_vec::<f32>()?;
    let results = std::thread::scope(|scope| {
        let running: Vec<_> = (0..3).map(|_| scope.spawn(|| shared.execute(&inputs))).collect();
        running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    for result in results {
        let outputs = result.map_err(|_| "a thread has panicked")??;
        if outputs[0].to_vec::<f32>()? != expected {
            return Err("threads have other results".into());
        }
    }
    println!("  a method of {alone} bytes, in three threads");
    Ok(())
}
