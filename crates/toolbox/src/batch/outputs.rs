use super::Spec;
use crate::{Error, Result};
use pteron_tensor::{ScalarType, Shape, memory};

/// A column of results: the values of one output for all rows.
#[derive(Debug)]
pub struct OutputColumn {
    /// The method's output that the column contains.
    pub spec: Spec,
    /// For each row, whether it has a result.
    pub valid: Vec<bool>,
    /// The elements of all rows.
    pub cells: Cells,
}

/// The elements of a column, in the order of the rows.
#[derive(Debug)]
pub enum Cells {
    /// All rows have the same sizes; rows without a result are filled with zeros.
    Equal {
        /// The sizes of a row.
        row: Shape,
        /// The elements of all rows.
        bytes: Vec<u8>,
    },
    /// Rows differ in size; rows without a result have no elements.
    Ragged {
        /// The sizes of each row.
        rows: Vec<Shape>,
        /// The elements of all rows.
        bytes: Vec<u8>,
    },
}

impl Cells {
    /// The elements of all rows, one row after the other, as bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Equal { bytes, .. } | Self::Ragged { bytes, .. } => bytes,
        }
    }
}

/// Results collected in execution order, which differs from row order.
pub(super) struct Collected {
    dtype: ScalarType,
    bytes: Vec<u8>,
    /// For each row with a result, the offset of its elements in `bytes` and the index of its sizes in `shapes`.
    places: Vec<Option<(usize, usize)>>,
    shapes: Vec<Shape>,
    in_order: bool,
}

impl Collected {
    pub(super) fn new(spec: &Spec, rows: usize) -> Result<Self> {
        let places = memory::filled(rows, None)?;
        Ok(Self { dtype: spec.dtype, bytes: Vec::new(), places, shapes: Vec::new(), in_order: true })
    }

    /// Adds the results of rows that were executed together; each result has the sizes `row`.
    pub(super) fn add(&mut self, rows: &[usize], row: &Shape, bytes: &[u8]) -> Result<()> {
        let shape = match self.shapes.iter().position(|known| known == row) {
            Some(known) => known,
            None => {
                self.shapes.push(*row);
                self.shapes.len() - 1
            }
        };
        let len = bytes.len() / rows.len().max(1);
        if self.bytes.is_empty() {
            self.bytes = memory::with_room(len.saturating_mul(self.places.len()))?;
        }
        let room = self.bytes.try_reserve(bytes.len());
        room.map_err(|_| Error::Tensor(pteron_tensor::Error::OutOfMemory(bytes.len())))?;
        for (i, &index) in rows.iter().enumerate() {
            self.in_order &= index * len == self.bytes.len() + i * len;
            self.places[index] = Some((self.bytes.len() + i * len, shape));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The elements of a row's result; empty if the row has no result.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        let place = self.places[row]
            .and_then(|(start, shape)| Some(start..start + self.row_bytes(&self.shapes[shape]).ok()?));
        place.and_then(|place| self.bytes.get(place)).unwrap_or_default()
    }

    /// Sorts the results into row order.
    pub(super) fn finish(self, spec: &Spec) -> Result<OutputColumn> {
        let valid: Vec<bool> = self.places.iter().map(Option::is_some).collect();
        let rows = valid.len();
        let cells = match &self.shapes[..] {
            // No row has a result: all rows are zeros of the declared sizes.
            [] => {
                let row = Shape::new(&spec.row)?;
                Cells::Equal { bytes: memory::filled(self.row_bytes(&row)? * rows, 0)?, row }
            }
            [row] if self.in_order && valid.iter().all(|&valid| valid) => {
                Cells::Equal { row: *row, bytes: self.bytes }
            }
            [row] => {
                let len = self.row_bytes(row)?;
                let mut bytes = memory::filled(len * rows, 0)?;
                for (place, target) in self.places.iter().zip(bytes.chunks_exact_mut(len.max(1))) {
                    if let &Some((start, _)) = place {
                        target.copy_from_slice(&self.bytes[start..start + len]);
                    }
                }
                Cells::Equal { row: *row, bytes }
            }
            _ => {
                let mut bytes = memory::with_room(self.bytes.len())?;
                let mut sizes = memory::with_room(rows)?;
                let none = vec![0; spec.row.len()];
                for place in &self.places {
                    match *place {
                        Some((start, shape)) => {
                            let shape = self.shapes[shape];
                            bytes.extend_from_slice(&self.bytes[start..start + self.row_bytes(&shape)?]);
                            sizes.push(shape);
                        }
                        None => sizes.push(Shape::new(&none)?),
                    }
                }
                Cells::Ragged { rows: sizes, bytes }
            }
        };
        Ok(OutputColumn { spec: spec.clone(), valid, cells })
    }

    /// The number of bytes of a row with these sizes.
    fn row_bytes(&self, row: &Shape) -> Result<usize> {
        Ok(row.numel()?.saturating_mul(self.dtype.size()))
    }
}
