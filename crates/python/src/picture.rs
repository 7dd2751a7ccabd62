//! Pictures in tables.

use crate::errors::{Failure, Result};
use crate::tensor::{PyTensor, parse_dtype};
use pteron::tensor::TensorMeta;
use pteron_toolbox::picture::{self, Preparation, Preset, Resize};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How pictures are prepared.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Pictures {
    resize: Option<Vec<usize>>,
    crop: Option<(usize, usize)>,
    values: Option<String>,
    scale: Option<f32>,
    mean: Vec<f32>,
    std: Vec<f32>,
    channels_last: bool,
}

impl Pictures {
    fn preparation(self) -> PyResult<Preparation> {
        let mut preparation = Preparation::default();
        match self.values.as_deref() {
            None => {}
            Some("unit") => Preset::Unit.apply(&mut preparation),
            Some("signed") => Preset::Signed.apply(&mut preparation),
            Some("imagenet") => Preset::ImageNet.apply(&mut preparation),
            Some(other) => {
                let message = format!("values is unit, signed or imagenet, not `{other}`");
                return Err(PyValueError::new_err(message));
            }
        }
        preparation.resize = match self.resize.as_deref() {
            None => None,
            Some(&[shorter]) => Some(Resize::Shorter(shorter)),
            Some(&[height, width]) => Some(Resize::To(height, width)),
            Some(_) => return Err(PyValueError::new_err("resize is one size, or a height and a width")),
        };
        preparation.scale = self.scale.or(preparation.scale);
        if !self.mean.is_empty() {
            preparation.mean = self.mean;
        }
        if !self.std.is_empty() {
            preparation.std = self.std;
        }
        Ok(Preparation { crop: self.crop, channels_last: self.channels_last, ..preparation })
    }
}

/// Decodes the bytes of a PNG or JPEG file to a tensor of this type and these sizes.
#[pyfunction]
pub(crate) fn decode_picture(
    py: Python<'_>,
    bytes: &[u8],
    dtype: &Bound<'_, PyAny>,
    sizes: Vec<usize>,
    pictures: Pictures,
) -> PyResult<PyTensor> {
    let (dtype, preparation) = (parse_dtype(dtype)?, pictures.preparation()?);
    let decoded: Result<_> = py.detach(|| {
        let meta = TensorMeta::contiguous(dtype, &sizes)?;
        picture::decode("the picture", bytes, &meta, &preparation).map_err(Failure::from)
    });
    Ok(PyTensor::new(decoded?))
}
