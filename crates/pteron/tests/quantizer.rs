//! Quantization with calibration data: what is measured, and what a goal keeps in float.

use pteron::compile::{self, OperatorTable, Options, QuantizationGoal, Quantize, Quantized, Quantizer};
use pteron::{DataLoader, EValue, FileLoader, Tensor};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Deterministic pictures for the classifier of digits: strokes of several widths.
fn samples() -> Vec<Vec<EValue>> {
    let picture = |seed: usize| {
        let pixel = |i: usize| {
            let (x, y) = (i % 8, i / 8);
            let near = (x * (1 + seed % 3) + y * (seed % 5)).abs_diff(6 + seed) as f32;
            (1.0 - near / (2.0 + seed as f32)).max(0.0)
        };
        let pixels: Vec<f32> = (0..8 * 8).map(pixel).collect();
        vec![EValue::Tensor(Tensor::from_slice(&[1, 1, 8, 8], &pixels).unwrap())]
    };
    (0..8).map(picture).collect()
}

fn quantized(quantize: Quantize, goal: QuantizationGoal, budget: f64) -> pteron::tools::Result<Quantized> {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pte");
    let file: Arc<dyn DataLoader> = Arc::new(FileLoader::open(digits).unwrap());
    let kernels = pteron::kernel_registry();
    let table = OperatorTable::all(&kernels);
    let compile = |_: &str, options: &Options| {
        compile::from_program(Arc::clone(&file), None, (&table, &table), options, &mut |_, _, _| {})
    };
    let options = Options { quantize: Some(quantize), ..Options::default() };
    let quantizer = Quantizer::new(&file, options, pteron::load_options(), &compile)?;
    quantizer.with_float_budget(budget).run(&samples(), goal, &|_| {})
}

fn sqnr(found: &Quantized) -> f64 {
    found.report.outputs[0].closeness.unwrap().sqnr
}

#[test]
fn outputs_are_measured_on_the_samples() {
    for quantize in [Quantize::Static(BTreeMap::new()), Quantize::Dynamic] {
        let found = quantized(quantize, QuantizationGoal::default(), 0.0).unwrap();
        let report = &found.report;
        assert!(sqnr(&found) > 20.0 && sqnr(&found) < 80.0, "{report:?}");
        assert_eq!((report.samples, report.kept.len(), report.outputs[0].same_top), (8, 0, Some(1.0)));
        assert!(report.bytes[1] < report.bytes[0] && report.multiplications[0] > 0, "{report:?}");
    }
}

#[test]
fn the_most_sensitive_nodes_stay_float_until_the_goal_is_reached() {
    let free = quantized(Quantize::Static(BTreeMap::new()), QuantizationGoal::default(), 0.0).unwrap();
    let goal = QuantizationGoal { min_sqnr: Some(sqnr(&free) + 1.0), ..QuantizationGoal::default() };
    let found = quantized(Quantize::Static(BTreeMap::new()), goal, 0.0).unwrap();
    assert!(Some(sqnr(&found)) >= goal.min_sqnr, "{:?}", found.report);
    assert!(
        !found.report.kept.is_empty()
            && found.report.kept.iter().all(|name| found.options.keep_float.contains(name))
    );
    let [quantized, all] = found.report.multiplications;
    assert!(quantized > 0 && quantized < all, "{:?}", found.report);
}

#[test]
fn a_goal_out_of_reach_is_an_error_that_says_what_was_reached() {
    let goal = QuantizationGoal { min_sqnr: Some(200.0), min_agreement: Some(0.5) };
    let error = quantized(Quantize::Dynamic, goal, 0.0).unwrap_err().to_string();
    let parts =
        ["a signal-to-noise ratio of 200 dB and an agreement of 0.5", "0 of 1 nodes in float", "output 0:"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn the_budget_keeps_the_layers_with_the_most_noise_in_float() {
    let whole = quantized(Quantize::Static(BTreeMap::new()), QuantizationGoal::default(), 0.0).unwrap();
    let found = quantized(Quantize::Static(BTreeMap::new()), QuantizationGoal::default(), 0.6).unwrap();
    let report = &found.report;
    let share: f64 = report.spent.iter().map(|on| on.multiplications).sum();
    assert!(share > 0.0 && share <= 0.6 && sqnr(&found) > sqnr(&whole), "{report:?}");
    let [quantized, all] = report.multiplications;
    assert!((1.0 - quantized as f64 / all as f64 - share).abs() < 1e-9, "{report:?}");
}

/// Quantizes an encoder layer with attention of two heads, on random inputs.
fn quantized_attention(budget: f64) -> Quantized {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives/transformer/model.pt2");
    let file: Arc<dyn DataLoader> = Arc::new(FileLoader::open(archive).unwrap());
    let kernels = pteron::kernel_registry();
    let table = OperatorTable::all(&kernels);
    let compile =
        |_: &str, options: &Options| compile::from_loader(&file, &table, options, &mut |_, _, _| {});
    let sample = |seed: usize| {
        let elements: Vec<f32> = (0..24).map(|i| ((i * 7 + seed * 13) % 31) as f32 / 8.0 - 2.0).collect();
        vec![EValue::Tensor(Tensor::from_slice(&[3, 8], &elements).unwrap())]
    };
    let samples: Vec<_> = (0..8).map(sample).collect();
    let options = Options { quantize: Some(Quantize::Static(BTreeMap::new())), ..Options::default() };
    let quantizer = Quantizer::new(&file, options, pteron::load_options(), &compile).unwrap();
    quantizer.with_float_budget(budget).run(&samples, QuantizationGoal::default(), &|_| {}).unwrap()
}

#[test]
fn products_of_attention_are_quantized_where_the_outputs_stay_as_close() {
    let whole = quantized_attention(0.0);
    let [quantized, all] = whole.report.multiplications;
    assert!(quantized == all && all > 0 && sqnr(&whole) > 30.0, "{:?}", whole.report);
    let found = quantized_attention(1e-9);
    assert!(sqnr(&found) >= sqnr(&whole), "{:?}", found.report);
    assert!(found.report.spent.iter().all(|on| found.options.keep_float.contains(&on.name)));
}
