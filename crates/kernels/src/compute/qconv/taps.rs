//! Sums of the taps of a depthwise convolution, tap by tap, in f32.

use super::super::gemm::tile::repeat;
use super::super::isa::Isa;
use super::super::qgemm::pack::PANEL;
use super::super::simd::{Op, Simd, dispatch};
use super::depthwise_sums::CHANNELS;

/// A weight in the form in which it is multiplied.
pub(super) type Weight = f32;

/// The sums of a range of channels of neighbouring output pixels.
pub(super) struct Block<'a> {
    pub(super) lines: &'a [u8],
    /// The number of bytes from one pixel to the next.
    pub(super) step: usize,
    pub(super) taps: &'a [usize],
    pub(super) weights: &'a [f32],
    /// The number of weights from one tap to the next.
    pub(super) tap_step: usize,
    pub(super) channels: usize,
    pub(super) sums: &'a mut [[i32; CHANNELS]],
}

impl Block<'_> {
    /// # Panics
    /// If lines, weights or sums are too short for what is read or written.
    pub(super) fn run(self, isa: Isa) {
        dispatch(isa, self);
    }
}

impl Op for Block<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(!self.sums.is_empty() && self.channels <= CHANNELS);
        let last = (self.sums.len() - 1) * self.step + self.taps.iter().max().unwrap_or(&0);
        assert!(last + CHANNELS <= self.lines.len(), "lines must extend past the last channel");
        assert!(
            self.taps.len().saturating_sub(1) * self.tap_step + CHANNELS <= self.weights.len(),
            "weights must extend past the last channel"
        );
        for (i, sums) in self.sums.iter_mut().enumerate() {
            let lines = self.lines[i * self.step..].as_ptr();
            let mut c = 0;
            while c < self.channels {
                let wide = c + 4 * S::LANES <= self.channels.next_multiple_of(PANEL);
                let weights = self.weights[c..].as_ptr();
                // SAFETY: the assertions put `CHANNELS` bytes and weights at every tap in bounds, and a block of
                // channels is within `CHANNELS`.
                unsafe {
                    let (lines, to) = (lines.add(c), sums.as_mut_ptr().add(c));
                    if wide {
                        sum_block::<S, 4>(s, lines, self.taps, weights, self.tap_step, to);
                    } else {
                        sum_block::<S, 1>(s, lines, self.taps, weights, self.tap_step, to);
                    }
                }
                c += if wide { 4 * S::LANES } else { S::LANES };
            }
        }
    }
}

/// The sums of `V` vectors of channels of a pixel. Those past the last channel are meaningless.
///
/// # Safety
/// `V` vectors of bytes and of weights can be read at each tap, and as many sums can be written.
#[inline(always)]
unsafe fn sum_block<S: Simd, const V: usize>(
    s: S,
    lines: *const u8,
    taps: &[usize],
    weights: *const f32,
    tap_step: usize,
    sums: *mut i32,
) {
    let mut acc = [s.splat(0.0); V];
    for (t, &at) in taps.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe {
            repeat!(V, [0 1 2 3], v => {
                let x = s.load_bytes(lines.add(at + v * S::LANES));
                let w = s.load(weights.add(t * tap_step + v * S::LANES));
                acc[v] = s.mul_add(x, w, acc[v]);
            });
        }
    }
    repeat!(V, [0 1 2 3], v => {
        // SAFETY: as the caller promises.
        unsafe { s.store_int(sums.add(v * S::LANES), s.round(acc[v])) };
    });
}
