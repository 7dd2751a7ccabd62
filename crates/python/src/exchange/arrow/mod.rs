//! Import and export of tables by the Arrow PyCapsule interface: `__arrow_c_array__`, `__arrow_c_stream__`.
//!
//! The structs of the C data interface are read and created here; `pteron_batch` reads the rows of arrays and builds those of
//! results. Columns that are only passed through are not read, so
//! they may be of any type.

mod abi;
mod buffers;
mod field;
mod lent;
mod node;

pub(crate) use field::Field;
pub(crate) use node::{Node, Owner};

use abi::{ArrowArray, ArrowArrayStream, ArrowSchema, Owned, capsule};
use pteron_batch::{ArrowColumn, Bitmap, BuiltArray};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Arc;

/// The maximum nesting depth of types and arrays; deeper ones are rejected as malformed. Arrow's own types nest a few levels; copying,
/// exporting and releasing recurse.
const MAX_DEPTH: usize = 64;

fn broken_error(what: &str) -> PyErr {
    PyValueError::new_err(format!(
        "an Arrow {what} is broken: it lacks parts, has a negative size, or is nested deeper than {MAX_DEPTH} levels"
    ))
}

/// An array that was moved from its producer; it is released on drop.
pub(crate) struct ImportedArray(
    #[expect(dead_code, reason = "held only for its destructor")] Owned<ArrowArray>,
);

/// An Arrow array (a column, or a batch of columns) with its type and the owner of its memory.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) field: Field,
    node: Node,
    owner: Arc<Owner>,
}

impl Table {
    fn from_array(field: Field, array: Owned<ArrowArray>) -> PyResult<Self> {
        let node = Node::from_array(&array.0).ok_or_else(|| broken_error("array"))?;
        Ok(Self { field, node, owner: Arc::new(Owner::Imported(ImportedArray(array))) })
    }

    /// Imports an Arrow array from an object that has `__arrow_c_array__`.
    pub(crate) fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let capsules = object.call_method0(pyo3::intern!(object.py(), "__arrow_c_array__"))?;
        let (schema, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = capsules.extract()?;
        let (schema, array) = (Owned::<ArrowSchema>::take(&schema)?, Owned::<ArrowArray>::take(&array)?);
        Self::from_array(Field::from_schema(&schema.0).ok_or_else(|| broken_error("schema"))?, array)
    }

    /// The number of rows of the column or batch.
    pub(crate) fn rows(&self) -> usize {
        self.node.length
    }

    /// The columns of a batch.
    pub(crate) fn columns(&self) -> PyResult<Vec<Self>> {
        if self.field.format() != "+s" {
            return Err(PyTypeError::new_err("a batch of columns is wanted, the Arrow array is no struct"));
        }
        if self.field.children.len() != self.node.children.len() {
            return Err(PyValueError::new_err("an Arrow array has another number of columns than its type"));
        }
        // SAFETY: the owner keeps the node's buffers.
        let valid = unsafe { buffers::validity(&self.node) }.map_err(PyValueError::new_err)?;
        // Without a bitmap, which has a bit for each row, any number of rows may be declared.
        if let Some(bits) = valid {
            let valid = Bitmap { bits, offset: self.node.offset };
            if let Some(row) = (0..self.node.length).find(|&i| !valid.is_set(i)) {
                return Err(PyValueError::new_err(format!("row {row} of the batch is null")));
            }
        }
        let columns = self.field.children.iter().zip(&self.node.children).map(|(field, node)| {
            let node = node.clone().slice_to_parent(&self.node);
            let node = node.ok_or_else(|| PyValueError::new_err("a column has fewer rows than its batch"))?;
            Ok(Self { field: field.clone(), node, owner: Arc::clone(&self.owner) })
        });
        columns.collect()
    }

    /// A reader of the rows of a column, with a name for messages.
    pub(crate) fn rows_of(&self, name: String) -> Result<ArrowColumn<'_>, String> {
        // SAFETY: the field came with the array. The memory is valid while the owner lives, and nobody writes to it: Arrow
        // arrays are immutable.
        let array = unsafe { lent::lend(&self.field, &self.node)? };
        ArrowColumn::new(name, &array)
    }

    /// A column that takes over a newly created array.
    pub(crate) fn from_built(array: BuiltArray) -> Self {
        let mut buffers = Vec::new();
        let (field, node) = lent::take_over(array, &mut buffers);
        Self { field, node, owner: Arc::new(Owner::Buffers(buffers)) }
    }

    /// Combines columns into a batch of `rows` rows.
    pub(crate) fn batch(rows: usize, columns: Vec<Self>) -> Self {
        let mut owners = Vec::with_capacity(columns.len());
        let (mut fields, mut nodes) = (Vec::new(), Vec::new());
        for column in columns {
            fields.push(column.field);
            nodes.push(column.node);
            owners.push(column.owner);
        }
        let node = Node::new(rows, 0, vec![ptr::null()], nodes);
        Self { field: Field::batch(fields), node, owner: Arc::new(Owner::Several(owners)) }
    }

    /// Exports the array to a consumer, as a capsule of its type and a capsule of the array.
    pub(crate) fn export<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let array = capsule(py, self.node.export(&self.owner))?;
        (export_field(py, &self.field)?, array).into_pyobject(py)
    }
}

/// Exports a type as a capsule.
pub(crate) fn export_field<'py>(py: Python<'py>, field: &Field) -> PyResult<Bound<'py, PyCapsule>> {
    capsule(py, field.export())
}

/// An Arrow stream of batches that a producer supplies.
pub(crate) struct Stream {
    stream: Owned<ArrowArrayStream>,
    field: Field,
}

impl Stream {
    /// Imports an Arrow stream from an object that has `__arrow_c_stream__`.
    pub(crate) fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let capsule = object.call_method0(pyo3::intern!(object.py(), "__arrow_c_stream__"))?;
        let mut stream = Owned::<ArrowArrayStream>::take(&capsule)?;
        let mut schema = Owned::<ArrowSchema>::empty();
        let get = stream.0.get_schema;
        // SAFETY: a stream that was not released has this function, which fills an empty struct.
        let code = get.map_or(-1, |get| unsafe { get(&raw mut *stream.0, &raw mut *schema.0) });
        Self::check(&mut stream, code)?;
        Ok(Self { field: Field::from_schema(&schema.0).ok_or_else(|| broken_error("schema"))?, stream })
    }

    fn check(stream: &mut Owned<ArrowArrayStream>, code: c_int) -> PyResult<()> {
        if code == 0 {
            return Ok(());
        }
        let last = stream.0.get_last_error;
        // SAFETY: a stream that was not released has this function, whose result is valid until the next call.
        let message = last.map_or(ptr::null(), |last| unsafe { last(&raw mut *stream.0) });
        let message = abi::text(message);
        Err(PyRuntimeError::new_err(format!(
            "an Arrow stream failed ({code}): {}",
            message.to_string_lossy()
        )))
    }

    /// A batch with the stream's columns and no rows.
    pub(crate) fn empty(&self) -> PyResult<Table> {
        let node = Node::empty(&self.field);
        let node = node
            .ok_or_else(|| PyTypeError::new_err("a table without batches has columns of an unknown type"))?;
        Ok(Table { field: self.field.clone(), node, owner: Arc::new(Owner::Buffers(Vec::new())) })
    }

    /// The next batch; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> PyResult<Option<Table>> {
        use abi::Released;
        let mut array = Owned::<ArrowArray>::empty();
        let get = self.stream.0.get_next;
        // SAFETY: a stream that was not released has this function, which fills an empty struct, or leaves it empty at the end
        // of the stream.
        let code = get.map_or(-1, |get| unsafe { get(&raw mut *self.stream.0, &raw mut *array.0) });
        Self::check(&mut self.stream, code)?;
        match array.0.is_full() {
            true => Table::from_array(self.field.clone(), array).map(Some),
            false => Ok(None),
        }
    }
}

/// The state of an exported stream: the batches that the consumer has not taken yet.
struct Queue {
    field: Field,
    batches: std::vec::IntoIter<Table>,
}

/// Exports a stream of batches as a capsule.
pub(crate) fn export_stream<'py>(
    py: Python<'py>,
    field: Field,
    batches: Vec<Table>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let queue = Box::new(Queue { field, batches: batches.into_iter() });
    let stream = ArrowArrayStream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release_stream),
        private_data: Box::into_raw(queue).cast(),
    };
    capsule(py, stream)
}

unsafe extern "C" fn get_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: `export_stream` leaked the box, and the consumer passes writable memory.
    unsafe { out.write((*(*stream).private_data.cast::<Queue>()).field.export()) };
    0
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    use abi::Released;
    // SAFETY: as in `get_schema`; a consumer does not call the functions of a stream concurrently.
    unsafe {
        let queue = &mut *(*stream).private_data.cast::<Queue>();
        let next = queue.batches.next().map(|table| table.node.export(&table.owner));
        out.write(next.unwrap_or_else(ArrowArray::empty));
    }
    0
}

unsafe extern "C" fn get_last_error(_: *mut ArrowArrayStream) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: `export_stream` leaked the box, and a stream is released once.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<Queue>()));
        (*stream).release = None;
    }
}
