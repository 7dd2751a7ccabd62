//! `embed model.pte [argument]`: runs the program on ones and prints the class with the highest score. With an argument,
//! it then exercises each enabled feature.

#[cfg(not(feature = "every-operator"))]
mod registry;
mod uses;

use pteron::{Module, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: embed MODEL.pte")?;
    #[cfg(not(feature = "every-operator"))]
    let kernels = registry::kernels();
    #[cfg(feature = "every-operator")]
    let kernels = pteron::kernel_registry();
    let mut module = Module::open(path, uses::options(kernels))?;
    let sizes = [1, 3, 224, 224];
    let ones = Tensor::from_slice(&sizes, &vec![1.0f32; sizes.iter().product()])?;
    let scores = module.forward(&[ones.into()])?[0].to_vec::<f32>()?;
    let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).ok_or("no scores")?;
    println!("class {} with {}", best.0, best.1);
    std::env::args_os().nth(2).map_or(Ok(()), |argument| uses::all(argument.as_ref()))
}
