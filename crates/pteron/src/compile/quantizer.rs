//! Quantization that measures the outputs of the program that it compiles, and reaches a goal by keeping nodes in float.

mod goal;
mod products;
mod search;

pub use goal::QuantizationGoal;

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
    /// The layers that stay float within the budget, then the products of two computed values that do beside it: of each, the one with the
    /// most noise for its multiplications first.
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

/// A layer that stays float within the budget, or a product of two computed values that does beside it.
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
    /// The standard error of each output's signal-to-noise ratio over the samples, in decibels.
    standard_errors: Vec<f64>,
    seconds: f64,
}

impl<'q> Quantizer<'q> {
    /// Compiles the float program of the model in `file`. [`Options::quantize`] is the scheme, and [`Options::weights`] the type
    /// of the weights that it leaves in float32; what [`Quantize::Static`] holds is
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
        let float = Options { quantize: None, weights: None, keep_float: BTreeSet::new(), ..options.clone() };
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
    /// With a goal that is missed, or not reached with the margin, the layers that cost the most noise for the multiplications that they save stay
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
        let mut run = Run {
            quantizer: self,
            scheme,
            samples,
            expected,
            progress,
            alone: BTreeMap::new(),
            kept_products: Vec::new(),
            quantizable: BTreeSet::new(),
        };
        let mut attempt = match self.options.quantize {
            Some(Quantize::Static(_)) => run.attempt_best_static_scheme()?,
            _ => run.attempt(&BTreeSet::new())?,
        };
        let (mut kept, mut alone, mut spent) = (Vec::new(), Vec::new(), Vec::new());
        if matches!(self.options.quantize, Some(Quantize::Static(_))) && self.float_budget > 0.0 {
            (attempt, spent) = run.spend_float_budget(attempt)?;
            let layers = spent.iter().map(|on| on.name.clone()).collect();
            let products;
            (attempt, products) = run.return_products(attempt, &layers)?;
            spent.extend(products);
            kept.extend(spent.iter().map(|on| on.name.clone()));
        }
        if !goal.is_reached_with_margin(&attempt) {
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
    /// The products of two computed values that stay float in each attempt.
    kept_products: Vec<String>,
    /// The nodes that any measured attempt quantizes.
    quantizable: BTreeSet<String>,
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
        let mut best = self.measure_scheme(plain.clone())?;
        if self.quantizer.float_budget > 0.0 && self.keep_products(&best.1) {
            best = self.measure_scheme(plain)?;
        }
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
            weights: None,
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
        options.keep_float.extend(kept.iter().chain(&self.kept_products).cloned());
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
        let standard_errors = closeness.standard_errors();
        let outputs = closeness.finish(names);
        Ok(Attempt { compiled, outputs, standard_errors, seconds })
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
