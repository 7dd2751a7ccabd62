//! `cargo bench -p pteron-kernels`: the compute core at the sizes of common networks, on one thread.
//! `tools/bench/gemm` compares its matrix products with those of other crates.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pteron_kernels::compute::*;
use pteron_pool::Pool;
use std::hint::black_box;
use std::time::Duration;

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect()
}

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("gemm");
    let pool = Pool::serial();
    for (m, k, n) in [
        (64, 64, 64),
        (256, 256, 256),
        (512, 512, 512),
        (1, 4096, 4096),
        (8, 2048, 2048),
        (32, 2048, 2048),
        (128, 768, 3072),
        (49, 512, 2048),
        (3136, 576, 64),
    ] {
        let (a, b, mut out) = (numbers(m * k), numbers(k * n), vec![0.0; m * n]);
        group.throughput(Throughput::Elements(2 * (m * n * k) as u64));
        for isa in Isa::available() {
            let a = MatRef::new(&a, m, k);
            let b = PackedB::new(isa, MatRef::new(&b, k, n)).expect("memory");
            group.bench_function(BenchmarkId::new(isa.to_string(), format!("{m}x{k}x{n}")), |bench| {
                bench.iter(|| gemm(&pool, isa, a, &b, MatMut::new(&mut out, m, n), &Epilogue::NONE));
            });
        }
    }
    group.finish();
}

fn quantized_products(c: &mut Criterion) {
    let mut group = c.benchmark_group("qgemm");
    let pool = Pool::serial();
    for (m, k, n) in [
        (64usize, 64usize, 64usize),
        (512, 512, 512),
        (1, 4096, 4096),
        (8, 2048, 2048),
        (32, 2048, 2048),
        (128, 768, 3072),
        (3136, 576, 64),
    ] {
        let a: Vec<u8> = (0..m * k).map(|i| (i * 7919 % 251) as u8).collect();
        let weights: Vec<i8> = (0..k * n).map(|i| (i * 7919 % 15) as i8 - 7).collect();
        let scales = vec![0.01; k.div_ceil(64) * n];
        let params = Affine { scale: 0.1, zero: 3 };
        let mut out = vec![0.0; m * n];
        group.throughput(Throughput::Elements(2 * (m * n * k) as u64));
        for (label, bits, rows) in [
            ("8", WeightBits::Eight, k),
            ("4", WeightBits::Four, k),
            ("4 in groups of 64", WeightBits::Four, 64),
        ] {
            let numbers = MatRef::new(&weights, n, k).t();
            let scales = &scales[..k.div_ceil(rows) * n];
            let weights = Weights { quantized: numbers, bits, scales, group: rows };
            for isa in Isa::available() {
                let b = PackedWeights::new(isa, &weights).expect("memory");
                let id = BenchmarkId::new(format!("{label}, {isa}"), format!("{m}x{k}x{n}"));
                group.bench_function(id, |bench| {
                    bench.iter(|| {
                        let a = QuantizedRows::new(&a, true, m, k, params);
                        let out = QuantizedOut::Real(MatMut::new(&mut out, m, n));
                        qgemm(&pool, isa, a, &b, out, &QuantizedEpilogue::default());
                    });
                });
            }
        }
    }
    group.finish();
}

fn convolutions(c: &mut Criterion) {
    let mut group = c.benchmark_group("conv");
    let (pool, isa) = (Pool::serial(), Isa::detect());
    for (name, ci, co, groups, k, s, size) in [
        ("first", 3, 32, 1, 3, 2, 224),
        ("3x3", 64, 64, 1, 3, 1, 56),
        ("3x3", 512, 512, 1, 3, 1, 7),
        ("1x1", 96, 24, 1, 1, 1, 56),
        ("1x1", 24, 144, 1, 1, 1, 56),
        ("1x1", 960, 160, 1, 1, 1, 7),
        ("depthwise", 144, 144, 144, 3, 1, 56),
        ("depthwise", 144, 144, 144, 3, 2, 56),
        ("depthwise", 960, 960, 960, 3, 1, 7),
        ("depthwise", 240, 240, 240, 5, 1, 14),
    ] {
        let pad = [0, k / 2, k / 2];
        let params =
            ConvParams { groups, stride: [1, s, s], padding: pad, ..ConvParams::conv2d(ci, co, [k, k]) };
        let input = [1, size, size];
        let output = params.output_size(input, [0; 3]).expect("the kernel fits");
        let frame = ConvFrame { batch: 1, input, output };
        let (x, w, bias) = (numbers(ci * size * size), numbers(params.weight_count()), numbers(co));
        let pixels: usize = output.iter().product();
        let mut out = vec![0.0; co * pixels];
        group.throughput(Throughput::Elements(2 * (params.weight_count() * pixels) as u64));
        for (layout, label) in [(Layout::ChannelsFirst, "nchw"), (Layout::ChannelsLast, "nhwc")] {
            let conv = Conv::new(isa, params, &w, layout, layout).expect("memory");
            let epilogue =
                ConvEpilogue { bias: Some(&bias), activation: Activation::Relu, ..ConvEpilogue::default() };
            group.bench_function(
                BenchmarkId::new(label, format!("{name} {ci}->{co} k{k} s{s} {size}")),
                |bench| {
                    bench.iter(|| conv.run(&pool, &frame, &x, &mut out, &epilogue));
                },
            );
        }
    }
    group.finish();
}

fn functions(c: &mut Criterion) {
    let mut group = c.benchmark_group("elementwise");
    let (pool, isa) = (Pool::serial(), Isa::detect());
    let n = 1 << 14;
    let (x, y, mut out) = (numbers(n), numbers(n), vec![0.0; n]);
    group.throughput(Throughput::Elements(n as u64));
    for op in [
        Unary::Relu,
        Unary::Exp,
        Unary::Log,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Erf,
        Unary::Gelu,
        Unary::Sin,
    ] {
        group
            .bench_function(format!("{op:?}"), |b| b.iter(|| unary(&pool, isa, op, black_box(&x), &mut out)));
    }
    group.bench_function("Add", |b| b.iter(|| binary(&pool, isa, Binary::Add, black_box(&x), &y, &mut out)));
    group.finish();

    let mut group = c.benchmark_group("rows");
    let (rows, n) = (197, 768);
    let (x, w) = (numbers(rows * n), numbers(n));
    let mut out = vec![0.0; rows * n];
    group.throughput(Throughput::Elements((rows * n) as u64));
    group.bench_function("softmax", |b| b.iter(|| softmax(&pool, isa, false, n, black_box(&x), &mut out)));
    group.bench_function("layer_norm", |b| {
        b.iter(|| layer_norm(&pool, isa, 1e-5, n, black_box(&x), (Some(&w), Some(&w)), &mut out));
    });
    group.bench_function("sum", |b| b.iter(|| sum(isa, black_box(&x))));
    group.bench_function("transpose", |b| {
        b.iter(|| copy(isa, MatRef::new(black_box(&x), rows, n).t(), MatMut::new(&mut out, n, rows)));
    });
    group.finish();
}

/// Operations on one row, such as a row of attention scores (197) or of the left operand of a dynamically quantized
/// product.
fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("row");
    for n in [49, 197, 768, 3072] {
        let (x, mut out, mut quantized) = (numbers(n), vec![0.0; n], vec![0; n]);
        group.throughput(Throughput::Elements(n as u64));
        for isa in Isa::available() {
            let mut bench = |name: &str, run: &mut dyn FnMut()| {
                group.bench_function(BenchmarkId::new(format!("{name} {isa}"), n), |bench| {
                    bench.iter(&mut *run);
                });
            };
            let pool = Pool::serial();
            bench("softmax", &mut || softmax(&pool, isa, false, n, black_box(&x), &mut out));
            bench("range", &mut || _ = black_box(min_max(isa, black_box(&x))));
            bench("quantize", &mut || _ = black_box(quantize_row(isa, black_box(&x), &mut quantized)));
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600)).sample_size(20);
    targets = products, quantized_products, convolutions, functions, rows
}
criterion_main!(benches);
