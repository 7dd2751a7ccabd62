//! Converts Arrow columns to rows of a program's inputs, and outputs to Arrow columns.

use datafusion::arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanBufferBuilder, FixedSizeListArray, ListArray, make_array,
};
use datafusion::arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::error::{DataFusionError, Result};
use pteron::tools::batch::{Cells, Column, OutputColumn, Row, Spec};
use pteron::{ScalarType, Shape};
use std::sync::Arc;

/// The element types that both Pteron and Arrow support.
const TYPES: [(ScalarType, DataType); 9] = [
    (ScalarType::Float, DataType::Float32),
    (ScalarType::Double, DataType::Float64),
    (ScalarType::Half, DataType::Float16),
    (ScalarType::Char, DataType::Int8),
    (ScalarType::Short, DataType::Int16),
    (ScalarType::Int, DataType::Int32),
    (ScalarType::Long, DataType::Int64),
    (ScalarType::Byte, DataType::UInt8),
    (ScalarType::UInt16, DataType::UInt16),
];

fn dtype(of: &DataType) -> Option<ScalarType> {
    TYPES.iter().find(|(_, arrow)| arrow == of).map(|(dtype, _)| *dtype)
}

fn elements(spec: &Spec) -> usize {
    spec.row.iter().product()
}

/// The type of a result column: a primitive type if a row has exactly one element, otherwise a list type.
pub(crate) fn arrow_type(spec: &Spec) -> Result<DataType> {
    let Some((_, item)) = TYPES.iter().find(|(dtype, _)| *dtype == spec.dtype) else {
        return Err(DataFusionError::Plan(format!(
            "{} is {}, of which no column is made",
            spec.label("output"),
            spec.dtype
        )));
    };
    let field = Arc::new(Field::new_list_field(item.clone(), true));
    Ok(match (spec.is_dynamic, elements(spec)) {
        (false, 1) => item.clone(),
        (false, count) => DataType::FixedSizeList(field, i32::try_from(count).unwrap_or(i32::MAX)),
        (true, _) => DataType::List(field),
    })
}

/// An argument of the function.
pub(crate) struct Argument {
    name: String,
    array: ArrayRef,
    /// The elements of all rows, their type and their bytes.
    elements: ArrayRef,
    dtype: ScalarType,
    bytes: Buffer,
}

impl Argument {
    pub(crate) fn new(name: String, array: ArrayRef) -> Result<Self> {
        let elements = match array.data_type() {
            DataType::List(_) => Arc::clone(array.as_list::<i32>().values()),
            DataType::LargeList(_) => Arc::clone(array.as_list::<i64>().values()),
            DataType::FixedSizeList(..) => Arc::clone(array.as_fixed_size_list().values()),
            _ => Arc::clone(&array),
        };
        let Some(dtype) = dtype(elements.data_type()) else {
            return Err(DataFusionError::Execution(format!(
                "{name} is {}, expected numbers or lists of numbers",
                array.data_type()
            )));
        };
        // A primitive array has one buffer, of which it may be a slice.
        let data = elements.to_data();
        let bytes =
            data.buffers()[0].slice_with_length(data.offset() * dtype.size(), data.len() * dtype.size());
        Ok(Self { name, array, elements, dtype, bytes })
    }

    /// The index of a row's first element and, for lists, the number of elements.
    fn place(&self, row: usize) -> (usize, Option<usize>) {
        match self.array.data_type() {
            DataType::List(_) => {
                let offsets = self.array.as_list::<i32>().value_offsets();
                (offsets[row] as usize, Some((offsets[row + 1] - offsets[row]) as usize))
            }
            DataType::LargeList(_) => {
                let offsets = self.array.as_list::<i64>().value_offsets();
                (offsets[row] as usize, Some((offsets[row + 1] - offsets[row]) as usize))
            }
            DataType::FixedSizeList(_, size) => (row * *size as usize, Some(*size as usize)),
            _ => (row, None),
        }
    }
}

impl Column for Argument {
    fn name(&self) -> &str {
        &self.name
    }

    fn rows(&self) -> usize {
        self.array.len()
    }

    fn dtype(&self) -> ScalarType {
        self.dtype
    }

    fn row(&self, index: usize) -> std::result::Result<Row<'_>, String> {
        if self.array.is_null(index) {
            return Err("it is null".to_owned());
        }
        let (start, len) = self.place(index);
        let count = len.unwrap_or(1);
        // For lists, any element may be null.
        if (start..start + count).any(|i| self.elements.is_null(i)) {
            return Err("an element is null".to_owned());
        }
        let sizes = len.map_or(Shape::new(&[]), |len| Shape::new(&[len])).map_err(|e| e.to_string())?;
        let width = self.dtype.size();
        Ok(Row { bytes: &self.bytes[start * width..][..count * width], sizes })
    }
}

/// The Arrow array of a result column, null in the rows without a result.
pub(crate) fn array(column: OutputColumn) -> Result<ArrayRef> {
    let made = arrow_type(&column.spec)?;
    let mut valid = BooleanBufferBuilder::new(column.valid.len());
    column.valid.iter().for_each(|&valid_row| valid.append(valid_row));
    let nulls = Some(NullBuffer::new(valid.finish()));
    let primitive = |item: &DataType, bytes: Vec<u8>| -> Result<ArrayRef> {
        let width = column.spec.dtype.size();
        let data =
            ArrayData::builder(item.clone()).len(bytes.len() / width).add_buffer(Buffer::from_vec(bytes));
        Ok(make_array(data.align_buffers(true).build()?))
    };
    let lengths = match &column.cells {
        Cells::Equal { row, .. } => vec![row.iter().product(); column.valid.len()],
        Cells::Ragged { rows, .. } => rows.iter().map(|row| row.iter().product()).collect::<Vec<usize>>(),
    };
    let (Cells::Equal { bytes, .. } | Cells::Ragged { bytes, .. }) = column.cells;
    Ok(match made {
        DataType::List(field) => {
            let items = primitive(field.data_type(), bytes)?;
            Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), items, nulls)?)
        }
        DataType::FixedSizeList(field, size) => {
            let items = primitive(field.data_type(), bytes)?;
            Arc::new(FixedSizeListArray::try_new(field, size, items, nulls)?)
        }
        item => {
            let data = primitive(&item, bytes)?.to_data().into_builder().nulls(nulls);
            make_array(data.build()?)
        }
    })
}
