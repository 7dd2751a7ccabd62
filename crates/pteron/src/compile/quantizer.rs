//! Quantization that measures the outputs of the program that it compiles, and reaches a goal by keeping nodes in float.

use super::{Calibration, LayerErrors, in_memory};
use crate::{DataLoader, EValue, LoadOptions, Program};
use pteron_clock::Instant;
use pteron_compiler::{ChannelStatistics, Compiled, MethodSummary, Options, Quantize, StaticScheme};
use pteron_runtime::Limits;
use pteron_toolbox::comparison::{OutputCloseness, OutputComparison};
use pteron_toolbox::run::Latency;
use pteron_toolbox::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The share of the multiplications that may stay in float by default.
pub const FLOAT_BUDGET: f64 = 0.05;

/// The maximum number of layers that stay float within the budget.
const MAX_SPENT: usize = 8;
/// The least share of an output's noise that such a layer adds if quantized alone.
const LEAST_RATIO: f64 = 0.02;
/// How much the mean ratio must rise for a layer to stay float, in decibels.
const LEAST_GAIN: f64 = 0.1;
/// The number of samples on which a layer is measured alone, at most.
const SAMPLES_ALONE: usize = 8;

/// What each output must reach on the calibration data; an output for which a measure is not defined passes it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct QuantizationGoal {
    /// The signal-to-noise ratio, in decibels, relative to the outputs of the float program.
    pub min_sqnr: Option<f64>,
    /// The share of rows whose largest element stays at its position, from 0 to 1.
    pub min_agreement: Option<f64>,
}

impl QuantizationGoal {
    /// How far the outputs miss the goal: 0 if they reach it.
    fn shortfall(&self, outputs: &[OutputComparison]) -> f64 {
        let of_output = |output: &OutputComparison| {
            let sqnr =
                self.min_sqnr.zip(output.closeness).map_or(0.0, |(min, closeness)| min - closeness.sqnr);
            let agreement = self.min_agreement.zip(output.same_top).map_or(0.0, |(min, same)| min - same);
            sqnr.max(agreement)
        };
        outputs.iter().map(of_output).fold(0.0, f64::max)
    }
}

/// The options that compile the quantized program, and the measurements of that program.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// The options, with value ranges and nodes to keep in float.
    pub options: Options,
    /// The measurements.
    pub report: QuantizationReport,
}

/// Measurements of a quantized program, compared with the float program of otherwise equal options.
#[derive(Debug, Clone)]
pub struct QuantizationReport {
    /// The method that was run.
    pub method: String,
    /// The number of samples.
    pub samples: usize,
    /// How close the outputs are to those of the float program, over all samples.
    pub outputs: Vec<OutputComparison>,
    /// The layers that stay float within the budget: the one with the most noise for its multiplications first.
    pub spent: Vec<SpentOn>,
    /// For each quantized node that was measured alone, the most sensitive one first: how close the outputs are if only it is quantized.
    pub alone: Vec<(String, Vec<OutputComparison>)>,
    /// The nodes that stay float within the budget or to reach the goal, the most sensitive one first.
    pub kept: Vec<String>,
    /// The number of multiplications per run in quantized matrix products and convolutions, and in all of them.
    pub multiplications: [u64; 2],
    /// Bytes of the float program and of the quantized one, with their external data.
    pub bytes: [u64; 2],
    /// The median seconds of a run of the float program and of the quantized one, with the threads of the load options.
    pub seconds: [f64; 2],
}

/// A layer that stays float within the budget.
#[derive(Debug, Clone, PartialEq)]
pub struct SpentOn {
    /// The name of the layer's node.
    pub name: String,
    /// Its share of the multiplications of a run.
    pub multiplications: f64,
    /// The energy of the noise that it adds to an output if only it is quantized, divided by that of the signal: the largest of the outputs.
    pub noise: f64,
}

/// Finds out how to quantize a model: calibrates, compiles, and measures the outputs on the calibration data.
pub struct Quantizer<'q> {
    file: &'q Arc<dyn DataLoader>,
    options: Options,
    load: LoadOptions,
    compile: Compile<'q>,
    float: Program,
    float_bytes: u64,
    method: String,
    float_budget: f64,
}

/// Compiles the model with the given options; the text names the purpose, such as `quantizing`.
pub type Compile<'q> = &'q (dyn Fn(&str, &Options) -> crate::Result<Compiled> + Sync);

/// A program that is compiled with some nodes kept in float.
struct Attempt {
    compiled: Compiled,
    outputs: Vec<OutputComparison>,
    seconds: f64,
}

impl<'q> Quantizer<'q> {
    /// Compiles the float program of the model in `file`. [`Options::quantize`] is the scheme; what [`Quantize::Static`] holds is
    /// replaced by what calibration finds.
    ///
    /// # Errors
    /// The model cannot be compiled; or it has several methods, and none is called `forward`.
    pub fn new(
        file: &'q Arc<dyn DataLoader>,
        options: Options,
        load: LoadOptions,
        compile: Compile<'q>,
    ) -> Result<Self> {
        let float = Options { quantize: None, keep_float: BTreeSet::new(), ..options.clone() };
        let compiled = compile("compiling in float", &Options { external_data: false, ..float })?;
        let names: Vec<&str> = compiled.methods.iter().map(|method| method.name.as_str()).collect();
        let method = match names[..] {
            [only] => only,
            _ if names.contains(&"forward") => "forward",
            _ => return Err(Error::Input("name the method to calibrate: there are several".to_owned())),
        };
        let float = load_compiled(file, &compiled)?;
        Ok(Self {
            float_bytes: compiled.program.header().file_len,
            method: method.to_owned(),
            float_budget: FLOAT_BUDGET,
            file,
            options,
            load,
            compile,
            float,
        })
    }

    /// Lets the layers that add the most noise stay float under [`Quantize::Static`], up to this share of the multiplications instead of
    /// [`FLOAT_BUDGET`]. Each layer with fewer is measured alone for this, on a few samples; 0 measures none.
    #[must_use]
    pub fn with_float_budget(self, share: f64) -> Self {
        Self { float_budget: share, ..self }
    }

    /// The float program.
    pub fn program(&self) -> &Program {
        &self.float
    }

    /// The method that is calibrated and measured.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Calibrates and measures with these samples: inputs of the method. `progress` is told what is being done.
    ///
    /// With a goal that is missed, the layers that cost the most noise for the multiplications that they save stay
    /// float, as many as it takes. Each quantized layer is measured alone for this: for `n` of them, the model is
    /// compiled and run over some samples up to `n` more times, and over all of them `log2(n) + 1` more times.
    ///
    /// # Errors
    /// A run fails, the model cannot be quantized, or the goal cannot be reached.
    pub fn run(
        &self,
        samples: &[Vec<EValue>],
        goal: QuantizationGoal,
        progress: &dyn Fn(&str),
    ) -> Result<Quantized> {
        let mut expected = Vec::with_capacity(samples.len());
        let float_seconds = self.run_samples(&self.float, samples, |_, outputs| {
            expected.push(outputs);
            Ok(())
        })?;
        let scheme = self.options.quantize.clone();
        let mut run = Run { quantizer: self, scheme, samples, expected, progress, alone: BTreeMap::new() };
        let mut attempt = match self.options.quantize {
            Some(Quantize::Static(_)) => run.attempt_best_static_scheme()?,
            _ => run.attempt(&BTreeSet::new())?,
        };
        let (mut kept, mut alone, mut spent) = (Vec::new(), Vec::new(), Vec::new());
        if matches!(self.options.quantize, Some(Quantize::Static(_))) && self.float_budget > 0.0 {
            (attempt, spent) = run.spend_float_budget(attempt)?;
            kept.extend(spent.iter().map(|on| on.name.clone()));
        }
        if goal.shortfall(&attempt.outputs) > 0.0 {
            let sensitivity = run.sensitivity(&attempt, u64::MAX)?;
            (attempt, kept) = run.reach_goal(&goal, attempt, &kept, &sensitivity)?;
            alone = sensitivity.into_iter().map(|node| (node.name, node.outputs)).collect();
        }
        let summary = self.summary(&attempt.compiled);
        let quantized: u64 = summary.layers.iter().map(|layer| layer.multiplications).sum();
        let float: u64 = summary.float.iter().map(|node| node.multiplications).sum();
        let multiplications = [quantized, quantized + float];
        let bytes = [self.float_bytes, attempt.compiled.program.header().file_len];
        let options = run.options(&kept.iter().cloned().collect(), self.options.external_data);
        let report = QuantizationReport {
            method: self.method.clone(),
            samples: samples.len(),
            outputs: attempt.outputs,
            spent,
            alone,
            kept,
            multiplications,
            bytes,
            seconds: [float_seconds, attempt.seconds],
        };
        Ok(Quantized { options, report })
    }
}

fn load_compiled(file: &Arc<dyn DataLoader>, compiled: &Compiled) -> Result<Program> {
    Ok(Program::load(in_memory(Arc::clone(file), compiled), &Limits::default())?)
}

impl Quantizer<'_> {
    /// Runs a program with each sample, and calls `each` with the sample's index and the outputs. Returns the median seconds of a run.
    fn run_samples(
        &self,
        program: &Program,
        samples: &[Vec<EValue>],
        mut each: impl FnMut(usize, Vec<EValue>) -> Result<()>,
    ) -> Result<f64> {
        let mut method = program.load_method(&self.method, self.load.clone())?;
        let mut times = Vec::with_capacity(samples.len());
        for (index, sample) in samples.iter().enumerate() {
            let start = Instant::now();
            let outputs = method.execute(sample)?;
            times.push(start.elapsed());
            each(index, outputs)?;
        }
        Ok(Latency::from_durations(times).map_or(0.0, |latency| latency.median_ms / 1e3))
    }

    fn summary<'c>(&self, compiled: &'c Compiled) -> &'c MethodSummary {
        let of_name = compiled.methods.iter().find(|method| method.name == self.method);
        of_name.unwrap_or(&compiled.methods[0])
    }
}

/// The state of [`Quantizer::run`]: the current scheme, the samples, and the float program's outputs for them.
struct Run<'r> {
    quantizer: &'r Quantizer<'r>,
    scheme: Option<Quantize>,
    samples: &'r [Vec<EValue>],
    expected: Vec<Vec<EValue>>,
    progress: &'r dyn Fn(&str),
    /// The outputs if only a node is quantized, of those that were measured.
    alone: BTreeMap<String, Vec<OutputComparison>>,
}

/// How much the quantization of a node changes the outputs.
struct Sensitivity {
    name: String,
    /// The outputs if only this node is quantized.
    outputs: Vec<OutputComparison>,
    /// The largest share of noise that this node adds to an output if quantized alone.
    noise: f64,
    multiplications: u64,
}

impl Run<'_> {
    /// Calibrates, and takes the static scheme with the closest outputs: with or without equalized channels, and with or without
    /// corrected biases.
    fn attempt_best_static_scheme(&mut self) -> Result<Attempt> {
        let (plain, channels) = self.scheme(BTreeMap::new())?;
        let mut candidates = vec![self.correct_biases(&plain)?];
        if !channels.is_empty() {
            let (equalized, _) = self.scheme(channels)?;
            let corrected = self.correct_biases(&equalized)?;
            candidates.extend([equalized, corrected]);
        }
        let mut best = self.measure_scheme(plain)?;
        for candidate in candidates {
            let measured = self.measure_scheme(candidate)?;
            if measured.0 > best.0 {
                best = measured;
            }
        }
        let (_, attempt, scheme) = best;
        self.scheme = scheme;
        Ok(attempt)
    }

    /// Adds to a scheme the corrections of biases that the measured errors of its layers call for.
    fn correct_biases(&self, scheme: &StaticScheme) -> Result<StaticScheme> {
        let corrections = self.layer_errors(scheme)?.corrections();
        Ok(StaticScheme { corrections, ..scheme.clone() })
    }

    /// Measures a scheme with no node kept in float: its mean signal-to-noise ratio, the attempt, and the scheme.
    fn measure_scheme(&mut self, scheme: StaticScheme) -> Result<(f64, Attempt, Option<Quantize>)> {
        self.scheme = Some(Quantize::Static(self.by_method(scheme)));
        let attempt = self.attempt(&BTreeSet::new())?;
        Ok((mean_sqnr(&attempt.outputs), attempt, self.scheme.clone()))
    }

    fn by_method(&self, scheme: StaticScheme) -> BTreeMap<String, StaticScheme> {
        BTreeMap::from([(self.quantizer.method.clone(), scheme)])
    }

    /// Compiles a program that observes values or errors.
    fn compile_observing(&self, quantize: Quantize) -> Result<Compiled> {
        let options = Options {
            quantize: Some(quantize),
            delegation: Vec::new(),
            ..self.options(&BTreeSet::new(), false)
        };
        Ok((self.quantizer.compile)("observing", &options)?)
    }

    /// The ranges of values after their channels are equalized by these statistics, and the statistics of the channels then. For each
    /// value, the range with the least squared error or that of all elements, whichever gives the layers that read it less noise.
    fn scheme(
        &self,
        channels: BTreeMap<String, ChannelStatistics>,
    ) -> Result<(StaticScheme, BTreeMap<String, ChannelStatistics>)> {
        let quantizer = self.quantizer;
        let given = StaticScheme { channels, ..StaticScheme::default() };
        let observing = self.compile_observing(Quantize::Observe(self.by_method(given.clone())))?;
        let mut calibration =
            Calibration::with_options(quantizer.file, &observing, &quantizer.method, quantizer.load.clone())?;
        for sample in self.samples {
            (self.progress)("calibrating");
            calibration.run(sample)?;
        }
        let (extents, weights) = (calibration.extents(), calibration.rounded_weights());
        let (_, observed, next_channels) = calibration.scheme_and_channels();
        let mut scheme = StaticScheme { ranges: observed.ranges, weights, ..given };
        let whole = StaticScheme { ranges: extents, ..scheme.clone() };
        let mut gains: BTreeMap<&str, f64> = BTreeMap::new();
        let (least_squares, extents) = (self.layer_errors(&scheme)?, self.layer_errors(&whole)?);
        for ((_, input, clamped), (_, _, unclamped)) in least_squares.noise().zip(extents.noise()) {
            *gains.entry(input).or_default() += clamped - unclamped;
        }
        for (name, _) in gains.into_iter().filter(|(_, gain)| *gain > 0.0) {
            if let Some(&extent) = whole.ranges.get(name) {
                scheme.ranges.insert(name.to_owned(), extent);
            }
        }
        Ok((scheme, next_channels))
    }

    fn layer_errors(&self, scheme: &StaticScheme) -> Result<LayerErrors> {
        let quantizer = self.quantizer;
        let observing = self.compile_observing(Quantize::ObserveErrors(self.by_method(scheme.clone())))?;
        let mut errors =
            LayerErrors::new(quantizer.file, &observing, &quantizer.method, quantizer.load.clone())?;
        for sample in self.samples {
            (self.progress)("measuring layers");
            errors.run(sample)?;
        }
        Ok(errors)
    }

    fn options(&self, kept: &BTreeSet<String>, external_data: bool) -> Options {
        let mut options = self.quantizer.options.clone();
        options.quantize.clone_from(&self.scheme);
        options.external_data = external_data;
        options.keep_float.extend(kept.iter().cloned());
        options
    }

    fn attempt(&self, kept: &BTreeSet<String>) -> Result<Attempt> {
        self.attempt_on(kept, 1)
    }

    /// Compiles with nodes kept in float, and measures on every `step`th sample.
    fn attempt_on(&self, kept: &BTreeSet<String>, step: usize) -> Result<Attempt> {
        let quantizer = self.quantizer;
        let compiled = (quantizer.compile)("quantizing", &self.options(kept, false))?;
        let program = load_compiled(quantizer.file, &compiled)?;
        let mut closeness = OutputCloseness::default();
        let samples: Vec<Vec<EValue>> = self.samples.iter().step_by(step).cloned().collect();
        let seconds = quantizer.run_samples(&program, &samples, |index, outputs| {
            (self.progress)("measuring");
            closeness.add(&self.expected[index * step], &outputs)
        })?;
        let names = program.method_meta(&quantizer.method)?.value_names()?.outputs;
        let outputs = closeness.finish(names);
        Ok(Attempt { compiled, outputs, seconds })
    }

    /// Measures each layer of at most `most` multiplications that the attempt quantizes alone, and sorts them: first those with the most
    /// noise for the multiplications that they save.
    fn sensitivity(&mut self, attempt: &Attempt, most: u64) -> Result<Vec<Sensitivity>> {
        let quantizer = self.quantizer;
        let summary = quantizer.summary(&attempt.compiled);
        let step = self.samples.len().div_ceil(SAMPLES_ALONE).max(1);
        let mut measured = Vec::new();
        for layer in summary.layers.iter().filter(|layer| layer.multiplications <= most) {
            let name = &layer.name;
            let outputs = match self.alone.get(name) {
                Some(outputs) => outputs.clone(),
                None => {
                    let others = summary.quantized.iter().filter(|other| *other != name).cloned().collect();
                    self.attempt_on(&others, step)?.outputs
                }
            };
            self.alone.insert(name.clone(), outputs.clone());
            let noise = outputs.iter().map(noise).fold(0.0, f64::max);
            let multiplications = layer.multiplications;
            measured.push(Sensitivity { name: name.clone(), outputs, noise, multiplications });
        }
        let density = |node: &Sensitivity| node.noise / node.multiplications.max(1) as f64;
        measured.sort_by(|a, b| density(b).total_cmp(&density(a)));
        Ok(measured)
    }

    /// Keeps layers with the most noise for their multiplications in float, as far as the budget allows: of multiplications, and of weights, so
    /// that the file stays small. Each of them must bring the outputs closer, and no output farther.
    fn spend_float_budget(&mut self, mut attempt: Attempt) -> Result<(Attempt, Vec<SpentOn>)> {
        let quantizer = self.quantizer;
        let summary = quantizer.summary(&attempt.compiled).clone();
        let of_float: u64 = summary.float.iter().map(|node| node.multiplications).sum();
        let all = of_float + summary.layers.iter().map(|layer| layer.multiplications).sum::<u64>();
        let weights: BTreeMap<&str, u64> =
            summary.layers.iter().map(|layer| (layer.name.as_str(), layer.weights)).collect();
        let share = |of: u64| (quantizer.float_budget.clamp(0.0, 1.0) * of as f64) as u64;
        let (mut left, mut left_weights) = (share(all), share(weights.values().sum()));
        let mut spent: Vec<SpentOn> = Vec::new();
        for node in self.sensitivity(&attempt, left)? {
            let of_node = weights.get(node.name.as_str()).copied().unwrap_or(0);
            // Tables of embeddings multiply nothing, and stay small.
            let fits = (1..=left).contains(&node.multiplications) && of_node <= left_weights;
            let ratios =
                node.outputs.iter().zip(&attempt.outputs).map(|(alone, all)| noise(alone) / noise(all));
            if !fits || spent.len() == MAX_SPENT || ratios.fold(0.0, f64::max) < LEAST_RATIO {
                continue;
            }
            let kept = spent.iter().map(|on| on.name.clone()).chain([node.name.clone()]).collect();
            let closer = match self.attempt(&kept) {
                Ok(closer) if is_closer(&closer.outputs, &attempt.outputs) => closer,
                Ok(_) => continue,
                // Nothing would be quantized.
                Err(_) if kept.len() == summary.layers.len() => continue,
                Err(error) => return Err(error),
            };
            attempt = closer;
            left -= node.multiplications;
            left_weights -= of_node;
            let multiplications = node.multiplications as f64 / all as f64;
            spent.push(SpentOn { name: node.name, multiplications, noise: node.noise });
        }
        Ok((attempt, spent))
    }

    /// Keeps as few of the most sensitive nodes in float as the goal takes, by bisection. Fails if it takes them all.
    fn reach_goal(
        &self,
        goal: &QuantizationGoal,
        whole: Attempt,
        kept: &[String],
        sensitivity: &[Sensitivity],
    ) -> Result<(Attempt, Vec<String>)> {
        let more = |count: usize| sensitivity[..count].iter().map(|node| node.name.clone());
        let names = |count: usize| kept.iter().cloned().chain(more(count));
        let (mut missing, mut best) = (0, None);
        let mut enough = sensitivity.len();
        let mut reached = whole;
        while missing + 1 < enough {
            let count = missing.midpoint(enough);
            let attempt = self.attempt(&names(count).collect())?;
            match goal.shortfall(&attempt.outputs) > 0.0 {
                true => (missing, reached) = (count, attempt),
                false => (enough, best) = (count, Some(attempt)),
            }
        }
        let Some(best) = best else {
            return Err(Error::Input(missed_goal_message(
                goal,
                &reached.outputs,
                missing,
                sensitivity.len(),
            )));
        };
        Ok((best, names(enough).collect()))
    }
}

/// Whether the mean ratio of outputs rises, and none falls by more than chance.
fn is_closer(outputs: &[OutputComparison], than: &[OutputComparison]) -> bool {
    let falls = |(a, b): (&OutputComparison, &OutputComparison)| {
        a.closeness.zip(b.closeness).is_some_and(|(a, b)| a.sqnr < b.sqnr - LEAST_GAIN)
    };
    mean_sqnr(outputs) >= mean_sqnr(than) + LEAST_GAIN && !outputs.iter().zip(than).any(falls)
}

/// The energy of an output's noise divided by that of the signal.
fn noise(output: &OutputComparison) -> f64 {
    output.closeness.map_or(0.0, |closeness| 10f64.powf(-closeness.sqnr / 10.0))
}

/// The mean of the outputs' signal-to-noise ratios in decibels, each taken as at most 150; 0 if no output has one.
fn mean_sqnr(outputs: &[OutputComparison]) -> f64 {
    // More than single precision resolves.
    const MOST: f64 = 150.0;
    let ratios =
        outputs.iter().filter_map(|output| output.closeness.map(|closeness| closeness.sqnr.min(MOST)));
    let (sum, count) = ratios.fold((0.0, 0usize), |(sum, count), ratio| (sum + ratio, count + 1));
    sum / count.max(1) as f64
}

/// The error message for a goal that cannot be reached: the goal, and what was reached instead.
fn missed_goal_message(
    goal: &QuantizationGoal,
    outputs: &[OutputComparison],
    kept: usize,
    all: usize,
) -> String {
    let wanted = [
        goal.min_sqnr.map(|min| format!("a signal-to-noise ratio of {min} dB")),
        goal.min_agreement.map(|min| format!("an agreement of {min}")),
    ];
    let wanted: Vec<String> = wanted.into_iter().flatten().collect();
    let reached = |(index, output): (usize, &OutputComparison)| {
        let sqnr = output.closeness.map_or_else(String::new, |c| format!(" {:.1} dB", c.sqnr));
        let agreement = output.same_top.map_or_else(String::new, |same| format!(", agreement {same:.4}"));
        format!("output {index}:{sqnr}{agreement}")
    };
    let reached: Vec<String> = outputs.iter().enumerate().map(reached).collect();
    format!(
        "the quantized program misses the goal of {} even with {kept} of {all} nodes in float: {}",
        wanted.join(" and "),
        reached.join("; ")
    )
}
