use super::plan::{Plans, Precision, Transform};
use crate::support::call::{a, call, int, ints, out, t};
use crate::support::dtype::{C64, Cast, Compute};
use num_complex::Complex;
use pteron_operator::{Arg, Generator, Isa, KernelContext, Scratch};
use pteron_pool::Pool;
use pteron_tensor::ScalarType::{ComplexDouble, ComplexFloat, Double, Float};

/// Lengths of transforms, with small, large and repeated prime factors.
const LENGTHS: [usize; 16] = [1, 2, 3, 4, 5, 6, 8, 12, 61, 67, 90, 127, 134, 256, 509, 1018];

fn noise(n: usize) -> Vec<f64> {
    let generator = Generator::new(3);
    (0..n).map(|_| generator.normal()).collect()
}

/// Element `k` of the forward transform, by definition.
fn defined(x: &[C64], k: usize) -> C64 {
    let root = |i: usize| {
        let angle = -std::f64::consts::TAU * ((i * k) % x.len()) as f64 / x.len() as f64;
        C64::new(angle.cos(), angle.sin())
    };
    x.iter().enumerate().map(|(i, x)| x * root(i)).sum()
}

/// The largest error of a precision, relative to the root of the mean square of the results.
fn errors_of<T: Precision>(isa: Isa, n: usize) -> f64
where
    Complex<T>: Compute,
{
    let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(3));
    let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(isa);
    let signal: Vec<T> = noise(n).into_iter().map(<T as Cast>::from_f64).collect();
    let exact: Vec<C64> = signal.iter().map(|x| C64::new(Cast::to_f64(*x), 0.0)).collect();
    let plan =
        |forward| Plans::<T>::empty(isa).real_plan(&ctx, Transform { len: n, forward, real: true }).unwrap();
    let (forward, backward) = (plan(true), plan(false));
    let mut half = vec![Complex::<T>::default(); n / 2 + 1];
    let mut work = vec![Complex::<T>::default(); forward.work_len().max(backward.work_len())];
    forward.forward(Isa::detect(), &signal, &mut half, &mut work[..forward.work_len()]);
    let size = (n as f64).sqrt();
    let mut error = 0f64;
    for (k, z) in half.iter().enumerate() {
        error = error.max((Cast::to_complex(*z) - defined(&exact, k)).norm() / size);
    }
    let mut back = vec![T::default(); n];
    backward.backward(&mut half, &mut back, &mut work[..backward.work_len()]);
    for (x, y) in signal.iter().zip(&back) {
        error = error.max((Cast::to_f64(*x) - Cast::to_f64(*y) / n as f64).abs());
    }
    error
}

#[test]
fn real_transforms_of_every_kind_of_length_match_the_definition() {
    for n in LENGTHS {
        for isa in Isa::available() {
            let single = errors_of::<f32>(isa, n);
            assert!(single < 2e-6, "{single} for {n} in f32");
            let double = errors_of::<f64>(isa, n);
            assert!(double < 2e-13, "{double} for {n} in f64");
        }
    }
}

#[test]
fn complex_transforms_along_any_dimension_match_the_definition() {
    for n in LENGTHS {
        // More lanes side by side than are copied together.
        let (outer, inner) = (2, 11);
        let parts = noise(2 * outer * n * inner);
        let values: Vec<C64> = parts.chunks_exact(2).map(|z| C64::new(z[0], z[1])).collect();
        let x = t(&[outer, n, inner], &values);
        let args = [a(&x), ints(&[1]), int(0), Arg::Bool(true)];
        let got = call("aten::_fft_c2c.out", &args, out(ComplexDouble, &[outer, n, inner])).unwrap();
        let got = got.storage::<C64>().unwrap();
        for i in [0, 7, 10] {
            let lane: Vec<C64> = (0..n).map(|k| values[(n + k) * inner + i]).collect();
            for k in [0, n / 2, n - 1] {
                let error = (got[(n + k) * inner + i] - defined(&lane, k)).norm();
                assert!(error < 1e-12 * n as f64, "element {k} of {n}");
            }
        }
        let args = [a(&x), ints(&[1]), int(2), Arg::Bool(false)];
        let back = call("aten::_fft_c2c.out", &args, out(ComplexDouble, &[outer, n, inner])).unwrap();
        let args = [a(&back), ints(&[-2]), int(0), Arg::Bool(true)];
        let back = call("aten::_fft_c2c.out", &args, out(ComplexDouble, &[outer, n, inner])).unwrap();
        for (x, y) in values.iter().zip(back.storage::<C64>().unwrap()) {
            assert!((x - y).norm() < 1e-12);
        }
    }
}

#[test]
fn two_sided_transforms_are_symmetric() {
    for n in LENGTHS {
        let x = t(&[1, n, 3], &noise(3 * n));
        let args = [a(&x), ints(&[1]), int(0), Arg::Bool(false)];
        let z = call("aten::_fft_r2c.out", &args, out(ComplexDouble, &[1, n, 3])).unwrap();
        let z = z.storage::<C64>().unwrap();
        let args = [a(&x), ints(&[1]), int(0), Arg::Bool(true)];
        let half = call("aten::_fft_r2c.out", &args, out(ComplexDouble, &[1, n / 2 + 1, 3])).unwrap();
        assert_eq!(&z[..half.view().numel()], half.storage::<C64>().unwrap());
        for k in 1..n {
            assert_eq!(z[3 * k + 1], z[3 * (n - k) + 1].conj());
        }
    }
}

#[test]
fn inverse_transforms_round_trip() {
    let x = t(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 7.0]);
    let args = [a(&x), ints(&[0, 1]), int(0), Arg::Bool(true)];
    let z = call("aten::_fft_r2c.out", &args, out(ComplexFloat, &[2, 2])).unwrap();
    assert_eq!(z.storage::<Complex<f32>>().unwrap()[0], Complex::new(22.0, 0.0));
    let back = |last: i64| {
        call("aten::_fft_c2r.out", &[a(&z), ints(&[0, 1]), int(2), int(last)], out(Float, &[2, 3]))
    };
    for (got, want) in back(3).unwrap().storage::<f32>().unwrap().iter().zip(x.storage::<f32>().unwrap()) {
        assert!((got - want).abs() < 1e-6);
    }
    for bad in [0, -1, 4, i64::MAX] {
        assert!(back(bad).is_err());
    }
    let args = [a(&x), ints(&[1, -1]), int(0), Arg::Bool(true)];
    assert!(call("aten::_fft_r2c.out", &args, out(ComplexFloat, &[2, 2])).is_err());
}

#[test]
fn a_transform_that_its_plan_would_not_fit_is_refused() {
    let n = 1 << 20;
    let x = t(&[n], &vec![0f64; n]);
    let args = [a(&x), ints(&[0]), int(0), Arg::Bool(true)];
    let refused = call("aten::_fft_r2c.out", &args, out(ComplexDouble, &[n / 2 + 1]));
    assert!(refused.unwrap_err().to_string().contains("temporary memory"));
    assert_eq!(x.view().dtype(), Double);
}
