use super::super::math::Unary;
use super::*;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Pseudorandom values between -1 and 1.
fn random_values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

#[derive(Clone, Copy, Debug)]
enum Form {
    RowMajor,
    ColMajor,
    Spread,
    Packed,
}

/// A matrix in a separate slice, deliberately misaligned.
struct TestMatrix {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
    strides: (usize, usize),
}

impl TestMatrix {
    fn new(rows: usize, cols: usize, form: Form, seed: u32) -> Self {
        let strides = match form {
            Form::ColMajor => (1, rows.max(1) + 1),
            Form::Spread => (cols * 2 + 1, 2),
            Form::RowMajor | Form::Packed => (cols + 3, 1),
        };
        let len = 1 + rows * strides.0 + cols * strides.1;
        Self { data: random_values(len, seed), rows, cols, strides }
    }

    fn view(&self) -> MatRef<'_> {
        MatRef::strided(&self.data[1..], self.rows, self.cols, self.strides.0, self.strides.1)
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        f64::from(*self.view().at(i, j))
    }
}

fn check(
    isa: Isa,
    threads: usize,
    (m, n, k): (usize, usize, usize),
    forms: (Form, Form, Form),
    variant: u32,
) {
    let a = TestMatrix::new(m, k, forms.0, 1);
    let b = TestMatrix::new(k, n, forms.1, 2);
    let mut c = TestMatrix::new(m, n, forms.2, 3);
    let before = TestMatrix::new(m, n, forms.2, 3);
    let residual = TestMatrix::new(m, n, if variant & 64 != 0 { Form::ColMajor } else { Form::RowMajor }, 4);
    let (per_col, per_row) = (random_values(n, 5), random_values(m, 6));
    let mut ep = Epilogue { accumulate: variant & 1 != 0, ..Epilogue::NONE };
    if variant & 2 != 0 {
        ep.alpha = 0.5;
    }
    match variant >> 2 & 3 {
        1 => ep.bias = Bias::PerCol(&per_col),
        2 => ep.bias = Bias::PerRow(&per_row),
        _ => {}
    }
    if variant & 16 != 0 {
        ep.residual = Some((-2.0, residual.view()));
    }
    ep.activation = match (variant & 32 != 0, variant & 128 != 0) {
        (false, false) => Activation::Identity,
        (true, false) => Activation::Clamp { low: -1.5, high: 2.0 },
        (false, true) => Activation::Unary(Unary::Silu),
        (true, true) => Activation::Bounded { function: Unary::Silu, low: -0.125, high: 2.0 },
    };
    let pool = Pool::new(threads);
    let (pa, pb);
    let lhs = match forms.0 {
        Form::Packed => {
            pa = PackedA::new(isa, a.view()).unwrap();
            Lhs::Packed(&pa)
        }
        _ => Lhs::Plain(a.view()),
    };
    let rhs = match forms.1 {
        Form::Packed => {
            pb = PackedB::new(isa, b.view()).unwrap();
            Rhs::Packed(&pb)
        }
        _ => Rhs::Plain(b.view()),
    };
    let (rs, cs) = c.strides;
    gemm(&pool, isa, lhs, rhs, MatMut::strided(&mut c.data[1..], m, n, rs, cs), &ep);

    let mut touched = vec![false; c.data.len()];
    for i in 0..m {
        for j in 0..n {
            let start = if ep.accumulate { before.at(i, j) } else { 0.0 };
            let sum: f64 = start + (0..k).map(|p| a.at(i, p) * b.at(p, j)).sum::<f64>();
            let bias = match ep.bias {
                Bias::None => 0.0,
                Bias::PerCol(b) => b[j],
                Bias::PerRow(b) => b[i],
            };
            let mut want = f64::from(ep.alpha) * sum + f64::from(bias);
            if ep.residual.is_some() {
                want -= 2.0 * residual.at(i, j);
            }
            if variant & 128 != 0 {
                want /= 1.0 + (-want).exp();
            }
            if variant & 32 != 0 {
                want = want.clamp(if variant & 128 != 0 { -0.125 } else { -1.5 }, 2.0);
            }
            let got = c.at(i, j);
            let tolerance = 1e-6 * (k as f64 + 4.0);
            assert!(
                (got - want).abs() <= tolerance,
                "{isa:?} {m}x{n}x{k} {forms:?} variant {variant}: ({i}, {j}) is {got}, not {want}"
            );
            touched[1 + i * rs + j * cs] = true;
        }
    }
    for (i, (x, y)) in c.data.iter().zip(&before.data).enumerate() {
        assert!(touched[i] || x.to_bits() == y.to_bits(), "element {i} outside the result was written");
    }
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::RowMajor), Just(Form::ColMajor), Just(Form::Spread), Just(Form::Packed)]
}

fn plain_form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::RowMajor), Just(Form::ColMajor), Just(Form::Spread)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn products_match_f64(
        m in 0usize..40, n in 0usize..80, k in 0usize..70, forms in (form(), form(), plain_form()), variant in 0u32..256,
    ) {
        for isa in Isa::available() {
            check(isa, 1, (m, n, k), forms, variant);
        }
    }
}

#[test]
fn edges_of_tiles_and_blocks() {
    for isa in Isa::available() {
        for m in [1, 2, 3, 6, 7, 13, 14, 15, 28, 29, 169] {
            for n in [1, 4, 8, 15, 16, 31, 32, 33, 63, 65, 130] {
                for (forms, variant) in [
                    ((Form::RowMajor, Form::RowMajor, Form::RowMajor), 0),
                    ((Form::RowMajor, Form::Packed, Form::RowMajor), 22),
                    ((Form::Packed, Form::RowMajor, Form::RowMajor), 41),
                    ((Form::RowMajor, Form::ColMajor, Form::ColMajor), 84),
                ] {
                    check(isa, 1, (m, n, 5), forms, variant);
                }
            }
        }
        for k in [255, 256, 257, 600] {
            check(isa, 1, (17, 70, k), (Form::RowMajor, Form::RowMajor, Form::RowMajor), 23);
            check(isa, 1, (40, 70, k), (Form::Packed, Form::ColMajor, Form::Spread), 55);
            check(isa, 1, (40, 70, k), (Form::ColMajor, Form::Packed, Form::ColMajor), 86);
        }
        check(isa, 1, (30, 1100, 20), (Form::RowMajor, Form::RowMajor, Form::RowMajor), 0);
    }
}

/// Every strategy with every form of operands, on shapes small enough for Miri.
#[test]
fn small_shapes() {
    let forms = [Form::RowMajor, Form::ColMajor, Form::Spread, Form::Packed];
    let operands = forms.into_iter().flat_map(|a| forms.map(|b| (a, b)));
    let results = [(Form::RowMajor, 22), (Form::ColMajor, 86), (Form::Spread, 151)];
    let shapes = [(7, 9, 2), (1, 9, 3), (3, 4, 5)];
    for (i, (a, b)) in operands.enumerate() {
        let (c, variant) = results[i % 3];
        check(Isa::portable(), 1, shapes[i % 3], (a, b, c), variant);
    }
    // On two threads: sixteen rows make two tasks.
    check(Isa::portable(), 2, (16, 9, 2), (Form::RowMajor, Form::Packed, Form::RowMajor), 0);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for isa in Isa::available() {
        let (m, n, k) = (150, 200, 300);
        let (a, b) = (random_values(m * k, 1), random_values(k * n, 2));
        let (a, b) = (MatRef::new(&a, m, k), MatRef::new(&b, k, n));
        let (pa, pb) = (PackedA::new(isa, a).unwrap(), PackedB::new(isa, b).unwrap());
        let run = |threads: usize, lhs: Lhs<'_>, rhs: Rhs<'_>| {
            let mut c = vec![0.0; m * n];
            gemm(&Pool::new(threads), isa, lhs, rhs, MatMut::new(&mut c, m, n), &Epilogue::NONE);
            c
        };
        let lhs = [Lhs::Plain(a), Lhs::Packed(&pa)];
        let rhs = [Rhs::Plain(b), Rhs::Packed(&pb)];
        let want = run(1, lhs[0], rhs[0]);
        for threads in [1, 2, 3, 5, 16] {
            for l in lhs {
                for r in rhs {
                    assert!(run(threads, l, r) == want, "{isa:?} with {threads} threads");
                }
            }
        }
    }
}

#[test]
fn nan_and_infinity_propagate() {
    for isa in Isa::available() {
        for n in [1, 5, 40] {
            for (k, packed) in [(3, false), (3, true)] {
                let a = [0.0, f32::NAN, 0.0];
                let mut b = vec![1.0; k * n];
                b[0] = f32::INFINITY;
                let b = MatRef::new(&b, k, n);
                let pb = PackedB::new(isa, b).unwrap();
                let rhs = if packed { Rhs::Packed(&pb) } else { Rhs::Plain(b) };
                let mut c = vec![0.0; 2 * n];
                let rows = MatRef::strided(&a, 2, k, 0, 1);
                let ep = Epilogue::NONE.with_activation(Activation::Relu);
                gemm(&Pool::serial(), isa, rows, rhs, MatMut::new(&mut c, 2, n), &ep);
                assert!(c.iter().all(|x| x.is_nan()), "{isa:?} n {n}: {c:?}");
                let zeros = [0.0; 3];
                gemm(
                    &Pool::serial(),
                    isa,
                    MatRef::strided(&zeros, 2, k, 0, 1),
                    rhs,
                    MatMut::new(&mut c, 2, n),
                    &ep,
                );
                assert!(c[0].is_nan() && c[n].is_nan(), "zero times infinity");
                assert!(n == 1 || c[1] == 0.0);
            }
        }
    }
}

#[test]
fn batched_products_equal_single_products() {
    for isa in Isa::available() {
        let (count, m, n, k) = (6, 5, 7, 9);
        let (a, b) = (random_values(count * m * k, 1), random_values(2 * k * n, 2));
        let mut c = vec![7.0; count * 40];
        bmm(
            &Pool::new(2),
            isa,
            count,
            &|i| MatRef::new(&a[i * m * k..], m, k).into(),
            &|i| MatRef::new(&b[i % 2 * k * n..], k, n).into(),
            (&mut c, 40, m, n),
            &|_| Epilogue::NONE,
        );
        for i in 0..count {
            let mut one = vec![0.0; m * n];
            let (a, b) = (MatRef::new(&a[i * m * k..], m, k), MatRef::new(&b[i % 2 * k * n..], k, n));
            gemm(&Pool::serial(), isa, a, b, MatMut::new(&mut one, m, n), &Epilogue::NONE);
            assert_eq!(c[i * 40..][..m * n], one);
            assert!(c[i * 40..][m * n..40].iter().all(|&x| x == 7.0));
        }
    }
}

#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "catches panics")]
fn mismatched_shapes_are_refused() {
    let refuse = |body: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(body)).is_err();
    let (isa, pool) = (Isa::detect(), Pool::serial());
    let x = [0.0; 12];
    let mut c = [0.0; 12];
    assert!(refuse(&mut || gemm(
        &pool,
        isa,
        MatRef::new(&x, 3, 4),
        MatRef::new(&x, 3, 4),
        MatMut::new(&mut c, 3, 4),
        &Epilogue::NONE
    )));
    assert!(refuse(&mut || gemm(
        &pool,
        isa,
        MatRef::new(&x, 3, 4),
        MatRef::new(&x, 4, 3),
        MatMut::new(&mut c, 3, 4),
        &Epilogue::NONE
    )));
    let bias = [0.0; 2];
    assert!(refuse(&mut || gemm(
        &pool,
        isa,
        MatRef::new(&x, 3, 4),
        MatRef::new(&x, 4, 3),
        MatMut::new(&mut c, 3, 3),
        &Epilogue::NONE.with_bias(Bias::PerCol(&bias))
    )));
}

#[test]
fn long_sums_are_as_exact_as_f64() {
    let positive = |len: usize, seed: u32| {
        random_values(len, seed).into_iter().map(|x| x * 0.5 + 0.5).collect::<Vec<_>>()
    };
    for (m, n, k) in [(1, 1, 1_000_000), (2, 5, 1_000_000), (9, 3, 100_000), (15, 40, 20_000)] {
        for constant in [true, false] {
            let of = |len: usize, seed: u32| if constant { vec![0.1; len] } else { positive(len, seed) };
            let (a, b) = (of(m * k, 1), of(k * n, 2));
            let a = MatRef::new(&a, m, k);
            // B is contiguous along its rows, then along its columns.
            for b in [MatRef::new(&b, k, n), MatRef::new(&b, n, k).t()] {
                let (want, i, j) = (
                    (0..k).map(|q| f64::from(*a.at(m - 1, q)) * f64::from(*b.at(q, n - 1))).sum::<f64>(),
                    m - 1,
                    n - 1,
                );
                for isa in Isa::available() {
                    let (pa, pb) = (PackedA::new(isa, a).unwrap(), PackedB::new(isa, b).unwrap());
                    let operands: [(Lhs<'_>, Rhs<'_>); 3] =
                        [(a.into(), b.into()), ((&pa).into(), b.into()), (a.into(), (&pb).into())];
                    for (way, (a, b)) in operands.into_iter().enumerate() {
                        let mut c = vec![0.0; m * n];
                        gemm(&Pool::serial(), isa, a, b, MatMut::new(&mut c, m, n), &Epilogue::NONE);
                        let error = (f64::from(c[i * n + j]) - want).abs() / want;
                        assert!(error < 1e-6, "{m}x{n}x{k}, {isa:?}, way {way}: {error:e}");
                    }
                }
            }
        }
    }
}

#[test]
fn packing_in_pieces_gives_the_same_panels() {
    let isa = Isa::default();
    for (k, n) in [(70, 33), (5, 100), (300, 1), (1, 1)] {
        let stored = random_values(k * n, 7);
        let scales = vec![1.0 / 64.0; n];
        for (transposed, storage) in [false, true].into_iter().flat_map(|t| storages(&scales).map(|s| (t, s)))
        {
            let (rows, columns) = if transposed { (n, k) } else { (k, n) };
            // Multiples of 1 / 64 below 2, which every type represents.
            let stored: Vec<f32> = stored.iter().map(|x| (x * 63.0).round() / 64.0 + 0.0).collect();
            let plain = MatRef::new(&stored, rows, columns);
            let plain = if transposed { plain.t() } else { plain };
            let packed = PackedB::stored_as(isa, storage, plain).unwrap();
            let mut read = 0;
            let pieces = PackedB::from_pieces::<pteron_tensor::Error>(
                isa,
                storage,
                (k, n),
                transposed,
                200,
                |part, pack| {
                    read += part.len();
                    pack(&stored[part.start * columns..part.end * columns]);
                    Ok(())
                },
            );
            let pieces = pieces.unwrap();
            assert_eq!(pieces.weight_type(), storage.weight_type());
            assert_eq!(read, rows);
            let [mut a, mut b] = [Vec::new(), Vec::new()];
            packed.store(&mut a);
            pieces.store(&mut b);
            assert!(a == b, "{k} x {n}, {transposed}, {storage:?}");
        }
    }
}

/// Every way to store weights.
fn storages(scales: &[f32]) -> [WeightStorage<'_>; 4] {
    [WeightStorage::F32, WeightStorage::F16, WeightStorage::Bf16, WeightStorage::Int8 { scales }]
}

/// `x` rounded to a value that `storage` represents, in a column.
fn rounded(storage: WeightStorage<'_>, x: f32, column: usize) -> f32 {
    match storage {
        WeightStorage::F32 => x,
        WeightStorage::F16 => half::f16::from_f32(x).to_f32(),
        WeightStorage::Bf16 => half::bf16::from_f32(x).to_f32(),
        WeightStorage::Int8 { scales } => {
            (x / scales[column]).round().clamp(-127.0, 127.0) * scales[column] + 0.0
        }
    }
}

/// Compares a product by narrow weights with that by the same weights in f32: all bits, however the operands and the
/// result are stored, and on several threads.
fn check_narrow(isa: Isa, (m, n, k): (usize, usize, usize), forms: [Form; 2], threads: usize) {
    let (a, b) = (TestMatrix::new(m, k, forms[0], 1), random_values(k * n, 2));
    let scales: Vec<f32> = random_values(n, 3).iter().map(|x| x.abs() / 100.0 + 1e-3).collect();
    let bias = random_values(n, 4);
    for storage in storages(&scales) {
        let b: Vec<f32> = b.iter().enumerate().map(|(i, &x)| rounded(storage, x, i % n.max(1))).collect();
        let b = MatRef::new(&b, k, n);
        let (wide, narrow) = (PackedB::new(isa, b).unwrap(), PackedB::stored_as(isa, storage, b).unwrap());
        assert_eq!(narrow.weight_type(), storage.weight_type());
        let mut stored = Vec::new();
        narrow.store(&mut stored);
        let mut reader = crate::compute::PackedWeightsReader::new(std::sync::Arc::new(Bytes(
            pteron_tensor::AlignedBuffer::from_slice(&stored).unwrap(),
        )));
        let loaded = PackedB::from_packed(isa, storage, k, n, &mut reader).unwrap();
        let epilogue = Epilogue { bias: Bias::PerCol(&bias), activation: Activation::Relu, ..Epilogue::NONE };
        let results = [&wide, &narrow, &loaded].map(|packed| {
            let mut c = TestMatrix::new(m, n, forms[1], 5);
            let lhs = PackedA::new(isa, a.view()).unwrap();
            let lhs = if let Form::Packed = forms[0] { Lhs::Packed(&lhs) } else { Lhs::Plain(a.view()) };
            let (rs, cs) = c.strides;
            let to = MatMut::strided(&mut c.data[1..], m, n, rs, cs);
            gemm(&Pool::new(threads), isa, lhs, packed, to, &epilogue);
            c.data.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        });
        assert!(results[0] == results[1], "{m}x{n}x{k} {forms:?} {storage:?} {isa:?}");
        assert!(results[0] == results[2], "{m}x{n}x{k} {forms:?} {storage:?} {isa:?}, loaded");
    }
}

struct Bytes(pteron_tensor::AlignedBuffer);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn products_by_narrow_weights_are_those_by_the_same_weights_in_f32() {
    let sizes = [0, 1, 2, 3, 5, 6, 7, 8, 13, 17, 30];
    let shapes = sizes.iter().flat_map(|&m| [1, 7, 16, 70].map(|n| (m, n)));
    for (isa, (m, n)) in Isa::available().flat_map(|isa| shapes.clone().map(move |shape| (isa, shape))) {
        for k in if cfg!(miri) { vec![5] } else { vec![0, 1, 2, 7, 300] } {
            check_narrow(isa, (m, n, k), [Form::RowMajor, Form::RowMajor], 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn products_by_narrow_weights_are_exact_in_every_form(
        m in 1usize..40, n in 1usize..200, k in 1usize..600, a in 0usize..4, c in 0usize..3, threads in 1usize..4,
    ) {
        let forms = [Form::RowMajor, Form::ColMajor, Form::Spread, Form::Packed];
        Isa::available().for_each(|isa| check_narrow(isa, (m, n, k), [forms[a], forms[c]], threads));
    }
}

#[test]
fn long_sums_of_narrow_weights_are_exact() {
    if !cfg!(miri) {
        check_narrow(Isa::default(), (9, 40, driver::MAX_F32_SUM + 100), [Form::RowMajor; 2], 1);
    }
}

#[test]
fn weights_that_a_type_does_not_represent_are_stored_as_f32() {
    let scales = [0.5; 3];
    for (storage, bad) in [
        (WeightStorage::F16, 70_000.0),
        (WeightStorage::F16, 1e-9),
        (WeightStorage::F16, f32::INFINITY),
        (WeightStorage::Bf16, 1.001),
        (WeightStorage::Bf16, f32::NAN),
        (WeightStorage::Int8 { scales: &scales }, 64.0),
        (WeightStorage::Int8 { scales: &scales }, 0.25),
        (WeightStorage::Int8 { scales: &scales }, -0.0),
    ] {
        let mut values = vec![1.0; 15];
        let ty = |values: &[f32]| {
            let b = MatRef::new(values, 5, 3);
            PackedB::stored_as(Isa::default(), storage, b).unwrap().weight_type()
        };
        assert_eq!(ty(&values), storage.weight_type());
        values[7] = bad;
        assert_eq!(ty(&values), WeightType::F32, "{bad} as {storage:?}");
    }
}
