//! The example inputs that a model was exported with.
//!
//! An archive keeps them in a file of `torch.save`: pickled objects, with the raw storages of their tensors beside
//! them. Nothing is unpickled. Storages are numbered in the order in which the objects refer to them, i.e. the order of
//! the model's inputs; types, sizes and strides are taken from the inputs. If the two do not match (a tensor was passed
//! twice, or is a view of a larger one), there are no examples.

use super::archive::{Archive, ArchiveFile};
use super::model;
use super::schema::{Argument, Graph, InputSpec, Model, SymInt};
use super::weights::View;
use crate::{Error, Result};
use pteron_exported::CompileBudget;
use pteron_ir::SharedBytes;
use pteron_tensor::ScalarType;

/// An example input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleInput {
    /// The element type.
    pub dtype: ScalarType,
    /// The sizes, outermost dimension first.
    pub sizes: Vec<usize>,
    /// The elements in row-major order, little-endian.
    pub elements: Vec<u8>,
}

/// The example inputs of a method, in the order of its inputs; `None` if the archive has none that can be read without
/// unpickling. Their elements are taken from `budget`.
///
/// # Errors
/// The archive is malformed, or needs more memory than the budget has.
pub fn example_inputs(
    file: &dyn ArchiveFile,
    method: &str,
    budget: &CompileBudget,
) -> Result<Option<Vec<ExampleInput>>> {
    let mut archive = Archive::open(file, budget)?;
    let name = match method {
        "forward" if archive.contains("models/model.json") => "model",
        name => name,
    };
    let record = format!("data/sample_inputs/{name}.pt");
    if !archive.contains(&record) {
        return Ok(None);
    }
    let model = model::parse(&mut archive, name)?;
    let saved = archive.read_record(&record)?;
    let Ok(mut saved) = Archive::open(&saved, budget) else { return Ok(None) };
    read_examples(&model, &mut saved)
}

fn read_examples(model: &Model, saved: &mut Archive<'_>) -> Result<Option<Vec<ExampleInput>>> {
    let graph = &model.graph_module.graph;
    let inputs = graph.inputs.iter().zip(&model.graph_module.signature.input_specs);
    let mut examples = Vec::new();
    for (input, spec) in inputs {
        let (Argument::AsTensor(value), InputSpec::UserInput {}) = (input, spec) else { continue };
        let Some((view, storage, len)) = read_example(graph, &value.name, saved, examples.len()) else {
            return Ok(None);
        };
        if let Err(limit) = saved.budget().charge("copying it", len) {
            return Err(Error::archive(format!("the example input `{}`", value.name), limit.to_string()));
        }
        let Some(elements) = view.copy_row_major(storage.bytes(), len) else { return Ok(None) };
        examples.push(ExampleInput { dtype: view.dtype, sizes: view.sizes, elements });
    }
    let is_little = saved.read_text("byteorder").is_ok_and(|order| order.bytes() == b"little");
    Ok((is_little && !saved.contains(&format!("data/{}", examples.len()))).then_some(examples))
}

/// The view of an input into the storage `number`, that storage, and the input's size in bytes.
fn read_example(
    graph: &Graph,
    input: &str,
    saved: &mut Archive<'_>,
    number: usize,
) -> Option<(View, SharedBytes, usize)> {
    let view = View::from_meta(graph.tensor_values.get(input)?, size_at_export).ok()?;
    let storage = saved.read_record(&format!("data/{number}")).ok()?;
    let (_, end) = view.extent()?;
    let len = view.nbytes()?;
    (end == storage.len()).then_some((view, storage, len))
}

/// The value of a size when the model was exported.
fn size_at_export(size: &SymInt) -> Result<usize, String> {
    let number = match size {
        SymInt::AsInt(v) => Some(*v),
        SymInt::AsExpr(e) => e.hint.as_ref().and_then(|hint| hint.as_int),
    };
    number.and_then(|v| usize::try_from(v).ok()).ok_or_else(|| "the size is not known".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::zip;
    use super::*;
    use pteron_ir::SharedBytes;
    use serde_json::json;

    fn archive(storages: &[(&str, &[u8])]) -> SharedBytes {
        let size = |n: i64| json!({"as_int": n});
        let symbol = json!({"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}});
        let meta = json!({"dtype": 7, "sizes": [symbol, size(2)], "strides": [size(1), symbol],
                          "storage_offset": size(0)});
        let model = json!({
            "schema_version": {"major": 8, "minor": 1},
            "graph_module": {
                "graph": {"inputs": [{"as_tensor": {"name": "x"}}], "outputs": [], "nodes": [],
                          "tensor_values": {"x": meta}},
                "signature": {"input_specs": [{"user_input": {}}], "output_specs": []},
            },
        });
        let saved = zip(storages);
        let model = model.to_string();
        zip(&[("models/model.json", model.as_bytes()), ("data/sample_inputs/model.pt", saved.bytes())])
    }

    #[test]
    fn storages_are_read_in_the_order_of_inputs() {
        let floats = |f: [f32; 4]| f.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>();
        let storage = floats([1.0, 2.0, 3.0, 4.0]);
        let records = [("byteorder", &b"little"[..]), ("data.pkl", b""), ("data/0", &storage)];
        let inputs =
            example_inputs(&archive(&records), "forward", &CompileBudget::default()).unwrap().unwrap();
        assert_eq!((inputs[0].dtype, &inputs[0].sizes[..]), (ScalarType::Float, &[2, 2][..]));
        assert_eq!(inputs[0].elements, floats([1.0, 3.0, 2.0, 4.0]));

        let long = [&storage[..], &[0; 4]].concat();
        for records in [
            &[("byteorder", &b"big"[..]), ("data/0", &storage)][..],
            &[("byteorder", b"little"), ("data.pkl", b"")],
            &[("byteorder", b"little"), ("data/0", &long)],
            &[("byteorder", b"little"), ("data/0", &storage), ("data/1", b"")],
        ] {
            assert_eq!(
                example_inputs(&archive(records), "forward", &CompileBudget::default()).unwrap(),
                None
            );
        }
        let none = zip(&[("models/model.json", b"{}")]);
        assert_eq!(example_inputs(&none, "forward", &CompileBudget::default()).unwrap(), None);
    }
}
