//! The products of two computed values that stay float.

use super::search::{LEAST_GAIN, Sensitivity};
use super::{Attempt, Run, SpentOn};
use pteron_compiler::{MethodSummary, QuantizedLayer};
use pteron_toolbox::Result;
use pteron_toolbox::comparison::OutputComparison;
use std::collections::BTreeSet;

impl Run<'_> {
    /// Keeps all products of two computed values in float for now. Returns whether there are any, beside other layers.
    pub(super) fn keep_products(&mut self, attempt: &Attempt) -> bool {
        let summary = self.quantizer.summary(&attempt.compiled);
        self.quantizable.extend(summary.quantized.iter().cloned());
        let layers = &summary.layers;
        let products: Vec<String> =
            layers.iter().filter(|layer| is_product(layer)).map(|layer| layer.name.clone()).collect();
        let are_some = (1..layers.len()).contains(&products.len());
        self.kept_products = if are_some { products } else { Vec::new() };
        are_some
    }

    /// Quantizes the products that were kept in float, as many as leave each output as close as `attempt`, in which they are all float: those with
    /// the least noise for their multiplications. They have no weights that would become smaller, so they count towards no budget. Returns those
    /// that stay float; the nodes `kept` do, too.
    pub(super) fn return_products(
        &mut self,
        attempt: Attempt,
        kept: &BTreeSet<String>,
    ) -> Result<(Attempt, Vec<SpentOn>)> {
        if std::mem::take(&mut self.kept_products).is_empty() {
            return Ok((attempt, Vec::new()));
        }
        let whole = self.attempt(kept)?;
        if !is_farther(&whole.outputs, &attempt.outputs) {
            return Ok((whole, Vec::new()));
        }
        let sensitivity = self.sensitivity_of(&whole, is_product)?;
        let (mut missing, mut enough) = (0, sensitivity.len());
        let expected = attempt.outputs.clone();
        let mut best = attempt;
        while missing + 1 < enough {
            let count = missing.midpoint(enough);
            let more = sensitivity[..count].iter().map(|node| node.name.clone());
            let fewer = self.attempt(&kept.iter().cloned().chain(more).collect())?;
            match is_farther(&fewer.outputs, &expected) {
                true => missing = count,
                false => (enough, best) = (count, fewer),
            }
        }
        let all = multiplications(self.quantizer.summary(&best.compiled));
        let spent = |node: &Sensitivity| SpentOn {
            name: node.name.clone(),
            multiplications: node.multiplications as f64 / all.max(1) as f64,
            noise: node.noise,
        };
        Ok((best, sensitivity[..enough].iter().map(spent).collect()))
    }
}

/// The number of multiplications of a run.
fn multiplications(summary: &MethodSummary) -> u64 {
    let quantized = summary.layers.iter().map(|layer| layer.multiplications).sum::<u64>();
    quantized + summary.float.iter().map(|node| node.multiplications).sum::<u64>()
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
