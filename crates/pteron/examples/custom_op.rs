//! Runs a program that calls a custom operator: `my_ops::mul3.out`, which multiplies its input by 3.
//!
//!     cargo run --example custom_op
//!
//! An operator consists of its schema, as registered with PyTorch, and a function that reads the arguments by their
//! names in the schema, resizes the out tensors, and fills them. `tools/reference/operators.py --custom` wrote the
//! program.

use pteron::{EValue, FnKernel, LoadOptions, Module, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = "my_ops::mul3.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
    let mul3 = FnKernel::new(schema, |_, args, outs| {
        let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
        out.resize(x.sizes())?;
        // Copies the elements, converting from the layout of `x` to that of `out`.
        x.relayout(out)?;
        out.storage_mut::<f32>()?.iter_mut().for_each(|v| *v *= 3.0);
        Ok(())
    })?;
    let mut kernels = pteron::kernel_registry();
    kernels.register(mul3)?;

    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mul3.pte");
    let mut module = Module::open(program, LoadOptions::new(kernels))?;
    let outputs = module.forward(&[Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?.into()])?;
    let [EValue::Tensor(tripled)] = &outputs[..] else { panic!("the program gives one tensor") };
    assert_eq!(tripled.as_slice::<f32>()?, [3.0, 6.0, 9.0, 12.0]);
    println!("{:?}", tripled.as_slice::<f32>()?);
    Ok(())
}
