//! Folds batch norms into the weights of the convolutions before them.

use crate::quantize::{add_derived_constant, floats, static_spec};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;
use std::collections::HashMap;

/// Folds the norms whose convolution computes in float32, has constant weights and no other user. Their weights are
/// copied, as far as the budget allows.
pub(super) fn fold_norms(program: &mut ExportedProgram) {
    let uses = program.use_counts();
    let mut convolutions: HashMap<VarId, usize> = HashMap::new();
    let mut gone = Vec::new();
    for index in 0..program.graph.nodes.len() {
        let node = program.graph.nodes[index].clone();
        if *node.target == *"aten.convolution.default" {
            convolutions.insert(node.outputs[0], index);
        }
        let norm = "aten._native_batch_norm_legit_no_training.default";
        let x = node.arg("input").and_then(Argument::var).filter(|_| *node.target == *norm);
        let Some((x, &at)) = x.and_then(|x| Some((x, convolutions.get(&x)?))) else { continue };
        let others = node.outputs.iter().skip(1).any(|v| uses[v.index()] > 0);
        if uses[x.index()] == 1 && !others && fold_into_convolution(program, at, &node).is_some() {
            program.graph.nodes[at].outputs[0] = node.outputs[0];
            convolutions.insert(node.outputs[0], at);
            gone.push(index);
        }
    }
    let mut index = 0;
    program.graph.nodes.retain(|_| {
        index += 1;
        gone.binary_search(&(index - 1)).is_err()
    });
}

/// Folds a batch norm into the convolution at `at`, whose weights and bias change. `None` if it cannot be folded.
fn fold_into_convolution(program: &mut ExportedProgram, at: usize, norm: &ExportedNode) -> Option<()> {
    let node = program.graph.nodes[at].clone();
    if !matches!(node.arg("transposed"), Some(Argument::Bool(false))) {
        return None;
    }
    let weight = node.arg("weight")?.var()?;
    let mut weights = floats(program, weight)?;
    let sizes: Vec<usize> = program.spec(weight)?.known_sizes()?.iter().map(|&n| n as usize).collect();
    let channels = *sizes.first().filter(|&&n| n > 0)?;
    let parameter = |name: &str, otherwise: f32| match norm.arg(name).and_then(Argument::var) {
        Some(var) => floats(program, var).filter(|numbers| numbers.len() == channels),
        None => Some(vec![otherwise; channels]),
    };
    let (mean, variance) = (parameter("running_mean", 0.0)?, parameter("running_var", 1.0)?);
    let (factor, summand) = (parameter("weight", 1.0)?, parameter("bias", 0.0)?);
    let Some(Argument::Float(eps)) = norm.arg("eps") else { return None };
    let bias = match node.arg("bias").and_then(Argument::var) {
        Some(var) => floats(program, var)?,
        None => vec![0.0; channels],
    };
    program.budget.charge("the weights of a folded batch norm", size_of_val(&weights[..])).ok()?;
    let scale = |c: usize| f64::from(factor[c]) / (f64::from(variance[c]) + eps).sqrt();
    let each = weights.len() / channels;
    for (c, weights) in weights.chunks_mut(each.max(1)).enumerate() {
        weights.iter_mut().for_each(|w| *w = (f64::from(*w) * scale(c)) as f32);
    }
    let shifted = |c: usize| (f64::from(bias[c]) - f64::from(mean[c])) * scale(c) + f64::from(summand[c]);
    let bias: Vec<f32> = (0..channels).map(|c| shifted(c) as f32).collect();
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let folded = add_derived_constant(
        program,
        weight,
        "folded",
        static_spec(ScalarType::Float, &sizes),
        bytes(&weights),
    );
    let bias = add_derived_constant(
        program,
        weight,
        "bias",
        static_spec(ScalarType::Float, &[channels]),
        bytes(&bias),
    );
    for (name, arg) in &mut program.graph.nodes[at].args {
        match &**name {
            "weight" => *arg = Argument::Var(folded),
            "bias" => *arg = Argument::Var(bias),
            _ => {}
        }
    }
    Some(())
}
