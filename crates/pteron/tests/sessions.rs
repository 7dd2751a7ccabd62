//! Executing one loaded method from several threads, and running it without copies of inputs and outputs.

use pteron::{DimOrder, EValue, Error, Method, Program, SharedMethod, Tensor, TensorMeta};
use std::path::PathBuf;
use std::sync::Arc;

fn load(case: &str, method: &str) -> Method {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(case);
    Program::open(path).unwrap().load_method(method, pteron::load_options()).unwrap()
}

fn digit(seed: usize) -> EValue {
    let pixels: Vec<f32> = (0..64).map(|i| ((i * 7 + seed * 13) % 17) as f32 / 16.0).collect();
    Tensor::from_slice(&[1, 1, 8, 8], &pixels).unwrap().into()
}

#[test]
fn threads_execute_a_shared_method_concurrently() {
    let mut alone = load("examples/digits/digits.pte", "forward");
    let inputs: Vec<EValue> = (0..16).map(digit).collect();
    let expected: Vec<Vec<f32>> =
        inputs.iter().map(|x| alone.execute(std::slice::from_ref(x)).unwrap()[0].to_vec().unwrap()).collect();
    let shared = Arc::new(SharedMethod::new(alone).unwrap());
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                for (x, expected) in inputs.iter().zip(&expected) {
                    let outputs = shared.execute(std::slice::from_ref(x)).unwrap();
                    assert_eq!(&outputs[0].to_vec::<f32>().unwrap(), expected);
                }
            });
        }
    });
    // Instances are reused: there are no more of them than threads.
    let idle = shared.idle();
    assert!((1..=8).contains(&idle), "{idle}");
    shared.execute(&inputs[..1]).unwrap();
    assert_eq!(shared.idle(), idle);
}

#[test]
fn sessions_do_not_share_state() {
    let method = load("testdata/corpus/tiny/mutable_default/model.pte", "forward");
    let inputs = method.meta().inputs();
    let input = || -> Vec<EValue> {
        inputs
            .iter()
            .map(|v| Tensor::zeros(v.tensor.as_ref().unwrap().meta.clone()).unwrap().into())
            .collect()
    };
    assert!(method.state().next().is_some());
    let shared = SharedMethod::new(method).unwrap();
    let state = |m: &Method| m.state().map(|(_, view)| view.bytes().to_vec()).collect::<Vec<_>>();
    let (mut a, mut b) = (shared.session().unwrap(), shared.session().unwrap());
    let fresh = state(&a);
    let first = a.execute(&input()).unwrap();
    a.execute(&input()).unwrap();
    assert_eq!(state(&b), fresh);
    let again = b.execute(&input()).unwrap();
    for (x, y) in first.iter().zip(&again) {
        assert_eq!(x.as_tensor().unwrap().bytes(), y.as_tensor().unwrap().bytes());
    }
    drop((a, b));
    // An instance with state is not reused.
    assert_eq!(state(&shared.session().unwrap()), fresh);
}

#[test]
fn forks_of_a_method_with_dynamic_shapes_give_equal_results() {
    let mut method = load("testdata/corpus/tiny/dyn_planned_io/model.pte", "forward");
    let metas: Vec<TensorMeta> =
        method.meta().inputs().iter().map(|v| v.tensor.as_ref().unwrap().meta.clone()).collect();
    let inputs: Vec<EValue> = metas.iter().map(|m| Tensor::zeros(m.clone()).unwrap().into()).collect();
    let expected = method.execute(&inputs).unwrap();
    method.execute(&inputs).unwrap();
    let mut forked = method.fork().unwrap();
    for _ in 0..3 {
        let outputs = forked.execute(&inputs).unwrap();
        for (a, b) in outputs.iter().zip(&expected) {
            assert_eq!(a.as_tensor().unwrap().bytes(), b.as_tensor().unwrap().bytes());
        }
    }
}

#[test]
fn inputs_are_filled_and_outputs_read_in_place() {
    let mut method = load("examples/digits/digits.pte", "forward");
    let EValue::Tensor(x) = digit(3) else { panic!("a digit is a tensor") };
    let expected: Vec<f32> = method.execute(&[x.clone().into()]).unwrap()[0].to_vec().unwrap();

    method.input_mut(0, &[1, 1, 8, 8]).unwrap().bytes_mut().copy_from_slice(x.bytes());
    method.run().unwrap();
    assert_eq!(method.output_tensor(0).unwrap().to_vec::<f32>().unwrap(), expected);

    let mut out =
        Tensor::zeros(TensorMeta::contiguous(pteron::ScalarType::Float, &[1, 10]).unwrap()).unwrap();
    method.run_into(&[x.view()], &mut [out.view_mut()]).unwrap();
    assert_eq!(out.as_slice::<f32>().unwrap(), expected);

    let refused = method.input_mut(0, &[2, 1, 8, 8]).unwrap_err();
    assert!(matches!(refused, Error::Input { .. }), "{refused}");
    assert!(method.input_mut(1, &[]).is_err());
    let mut small =
        Tensor::zeros(TensorMeta::contiguous(pteron::ScalarType::Float, &[1, 9]).unwrap()).unwrap();
    assert!(method.run_into(&[x.view()], &mut [small.view_mut()]).is_err());
    assert!(method.run_into(&[x.view()], &mut []).is_err());
}

#[test]
fn as_slice_refuses_non_contiguous_dim_orders() {
    let mut method = load("testdata/corpus/tiny/channels_last_elementwise/model.pte", "forward");
    let elements: Vec<f32> = (0..90).map(|i| i as f32).collect();
    let x = Tensor::from_slice(&[1, 3, 6, 5], &elements).unwrap();
    assert!(x.to_dim_order(DimOrder::channels_last(4)).unwrap().as_slice::<f32>().is_err());
    let outputs = method.execute(&[x.into()]).unwrap();
    let view = method.output_tensor(0).unwrap();
    assert!(view.as_slice::<f32>().is_err());
    assert_eq!(view.to_vec::<f32>().unwrap(), outputs[0].to_vec::<f32>().unwrap());
}
