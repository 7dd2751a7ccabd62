use super::resample::Pixels;
use super::{Preparation, Resize};
use crate::{Error, Result, one_line, stream};
use image::{DynamicImage, ImageDecoder, ImageReader};
use pteron_tensor::{Element, ScalarType, Tensor, TensorMeta, bf16, f16, memory};
use std::io::Cursor;
use std::path::Path;

/// The maximum number of pixels of an input, and of a picture once it is resized or cropped.
const PIXELS: usize = 1 << 26;

/// Reads a PNG, JPEG, WebP or BMP file into a tensor of the type and sizes of `meta`.
///
/// The sizes must be those of one picture: [1, C, H, W] or [C, H, W] (or channels-last, if `preparation` says so), where C
/// is 1 (grey), 3 (RGB) or 4 (RGBA). Floating-point elements are in 0..1 with black 0 unless `preparation` says otherwise,
/// and are computed in f32 whatever the type; uint8, int16, int32 and int64 elements are the bytes, 0..255.
///
/// JPEG decoders round differently. Compared with libjpeg-turbo, which Pillow and torchvision use, on a noisy picture:
/// bytes of grey pictures agree to within 1; with chroma at full resolution 99 in 100 bytes are equal and none is off by
/// more than 3; with chroma at half resolution 73 in 100 are equal, 89 agree to within 1, and none is off by more than 5.
pub fn read(path: &Path, meta: &TensorMeta, preparation: &Preparation) -> Result<Tensor> {
    prepare_image(path, meta, preparation, || stream::read(path))
}

/// Decodes the bytes of a picture as [`read`] does; errors name the file `name`.
pub fn decode(name: &str, bytes: &[u8], meta: &TensorMeta, preparation: &Preparation) -> Result<Tensor> {
    prepare_image(Path::new(name), meta, preparation, || Ok(bytes))
}

/// An upper bound of the memory in bytes that [`decode`] takes for a picture. Reads only the picture's header.
///
/// # Errors
/// If the bytes are no picture; the error names the file `name`.
pub fn decoding_bytes(name: &str, bytes: &[u8], meta: &TensorMeta, preparation: &Preparation) -> Result<u64> {
    let wrong = |e: image::ImageError| Error::bad_file(name, one_line(&e));
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let decoder = reader.map_err(|e| wrong(e.into()))?.into_decoder().map_err(wrong)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (u64::from(width), u64::from(height));
    let area = |width: u64, height: u64| width.saturating_mul(height);
    let side = |side: usize| side as u64;
    let sizes = meta.sizes();
    let largest = side(sizes.iter().copied().max().unwrap_or(0));
    let (new_height, new_width) = match preparation.resize {
        None if preparation.crop.is_some() => (height, width),
        None => (largest, largest),
        Some(Resize::To(height, width)) => (side(height), side(width)),
        Some(Resize::Shorter(shorter)) => {
            let longer = area(side(shorter), width.max(height)) / width.min(height).max(1);
            (longer, longer)
        }
    };
    // What the decoder keeps, at most 12 bytes a pixel, the converted picture, and it resized in one direction and in both,
    // of four channels.
    let pixels = [
        decoder.total_bytes(),
        area(width, height).saturating_mul(16),
        area(new_width, height).saturating_mul(4),
        area(new_width, new_height).saturating_mul(4),
        (width + height + new_width + new_height).saturating_mul(64),
        side(meta.nbytes()).saturating_mul(2),
    ];
    Ok(pixels.into_iter().fold(0, u64::saturating_add))
}

/// Decodes and prepares a picture. `bytes` is called only if an input of type `meta` can be a picture.
fn prepare_image<B: AsRef<[u8]>>(
    path: &Path,
    meta: &TensorMeta,
    preparation: &Preparation,
    bytes: impl FnOnce() -> Result<B>,
) -> Result<Tensor> {
    let unfit =
        |why: &str| Error::input(format!("an image ({}) cannot be the input {meta}: {why}", path.display()));
    let place =
        PictureDims::from_sizes(meta.sizes(), preparation.channels_last).map_err(|why| unfit(&why))?;
    let kind = meta.dtype();
    let holds_bytes =
        matches!(kind, ScalarType::Byte | ScalarType::Short | ScalarType::Int | ScalarType::Long);
    if !holds_bytes && !kind.is_floating() {
        return Err(unfit(
            "an image gives floating-point numbers, or its bytes to uint8, int16, int32 and int64",
        ));
    }
    if holds_bytes && preparation.has_normalization() {
        return Err(unfit("integers are the bytes of a picture as they are, without scale, mean and std"));
    }
    let values = preparation.normalizers(place.channels).map_err(|why| unfit(&why))?;

    let image =
        image::load_from_memory(bytes()?.as_ref()).map_err(|e| Error::bad_file(path, one_line(&e)))?;
    let pixels = to_pixels(&image, place.channels);
    let pixels = preparation.resize_and_crop(pixels, &place).map_err(|why| unfit(&why))?;

    let (channels, area) = (place.channels, place.height * place.width);
    let at = |i: usize| match preparation.channels_last {
        true => (i, i % channels),
        false => (i % area * channels + i / area, i / area),
    };
    let bytes = (0..area * channels).map(|i| pixels.bytes[at(i).0]);
    let floats = (0..area * channels).map(at).map(|(i, channel)| values[channel](pixels.bytes[i]));
    let sizes = meta.sizes();
    match kind {
        ScalarType::Byte => tensor_of_elements(sizes, bytes),
        ScalarType::Short => tensor_of_elements(sizes, bytes.map(i16::from)),
        ScalarType::Int => tensor_of_elements(sizes, bytes.map(i32::from)),
        ScalarType::Long => tensor_of_elements(sizes, bytes.map(i64::from)),
        ScalarType::Half => tensor_of_elements(sizes, floats.map(f16::from_f32)),
        ScalarType::BFloat16 => tensor_of_elements(sizes, floats.map(bf16::from_f32)),
        ScalarType::Double => tensor_of_elements(sizes, floats.map(f64::from)),
        _ => tensor_of_elements(sizes, floats),
    }
}

/// A tensor of these elements; `sizes` must match their number.
fn tensor_of_elements<T: Element>(
    sizes: &[usize],
    elements: impl ExactSizeIterator<Item = T>,
) -> Result<Tensor> {
    Ok(Tensor::from_slice(sizes, &memory::collected(elements)?)?)
}

/// The bytes of a picture, converted to 1, 3 or 4 channels. Grey is computed by ITU-R 601, as Pillow does.
fn to_pixels(image: &DynamicImage, channels: usize) -> Pixels {
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

/// The channels, height and width of an input that takes a picture.
struct PictureDims {
    channels: usize,
    height: usize,
    width: usize,
}

impl PictureDims {
    /// The dimensions of an input of these sizes, or the reason why the input takes no picture.
    fn from_sizes(sizes: &[usize], channels_last: bool) -> Result<Self, String> {
        let (count, three) = match *sizes {
            [n, a, b, c] => (n, [a, b, c]),
            [a, b, c] => (1, [a, b, c]),
            _ => {
                return Err("pictures go to inputs [1, C, H, W] or [C, H, W], or with the channels last; \
                            give another one as an array (`x.npy`)"
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
                (false, _) => "give this one as an array (`x.npy`)",
                (true, true) => "leave --channels-last away if the channels come first",
                (true, false) => "say --channels-last if the channels come last",
            };
            return Err(format!("a picture goes to {what} with 1, 3 or 4 channels C; {hint}"));
        }
        if count != 1 {
            return Err(format!("it takes {count} pictures; give them as an array (`x.npy`)"));
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
    /// Whether scale, mean or standard deviation is set.
    fn has_normalization(&self) -> bool {
        self.scale.is_some() || !self.mean.is_empty() || !self.std.is_empty()
    }

    /// For each channel, the function that normalizes a byte to an element.
    fn normalizers(&self, channels: usize) -> Result<Vec<impl Fn(u8) -> f32>, String> {
        let of = |name: &str, values: &[f32], channel: usize, default: f32| match values.len() {
            0 => Ok(default),
            1 => Ok(values[0]),
            n if n == channels => Ok(values[channel]),
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

    /// Resizes the picture to the size of the input. If `resize` or `crop` is given, applies these instead, and fails if
    /// the result does not have that size.
    fn resize_and_crop(&self, mut pixels: Pixels, place: &PictureDims) -> Result<Pixels, String> {
        if self.resize.is_none() && self.crop.is_none() {
            return pixels.resize(place.width, place.height);
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
        pixels = pixels.resize(width, height)?;
        if let Some((height, width)) = self.crop {
            check_size(height, width)?;
            pixels = pixels.center_crop(width, height)?;
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
