//! Options for inputs that are images.

use crate::failure::{Failure, Result};
use crate::terminal::say;
use clap::{Args, ValueEnum};
use pteron_toolbox::picture::{self, Preparation, Resize};
use pteron_toolbox::task::{Preprocessing, TaskMetadata};

/// How images are preprocessed before they become inputs.
#[derive(Debug, Args)]
pub(crate) struct PictureOpts {
    /// Resize to this height and width, or the shorter side to N [default: stretch to the input's size]
    #[arg(help_heading = "Options for images", long, value_name = "N|HxW", value_parser = parse_resize)]
    resize: Option<Resize>,
    /// Then crop the centre to this size; where it is larger than the image, pad with black
    #[arg(help_heading = "Options for images", long, value_name = "N|HxW", value_parser = parse_crop)]
    crop: Option<(usize, usize)>,
    /// A common scale, mean and standard deviation: 0 to 1 (the default), -1 to 1, or those of ImageNet
    #[arg(help_heading = "Options for images", long, value_enum, allow_hyphen_values = true, conflicts_with_all = ["mean", "std", "scale"])]
    preset: Option<Preset>,
    /// Multiply the pixel values (0 to 255) of an image by this [default: 1/255]
    #[arg(help_heading = "Options for images", long, value_name = "X", allow_hyphen_values = true, value_parser = parse_number)]
    scale: Option<f32>,
    /// Then subtract this from all channels, or one value from each
    #[arg(help_heading = "Options for images", long, value_name = "X,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse_number)]
    mean: Vec<f32>,
    /// Then divide all channels by this, or each by one value
    #[arg(help_heading = "Options for images", long, value_name = "X,…", value_delimiter = ',', value_parser = parse_divisor)]
    std: Vec<f32>,
    /// The input is channels-last: [1, H, W, C] or [H, W, C]
    #[arg(help_heading = "Options for images", long)]
    channels_last: bool,
}

/// A preset of scale, mean and standard deviation.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Preset {
    /// 0 to 1
    #[value(name = "0..1")]
    Unit,
    /// -1 to 1
    #[value(name = "-1..1")]
    Signed,
    /// Mean 0.485,0.456,0.406 and standard deviation 0.229,0.224,0.225
    Imagenet,
}

impl PictureOpts {
    /// The preprocessing that the options select, and for what they leave open, the one that the program stores.
    pub(crate) fn preparation(&self, stored: Option<&TaskMetadata>) -> Preparation {
        let stored = stored.and_then(|task| task.preprocessing.as_ref());
        let mut preparation = stored.map(Preprocessing::preparation).unwrap_or_default();
        preparation.resize = self.resize.or(preparation.resize);
        preparation.crop = self.crop.or(preparation.crop);
        preparation.scale = self.scale.or(preparation.scale);
        preparation.channels_last |= self.channels_last;
        for (stored, given) in [(&mut preparation.mean, &self.mean), (&mut preparation.std, &self.std)] {
            if !given.is_empty() {
                stored.clone_from(given);
            }
        }
        if let Some(preset) = self.preset {
            let preset = match preset {
                Preset::Unit => picture::Preset::Unit,
                Preset::Signed => picture::Preset::Signed,
                Preset::Imagenet => picture::Preset::ImageNet,
            };
            preset.apply(&mut preparation);
        }
        preparation
    }

    /// Warns that images are preprocessed in the default way, if neither the options nor the program says how.
    pub(crate) fn warn_of_default(&self, what: &str, stored: Option<&TaskMetadata>) {
        if !self.is_given() && stored.is_none_or(|task| task.preprocessing.is_none()) {
            say(format_args!(
                "warning: {what}: images are stretched to the size of the input, with values from 0 to 1 (bytes, if it takes \
                 integers), since the program does not say what its model was trained on; say it with --preset, --resize, \
                 --crop, --scale, --mean, --std, or store it in the program (pteron set-task)"
            ));
        }
    }

    /// Whether any option was given.
    pub(crate) fn is_given(&self) -> bool {
        self.image_options().iter().any(|(_, is_given)| *is_given)
    }

    /// Fails if any option for images was given. For calls without an image among the inputs.
    pub(crate) fn refuse_all(&self) -> Result {
        let names: Vec<&str> = self
            .image_options()
            .into_iter()
            .filter(|(_, is_given)| *is_given)
            .map(|(name, _)| name)
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let names = names.join(", ");
        Err(Failure::Usage(format!("{names}: none of the inputs is an image (.png, .jpg, .webp, .bmp)")))
    }

    /// The options for images, by name, each with whether it was given.
    pub(crate) fn image_options(&self) -> [(&'static str, bool); 7] {
        [
            ("--resize", self.resize.is_some()),
            ("--crop", self.crop.is_some()),
            ("--preset", self.preset.is_some()),
            ("--scale", self.scale.is_some()),
            ("--mean", !self.mean.is_empty()),
            ("--std", !self.std.is_empty()),
            ("--channels-last", self.channels_last),
        ]
    }
}

/// Parses `N` as `(N, None)`, or `HxW` as `(H, Some(W))`; the sizes are at least 1.
fn parse_size(text: &str) -> Result<(usize, Option<usize>), String> {
    let side = |text: &str| text.parse().ok().filter(|&n: &usize| n > 0);
    let sides = match text.split_once('x') {
        None => side(text).map(|n| (n, None)),
        Some((height, width)) => side(height).zip(side(width)).map(|(h, w)| (h, Some(w))),
    };
    sides.ok_or_else(|| "a size is a number of pixels, `224`, or height and width, `224x320`".to_owned())
}

fn parse_resize(text: &str) -> Result<Resize, String> {
    Ok(match parse_size(text)? {
        (shorter, None) => Resize::Shorter(shorter),
        (height, Some(width)) => Resize::To(height, width),
    })
}

fn parse_crop(text: &str) -> Result<(usize, usize), String> {
    let (height, width) = parse_size(text)?;
    Ok((height, width.unwrap_or(height)))
}

/// Parses a number, or a fraction of two numbers such as `1/255`.
fn parse_number(text: &str) -> Result<f32, String> {
    let number = match text.split_once('/') {
        None => text.trim().parse().ok(),
        Some((over, under)) => {
            over.trim().parse().ok().zip(under.trim().parse().ok()).map(|(a, b): (f32, f32)| a / b)
        }
    };
    number.filter(|n: &f32| n.is_finite()).ok_or_else(|| "a number is written `0.5` or `1/255`".to_owned())
}

fn parse_divisor(text: &str) -> Result<f32, String> {
    match parse_number(text)? {
        0.0 => Err("nothing can be divided by 0".to_owned()),
        number => Ok(number),
    }
}
