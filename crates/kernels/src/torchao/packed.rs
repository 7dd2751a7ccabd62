//! Packed weights of products.

use super::bits::Layout;
use super::header::{Header, Kind};
use crate::compute::{Epilogue, MatMut, MatRef, gemm};
use pteron_operator::{Error, KernelContext, Result, ensure};
use pteron_pool::Pool;

/// The largest number of rows in a strip.
const MAX_HEIGHT: usize = 8;
/// The number of values that are packed together: `height` rows of `RUN / height` columns.
const RUN: usize = 128;

/// The scales, zero points and tables that a strip holds besides its values.
enum Encoding {
    /// Each group of columns ends with a scale for each row, a sum for each row that is not needed here and, if `zeros`
    /// is set, a zero point for each row. Values are signed, or indices into a table of signed values before the first
    /// group.
    Affine { zeros: bool, table: bool },
    /// Values are indices into a table of sixteen float32 before the first column. If `scales` is set, each group of
    /// columns starts with a scale for each row.
    Table { scales: bool },
}

/// The packed weights of a product with `n` outputs and `k` inputs, divided into strips of rows.
pub(crate) struct Packed<'a> {
    form: Encoding,
    layout: Layout,
    bits: u32,
    n: usize,
    k: usize,
    group: usize,
    bias: bool,
    height: usize,
    strip_bytes: usize,
    strips: &'a [u8],
}

impl<'a> Packed<'a> {
    /// Reads weights of `bits` bits, packed for products with activations of eight bits.
    pub(crate) fn read_linear(name: &str, bytes: &'a [u8], bits: u32, sizes: [usize; 3]) -> Result<Self> {
        let header = Header::read(name, bytes)?;
        let table = match header.kind {
            Kind::Linear => false,
            Kind::LinearWithTables if bits <= 4 => true,
            other => {
                return Err(Error::invalid(format!("{name}: packed as {other:?}, not for this operator")));
            }
        };
        header.expect_params(name, 0, &[bits as i32])?;
        header.expect_params(name, 3, &[8, 16, 2])?;
        let form = Encoding::Affine { zeros: header.params[1] != 0, table };
        Self::new(name, &header, form, bits, 8, header.params[2] != 0, sizes)
    }

    /// Reads weights that are indices of `bits` bits into tables of float32.
    pub(super) fn read_groupwise(
        name: &str,
        bytes: &'a [u8],
        bits: u32,
        [n, k, group, table_group]: [usize; 4],
    ) -> Result<Self> {
        let header = Header::read(name, bytes)?;
        let kind = header.kind;
        ensure!(kind == Kind::Groupwise, "{name}: packed as {kind:?}, not for this operator");
        let word = |n: usize| i32::try_from(n).unwrap_or(-1);
        header.expect_params(name, 0, &[bits as i32, word(group), word(table_group)])?;
        header.expect_params(name, 5, &[4, 32, 8])?;
        let form = Encoding::Table { scales: header.params[3] != 0 };
        Self::new(name, &header, form, bits, 4, header.params[4] != 0, [n, k, group])
    }

    fn new(
        name: &str,
        header: &Header<'a>,
        form: Encoding,
        bits: u32,
        height: usize,
        bias: bool,
        [n, k, group]: [usize; 3],
    ) -> Result<Self> {
        let columns = RUN / height;
        ensure!(
            n > 0 && k > 0 && group > 0 && group.is_multiple_of(columns) && k.is_multiple_of(group),
            "{name}: {n} rows of {k} columns in groups of {group}; a group is a multiple of {columns} and a divisor of {k}"
        );
        // The sizes are attributes that can have any value, so they are multiplied without overflow.
        let (wide, groups, rows) = (k as u128, (k / group) as u128, height as u128);
        let beside = match form {
            Encoding::Affine { zeros, table } => {
                groups * rows * if zeros { 12 } else { 8 } + if table { 16 } else { 0 }
            }
            Encoding::Table { scales } => 64 + if scales { groups * rows * 4 } else { 0 },
        };
        let strip = wide * rows * u128::from(bits) / 8 + beside + if bias { rows * 4 } else { 0 };
        let (needed, actual) = (strip * n.div_ceil(height) as u128, header.payload.len());
        ensure!(
            needed <= actual as u128,
            "{name}: {n} rows of {k} columns take {needed} bytes after the header, found {actual}"
        );
        let layout = Layout::new(bits, RUN);
        let strip_bytes = strip as usize;
        Ok(Self { form, layout, bits, n, k, group, bias, height, strip_bytes, strips: header.payload })
    }

    /// The number of rows of a strip.
    pub(super) fn height(&self) -> usize {
        self.height
    }

    /// Dequantizes a strip to rows of `k` elements. Returns the biases of the rows, zeros if there are none.
    pub(super) fn dequantize(&self, strip: usize, rows: &mut [f32]) -> [f32; MAX_HEIGHT] {
        let mut bytes = &self.strips[strip * self.strip_bytes..][..self.strip_bytes];
        let (mut values, mut table) = ([0; RUN], [0.0; 16]);
        let columns = RUN / self.height;
        match self.form {
            Encoding::Affine { table: true, .. } => {
                let entries = split_off_bytes(&mut bytes, 16);
                table.iter_mut().zip(entries).for_each(|(to, &q)| *to = f32::from(q as i8));
            }
            Encoding::Affine { .. } => {}
            Encoding::Table { .. } => table = read_floats(split_off_bytes(&mut bytes, 64)),
        }
        for start in (0..self.k).step_by(self.group) {
            let mut scales = [1.0; MAX_HEIGHT];
            if let Encoding::Table { scales: true } = self.form {
                scales = read_floats(split_off_bytes(&mut bytes, 4 * self.height));
            }
            for column in (start..start + self.group).step_by(columns) {
                self.layout.unpack(split_off_bytes(&mut bytes, RUN / 8 * self.bits as usize), &mut values);
                self.write_run(&values, &table, column, rows);
            }
            let mut zeros = [0.0; MAX_HEIGHT];
            if let Encoding::Affine { zeros: has_zeros, .. } = self.form {
                scales = read_floats(split_off_bytes(&mut bytes, 4 * self.height));
                split_off_bytes(&mut bytes, 4 * self.height);
                if has_zeros {
                    let numbers = split_off_bytes(&mut bytes, 4 * self.height).chunks_exact(4);
                    let numbers = numbers.map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32);
                    zeros.iter_mut().zip(numbers).for_each(|(to, zero)| *to = zero);
                }
            }
            for (r, row) in rows.chunks_exact_mut(self.k).enumerate() {
                let group = &mut row[start..start + self.group];
                group.iter_mut().for_each(|x| *x = (*x - zeros[r]) * scales[r]);
            }
        }
        if self.bias { read_floats(split_off_bytes(&mut bytes, 4 * self.height)) } else { [0.0; MAX_HEIGHT] }
    }

    /// Writes a run of values to the columns from `column` on. A run has a few columns of each row, then the next columns
    /// of each row.
    fn write_run(&self, values: &[u8; RUN], table: &[f32; 16], column: usize, rows: &mut [f32]) {
        let few = if self.height == 8 { 8 } else { 4 };
        for (i, values) in values.chunks_exact(few).enumerate() {
            let (row, at) = (i % self.height, column + i / self.height * few);
            let to = &mut rows[row * self.k + at..][..few];
            match self.form {
                Encoding::Affine { table: false, .. } => {
                    let low = if self.bits == 8 { 0 } else { 1 << (self.bits - 1) };
                    to.iter_mut()
                        .zip(values)
                        .for_each(|(to, &v)| *to = f32::from((v as i8).wrapping_sub(low)));
                }
                _ => to.iter_mut().zip(values).for_each(|(to, &v)| *to = table[usize::from(v & 15)]),
            }
        }
    }

    /// `x w^T + bias` for `x` of rows of `k` elements. Strips are divided among the threads, a few at a time, so that
    /// the dequantized weights take little memory.
    pub(crate) fn multiply(&self, ctx: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
        const STRIPS_OF_A_THREAD: usize = 4;
        let (m, h, count) = (x.len() / self.k.max(1), self.height, self.n.div_ceil(self.height));
        if m == 0 || self.k == 0 {
            return Ok(());
        }
        let batch = count.min(ctx.pool().threads() * STRIPS_OF_A_THREAD).max(1);
        // A strip's dequantized rows, its part of the product, and its biases.
        let part = h.saturating_mul(self.k.saturating_add(m)).saturating_add(MAX_HEIGHT);
        let mut work = ctx.scratch::<f32>(batch.saturating_mul(part))?;
        let isa = crate::support::isa(ctx);
        for first in (0..count).step_by(batch) {
            let now = batch.min(count - first);
            ctx.pool().parallel_chunks_mut(&mut work[..now * part], part, 1, &|i, work| {
                let (rows, work) = work.split_at_mut(h * self.k);
                let (sums, biases) = work.split_at_mut(h * m);
                biases.copy_from_slice(&self.dequantize(first + i, rows));
                let (a, b) = (MatRef::new(x, m, self.k), MatRef::new(rows, h, self.k).t());
                gemm(Pool::alone(), isa, a, b, MatMut::new(sums, m, h), &Epilogue::NONE);
            });
            for (i, work) in work[..now * part].chunks_exact(part).enumerate() {
                let (sums, biases) = work[h * self.k..].split_at(h * m);
                let start = (first + i) * h;
                let width = h.min(self.n - start);
                for (out, sums) in out.chunks_exact_mut(self.n).zip(sums.chunks_exact(h)) {
                    let each = out[start..start + width].iter_mut().zip(sums).zip(biases);
                    each.for_each(|((out, sum), bias)| *out = sum + bias);
                }
            }
        }
        Ok(())
    }
}

/// The next bytes of a strip. `Packed::new` has compared the length of all strips with that of the payload.
fn split_off_bytes<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(count);
    *bytes = rest;
    first
}

/// Reads little-endian float32 values; missing ones are 0.
fn read_floats<const N: usize>(bytes: &[u8]) -> [f32; N] {
    let mut all = [0.0; N];
    let words = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    all.iter_mut().zip(words).for_each(|(to, x)| *to = x);
    all
}

#[cfg(test)]
mod tests {
    use super::Packed;

    fn packed(words: &[i32], payload: usize) -> Vec<u8> {
        let mut words = words.to_vec();
        words.resize(16, 0);
        let header = words.iter().flat_map(|word| word.to_le_bytes());
        header.chain(std::iter::repeat_n(0x5a, payload)).collect()
    }

    /// Weights that are accepted are in bounds of their bytes, whatever sizes the arguments give.
    #[test]
    fn sizes_are_checked_against_the_bytes() {
        const SIZES: [usize; 12] =
            [0, 1, 4, 8, 16, 31, 32, 64, 1 << 31, 1 << (usize::BITS - 2), isize::MAX as usize, usize::MAX];
        let mut accepted = 0;
        for bits in [1, 3, 4, 8] {
            for (zeros, bias) in [(0, 0), (1, 1)] {
                let linear = packed(&[6712, 1, bits as i32, zeros, bias, 8, 16, 2], 4096);
                let tables = packed(&[6712, 4, bits as i32, zeros, bias, 8, 16, 2], 4096);
                for (n, k, group) in SIZES
                    .into_iter()
                    .flat_map(|n| SIZES.into_iter().flat_map(move |k| SIZES.map(|group| (n, k, group))))
                {
                    for bytes in [&linear, &tables] {
                        let Ok(weights) = Packed::read_linear("w", bytes, bits, [n, k, group]) else {
                            continue;
                        };
                        let mut rows = vec![0.0; 8 * k];
                        (0..n.div_ceil(8)).for_each(|strip| _ = weights.dequantize(strip, &mut rows));
                        accepted += 1;
                    }
                }
            }
        }
        assert!(accepted > 0);
    }

    #[test]
    fn other_packings_are_refused() {
        for (words, reason) in [
            (&[6711, 1, 4, 0, 0, 8, 16, 2][..], "not packed by torchao"),
            (&[6712, 3, 4, 0, 0, 8, 16, 2], "KleidiAI"),
            (&[6712, 9, 4, 0, 0, 8, 16, 2], "unknown layout 9"),
            (&[6712, 2, 1, 4, 32, 128], "packed as Embedding"),
            (&[6712, 1, 5, 0, 0, 8, 16, 2], "[5]"),
            (&[6712, 1, 4, 0, 0, 4, 16, 2], "[4, 16, 2]"),
        ] {
            let Err(e) = Packed::read_linear("w", &packed(words, 4096), 4, [8, 32, 32]) else {
                panic!("{reason}")
            };
            assert!(e.to_string().contains(reason), "{e}");
        }
        let Err(e) = Packed::read_linear("w", &packed(&[6712, 1, 4, 0, 0, 8, 16, 2], 100), 4, [8, 32, 32])
        else {
            panic!("100 bytes are too few")
        };
        assert!(e.to_string().contains("take 192 bytes"), "{e}");
    }
}
