//! Programs with dynamic shapes: prepared, they give the results of their instructions for any sequence of shapes, and a
//! shape that was seen before runs fused.

use pteron::{
    EValue, EventTracer, LoadOptions, Method, Program, ScalarType, Span, SpanKind, Tensor, TensorMeta,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The programs of `testdata/dynamic` with the smallest sizes of their inputs.
const PROGRAMS: [(&str, &[usize]); 7] = [
    ("mlp", &[1, 12]),
    ("attention", &[1, 2, 16]),
    ("convolutions", &[1, 3, 4, 4]),
    ("state", &[1, 6]),
    ("chosen", &[1, 5]),
    ("pieces", &[1, 5]),
    ("branch", &[1, 5]),
];

fn load(name: &str, options: LoadOptions) -> Method {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/dynamic").join(name);
    Program::open(path.join("model.pte")).unwrap().load_method("forward", options).unwrap()
}

fn both(name: &str) -> [Method; 2] {
    [false, true].map(|no_prepare| load(name, LoadOptions { no_prepare, ..pteron::load_options() }))
}

/// The largest sizes of the input.
fn bound(method: &Method) -> Vec<usize> {
    method.meta().inputs()[0].tensor.as_ref().unwrap().meta.sizes().to_vec()
}

/// A deterministic pseudo-random generator (LCG).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn tensor(&mut self, sizes: &[usize]) -> EValue {
        let elements: Vec<f32> =
            (0..sizes.iter().product()).map(|_| self.below(2001) as f32 / 1000.0 - 1.0).collect();
        Tensor::from_slice(sizes, &elements).unwrap().into()
    }
}

fn assert_agree(a: &[EValue], b: &[EValue], what: &str) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let (EValue::Tensor(a), EValue::Tensor(b)) = (a, b) else {
            assert_eq!(format!("{a:?}"), format!("{b:?}"), "{what}");
            continue;
        };
        assert_eq!(a.sizes(), b.sizes(), "{what}");
        if a.dtype() != ScalarType::Float {
            assert_eq!(a.bytes(), b.bytes(), "{what}");
            continue;
        }
        let (a, b) = (a.storage::<f32>().unwrap(), b.storage::<f32>().unwrap());
        let close = a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-4 + 1e-4 * b.abs());
        assert!(close, "{what}: {a:?} {b:?}");
    }
}

#[test]
fn random_sequences_of_shapes_agree_prepared_and_as_written() {
    for (seed, (name, least)) in PROGRAMS.iter().enumerate() {
        let [mut prepared, mut written] = both(name);
        let most = bound(&prepared);
        let mut random = Random(seed as u64);
        let any = |random: &mut Random| -> Vec<usize> {
            least.iter().zip(&most).map(|(l, m)| l + random.below(m - l + 1)).collect()
        };
        let favourites: Vec<_> = (0..6).map(|_| any(&mut random)).collect();
        for run in 0..120 {
            // In turn: two alternating shapes, a few shapes in random order, arbitrary shapes, two shapes at random.
            let sizes = match run / 30 {
                0 => favourites[run % 2].clone(),
                1 => favourites[random.below(favourites.len())].clone(),
                2 => any(&mut random),
                _ => favourites[random.below(2)].clone(),
            };
            let input = [random.tensor(&sizes)];
            let outputs = [&mut prepared, &mut written].map(|m| m.execute(&input).unwrap());
            assert_agree(&outputs[0], &outputs[1], &format!("{name}, run {run}, {sizes:?}"));
        }
    }
}

#[test]
fn a_length_that_grows_by_one_and_restarts() {
    let [mut prepared, mut written] = both("attention");
    let mut random = Random(9);
    for round in 0..4 {
        for length in 2..=11 {
            let input = [random.tensor(&[1, length, 16])];
            let outputs = [&mut prepared, &mut written].map(|m| m.execute(&input).unwrap());
            assert_agree(&outputs[0], &outputs[1], &format!("round {round}, length {length}"));
            assert!(matches!(outputs[0][1], EValue::Int(n) if n == 2 * length as i64));
        }
    }
}

#[test]
fn inputs_beyond_the_bound_are_refused_and_change_nothing() {
    for mut method in both("mlp") {
        let mut random = Random(5);
        let (fits, exceeds) = (random.tensor(&[9, 12]), random.tensor(&[10, 12]));
        let expected = method.execute(std::slice::from_ref(&fits)).unwrap();
        for _ in 0..6 {
            let error = method.execute(std::slice::from_ref(&exceeds)).unwrap_err().to_string();
            assert!(error.contains("[<=9, <=12]") && error.contains("[10, 12]"), "{error}");
            assert_agree(&method.execute(std::slice::from_ref(&fits)).unwrap(), &expected, "again");
        }
    }
}

#[test]
fn empty_batches_run_between_others() {
    for mut method in both("mlp") {
        for n in [0, 3, 0, 3, 3, 0] {
            let input = Tensor::zeros(TensorMeta::contiguous(ScalarType::Float, &[n, 12]).unwrap()).unwrap();
            let output = method.execute(&[input.into()]).unwrap();
            assert_eq!(**output[0].as_tensor().unwrap().sizes(), [n, 3]);
        }
    }
}

/// Records the names of the kernels that run.
#[derive(Default)]
struct RunResult(Mutex<Vec<String>>);

impl EventTracer for RunResult {
    fn span(&self, span: &Span<'_>) {
        if span.kind == SpanKind::Kernel {
            self.0.lock().unwrap().push(span.name.to_owned());
        }
    }
}

#[test]
fn batch_norms_are_folded_into_convolutions_for_dynamic_image_sizes() {
    let ran = Arc::new(RunResult::default());
    let options = LoadOptions { tracer: Some(ran.clone()), ..pteron::load_options() };
    let mut method = load("convolutions", options);
    let mut random = Random(2);
    for _ in 0..2 {
        ran.0.lock().unwrap().clear();
        method.execute(&[random.tensor(&[2, 3, 7, 5])]).unwrap();
    }
    let names = ran.0.lock().unwrap();
    assert_eq!(names.iter().filter(|n| *n == "conv").count(), 2, "{names:?}");
    assert!(!names.iter().any(|n| n.contains("batch_norm")), "{names:?}");
}

#[test]
fn a_shape_seen_before_runs_fused_and_weights_are_never_transposed() {
    let ran = Arc::new(RunResult::default());
    let mut method = load("mlp", LoadOptions { tracer: Some(ran.clone()), ..pteron::load_options() });
    let mut random = Random(1);
    let mut run = |n: usize| {
        ran.0.lock().unwrap().clear();
        method.execute(&[random.tensor(&[n, 12])]).unwrap();
        ran.0.lock().unwrap().clone()
    };
    let is_fused = |names: &[String]| names.iter().filter(|n| *n == "linear").count() == 3;
    for n in [9, 4, 7, 2] {
        let first = run(n);
        assert!(!is_fused(&first) && !first.iter().any(|n| n.contains("permute")), "{first:?}");
    }
    for n in [9, 4, 7, 2, 9] {
        assert!(is_fused(&run(n)), "{n} rows");
    }
    // At most four shapes are kept fused: a fifth waits until one of them has not been used for a while.
    assert!(!is_fused(&run(5)) && !is_fused(&run(5)));
    for _ in 0..20 {
        run(9);
    }
    run(5);
    assert!(is_fused(&run(5)) && is_fused(&run(9)));
}

/// The bytes of the regions' workspaces once they are fused for inputs of these sizes.
fn workspaces(sizes: &[usize]) -> u64 {
    let mut method = load("mlp", pteron::load_options());
    let loaded = method.memory();
    let input = Random(1).tensor(sizes);
    for _ in 0..3 {
        method.execute(std::slice::from_ref(&input)).unwrap();
    }
    method.memory() - loaded
}

#[test]
fn a_region_allocates_for_its_actual_sizes_and_not_for_the_bounds() {
    let largest = bound(&load("mlp", pteron::load_options()));
    let (rows, columns) = (largest[0], largest[1]);
    assert!(rows >= 8, "{rows} rows at most");
    let [one, some, all] = [1, rows / 4, rows].map(|rows| workspaces(&[rows, columns]));
    let packed = one - (all - one) / (rows as u64 - 1);
    assert!(all - packed > 0 && (some - packed) * 3 <= all - packed, "{packed}, {one}, {some}, {all}");
}
