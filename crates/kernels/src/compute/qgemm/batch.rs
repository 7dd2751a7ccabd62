//! Batches of products of two computed matrices of 8-bit values: the second matrix of each product is packed when it is multiplied.

use super::super::isa::Isa;
use super::super::mat::MatRef;
use super::super::split;
use super::epilogue::{QuantizedEpilogue, QuantizedOut};
use super::pack::{PackedWeights, WeightBits, Weights};
use super::{QuantizedRows, qgemm};
use pteron_pool::Pool;
use pteron_tensor::Result;

/// The right operands of a batch of products: one after the other, `k x n` signed 8-bit values each, row-major, whose zero point is 0.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedMatrices<'a> {
    /// The quantized values.
    pub values: &'a [i8],
    /// The scale of all values.
    pub scale: f32,
    /// The number of matrices.
    pub count: usize,
}

/// `out[i] = a[i] b[i]` for each of the matrices `b`: `a` and `out` have the rows of all products one below the other, `m` of each. The
/// sums are exact, so results do not depend on the number of threads. Runs in parallel on `pool` if the products are large
/// enough. Fails if there is no memory to pack a matrix on each thread.
///
/// # Panics
/// If the shapes do not match, or matrices have more than [`PackedWeights::MAX_ROWS`] rows.
pub fn qgemm_batch(
    pool: &Pool,
    isa: Isa,
    a: QuantizedRows<'_>,
    b: QuantizedMatrices<'_>,
    out: QuantizedOut<'_>,
) -> Result<()> {
    let ((rows, n), k) = (out.shape(), a.cols);
    let (m, elements) = (rows / b.count.max(1), k.saturating_mul(n));
    assert_eq!((a.rows, m.saturating_mul(b.count)), (rows, rows), "rows of {} products", b.count);
    assert_eq!(b.values.len(), elements.saturating_mul(b.count), "elements of {} {k}x{n} matrices", b.count);
    out.check(rows, n);
    if rows == 0 || n == 0 {
        return Ok(());
    }
    let scales = [b.scale];
    let matrix = |i: usize| MatRef::new(&b.values[i * elements..], k, n);
    let pack = |i: usize| {
        let weights =
            Weights { quantized: matrix(i), bits: WeightBits::Eight, scales: &scales, group: usize::MAX };
        PackedWeights::new(isa, &weights)
    };
    let work = rows.saturating_mul(elements);
    let tasks = split::thread_count(pool, work, split::PRODUCTS).min(b.count);
    let share = |task: usize| split::nth_share(task, tasks, b.count, 1);
    let mut packed = (0..tasks).map(|task| pack(share(task).start)).collect::<Result<Vec<_>>>()?;
    let out = out.blocks();
    let compute = |pool: &Pool, task: usize, packed: &mut PackedWeights| {
        for i in share(task) {
            if i != share(task).start {
                packed.repack(matrix(i));
            }
            let rows = i * m..(i + 1) * m;
            // SAFETY: each product is computed by one task, and has rows of its own.
            let out = unsafe { out.block(rows.clone(), 0..n) };
            let a = QuantizedRows {
                bytes: &a.bytes[rows.start * k..rows.end * k],
                rows: m,
                params: a.params.starting_at_row(rows.start),
                ..a
            };
            qgemm(pool, isa, a, packed, out, &QuantizedEpilogue::default());
        }
    };
    match &mut packed[..] {
        [packed] => compute(pool, 0, packed),
        several => pool.parallel_chunks_mut(several, 1, 1, &|task, packed| {
            compute(Pool::alone(), task, &mut packed[0]);
        }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::mat::MatMut;
    use super::super::super::quantize::{Affine, Quantization};
    use super::*;
    use proptest::prelude::*;

    /// The products by the definition, in f64.
    fn expected(
        (count, m, k, n): (usize, usize, usize, usize),
        (a, affine): (&[u8], Affine),
        (b, scale): (&[i8], f32),
    ) -> Vec<f64> {
        let mut out = Vec::with_capacity(count * m * n);
        for i in 0..count {
            for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
                let a = |t: usize| i64::from(a[(i * m + r) * k + t] as i8) - i64::from(affine.zero);
                let sum: i64 = (0..k).map(|t| a(t) * i64::from(b[(i * k + t) * n + c])).sum();
                out.push(sum as f64 * f64::from(affine.scale) * f64::from(scale));
            }
        }
        out
    }

    fn check(sizes @ (count, m, k, n): (usize, usize, usize, usize), zero: i32, threads: usize) {
        let bytes = |len: usize, by: usize| (0..len).map(move |i| (i * i / 3 + i * by) as u8);
        let a: Vec<u8> = bytes(count * m * k, 37).collect();
        let b: Vec<i8> = bytes(count * k * n, 101).map(|x| x as i8).collect();
        let (affine, scale) = (Affine { scale: 0.25, zero }, 0.125);
        let want = expected(sizes, (&a, affine), (&b, scale));
        let pool = Pool::new(threads);
        for isa in Isa::available() {
            let rows = QuantizedRows::new(&a, true, count * m, k, affine);
            let b = QuantizedMatrices { values: &b, scale, count };
            let mut out = vec![f32::NAN; count * m * n];
            let to = QuantizedOut::Real(MatMut::new(&mut out, count * m, n));
            qgemm_batch(&pool, isa, rows, b, to).unwrap();
            assert!(out.iter().zip(&want).all(|(&x, &y)| x == y as f32), "{sizes:?} {isa:?}");
            let q = Quantization { affine: Affine { scale: 8.0, zero: -3 }, low: -128, high: 127 };
            let mut out = vec![0; count * m * n];
            let to = QuantizedOut::Quantized(MatMut::new(&mut out, count * m, n), q);
            qgemm_batch(&pool, isa, rows, b, to).unwrap();
            let quantized = |y: f64| ((y / 8.0).round_ties_even() - 3.0).clamp(-128.0, 127.0) as i8;
            assert!(out.iter().zip(&want).all(|(&x, &y)| x as i8 == quantized(y)), "{sizes:?} {isa:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn batches_match_the_definition(
            sizes in (0usize..5, 0usize..20, 0usize..70, 0usize..40),
            zero in -128i32..128,
            threads in 1usize..4,
        ) {
            check(sizes, zero, threads);
        }
    }

    #[test]
    fn larger_batches_are_divided_among_threads() {
        check((5, 33, 65, 130), 7, 3);
        check((1, 130, 128, 130), -128, 2);
    }
}
