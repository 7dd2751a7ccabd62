//! Reads image files as inputs of image models.

#[cfg(feature = "image")]
mod read;
#[cfg(feature = "image")]
mod resample;
#[cfg(all(test, feature = "image"))]
mod tests;

#[cfg(feature = "image")]
pub use read::{decode, decoding_bytes, read};

#[cfg(not(feature = "image"))]
use std::path::Path;

/// The preprocessing of a picture.
///
/// As in `torchvision`, the picture is resized (bilinear, antialiased, as Pillow does it), then center-cropped, then
/// each byte `b` becomes `(b * scale - mean) / std`. Without `resize` and `crop`, the picture is stretched to the size
/// of the input.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preparation {
    /// How the picture is resized before the crop; `None` if it keeps its size until then.
    pub resize: Option<Resize>,
    /// The center crop: height and width. If it is larger than the picture, the border is black.
    pub crop: Option<(usize, usize)>,
    /// The factor by which each byte is multiplied; 1/255 by default.
    pub scale: Option<f32>,
    /// The mean to subtract: one value for all channels, or one per channel.
    pub mean: Vec<f32>,
    /// The standard deviation to divide by: one value for all channels, or one per channel.
    pub std: Vec<f32>,
    /// Whether the input's sizes are [N, H, W, C] or [H, W, C] instead of [N, C, H, W] or [C, H, W].
    pub channels_last: bool,
}

/// The size to which a picture is resized. In JSON, one number or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Resize {
    /// Resizes the shorter side to this size, and keeps the aspect ratio.
    Shorter(usize),
    /// Resizes to this height and width, whatever the aspect ratio.
    To(usize, usize),
}

/// Common values of `scale`, `mean` and `std`. In JSON, `unit`, `signed` or `imagenet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Values from 0 to 1.
    Unit,
    /// Values from -1 to 1.
    Signed,
    /// Mean 0 and standard deviation 1 over ImageNet, as the models of `torchvision` are trained.
    ImageNet,
}

impl Preset {
    /// Sets scale, mean and standard deviation.
    pub fn apply(self, preparation: &mut Preparation) {
        let (mean, std) = match self {
            Self::Unit => (vec![0.0], vec![1.0]),
            Self::Signed => (vec![0.5], vec![0.5]),
            Self::ImageNet => (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]),
        };
        *preparation = Preparation { scale: None, mean, std, ..std::mem::take(preparation) };
    }
}

impl Preparation {
    /// Whether any option is set.
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }
}

/// Fails: this build cannot read pictures.
#[cfg(not(feature = "image"))]
pub fn read(
    path: &Path,
    meta: &pteron_tensor::TensorMeta,
    preparation: &Preparation,
) -> crate::Result<pteron_tensor::Tensor> {
    decode(&path.display().to_string(), &[], meta, preparation)
}

/// Fails as [`read`] does: this build cannot read pictures.
#[cfg(not(feature = "image"))]
pub fn decode(
    name: &str,
    _: &[u8],
    _: &pteron_tensor::TensorMeta,
    _: &Preparation,
) -> crate::Result<pteron_tensor::Tensor> {
    Err(crate::Error::input(format!(
        "{name} is an image, which this build cannot read: it leaves out the feature `image`"
    )))
}

/// Fails as [`read`] does: this build cannot read pictures.
#[cfg(not(feature = "image"))]
pub fn decoding_bytes(
    name: &str,
    _: &[u8],
    meta: &pteron_tensor::TensorMeta,
    preparation: &Preparation,
) -> crate::Result<u64> {
    decode(name, &[], meta, preparation).map(|_| 0)
}
