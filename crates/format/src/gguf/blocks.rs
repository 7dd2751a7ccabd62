//! Dequantization of blocks.

use super::TensorKind;
use pteron_tensor::f16;

/// The number of elements in a super-block of the K-quant kinds.
const LARGE: usize = 256;

impl TensorKind {
    /// Whether [`Self::dequantize`] supports this kind.
    pub fn is_dequantized(self) -> bool {
        decoder(self).is_some()
    }

    /// Appends the dequantized values of whole blocks, in order. Returns `false` and appends nothing if the kind is not
    /// supported.
    pub fn dequantize(self, blocks: &[u8], numbers: &mut Vec<f32>) -> bool {
        let Some(decode) = decoder(self) else { return false };
        let elements = self.elements as usize;
        for block in blocks.chunks_exact(self.bytes as usize) {
            let start = numbers.len();
            numbers.resize(start + elements, 0.0);
            decode(block, &mut numbers[start..]);
        }
        true
    }
}

/// Decodes the bytes of a block to its values.
type Decode = fn(&[u8], &mut [f32]);

fn decoder(kind: TensorKind) -> Option<Decode> {
    Some(match kind.name {
        "Q4_0" => |block, out| dequantize_small(block, out, 2, |q| q - 8, 0),
        "Q4_1" => |block, out| dequantize_small(block, out, 4, |q| q, 0),
        "Q5_0" => |block, out| dequantize_small(block, out, 2, |q| q - 16, 4),
        "Q5_1" => |block, out| dequantize_small(block, out, 4, |q| q, 4),
        "Q8_0" => |block, out| {
            let scale = read_f16(block, 0);
            for (out, &q) in out.iter_mut().zip(&block[2..]) {
                *out = scale * f32::from(q as i8);
            }
        },
        "Q4_K" => |block, out| dequantize_q4k_or_q5k(block, out, false),
        "Q5_K" => |block, out| dequantize_q4k_or_q5k(block, out, true),
        "Q6_K" => dequantize_q6k,
        _ => return None,
    })
}

/// Reads the f16 at byte `at` of a block, as f32.
fn read_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Decodes a small block: a scale; if `head` is 4, also a minimum; if `high` is 4, the fifth bits of all elements; then
/// four bits per element, with the first half of the elements in the low nibbles.
fn dequantize_small(block: &[u8], out: &mut [f32], head: usize, centred: fn(i32) -> i32, high: usize) {
    let scale = read_f16(block, 0);
    let minimum = if head == 4 { read_f16(block, 2) } else { 0.0 };
    let fifth: u32 = match high {
        0 => 0,
        _ => u32::from_le_bytes([block[head], block[head + 1], block[head + 2], block[head + 3]]),
    };
    let (low, up) = out.split_at_mut(16);
    for (i, &byte) in block[head + high..].iter().enumerate() {
        let bit = |at: usize| ((fifth >> at & 1) << 4) as i32;
        low[i] = scale * centred(i32::from(byte & 15) | bit(i)) as f32 + minimum;
        up[i] = scale * centred(i32::from(byte >> 4) | bit(i + 16)) as f32 + minimum;
    }
}

/// The 6-bit scale and the 6-bit minimum of eighth `i` of a large block, from twelve packed bytes.
fn scale_and_minimum(packed: &[u8], i: usize) -> (f32, f32) {
    let (scale, minimum) = match i {
        0..4 => (packed[i] & 63, packed[i + 4] & 63),
        _ => (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4),
    };
    (scale.into(), minimum.into())
}

/// Decodes a large block with four or five bits per element: the scales of all scales and of all minimums; the scale
/// and minimum of each eighth; the fifth bits (bit `i` of a byte belongs to eighth `i`); and four bits per element,
/// with two eighths in each 32 bytes.
fn dequantize_q4k_or_q5k(block: &[u8], out: &mut [f32], five: bool) {
    let (scale, minimum) = (read_f16(block, 0), read_f16(block, 2));
    let packed = &block[4..16];
    let (fifth, low) = if five { block[16..].split_at(32) } else { (&[][..], &block[16..]) };
    for (i, out) in out.chunks_exact_mut(LARGE / 8).enumerate() {
        let (s, m) = scale_and_minimum(packed, i);
        let (s, m) = (scale * s, minimum * m);
        for (j, out) in out.iter_mut().enumerate() {
            let byte = low[i / 2 * 32 + j];
            let four = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
            let bit = fifth.get(j).map_or(0, |bits| (bits >> i & 1) << 4);
            *out = s * f32::from(four | bit) - m;
        }
    }
}

/// Decodes a large block with six bits per element: the low four bits of all elements, their high two bits, a scale for
/// each sixteenth, and the scale of the scales. Each half of the elements consists of four runs of 32. The low bits of
/// runs 0 and 2 share bytes, as do those of runs 1 and 3; the high bits of all four runs share bytes.
fn dequantize_q6k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, scale) = rest.split_at(16);
    let scale = read_f16(scale, 0);
    for (i, out) in out.iter_mut().enumerate() {
        let (part, run, j) = (i / 128, i % 128 / 32, i % 32);
        let byte = low[part * 64 + run % 2 * 32 + j];
        let four = if run < 2 { byte & 15 } else { byte >> 4 };
        let two = high[part * 32 + j] >> (2 * run) & 3;
        let q = i32::from(four | two << 4) - 32;
        let own = scales[part * 8 + run * 2 + j / 16] as i8;
        *out = scale * f32::from(own) * q as f32;
    }
}
