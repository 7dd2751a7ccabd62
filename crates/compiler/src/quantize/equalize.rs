//! Equalization: the channels of a value get similar ranges, so that each of them uses most of the steps of the value's
//! common scale. What computes a channel is divided by a factor, and what reads it multiplied by the same factor, which is exact
//! where only operators with `f(s x) = s f(x)` lie in between.

use super::channels::Channels;
use super::layers::weight_axis;
use super::{ChannelStatistics, add_derived_constant, floats, is_float_constant, static_spec};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;
use std::collections::{BTreeMap, HashMap, HashSet};

const NORM: &str = "aten._native_batch_norm_legit_no_training.default";
/// Candidate exponents of the channels' ranges and of the weights that read them; the pair with the least error wins.
const EXPONENTS: [(f64, f64); 11] = [
    (0.0, 0.0),
    (0.25, 0.0),
    (0.5, 0.0),
    (0.75, 0.0),
    (1.0, 0.0),
    (0.25, 0.25),
    (0.5, 0.25),
    (0.75, 0.25),
    (0.5, 0.5),
    (0.75, 0.5),
    (1.0, 0.5),
];
/// The largest ratio between two channels' ranges, and between their weights, that the factors even out.
const MAX_RATIO: f64 = 1024.0;

/// Values whose channels are scaled together.
#[derive(Debug, Default)]
struct Domain {
    values: Vec<VarId>,
    /// The indices of the nodes that compute values of the domain. `consumers` are those that read the values.
    producers: Vec<usize>,
    consumers: Vec<(usize, VarId)>,
}

/// The channels of each value that a convolution, linear layer or batch norm computes, and of each value that is
/// computed from such values channel by channel.
pub(super) fn value_channels(program: &ExportedProgram) -> HashMap<VarId, Channels> {
    let mut channels: HashMap<VarId, Channels> = HashMap::new();
    for node in &program.graph.nodes {
        let Some(&out) = node.outputs.first() else { continue };
        let found = result_channels(program, node).or_else(|| {
            let x = node.operands().find(|var| !program.constants.contains_key(var))?;
            match &*node.target {
                "aten.add.Tensor" => {
                    let other = node.arg("other")?.var()?;
                    let is_same = channels.get(&x) == channels.get(&other)
                        && program.spec(x).map(|spec| &spec.sizes)
                            == program.spec(other).map(|spec| &spec.sizes);
                    channels.get(&x).copied().filter(|_| is_same)
                }
                _ => channels.get(&x)?.propagate(program, node, x),
            }
        });
        if let Some(found) = found {
            channels.insert(out, found);
        }
    }
    channels
}

/// The channels of a node's result, if the node has constant weights for each of them.
pub(super) fn result_channels(program: &ExportedProgram, node: &ExportedNode) -> Option<Channels> {
    let out = program.spec(*node.outputs.first()?)?;
    let (axis, parameter, of) = match &*node.target {
        "aten.linear.default" => (out.rank().checked_sub(1)?, "weight", weight_axis(program, node)?.1),
        "aten.convolution.default" => (1, "weight", weight_axis(program, node)?.1),
        NORM => (1, "running_mean", 0),
        _ => return None,
    };
    let size = program.spec(node.arg(parameter)?.var()?)?.sizes.get(of)?.known()?;
    let is_norm_of_floats = *node.target != *NORM || {
        let parameters = ["weight", "bias", "running_mean", "running_var"];
        let vars = parameters.iter().map(|name| node.arg(name).and_then(Argument::var));
        vars.into_iter().all(|var| var.is_some_and(|var| is_float_constant(program, var)))
    };
    let bias = node.arg("bias").and_then(Argument::var);
    let is_scalable = bias.is_none_or(|bias| is_float_constant(program, bias));
    let count = usize::try_from(size).ok().filter(|&count| count > 0)?;
    (is_norm_of_floats && is_scalable).then(|| Channels::of_axis(axis, count))
}

/// Whether a node has weights for each input channel, which can be multiplied by the factor of the channel.
fn is_consumer(program: &ExportedProgram, node: &ExportedNode, x: VarId, channels: Channels) -> bool {
    if node.arg("input").and_then(Argument::var) != Some(x) {
        return false;
    }
    let of_weight = |axis: usize| -> Option<i64> {
        let weight = node.arg("weight")?.var().filter(|&var| is_float_constant(program, var))?;
        program.spec(weight)?.sizes.get(axis)?.known()
    };
    match &*node.target {
        "aten.linear.default" => {
            let rank = program.spec(x).map_or(0, |spec| spec.rank());
            weight_axis(program, node).is_some()
                && channels.axis + 1 == rank
                && of_weight(1).is_some_and(|n| (n as usize).is_multiple_of(channels.inner * channels.count))
        }
        "aten.convolution.default" => {
            let (axis, groups) = match node.arg("groups") {
                Some(Argument::Int(groups)) => (1, *groups),
                _ => (1, 1),
            };
            let Some((_, of_outputs)) = weight_axis(program, node) else { return false };
            let of_inputs = of_weight(1 - of_outputs).map(|n| n * groups);
            channels.axis == axis && channels.inner == 1 && of_inputs == Some(channels.count as i64)
        }
        NORM => result_channels(program, node).is_some() && channels == Channels::of_axis(1, channels.count),
        _ => false,
    }
}

/// The domains that can be scaled exactly, and have nodes that compute their values and nodes that read them.
fn domains(program: &ExportedProgram, channels: &HashMap<VarId, Channels>) -> Vec<Domain> {
    let mut parents: HashMap<VarId, VarId> = HashMap::new();
    let find = |parents: &HashMap<VarId, VarId>, mut var: VarId| {
        while let Some(&next) = parents.get(&var) {
            var = next;
        }
        var
    };
    let mut fixed: HashSet<VarId> = program.graph.outputs.iter().flat_map(Argument::vars).collect();
    fixed.extend(program.mutations.iter().map(|mutation| mutation.value));
    let (mut producers, mut consumers) = (Vec::new(), Vec::new());
    for (index, node) in program.graph.nodes.iter().enumerate() {
        let out = node.outputs.first().copied();
        let produces = result_channels(program, node).is_some();
        if let Some(out) = out.filter(|_| produces) {
            producers.push((index, out));
        }
        node.graphs().for_each(|graph| {
            graph.for_each_node(&mut |inner| fixed.extend(inner.operands()));
            fixed.extend(graph.outputs.iter().flat_map(Argument::vars));
        });
        for var in node.operands() {
            let Some(&of_var) = channels.get(&var) else { continue };
            if is_consumer(program, node, var, of_var) {
                consumers.push((index, var));
                continue;
            }
            // Further results, such as the indices of a pool, do not depend on the scale.
            match out.filter(|out| !produces && channels.contains_key(out)) {
                Some(out) => {
                    let (a, b) = (find(&parents, var), find(&parents, out));
                    if a != b {
                        parents.insert(b, a);
                    }
                }
                None => drop(fixed.insert(var)),
            }
        }
    }
    let fixed: HashSet<VarId> = fixed.into_iter().map(|var| find(&parents, var)).collect();
    let mut found: BTreeMap<VarId, Domain> = BTreeMap::new();
    for &var in channels.keys() {
        let root = find(&parents, var);
        if !fixed.contains(&root) {
            found.entry(root).or_default().values.push(var);
        }
    }
    for (index, out) in producers {
        if let Some(domain) = found.get_mut(&find(&parents, out)) {
            domain.producers.push(index);
        }
    }
    for (index, x) in consumers {
        if let Some(domain) = found.get_mut(&find(&parents, x)) {
            domain.consumers.push((index, x));
        }
    }
    let mut domains: Vec<Domain> = found.into_values().collect();
    domains.retain(|domain| !domain.producers.is_empty() && !domain.consumers.is_empty());
    domains.iter_mut().for_each(|domain| domain.values.sort_unstable());
    domains
}

/// Scales the channels of values where calibration has found statistics and scaling reduces the expected error.
pub(super) fn run(program: &mut ExportedProgram, statistics: &BTreeMap<String, ChannelStatistics>) {
    let channels = value_channels(program);
    for domain in domains(program, &channels) {
        let Some(factors) = best_factors(program, &domain, &channels, statistics) else { continue };
        let nodes = &program.graph.nodes;
        let bytes: u64 = domain
            .producers
            .iter()
            .chain(domain.consumers.iter().map(|(index, _)| index))
            .map(|&index| {
                let weight = nodes[index].arg("weight").and_then(Argument::var);
                weight.and_then(|var| program.constants.get(&var)).map_or(0, |data| data.range.len() as u64)
            })
            .sum();
        if program.budget.charge("equalized weights", usize::try_from(bytes).unwrap_or(usize::MAX)).is_err() {
            return;
        }
        for &index in &domain.producers {
            divide_results(program, index, &factors);
        }
        for &(index, x) in &domain.consumers {
            multiply_input(program, index, channels[&x], &factors);
        }
    }
}

/// The weights of a node that reads a value: `[rows, columns, taps]`, of which either rows or columns are its results.
struct Reader {
    weights: Vec<f32>,
    columns: usize,
    taps: usize,
    results: Results,
    /// The channel of each index of the input, group by group.
    channels: Vec<usize>,
    /// Whether the weights are quantized.
    is_layer: bool,
}

/// Which results a node's weights are for.
enum Results {
    /// Each row is for one, and reads the inputs of its group.
    Rows { per_group: usize },
    /// Each column is for one, and each row of one input.
    Columns,
}

impl Reader {
    fn from_node(program: &ExportedProgram, node: &ExportedNode, channels: Channels) -> Option<Self> {
        let weight = node.arg("weight")?.var()?;
        let weights = floats(program, weight)?;
        let sizes: Vec<usize> = program.spec(weight)?.known_sizes()?.iter().map(|&n| n as usize).collect();
        if *node.target == *NORM {
            let channels = (0..weights.len()).collect();
            let results = Results::Rows { per_group: 1 };
            return Some(Self { weights, columns: 1, taps: 1, results, channels, is_layer: false });
        }
        let (_, axis) = weight_axis(program, node)?;
        let groups = match node.arg("groups") {
            Some(Argument::Int(groups)) => usize::try_from(*groups).ok()?.max(1),
            _ => 1,
        };
        let taps: usize = sizes.get(2..)?.iter().product::<usize>().max(1);
        let (rows, columns) = (*sizes.first()?, (*sizes.get(1)?).max(1));
        let (results, inputs) = match axis {
            // A linear layer or convolution.
            0 => (Results::Rows { per_group: rows.div_ceil(groups).max(1) }, columns * groups),
            // A transposed convolution.
            _ => (Results::Columns, rows),
        };
        let channels = (0..inputs).map(|i| i / channels.inner % channels.count).collect();
        Some(Self { weights, columns, taps, results, channels, is_layer: true })
    }

    fn result_count(&self) -> usize {
        match self.results {
            Results::Rows { .. } => self.weights.len() / (self.columns * self.taps),
            Results::Columns => self.columns,
        }
    }

    /// The channel that the weight at a position is multiplied with.
    fn channel(&self, i: usize) -> usize {
        let (row, column) = (i / self.taps / self.columns, i / self.taps % self.columns);
        match self.results {
            Results::Rows { per_group } => self.channels[row / per_group * self.columns + column],
            Results::Columns => self.channels[row],
        }
    }

    /// Calls `f` with a result, a channel, and the weights with which the result reads the channel, for all weights.
    fn for_each_pair(&self, mut f: impl FnMut(usize, usize, &[f32])) {
        for (row, weights) in self.weights.chunks(self.columns * self.taps).enumerate() {
            let columns = weights.chunks(self.taps).enumerate();
            match self.results {
                Results::Rows { per_group } => {
                    let channels = &self.channels[row / per_group * self.columns..][..self.columns];
                    columns.for_each(|(column, weights)| f(row, channels[column], weights));
                }
                Results::Columns => {
                    columns.for_each(|(column, weights)| f(column, self.channels[row], weights))
                }
            }
        }
    }

    /// The largest magnitude of the weights that read each of `count` channels, and the sum of their squares.
    fn by_channel(&self, count: usize) -> Vec<(f64, f64)> {
        let mut found = vec![(0f64, 0f64); count];
        self.for_each_pair(|_, channel, weights| {
            let (largest, squares) = &mut found[channel];
            for weight in weights.iter().map(|&weight| f64::from(weight)) {
                *largest = largest.max(weight.abs());
                *squares += weight * weight;
            }
        });
        found
    }

    /// The expected squared error of the results, relative to their expected square, if channels are scaled by
    /// `factors`: from rounding errors with mean square `noise` in the scaled input, and from rounding the weights.
    /// `of_weights` and `of_inputs` are the sums of the squares of each channel's weights, and the mean squares of the input's
    /// channels.
    fn error(&self, factors: &[f64], noise: f64, of_weights: &[f64], of_inputs: &[f64]) -> f64 {
        let (mut signal, mut error) = (0.0, 0.0);
        for ((factor, of_weights), of_input) in factors.iter().zip(of_weights).zip(of_inputs) {
            signal += of_weights * of_input;
            error += of_weights * factor * factor * noise;
        }
        if self.is_layer {
            let mut largest = vec![0f64; self.result_count()];
            self.for_each_pair(|result, channel, weights| {
                let most = weights.iter().fold(0f32, |most, weight| most.max(weight.abs()));
                largest[result] = largest[result].max(f64::from(most) * factors[channel]);
            });
            let divided =
                of_inputs.iter().zip(factors).map(|(of_input, factor)| of_input / (factor * factor));
            let divided: Vec<f64> = divided.collect();
            self.for_each_pair(|result, channel, weights| {
                let step = largest[result] / 127.0;
                error += step * step / 12.0 * weights.len() as f64 * divided[channel];
            });
        }
        if signal > 0.0 { error / signal } else { 0.0 }
    }
}

/// The factors that minimize the expected error of the nodes that read the values; `None` if none reduces it.
fn best_factors(
    program: &ExportedProgram,
    domain: &Domain,
    channels: &HashMap<VarId, Channels>,
    statistics: &BTreeMap<String, ChannelStatistics>,
) -> Option<Vec<f32>> {
    let of = |var: VarId| statistics.get(&*program.var(var).name);
    let count = channels[domain.values.first()?].count;
    let observed: Vec<&ChannelStatistics> =
        domain.values.iter().filter_map(|&var| of(var)).filter(|of| of.low.len() == count).collect();
    let extent =
        |c: usize| observed.iter().map(|of| f64::from(of.high[c].max(-of.low[c]))).fold(0.0, f64::max);
    let extents: Vec<f64> = (0..count).map(extent).collect();
    let most = extents.iter().copied().fold(0.0, f64::max);
    if !(most > 0.0 && most.is_finite()) {
        return None;
    }
    let mut readers = Vec::new();
    let mut read = vec![0f64; count];
    for &(index, x) in &domain.consumers {
        let of_inputs = of(x).or_else(|| observed.last().copied())?.mean_squares.clone();
        let reader = Reader::from_node(program, &program.graph.nodes[index], channels[&x])?;
        let (largest, of_weights): (Vec<f64>, Vec<f64>) = reader.by_channel(count).into_iter().unzip();
        read.iter_mut().zip(largest).for_each(|(most, largest)| *most = most.max(largest));
        readers.push((reader, of_weights, of_inputs));
    }
    let heaviest = read.iter().copied().fold(0.0, f64::max);
    let candidate = |(of_range, of_weights): (f64, f64)| -> Vec<f64> {
        let factor = |c: usize| {
            let range = (extents[c] / most).max(1.0 / MAX_RATIO).powf(of_range);
            let weight = (read[c] / heaviest.max(f64::MIN_POSITIVE)).max(1.0 / MAX_RATIO).powf(of_weights);
            range / weight
        };
        let factors: Vec<f64> = (0..count).map(factor).collect();
        // The largest element keeps its magnitude.
        let scaled = (0..count).map(|c| extents[c] / factors[c]).fold(0.0, f64::max);
        factors.iter().map(|factor| factor * scaled / most).collect()
    };
    let error = |factors: &[f64]| -> f64 {
        let noise = |of: &&ChannelStatistics| {
            let low = (0..count).map(|c| f64::from(of.low[c]) / factors[c]).fold(0.0, f64::min);
            let high = (0..count).map(|c| f64::from(of.high[c]) / factors[c]).fold(0.0, f64::max);
            ((high - low) / 255.0).powi(2) / 12.0
        };
        let noise: f64 = observed.iter().map(noise).sum();
        readers
            .iter()
            .map(|(reader, of_weights, of_inputs)| reader.error(factors, noise, of_weights, of_inputs))
            .sum()
    };
    let candidates = EXPONENTS.map(|exponents| {
        let factors = candidate(exponents);
        (error(&factors), factors)
    });
    let unscaled = candidates[0].0;
    let best = candidates.into_iter().reduce(|a, b| if b.0 < a.0 { b } else { a })?;
    (best.0 < unscaled).then(|| best.1.iter().map(|&factor| factor as f32).collect())
}

/// Replaces a constant argument of a node by a copy whose element `i` is multiplied with `factor(i)`.
fn scale_argument(program: &mut ExportedProgram, index: usize, name: &str, factor: impl Fn(usize) -> f32) {
    let Some(var) = program.graph.nodes[index].arg(name).and_then(Argument::var) else { return };
    let (Some(mut elements), Some(spec)) = (floats(program, var), program.spec(var)) else { return };
    let sizes: Vec<usize> = spec.known_sizes().unwrap_or_default().iter().map(|&n| n as usize).collect();
    elements.iter_mut().enumerate().for_each(|(i, x)| *x *= factor(i));
    let bytes = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
    let scaled =
        add_derived_constant(program, var, "equalized", static_spec(ScalarType::Float, &sizes), bytes);
    for (argument, value) in &mut program.graph.nodes[index].args {
        if **argument == *name {
            *value = Argument::Var(scaled);
        }
    }
}

/// Divides each channel of a node's result by its factor, by way of the node's weights and bias.
fn divide_results(program: &mut ExportedProgram, index: usize, factors: &[f32]) {
    let node = &program.graph.nodes[index];
    let mut inner = 1;
    if let (Some((weight, axis)), true) = (weight_axis(program, node), *node.target != *NORM) {
        let sizes = program.spec(weight).and_then(|spec| spec.known_sizes()).unwrap_or_default();
        inner = sizes.iter().skip(axis + 1).map(|&n| n as usize).product::<usize>().max(1);
    }
    scale_argument(program, index, "weight", |i| factors[i / inner % factors.len()].recip());
    scale_argument(program, index, "bias", |i| factors[i].recip());
}

/// Multiplies each channel of a node's input by its factor, by way of the node's weights.
fn multiply_input(program: &mut ExportedProgram, index: usize, channels: Channels, factors: &[f32]) {
    let node = &program.graph.nodes[index];
    let is_norm = *node.target == *NORM;
    let Some(reader) = Reader::from_node(program, node, channels) else { return };
    scale_argument(program, index, "weight", |i| factors[reader.channel(i)]);
    if is_norm {
        scale_argument(program, index, "running_mean", |i| factors[i].recip());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::parse;

    /// Two layers with an activation between them that maps channel 0 to 0..1 and channel 1 to 0..100.
    fn program(between: &str, outputs: &str) -> ExportedProgram {
        let text = format!(
            "forward:
  parameter %v: float32[2, 1] = [1.0, 100.0]
  parameter %b: float32[2] = [0.5, 50.0]
  parameter %w: float32[2, 2] = [1.0, 1.0, -1.0, 1.0]
  input %x: float32[1, 1]
  %h: float32[1, 2] = aten.linear.default(input=%x, weight=%v, bias=%b)
  %r: float32[1, 2] = {between}
  %y: float32[1, 2] = aten.linear.default(input=%r, weight=%w, bias=None)
  return {outputs}
"
        );
        parse(&text).unwrap()
    }

    fn statistics() -> BTreeMap<String, ChannelStatistics> {
        let of =
            ChannelStatistics { low: vec![0.0; 2], high: vec![1.0, 100.0], mean_squares: vec![0.3, 3e3] };
        BTreeMap::from([("r".to_owned(), of)])
    }

    fn weights(program: &ExportedProgram, node: usize, name: &str) -> Vec<f32> {
        floats(program, program.graph.nodes[node].arg(name).unwrap().var().unwrap()).unwrap()
    }

    #[test]
    fn ranges_move_from_one_layer_to_the_next() {
        let mut program = program("aten.relu.default(self=%h)", "%y");
        run(&mut program, &statistics());
        program.verify().unwrap();
        let (v, b, w) =
            (weights(&program, 0, "weight"), weights(&program, 0, "bias"), weights(&program, 2, "weight"));
        assert!(v[0] > 1.0 && (v[1] - 100.0).abs() < 1e-3, "{v:?}");
        for (c, (old_v, old_b)) in [(1.0, 0.5), (100.0, 50.0)].into_iter().enumerate() {
            let close = |a: f32, b: f32| (a - b).abs() <= 1e-6 * b.abs();
            assert!(
                close(v[c] * w[c], old_v) && close(b[c] * w[c], old_b) && close(-w[2], w[0]),
                "{v:?} {b:?} {w:?}"
            );
        }
    }

    #[test]
    fn values_that_others_see_keep_their_scale() {
        let cases = [
            ("aten.relu.default(self=%h)", "%y, %r"),
            ("aten.sigmoid.default(self=%h)", "%y"),
            ("aten.clamp.default(self=%h, min=0, max=6)", "%y"),
        ];
        for (between, outputs) in cases {
            let mut program = program(between, outputs);
            run(&mut program, &statistics());
            assert_eq!(weights(&program, 0, "weight"), [1.0, 100.0], "{between}, {outputs}");
        }
    }

    #[test]
    fn similar_channels_stay_as_they_are() {
        let mut program = program("aten.relu.default(self=%h)", "%y");
        let of = ChannelStatistics { low: vec![0.0; 2], high: vec![2.0; 2], mean_squares: vec![1.0; 2] };
        run(&mut program, &BTreeMap::from([("r".to_owned(), of)]));
        assert_eq!(weights(&program, 0, "weight"), [1.0, 100.0]);
    }
}
