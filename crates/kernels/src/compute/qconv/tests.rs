use super::super::gemm::Activation;
use super::*;
use proptest::prelude::*;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) % 1013 * 7919 % 1013 * 31 / 8) as u8).collect()
}

/// The sums of a convolution by the definition.
fn naive(
    p: &ConvParams,
    frame: &ConvFrame,
    x: &[u8],
    (signed, zero): (bool, i32),
    weights: &[i8],
) -> Vec<i32> {
    let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
    let [ih, iw] = [frame.input[1], frame.input[2]];
    let mut out = Vec::new();
    for n in 0..frame.batch {
        for y in 0..frame.output[1] {
            for xx in 0..frame.output[2] {
                for o in 0..p.out_channels {
                    let mut sum = 0;
                    for ky in 0..p.kernel[1] {
                        for kx in 0..p.kernel[2] {
                            let iy = (y * p.stride[1] + ky * p.dilation[1]).wrapping_sub(p.padding[1]);
                            let ix = (xx * p.stride[2] + kx * p.dilation[2]).wrapping_sub(p.padding[2]);
                            if iy >= ih || ix >= iw {
                                continue;
                            }
                            for c in 0..ci {
                                let at = ((n * ih + iy) * iw + ix) * p.in_channels + o / co * ci + c;
                                let x = if signed { i32::from(x[at] as i8) } else { i32::from(x[at]) };
                                let w = weights[((o * ci + c) * p.kernel[1] + ky) * p.kernel[2] + kx];
                                sum += (x - zero) * i32::from(w);
                            }
                        }
                    }
                    out.push(sum);
                }
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn convolutions_match_the_definition(
        (groups, ci, co) in prop_oneof![
            (Just(1usize), 1usize..20, 1usize..40),
            (2usize..4, 1usize..9, 1usize..20),
            (1usize..150, Just(1usize), Just(1usize)),
        ],
        kernel in (1usize..6, 1usize..5),
        stride in (1usize..3, 1usize..3),
        dilation in (1usize..3, 1usize..3),
        padding in (0usize..3, 0usize..3),
        size in (7usize..12, 9usize..24),
        batch in 1usize..3,
        signed in any::<bool>(),
        threads in 1usize..3,
    ) {
        let p = ConvParams {
            groups,
            stride: [1, stride.0, stride.1],
            dilation: [1, dilation.0, dilation.1],
            padding: [0, padding.0, padding.1],
            ..ConvParams::conv2d(ci * groups, co * groups, [kernel.0, kernel.1])
        };
        let input = [1, size.0, size.1];
        let Some(output) = p.output_size(input, [0; 3]) else { return Ok(()) };
        check(p, &ConvFrame { batch, input, output }, signed, threads);
    }
}

/// Convolutions as matrix products and depthwise ones, on shapes small enough for Miri.
#[test]
fn small_shapes() {
    let padded = |p: ConvParams| ConvParams { padding: [0, 1, 1], ..p };
    for p in [
        padded(ConvParams::conv2d(3, 2, [2, 3])),
        padded(ConvParams { groups: 2, ..ConvParams::conv2d(4, 6, [1, 2]) }),
        padded(ConvParams { groups: 3, stride: [1, 1, 2], ..ConvParams::conv2d(3, 3, [3, 3]) }),
        ConvParams { groups: 17, ..ConvParams::conv2d(17, 17, [2, 2]) },
        padded(ConvParams { groups: 2, ..ConvParams::conv2d(2, 2, [5, 2]) }),
    ] {
        let input = [1, 3, 4];
        let output = p.output_size(input, [0; 3]).unwrap();
        check(p, &ConvFrame { batch: 1, input, output }, true, 2);
    }
}

/// Segments of whole AMX steps, on lines that fill the AMX tiles or nearly do.
#[test]
#[cfg_attr(miri, ignore = "Miri has no AMX")]
fn lines_of_many_channels() {
    for (width, stride, dilation, channels, groups) in [
        (13, 1, 1, 64, 1),
        (16, 1, 1, 64, 1),
        (31, 2, 1, 64, 1),
        (37, 1, 2, 128, 2),
        (12, 1, 1, 64, 1),
        (45, 1, 1, 64, 1),
    ] {
        let p = ConvParams {
            groups,
            stride: [1, stride, stride],
            dilation: [1, 1, dilation],
            padding: [0, 1, dilation],
            ..ConvParams::conv2d(channels, 80, [3, 3])
        };
        let input = [1, 9, width];
        let output = p.output_size(input, [0; 3]).unwrap();
        for threads in [1, 2] {
            check(p, &ConvFrame { batch: 2, input, output }, threads == 1, threads);
        }
    }
}

fn check(p: ConvParams, frame: &ConvFrame, signed: bool, threads: usize) {
    let zero = if signed { -5 } else { 17 };
    let x = bytes(frame.batch * frame.in_pixels() * p.in_channels, 1);
    let weights: Vec<i8> = bytes(p.weight_count(), 2).iter().map(|&b| b as i8).collect();
    let scales: Vec<f32> = (0..p.out_channels).map(|o| (o % 7 + 1) as f32 / 64.0).collect();
    let offset: Vec<i32> = (0..p.out_channels).map(|o| o as i32 * 77 - 300).collect();
    let bias: Vec<f32> = (0..p.out_channels).map(|o| o as f32 - 9.0).collect();
    let sums = naive(&p, frame, &x, (signed, zero), &weights);
    let real = |i: usize, factor: f32| {
        let o = i % p.out_channels;
        ((sums[i] + offset[o]) as f32 * (scales[o] * (0.5 * factor)) + bias[o] * factor).max(0.0)
    };
    let epilogue =
        QuantizedEpilogue { offset: Some(&offset), bias: Some(&bias), activation: Activation::Relu };
    let images = QuantizedImages { bytes: &x, signed, affine: Affine { scale: 0.5, zero } };
    let pool = Pool::new(threads);
    for isa in Isa::available() {
        let conv = QuantizedConv::new(isa, p, &weights, &scales).unwrap();
        let mut dequantized = vec![f32::NAN; sums.len()];
        conv.run(&pool, frame, images, QuantizedConvOut::Real(&mut dequantized), &epilogue);
        for (i, &actual) in dequantized.iter().enumerate() {
            assert_eq!(actual, real(i, 1.0), "{isa:?} element {i} of {p:?}");
        }
        let q = Quantization { affine: Affine { scale: 3.0, zero: -100 }, low: -128, high: 127 };
        let mut quantized = vec![0; sums.len()];
        conv.run(&pool, frame, images, QuantizedConvOut::Quantized(&mut quantized, q), &epilogue);
        for (i, &actual) in quantized.iter().enumerate() {
            let want = real(i, 1.0 / 3.0).round_ties_even() as i32 - 100;
            assert_eq!(i32::from(actual as i8), want.clamp(-128, 127), "{isa:?} element {i} of {p:?}");
        }
    }
}

/// Images whose lines are copied a few at a time, or in parts.
#[test]
fn large_images() {
    let padded = |p: ConvParams| ConvParams { padding: [0, p.kernel[1] / 2, p.kernel[2] / 2], ..p };
    for (p, input) in [
        (padded(ConvParams::conv2d(16, 5, [3, 3])), [1, 150, 30]),
        (padded(ConvParams { stride: [1, 2, 2], ..ConvParams::conv2d(20, 17, [3, 3]) }), [1, 200, 40]),
        (padded(ConvParams { groups: 3, ..ConvParams::conv2d(60, 51, [3, 2]) }), [1, 90, 40]),
        (padded(ConvParams::conv2d(40, 3, [1, 5])), [1, 1, 3500]),
        (padded(ConvParams { stride: [1, 1, 3], ..ConvParams::conv2d(300, 2, [4, 3]) }), [1, 5, 350]),
        (padded(ConvParams { groups: 70, ..ConvParams::conv2d(70, 70, [3, 3]) }), [1, 30, 40]),
    ] {
        let output = p.output_size(input, [0; 3]).unwrap();
        for threads in [1, 2] {
            check(p, &ConvFrame { batch: 2, input, output }, threads == 1, threads);
        }
    }
}

/// If the input image has no pixels, padding still creates output pixels, whose values are the bias.
#[test]
fn images_without_pixels_leave_the_bias() {
    for (groups, channels) in [(1, 3), (2, 4), (4, 4), (70, 70)] {
        for (input, output) in [([1, 0, 3], [1, 2, 5]), ([1, 3, 0], [1, 5, 2]), ([1, 0, 0], [1, 2, 2])] {
            let p =
                ConvParams { groups, padding: [0, 2, 2], ..ConvParams::conv2d(channels, channels, [3, 3]) };
            check(p, &ConvFrame { batch: 2, input, output }, groups == 2, 1);
        }
    }
}

/// Sums of as many products of extreme values as a depthwise convolution can have are exact.
#[test]
fn depthwise_sums_of_extremes_are_exact() {
    let p = ConvParams { groups: 20, ..ConvParams::conv2d(20, 20, [16, 8]) };
    let frame = ConvFrame { batch: 1, input: [1, 16, 8], output: [1, 1, 1] };
    let x = vec![255; 20 * 128];
    let images = QuantizedImages { bytes: &x, signed: false, affine: Affine { scale: 1.0, zero: 0 } };
    for (isa, weight) in Isa::available().flat_map(|isa| [(isa, -128), (isa, 127)]) {
        let conv = QuantizedConv::new(isa, p, &vec![weight; 20 * 128], &[1.0]).unwrap();
        let mut out = vec![0.0; 20];
        let to = QuantizedConvOut::Real(&mut out);
        conv.run(&Pool::serial(), &frame, images, to, &QuantizedEpilogue::default());
        assert_eq!(out, vec![255.0 * f32::from(weight) * 128.0; 20], "{isa:?}");
    }
}
