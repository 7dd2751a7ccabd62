//! Products of int8 activations with packed 8-bit and 4-bit weights.

use super::{CASES, Case, ROUNDS, turn};
use pteron_kernels::compute::{
    Affine, Feature, Isa, MatMut, MatRef, PackedWeights, QuantizedEpilogue, QuantizedOut, QuantizedRows, WeightBits,
    Weights, qgemm,
};
use pteron_pool::Pool;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_tensor::NdTensorView;

pub fn run(pool: &Pool, isa: Isa, filter: &str) {
    let rten = GemmExecutor::<u8, i8, i32>::default();
    println!("\nint8, rten kernel {}", rten.kernel_name());
    let names = ["8 bit", "8 bit avx2", "4 bit", "4 bit g64", "rten"];
    print!("{:<14}", "m x k x n");
    names.iter().for_each(|n| print!("{n:>11}"));
    println!("{:>8}", "8/rten");
    for case in CASES.iter().filter(|c| c.name.contains(filter)) {
        let &Case { name, m, k, n } = case;
        let a: Vec<u8> = (0..m * k).map(|i| (i * 7919 % 251) as u8).collect();
        let weights: Vec<i8> = (0..k * n).map(|i| (i * 7919 % 15) as i8 - 7).collect();
        let all_scales = vec![0.01; k.div_ceil(64) * n];
        let pack = |bits, group: usize| {
            let quantized = MatRef::new(&weights, n, k).t();
            let scales = &all_scales[..k.div_ceil(group) * n];
            PackedWeights::new(&Weights { quantized, bits, scales, group }).unwrap()
        };
        let packed =
            [pack(WeightBits::Eight, k), pack(WeightBits::Four, k), pack(WeightBits::Four, 64)];
        let params = Affine { scale: 0.1, zero: 3 };
        let own = |isa: Isa, b: &PackedWeights, out: &mut Vec<f32>| {
            let a = QuantizedRows::new(&a, true, m, k, params);
            qgemm(pool, isa, a, b, QuantizedOut::Real(MatMut::new(out, m, n)), &QuantizedEpilogue::default());
        };
        let ra = NdTensorView::from_data([m, k], &a[..]);
        let rb = NdTensorView::from_data([n, k], &weights[..]);
        let rb = rten.prepack_b(rb.transposed());
        let avx2 = Isa::of(Feature::Avx2).unwrap_or(Isa::portable());
        let mut outs = vec![vec![0.0; m * n]; 4].into_iter();
        let mut out = || outs.next().unwrap();
        let (mut c0, mut c1, mut c2, mut c3, mut c4) = (out(), out(), out(), out(), vec![0i32; m * n]);
        let mut bodies: Vec<Box<dyn FnMut() + '_>> = vec![
            Box::new(|| own(isa, &packed[0], &mut c0)),
            Box::new(|| own(avx2, &packed[0], &mut c1)),
            Box::new(|| own(isa, &packed[1], &mut c2)),
            Box::new(|| own(isa, &packed[2], &mut c3)),
            Box::new(|| {
                let (a, b) = (GemmInputA::Unpacked(ra), GemmInputB::Packed(&rb));
                rten.gemm(&mut c4, a, b, GemmOptions::default()).unwrap()
            }),
        ];
        let mut times = vec![Vec::new(); bodies.len()];
        for _ in 0..ROUNDS {
            for (body, times) in bodies.iter_mut().zip(&mut times) {
                times.push(turn(body));
            }
        }
        print!("{name:<14}");
        let rates: Vec<f64> = times
            .iter_mut()
            .map(|t| {
                t.sort_by(f64::total_cmp);
                2.0 * (m * n * k) as f64 / t[t.len() / 2] / 1e9
            })
            .collect();
        rates.iter().for_each(|r| print!("{r:>11.1}"));
        println!("{:>8.2}", rates[0] / rates[4]);
    }
}
