//! Image files as inputs of image models.

use crate::{Error, Result, stream};
use image::imageops::FilterType;
use std::path::Path;
use tensor::{DimOrder, ScalarType, Tensor, TensorMeta, f16};

/// Reads a PNG or JPEG file into a tensor such as `meta` describes.
///
/// The sizes say what is made of the image: `[1, C, H, W]`, `[C, H, W]` or `[H, W]`, where C is 1
/// (grey) or 3 (red, green, blue). The image is resized to H by W, without regard to its aspect
/// ratio. Elements of a floating-point type are in 0..1 with black 0; those of uint8 are in 0..255.
pub fn read(path: &Path, meta: &TensorMeta) -> Result<Tensor> {
    let (channels, height, width) = match **meta.sizes() {
        [1, c @ (1 | 3), h, w] | [c @ (1 | 3), h, w] => (c, h, w),
        [h, w] => (1, h, w),
        _ => return Err(unfit(path, meta, "its sizes are not [1, C, H, W] with C 1 or 3")),
    };
    let side = |n: usize| u32::try_from(n).ok().filter(|n| (1..=1 << 16).contains(n));
    let (Some(h), Some(w)) = (side(height), side(width)) else {
        return Err(unfit(path, meta, "no image has that size"));
    };

    let bytes = stream::read(path)?;
    let mut image = image::load_from_memory(&bytes).map_err(|e| Error::bad_file(path, e.to_string()))?;
    if (image.height(), image.width()) != (h, w) {
        image = image.resize_exact(w, h, FilterType::Triangle);
    }
    let interleaved = if channels == 1 { image.to_luma8().into_raw() } else { image.to_rgb8().into_raw() };
    let planar: Vec<u8> =
        (0..channels).flat_map(|c| interleaved.iter().skip(c).step_by(channels).copied()).collect();

    let sizes = meta.sizes();
    let unit = planar.iter().map(|&v| f32::from(v) / 255.0);
    let tensor = match meta.dtype() {
        ScalarType::Byte => Tensor::from_slice(sizes, &planar),
        ScalarType::Float => Tensor::from_slice(sizes, &unit.collect::<Vec<_>>()),
        ScalarType::Half => Tensor::from_slice(sizes, &unit.map(f16::from_f32).collect::<Vec<_>>()),
        ScalarType::BFloat16 => {
            Tensor::from_slice(sizes, &unit.map(tensor::bf16::from_f32).collect::<Vec<_>>())
        }
        _ => return Err(unfit(path, meta, "an image gives float32, float16, bfloat16 or uint8")),
    }?;
    debug_assert_eq!(tensor.dim_order(), &DimOrder::contiguous(sizes.len()));
    Ok(tensor)
}

fn unfit(path: &Path, meta: &TensorMeta, why: &str) -> Error {
    Error::input(format!("an image ({}) cannot be the input {meta}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A picture of two rows: red and green, blue and white.
    fn four_colours(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("pteron-{name}-{}.png", std::process::id()));
        let pixels = vec![255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255];
        image::RgbImage::from_raw(2, 2, pixels).expect("four pixels").save(&path).expect("a file");
        path
    }

    fn meta(dtype: ScalarType, sizes: &[usize]) -> TensorMeta {
        TensorMeta::contiguous(dtype, sizes).expect("a small tensor")
    }

    #[test]
    fn channels_are_planes() {
        let path = four_colours("planes");
        let t = read(&path, &meta(ScalarType::Float, &[1, 3, 2, 2])).unwrap();
        assert_eq!(t.as_slice::<f32>().unwrap(), [1., 0., 0., 1., 0., 1., 0., 1., 0., 0., 1., 1.]);
        let t = read(&path, &meta(ScalarType::Byte, &[3, 2, 2])).unwrap();
        assert_eq!(t.as_slice::<u8>().unwrap()[..4], [255, 0, 0, 255]);
        let grey = read(&path, &meta(ScalarType::Float, &[2, 2])).unwrap();
        let grey = grey.as_slice::<f32>().unwrap();
        assert!(grey[0] < grey[1] && grey[2] < grey[0] && grey[3] == 1.0, "{grey:?}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn images_are_resized() {
        let path = four_colours("resized");
        let t = read(&path, &meta(ScalarType::Byte, &[1, 3, 6, 4])).unwrap();
        assert_eq!(&**t.sizes(), [1, 3, 6, 4]);
        assert_eq!(t.as_slice::<u8>().unwrap()[0], 255);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_explained() {
        let path = four_colours("unfit");
        for (dtype, sizes, problem) in [
            (ScalarType::Float, &[1, 2, 3, 4][..], "[1, C, H, W]"),
            (ScalarType::Long, &[1, 1, 2, 2], "float32, float16, bfloat16 or uint8"),
            (ScalarType::Float, &[1, 1, 0, 2], "no image has that size"),
        ] {
            let e = read(&path, &meta(dtype, sizes)).unwrap_err().to_string();
            assert!(e.contains(problem), "{e}");
        }
        std::fs::remove_file(&path).unwrap();
        let e = read(&path, &meta(ScalarType::Float, &[2, 2])).unwrap_err().to_string();
        assert!(e.starts_with("cannot read"), "{e}");
    }
}
