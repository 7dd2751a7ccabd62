//! Matrix products of 8-bit by 8-bit values, or by 4-bit values, accumulated in 32-bit integers.
//!
//! `C = activation((A - zero) B * scales + bias)`. The rows of A have a scale and a zero point each, or share them;
//! the columns of B have a scale each, or one for each group of their rows. C is f32, or requantized. The sums of a
//! group are exact, so that all microkernels, tile shapes and numbers of threads give bit-identical
//! results.
//!
//! | microkernel | machine | step of a tile |
//! | --- | --- | --- |
//! | `amx` | AMX-INT8 | 32 rows by 32 columns by 64, or by 32 where groups end there |
//! | `avx512vnni` | AVX-512 VNNI | 8 rows by 32 columns by 4 |
//! | `avxvnni` | AVX-VNNI | 4 rows by 16 columns by 4 |
//! | `avx2` | AVX2 | 6 rows by 16 columns by 2 values widened to 16 bits, or by 32 with 4-bit values: nothing saturates |
//! | `i8mm` | AArch64 with I8MM | 6 rows by 16 columns by 8 |
//! | `dotprod` | AArch64 with dot products | 6 rows by 16 columns by 4 |
//! | `neon` | any AArch64 | 2 rows by 16 columns by 8, widened to 16 bits: nothing saturates |
//! | `simd128` | WebAssembly with 128-bit vectors | 2 rows by 8 columns by 4, widened to 16 bits: nothing saturates |
//! | `portable` | any other | a row by 16 columns by 4 |
//!
//! Another instruction set is a file that implements [`Microkernel`](tile::Microkernel), a row of
//! [`select`], and a row of `pteron_operator::Feature`.
//!
//! B is packed once, in a layout that all microkernels of an instruction set read: panels of 16 columns, in which four
//! rows of every column are adjacent, or two where 16-bit values are multiplied. 4-bit values stay packed two a byte in
//! memory and are widened in registers, or once for all rows of a block. A is copied a block at a time, as bytes of the
//! signedness that instructions multiply: unsigned ones, on AArch64 signed ones. Values of the other and their zero
//! points are offset by 128. Rows that are patches of an image overlap in the copy, if tiles can read rows in segments:
//! AMX can do so only if segments are whole steps.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_columns;
#[cfg(target_arch = "x86_64")]
mod avx512vnni;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
mod batch;
pub(crate) mod columns;
#[cfg(target_arch = "aarch64")]
mod dotprod;
pub(crate) mod driver;
pub(crate) mod epilogue;
pub(crate) mod finish;
mod finish_groups;
#[cfg(target_arch = "aarch64")]
mod i8mm;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod pack;
#[cfg(not(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128"))))]
mod portable;
pub(crate) mod select;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use batch::{QuantizedMatrices, qgemm_batch};
pub use epilogue::{QuantizedEpilogue, QuantizedOut};
pub use pack::{PackedWeights, WeightBits, Weights};

use super::isa::Isa;
use super::quantize::Affine;
use driver::{Fill, Job, RowLayout};
use epilogue::Params;
use pteron_pool::Pool;
use select::SupportedKernel;

/// The left operand of a product: `rows x cols` 8-bit values, row-major.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    bytes: &'a [u8],
    signed: bool,
    rows: usize,
    cols: usize,
    params: Params<'a>,
}

impl<'a> QuantizedRows<'a> {
    /// The quantized values are `i8` if `signed`, else `u8`. All rows share one scale and zero point.
    ///
    /// # Panics
    /// If `bytes` is too short.
    pub fn new(bytes: &'a [u8], signed: bool, rows: usize, cols: usize, params: Affine) -> Self {
        Self::with_params(bytes, signed, rows, cols, Params::All(params))
    }

    /// As [`Self::new`], with a scale and zero point for each row.
    ///
    /// # Panics
    /// If `bytes` is too short, or the number of parameters is not `rows`.
    pub fn with_row_params(
        bytes: &'a [u8],
        signed: bool,
        rows: usize,
        cols: usize,
        params: &'a [Affine],
    ) -> Self {
        assert_eq!(params.len(), rows, "parameters of {rows} rows");
        Self::with_params(bytes, signed, rows, cols, Params::Rows(params))
    }

    fn with_params(bytes: &'a [u8], signed: bool, rows: usize, cols: usize, params: Params<'a>) -> Self {
        let fits = rows.checked_mul(cols).is_some_and(|n| n <= bytes.len());
        assert!(fits, "a {rows}x{cols} matrix in {} bytes", bytes.len());
        Self { bytes, signed, rows, cols, params }
    }
}

/// `out = epilogue(a b)`: `a` is `m x k`, `b` is `k x n`, `out` is `m x n`; any of them may be zero. Runs in parallel
/// on `pool` if the product is large enough.
///
/// # Panics
/// If the shapes do not match.
pub fn qgemm(
    pool: &Pool,
    isa: Isa,
    a: QuantizedRows<'_>,
    b: &PackedWeights,
    out: QuantizedOut<'_>,
    epilogue: &QuantizedEpilogue<'_>,
) {
    qgemm_with(SupportedKernel::fastest(isa), pool, isa, a, b, out, epilogue);
}

fn qgemm_with(
    kernel: SupportedKernel,
    pool: &Pool,
    isa: Isa,
    a: QuantizedRows<'_>,
    b: &PackedWeights,
    out: QuantizedOut<'_>,
    epilogue: &QuantizedEpilogue<'_>,
) {
    let (m, k, n) = (a.rows, a.cols, b.cols());
    assert_eq!(k, b.rows(), "inner dimensions of a {m}x{k} by {}x{n} product", b.rows());
    out.check(m, n);
    epilogue.check(n);
    if m == 0 || n == 0 {
        return;
    }
    let fill = DenseRows { a };
    let zero = conversion(a.signed).1;
    Job { kernel, isa, m, fill: &fill, zero, params: a.params, b, epilogue: *epilogue }.run(pool, out);
}

/// Rows that are contiguous in memory.
struct DenseRows<'a> {
    a: QuantizedRows<'a>,
}

impl Fill for DenseRows<'_> {
    fn layout(&self, k: usize) -> RowLayout<'_> {
        RowLayout::rows(k)
    }

    fn in_place(&self) -> Option<&[u8]> {
        (conversion(self.a.signed).0 == 0).then_some(self.a.bytes)
    }

    fn fill_block(&self, rows: std::ops::Range<usize>, step: usize, out: &mut [u8]) {
        let k = self.a.cols;
        if k == 0 {
            return;
        }
        let flip = conversion(self.a.signed).0;
        let from = self.a.bytes[rows.start * k..rows.end * k].chunks_exact(k);
        for (to, from) in out.chunks_mut(step).zip(from) {
            copy_flipped(&mut to[..k], from, flip);
        }
    }
}

/// How 8-bit values, which are `i8` if `signed`, else `u8`, are copied for microkernels: the bits to invert, and the
/// offset that inverting them adds to the values.
pub(crate) fn conversion(signed: bool) -> (u8, i32) {
    match (signed, cfg!(target_arch = "aarch64")) {
        (true, false) => (0x80, 128),
        (false, true) => (0x80, -128),
        (true, true) | (false, false) => (0, 0),
    }
}

/// Copies bytes from `from` to `to`, inverting the bits that are set in `flip`. The slices have equal lengths.
#[inline]
pub(crate) fn copy_flipped(to: &mut [u8], from: &[u8], flip: u8) {
    if flip == 0 {
        return to.copy_from_slice(from);
    }
    let ((to, to_rest), (from, from_rest)) = (to.as_chunks_mut::<16>(), from.as_chunks::<16>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = (u128::from_ne_bytes(*from) ^ u128::from_ne_bytes([flip; 16])).to_ne_bytes();
    }
    let ((to, to_rest), (from, from_rest)) = (to_rest.as_chunks_mut::<4>(), from_rest.as_chunks::<4>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = (u32::from_ne_bytes(*from) ^ u32::from_ne_bytes([flip; 4])).to_ne_bytes();
    }
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = from ^ flip);
}
