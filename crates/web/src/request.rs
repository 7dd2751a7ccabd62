//! What JavaScript asks for, as JSON. Buffers are named by their numbers.

use serde::Deserialize;
use toolbox::picture::{Preparation, Preset, Resize};

/// A request.
#[derive(Debug, Deserialize)]
#[serde(tag = "call", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Request {
    /// The version of this package.
    About,
    /// Opens a file. The buffers are handed over.
    Load { file: File, data: Vec<File> },
    /// Closes a module.
    Close { module: u32 },
    /// Runs a method once, and `repeat` further times, timed.
    Run { module: u32, method: Option<String>, inputs: Vec<Input>, repeat: usize },
    /// Inputs at random for a method.
    Random { module: u32, method: Option<String> },
    /// An input of a picture.
    Picture { module: u32, method: Option<String>, input: usize, picture: File, preparation: Pictures },
    /// The largest elements of each row of a tensor.
    Top { tensor: Input, count: usize, labels: Vec<String> },
    /// The page about the file; with the time of every node if there are inputs to run it with.
    Report { module: u32, profile: Option<Profile> },
    /// What is in the file, as `pteron inspect --json` has it.
    Inspect { module: u32 },
}

/// The bytes of a file.
#[derive(Debug, Deserialize)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) buffer: u32,
}

/// A run that is recorded.
#[derive(Debug, Deserialize)]
pub(crate) struct Profile {
    pub(crate) method: Option<String>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) repeat: usize,
}

/// An input of a method.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(crate) enum Input {
    /// Elements in row-major order.
    Tensor { dtype: String, sizes: Vec<usize>, buffer: u32 },
    /// A number, of which JSON has not all.
    Number { value: String },
    /// A boolean.
    Bool { value: bool },
    /// A text.
    String { value: String },
    /// No value.
    None,
    /// What the exporter fixed.
    Fixed,
}

/// How pictures become inputs.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Pictures {
    preset: Option<Usual>,
    /// The shorter side, or height and width.
    resize: Option<Sides>,
    crop: Option<[usize; 2]>,
    scale: Option<f32>,
    mean: Option<Vec<f32>>,
    std: Option<Vec<f32>>,
    channels_last: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Usual {
    Unit,
    Signed,
    Imagenet,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Sides {
    Shorter(usize),
    Both([usize; 2]),
}

impl From<Pictures> for Preparation {
    fn from(pictures: Pictures) -> Self {
        let Pictures { preset, resize, crop, scale, mean, std, channels_last } = pictures;
        let resize = resize.map(|sides| match sides {
            Sides::Shorter(side) => Resize::Shorter(side),
            Sides::Both([height, width]) => Resize::To(height, width),
        });
        let crop = crop.map(|[height, width]| (height, width));
        let mut made = Self { resize, crop, channels_last, ..Self::default() };
        match preset {
            Some(Usual::Unit) => Preset::Unit.apply(&mut made),
            Some(Usual::Signed) => Preset::Signed.apply(&mut made),
            Some(Usual::Imagenet) => Preset::ImageNet.apply(&mut made),
            None => {}
        }
        made.scale = scale.or(made.scale);
        made.mean = mean.unwrap_or(made.mean);
        made.std = std.unwrap_or(made.std);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_prepared_as_the_command_prepares_them() {
        let json = r#"{"preset": "imagenet", "resize": 256, "crop": [224, 224], "std": [1]}"#;
        let made = Preparation::from(serde_json::from_str::<Pictures>(json).unwrap());
        let mut expected = Preparation {
            resize: Some(Resize::Shorter(256)),
            crop: Some((224, 224)),
            ..Preparation::default()
        };
        Preset::ImageNet.apply(&mut expected);
        expected.std = vec![1.0];
        assert_eq!(made, expected);
        let both = serde_json::from_str::<Pictures>(r#"{"resize": [8, 9], "channelsLast": true}"#).unwrap();
        let both = Preparation::from(both);
        assert_eq!((both.resize, both.channels_last), (Some(Resize::To(8, 9)), true));
        assert_eq!(Preparation::from(Pictures::default()), Preparation::default());
    }
}
