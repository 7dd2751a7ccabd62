//! Image files as inputs of image models.

#[cfg(feature = "image")]
mod read;
#[cfg(feature = "image")]
mod resample;
#[cfg(all(test, feature = "image"))]
mod tests;

#[cfg(feature = "image")]
pub use read::{decode, read};

#[cfg(not(feature = "image"))]
use std::path::Path;

/// What is made of a picture before it is an input.
///
/// As in `torchvision`, the picture is resized (bilinear, antialiased, as Pillow does it), then its middle is
/// cut out, then each byte `b` becomes `(b * scale - mean) / std`. Without `resize` and `crop` it is stretched to
/// the size of the input.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preparation {
    /// Resize to this.
    pub resize: Option<Resize>,
    /// Cut out the middle: height and width. What is larger than the picture is filled with black.
    pub crop: Option<(usize, usize)>,
    /// The factor of bytes; 1/255 by default.
    pub scale: Option<f32>,
    /// What is subtracted: for all channels, or one for each.
    pub mean: Vec<f32>,
    /// What is divided by then: for all channels, or one for each.
    pub std: Vec<f32>,
    /// The input is [N, H, W, C] or [H, W, C] instead of [N, C, H, W] or [C, H, W].
    pub channels_last: bool,
}

/// A size to resize to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// The shorter side gets this size, the longer one what keeps the picture's shape.
    Shorter(usize),
    /// Height and width.
    To(usize, usize),
}

/// What is usual in the place of `scale`, `mean` and `std`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// 0 to 1.
    Unit,
    /// -1 to 1.
    Signed,
    /// Mean 0 and deviation 1 over the pictures of ImageNet, as models of `torchvision` are trained.
    ImageNet,
}

impl Preset {
    /// Sets scale, mean and deviation.
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
    /// Whether anything is said.
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }
}

/// Fails: this build cannot read pictures.
#[cfg(not(feature = "image"))]
pub fn read(
    path: &Path,
    meta: &tensor::TensorMeta,
    preparation: &Preparation,
) -> crate::Result<tensor::Tensor> {
    decode(&path.display().to_string(), &[], meta, preparation)
}

/// Fails, as [`read`] does.
#[cfg(not(feature = "image"))]
pub fn decode(
    name: &str,
    _: &[u8],
    _: &tensor::TensorMeta,
    _: &Preparation,
) -> crate::Result<tensor::Tensor> {
    Err(crate::Error::input(format!(
        "{name} is an image, which this build cannot read: it leaves out the feature `image`"
    )))
}
