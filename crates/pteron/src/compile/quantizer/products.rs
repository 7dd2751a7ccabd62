//! The products of two computed values that stay float.

use super::search::{LEAST_GAIN, Sensitivity};
use super::{Attempt, Run, SpentOn};
use pteron_compiler::QuantizedLayer;
use pteron_toolbox::Result;
use pteron_toolbox::comparison::OutputComparison;

impl Run<'_> {
    /// Keeps products of two computed values in float: the noisiest for their multiplications, as few as it takes for each output to be as close
    /// as if all of them were float. They have no weights that would become smaller, so they count towards no budget.
    pub(super) fn keep_noisy_products(&mut self, attempt: Attempt) -> Result<(Attempt, Vec<SpentOn>)> {
        let summary = self.quantizer.summary(&attempt.compiled).clone();
        let products: Vec<&QuantizedLayer> =
            summary.layers.iter().filter(|layer| is_product(layer)).collect();
        if products.is_empty() || products.len() == summary.layers.len() {
            return Ok((attempt, Vec::new()));
        }
        let float = self.attempt(&products.iter().map(|layer| layer.name.clone()).collect())?;
        if !is_farther(&attempt.outputs, &float.outputs) {
            return Ok((attempt, Vec::new()));
        }
        let sensitivity = self.sensitivity_of(&attempt, is_product)?;
        let (mut missing, mut enough) = (0, sensitivity.len());
        let expected = float.outputs.clone();
        let mut best = float;
        while missing + 1 < enough {
            let count = missing.midpoint(enough);
            let fewer = self.attempt(&sensitivity[..count].iter().map(|node| node.name.clone()).collect())?;
            match is_farther(&fewer.outputs, &expected) {
                true => missing = count,
                false => (enough, best) = (count, fewer),
            }
        }
        let of_float: u64 = summary.float.iter().map(|node| node.multiplications).sum();
        let all = of_float + summary.layers.iter().map(|layer| layer.multiplications).sum::<u64>();
        let spent = |node: &Sensitivity| SpentOn {
            name: node.name.clone(),
            multiplications: node.multiplications as f64 / all.max(1) as f64,
            noise: node.noise,
        };
        Ok((best, sensitivity[..enough].iter().map(spent).collect()))
    }
}

/// Whether a quantized layer is a product of two computed values.
fn is_product(layer: &QuantizedLayer) -> bool {
    layer.weights == 0 && layer.multiplications > 0
}

/// Whether the ratio of an output is lower by more than chance.
fn is_farther(outputs: &[OutputComparison], than: &[OutputComparison]) -> bool {
    let mut ratios = outputs.iter().zip(than).filter_map(|(a, b)| a.closeness.zip(b.closeness));
    ratios.any(|(a, b)| a.sqnr < b.sqnr - LEAST_GAIN)
}
