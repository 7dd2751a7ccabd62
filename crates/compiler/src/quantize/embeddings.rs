//! Embedding tables of int8 rows, each with a scale, as ExecuTorch's `embedding_byte` reads them.

use super::layers::{Range, layer_summary, quantize_symmetric};
use super::{KEPT, Outcome, add_derived_constant, float_node, floats, static_spec};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A quantized embedding table: its rows, their scales, and the relative error of the quantization.
type Table = (VarId, VarId, f64);

/// Quantizes the tables of embeddings that are float32 constants. Embeddings of one table share its rows.
pub(super) fn run(program: &mut ExportedProgram, outcome: &mut Outcome, keep: &HashSet<VarId>) {
    let mut tables = HashMap::new();
    let mut nodes = std::mem::take(&mut program.graph.nodes);
    for node in nodes.iter_mut().filter(|node| *node.target == *"aten.embedding.default") {
        if keep.contains(&node.outputs[0]) {
            outcome.left.push(float_node(program, node, KEPT));
            continue;
        }
        match quantize_embedding(program, node, &mut tables) {
            Some(error) => {
                outcome.nodes.push(program.node_name(node));
                outcome.layers.push(layer_summary(program, node, error));
                node.target = "quantized_decomposed.embedding_byte.default".into();
            }
            None => {
                outcome.left.push(float_node(program, node, "its table is no constant matrix of float32"))
            }
        }
    }
    program.graph.nodes = nodes;
}

/// The arguments of `quantized_decomposed.embedding_byte` for an int8 table with a scale for each row.
pub(crate) fn quantized_embedding_args(
    rows: VarId,
    scales: VarId,
    indices: Argument,
) -> Vec<(Arc<str>, Argument)> {
    let args = [
        ("weight", Argument::Var(rows)),
        ("weight_scales", Argument::Var(scales)),
        ("weight_zero_points", Argument::None),
        ("weight_quant_min", Argument::Int(Range::EIGHT_BITS.low.into())),
        ("weight_quant_max", Argument::Int(Range::EIGHT_BITS.high.into())),
        ("indices", indices),
    ];
    args.into_iter().map(|(name, arg)| (name.into(), arg)).collect()
}

/// Replaces an embedding's arguments by those for its quantized table. Returns the table's error.
fn quantize_embedding(
    program: &mut ExportedProgram,
    node: &mut ExportedNode,
    tables: &mut HashMap<VarId, Table>,
) -> Option<f64> {
    let weight = node.arg("weight")?.var()?;
    let indices = node.arg("indices")?.clone();
    let (rows, scales, error) = match tables.get(&weight) {
        Some(table) => *table,
        None => {
            let table = quantize_table(program, weight)?;
            *tables.entry(weight).or_insert(table)
        }
    };
    node.args = quantized_embedding_args(rows, scales, indices);
    Some(error)
}

fn quantize_table(program: &mut ExportedProgram, weight: VarId) -> Option<Table> {
    let weights = floats(program, weight)?;
    let &[rows, columns] = &program.spec(weight)?.known_sizes()?[..] else { return None };
    let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok().filter(|&n| n > 0)?);
    let table = quantize_symmetric(&weights, rows, |i| i / columns, Range::EIGHT_BITS);
    let bytes = table.values.iter().map(|&n| n as u8).collect();
    let scales = table.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let rows_var =
        add_derived_constant(program, weight, "int", static_spec(ScalarType::Char, &[rows, columns]), bytes);
    let scales_var =
        add_derived_constant(program, weight, "scales", static_spec(ScalarType::Float, &[rows]), scales);
    Some((rows_var, scales_var, table.error))
}
