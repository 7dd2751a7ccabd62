//! Rewrites matrix products with constant weights to `linear`, the form that is quantized and that backends match.
//!
//! Archives that were already decomposed, and programs that are recompiled, have `mm` and `addmm` of matrices between
//! views. Their weights are those of `linear`, transposed: by a `permute` node, or in memory once constants are folded.

use super::dead;
use crate::Result;
use pteron_exported::{Argument, ConstantTensor, ExportedNode, ExportedProgram, Size, TensorSpec, VarId};
use pteron_tensor::ScalarType;
use std::collections::HashMap;
use std::sync::Arc;

/// The kind of weights of the products that are rewritten to `linear`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weights {
    /// Products whose weights are dequantized by nodes.
    Dequantized,
    /// Products whose weights are float32 constants.
    Constant,
}

/// Rewrites products whose weights are of the kind `of` to `linear`; products of two computed matrices stay.
pub(crate) fn to_linear(program: &mut ExportedProgram, of: Weights) -> Result<()> {
    let mut makers: HashMap<VarId, usize> = HashMap::new();
    let mut rows_of: HashMap<VarId, VarId> = HashMap::new();
    let mut changed = false;
    for index in 0..program.graph.nodes.len() {
        let node = program.graph.nodes[index].clone();
        if let Some(operands) = linear_operands(program, &node) {
            let maker = |var: VarId| Some(&program.graph.nodes[*makers.get(&var)?]);
            let rows = match rows_of.get(&operands.weight) {
                Some(&rows) => Some(rows),
                None => permute_operand(program, operands.weight, of, maker).or_else(|| match of {
                    Weights::Constant => transpose_constant(program, operands.weight),
                    Weights::Dequantized => None,
                }),
            };
            if let Some(rows) = rows {
                rows_of.insert(operands.weight, rows);
                let node = &mut program.graph.nodes[index];
                node.target = "aten.linear.default".into();
                let bias = operands.bias.map_or(Argument::None, Argument::Var);
                let args =
                    [("input", Argument::Var(operands.x)), ("weight", Argument::Var(rows)), ("bias", bias)];
                node.args = args.into_iter().map(|(name, arg)| (Arc::from(name), arg)).collect();
                changed = true;
            }
        }
        makers.extend(node.outputs.iter().map(|&var| (var, index)));
    }
    if changed {
        absorb_views(program);
        dead::run(program)?;
    }
    Ok(())
}

/// The operands of `x weight + bias`.
struct Operands {
    x: VarId,
    weight: VarId,
    bias: Option<VarId>,
}

/// The operands of a product that `linear` can compute; `None` for other nodes.
fn linear_operands(program: &ExportedProgram, node: &ExportedNode) -> Option<Operands> {
    let operand = |name: &str| node.arg(name).and_then(Argument::var);
    let is_one = |name: &str| match node.arg(name) {
        None | Some(Argument::Int(1)) => true,
        Some(Argument::Float(factor)) => *factor == 1.0,
        _ => false,
    };
    match &*node.target {
        "aten.mm.default" => Some(Operands { x: operand("self")?, weight: operand("mat2")?, bias: None }),
        "aten.addmm.default" if is_one("alpha") && is_one("beta") => {
            let (x, weight, bias) = (operand("mat1")?, operand("mat2")?, operand("self")?);
            let columns = program.spec(weight)?.sizes.get(1)?;
            let spec = program.spec(bias)?;
            let fits = spec.dtype == ScalarType::Float && spec.sizes.iter().eq([columns]);
            fits.then_some(Operands { x, weight, bias: Some(bias) })
        }
        _ => None,
    }
}

/// The transposed source of `matrix`, if that is the result of a `permute` node and the source is weights of this kind.
fn permute_operand<'p>(
    program: &'p ExportedProgram,
    matrix: VarId,
    of: Weights,
    maker: impl Fn(VarId) -> Option<&'p ExportedNode>,
) -> Option<VarId> {
    let node = maker(matrix).filter(|node| *node.target == *"aten.permute.default")?;
    let dims = node.arg("dims")?.known_ints()?;
    let rows = node.arg("self")?.var().filter(|_| matches!(dims[..], [1 | -1, 0 | -2]))?;
    let fits = match of {
        Weights::Constant => is_constant(program, rows),
        Weights::Dequantized => {
            let mut made_by = maker(rows)?;
            if *made_by.target == *"aten.view.default" {
                made_by = maker(made_by.arg("self")?.var()?)?;
            }
            made_by.target.starts_with("quantized_decomposed.dequantize")
        }
    };
    fits.then_some(rows)
}

fn is_constant(program: &ExportedProgram, var: VarId) -> bool {
    let is_float = program.spec(var).is_some_and(|spec| spec.dtype == ScalarType::Float);
    is_float && program.constants.contains_key(&var) && !program.is_mutated(var)
}

/// Transposes a constant second operand in memory to the weights of `linear`, one row for each output.
fn transpose_constant(program: &mut ExportedProgram, matrix: VarId) -> Option<VarId> {
    if !is_constant(program, matrix) {
        return None;
    }
    let &[inner, outputs] = &program.spec(matrix)?.known_sizes()?[..] else { return None };
    let (inner, outputs) = (usize::try_from(inner).ok()?, usize::try_from(outputs).ok()?);
    let data = program.row_major_bytes(matrix)?;
    let weights = data.bytes().as_chunks::<4>().0;
    let turned = (0..outputs).flat_map(|row| (0..inner).map(move |column| column * outputs + row));
    let bytes: Vec<u8> = turned.flat_map(|i| weights[i]).collect();
    let name = program.constants.get(&matrix)?.name.as_ref();
    let name = name.map(|name| Arc::from(format!("{name}.transposed")));
    let range = 0..bytes.len();
    let var = format!("{}_transposed_{}", program.var(matrix).name, program.num_vars());
    let sizes = [outputs, inner].map(|n| Size::Int(n as i64)).to_vec();
    let spec = TensorSpec::contiguous(ScalarType::Float, sizes);
    Some(program.add_constant(var, spec, ConstantTensor { name, bytes: Arc::new(bytes), range }))
}

/// Where a view flattens a tensor to the matrix that `linear` multiplies, and another view restores the leading
/// dimensions of the result, lets `linear` work on the tensor itself.
fn absorb_views(program: &mut ExportedProgram) {
    let uses = program.use_counts();
    let mut viewed: HashMap<VarId, VarId> = HashMap::new();
    let mut products: HashMap<VarId, usize> = HashMap::new();
    for index in 0..program.graph.nodes.len() {
        let node = &program.graph.nodes[index];
        let Some(&out) = node.outputs.first() else { continue };
        match &*node.target {
            "aten.linear.default" => {
                products.insert(out, index);
            }
            "aten.view.default" => {
                let Some(x) = node.arg("self").and_then(Argument::var) else { continue };
                viewed.insert(out, x);
                let Some(&at) = products.get(&x).filter(|_| uses[x.index()] == 1) else { continue };
                let Some(input) = program.graph.nodes[at].arg("input").and_then(Argument::var) else {
                    continue;
                };
                let Some(&source) =
                    viewed.get(&input).filter(|&&source| has_same_rows(program, source, input, out))
                else {
                    continue;
                };
                let product = &mut program.graph.nodes[at];
                product.outputs[0] = out;
                for (name, arg) in &mut product.args {
                    if &**name == "input" {
                        *arg = Argument::Var(source);
                    }
                }
                // The view now defines the product's old result, which is unused.
                program.graph.nodes[index].outputs[0] = x;
            }
            _ => {}
        }
    }
    // Drops such views, which now read their own result.
    program.graph.nodes.retain(|node| {
        let is_own = |var: VarId| node.outputs.first() == Some(&var);
        *node.target != *"aten.view.default" || !node.arg("self").and_then(Argument::var).is_some_and(is_own)
    });
}

/// Whether `matrix` is `source` with its leading dimensions flattened, and `result` has the same leading dimensions.
fn has_same_rows(program: &ExportedProgram, source: VarId, matrix: VarId, result: VarId) -> bool {
    let specs = [source, matrix, result].map(|var| program.spec(var));
    let [Some(source), Some(matrix), Some(result)] = specs else { return false };
    let (Some((inner, rows)), Some((_, out_rows))) = (source.sizes.split_last(), result.sizes.split_last())
    else {
        return false;
    };
    matrix.sizes.last() == Some(inner)
        && rows == out_rows
        && source.dim_order.is_contiguous()
        && result.dim_order.is_contiguous()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::{FirstOperands, Quantize, expect_quantized, run};
    use pteron_exported::{InputKind, VarType};
    use std::collections::BTreeSet;

    const MATRIX: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

    fn push(
        program: &mut ExportedProgram,
        target: &str,
        args: Vec<(&str, Argument)>,
        spec: TensorSpec,
    ) -> VarId {
        let out = program.add_var(format!("v{}", program.num_vars()), VarType::Tensor(spec));
        program.graph.nodes.push(ExportedNode {
            target: target.into(),
            args: args.into_iter().map(|(name, arg)| (name.into(), arg)).collect(),
            outputs: vec![out],
            source: Arc::default(),
        });
        out
    }

    /// `x w + b` with a 4 x 3 matrix `x` and a 3 x 2 matrix `w`, computed by `target`.
    fn program(target: &str, is_permuted: bool, alpha: i64) -> ExportedProgram {
        let mut program = ExportedProgram::new("forward");
        let of = |sizes: &[i64]| {
            TensorSpec::contiguous(ScalarType::Float, sizes.iter().map(|&n| Size::Int(n)).collect())
        };
        let x = program.add_var("x", VarType::Tensor(of(&[4, 3])));
        program.graph.inputs.push(x);
        program.inputs.push(InputKind::User);
        let add = |program: &mut ExportedProgram, name: &str, spec: TensorSpec, values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let range = 0..bytes.len();
            program.add_constant(
                name.to_owned(),
                spec,
                ConstantTensor { name: None, bytes: Arc::new(bytes), range },
            )
        };
        let bias = add(&mut program, "b", of(&[2]), &[0.5, -0.5]);
        let weight = match is_permuted {
            false => add(&mut program, "w", of(&[3, 2]), &MATRIX),
            true => {
                let rows = add(&mut program, "w", of(&[2, 3]), &[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
                let args = vec![("self", Argument::Var(rows)), ("dims", Argument::ints(&[1, 0]))];
                push(&mut program, "aten.permute.default", args, of(&[3, 2]))
            }
        };
        let args = match target {
            "aten.mm.default" => vec![("self", Argument::Var(x)), ("mat2", Argument::Var(weight))],
            _ => vec![
                ("self", Argument::Var(bias)),
                ("mat1", Argument::Var(x)),
                ("mat2", Argument::Var(weight)),
                ("beta", Argument::Int(1)),
                ("alpha", Argument::Int(alpha)),
            ],
        };
        let out = push(&mut program, target, args, of(&[4, 2]));
        program.graph.outputs.push(Argument::Var(out));
        program.verify().unwrap();
        program
    }

    #[test]
    fn products_of_constants_become_linear_with_a_row_for_each_output() {
        for target in ["aten.mm.default", "aten.addmm.default"] {
            for is_permuted in [false, true] {
                let mut program = program(target, is_permuted, 1);
                to_linear(&mut program, Weights::Constant).unwrap();
                program.verify().unwrap();
                let node = program.graph.nodes.last().unwrap();
                assert_eq!(&*node.target, "aten.linear.default");
                let weight = node.arg("weight").and_then(Argument::var).unwrap();
                assert_eq!(program.spec(weight).unwrap().known_sizes().unwrap(), [2, 3]);
                let rows: Vec<u8> =
                    [1f32, 3.0, 5.0, 2.0, 4.0, 6.0].iter().flat_map(|w| w.to_le_bytes()).collect();
                assert_eq!(program.constants[&weight].data(), rows);
                assert!(program.graph.nodes.iter().all(|node| *node.target != *"aten.permute.default"));
                let has_bias = node.arg("bias").and_then(Argument::var).is_some();
                assert_eq!(has_bias, target == "aten.addmm.default");
            }
        }
    }

    #[test]
    fn a_scaled_product_is_left_and_reported() {
        let mut program = program("aten.addmm.default", false, 2);
        let outcome = run(&mut program, &Quantize::Dynamic, &BTreeSet::new(), FirstOperands::ByRow).unwrap();
        assert!(outcome.layers.is_empty());
        assert_eq!(outcome.left.len(), 1);
        let refused = expect_quantized(&Quantize::Dynamic, [&outcome].into_iter()).unwrap_err();
        assert!(refused.to_string().contains("(aten.addmm.default): it scales"), "{refused}");
    }

    #[test]
    fn weights_that_do_not_divide_into_groups_are_left_and_reported() {
        let mut program = program("aten.mm.default", false, 1);
        let how = Quantize::FourBits { group: 32 };
        let outcome = run(&mut program, &how, &BTreeSet::new(), FirstOperands::ByRow).unwrap();
        let refused = expect_quantized(&how, [&outcome].into_iter()).unwrap_err().to_string();
        assert!(refused.contains("rows of 3 weights are no whole groups of 32"), "{refused}");
        let outcome = run(&mut program, &Quantize::Dynamic, &BTreeSet::new(), FirstOperands::ByRow).unwrap();
        expect_quantized(&Quantize::Dynamic, [&outcome].into_iter()).unwrap();
        assert_eq!(outcome.layers.len(), 1);
    }

    #[test]
    fn linear_absorbs_the_views_around_it() {
        let mut program = program("aten.addmm.default", true, 1);
        let of = |sizes: &[i64]| {
            TensorSpec::contiguous(ScalarType::Float, sizes.iter().map(|&n| Size::Int(n)).collect())
        };
        // `x` is a view of a 2 x 2 x 3 tensor, and the 4 x 2 result is viewed as 2 x 2 x 2.
        let full = program.add_var("full", VarType::Tensor(of(&[2, 2, 3])));
        let x = std::mem::replace(&mut program.graph.inputs[0], full);
        let view = |program: &ExportedProgram, from: VarId, to: VarId| ExportedNode {
            target: "aten.view.default".into(),
            args: vec![
                ("self".into(), Argument::Var(from)),
                ("size".into(), Argument::ints(&program.spec(to).unwrap().known_sizes().unwrap())),
            ],
            outputs: vec![to],
            source: Arc::default(),
        };
        let product = program.graph.outputs[0].var().unwrap();
        let out = program.add_var("out", VarType::Tensor(of(&[2, 2, 2])));
        let (before, behind) = (view(&program, full, x), view(&program, product, out));
        program.graph.nodes.insert(0, before);
        program.graph.nodes.push(behind);
        program.graph.outputs = vec![Argument::Var(out)];
        program.verify().unwrap();
        to_linear(&mut program, Weights::Constant).unwrap();
        program.verify().unwrap();
        let [node] = &program.graph.nodes[..] else { panic!("{}", program.listing(Default::default())) };
        assert_eq!(node.arg("input").and_then(Argument::var), Some(full));
        assert_eq!(node.outputs, [out]);
    }
}
