use crate::{Array, ArrowColumn};
use pteron_tensor::{ScalarType, Tensor, TensorMeta};
use pteron_toolbox::batch::{Column, Fault, Row, Spec};
use pteron_toolbox::picture::{self, Preparation};
use pteron_toolbox::{Error, Result, one_line};
use std::path::Path;

/// A column of pictures, decoded: each cell has the bytes of a file or, if cells are text, its path.
pub(super) struct PictureColumn {
    name: String,
    dtype: ScalarType,
    rows: Vec<Result<Tensor, String>>,
}

impl PictureColumn {
    /// Decodes the pictures of an array for an input.
    ///
    /// # Errors
    /// If the array has neither bytes nor text. A picture that cannot be decoded is an error of its row.
    pub(super) fn new(name: &str, array: &Array<'_>, spec: &Spec, preparation: &Preparation) -> Result<Self> {
        let mut array = array.clone();
        let values = array.dictionary.as_deref_mut();
        let is_text = as_bytes(match values {
            Some(values) => values,
            None => &mut array,
        });
        let cells = ArrowColumn::new(name, &array).map_err(Error::Input)?;
        if cells.dtype() != ScalarType::Byte {
            return Err(Error::Input(format!(
                "column `{name}` is {}, and pictures are bytes or paths",
                cells.dtype()
            )));
        }
        let meta = TensorMeta::contiguous(spec.dtype, &spec.row)?;
        let decode = |row| {
            let Row { bytes, .. } = cells.row(row).map_err(|fault| fault.reason)?;
            let decoded = match is_text {
                true => picture::read(Path::new(&*String::from_utf8_lossy(bytes)), &meta, preparation),
                false => picture::decode("the picture", bytes, &meta, preparation),
            };
            decoded.map_err(|error| format!("it cannot be decoded: {}", one_line(&error)))
        };
        let rows = (0..array.length).map(decode).collect();
        Ok(Self { name: name.to_owned(), dtype: spec.dtype, rows })
    }
}

/// Makes an array of text one of its bytes, and returns whether it was text.
fn as_bytes(array: &mut Array<'_>) -> bool {
    let bytes = match &*array.format {
        "u" => "z",
        "U" => "Z",
        "vu" => "vz",
        _ => return false,
    };
    array.format = bytes.into();
    true
}

impl Column for PictureColumn {
    fn name(&self) -> &str {
        &self.name
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn dtype(&self) -> ScalarType {
        self.dtype
    }

    fn row(&self, index: usize) -> Result<Row<'_>, Fault> {
        match &self.rows[index] {
            Ok(tensor) => Ok(Row { bytes: tensor.bytes(), sizes: *tensor.sizes() }),
            Err(reason) => Err(reason.clone().into()),
        }
    }
}
