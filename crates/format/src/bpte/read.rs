use super::{
    BundledMethodTestCase, BundledMethodTestSuite, BundledProgram, IDENTIFIER, SCHEMA_VERSION, Tensor, Value,
};
use crate::container::{Head, Magic};
use crate::flatbuffer::{In, Path, Reader};
use crate::shape::Shape;
use crate::{Error, ErrorKind, FileKind, Limits, Result};
use std::collections::HashMap;

/// Reads and verifies a bundled program; `file` is the whole file.
///
/// Checks the structure of the flatbuffer, the schema version, that every tensor has a valid shape and exactly the
/// bytes that its shape requires, and that no method has two suites. The program inside is checked when it is opened.
pub fn read(file: &[u8], limits: &Limits) -> Result<BundledProgram> {
    let head = Head::new(file, file.len() as u64, FileKind::Bpte)?;
    head.check_magic(4, Magic { identifier: IDENTIFIER, kind: FileKind::Bpte })?;
    let bundle = Reader::new(file, 0, limits).root(|t| read_bundled_program(t, limits))?;
    let mut seen = HashMap::new();
    for (index, suite) in bundle.method_test_suites.iter().enumerate() {
        if let Some(first) = seen.insert(suite.method_name.as_str(), index) {
            let path = format!("method_test_suites[{index}].method_name");
            let expected = format!("a method other than that of method_test_suites[{first}]");
            return Err(Error::new(
                ErrorKind::Invalid,
                path,
                expected,
                format_args!("`{}`", suite.method_name),
            ));
        }
    }
    Ok(bundle)
}

fn read_bundled_program(t: In<'_, '_, '_>, limits: &Limits) -> Result<BundledProgram> {
    let version = t.get(0, "version", 0)?;
    if version > SCHEMA_VERSION {
        let expected = format!("at most {SCHEMA_VERSION}, the schema version this reader supports");
        return Err(t.error(ErrorKind::Newer, 0, "version", expected, version));
    }
    let Some(program) = t.byte_range(2, "program")? else {
        return Err(t.error(ErrorKind::Invalid, 2, "program", "a program", "nothing"));
    };
    let method_test_suites = t.tables(1, "method_test_suites", |t| {
        Ok(BundledMethodTestSuite {
            method_name: t.required_string(0, "method_name")?,
            test_cases: t.tables(1, "test_cases", |t| {
                Ok(BundledMethodTestCase {
                    inputs: t.tables(0, "inputs", |t| read_value(t, limits))?,
                    expected_outputs: t.tables(1, "expected_outputs", |t| read_value(t, limits))?,
                })
            })?,
        })
    })?;
    Ok(BundledProgram { version, method_test_suites, program })
}

fn read_value(t: In<'_, '_, '_>, limits: &Limits) -> Result<Value> {
    let value = t.union(0, "val", |kind, v| {
        Ok(match kind {
            1 => Value::Tensor(read_tensor(v, limits)?),
            2 => Value::Int(v.get(0, "int_val", 0)?),
            3 => Value::Bool(v.get(0, "bool_val", false)?),
            4 => Value::Double(v.get(0, "double_val", 0.0)?),
            other => {
                let actual = format_args!("kind {other}");
                return Err(v
                    .error_here(ErrorKind::Newer, "a kind of value known to this reader", actual)
                    .hint("the file is newer than this reader, or damaged"));
            }
        })
    })?;
    value.ok_or_else(|| t.error(ErrorKind::Structure, 0, "val", "a value", "nothing"))
}

fn read_tensor(t: In<'_, '_, '_>, limits: &Limits) -> Result<Tensor> {
    let tensor = Tensor {
        scalar_type: t.get(0, "scalar_type", 0)?,
        sizes: t.scalars(1, "sizes")?,
        data: t.bytes(2, "data")?,
        dim_order: t.scalars(3, "dim_order")?,
    };
    let shape = Shape { scalar_type: tensor.scalar_type, sizes: &tensor.sizes, dim_order: &tensor.dim_order };
    let mut first = None;
    let checked = shape.check(limits.tensor_bytes, Path::ROOT, |error| _ = first.get_or_insert(error));
    match (checked, first) {
        (Some((_, nbytes)), None) if nbytes == tensor.data.len() as u64 => Ok(tensor),
        (Some((_, nbytes)), None) => {
            let expected = format!("{nbytes} bytes, as type and sizes say");
            Err(t.error(ErrorKind::Invalid, 2, "data", expected, tensor.data.len()))
        }
        (_, Some(error)) => {
            let place = t.error_here(error.kind(), "", "");
            Err(error.within(place.path()).at(place.offset().unwrap_or(0)))
        }
        (None, None) => Err(t.error_here(ErrorKind::Invalid, "a tensor's shape", "none")),
    }
}
