use super::resample::Pixels;
use super::{Preparation, Resize};
use crate::{Error, Result, one_line, stream};
use image::DynamicImage;
use std::path::Path;
use tensor::{Element, ScalarType, Tensor, TensorMeta, bf16, f16, memory};

/// Pixels of a picture at most.
const PIXELS: usize = 1 << 26;

/// Reads a PNG or JPEG file into a tensor such as `meta` describes.
///
/// The sizes must be those of one picture: [1, C, H, W] or [C, H, W], where C is 1 (grey), 3 (red, green, blue)
/// or 4 (with opacity). Elements of a floating-point type are in 0..1 with black 0 unless `preparation` says
/// otherwise, computed in f32 whatever the type; those of uint8, int16, int32 and int64 are in 0..255.
///
/// Decoders of JPEG round differently. Beside libjpeg-turbo's, which Pillow and torchvision have, on a noisy picture:
/// bytes of grey pictures are the same to within 1; of colours at full size 99 in 100 are the same, none off by more
/// than 3; of colours at half the size 73 in 100 are the same, 89 to within 1, none off by more than 5.
pub fn read(path: &Path, meta: &TensorMeta, preparation: &Preparation) -> Result<Tensor> {
    made(path, meta, preparation, || stream::read(path))
}

/// As [`read`], of the bytes of such a file; `name` is what errors call it.
pub fn decode(name: &str, bytes: &[u8], meta: &TensorMeta, preparation: &Preparation) -> Result<Tensor> {
    made(Path::new(name), meta, preparation, || Ok(bytes))
}

/// Nothing is read for an input that takes no picture.
fn made<B: AsRef<[u8]>>(
    path: &Path,
    meta: &TensorMeta,
    preparation: &Preparation,
    bytes: impl FnOnce() -> Result<B>,
) -> Result<Tensor> {
    let unfit =
        |why: &str| Error::input(format!("an image ({}) cannot be the input {meta}: {why}", path.display()));
    let place = Place::of(meta.sizes(), preparation.channels_last).map_err(|why| unfit(&why))?;
    let kind = meta.dtype();
    let holds_bytes =
        matches!(kind, ScalarType::Byte | ScalarType::Short | ScalarType::Int | ScalarType::Long);
    if !holds_bytes && !kind.is_floating() {
        return Err(unfit(
            "an image gives floating-point numbers, or its bytes to uint8, int16, int32 and int64",
        ));
    }
    if holds_bytes && preparation.has_values() {
        return Err(unfit("integers are the bytes of a picture as they are, without scale, mean and std"));
    }
    let values = preparation.values(place.channels).map_err(|why| unfit(&why))?;

    let image =
        image::load_from_memory(bytes()?.as_ref()).map_err(|e| Error::bad_file(path, one_line(&e)))?;
    let pixels = pixels(&image, place.channels);
    let pixels = preparation.shaped(pixels, &place).map_err(|why| unfit(&why))?;

    let (channels, area) = (place.channels, place.height * place.width);
    let at = |i: usize| match preparation.channels_last {
        true => (i, i % channels),
        false => (i % area * channels + i / area, i / area),
    };
    let bytes = (0..area * channels).map(|i| pixels.bytes[at(i).0]);
    let numbers = (0..area * channels).map(at).map(|(i, channel)| values[channel](pixels.bytes[i]));
    let sizes = meta.sizes();
    match kind {
        ScalarType::Byte => filled(sizes, bytes),
        ScalarType::Short => filled(sizes, bytes.map(i16::from)),
        ScalarType::Int => filled(sizes, bytes.map(i32::from)),
        ScalarType::Long => filled(sizes, bytes.map(i64::from)),
        ScalarType::Half => filled(sizes, numbers.map(f16::from_f32)),
        ScalarType::BFloat16 => filled(sizes, numbers.map(bf16::from_f32)),
        ScalarType::Double => filled(sizes, numbers.map(f64::from)),
        _ => filled(sizes, numbers),
    }
}

/// A tensor of as many elements as its sizes say.
fn filled<T: Element>(sizes: &[usize], elements: impl ExactSizeIterator<Item = T>) -> Result<Tensor> {
    Ok(Tensor::from_slice(sizes, &memory::collected(elements)?)?)
}

/// The bytes of a picture in this many channels. Grey is as Pillow has it, by ITU-R 601.
fn pixels(image: &DynamicImage, channels: usize) -> Pixels {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let bytes = match channels {
        4 => image.to_rgba8().into_raw(),
        3 => image.to_rgb8().into_raw(),
        _ if !image.color().has_color() => image.to_luma8().into_raw(),
        _ => {
            let grey = |[r, g, b]: [u8; 3]| {
                let sum = u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + (1 << 15);
                (sum >> 16) as u8
            };
            image.to_rgb8().pixels().map(|pixel| grey(pixel.0)).collect()
        }
    };
    Pixels { width, height, channels, bytes }
}

/// Where the picture stands in an input.
struct Place {
    channels: usize,
    height: usize,
    width: usize,
}

impl Place {
    /// Of an input of these sizes, or why it takes no picture.
    fn of(sizes: &[usize], channels_last: bool) -> Result<Self, String> {
        let (count, three) = match *sizes {
            [n, a, b, c] => (n, [a, b, c]),
            [a, b, c] => (1, [a, b, c]),
            _ => {
                return Err("pictures go to inputs [1, C, H, W] or [C, H, W], or with the channels last; \
                            give another one as an array (`@x.npy`)"
                    .to_owned());
            }
        };
        let [first, middle, last] = three;
        let (place, other) = match channels_last {
            true => (Self { channels: last, height: first, width: middle }, first),
            false => (Self { channels: first, height: middle, width: last }, last),
        };
        let colours = |c: usize| matches!(c, 1 | 3 | 4);
        if !colours(place.channels) {
            let what = match channels_last {
                true => "[1, H, W, C] or [H, W, C]",
                false => "[1, C, H, W] or [C, H, W]",
            };
            let hint = match (colours(other), channels_last) {
                (false, _) => "give this one as an array (`@x.npy`)",
                (true, true) => "leave --channels-last away if the channels come first",
                (true, false) => "say --channels-last if the channels come last",
            };
            return Err(format!("a picture goes to {what} with 1, 3 or 4 channels C; {hint}"));
        }
        if count != 1 {
            return Err(format!("it takes {count} pictures; give them as an array (`@x.npy`)"));
        }
        check_size(place.height, place.width)?;
        Ok(place)
    }
}

fn check_size(height: usize, width: usize) -> Result<(), String> {
    match height.checked_mul(width) {
        Some(1..=PIXELS) => Ok(()),
        _ => Err(format!("no picture has {height} by {width} pixels; {PIXELS} pixels are the most")),
    }
}

impl Preparation {
    /// Whether any option about the values is given.
    fn has_values(&self) -> bool {
        self.scale.is_some() || !self.mean.is_empty() || !self.std.is_empty()
    }

    /// What a byte becomes, by channel.
    fn values(&self, channels: usize) -> Result<Vec<impl Fn(u8) -> f32>, String> {
        let of = |name: &str, given: &[f32], channel: usize, default: f32| match given.len() {
            0 => Ok(default),
            1 => Ok(given[0]),
            n if n == channels => Ok(given[channel]),
            n => Err(format!("--{name} has {n} values for {channels} channels; give it 1 or {channels}")),
        };
        let scale = self.scale;
        (0..channels)
            .map(|channel| {
                let (mean, std) =
                    (of("mean", &self.mean, channel, 0.0)?, of("std", &self.std, channel, 1.0)?);
                Ok(move |byte: u8| {
                    let byte = f32::from(byte);
                    (scale.map_or(byte / 255.0, |scale| byte * scale) - mean) / std
                })
            })
            .collect()
    }

    /// The picture in the size of the input.
    fn shaped(&self, mut pixels: Pixels, place: &Place) -> Result<Pixels, String> {
        if self.resize.is_none() && self.crop.is_none() {
            return pixels.resized(place.width, place.height);
        }
        let (height, width) = match self.resize {
            None => (pixels.height, pixels.width),
            Some(Resize::To(height, width)) => (height, width),
            Some(Resize::Shorter(shorter)) => {
                let longer = |long: usize, short: usize| {
                    usize::try_from(shorter as u128 * long as u128 / short as u128).unwrap_or(usize::MAX)
                };
                match pixels.height < pixels.width {
                    true => (shorter, longer(pixels.width, pixels.height)),
                    false => (longer(pixels.height, pixels.width), shorter),
                }
            }
        };
        check_size(height, width)?;
        pixels = pixels.resized(width, height)?;
        if let Some((height, width)) = self.crop {
            check_size(height, width)?;
            pixels = pixels.centre(width, height)?;
        }
        match (pixels.height, pixels.width) == (place.height, place.width) {
            true => Ok(pixels),
            false => Err(format!(
                "the picture is {} by {} (height by width) after --resize and --crop; end with --crop {}x{}",
                pixels.height, pixels.width, place.height, place.width
            )),
        }
    }
}
