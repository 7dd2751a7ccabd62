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
    /// For each quantized node that was measured alone, the most sensitive one first: how close the outputs are if only it is quantized.
    pub alone: Vec<(String, Vec<OutputComparison>)>,
    /// The nodes that stay float to reach the goal, the most sensitive one first.
    pub kept: Vec<String>,
    /// The number of multiplications per run in quantized matrix products and convolutions, and in all of them.
    pub multiplications: [u64; 2],
    /// Bytes of the float program and of the quantized one, with their external data.
    pub bytes: [u64; 2],
    /// The median seconds of a run of the float program and of the quantized one, with the threads of the load options.
    pub seconds: [f64; 2],
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
            file,
            options,
            load,
            compile,
            float,
        })
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
    /// With a goal that is missed, the nodes that cost the most noise for the multiplications that they save stay
    /// float, as many as it takes. Each quantized node is measured alone for this: for `n` of them, the model is
    /// compiled and run over the samples up to `n + log2(n) + 1` more times.
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
        let mut run = Run { quantizer: self, scheme, samples, expected, progress };
        let mut attempt = match self.options.quantize {
            Some(Quantize::Static(_)) => run.attempt_best_static_scheme()?,
            _ => run.attempt(&BTreeSet::new())?,
        };
        let (mut kept, mut alone) = (Vec::new(), Vec::new());
        if goal.shortfall(&attempt.outputs) > 0.0 {
            let sensitivity = run.sensitivity(&attempt)?;
            (attempt, kept) = run.reach_goal(&goal, attempt, &sensitivity)?;
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
}

/// How much the quantization of a node changes the outputs.
struct Sensitivity {
    name: String,
    /// The outputs if only this node is quantized.
    outputs: Vec<OutputComparison>,
    /// The largest share of noise that this node adds to an output if quantized alone, per quantized multiplication.
    density: f64,
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
        let extents = calibration.extents();
        let (_, observed, next_channels) = calibration.scheme_and_channels();
        let mut scheme = StaticScheme { ranges: observed.ranges, ..given };
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
        let quantizer = self.quantizer;
        let compiled = (quantizer.compile)("quantizing", &self.options(kept, false))?;
        let program = load_compiled(quantizer.file, &compiled)?;
        let mut closeness = OutputCloseness::default();
        let seconds = quantizer.run_samples(&program, self.samples, |index, outputs| {
            (self.progress)("measuring");
            closeness.add(&self.expected[index], &outputs)
        })?;
        let names = program.method_meta(&quantizer.method)?.value_names()?.outputs;
        let outputs = closeness.finish(names);
        Ok(Attempt { compiled, outputs, seconds })
    }

    /// Measures each node that the attempt quantizes alone, and sorts them: first those with the most noise for the
    /// multiplications that they save.
    fn sensitivity(&self, attempt: &Attempt) -> Result<Vec<Sensitivity>> {
        let summary = self.quantizer.summary(&attempt.compiled);
        let multiplications: BTreeMap<&str, u64> =
            summary.layers.iter().map(|layer| (layer.name.as_str(), layer.multiplications)).collect();
        let mut measured = Vec::with_capacity(summary.quantized.len());
        for name in &summary.quantized {
            let others = summary.quantized.iter().filter(|other| *other != name).cloned().collect();
            let outputs = self.attempt(&others)?.outputs;
            let noise = |output: &OutputComparison| {
                output.closeness.map_or(0.0, |closeness| 10f64.powf(-closeness.sqnr / 10.0))
            };
            let noise = outputs.iter().map(noise).fold(0.0, f64::max);
            let saved = multiplications.get(name.as_str()).copied().unwrap_or(0).max(1);
            measured.push(Sensitivity { name: name.clone(), outputs, density: noise / saved as f64 });
        }
        measured.sort_by(|a, b| b.density.total_cmp(&a.density));
        Ok(measured)
    }

    /// Keeps as few of the most sensitive nodes in float as the goal takes, by bisection. Fails if the goal takes all of them.
    fn reach_goal(
        &self,
        goal: &QuantizationGoal,
        whole: Attempt,
        sensitivity: &[Sensitivity],
    ) -> Result<(Attempt, Vec<String>)> {
        let names = |count: usize| sensitivity[..count].iter().map(|node| node.name.clone());
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
