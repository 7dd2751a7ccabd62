use crate::picture::{Preparation, Resize};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// How a picture becomes an input, as a program stores it: see [`Preparation`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Preprocessing {
    /// The shorter side, or height and width, to resize to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<Resize>,
    /// Height and width of the center crop; in JSON, one number stands for both.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "one_or_two")]
    pub crop: Option<(usize, usize)>,
    /// The factor by which each byte is multiplied; 1/255 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// The mean that is subtracted: one value for all channels, or one per channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f32>>,
    /// The standard deviation that is divided by: one value for all channels, or one per channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f32>>,
    /// The order of the dimensions of the input; NCHW by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The order of the dimensions of a picture: batch, channels, height, width. An input of rank 3 has no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Channels first.
    #[serde(rename = "NCHW")]
    ChannelsFirst,
    /// Channels last.
    #[serde(rename = "NHWC")]
    ChannelsLast,
}

fn one_or_two<'d, D: Deserializer<'d>>(from: D) -> Result<Option<(usize, usize)>, D::Error> {
    Ok(Option::<Resize>::deserialize(from)?.map(|size| match size {
        Resize::Shorter(side) => (side, side),
        Resize::To(height, width) => (height, width),
    }))
}

impl Preprocessing {
    /// The preprocessing to apply.
    pub fn preparation(&self) -> Preparation {
        Preparation {
            resize: self.resize,
            crop: self.crop,
            scale: self.scale,
            mean: self.mean.clone().unwrap_or_default(),
            std: self.std.clone().unwrap_or_default(),
            channels_last: self.layout == Some(Layout::ChannelsLast),
        }
    }

    /// Sets the fields to those of `preparation`. Unknown fields are kept; so is the layout, unless `preparation` is
    /// channels-last.
    #[must_use]
    pub fn with(self, preparation: &Preparation) -> Self {
        let given = |values: &Vec<f32>| (!values.is_empty()).then(|| values.clone());
        let is_last = preparation.channels_last;
        Self {
            resize: preparation.resize,
            crop: preparation.crop,
            scale: preparation.scale,
            mean: given(&preparation.mean),
            std: given(&preparation.std),
            layout: if is_last { Some(Layout::ChannelsLast) } else { self.layout },
            other: self.other,
        }
    }

    /// Fails if a field has a value with which no picture can be preprocessed; the error names the field.
    pub(super) fn check(&self) -> Result<(), String> {
        let sides = match self.resize {
            None => [1, 1],
            Some(Resize::Shorter(side)) => [side, 1],
            Some(Resize::To(height, width)) => [height, width],
        };
        let (height, width) = self.crop.unwrap_or((1, 1));
        let is_list = |list: &Option<Vec<f32>>, fits: fn(f32) -> bool| match list {
            None => true,
            Some(list) => matches!(list.len(), 1 | 3 | 4) && list.iter().all(|&value| fits(value)),
        };
        let fields = [
            ("resize", !sides.contains(&0), "a number of pixels, or height and width"),
            ("crop", height > 0 && width > 0, "a number of pixels, or height and width"),
            ("scale", self.scale.is_none_or(f32::is_finite), "a finite number"),
            ("mean", is_list(&self.mean, f32::is_finite), "a list of 1, 3 or 4 finite numbers"),
            (
                "std",
                is_list(&self.std, |value| value.is_finite() && value != 0.0),
                "a list of 1, 3 or 4 finite numbers other than 0",
            ),
        ];
        match fields.into_iter().find(|(_, fits, _)| !fits) {
            Some((name, _, expected)) => Err(format!("`preprocessing.{name}` is not {expected}")),
            None => Ok(()),
        }
    }
}
