//! `pteron-bench-gemm [threads] [filter]`: throughput of matrix multiplication in Pteron and in the `gemm` and
//! `rten-gemm` crates, in GFLOP/s for f32, then in GOP/s for int8.
//!
//! The contestants alternate: each round gives every one a turn. Reported is the median over the rounds of the best
//! time within a turn. The cache state of the operands is the same for all.

mod quantized;

use pteron_kernels::compute::{Epilogue, Feature, Isa, MatMut, MatRef, PackedA, PackedB, gemm};
use pteron_pool::Pool;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_tensor::NdTensorView;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;

fn test_data(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect()
}

/// Seconds of the fastest call within one turn (40 ms, and at least three calls).
fn turn(body: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut calls = 0;
    while calls < 3 || start.elapsed() < Duration::from_millis(40) {
        let t = Instant::now();
        body();
        best = best.min(t.elapsed().as_secs_f64());
        calls += 1;
    }
    best
}

struct Case {
    name: &'static str,
    m: usize,
    k: usize,
    n: usize,
}

const CASES: &[Case] = &[
    Case { name: "64^3", m: 64, k: 64, n: 64 },
    Case { name: "256^3", m: 256, k: 256, n: 256 },
    Case { name: "512^3", m: 512, k: 512, n: 512 },
    Case { name: "1024^3", m: 1024, k: 1024, n: 1024 },
    Case { name: "1x4096x4096", m: 1, k: 4096, n: 4096 },
    Case { name: "8x2048x2048", m: 8, k: 2048, n: 2048 },
    Case { name: "32x2048x2048", m: 32, k: 2048, n: 2048 },
    Case { name: "128x768x3072", m: 128, k: 768, n: 3072 },
    Case { name: "49x512x2048", m: 49, k: 512, n: 2048 },
    Case { name: "3136x576x64", m: 3136, k: 576, n: 64 },
    Case { name: "197x768x768", m: 197, k: 768, n: 768 },
    Case { name: "64x576x3136", m: 64, k: 576, n: 3136 },
    Case { name: "12544x32x16", m: 12544, k: 32, n: 16 },
    Case { name: "3136x24x144", m: 3136, k: 24, n: 144 },
];

fn main() {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let filter = args.next().unwrap_or_default();
    let (pool, isa) = (Pool::new(threads), Isa::detect());
    let rten = GemmExecutor::<f32>::new();
    println!("{} threads, instruction set {}, rten kernel {}", threads, isa, rten.kernel_name());
    let names =
        ["plain", "W[N,K]", "packed W", "packed X", "avx2 pk", "portable", "gemm", "gemm [N,K]", "rten", "rten pk"];
    print!("{:<14}", "m x k x n");
    names.iter().for_each(|n| print!("{n:>11}"));
    println!("{:>8}{:>8}", "plain/", "packed/");
    for case in CASES.iter().filter(|c| c.name.contains(&filter)) {
        let &Case { name, m, k, n } = case;
        let (a, b) = (test_data(m * k), test_data(k * n));
        let (ma, mb) = (MatRef::new(&a, m, k), MatRef::new(&b, k, n));
        let mbt = MatRef::new(&b, n, k).t();
        let pb = PackedB::new(isa, mb).unwrap();
        let pa = PackedA::new(isa, ma).unwrap();
        let avx2 = Isa::of(Feature::Avx2).unwrap_or(Isa::portable());
        let pb2 = PackedB::new(avx2, mb).unwrap();
        let pb1 = PackedB::new(Isa::portable(), mb).unwrap();
        let ra = NdTensorView::from_data([m, k], &a[..]);
        let rb = NdTensorView::from_data([k, n], &b[..]);
        let rpb = rten.prepack_b(rb);
        let outs: Vec<Vec<f32>> = vec![vec![0.0; m * n]; names.len()];
        let mut outs = outs.into_iter();
        let mut out = || outs.next().unwrap();
        let ep = Epilogue::NONE;
        let foreign = |mut c: Vec<f32>, rs: isize, cs: isize| {
            let (a, b) = (&a, &b);
            let par = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
            move || unsafe {
                gemm::gemm(
                    m, n, k, c.as_mut_ptr(), 1, n as isize, false, a.as_ptr(), 1, k as isize, b.as_ptr(), cs, rs,
                    0.0f32, 1.0f32, false, false, false, par,
                )
            }
        };
        let (mut c0, mut c1, mut c2, mut c3, mut c4, mut c5) = (out(), out(), out(), out(), out(), out());
        let (mut c8, mut c9) = (out(), out());
        let mut bodies: Vec<Box<dyn FnMut() + '_>> = vec![
            Box::new(|| gemm_own(&pool, isa, ma, mb, &mut c0, m, n, &ep)),
            Box::new(|| gemm_own(&pool, isa, ma, mbt, &mut c1, m, n, &ep)),
            Box::new(|| gemm(&pool, isa, ma, &pb, MatMut::new(&mut c2, m, n), &ep)),
            Box::new(|| gemm(&pool, isa, &pa, mb, MatMut::new(&mut c3, m, n), &ep)),
            Box::new(|| gemm(&pool, avx2, ma, &pb2, MatMut::new(&mut c4, m, n), &ep)),
            Box::new(|| gemm(&pool, Isa::portable(), ma, &pb1, MatMut::new(&mut c5, m, n), &ep)),
            Box::new(foreign(out(), n as isize, 1)),
            Box::new(foreign(out(), 1, k as isize)),
            Box::new(|| {
                rten.gemm(&mut c8, GemmInputA::Unpacked(ra), GemmInputB::Unpacked(rb), GemmOptions::default())
                    .unwrap()
            }),
            Box::new(|| {
                rten.gemm(&mut c9, GemmInputA::Unpacked(ra), GemmInputB::Packed(&rpb), GemmOptions::default())
                    .unwrap()
            }),
        ];
        let mut times = vec![Vec::new(); bodies.len()];
        for _ in 0..ROUNDS {
            for (body, times) in bodies.iter_mut().zip(&mut times) {
                times.push(turn(body));
            }
        }
        let rates: Vec<f64> = times
            .iter_mut()
            .map(|t| {
                t.sort_by(f64::total_cmp);
                2.0 * (m * n * k) as f64 / t[t.len() / 2] / 1e9
            })
            .collect();
        print!("{name:<14}");
        rates.iter().for_each(|r| print!("{r:>11.1}"));
        let plain = rates[6].max(rates[8]);
        let best = plain.max(rates[9]).max(rates[7]);
        println!("{:>8.2}{:>8.2}", rates[0] / plain, rates[2] / best);
    }
    quantized::run(&pool, isa, &filter);
}

fn gemm_own(pool: &Pool, isa: Isa, a: MatRef, b: MatRef, c: &mut [f32], m: usize, n: usize, ep: &Epilogue) {
    gemm(pool, isa, a, b, MatMut::new(c, m, n), ep);
}
