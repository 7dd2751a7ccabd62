//! A program whose bytes are stored inverted.

use crate::Result;
use pteron::data::{DataLoader, FreeableBuffer, Purpose};
use pteron::{Error, Module, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Inverted {
    bytes: Vec<u8>,
    loaded: AtomicU64,
}

impl DataLoader for Inverted {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> std::result::Result<FreeableBuffer, Error> {
        let range = offset as usize..offset.saturating_add(len) as usize;
        let bytes = self.bytes.get(range).ok_or_else(|| Error::OutOfFile {
            file: self.name().to_owned(),
            offset,
            len,
            size: self.size(),
        })?;
        self.loaded.fetch_add(len, Ordering::Relaxed);
        FreeableBuffer::from_bytes(&bytes.iter().map(|b| !b).collect::<Vec<u8>>())
    }

    fn bytes_loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    fn name(&self) -> &str {
        "an inverted program"
    }
}

pub(crate) fn check(root: &Path) -> Result {
    let bytes = std::fs::read(root.join("examples/digits/digits.pte"))?.iter().map(|b| !b).collect();
    let loader = Arc::new(Inverted { bytes, loaded: AtomicU64::new(0) });
    let mut module = Module::load(loader.clone(), pteron::load_options())?;
    let outputs = module.forward(&[Tensor::from_slice(&[1, 1, 8, 8], &[0.0f32; 64])?.into()])?;
    let sum: f32 = outputs[0].to_vec::<f32>()?.iter().sum();
    if (sum - 1.0).abs() > 1e-5 || loader.bytes_loaded() == 0 {
        return Err(format!("the probabilities add up to {sum}").into());
    }
    Ok(())
}
