//! Embedding tables of int8 rows, each with a scale, as ExecuTorch's `embedding_byte` reads them.

use super::layers::{Range, layer, symmetric};
use super::{KEPT, Outcome, constant, floats, left, of_sizes};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;
use std::collections::{HashMap, HashSet};

/// A quantized embedding table: its rows, their scales, and the relative error of the quantization.
type Table = (VarId, VarId, f64);

/// Quantizes the tables of embeddings that are float32 constants. Embeddings of one table share its rows.
pub(super) fn run(program: &mut ExportedProgram, outcome: &mut Outcome, keep: &HashSet<VarId>) {
    let mut tables = HashMap::new();
    let mut nodes = std::mem::take(&mut program.graph.nodes);
    for node in nodes.iter_mut().filter(|node| *node.target == *"aten.embedding.default") {
        if keep.contains(&node.outputs[0]) {
            outcome.left.push(left(program, node, KEPT));
            continue;
        }
        match quantized(program, node, &mut tables) {
            Some(error) => {
                outcome.nodes.push(program.node_name(node));
                outcome.layers.push(layer(program, node, error));
                node.target = "quantized_decomposed.embedding_byte.default".into();
            }
            None => outcome.left.push(left(program, node, "its table is no constant matrix of float32")),
        }
    }
    program.graph.nodes = nodes;
}

/// Gives a node the arguments of an embedding in a quantized table. Returns the table's error.
fn quantized(
    program: &mut ExportedProgram,
    node: &mut ExportedNode,
    tables: &mut HashMap<VarId, Table>,
) -> Option<f64> {
    let weight = node.arg("weight")?.var()?;
    let indices = node.arg("indices")?.clone();
    let (rows, scales, error) = match tables.get(&weight) {
        Some(table) => *table,
        None => {
            let table = table(program, weight)?;
            *tables.entry(weight).or_insert(table)
        }
    };
    let args = [
        ("weight", Argument::Var(rows)),
        ("weight_scales", Argument::Var(scales)),
        ("weight_zero_points", Argument::None),
        ("weight_quant_min", Argument::Int(Range::EIGHT_BITS.low.into())),
        ("weight_quant_max", Argument::Int(Range::EIGHT_BITS.high.into())),
        ("indices", indices),
    ];
    node.args = args.into_iter().map(|(name, arg)| (name.into(), arg)).collect();
    Some(error)
}

fn table(program: &mut ExportedProgram, weight: VarId) -> Option<Table> {
    let weights = floats(program, weight)?;
    let &[rows, columns] = &program.spec(weight)?.known_sizes()?[..] else { return None };
    let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok().filter(|&n| n > 0)?);
    let table = symmetric(&weights, rows, |i| i / columns, Range::EIGHT_BITS);
    let bytes = table.values.iter().map(|&n| n as u8).collect();
    let scales = table.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let rows_var = constant(program, weight, "int", of_sizes(ScalarType::Char, &[rows, columns]), bytes);
    let scales_var = constant(program, weight, "scales", of_sizes(ScalarType::Float, &[rows]), scales);
    Some((rows_var, scales_var, table.error))
}
