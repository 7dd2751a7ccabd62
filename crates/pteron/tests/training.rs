//! Training gives the losses of the reference runtime, step by step.

use pteron::{
    Adam, AdamOptions, Decay, EValue, LoadOptions, Optimizer, PtdDataMap, Schedule, Sgd, SgdOptions, Tensor,
    TrainingModule,
};
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

fn options(json: &Json) -> SgdOptions {
    let number = |name: &str| json[name].as_f64().unwrap_or(0.0);
    SgdOptions {
        lr: number("lr"),
        momentum: number("momentum"),
        dampening: number("dampening"),
        weight_decay: number("weight_decay"),
        nesterov: json["nesterov"].as_bool().unwrap_or(false),
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
        let actual = tensor.storage::<f32>().unwrap();
        assert_eq!(actual.len(), expected.len(), "{name}");
        assert!(actual.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
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

/// A run of two batches a step, whose gradients are clipped.
struct Run {
    model: TrainingModule,
    optimizer: Box<dyn Optimizer>,
    batches: usize,
}

impl Run {
    fn new(optimizer: Box<dyn Optimizer>) -> Self {
        Self { model: xor(false), optimizer, batches: 0 }
    }

    /// Runs batches, with a step after every second one, and returns the bits of the losses.
    fn go_on(&mut self, batches: usize) -> Vec<u32> {
        let mut losses = Vec::new();
        for _ in 0..batches {
            let bits = [self.batches & 1, self.batches >> 1 & 1];
            let x = Tensor::from_slice(&[1, 2], &bits.map(|b| b as f32)).unwrap();
            let y = Tensor::from_slice(&[1], &[(bits[0] ^ bits[1]) as i64]).unwrap();
            let outputs = self.model.execute_forward_backward("forward", &[x.into(), y.into()]).unwrap();
            losses.push(outputs[0].as_tensor().unwrap().as_slice::<f32>().unwrap()[0].to_bits());
            self.model.accumulate_gradients("forward").unwrap();
            self.batches += 1;
            if self.batches.is_multiple_of(2) {
                self.model.clip_gradient_norm("forward", 0.5).unwrap();
                self.model.step("forward", &mut *self.optimizer).unwrap();
            }
        }
        losses
    }
}

fn optimizers() -> Vec<(&'static str, Box<dyn Fn() -> Box<dyn Optimizer>>)> {
    let schedule = Schedule { warmup: 3, decay: Decay::Cosine { end: 0.1, steps: 12 } };
    let sgd = move |options| {
        let mut sgd = Sgd::new(options).unwrap();
        sgd.set_schedule(schedule);
        Box::new(sgd) as Box<dyn Optimizer>
    };
    let adam = move |options| {
        let mut adam = Adam::new(AdamOptions { lr: 0.1, ..options }).unwrap();
        adam.set_schedule(schedule);
        Box::new(adam) as Box<dyn Optimizer>
    };
    let plain = SgdOptions { lr: 0.1, ..SgdOptions::default() };
    let nesterov = SgdOptions { momentum: 0.9, weight_decay: 0.01, nesterov: true, ..plain };
    vec![
        ("sgd", Box::new(move || sgd(plain))),
        ("momentum", Box::new(move || sgd(SgdOptions { momentum: 0.9, dampening: 0.1, ..plain }))),
        ("nesterov", Box::new(move || sgd(nesterov))),
        ("adam", Box::new(move || adam(AdamOptions::default()))),
        ("adamw", Box::new(move || adam(AdamOptions { amsgrad: true, ..AdamOptions::adamw() }))),
    ]
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let path = std::env::temp_dir().join(format!("pteron-run-{}.ptd", std::process::id()));
    for (name, optimizer) in optimizers() {
        let uninterrupted = Run::new(optimizer()).go_on(40);
        // Saved between steps, and between the two batches of one.
        for before in [20, 21] {
            let mut first = Run::new(optimizer());
            let mut losses = first.go_on(before);
            first.model.save_training("forward", &path, &*first.optimizer).unwrap();
            // The state replaces hyperparameters and schedule, too.
            let other: Box<dyn Optimizer> = match first.optimizer.name() {
                "sgd" => Box::new(Sgd::new(SgdOptions::default()).unwrap()),
                _ => Box::new(Adam::new(AdamOptions::default()).unwrap()),
            };
            let mut second = Run { batches: before, ..Run::new(other) };
            second.model.load_training("forward", &path, &mut *second.optimizer).unwrap();
            losses.extend(second.go_on(40 - before));
            assert_eq!(losses, uninterrupted, "{name}, resumed after {before} batches");
            assert_eq!(second.optimizer.state().numbers["steps"], 20.0);
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_changes_nothing() {
    let path = std::env::temp_dir().join(format!("pteron-misfit-{}.ptd", std::process::id()));
    let sgd = || Sgd::new(SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() }).unwrap();
    let mut run = Run::new(Box::new(sgd()));
    run.go_on(4);
    run.model.save_training("forward", &path, &*run.optimizer).unwrap();
    let mut adam = Adam::new(AdamOptions::default()).unwrap();
    let e = xor(false).load_training("forward", &path, &mut adam).unwrap_err();
    assert!(e.to_string().contains("its optimizer is `sgd` and not `adam`"), "{e}");
    // A buffer of another length.
    let mut wrong = sgd();
    wrong.set_momentum_buffer("net.linear.weight", vec![0.0; 3]);
    run.model.save_training("forward", &path, &wrong).unwrap();
    let (mut model, mut other) = (xor(false), sgd());
    let e = model.load_training("forward", &path, &mut other).unwrap_err();
    assert!(e.to_string().contains("has 3 elements"), "{e}");
    assert_eq!(other.state(), sgd().state());
    // The parameters alone.
    run.model.save_checkpoint("forward", &path).unwrap();
    let e = model.load_training("forward", &path, &mut other).unwrap_err();
    assert!(e.to_string().contains("no state of an optimizer"), "{e}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn gradients_are_accumulated_and_clipped() {
    let mut run = Run::new(Box::new(Sgd::new(SgdOptions::default()).unwrap()));
    let gradients = |model: &mut TrainingModule| -> Vec<f32> {
        let named = model.named_gradients("forward").unwrap();
        named.iter().flat_map(|(_, view)| view.to_tensor().unwrap().to_vec::<f32>().unwrap()).collect()
    };
    run.go_on(1);
    let one = gradients(&mut run.model);
    run.model.accumulate_gradients("forward").unwrap();
    assert_eq!(gradients(&mut run.model), one.iter().map(|g| g + g).collect::<Vec<_>>());
    let norm = run.model.clip_gradient_norm("forward", 1e-3).unwrap();
    let expected = one.iter().map(|&g| f64::from(g + g).powi(2)).sum::<f64>().sqrt();
    assert!((norm - expected).abs() < 1e-6 * expected);
    let clipped = gradients(&mut run.model).iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    assert!((clipped - 1e-3).abs() < 1e-6, "{clipped}");
    run.model.clip_gradient_values("forward", 1e-5).unwrap();
    assert!(gradients(&mut run.model).iter().all(|g| g.abs() <= 1e-5));
    assert!(run.model.clip_gradient_values("forward", -1.0).is_err());
}
