use super::{Column, Fault, Row, convert};
use crate::{Error, Result};
use pteron_tensor::{ScalarType, Shape, memory};

/// Several columns of scalars, combined to one: each row is a list with one element of each column.
pub struct Stacked {
    name: String,
    parts: Vec<String>,
    dtype: ScalarType,
    bytes: Vec<u8>,
    /// Why rows have no elements, in row order.
    faults: Vec<(usize, Fault)>,
}

impl Stacked {
    /// Copies the elements of columns, converted to the type of the input.
    ///
    /// # Errors
    /// If the columns' lengths differ, or their types do not convert.
    pub fn of(name: &str, columns: &[&dyn Column], dtype: ScalarType) -> Result<Self> {
        let rows = columns.first().map_or(0, |column| column.rows());
        for column in columns {
            if !convert::is_allowed(column.dtype(), dtype) {
                let (name, own) = (column.name(), column.dtype());
                return Err(Error::Input(format!(
                    "column `{name}` is {own}, and the input that it is a part of takes {dtype}"
                )));
            }
            if column.rows() != rows {
                return Err(Error::Input(format!(
                    "column `{}` has {} rows, `{}` has {rows}",
                    column.name(),
                    column.rows(),
                    columns[0].name(),
                )));
            }
        }
        let (width, count) = (dtype.size(), columns.len());
        let bytes = memory::filled(rows.saturating_mul(count).saturating_mul(width), 0)?;
        let parts = columns.iter().map(|column| column.name().to_owned()).collect();
        let mut stacked = Self { name: name.to_owned(), parts, dtype, bytes, faults: Vec::new() };
        for row in 0..rows {
            for (i, column) in columns.iter().enumerate() {
                let start = (row * count + i) * width;
                let target = &mut stacked.bytes[start..start + width];
                if let Err(reason) = copy(*column, row, dtype, target) {
                    let part = Some(column.name().to_owned());
                    stacked.faults.push((row, Fault { part, reason }));
                    break;
                }
            }
        }
        Ok(stacked)
    }
}

/// Copies the only element of a row.
fn copy(column: &dyn Column, row: usize, dtype: ScalarType, target: &mut [u8]) -> Result<(), String> {
    let Row { bytes, .. } = column.row(row).map_err(|fault| fault.reason)?;
    match bytes.len() / column.dtype().size() {
        1 => convert::convert(column.dtype(), bytes, dtype, target),
        other => Err(format!("it has {other} elements, and an element of the input takes one")),
    }
}

impl Column for Stacked {
    fn name(&self) -> &str {
        &self.name
    }

    fn rows(&self) -> usize {
        self.bytes.len() / (self.parts.len() * self.dtype.size()).max(1)
    }

    fn dtype(&self) -> ScalarType {
        self.dtype
    }

    fn row(&self, index: usize) -> Result<Row<'_>, Fault> {
        if let Ok(at) = self.faults.binary_search_by_key(&index, |(row, _)| *row) {
            return Err(self.faults[at].1.clone());
        }
        let len = self.parts.len() * self.dtype.size();
        let sizes = Shape::new(&[self.parts.len()]).map_err(|error| error.to_string())?;
        Ok(Row { bytes: &self.bytes[index * len..(index + 1) * len], sizes })
    }

    fn part(&self, element: usize) -> Option<&str> {
        self.parts.get(element).map(String::as_str)
    }
}
