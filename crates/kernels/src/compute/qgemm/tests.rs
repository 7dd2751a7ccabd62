use super::super::gemm::Activation;
use super::super::mat::{MatMut, MatRef};
use super::super::math::Unary;
use super::super::quantize::Quantization;
use super::super::simd::{Op, Simd, dispatch};
use super::*;
use proptest::prelude::*;

/// Pseudorandom integers from `low` to `high`; the extremes are frequent.
fn random_ints(len: usize, seed: u32, low: i32, high: i32) -> Vec<i32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match state >> 28 {
                0 => low,
                1 => high,
                _ => low + ((state >> 8) % (high - low + 1) as u32) as i32,
            }
        })
        .collect()
}

#[derive(Clone, Debug)]
struct Case {
    shape: (usize, usize, usize),
    signed: bool,
    bits: WeightBits,
    group: usize,
    per_row: bool,
    one_scale: bool,
    bias: bool,
    activation: Activation,
    /// The bounds of a requantized result.
    quantized: Option<(i32, i32)>,
}

/// The operands of a case.
struct Operands {
    a: Vec<u8>,
    params: Vec<Affine>,
    weights: Vec<i8>,
    scales: Vec<f32>,
    offset: Vec<i32>,
    bias: Vec<f32>,
}

/// Whether an instruction set multiplies and adds with one rounding.
struct RoundsOnce;

impl Op for RoundsOnce {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> bool {
        S::FUSED
    }
}

impl Case {
    fn operands(&self) -> Operands {
        let (m, k, n) = self.shape;
        let (low, high) = if self.signed { (-128, 127) } else { (0, 255) };
        let bound = if self.bits == WeightBits::Four { 8 } else { 128 };
        let groups = k.div_ceil(self.group.min(k).max(1)).max(1);
        let rows = if self.per_row { m } else { 1 };
        let scales = if self.one_scale { 1 } else { groups * n };
        let zeros = random_ints(rows, 3, low, high);
        Operands {
            a: random_ints(m * k, 1, low, high).iter().map(|&x| x as u8).collect(),
            params: zeros
                .iter()
                .enumerate()
                .map(|(i, &zero)| Affine { scale: 0.5 + i as f32, zero })
                .collect(),
            weights: random_ints(k * n, 2, -bound, bound - 1).iter().map(|&x| x as i8).collect(),
            scales: random_ints(scales, 4, 1, 99).iter().map(|&x| x as f32 / 1024.0).collect(),
            offset: random_ints(n, 6, -9999, 9999),
            bias: random_ints(n, 5, -99, 99).iter().map(|&x| x as f32).collect(),
        }
    }

    /// The result by the definition, with the steps of the kernel in f32 after exact sums: with several groups, after
    /// the exact sums of each group, and with the sum of the dequantized weights. A requantized result is given
    /// before it is rounded. `fused` is whether the machine multiplies and adds in one instruction.
    fn expected(&self, o: &Operands, fused: bool) -> Vec<f32> {
        let (m, k, n) = self.shape;
        let group = self.group.min(k).max(1);
        let factor = if self.quantized.is_some() { 1.0 / 7.0 } else { 1.0 };
        let mut out = Vec::new();
        for i in 0..m {
            let Affine { scale, zero } = o.params[if self.per_row { i } else { 0 }];
            for j in 0..n {
                let bias = if self.bias { o.bias[j] * factor } else { 0.0 };
                // Sums take A as it is copied.
                let lift = i64::from(conversion(self.signed).1);
                let add = |x: f32, s: f32, y: f32| if fused { x.mul_add(s, y) } else { x * s + y };
                let offset = if self.bias { i64::from(o.offset[j]) } else { 0 };
                let column_scale = |g: usize| o.scales[if self.one_scale { 0 } else { g * n + j }];
                let parts = (0..k.max(1)).step_by(group).enumerate().map(|(g, rows)| {
                    let weights = (rows..k.min(rows + group)).map(|p| (p, i64::from(o.weights[p * n + j])));
                    let sum: i64 = weights
                        .clone()
                        .map(|(p, w)| {
                            let byte = o.a[i * k + p];
                            w * (if self.signed { i64::from(byte as i8) } else { i64::from(byte) } + lift)
                        })
                        .sum();
                    (sum, weights.map(|(_, w)| w).sum::<i64>(), column_scale(g))
                });
                let y = if k > group {
                    let start = if self.bias { offset as f32 * column_scale(0) } else { 0.0 };
                    let sums = parts.clone().fold(start, |y, (x, _, s)| add(x as f32, s, y));
                    let weights = parts.fold(0.0, |y, (_, w, s)| add(w as f32, s, y));
                    add(-(i64::from(zero) + lift) as f32, weights, sums) * (scale * factor) + bias
                } else {
                    // A scale shared by all rows is multiplied into those of the columns; so is that of the output.
                    let (all, row) = if self.per_row { (1.0, scale) } else { (scale, 1.0) };
                    let (x, w, s) = parts.clone().next().unwrap();
                    let x = (x - w * (i64::from(zero) + lift) + offset) as f32;
                    let s = s * (all * factor);
                    match self.per_row && self.quantized.is_none() {
                        true => add(x * row, s, bias),
                        false => x * row * s + bias,
                    }
                };
                out.push(match (self.activation.function(), self.activation.bounds()) {
                    (Some(_), _) => self.activation.scalar(y),
                    (None, Some((low, high))) => y.max(low * factor).min(high * factor),
                    (None, None) => y,
                });
            }
        }
        out
    }

    fn check(&self, threads: usize) {
        let (m, k, n) = self.shape;
        let o = self.operands();
        let want = [false, true].map(|fused| self.expected(&o, fused));
        let weights = Weights {
            quantized: MatRef::new(&o.weights, k, n),
            bits: self.bits,
            scales: &o.scales,
            group: self.group,
        };
        let epilogue = QuantizedEpilogue {
            offset: self.bias.then_some(&o.offset[..]),
            bias: self.bias.then_some(&o.bias[..]),
            activation: self.activation,
        };
        let a = match self.per_row {
            true => QuantizedRows::with_row_params(&o.a, self.signed, m, k, &o.params),
            false => QuantizedRows::new(&o.a, self.signed, m, k, o.params[0]),
        };
        let pool = Pool::new(threads);
        for isa in Isa::available() {
            let want = &want[usize::from(dispatch(isa, RoundsOnce))];
            for kernel in SupportedKernel::available(isa) {
                let packed = PackedWeights::with_adjacent_rows(kernel.adjacent_rows(), &weights).unwrap();
                if let Some((low, high)) = self.quantized {
                    let q = Quantization { affine: Affine { scale: 7.0, zero: low + 40 }, low, high };
                    let mut out = vec![0u8; m * n];
                    let to = QuantizedOut::Quantized(MatMut::new(&mut out, m, n), q);
                    qgemm_with(kernel, &pool, isa, a, &packed, to, &epilogue);
                    for (i, (&actual, &real)) in out.iter().zip(want).enumerate() {
                        let number = real.round_ties_even() as i32 + q.affine.zero;
                        assert_eq!(actual, number.clamp(low, high) as u8, "{self:?} {kernel:?} element {i}");
                    }
                } else {
                    let mut out = vec![f32::NAN; m * n];
                    let to = QuantizedOut::Real(MatMut::new(&mut out, m, n));
                    qgemm_with(kernel, &pool, isa, a, &packed, to, &epilogue);
                    for (i, (&actual, &want)) in out.iter().zip(want).enumerate() {
                        let exact = self.activation.is_simple();
                        let close = (actual - want).abs() <= want.abs() * 1e-5 + 1e-5;
                        assert!(
                            actual == want || !exact && close,
                            "{self:?} {kernel:?} element {i}: {actual}, {want}"
                        );
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn every_microkernel_matches_the_definition(
        shape in (0usize..71, 0usize..200, 0usize..100),
        (signed, four) in any::<(bool, bool)>(),
        group in prop_oneof![Just(usize::MAX), Just(32), Just(64), Just(128)],
        (per_row, one_scale, bias) in any::<(bool, bool, bool)>(),
        activation in prop_oneof![
            Just(Activation::Identity),
            Just(Activation::Relu),
            Just(Activation::Clamp { low: -20.0, high: 300.0 }),
        ],
        quantized in prop_oneof![Just(None), Just(Some((-128, 127))), Just(Some((0, 255))), Just(Some((-127, 127)))],
        threads in 1usize..4,
    ) {
        let groups = group < shape.1;
        let bits = if four { WeightBits::Four } else { WeightBits::Eight };
        let one_scale = one_scale && !groups;
        Case { shape, signed, bits, group, per_row, one_scale, bias, activation, quantized }.check(threads);
    }
}

fn plain(shape: (usize, usize, usize), bits: WeightBits, group: usize) -> Case {
    Case {
        shape,
        signed: true,
        bits,
        group,
        per_row: false,
        one_scale: false,
        bias: true,
        activation: Activation::Identity,
        quantized: None,
    }
}

/// Every kind of weights and of result, on shapes small enough for Miri.
#[test]
fn small_shapes() {
    for (shape, group, threads) in [((1, 36, 3), 32, 1), ((5, 3, 17), usize::MAX, 2)] {
        for bits in [WeightBits::Four, WeightBits::Eight] {
            for quantized in [None, Some((-128, 127))] {
                Case { quantized, per_row: bits == WeightBits::Four, ..plain(shape, bits, group) }
                    .check(threads);
            }
        }
    }
    Case { activation: Activation::Unary(Unary::Gelu), ..plain((3, 4, 5), WeightBits::Eight, 64) }.check(1);
    let bounded = Activation::Bounded { function: Unary::Gelu, low: 0.0, high: 6.0 };
    Case { activation: bounded, ..plain((3, 4, 5), WeightBits::Eight, 64) }.check(1);
}

#[test]
fn larger_products_on_several_threads() {
    for (bits, group) in [(WeightBits::Eight, usize::MAX), (WeightBits::Four, 128), (WeightBits::Four, 32)] {
        plain((130, 700, 257), bits, group).check(3);
        plain((1, 1500, 333), bits, group).check(2);
    }
    Case { activation: Activation::Unary(Unary::Gelu), ..plain((40, 64, 64), WeightBits::Eight, 64) }
        .check(1);
}

/// Sums of products of extreme values are exact: no intermediate result saturates.
#[test]
fn sums_of_extremes_are_exact() {
    let k = PackedWeights::MAX_ROWS;
    let all =
        [(WeightBits::Eight, -128), (WeightBits::Eight, 127), (WeightBits::Four, -8), (WeightBits::Four, 7)];
    for (rows, (bits, weight)) in [1, 9, 13].into_iter().flat_map(|rows| all.map(|values| (rows, values))) {
        let (a, b) = (vec![255u8; rows * k], vec![weight; k]);
        let weights = Weights { quantized: MatRef::new(&b, k, 1), bits, scales: &[1.0], group: k };
        let a = QuantizedRows::new(&a, false, rows, k, Affine { scale: 1.0, zero: 0 });
        for isa in Isa::available() {
            for kernel in SupportedKernel::available(isa) {
                let packed = PackedWeights::with_adjacent_rows(kernel.adjacent_rows(), &weights).unwrap();
                let mut out = vec![0.0; rows];
                let to = QuantizedOut::Real(MatMut::new(&mut out, rows, 1));
                qgemm_with(kernel, &Pool::serial(), isa, a, &packed, to, &QuantizedEpilogue::default());
                let want = 255.0 * f32::from(weight) * k as f32;
                assert_eq!(out, vec![want; rows], "{bits:?} {kernel:?}");
            }
        }
    }
}

/// Compares with the CPU's flags, so that a microkernel that is not detected is not silently left untested.
#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn available_microkernels_match_the_cpu_flags() {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
    let kernels: Vec<SupportedKernel> = SupportedKernel::available(Isa::detect()).collect();
    let expected = 1
        + usize::from(has("avx2"))
        + usize::from(has("avx_vnni"))
        + usize::from(has("avx512_vnni"))
        + usize::from(has("amx_int8") && has("amx_tile"));
    assert_eq!(kernels.len(), expected, "{kernels:?}");
}
