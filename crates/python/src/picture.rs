//! Pictures as inputs of programs, and in tables.

use crate::errors::{Failure, Result};
use crate::settings::Source;
use crate::tensor::{PyTensor, parse_dtype};
use pteron::tensor::TensorMeta;
use pteron::{MethodMeta, Program, Tensor};
use pteron_toolbox::picture::{self, Preparation, Preset, Resize};
use pteron_toolbox::task::{self, Preprocessing};
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

/// The preparation that a `pteron.batch.Pictures` describes.
pub(crate) fn preparation(pictures: &Bound<'_, PyAny>) -> PyResult<Preparation> {
    pictures.call_method0("options")?.extract::<Pictures>()?.preparation()
}

/// The picture in a file as an input of a method, prepared as the program's task metadata says if no preparation is given.
pub(crate) fn to_input(
    program: &Program,
    method: &MethodMeta<'_>,
    input: usize,
    file: &Source,
    preparation: Option<Preparation>,
) -> Result<Tensor> {
    let stored = || -> Result<Preparation> {
        let task = task::of(program)?.unwrap_or_default();
        Ok(task.preprocessing.as_ref().map(Preprocessing::preparation).unwrap_or_default())
    };
    let preparation = preparation.map_or_else(stored, Ok)?;
    let declared = method.inputs().into_iter().nth(input).and_then(|input| input.tensor);
    let no_tensor =
        || pteron_toolbox::Error::input(format!("input {input} of method `{}` is no tensor", method.name()));
    let meta = declared.ok_or_else(no_tensor)?.meta;
    Ok(match file {
        Source::Path(path) => picture::read(path, &meta, &preparation)?,
        Source::Bytes(bytes) => picture::decode("the picture", bytes, &meta, &preparation)?,
    })
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
