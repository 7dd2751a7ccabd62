//! Functions of one byte, evaluated by a table of their 256 results.

#[cfg(target_arch = "x86_64")]
use super::isa::Feature;
use super::isa::Isa;
use super::split;
use pteron_pool::Pool;

/// The fewest bytes for which the work is divided among threads.
const WORTH: usize = 1 << 16;

/// Looks up each byte in `table`. Runs in parallel on `pool` if there are many bytes.
///
/// # Panics
/// If the slices differ in length.
pub fn lookup(pool: &Pool, isa: Isa, table: &[u8; 256], x: &[u8], out: &mut [u8]) {
    assert_eq!(x.len(), out.len(), "lengths of a table lookup's input and output");
    split::map_chunks(pool, WORTH, out, &|at, out| {
        let x = &x[at..][..out.len()];
        #[cfg(target_arch = "x86_64")]
        if isa.has(Feature::Avx512) && is_x86_feature_detected!("avx512vbmi") {
            // SAFETY: the machine has AVX-512 F, BW and VBMI.
            return unsafe { x86::lookup(table, x, out) };
        }
        let _ = isa;
        #[cfg(target_arch = "aarch64")]
        let (x, out) = neon::lookup_vectors(table, x, out);
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = table[usize::from(x)]);
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// The number of bytes in a vector.
    const WIDTH: usize = 64;

    /// Same as [`super::lookup`] on the calling thread, for slices of equal length: four registers hold the table.
    ///
    /// # Safety
    /// The machine has AVX-512 F, BW and VBMI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) unsafe fn lookup(table: &[u8; 256], x: &[u8], out: &mut [u8]) {
        let (quarters, _) = table.as_chunks::<WIDTH>();
        // SAFETY: each quarter has the `WIDTH` bytes of a vector.
        let [a, b, c, d] = std::array::from_fn(|i| unsafe { _mm512_loadu_epi8(quarters[i].as_ptr().cast()) });
        for (out, x) in out.chunks_mut(WIDTH).zip(x.chunks(WIDTH)) {
            let mask = u64::MAX >> (WIDTH - out.len().min(x.len()));
            // SAFETY: the mask limits the load and the store to the bytes of the two chunks.
            unsafe {
                let x = _mm512_maskz_loadu_epi8(mask, x.as_ptr().cast());
                let (low, high) = (_mm512_permutex2var_epi8(a, x, b), _mm512_permutex2var_epi8(c, x, d));
                let y = _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high);
                _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), mask, y);
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    /// The number of bytes in a vector.
    const WIDTH: usize = 16;

    /// Looks up the bytes that fill vectors, of slices of equal length, and returns the rest: 16 registers hold the
    /// table.
    pub(super) fn lookup_vectors<'a, 'b>(
        table: &[u8; 256],
        x: &'a [u8],
        out: &'b mut [u8],
    ) -> (&'a [u8], &'b mut [u8]) {
        let ((vectors, rest), (out_vectors, out_rest)) =
            (x.as_chunks::<WIDTH>(), out.as_chunks_mut::<WIDTH>());
        // SAFETY: every machine has NEON; a quarter of the table has 64 bytes, and vectors have `WIDTH`.
        unsafe {
            let quarter = |i: usize| vld1q_u8_x4(table.as_ptr().add(64 * i));
            let (a, b, c, d) = (quarter(0), quarter(1), quarter(2), quarter(3));
            let step = vdupq_n_u8(64);
            for (x, out) in vectors.iter().zip(out_vectors) {
                // Indices past a quarter leave a byte as it is.
                let x = vld1q_u8(x.as_ptr());
                let y = vqtbl4q_u8(a, x);
                let x = vsubq_u8(x, step);
                let y = vqtbx4q_u8(y, b, x);
                let x = vsubq_u8(x, step);
                let y = vqtbx4q_u8(y, c, x);
                let y = vqtbx4q_u8(y, d, vsubq_u8(x, step));
                vst1q_u8(out.as_mut_ptr(), y);
            }
        }
        (rest, out_rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_replaced_by_its_entry() {
        let table = std::array::from_fn(|i| (i * 167 + 13) as u8);
        for isa in Isa::available() {
            for len in [0, 1, 63, 64, 65, 1000, WORTH + 7] {
                let x: Vec<u8> = (0..len).map(|i| (i * 31 + i / 256) as u8).collect();
                let mut out = vec![0; len];
                lookup(&Pool::new(2), isa, &table, &x, &mut out);
                assert!(out.iter().zip(&x).all(|(&out, &x)| out == table[usize::from(x)]), "{isa:?}: {len}");
            }
        }
    }
}
