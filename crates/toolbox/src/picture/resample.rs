//! Resizes pictures as Pillow's antialiased bilinear filter does: a triangle filter whose support is a pixel of the
//! smaller picture, applied horizontally, then vertically, with rounding to bytes after each pass. (Pillow 13 and later
//! runs the vertical pass first where the height shrinks much more than the width, which can change a byte by one.)

/// Fraction bits of a fixed-point weight; a pixel's sum of products fits in 32 bits.
const FRACTION: u32 = 32 - 8 - 2;

/// A picture: rows of pixels of interleaved channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pixels {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) channels: usize,
    pub(super) bytes: Vec<u8>,
}

impl Pixels {
    /// Reserves memory for the bytes of a picture. The error gives the picture's size.
    fn reserve(width: usize, height: usize, channels: usize) -> Result<Vec<u8>, String> {
        let bytes = width.saturating_mul(height).saturating_mul(channels);
        let mut room = Vec::new();
        let no_room =
            |_| format!("there is no memory for a picture of {height} by {width} (height by width)");
        room.try_reserve_exact(bytes).map_err(no_room)?;
        Ok(room)
    }

    /// Resizes the picture. RGBA pictures are resized with premultiplied alpha, so that the colours of transparent pixels
    /// do not bleed into their neighbours.
    pub(super) fn resize(mut self, width: usize, height: usize) -> Result<Self, String> {
        if self.channels != 4 || (width, height) == (self.width, self.height) {
            return self.resize_channels(width, height);
        }
        self.map_colours(|colour, opacity| {
            let product = u32::from(colour) * u32::from(opacity) + 128;
            (((product >> 8) + product) >> 8) as u8
        });
        let mut resized = self.resize_channels(width, height)?;
        resized.map_colours(|colour, opacity| match opacity {
            0 | 255 => colour,
            _ => (255 * u32::from(colour) / u32::from(opacity)).min(255) as u8,
        });
        Ok(resized)
    }

    /// Replaces each colour of RGBA pixels by `change(colour, opacity)`.
    fn map_colours(&mut self, change: impl Fn(u8, u8) -> u8) {
        for pixel in self.bytes.as_chunks_mut::<4>().0 {
            let [colours @ .., opacity] = pixel;
            colours.iter_mut().for_each(|colour| *colour = change(*colour, *opacity));
        }
    }

    /// Resizes each channel separately.
    fn resize_channels(self, width: usize, height: usize) -> Result<Self, String> {
        let across = match width == self.width {
            true => self,
            false => {
                let steps = filter_taps(self.width, width);
                self.filter_pass(width, self.height, &steps, |x, y| (x, y * self.width), 1)?
            }
        };
        match height == across.height {
            true => Ok(across),
            false => {
                let steps = filter_taps(across.height, height);
                across.filter_pass(width, height, &steps, |x, y| (y, x), width)
            }
        }
    }

    /// One filter pass: computes each pixel (x, y) of the new picture. `place` maps it to the index of its step and to
    /// the first pixel of the line that the filter runs along; `stride` is the distance between pixels of the line.
    fn filter_pass(
        &self,
        width: usize,
        height: usize,
        steps: &[Step],
        place: impl Fn(usize, usize) -> (usize, usize),
        stride: usize,
    ) -> Result<Self, String> {
        let mut bytes = Self::reserve(width, height, self.channels)?;
        for y in 0..height {
            for x in 0..width {
                let (step, line) = place(x, y);
                let Step { first, weights } = &steps[step];
                for channel in 0..self.channels {
                    let pixel =
                        |i: usize| self.bytes[(line + (first + i) * stride) * self.channels + channel];
                    let products = weights.iter().enumerate().map(|(i, weight)| i32::from(pixel(i)) * weight);
                    let sum = (1 << (FRACTION - 1)) + products.sum::<i32>();
                    bytes.push((sum >> FRACTION).clamp(0, 255) as u8);
                }
            }
        }
        Ok(Self { width, height, channels: self.channels, bytes })
    }

    /// The center crop of this size; if it is larger than the picture, the border is black.
    pub(super) fn center_crop(&self, width: usize, height: usize) -> Result<Self, String> {
        let (left, top) = (crop_offset(self.width, width), crop_offset(self.height, height));
        let mut bytes = Self::reserve(width, height, self.channels)?;
        bytes.resize(width * height * self.channels, 0);
        for y in 0..height {
            let Some(from) = y.checked_add_signed(top).filter(|&y| y < self.height) else { continue };
            for x in 0..width {
                let Some(column) = x.checked_add_signed(left).filter(|&x| x < self.width) else { continue };
                let source = (from * self.width + column) * self.channels;
                let target = (y * width + x) * self.channels;
                bytes[target..target + self.channels]
                    .copy_from_slice(&self.bytes[source..source + self.channels]);
            }
        }
        Ok(Self { width, height, channels: self.channels, bytes })
    }
}

/// The offset of a center crop of size `to`; negative if the crop is larger than the picture. Halves are rounded to even
/// when cropping, down when padding.
fn crop_offset(from: usize, to: usize) -> isize {
    match from.checked_sub(to) {
        Some(cut) => (cut as f64 / 2.0).round_ties_even() as isize,
        None => -(((to - from) / 2) as isize),
    }
}

/// The filter taps of a new pixel: first source pixel, and fixed-point weights.
struct Step {
    first: usize,
    weights: Vec<i32>,
}

/// For each of `to` pixels, the filter taps over `from` source pixels.
fn filter_taps(from: usize, to: usize) -> Vec<Step> {
    let scale = from as f64 / to as f64;
    let reach = scale.max(1.0);
    let step = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        let first = ((centre - reach + 0.5) as usize).min(from - 1);
        let end = ((centre + reach + 0.5) as usize).clamp(first + 1, from);
        let weight = |at: usize| (1.0 - ((at as f64 - centre + 0.5) / reach).abs()).max(0.0);
        let total: f64 = (first..end).map(weight).sum();
        let fixed = |at: usize| (weight(at) / total * f64::from(1 << FRACTION)).round() as i32;
        Step { first, weights: (first..end).map(fixed).collect() }
    };
    (0..to).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: &[u8]) -> Pixels {
        Pixels { width: bytes.len(), height: 1, channels: 1, bytes: bytes.to_vec() }
    }

    #[test]
    fn weights_form_a_triangle_filter() {
        assert_eq!(row(&[0, 100]).resize(4, 1).unwrap().bytes, [0, 25, 75, 100]);
        assert_eq!(row(&[7; 9]).resize(4, 3).unwrap().bytes, [7; 12]);
        assert_eq!(row(&[10, 20, 30]).resize(1, 1).unwrap().bytes, [20]);
        assert_eq!(row(&[5]).resize(3, 2).unwrap().bytes, [5; 6]);
    }

    #[test]
    fn center_crops_cut_or_pad() {
        assert_eq!(row(&[1, 2, 3, 4, 5]).center_crop(3, 1).unwrap().bytes, [2, 3, 4]);
        assert_eq!(row(&[1, 2, 3, 4]).center_crop(1, 1).unwrap().bytes, [3]);
        assert_eq!(row(&[1, 2]).center_crop(5, 2).unwrap().bytes, [0, 1, 2, 0, 0, 0, 0, 0, 0, 0]);
    }
}
