//! The transforms of weights, input tiles and products for [`Winograd`](super::winograd::Winograd), in vectors of
//! channels.
//!
//! Along one dimension the three taps `g` become `[g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2]`, four input
//! pixels `d` become `[d0 - d2, d1 + d2, d2 - d1, d1 - d3]`, and of four products `m` the two output pixels are
//! `[m0 + m1 + m2, m1 - m2 - m3]`. Along two dimensions each is done to columns, then to rows.

use super::super::mat::MatMut;
use super::super::simd::{Op, Simd};

/// The number of points of a transformed tile: 4 x 4.
pub(super) const POINTS: usize = 16;
/// The number of taps of a kernel: 3 x 3.
pub(super) const TAPS: usize = 9;

/// Transforms three vectors of taps to four vectors of points.
#[inline(always)]
fn transform_taps<S: Simd>(s: S, g: [S::F; 3]) -> [S::F; 4] {
    let half = s.splat(0.5);
    let (ends, middle) = (s.mul(half, s.add(g[0], g[2])), s.mul(half, g[1]));
    [g[0], s.add(ends, middle), s.sub(ends, middle), g[2]]
}

/// Transforms four vectors of pixels to four vectors of points.
#[inline(always)]
fn transform_pixels<S: Simd>(s: S, d: [S::F; 4]) -> [S::F; 4] {
    [s.sub(d[0], d[2]), s.add(d[1], d[2]), s.sub(d[2], d[1]), s.sub(d[1], d[3])]
}

/// Transforms four vectors of products, one for each point, to two vectors of pixels.
#[inline(always)]
fn transform_products<S: Simd>(s: S, m: [S::F; 4]) -> [S::F; 2] {
    [s.add(s.add(m[0], m[1]), m[2]), s.sub(s.sub(m[1], m[2]), m[3])]
}

/// Loads a vector, or only its first `left` elements if it has more.
///
/// # Safety
/// `left` elements, or a whole vector if that is less, can be read at `p`.
#[inline(always)]
unsafe fn load_up_to<S: Simd>(s: S, p: *const f32, left: usize) -> S::F {
    // SAFETY: as the caller promises.
    unsafe { if left >= S::LANES { s.load(p) } else { s.load_first(p, left) } }
}

/// Stores a vector, or only its first `left` elements if it has more.
///
/// # Safety
/// `left` elements, or a whole vector if that is less, can be written at `p`.
#[inline(always)]
unsafe fn store_up_to<S: Simd>(s: S, p: *mut f32, left: usize, a: S::F) {
    // SAFETY: as the caller promises.
    unsafe { if left >= S::LANES { s.store(p, a) } else { s.store_first(p, left, a) } }
}

/// Transforms the weights of one input channel and consecutive output channels.
pub(super) struct WeightTransform<'a> {
    /// The weights, tap by tap, one for each output channel; the number of channels is a multiple of the lanes.
    pub(super) taps: &'a [f32],
    /// The transformed weights, from the first point's on.
    pub(super) out: &'a mut [f32],
    /// The number of elements of `out` from one point to the next.
    pub(super) pitch: usize,
}

impl Op for WeightTransform<'_> {
    /// Whether all transformed weights are finite.
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let n = self.taps.len() / TAPS;
        assert!(n.is_multiple_of(S::LANES) && self.out.len() >= (POINTS - 1) * self.pitch + n);
        let mut check = s.splat(0.0);
        for c in (0..n).step_by(S::LANES) {
            let mut columns = [[s.splat(0.0); 4]; 3];
            for (x, column) in columns.iter_mut().enumerate() {
                let mut g = [s.splat(0.0); 3];
                for (y, g) in g.iter_mut().enumerate() {
                    // SAFETY: the vector at `c` is within the `n` weights of each tap.
                    *g = unsafe { s.load(self.taps.as_ptr().add((3 * y + x) * n + c)) };
                }
                *column = transform_taps(s, g);
            }
            let [a, b, d] = columns;
            for (y, ((&a, &b), &d)) in a.iter().zip(&b).zip(&d).enumerate() {
                for (x, &u) in transform_taps(s, [a, b, d]).iter().enumerate() {
                    check = s.mul_add(u, s.splat(0.0), check);
                    // SAFETY: asserted above.
                    unsafe { s.store(self.out.as_mut_ptr().add((4 * y + x) * self.pitch + c), u) };
                }
            }
        }
        s.sum(check) == 0.0
    }
}

/// The taps of a kernel, reconstructed from its [transformed](WeightTransform) points; exact up to rounding.
pub(super) fn taps_of(points: [f32; POINTS]) -> [f32; TAPS] {
    let gather = |u: [f32; 4]| [u[0], u[1] - u[2], u[3]];
    let columns: [[f32; 3]; 4] =
        std::array::from_fn(|x| gather([points[x], points[4 + x], points[8 + x], points[12 + x]]));
    let rows: [[f32; 3]; 3] = std::array::from_fn(|y| gather(columns.map(|column| column[y])));
    std::array::from_fn(|t| rows[t / 3][t % 3])
}

/// Transforms the input of neighbouring tiles in one line of tiles, in all channels.
pub(super) struct InputTransform<'a> {
    /// A channels-last image.
    pub(super) image: &'a [f32],
    /// The numbers of lines and columns of the image.
    pub(super) size: [usize; 2],
    pub(super) channels: usize,
    /// The line and column at which the first tile begins; pixels outside the image are zero.
    pub(super) first: [isize; 2],
    /// The number of tiles; each begins two columns after the one before.
    pub(super) count: usize,
    /// The transformed input, from the first point of the first tile on; tiles are `channels` elements apart.
    pub(super) out: &'a mut [f32],
    /// The number of elements of `out` from one point to the next.
    pub(super) pitch: usize,
}

/// Zeros that are read instead of lines outside the image.
static ZEROS: [f32; 16] = [0.0; 16];

impl Op for InputTransform<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        const { assert!(S::LANES <= ZEROS.len()) };
        let ([height, width], channels) = (self.size, self.channels);
        assert!(self.image.len() >= height * width * channels);
        assert!(self.out.len() >= (POINTS - 1) * self.pitch + self.count * channels);
        // A line outside the image is one pixel of one vector, with strides of zero.
        let lines: [PixelLine; 4] = std::array::from_fn(|i| {
            let y = self.first[0].wrapping_add(i as isize) as usize;
            if y < height {
                (self.image.as_ptr().wrapping_add(y * width * channels), channels, 1)
            } else {
                (ZEROS.as_ptr(), 0, 0)
            }
        });
        for c in (0..channels).step_by(S::LANES) {
            let left = channels - c;
            let column = Column { lines: &lines, width, c, left };
            let mut x = self.first[1];
            // SAFETY: asserted above: the lines have `width` pixels of `left` elements from `c` on.
            let mut before = unsafe { [column.load_pixels(s, x), column.load_pixels(s, x.wrapping_add(1))] };
            for i in 0..self.count {
                // SAFETY: as above.
                let after = unsafe {
                    [column.load_pixels(s, x.wrapping_add(2)), column.load_pixels(s, x.wrapping_add(3))]
                };
                let out = self.out.as_mut_ptr().wrapping_add(i * channels + c);
                for y in 0..4 {
                    let v = transform_pixels(s, [before[0][y], before[1][y], after[0][y], after[1][y]]);
                    for (x, &v) in v.iter().enumerate() {
                        // SAFETY: asserted above: these are the tile's channels from `c` on.
                        unsafe { store_up_to(s, out.wrapping_add((4 * y + x) * self.pitch), left, v) };
                    }
                }
                before = after;
                x = x.wrapping_add(2);
            }
        }
    }
}

/// Address of a line of pixels, pixel stride and channel stride.
type PixelLine = (*const f32, usize, usize);

/// A range of channels of four lines of pixels.
struct Column<'a> {
    lines: &'a [PixelLine; 4],
    width: usize,
    /// The first channel.
    c: usize,
    /// The number of channels from `c` on.
    left: usize,
}

impl Column<'_> {
    /// The four pixels in column `x`, transformed; zeros if the column is outside the image.
    ///
    /// # Safety
    /// Each line has `width` pixels, with `left` elements from the channel `c` on.
    #[inline(always)]
    unsafe fn load_pixels<S: Simd>(&self, s: S, x: isize) -> [S::F; 4] {
        let mut d = [s.splat(0.0); 4];
        let x = x as usize;
        if x < self.width {
            for (d, &(line, pixel, channel)) in d.iter_mut().zip(self.lines) {
                // SAFETY: as the caller promises; a line outside the image is a vector of zeros.
                *d = unsafe { load_up_to(s, line.wrapping_add(x * pixel + self.c * channel), self.left) };
            }
        }
        transform_pixels(s, d)
    }
}

/// Transforms the products of neighbouring tiles in one line of tiles to pixels.
pub(super) struct OutputTransform<'a> {
    /// The products, from the first point of the first tile on; tiles are as far apart as `out` has columns.
    pub(super) products: &'a [f32],
    /// The number of elements of `products` from one point to the next.
    pub(super) pitch: usize,
    /// The two lines of pixels, one row a pixel. The second may be empty; in both, the last tile may lack its second
    /// pixel.
    pub(super) out: [MatMut<'a>; 2],
    /// The bias: one value for each column of `out`.
    pub(super) bias: Option<&'a [f32]>,
    /// The two lines of the residual, each from the first tile's first pixel on; pixels are `residual_step` apart.
    pub(super) residual: [Option<&'a [f32]>; 2],
    pub(super) residual_step: usize,
    /// The bounds that results are clamped to; `None` if they are not clamped.
    pub(super) bounds: Option<(f32, f32)>,
}

impl Op for OutputTransform<'_> {
    /// Whether all sums are finite.
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> bool {
        let (width, channels) = (self.out[0].rows(), self.out[0].cols());
        let count = width.div_ceil(2);
        if count == 0 || channels == 0 {
            return true;
        }
        assert!(self.products.len() >= (POINTS - 1) * self.pitch + count * channels);
        assert!(self.bias.is_none_or(|b| b.len() >= channels));
        let steps = self.out.each_ref().map(MatMut::row_stride);
        let lines = if self.out[1].rows() == 0 { 1 } else { 2 };
        for (out, residual) in self.out.iter().zip(self.residual).take(lines) {
            assert!(out.rows() == width && out.cols() == channels && out.col_stride() == 1);
            assert!(residual.is_none_or(|r| r.len() >= (width - 1) * self.residual_step + channels));
        }
        let firsts = self.out.each_mut().map(MatMut::as_mut_ptr);
        let zero = s.splat(0.0);
        let mut check = zero;
        for c in (0..channels).step_by(S::LANES) {
            let left = channels - c;
            // SAFETY: asserted above, as is everything below: these are the channels from `c` on.
            let bias = self.bias.map(|b| unsafe { load_up_to(s, b.as_ptr().wrapping_add(c), left) });
            for i in 0..count {
                let at = self.products.as_ptr().wrapping_add(i * channels + c);
                let mut columns = [[zero; 2]; 4];
                for (x, column) in columns.iter_mut().enumerate() {
                    let mut m = [zero; 4];
                    for (y, m) in m.iter_mut().enumerate() {
                        // SAFETY: as above.
                        *m = unsafe { load_up_to(s, at.wrapping_add((4 * y + x) * self.pitch), left) };
                    }
                    *column = transform_products(s, m);
                }
                for y in 0..lines {
                    let row =
                        transform_products(s, [columns[0][y], columns[1][y], columns[2][y], columns[3][y]]);
                    for (pixel, &sum) in (2 * i..width).zip(&row) {
                        check = s.mul_add(sum, zero, check);
                        let mut sum = sum;
                        if let Some(bias) = bias {
                            sum = s.add(sum, bias);
                        }
                        if let Some(residual) = self.residual[y] {
                            let at = residual.as_ptr().wrapping_add(pixel * self.residual_step + c);
                            // SAFETY: as above.
                            sum = s.add(sum, unsafe { load_up_to(s, at, left) });
                        }
                        if let Some((low, high)) = self.bounds {
                            sum = s.clamp(sum, s.splat(low), s.splat(high));
                        }
                        // SAFETY: as above.
                        unsafe { store_up_to(s, firsts[y].wrapping_add(pixel * steps[y] + c), left, sum) };
                    }
                }
            }
        }
        s.sum(check) == 0.0
    }
}
