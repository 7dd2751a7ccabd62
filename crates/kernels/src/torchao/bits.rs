//! Blocks of packed values of one to eight bits.
//!
//! A block is a matrix of `lanes` columns. Its packed bytes are the rows of one matrix, its values those of another, and
//! every column is packed by itself: bits of a value of the column are in bits of bytes of the same column. So all
//! layouts are lists of such pieces, and a block is unpacked by vector instructions over its columns.

use smallvec::SmallVec;

/// Bits `low..low + bits` of each value in row `value` are stored in bits `at..at + bits` of the byte in row `byte`.
#[derive(Debug, Clone, Copy)]
struct Piece {
    value: usize,
    low: u32,
    bits: u32,
    byte: usize,
    at: u32,
}

const fn piece(value: usize, low: u32, bits: u32, byte: usize, at: u32) -> Piece {
    Piece { value, low, bits, byte, at }
}

/// How blocks of values, all of the same number of bits, are packed into bytes.
pub(super) struct Layout {
    lanes: usize,
    pieces: SmallVec<[Piece; 16]>,
    /// The number of rows of values in a block; `bytes` is the number of rows of bytes.
    rows: usize,
    bytes: usize,
}

impl Layout {
    /// The layout of runs of 32, 64 or 128 values of one to eight bits.
    pub(super) fn new(bits: u32, run: usize) -> Self {
        let wide = match run {
            128 => 16,
            64 => 8,
            _ => 1,
        };
        let (lanes, pieces): (usize, SmallVec<[Piece; 16]>) = match (bits, run) {
            (1, 64) => (
                8,
                [3, 7, 2, 6, 1, 5, 0, 4].iter().enumerate().map(|(v, &at)| piece(v, 0, 1, 0, at)).collect(),
            ),
            (1, _) => (wide, (0..8).map(|v| piece(v, 0, 1, 0, 7 - v as u32)).collect()),
            (2, _) => (if run == 32 { 8 } else { 16 }, two_bit_pieces()),
            (3, _) => (wide, three_bit_pieces()),
            (4, _) => (16, [piece(0, 0, 4, 0, 0), piece(1, 0, 4, 0, 4)].into_iter().collect()),
            (5, 64) => (
                8,
                (0..4).flat_map(|i| five_bit_pieces(i / 2 * 4 + i % 2, i / 2 * 4 + i % 2 + 2, i)).collect(),
            ),
            (5, _) => (wide, (0..4).flat_map(|i| five_bit_pieces(2 * i, 2 * i + 1, i)).collect()),
            (6, _) => (if run == 32 { 8 } else { 16 }, (0..3).flat_map(six_bit_pieces).collect()),
            (7, _) => (wide, (0..7).flat_map(seven_bit_pieces).collect()),
            _ => (32, [piece(0, 0, 8, 0, 0)].into_iter().collect()),
        };
        let count = |row: fn(&Piece) -> usize| pieces.iter().map(row).max().map_or(0, |last| last + 1);
        let (rows, bytes) = (count(|p| p.value), count(|p| p.byte));
        Self { lanes, pieces, rows, bytes }
    }

    /// The number of bytes that whole blocks of values are packed into.
    pub(super) fn packed_len(&self, values: usize) -> usize {
        values / self.rows * self.bytes
    }

    /// Unpacks whole blocks. Values are unsigned.
    pub(super) fn unpack(&self, packed: &[u8], values: &mut [u8]) {
        let (from, to) = (self.bytes * self.lanes, self.rows * self.lanes);
        for (packed, values) in packed.chunks_exact(from).zip(values.chunks_exact_mut(to)) {
            values.fill(0);
            for piece in &self.pieces {
                let mask = ((1u32 << piece.bits) - 1) as u8;
                let bytes = &packed[piece.byte * self.lanes..][..self.lanes];
                let values = &mut values[piece.value * self.lanes..][..self.lanes];
                for (value, byte) in values.iter_mut().zip(bytes) {
                    *value |= (byte >> piece.at & mask) << piece.low;
                }
            }
        }
    }
}

/// 2-bit values: four in a byte, the first value in the highest bits.
fn two_bit_pieces() -> SmallVec<[Piece; 16]> {
    (0..4).map(|v| piece(v, 0, 2, 0, 6 - 2 * v as u32)).collect()
}

/// 3-bit values: two in the low bits of each of three bytes; the last two values are divided among the remaining bits.
fn three_bit_pieces() -> SmallVec<[Piece; 16]> {
    let undivided = (0..6).map(|v| piece(v, 0, 3, v / 2, if v % 2 == 0 { 3 } else { 0 }));
    let divided = [piece(6, 0, 2, 0, 6), piece(6, 2, 1, 2, 7), piece(7, 0, 2, 1, 6), piece(7, 2, 1, 2, 6)];
    undivided.chain(divided).collect()
}

/// 5-bit values: value `whole` in the low bits of byte `i`; value `divided` in that byte's high bits and in the fifth byte.
fn five_bit_pieces(whole: usize, divided: usize, i: usize) -> [Piece; 3] {
    [piece(whole, 0, 5, i, 0), piece(divided, 0, 3, i, 5), piece(divided, 3, 2, 4, 2 * i as u32)]
}

/// 6-bit values: value `i` in the low bits of byte `i`, whose high bits hold two bits of the fourth value.
fn six_bit_pieces(i: usize) -> [Piece; 2] {
    [piece(i, 0, 6, i, 0), piece(3, 2 * i as u32, 2, i, 6)]
}

/// 7-bit values: value `i` in the low bits of byte `i`, whose highest bit holds one bit of the eighth value.
fn seven_bit_pieces(i: usize) -> [Piece; 2] {
    [piece(i, 0, 7, i, 0), piece(7, i as u32, 1, i, 7)]
}

#[cfg(test)]
mod tests {
    use super::Layout;

    /// Each packed bit is one bit of one value: a block with one packed bit set has one value, a power of two, and no two
    /// blocks have the same.
    #[test]
    fn packed_bits_and_bits_of_values_correspond() {
        for bits in 1..=8 {
            for run in [32, 64, 128] {
                let layout = Layout::new(bits, run);
                let mut bits_seen = std::collections::HashSet::new();
                for bit in 0..run * bits as usize {
                    let (mut packed, mut values) = (vec![0; run * bits as usize / 8], vec![0; run]);
                    packed[bit / 8] = 1 << (bit % 8);
                    layout.unpack(&packed, &mut values);
                    let at: Vec<usize> = (0..run).filter(|&v| values[v] != 0).collect();
                    assert_eq!(at.len(), 1, "{bits} bits, a run of {run}, bit {bit}");
                    assert!(values[at[0]].is_power_of_two() && u32::from(values[at[0]]) < 1 << bits);
                    assert!(bits_seen.insert((at[0], values[at[0]])));
                }
            }
        }
    }
}
