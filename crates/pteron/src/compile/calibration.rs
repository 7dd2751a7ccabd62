//! Runs programs that output the values which static quantization needs to know.

use super::in_memory;
use super::rounding::Moments;
use crate::{DataLoader, EValue};
use pteron_compiler::{
    ChannelStatistics, Compiled, Histogram, LayerObservation, RoundedWeights, StaticScheme, ValueObservation,
};
use pteron_runtime::{Limits, LoadOptions, Method, Program};
use pteron_tensor::{DimOrder, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A method whose additional outputs are observed values.
struct Observer {
    method: Method,
    program: Program,
    name: String,
    observed: Vec<ValueObservation>,
    layers: Vec<LayerObservation>,
}

impl Observer {
    fn new(
        file: &Arc<dyn DataLoader>,
        observing: &Compiled,
        name: &str,
        options: LoadOptions,
    ) -> crate::Result<Self> {
        let program = Program::load(in_memory(Arc::clone(file), observing), &Limits::default())?;
        let method = program.load_method(name, options)?;
        let summary = observing.methods.iter().find(|method| method.name == name);
        let observed = summary.map(|summary| summary.observed.clone()).unwrap_or_default();
        let layers = summary.map(|summary| summary.observed_layers.clone()).unwrap_or_default();
        Ok(Self { method, program, name: name.to_owned(), observed, layers })
    }

    /// Runs the method, and returns its additional outputs as row-major tensors: `each` for each observed value.
    fn run(&mut self, inputs: &[EValue], each: usize) -> crate::Result<Vec<Tensor>> {
        let outputs = self.method.execute(inputs)?;
        let own = outputs.len().saturating_sub(each * self.observed.len());
        let row_major = |output| match output {
            EValue::Tensor(tensor) if tensor.meta().dim_order().is_contiguous() => Some(Ok(tensor)),
            EValue::Tensor(tensor) => Some(tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))),
            _ => None,
        };
        Ok(outputs.into_iter().skip(own).filter_map(row_major).collect::<Result<_, _>>()?)
    }
}

/// Collects the ranges of values, by running a program whose additional outputs are the observed values
/// ([`Quantize::Observe`](super::Quantize::Observe)).
pub struct Calibration {
    observer: Observer,
    values: Vec<ValueStatistics>,
    moments: Vec<Moments>,
}

#[derive(Default)]
struct ValueStatistics {
    elements: Histogram,
    channels: ChannelStatistics,
    /// The number of elements of each channel.
    counts: Vec<u64>,
}

impl Calibration {
    /// Loads the method `name` of a program compiled with [`Quantize::Observe`](super::Quantize::Observe); `file` is the source it
    /// was compiled from.
    ///
    /// # Errors
    /// There is no such method, or it cannot be loaded.
    pub fn new(file: &Arc<dyn DataLoader>, observing: &Compiled, name: &str) -> crate::Result<Self> {
        Self::with_options(file, observing, name, crate::load_options())
    }

    /// As [`new`](Self::new), with the operators and backends of these options.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_options(
        file: &Arc<dyn DataLoader>,
        observing: &Compiled,
        name: &str,
        options: LoadOptions,
    ) -> crate::Result<Self> {
        let observer = Observer::new(file, observing, name, options)?;
        let values = observer.observed.iter().map(|_| ValueStatistics::default()).collect();
        let moments = Moments::of_layers(&observer.layers);
        Ok(Self { observer, values, moments })
    }

    /// The program that is run.
    pub fn program(&self) -> &Program {
        &self.observer.program
    }

    /// Runs the method, and adds the elements of the observed values to their statistics.
    ///
    /// # Errors
    /// The method fails.
    pub fn run(&mut self, inputs: &[EValue]) -> crate::Result<()> {
        let tensors = self.observer.run(inputs, 1)?;
        for ((value, observed), tensor) in self.values.iter_mut().zip(&self.observer.observed).zip(&tensors) {
            let elements = tensor.view().storage::<f32>()?;
            value.elements.add(elements);
            if let Some(channels) = observed.channels {
                value.add(elements, channels.channel_of_element(tensor.sizes()), channels.count);
            }
            let of_value = self.moments.iter_mut().filter(|moments| moments.is_input(&observed.name));
            of_value.for_each(|moments| moments.add(elements, tensor.sizes()));
        }
        Ok(())
    }

    /// What static quantization needs to know ([`Quantize::Static`](super::Quantize::Static)), by the method's name:
    /// for each value the range with the least squared error in int8 over the runs.
    pub fn schemes(self) -> BTreeMap<String, StaticScheme> {
        let (name, scheme, _) = self.scheme_and_channels();
        BTreeMap::from([(name, scheme)])
    }

    /// The method, its ranges as in [`Self::schemes`], and the statistics of the channels of values. The ranges are
    /// those of values that were not equalized by these statistics, so one scheme cannot use both.
    pub(super) fn scheme_and_channels(self) -> (String, StaticScheme, BTreeMap<String, ChannelStatistics>) {
        let (mut scheme, mut channels) = (StaticScheme::default(), BTreeMap::new());
        for (observed, mut value) in self.observer.observed.into_iter().zip(self.values) {
            scheme.ranges.insert(observed.name.clone(), value.elements.range());
            if !value.counts.is_empty() {
                let squares = value.channels.mean_squares.iter_mut().zip(&value.counts);
                squares.for_each(|(square, &count)| *square /= count.max(1) as f64);
                channels.insert(observed.name, value.channels);
            }
        }
        (self.observer.name, scheme, channels)
    }

    /// The weights of layers in int8, by name, rounded so that the results over the runs stay close.
    #[cfg_attr(not(feature = "tools"), expect(dead_code, reason = "the quantizer asks for them"))]
    pub(super) fn rounded_weights(&self) -> BTreeMap<String, Arc<RoundedWeights>> {
        let rounded = |moments: &Moments| Some(Arc::new(moments.round()?));
        let all = self.moments.iter().filter_map(|moments| Some((moments, rounded(moments)?)));
        all.flat_map(|(moments, weights)| {
            moments.names().map(move |name| (name.to_owned(), Arc::clone(&weights)))
        })
        .collect()
    }

    /// The smallest and the largest element of each value.
    pub fn extents(&self) -> BTreeMap<String, (f32, f32)> {
        let values = self.observer.observed.iter().zip(&self.values);
        values.map(|(observed, value)| (observed.name.clone(), value.elements.extent())).collect()
    }
}

impl ValueStatistics {
    fn add(&mut self, elements: &[f32], channel: impl Fn(usize) -> usize, count: usize) {
        let ChannelStatistics { low, high, mean_squares } = &mut self.channels;
        low.resize(count, 0.0);
        high.resize(count, 0.0);
        mean_squares.resize(count, 0.0);
        self.counts.resize(count, 0);
        for (i, &x) in elements.iter().enumerate() {
            let c = channel(i);
            (low[c], high[c]) = (low[c].min(x), high[c].max(x));
            mean_squares[c] += f64::from(x) * f64::from(x);
            self.counts[c] += 1;
        }
    }
}

/// The errors of single layers, from a program compiled with [`Quantize::ObserveErrors`](super::Quantize::ObserveErrors).
pub struct LayerErrors {
    observer: Observer,
    layers: Vec<LayerSums>,
}

#[derive(Default)]
struct LayerSums {
    signal: f64,
    noise: f64,
    /// For each channel: the sum of the errors, the sum of their squares, and the number of elements.
    channels: Vec<[f64; 3]>,
}

impl LayerErrors {
    /// Loads the method `name`.
    ///
    /// # Errors
    /// As [`Calibration::new`].
    pub fn new(
        file: &Arc<dyn DataLoader>,
        observing: &Compiled,
        name: &str,
        options: LoadOptions,
    ) -> crate::Result<Self> {
        let observer = Observer::new(file, observing, name, options)?;
        let layers = observer.observed.iter().map(|_| LayerSums::default()).collect();
        Ok(Self { observer, layers })
    }

    /// Runs the method, and compares the observed layers.
    ///
    /// # Errors
    /// The method fails.
    pub fn run(&mut self, inputs: &[EValue]) -> crate::Result<()> {
        let tensors = self.observer.run(inputs, 2)?;
        let (pairs, observed) = (tensors.as_chunks::<2>().0, &self.observer.observed);
        for ((layer, [exact, rounded]), observed) in self.layers.iter_mut().zip(pairs).zip(observed) {
            let (a, b) = (exact.view(), rounded.view());
            let (a, b) = (a.storage::<f32>()?, b.storage::<f32>()?);
            let Some(channels) = observed.channels else { continue };
            let channel = channels.channel_of_element(exact.sizes());
            layer.channels.resize(channels.count, [0.0; 3]);
            for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
                let error = f64::from(a) - f64::from(b);
                layer.signal += f64::from(a) * f64::from(a);
                layer.noise += error * error;
                let [sum, squares, count] = &mut layer.channels[channel(i)];
                (*sum, *squares, *count) = (*sum + error, *squares + error * error, *count + 1.0);
            }
        }
        Ok(())
    }

    /// For each layer in order: its name, the name of its input, and its noise energy divided by that of the signal.
    pub fn noise(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        self.observer.observed.iter().zip(&self.layers).map(|(observed, layer)| {
            let noise = if layer.signal > 0.0 { layer.noise / layer.signal } else { 0.0 };
            (observed.name.as_str(), observed.input.as_deref().unwrap_or(""), noise)
        })
    }

    /// For each layer, by name, the mean error of each channel, which is to be added to the bias. A mean is shrunk
    /// towards 0 by what chance explains: the mean of `n` errors has 1/n of the variance of one.
    pub fn corrections(&self) -> BTreeMap<String, Vec<f32>> {
        let correction = |&[sum, squares, count]: &[f64; 3]| {
            let count = count.max(1.0);
            let mean = sum / count;
            let chance = (squares / count - mean * mean).max(0.0) / count;
            let shrunk = if mean == 0.0 { 0.0 } else { (1.0 - chance / (mean * mean)).max(0.0) };
            (mean * shrunk) as f32
        };
        let layers = self.observer.observed.iter().zip(&self.layers);
        layers
            .map(|(observed, layer)| (observed.name.clone(), layer.channels.iter().map(correction).collect()))
            .collect()
    }
}
