//! Sums of the taps of a depthwise convolution, tap by tap, in integers.

use super::super::gemm::tile::repeat;
use super::super::isa::Isa;
use super::depthwise_sums::CHANNELS;
use std::arch::aarch64::*;

/// A weight in the form in which it is multiplied.
pub(super) type Weight = i8;

/// The number of channels that are summed in registers.
const VECTOR: usize = 16;

/// The sums of a range of channels of neighbouring output pixels.
pub(super) struct Block<'a> {
    pub(super) lines: &'a [u8],
    /// The number of bytes from one pixel to the next.
    pub(super) step: usize,
    pub(super) taps: &'a [usize],
    pub(super) weights: &'a [i8],
    /// The number of weights from one tap to the next.
    pub(super) tap_step: usize,
    pub(super) channels: usize,
    pub(super) sums: &'a mut [[i32; CHANNELS]],
}

impl Block<'_> {
    /// # Panics
    /// If lines, weights or sums are too short for what is read or written.
    pub(super) fn run(self, _: Isa) {
        assert!(!self.sums.is_empty() && self.channels <= CHANNELS);
        let last = (self.sums.len() - 1) * self.step + self.taps.iter().max().unwrap_or(&0);
        assert!(last + CHANNELS <= self.lines.len(), "lines must extend past the last channel");
        assert!(
            self.taps.len().saturating_sub(1) * self.tap_step + CHANNELS <= self.weights.len(),
            "weights must extend past the last channel"
        );
        let Block { lines, step, taps, weights, tap_step, channels, sums } = self;
        for c in (0..channels).step_by(VECTOR) {
            let weights = weights[c..].as_ptr();
            let mut first = 0;
            // SAFETY: the assertions put `CHANNELS` bytes and weights at every tap in bounds, of as many pixels as there
            // are rows of sums; a vector of channels is within `CHANNELS`.
            unsafe {
                while first < sums.len() {
                    let lines = lines.as_ptr().add(first * step + c).cast();
                    let to = sums[first..].as_mut_ptr().cast::<i32>().add(c);
                    if first + 4 <= sums.len() {
                        sum_pixels::<4>(lines, step, taps, weights, tap_step, to);
                        first += 4;
                    } else {
                        sum_pixels::<1>(lines, step, taps, weights, tap_step, to);
                        first += 1;
                    }
                }
            }
        }
    }
}

/// The sums of a vector of channels of `M` pixels.
///
/// # Safety
/// At each tap, a vector of bytes can be read for each pixel, and one of weights; as many sums can be written to rows of
/// [`CHANNELS`].
#[inline(always)]
unsafe fn sum_pixels<const M: usize>(
    lines: *const i8,
    step: usize,
    taps: &[usize],
    weights: *const i8,
    tap_step: usize,
    sums: *mut i32,
) {
    // SAFETY: every machine has NEON; otherwise as the caller promises.
    unsafe {
        let mut acc = [[vdupq_n_s32(0); 4]; M];
        let mut w = weights;
        for &tap in taps {
            let weights = vld1q_s8(w);
            repeat!(M, [0 1 2 3], i => {
                let x = vld1q_s8(lines.wrapping_add(tap + i * step));
                let low = vmull_s8(vget_low_s8(x), vget_low_s8(weights));
                let high = vmull_high_s8(x, weights);
                acc[i][0] = vaddw_s16(acc[i][0], vget_low_s16(low));
                acc[i][1] = vaddw_high_s16(acc[i][1], low);
                acc[i][2] = vaddw_s16(acc[i][2], vget_low_s16(high));
                acc[i][3] = vaddw_high_s16(acc[i][3], high);
            });
            w = w.wrapping_add(tap_step);
        }
        repeat!(M, [0 1 2 3], i => {
            repeat!(4, [0 1 2 3], v => {
                vst1q_s32(sums.wrapping_add(i * CHANNELS + 4 * v), acc[i][v]);
            });
        });
    }
}
