//! The requests of JavaScript, as JSON. Buffers and modules are referred to by handle.

use pteron_toolbox::picture::{Preparation, Preset, Resize};
use serde::Deserialize;

/// A request from JavaScript.
#[derive(Debug, Deserialize)]
#[serde(tag = "call", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Request {
    /// Returns the crate's version, whether it uses SIMD, and the numbers of threads, open modules and buffers.
    About,
    /// Sets the number of threads for the files that are opened from now on, and returns how many there are: one, or as many as the
    /// system starts.
    SetThreads { threads: usize },
    /// Opens a file, and takes ownership of the buffers that hold it and its data.
    Load { file: File, data: Vec<File> },
    /// Closes a module.
    Close { module: u32 },
    /// Runs a method once, and `repeat` more times to measure latencies.
    Run { module: u32, method: Option<String>, inputs: Vec<Input>, repeat: usize },
    /// Runs functions of a BEF program, or all without arguments, and returns what they print.
    RunFunctions { module: u32, functions: Vec<String> },
    /// Creates pseudo-random inputs for a method.
    Random { module: u32, method: Option<String> },
    /// Converts an image to an input. Without options for images, the preprocessing that the program stores is applied.
    Picture { module: u32, method: Option<String>, input: usize, picture: File, preparation: Pictures },
    /// Returns the `count` largest elements of each row of a tensor.
    Top { tensor: Input, count: usize, labels: Vec<String> },
    /// Returns the HTML report on the file. With `profile`, it has the time of every node.
    Report { module: u32, profile: Option<Profile> },
    /// Returns the contents of the file, as `pteron inspect --json` prints them.
    Inspect { module: u32 },
}

/// The bytes of a file.
#[derive(Debug, Deserialize)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) buffer: u32,
}

/// The method, inputs and number of runs of a profile.
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
    /// A number as text: JSON numbers cannot represent all integers.
    Number { value: String },
    /// A boolean.
    Bool { value: bool },
    /// A string.
    String { value: String },
    /// No value.
    None,
    /// The value that the exporter fixed for this input.
    Fixed,
}

/// Preprocessing of images.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Pictures {
    preset: Option<Preset>,
    /// The size to which a picture is resized: the length of its shorter side, or its height and width.
    resize: Option<Resize>,
    crop: Option<[usize; 2]>,
    scale: Option<f32>,
    mean: Option<Vec<f32>>,
    std: Option<Vec<f32>>,
    channels_last: bool,
}

impl From<Pictures> for Preparation {
    fn from(pictures: Pictures) -> Self {
        let Pictures { preset, resize, crop, scale, mean, std, channels_last } = pictures;
        let crop = crop.map(|[height, width]| (height, width));
        let mut preparation = Self { resize, crop, channels_last, ..Self::default() };
        if let Some(preset) = preset {
            preset.apply(&mut preparation);
        }
        preparation.scale = scale.or(preparation.scale);
        preparation.mean = mean.unwrap_or(preparation.mean);
        preparation.std = std.unwrap_or(preparation.std);
        preparation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_images_equal_those_of_the_command() {
        let json = r#"{"preset": "imagenet", "resize": 256, "crop": [224, 224], "std": [1]}"#;
        let preparation = Preparation::from(serde_json::from_str::<Pictures>(json).unwrap());
        let mut expected = Preparation {
            resize: Some(Resize::Shorter(256)),
            crop: Some((224, 224)),
            ..Preparation::default()
        };
        Preset::ImageNet.apply(&mut expected);
        expected.std = vec![1.0];
        assert_eq!(preparation, expected);
        let both = serde_json::from_str::<Pictures>(r#"{"resize": [8, 9], "channelsLast": true}"#).unwrap();
        let both = Preparation::from(both);
        assert_eq!((both.resize, both.channels_last), (Some(Resize::To(8, 9)), true));
        assert_eq!(Preparation::from(Pictures::default()), Preparation::default());
    }
}
