use super::{BundledMethodTestCase, BundledMethodTestSuite, IDENTIFIER, SCHEMA_VERSION, Tensor, Value, read};
use crate::flatbuffer::{Field, Ref, Writer};
use crate::{Limits, Result};
use std::io::Write;

/// Alignment of the embedded `.pte` in the file, in bytes.
pub const PROGRAM_ALIGNMENT: usize = 32;

/// Writes a bundled program; `program` is a whole `.pte` file. The file is verified before anything is written to
/// `out`.
///
/// The file is a single flatbuffer, so it is built in memory and limited to 2 GiB.
pub fn write(suites: &[BundledMethodTestSuite], program: &[u8], out: &mut dyn Write) -> Result<()> {
    let mut w = Writer::new();
    let program = w.bytes(program, PROGRAM_ALIGNMENT);
    let suites = w.tables(suites, |w, suite: &BundledMethodTestSuite| {
        let cases = w.tables(&suite.test_cases, |w, case: &BundledMethodTestCase| {
            let outputs = w.tables(&case.expected_outputs, write_value);
            let inputs = w.tables(&case.inputs, write_value);
            w.table(&[inputs.into(), outputs.into()])
        });
        let name = w.string(&suite.method_name);
        w.table(&[name.into(), cases.into()])
    });
    let root = w.table(&[Field::scalar(SCHEMA_VERSION, 0), suites.into(), program.into()]);
    let file = w.finish(root, IDENTIFIER)?.bytes;
    read(&file, &Limits::DEFAULT)?;
    Ok(out.write_all(&file)?)
}

fn write_value(w: &mut Writer, value: &Value) -> Ref {
    let (kind, table) = match value {
        Value::Tensor(value) => (1u8, write_tensor(w, value)),
        Value::Int(value) => (2, w.table(&[Field::scalar(*value, 0)])),
        Value::Bool(value) => (3, w.table(&[Field::scalar(*value, false)])),
        // Compared by bits: -0.0 == 0.0, the default, so a comparison of numbers would omit -0.0.
        Value::Double(value) => (4, w.table(&[Field::scalar(value.to_bits(), 0)])),
    };
    w.table(&[Field::required_scalar(kind), table.into()])
}

fn write_tensor(w: &mut Writer, tensor: &Tensor) -> Ref {
    let dim_order = w.scalars(&tensor.dim_order);
    let data = w.bytes(&tensor.data, 16);
    let sizes = w.scalars(&tensor.sizes);
    w.table(&[Field::scalar(tensor.scalar_type, 0), sizes.into(), data.into(), dim_order.into()])
}
