//! Training gives the losses of the reference runtime, step by step.

use pteron::{EValue, LoadOptions, PtdDataMap, Sgd, SgdOptions, Tensor, TrainingModule};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Promises that the mapped files do not change.
fn unchanged() -> pteron::Unchanged {
    // SAFETY: these tests only read the files of the corpus, and nothing else writes to them.
    unsafe { pteron::Unchanged::promise() }
}

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn json(path: &str) -> Json {
    serde_json::from_slice(&std::fs::read(testdata(path)).unwrap()).unwrap()
}

/// The inputs of one step: two bits, and the class of their exclusive or.
fn batch(sample: &Json) -> [EValue; 2] {
    let x: Vec<f32> = sample[0].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    let y = [sample[1].as_i64().unwrap()];
    [Tensor::from_slice(&[1, 2], &x).unwrap().into(), Tensor::from_slice(&[1], &y).unwrap().into()]
}

fn options(given: &Json) -> SgdOptions {
    let number = |name: &str| given[name].as_f64().unwrap_or(0.0);
    SgdOptions {
        lr: number("lr"),
        momentum: number("momentum"),
        dampening: number("dampening"),
        weight_decay: number("weight_decay"),
        nesterov: given["nesterov"].as_bool().unwrap_or(false),
    }
}

fn train(
    mut model: TrainingModule,
    sgd: SgdOptions,
    data: &[Json],
    steps: usize,
) -> (TrainingModule, Vec<f64>) {
    let mut sgd = Sgd::new(sgd).unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let outputs = model.execute_forward_backward("forward", &batch(&data[step % data.len()])).unwrap();
        losses.push(f64::from(outputs[0].as_tensor().unwrap().as_slice::<f32>().unwrap()[0]));
        model.step("forward", &mut sgd).unwrap();
    }
    (model, losses)
}

fn xor(no_prepare: bool) -> TrainingModule {
    let options = LoadOptions { no_prepare, ..pteron::load_options() };
    TrainingModule::open(testdata("corpus/wild/train_xor/model.pte"), options).unwrap()
}

/// `tools/reference/train.py` recorded the losses.
#[test]
fn losses_equal_those_of_the_reference() {
    let recorded = json("training/xor.json");
    let data = recorded["data"].as_array().unwrap();
    for run in recorded["runs"].as_array().unwrap() {
        let expected: Vec<f64> =
            run["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
        for no_prepare in [false, true] {
            let (_, losses) = train(xor(no_prepare), options(&run["options"]), data, expected.len());
            for (step, (a, b)) in losses.iter().zip(&expected).enumerate() {
                assert!((a - b).abs() < 1e-4, "{}: step {step}: loss {a}, {b} expected", run["options"]);
            }
        }
    }
    let momentum = &recorded["runs"][1]["losses"].as_array().unwrap()[396..];
    assert!(momentum.iter().all(|l| l.as_f64().unwrap() < 0.2), "the loss has fallen: {momentum:?}");
}

#[test]
fn trained_parameters_equal_those_of_the_reference() {
    let recorded = json("corpus/wild/train_xor/training.json");
    let data = recorded["data"].as_array().unwrap();
    let sgd = SgdOptions { lr: recorded["lr"].as_f64().unwrap(), ..SgdOptions::default() };
    let (mut model, losses) = train(xor(false), sgd, data, 60);
    for (a, b) in losses.iter().zip(recorded["losses"].as_array().unwrap()) {
        assert!((a - b.as_f64().unwrap()).abs() < 1e-5);
    }
    let parameters = model.named_parameters("forward").unwrap();
    assert_eq!(parameters.len(), 4);
    for (name, tensor) in parameters {
        let mut expected = Vec::new();
        flatten(&recorded["final_params"][name], &mut expected);
        let found = tensor.storage::<f32>().unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
    }
}

fn flatten(value: &Json, out: &mut Vec<f32>) {
    match value.as_array() {
        Some(items) => items.iter().for_each(|item| flatten(item, out)),
        None => out.push(value.as_f64().unwrap() as f32),
    }
}

#[test]
fn initial_weights_come_from_a_data_file() {
    let recorded = json("corpus/wild/train_xor/training.json");
    let data = recorded["data"].as_array().unwrap();
    let folder = testdata("corpus/wild/train_xor_extweights");
    let map = PtdDataMap::map(folder.join("_default_external_constant.ptd"), unchanged()).unwrap();
    let model =
        TrainingModule::open(folder.join("model.pte"), pteron::load_options().data(Arc::new(map))).unwrap();
    let (_, losses) = train(model, SgdOptions { lr: 0.3, momentum: 0.9, ..SgdOptions::default() }, data, 400);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[396..]) < 0.5 * mean(&losses[..4]), "{:?}", &losses[396..]);
}

#[test]
fn gradients_have_the_names_of_their_parameters() {
    let mut model = xor(false);
    assert_eq!(model.trainable_methods(), ["forward"]);
    let e = model.named_gradients("forward").err().unwrap().to_string();
    assert!(e.contains("call execute_forward_backward first"), "{e}");
    let sample = &json("training/xor.json")["data"][1];
    assert_eq!(model.execute_forward_backward("forward", &batch(sample)).unwrap().len(), 2);
    let shapes = |list: Vec<(&str, pteron::TensorView<'_>)>| -> Vec<(String, Vec<usize>)> {
        list.into_iter().map(|(name, t)| (name.to_owned(), t.sizes().to_vec())).collect()
    };
    let gradients = shapes(model.named_gradients("forward").unwrap());
    assert_eq!(gradients, shapes(model.named_parameters("forward").unwrap()));
    assert!(gradients.contains(&("net.linear.weight".to_owned(), vec![10, 2])), "{gradients:?}");
    let e = model.execute_forward_backward("__et_training_fqn_forward", &[]).unwrap_err().to_string();
    assert!(e.contains("computes no gradients"), "{e}");
}
