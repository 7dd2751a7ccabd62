//! Pseudo-random inputs, deterministic.

use crate::Result;
use pteron_operator::EValue;
use pteron_runtime::{Program, ValueMeta};
use pteron_tensor::{ScalarType, Tensor, TensorMeta, bf16, f16};

/// Inputs for a method: floats from -1 to 1, uint8 from 0 to 255 (pixels of pictures), and other integers 0 or 1, which are
/// valid indices into dimensions of two or more elements. Inputs that the exporter fixed keep their value. The same seed gives the
/// same inputs.
///
/// # Errors
/// If there is no such method, or not enough memory.
pub fn random_inputs(program: &Program, method: &str, seed: u64) -> Result<Vec<EValue>> {
    let mut random = Random::new(seed);
    let input = |declared: ValueMeta| match (declared.tensor, declared.traced) {
        (Some(info), _) => random.tensor(&info.meta).map(EValue::Tensor),
        (None, Some(fixed)) => Ok(fixed),
        (None, None) => Ok(EValue::None),
    };
    program.method_meta(method)?.inputs().into_iter().map(input).collect()
}

/// A xorshift64 generator.
struct Random(u64);

impl Random {
    /// A generator with a seed. Its state is never 0, because xorshift64 never leaves state 0.
    fn new(seed: u64) -> Self {
        Self((0x9e37_79b9_7f4a_7c15 ^ seed.wrapping_mul(0xbf58_476d_1ce4_e5b9)).max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 32
    }

    /// A value from -1 to 1 in steps of 1/1024, which are exact in f16.
    fn float(&mut self) -> f32 {
        (self.next() % 2049) as f32 / 1024.0 - 1.0
    }

    fn tensor(&mut self, meta: &TensorMeta) -> Result<Tensor> {
        let mut tensor = Tensor::zeros(meta.clone())?;
        match meta.dtype() {
            ScalarType::Float => tensor.storage_mut::<f32>()?.fill_with(|| self.float()),
            ScalarType::Double => tensor.storage_mut::<f64>()?.fill_with(|| self.float().into()),
            ScalarType::Half => tensor.storage_mut::<f16>()?.fill_with(|| f16::from_f32(self.float())),
            ScalarType::BFloat16 => tensor.storage_mut::<bf16>()?.fill_with(|| bf16::from_f32(self.float())),
            ScalarType::Byte => tensor.storage_mut::<u8>()?.fill_with(|| self.next() as u8),
            other => {
                let width = other.to_real().size();
                let lowest = if cfg!(target_endian = "big") { width - 1 } else { 0 };
                let mut view = tensor.view_mut();
                view.bytes_mut().chunks_exact_mut(width).for_each(|n| n[lowest] = (self.next() & 1) as u8);
            }
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_zero_or_one_and_floats_vary() {
        let mut random = Random(1);
        let meta = TensorMeta::contiguous(ScalarType::Long, &[64]).unwrap();
        let indices = random.tensor(&meta).unwrap();
        let indices = indices.as_slice::<i64>().unwrap();
        assert!(indices.contains(&0) && indices.contains(&1) && indices.iter().all(|i| matches!(i, 0 | 1)));
        let meta = TensorMeta::contiguous(ScalarType::Float, &[64]).unwrap();
        let floats = random.tensor(&meta).unwrap();
        let floats = floats.as_slice::<f32>().unwrap();
        assert!(floats.iter().all(|x| x.abs() <= 1.0) && floats.iter().any(|x| *x != floats[0]));
    }
}
