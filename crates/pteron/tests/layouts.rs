//! Programs whose inputs and weights are row-major or channels-last are quantized and delegated alike.
#![cfg(all(feature = "compile", feature = "tools", feature = "xnnpack", feature = "bef-backend"))]

use pteron::compile::{
    self, Calibration, Compiled, Delegation, OperatorTable, Options, Quantize, to_bef, to_xnnpack,
};
use pteron::tools::verify::{Values, read};
use pteron::{BytesLoader, DataLoader, EValue, FileLoader, LoadOptions, Module};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives").join(name)
}

fn compiled(
    archive: &Arc<dyn DataLoader>,
    quantize: Option<Quantize>,
    delegation: Vec<Delegation>,
) -> Compiled {
    let options = Options { quantize, delegation, ..Options::default() };
    let table = OperatorTable::portable(&pteron::kernel_registry());
    compile::from_loader(archive, &table, &options, &mut |_, _, _| {}).unwrap()
}

fn load(compiled: &Compiled) -> Module {
    let mut bytes = Vec::new();
    compiled.program.write_to(&mut bytes).unwrap();
    let options = LoadOptions::new(pteron::kernel_registry()).backends(pteron::backend_registry());
    Module::load(Arc::new(BytesLoader::new(bytes)), options).unwrap()
}

/// The inputs of the runs of a case.
fn inputs(folder: &Path) -> Vec<Vec<EValue>> {
    let case = &read(folder).unwrap()[0];
    let mut values = Values::new(case);
    case.runs.iter().map(|run| values.values(&run.inputs).unwrap()).collect()
}

/// The elements of all outputs in row-major order.
fn run(module: &mut Module, inputs: &[EValue]) -> Vec<f32> {
    let outputs = module.forward(inputs).unwrap();
    let tensor = |value: &EValue| {
        let tensor = value.as_tensor().unwrap();
        let order = pteron::DimOrder::contiguous(tensor.rank());
        tensor.to_dim_order(order).unwrap().as_slice::<f32>().unwrap().to_vec()
    };
    outputs.iter().flat_map(tensor).collect()
}

/// The ratio of signal to quantization noise over all runs, in dB.
fn signal_to_noise(expected: &[Vec<f32>], actual: &[Vec<f32>]) -> f64 {
    let pairs = || expected.iter().flatten().zip(actual.iter().flatten());
    let noise: f64 = pairs().map(|(a, b)| f64::from(a - b).powi(2)).sum();
    10.0 * (pairs().map(|(a, _)| f64::from(*a).powi(2)).sum::<f64>() / noise).log10()
}

fn nodes(compiled: &Compiled) -> [usize; 2] {
    let method = &compiled.methods[0];
    let delegated = method.delegates.iter().flat_map(|delegate| delegate.operators.values()).sum();
    [delegated, method.left.iter().map(|left| left.count).sum()]
}

#[test]
fn every_layout_is_quantized_and_delegated_like_row_major_tensors() {
    let kernels = Arc::new(pteron::kernel_registry());
    let backends: [(&str, Vec<Delegation>); 3] =
        [("kernels", Vec::new()), ("xnnpack", vec![to_xnnpack()]), ("bef", vec![to_bef(&kernels, None)])];
    for layout in ["rows", "input", "model", "both"] {
        let folder = folder(&format!("channels_last_{layout}"));
        let archive: Arc<dyn DataLoader> = Arc::new(FileLoader::open(folder.join("model.pt2")).unwrap());
        let runs = inputs(&folder);
        let mut module = load(&compiled(&archive, None, Vec::new()));
        let expected: Vec<_> = runs.iter().map(|inputs| run(&mut module, inputs)).collect();
        let observing = compiled(&archive, Some(Quantize::Observe(BTreeMap::new())), Vec::new());
        let mut calibration = Calibration::new(&archive, &observing, "forward").unwrap();
        runs.iter().for_each(|inputs| calibration.run(inputs).unwrap());
        let schemes = [
            (None, 90.0),
            (Some(Quantize::Static(calibration.schemes())), 38.0),
            (Some(Quantize::Dynamic), 42.0),
            (Some(Quantize::FourBits { group: 32 }), 20.0),
        ];
        for (quantize, at_least) in schemes {
            for (backend, delegation) in &backends {
                let compiled = compiled(&archive, quantize.clone(), delegation.clone());
                let [delegated, left] = nodes(&compiled);
                let what = format!("{layout}, {quantize:?}, {backend}");
                assert!(
                    left == 0 && (delegated > 0) != delegation.is_empty(),
                    "{what}: {delegated} taken, {left} left"
                );
                let mut module = load(&compiled);
                let actual: Vec<_> = runs.iter().map(|inputs| run(&mut module, inputs)).collect();
                let ratio = signal_to_noise(&expected, &actual);
                assert!(ratio >= at_least, "{what}: {ratio:.1} dB");
            }
        }
    }
}
