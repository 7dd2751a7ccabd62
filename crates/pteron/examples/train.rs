//! Trains the network of `testdata/corpus/wild/train_xor`, which was exported with its backward pass, to
//! compute the exclusive or of two bits, saves a checkpoint, and prints the predictions.
//!
//!     cargo run --release -p pteron --example train -- testdata/corpus/wild/train_xor/model.pte

use pteron::{EValue, Sgd, SgdOptions, Tensor, TrainingModule};
use std::error::Error;

const BITS: [[f32; 2]; 4] = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]];
const XOR: [i64; 4] = [0, 1, 1, 0];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or("testdata/corpus/wild/train_xor/model.pte".to_owned());
    let mut model = TrainingModule::open(path, pteron::load_options())?;
    let mut sgd = Sgd::new(SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() })?;
    for epoch in 0..150 {
        let mut loss = 0.0;
        for i in 0..4 {
            loss += run(&mut model, i)?.0;
            model.step("forward", &mut sgd)?;
        }
        if epoch % 25 == 0 {
            println!("epoch {epoch:3}: loss {:.4}", loss / 4.0);
        }
    }
    let file = std::env::temp_dir().join("xor.ptd");
    model.save_checkpoint("forward", &file)?;
    println!("saved to {}", file.display());
    for (i, bits) in BITS.iter().enumerate() {
        println!("{} xor {} = {}", bits[0], bits[1], run(&mut model, i)?.1);
    }
    Ok(())
}

/// The loss for a sample, and the class that the model predicts.
fn run(model: &mut TrainingModule, i: usize) -> Result<(f32, i64), Box<dyn Error>> {
    let x = Tensor::from_slice(&[1, 2], &BITS[i])?;
    let y = Tensor::from_slice(&[1], &[XOR[i]])?;
    let outputs = model.execute_forward_backward("forward", &[x.into(), y.into()])?;
    let [EValue::Tensor(loss), EValue::Tensor(class), ..] = &outputs[..] else {
        return Err("the model gives a loss and a class".into());
    };
    Ok((loss.as_slice::<f32>()?[0], class.as_slice::<i64>()?[0]))
}
