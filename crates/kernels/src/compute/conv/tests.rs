use super::super::gemm::Activation;
use super::super::math::Unary;
use super::super::packed_weights::PackedWeightsReader;
use super::*;
use proptest::prelude::*;
use std::sync::Arc;

fn random_values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(99);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn index(layout: Layout, channels: usize, size: [usize; 3], n: usize, c: usize, at: [usize; 3]) -> usize {
    let pixels: usize = size.iter().product();
    let pixel = (at[0] * size[1] + at[1]) * size[2] + at[2];
    let (cs, ps) = layout.strides(channels, pixels);
    n * channels * pixels + c * cs + pixel * ps
}

/// The sums of a convolution by its definition: every input pixel is scattered through every tap to the output.
fn naive(p: &ConvParams, f: &ConvFrame, x: &[f32], w: &[f32], layouts: (Layout, Layout)) -> Vec<f64> {
    let mut out = vec![0.0; f.batch * p.out_channels * f.out_pixels()];
    let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
    let points = |s: [usize; 3]| {
        (0..s[0]).flat_map(move |z| (0..s[1]).flat_map(move |y| (0..s[2]).map(move |x| [z, y, x])))
    };
    for n in 0..f.batch {
        for (tap, t) in points(p.kernel).enumerate() {
            // The image whose neighbouring pixels are `stride` apart in the other.
            let coarse = if p.transposed { f.input } else { f.output };
            let fine = if p.transposed { f.output } else { f.input };
            for q in points(coarse) {
                let r: [isize; 3] = std::array::from_fn(|d| {
                    (q[d] * p.stride[d] + t[d] * p.dilation[d]) as isize - p.padding[d] as isize
                });
                if (0..3).any(|d| r[d] < 0 || r[d] as usize >= fine[d]) {
                    continue;
                }
                let r = r.map(|v| v as usize);
                let (i_at, o_at) = if p.transposed { (q, r) } else { (r, q) };
                for g in 0..p.groups {
                    for i in 0..ci {
                        for o in 0..co {
                            let weight = if p.transposed {
                                w[((g * ci + i) * co + o) * p.tap_count() + tap]
                            } else {
                                w[((g * co + o) * ci + i) * p.tap_count() + tap]
                            };
                            let xi = x[index(layouts.0, p.in_channels, f.input, n, g * ci + i, i_at)];
                            out[index(layouts.1, p.out_channels, f.output, n, g * co + o, o_at)] +=
                                f64::from(xi) * f64::from(weight);
                        }
                    }
                }
            }
        }
    }
    out
}

struct Stored(AlignedBuffer);

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A copy of the convolution with its weights loaded from stored bytes; other numbers of bytes must be refused.
fn store_and_load(
    conv: &Conv,
    isa: Isa,
    method: Method,
    storage: WeightStorage<'_>,
    layouts: (Layout, Layout),
) -> Conv {
    let mut bytes = Vec::new();
    conv.store(&mut bytes);
    let take = |bytes: &[u8]| {
        let from = PackedWeightsReader::new(Arc::new(Stored(AlignedBuffer::from_slice(bytes).unwrap())));
        Conv::from_packed(isa, *conv.params(), method, storage, layouts, from)
    };
    if let Some(fewer) = bytes.len().checked_sub(4) {
        assert!(take(&bytes[..fewer]).is_none());
    }
    let from_packed = take(&bytes).unwrap();
    bytes.extend([0; 64]);
    assert!(take(&bytes).is_none());
    assert_eq!(from_packed.nbytes(), 0, "loaded weights own no memory");
    from_packed
}

fn check(p: ConvParams, f: ConvFrame, layouts: (Layout, Layout), variant: u32) {
    check_with(Isa::available(), p, f, layouts, variant);
}

fn check_with(
    isas: impl IntoIterator<Item = Isa>,
    p: ConvParams,
    f: ConvFrame,
    layouts: (Layout, Layout),
    variant: u32,
) {
    let x = random_values(f.batch * p.in_channels * f.in_pixels(), 1);
    let w = random_values(p.weight_count(), 2);
    let len = f.batch * p.out_channels * f.out_pixels();
    let (bias, residual) = (random_values(p.out_channels, 3), random_values(len, 4));
    let sums = naive(&p, &f, &x, &w, layouts);
    let epilogue = ConvEpilogue {
        bias: (variant & 1 != 0).then_some(&bias[..]),
        residual: (variant & 2 != 0).then_some(&residual[..]),
        activation: match variant >> 2 {
            0 => Activation::Identity,
            1 => Activation::Relu,
            2 => Activation::Unary(Unary::Hardswish),
            _ => Activation::Bounded { function: Unary::Hardswish, low: -0.25, high: 1.0 },
        },
        tail: None,
    };
    let follow = |i: usize, x: f32| 0.5 * x + (i % 7) as f32;
    let tail = |at: usize, part: &mut [f32]| {
        part.iter_mut().enumerate().for_each(|(i, x)| *x = follow(at + i, *x));
    };
    let channel_of = |i: usize| match layouts.1 {
        Layout::ChannelsFirst => i / f.out_pixels() % p.out_channels,
        Layout::ChannelsLast => i % p.out_channels,
    };
    let tolerance = 1e-6 * (p.in_channels / p.groups * p.tap_count() + 4) as f64;
    // Under Miri starting threads takes minutes, and the pool has tests of its own.
    let threads: &[usize] = if cfg!(miri) { &[1] } else { &[1, 3] };
    let methods = [Method::Direct, Method::Winograd];
    let methods = if winograd::Winograd::supports(&p) { &methods[..] } else { &methods[..1] };
    for (isa, method) in isas.into_iter().flat_map(|isa| methods.iter().map(move |&method| (isa, method))) {
        let weights = ConvWeights::contiguous(&p, &w);
        let conv = Conv::of(isa, p, method, &weights, WeightStorage::F32, layouts).unwrap();
        let mut first: Option<Vec<f32>> = None;
        let from_packed = store_and_load(&conv, isa, method, WeightStorage::F32, layouts);
        for &threads in threads {
            let mut out = vec![f32::NAN; len];
            conv.run(&Pool::new(threads), &f, &x, &mut out, &epilogue);
            for (i, (&got, &sum)) in out.iter().zip(&sums).enumerate() {
                let mut want = sum;
                if epilogue.bias.is_some() {
                    want += f64::from(bias[channel_of(i)]);
                }
                if epilogue.residual.is_some() {
                    want += f64::from(residual[i]);
                }
                match variant >> 2 {
                    0 => {}
                    1 => want = want.max(0.0),
                    _ => want *= (want + 3.0).clamp(0.0, 6.0) / 6.0,
                }
                if variant >> 2 == 3 {
                    want = want.clamp(-0.25, 1.0);
                }
                assert!(
                    (f64::from(got) - want).abs() <= tolerance,
                    "{isa:?} {method:?} {p:?} {f:?} {layouts:?} variant {variant}: {i} is {got}, not {want}"
                );
            }
            let mut again = vec![f32::NAN; len];
            from_packed.run(&Pool::new(threads), &f, &x, &mut again, &epilogue);
            assert!(again == out, "loaded weights give other results: {p:?}");
            let mut followed = vec![f32::NAN; len];
            let with_tail = ConvEpilogue { tail: Some(Tail(&tail)), ..epilogue };
            conv.run(&Pool::new(threads), &f, &x, &mut followed, &with_tail);
            let want: Vec<f32> = out.iter().enumerate().map(|(i, &x)| follow(i, x)).collect();
            assert!(followed == want, "the tail of {p:?} is not applied once to every element");
            assert!(first.get_or_insert_with(|| out.clone()) == &out, "threads change results: {p:?}");
        }
    }
}

fn layout() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::ChannelsFirst), Just(Layout::ChannelsLast)]
}

prop_compose! {
    fn params()(
        groups in 1usize..4, ci in 1usize..12, co in 1usize..12, kernel in prop::array::uniform3(1usize..4),
        stride in prop::array::uniform3(1usize..4), padding in prop::array::uniform3(0usize..3),
        dilation in prop::array::uniform3(1usize..3), transposed: bool, flat in 0u8..3,
    ) -> ConvParams {
        let mut p = ConvParams {
            in_channels: groups * ci, out_channels: groups * co, groups, kernel, stride, padding, dilation, transposed,
        };
        for d in 0..usize::from(flat) {
            (p.kernel[d], p.stride[d], p.padding[d], p.dilation[d]) = (1, 1, 0, 1);
        }
        p
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn convolutions_match_their_definition(
        p in params(), batch in 1usize..3, input in prop::array::uniform3(1usize..8),
        more in prop::array::uniform3(0usize..2), layouts in (layout(), layout()), variant in 0u32..16,
    ) {
        if let Some(mut output) = p.output_size(input, [0; 3]) {
            for d in 0..3 {
                output[d] += more[d];
            }
            check(p, ConvFrame { batch, input, output }, layouts, variant);
        }
    }

    #[test]
    fn depthwise_matches_its_definition(
        p in params(), channels in 1usize..70, input in prop::array::uniform2(1usize..20), layout in layout(),
        variant in 0u32..16,
    ) {
        let mut p = ConvParams { in_channels: channels, out_channels: channels, groups: channels, transposed: false, ..p };
        (p.kernel[0], p.padding[0]) = (1, 0);
        let input = [1, input[0], input[1]];
        if let Some(output) = p.output_size(input, [0; 3]) {
            check(p, ConvFrame { batch: 1, input, output }, (layout, layout), variant);
        }
    }

    #[test]
    fn winograd_matches_the_definition_for_any_image(
        ci in 1usize..40, co in 1usize..40, batch in 1usize..3, input in prop::array::uniform3(1usize..12),
        more in prop::array::uniform3(0usize..2), padding in prop::array::uniform2(0usize..3), variant in 0u32..16,
    ) {
        let p = ConvParams { padding: [0, padding[0], padding[1]], ..ConvParams::conv2d(ci, co, [3, 3]) };
        let input = [input[0].div_ceil(6), input[1], input[2]];
        if let Some(mut output) = p.output_size(input, [0; 3]) {
            for d in 0..3 {
                output[d] += more[d];
            }
            check(p, ConvFrame { batch, input, output }, (Layout::ChannelsLast, Layout::ChannelsLast), variant);
        }
    }
}

/// A convolution of channels-last images by Winograd's method, and the frame of an image of `size`.
fn winograd_of(isa: Isa, p: ConvParams, w: &[f32], size: [usize; 2]) -> (Conv, ConvFrame) {
    let (weights, last) = (ConvWeights::contiguous(&p, w), Layout::ChannelsLast);
    let input = [1, size[0], size[1]];
    let frame = ConvFrame { batch: 1, input, output: p.output_size(input, [0; 3]).unwrap() };
    (Conv::of(isa, p, Method::Winograd, &weights, WeightStorage::F32, (last, last)).unwrap(), frame)
}

/// A value that is not finite reaches the output pixels that read it, but no other output pixel of their tiles.
#[test]
fn non_finite_values_reach_only_the_pixels_that_read_them() {
    let p = ConvParams { padding: [0, 1, 1], ..ConvParams::conv2d(20, 24, [3, 3]) };
    let w = random_values(p.weight_count(), 2);
    for isa in Isa::available() {
        let (conv, frame) = winograd_of(isa, p, &w, [9, 7]);
        let mut x = random_values(20 * 63, 1);
        let direct = Conv::new(isa, p, &w, Layout::ChannelsLast, Layout::ChannelsLast).unwrap();
        for (pixel, value) in [(0, f32::NAN), (24, f32::INFINITY), (62, f32::MAX)] {
            x[pixel * 20 + 3] = value;
            for activation in [Activation::Identity, Activation::Unary(Unary::Hardswish)] {
                let epilogue = ConvEpilogue { activation, ..ConvEpilogue::default() };
                let [got, want] = [&conv, &direct].map(|conv| {
                    let mut out = vec![0.0; 24 * 63];
                    conv.run(&Pool::serial(), &frame, &x, &mut out, &epilogue);
                    out
                });
                for (i, (got, want)) in got.into_iter().zip(want).enumerate() {
                    let near = (got - want).abs() <= 1e-5 * want.abs().max(1.0);
                    assert!(near || got == want || got.is_nan() && want.is_nan(), "{i}: {got}, not {want}");
                }
            }
        }
    }
}

#[test]
fn non_finite_weights_fall_back_to_direct_sums() {
    let p = ConvParams::conv2d(16, 16, [3, 3]);
    let mut w = random_values(p.weight_count(), 2);
    let direct = p.weight_count() * size_of::<f32>();
    let bytes_of = |w: &[f32]| winograd_of(Isa::portable(), p, w, [8, 8]).0.nbytes();
    assert_eq!(bytes_of(&w), direct / 9 * 16);
    for value in [f32::INFINITY, f32::NAN, f32::MAX] {
        w[702..711].fill(value);
        assert_eq!(bytes_of(&w), direct, "{value}");
    }
}

#[test]
fn winograd_takes_16_of_36_multiplications() {
    let p = ConvParams { padding: [0, 1, 1], ..ConvParams::conv2d(32, 32, [3, 3]) };
    let (conv, frame) = winograd_of(Isa::portable(), p, &random_values(p.weight_count(), 2), [12, 12]);
    let (x, mut out) = (random_values(32 * 144, 1), vec![0.0; 32 * 144]);
    let before = pteron_pool::counted();
    conv.run(&Pool::serial(), &frame, &x, &mut out, &ConvEpilogue::default());
    assert_eq!(pteron_pool::counted() - before, (144 * p.weight_count() * 16 / 36) as u64);
    let of = |frame: ConvFrame| Method::of(&p, Layout::ChannelsLast, &frame);
    assert_eq!(of(frame), Method::Winograd);
    assert_eq!(of(ConvFrame { input: [1, 4, 4], output: [1, 4, 4], ..frame }), Method::Direct);
    assert_eq!(Method::of(&p, Layout::ChannelsFirst, &frame), Method::Direct);
}

#[test]
fn usual_shapes() {
    let both = [Layout::ChannelsFirst, Layout::ChannelsLast];
    for (ci, co, k, s, size) in [
        (3, 32, 3, 2, 33),
        (32, 64, 1, 1, 14),
        (20, 40, 3, 1, 9),
        (64, 33, 3, 2, 15),
        (3, 16, 7, 2, 30),
        (600, 24, 1, 1, 7),
        (530, 10, 3, 1, 5),
    ] {
        let pad = k / 2;
        let p =
            ConvParams { stride: [1, s, s], padding: [0, pad, pad], ..ConvParams::conv2d(ci, co, [k, k]) };
        let input = [1, size, size];
        let output = p.output_size(input, [0; 3]).unwrap();
        for layouts in both.into_iter().flat_map(|a| both.map(|b| (a, b))) {
            check(p, ConvFrame { batch: 2, input, output }, layouts, 7);
        }
    }
}

/// Every form of convolution, on shapes small enough for Miri, under which each form runs in one of the layouts.
#[test]
fn small_shapes() {
    let conv2d = ConvParams::conv2d;
    let layouts = LAYOUTS.map(|a| LAYOUTS.map(|b| (a, b)));
    let layouts = layouts.as_flattened();
    let padded = |p: ConvParams| ConvParams { padding: [0, 1, 1], stride: [1, 2, 1], ..p };
    let transposed = ConvParams { transposed: true, groups: 2, stride: [1, 2, 2], ..conv2d(4, 6, [3, 2]) };
    let forms = [
        conv2d(5, 9, [1, 1]),
        padded(conv2d(3, 9, [3, 3])),
        ConvParams { padding: [0, 3, 4], ..conv2d(3, 9, [2, 3]) },
        padded(conv2d(6, 3, [3, 3])),
        ConvParams { padding: [0, 1, 1], ..conv2d(5, 9, [3, 3]) },
        padded(ConvParams { groups: 5, ..conv2d(5, 5, [3, 3]) }),
        ConvParams { groups: 2, ..conv2d(4, 4, [2, 1]) },
        transposed,
    ];
    for (i, p) in forms.into_iter().enumerate() {
        let input = [1, 3, 5];
        let output = p.output_size(input, [0; 3]).unwrap();
        let frame = ConvFrame { batch: p.groups.min(2), input, output };
        let layouts = if cfg!(miri) { &layouts[i % layouts.len()..][..1] } else { layouts };
        layouts.iter().for_each(|&layouts| check_with([Isa::portable()], p, frame, layouts, 7));
    }
}

#[test]
fn output_sizes_match_the_formula() {
    let p = ConvParams { stride: [1, 2, 2], padding: [0, 1, 1], ..ConvParams::conv2d(3, 8, [3, 3]) };
    assert_eq!(p.output_size([1, 224, 224], [0; 3]), Some([1, 112, 112]));
    let t = ConvParams { transposed: true, ..p };
    assert_eq!(t.output_size([1, 112, 112], [0, 1, 1]), Some([1, 224, 224]));
    assert_eq!(p.output_size([1, 0, 5], [0; 3]), None);
    assert_eq!(ConvParams { kernel: [1, 0, 3], ..p }.output_size([1, 5, 5], [0; 3]), None);
}

#[test]
fn no_input_channels_leave_the_bias() {
    let p = ConvParams::conv2d(0, 2, [3, 3]);
    let f = ConvFrame { batch: 1, input: [1, 3, 3], output: [1, 1, 1] };
    check(p, f, (Layout::ChannelsLast, Layout::ChannelsLast), 1);
    check(p, f, (Layout::ChannelsFirst, Layout::ChannelsFirst), 1);
}

#[test]
fn widely_dilated_kernels_do_not_copy_far_more_than_they_sum() {
    for (kernel, dilation, input) in
        [([3, 3], [40, 1], [8, 50]), ([3, 3], [1, 300], [20, 8]), ([2, 1], [90, 1], [3, 3])]
    {
        let padding = [0, 1].map(|d| dilation[d] * (kernel[d] - 1) / 2);
        let p = ConvParams {
            groups: 2,
            padding: [0, padding[0], padding[1]],
            dilation: [1, dilation[0], dilation[1]],
            ..ConvParams::conv2d(2, 2, kernel)
        };
        let input = [1, input[0], input[1]];
        let output = p.output_size(input, [0; 3]).unwrap();
        for variant in [0, 7, 11, 15] {
            let before = pteron_pool::counted();
            let frame = ConvFrame { batch: 1, input, output };
            check(p, frame, (Layout::ChannelsFirst, Layout::ChannelsFirst), variant);
            let sums = 2 * output.iter().product::<usize>() * p.tap_count() * 2 * Isa::available().count();
            assert!(pteron_pool::counted() - before <= 12 * sums as u64, "{p:?}");
        }
    }
}

const LAYOUTS: [Layout; 2] = [Layout::ChannelsFirst, Layout::ChannelsLast];

#[test]
fn long_sums_are_as_exact_as_f64() {
    let plain = ConvParams { in_channels: 1, out_channels: 3, ..params_of(1) };
    let cases = [
        (ConvParams { in_channels: 200_000, ..plain }, [1, 1, 1]),
        (ConvParams { kernel: [1, 300, 400], ..plain }, [1, 300, 400]),
        (ConvParams { in_channels: 20_000, kernel: [1, 1, 3], ..plain }, [1, 1, 3]),
        (ConvParams { in_channels: 20_000, kernel: [1, 1, 3], transposed: true, ..plain }, [1, 1, 3]),
    ];
    for (p, input) in cases {
        let output = if p.transposed { [1, 1, 5] } else { [1, 1, 1] };
        let frame = ConvFrame { batch: 1, input, output };
        let (x, w) = (vec![0.1; p.in_channels * frame.in_pixels()], vec![0.3; p.weight_count()]);
        let terms = p.in_channels * if p.transposed { 3 } else { p.tap_count() };
        let want = f64::from(0.1f32) * f64::from(0.3f32) * terms as f64;
        for isa in Isa::available() {
            for (from, to) in LAYOUTS.into_iter().flat_map(|a| LAYOUTS.map(|b| (a, b))) {
                let mut out = vec![0.0; 3 * frame.out_pixels()];
                let epilogue = ConvEpilogue::default();
                conv(&Pool::serial(), isa, p, &frame, (&x, from), &w, (&mut out, to), &epilogue).unwrap();
                let greatest = out.iter().fold(0.0f32, |m, &x| m.max(x));
                let error = (f64::from(greatest) - want).abs() / want;
                assert!(error < 1e-6, "{p:?}, {from:?} to {to:?}, {isa:?}: {error:e}");
            }
        }
    }
}

/// Parameters of a 1x1 convolution with one group.
fn params_of(channels: usize) -> ConvParams {
    ConvParams {
        in_channels: channels,
        out_channels: channels,
        groups: 1,
        kernel: [1; 3],
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
        transposed: false,
    }
}

/// If the input image has no pixels, padding still creates output pixels, whose values are the bias.
#[test]
fn images_without_pixels_leave_the_bias() {
    for groups in [1, 2, 4] {
        for (input, output) in
            [([1, 0, 3], [1, 2, 5]), ([1, 3, 0], [1, 5, 2]), ([0, 3, 3], [2, 5, 5]), ([0; 3], [2; 3])]
        {
            for transposed in [false, true] {
                let p =
                    ConvParams { groups, kernel: [1, 3, 3], padding: [0, 2, 2], transposed, ..params_of(4) };
                let f = ConvFrame { batch: 2, input, output };
                for (from, to) in LAYOUTS.into_iter().flat_map(|a| LAYOUTS.map(|b| (a, b))) {
                    for variant in [0, 1, 7] {
                        check(p, f, (from, to), variant);
                    }
                }
            }
        }
    }
}

/// Compares convolutions by narrow weights with those by the same weights in f32, bit for bit.
fn check_narrow(p: ConvParams, f: ConvFrame, layout: Layout) {
    let x = random_values(f.batch * p.in_channels * f.in_pixels(), 1);
    let w: Vec<f32> =
        random_values(p.weight_count(), 2).iter().map(|x| (x * 63.0).round() / 64.0 + 0.0).collect();
    let bias = random_values(p.out_channels, 3);
    let scales = vec![1.0 / 64.0; p.out_channels];
    let layouts = (layout, layout);
    let weights = ConvWeights::contiguous(&p, &w);
    for isa in Isa::available() {
        let run = |conv: &Conv, threads: usize| {
            let mut out = vec![f32::NAN; f.batch * p.out_channels * f.out_pixels()];
            let epilogue =
                ConvEpilogue { bias: Some(&bias), residual: None, activation: Activation::Relu, tail: None };
            conv.run(&Pool::new(threads), &f, &x, &mut out, &epilogue);
            out.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        };
        let wide = Conv::of(isa, p, Method::Direct, &weights, WeightStorage::F32, layouts).unwrap();
        let want = run(&wide, 1);
        for storage in [WeightStorage::F16, WeightStorage::Bf16, WeightStorage::Int8 { scales: &scales }] {
            let narrow = Conv::of(isa, p, Method::Direct, &weights, storage, layouts).unwrap();
            let is_rows = matches!(narrow.algorithm, Algorithm::Rows(_));
            assert!(!is_rows || narrow.nbytes() < wide.nbytes(), "{p:?} {storage:?}");
            for threads in if cfg!(miri) { [1, 1] } else { [1, 3] } {
                assert!(run(&narrow, threads) == want, "{p:?} {f:?} {storage:?} {isa:?}");
            }
            let loaded = store_and_load(&narrow, isa, Method::Direct, storage, layouts);
            assert!(run(&loaded, 1) == want, "{p:?} {f:?} {storage:?} {isa:?}, loaded");
        }
    }
}

#[test]
fn convolutions_by_narrow_weights_are_those_by_the_same_weights_in_f32() {
    let dense = ConvParams { padding: [0, 1, 1], ..ConvParams::conv2d(20, 33, [3, 3]) };
    let few = ConvParams { padding: [0, 1, 1], stride: [1, 2, 2], ..ConvParams::conv2d(3, 24, [3, 3]) };
    let grouped = ConvParams { groups: 2, ..dense_of(16, 40) };
    let depthwise = ConvParams { groups: 24, ..dense_of(24, 24) };
    let transposed = ConvParams { transposed: true, stride: [1, 2, 2], ..ConvParams::conv2d(12, 18, [3, 3]) };
    for p in [ConvParams::conv2d(40, 50, [1, 1]), dense, few, grouped, depthwise, transposed] {
        for size in [[1, 1, 2], [1, 4, 5], [1, 17, 19]] {
            let Some(output) = p.output_size(size, [0; 3]) else { continue };
            let frame = ConvFrame { batch: 2, input: size, output };
            for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
                check_narrow(p, frame, layout);
            }
        }
    }
}

fn dense_of(channels: usize, out: usize) -> ConvParams {
    ConvParams { padding: [0, 1, 1], ..ConvParams::conv2d(channels, out, [3, 3]) }
}
