//! Matrix products, einsum and bilinear forms.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter, broadcast_sizes};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::ScalarType;
use std::collections::HashMap;

pub(super) const RULES: Table = &[
    ("aten.linear", Always, linear),
    ("aten.matmul", Always, matmul),
    ("aten.linalg_matmul", Always, matmul),
    ("aten.bmm", NoKernel, bool_matmul),
    ("aten.baddbmm", NoKernel, baddbmm),
    ("aten.mv", NoKernel, mv),
    ("aten.addmv", NoKernel, mv),
    ("aten.dot", NoKernel, dot),
    ("aten.inner", Always, dot),
    ("aten.outer", Always, outer),
    ("aten.ger", Always, outer),
    ("aten.einsum", Always, einsum),
    ("aten.bilinear", Always, bilinear),
    ("aten._grouped_mm", NoKernel, grouped_mm),
    ("transformers.grouped_mm_fallback", NoKernel, grouped_mm),
];

/// Views a 1-d input as a matrix of one row, as the kernels require; a 1-d weight makes a matrix-vector product.
fn linear(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, weight) = (cx.tensor(node, "input")?, cx.tensor(node, "weight")?);
    let (rank, want) = (cx.spec(node, x)?.rank(), cx.result_spec(node)?);
    let bias = cx.optional_tensor(node, "bias");
    if cx.spec(node, weight)?.rank() == 1 {
        let product = matmul_any_rank(cx, node, x, weight)?;
        let product = cx.view(node, product, want.sizes)?;
        let new = bias.map_or(product, |bias| cx.add(product, bias));
        return cx.replace_node(node, new);
    }
    if rank >= 2 {
        return Ok(Outcome::Kept);
    }
    let row = cx.unsqueeze(node, x, 0)?;
    let product = emit_linear(cx, row, weight, bias);
    let new = cx.view(node, product, want.sizes)?;
    cx.replace_node(node, new)
}

/// `x weight^T + bias`, for `x` of rank 2 or more.
pub(super) fn emit_linear(cx: &mut Rewriter<'_>, x: VarId, weight: VarId, bias: Option<VarId>) -> VarId {
    let mut spec = cx.spec_of(x);
    if let (Some(last), Some(rows)) = (spec.sizes.last_mut(), cx.spec_of(weight).sizes.first()) {
        *last = rows.clone();
    }
    let bias = bias.map_or(Argument::None, Argument::Var);
    let args = vec![("input", Argument::Var(x)), ("weight", Argument::Var(weight)), ("bias", bias)];
    cx.emit("aten.linear.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
}

fn numel(sizes: &[Size]) -> Size {
    sizes.iter().fold(Size::Int(1), |n, s| n.mul(s))
}

fn matmul(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "self")?, cx.tensor(node, "other")?);
    let new = matmul_any_rank(cx, node, a, b)?;
    let want = cx.result_spec(node)?.sizes;
    let new = cx.view(node, new, want)?;
    cx.replace_node(node, new)
}

/// `torch.matmul` for all ranks; vectors become matrices of one row or column.
pub(super) fn matmul_any_rank(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    a: VarId,
    b: VarId,
) -> Result<VarId> {
    let a = if cx.spec_of(a).rank() == 1 { cx.unsqueeze(node, a, 0)? } else { a };
    let b = if cx.spec_of(b).rank() == 1 { cx.unsqueeze(node, b, 1)? } else { b };
    let (x, y) = (cx.spec_of(a).sizes, cx.spec_of(b).sizes);
    if x.len() < 2 || y.len() < 2 {
        return cx.fail(node, "it multiplies tensors without dimensions");
    }
    let (rows, inner, columns) = (x[x.len() - 2].clone(), x[x.len() - 1].clone(), y[y.len() - 1].clone());
    if x.len() == 2 && y.len() == 2 {
        return Ok(cx.matmul(a, b));
    }
    if y.len() == 2 {
        let flat = cx.view(node, a, vec![numel(&x[..x.len() - 1]), inner])?;
        let product = cx.matmul(flat, b);
        let mut sizes = x;
        let last = sizes.len() - 1;
        sizes[last] = columns;
        return cx.view(node, product, sizes);
    }
    let batch = broadcast_sizes(&x[..x.len() - 2], &y[..y.len() - 2]);
    let count = numel(&batch);
    let mut flat = |v: VarId, rows: &Size, columns: &Size| -> Result<VarId> {
        let mut sizes = batch.clone();
        sizes.extend([rows.clone(), columns.clone()]);
        let wide = cx.expand(node, v, sizes)?;
        cx.view(node, wide, vec![count.clone(), rows.clone(), columns.clone()])
    };
    let (a, b) = (flat(a, &rows, &inner)?, flat(b, &inner, &columns)?);
    let product = cx.matmul(a, b);
    let mut sizes = batch;
    sizes.extend([rows, columns]);
    cx.view(node, product, sizes)
}

/// The product of matrices of booleans: whether any product of a row and a column is true.
fn bool_matmul(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "self")?, cx.tensor(node, "mat2")?);
    if [a, b].iter().any(|&x| cx.spec_of(x).dtype != ScalarType::Bool) {
        return Ok(Outcome::Kept);
    }
    let (a, b) = (cx.cast(a, ScalarType::Int), cx.cast(b, ScalarType::Int));
    let counts = cx.matmul(a, b);
    let new = cx.compare("aten.ne.Scalar", counts, 0);
    cx.replace_node(node, new)
}

/// `beta * self + alpha * batch1 batch2`.
fn baddbmm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, a, b) = (cx.tensor(node, "self")?, cx.tensor(node, "batch1")?, cx.tensor(node, "batch2")?);
    let product = cx.matmul(a, b);
    let new = weighted_sum(cx, node, product, x)?;
    cx.replace_node(node, new)
}

/// `alpha * product + beta * x`; PyTorch does not read `x` if beta is 0.
fn weighted_sum(cx: &mut Rewriter<'_>, node: &ExportedNode, product: VarId, x: VarId) -> Result<VarId> {
    let (alpha, beta) = (cx.float(node, "alpha", 1.0)?, cx.float(node, "beta", 1.0)?);
    let is_float = !cx.spec_of(product).dtype.is_integral();
    let scaled = |cx: &mut Rewriter<'_>, x: VarId, factor: f64| match is_float {
        _ if factor == 1.0 => x,
        true => cx.mul(x, factor),
        false => cx.mul(x, factor as i64),
    };
    let product = scaled(cx, product, alpha);
    if beta == 0.0 {
        return Ok(product);
    }
    let x = scaled(cx, x, beta);
    Ok(cx.add(product, x))
}

fn mv(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let is_sum = node.target.starts_with("aten.addmv");
    let (matrix, vector) = (cx.tensor(node, if is_sum { "mat" } else { "self" })?, cx.tensor(node, "vec")?);
    let want = cx.result_spec(node)?.sizes;
    let product = matmul_any_rank(cx, node, matrix, vector)?;
    let mut new = cx.view(node, product, want)?;
    if is_sum {
        let x = cx.tensor(node, "self")?;
        new = weighted_sum(cx, node, new, x)?;
    }
    cx.replace_node(node, new)
}

fn dot(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let a = cx.tensor(node, "self")?;
    let b = match cx.optional_tensor(node, "tensor") {
        Some(b) => b,
        None => cx.tensor(node, "other")?,
    };
    let want = cx.result_spec(node)?.sizes;
    let (x, y) = (cx.spec_of(a), cx.spec_of(b));
    let (Some(inner), Some(last)) = (x.sizes.last().cloned(), y.sizes.last().cloned()) else {
        let new = cx.mul(a, b);
        return cx.replace_node(node, new);
    };
    // The product of every row of one operand with every row of the other.
    let left = cx.view(node, a, vec![numel(&x.sizes[..x.rank() - 1]), inner])?;
    let right = cx.view(node, b, vec![numel(&y.sizes[..y.rank() - 1]), last])?;
    let right = cx.transpose(right);
    let new = cx.matmul(left, right);
    let new = cx.view(node, new, want)?;
    cx.replace_node(node, new)
}

fn outer(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let a = cx.tensor(node, "self")?;
    let b = match cx.optional_tensor(node, "vec2") {
        Some(b) => b,
        None => cx.tensor(node, "other")?,
    };
    let column = cx.unsqueeze(node, a, 1)?;
    let new = cx.binary("aten.mul.Tensor", column, b);
    cx.replace_node(node, new)
}

/// `x1 W x2 + bias`: one value for each row and each matrix of `W`.
fn bilinear(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b, weight) = (cx.tensor(node, "input1")?, cx.tensor(node, "input2")?, cx.tensor(node, "weight")?);
    let new = contract(cx, node, &["...i", "oij", "...j"], "...o", &[a, weight, b])?;
    let new = match cx.optional_tensor(node, "bias") {
        Some(bias) => cx.binary("aten.add.Tensor", new, bias),
        None => new,
    };
    cx.replace_node(node, new)
}

/// Multiplies each row by the matrix of its group; `offs` holds the end of each group. Which group a row is in is
/// data-dependent, so every row is multiplied by every matrix and the right product is selected.
fn grouped_mm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let named = |a: &'static str, b: &'static str| if node.arg(a).is_some() { a } else { b };
    let (x, matrices) = (cx.tensor(node, "input")?, cx.tensor(node, named("weight", "mat2"))?);
    let offsets = cx.tensor(node, "offs")?;
    let (spec, weights, want) = (cx.spec(node, x)?, cx.spec(node, matrices)?, cx.result_spec(node)?);
    if spec.rank() != 2 || weights.rank() != 3 {
        return cx.fail(node, "it multiplies groups of rows with no batch of matrices");
    }
    let (rows, groups) = (spec.sizes[0].clone(), weights.sizes[0].clone());
    let wide = cx.unsqueeze(node, x, 0)?;
    let all = cx.expand(node, wide, vec![groups.clone(), rows.clone(), spec.sizes[1].clone()])?;
    let products = cx.matmul(all, matrices);
    let places = cx.arange(node, &rows, ScalarType::Long)?;
    let places = cx.unsqueeze(node, places, 1)?;
    let ended = cx.compare("aten.ge.Tensor", places, offsets);
    let ended = cx.cast(ended, ScalarType::Long);
    let group = cx.sum(ended, &[1], false);
    // Rows after the last group belong to none; their results are undefined.
    let Some(last) = groups.known().map(|g| g - 1) else {
        return cx.fail(node, "the number of its groups is not known");
    };
    let spec = cx.spec_of(group);
    let args = vec![("self", Argument::Var(group)), ("max", Argument::Int(last))];
    let group = cx.emit("aten.clamp.default", args, spec);
    let index = cx.view(node, group, vec![Size::Int(1), rows.clone(), Size::Int(1)])?;
    let columns = weights.sizes[2].clone();
    let index = cx.expand(node, index, vec![Size::Int(1), rows, columns])?;
    let chosen = cx.gather(products, 0, index);
    let new = cx.view(node, chosen, want.sizes)?;
    cx.replace_node(node, new)
}

fn einsum(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = cx.tensors(node, "tensors")?;
    let Some(Argument::Str(equation)) = node.arg("equation") else {
        return cx.fail(node, "it has no equation");
    };
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l.to_owned(), r.to_owned()),
        None => {
            let mut letters: Vec<char> = equation.chars().filter(char::is_ascii_alphabetic).collect();
            letters.sort_unstable();
            let once = letters.iter().filter(|c| letters.iter().filter(|d| d == c).count() == 1);
            let dots = if equation.contains("...") { "..." } else { "" };
            (equation.clone(), format!("{dots}{}", once.collect::<String>()))
        }
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != tensors.len() {
        return cx.fail(node, format!("`{equation}` names {} operands of {}", terms.len(), tensors.len()));
    }
    let new = contract(cx, node, &terms, &right, &tensors)?;
    let want = cx.result_spec(node)?.sizes;
    let new = cx.view(node, new, want)?;
    cx.replace_node(node, new)
}

/// The letters of a term. An ellipsis becomes digits, which count down to 0 for its last dimension.
fn term_letters(term: &str, rank: usize) -> Option<Vec<char>> {
    let named = term.chars().filter(|c| *c != '.').count();
    let hidden = rank.checked_sub(named)?;
    let dots: String = (0..hidden).rev().map(|i| char::from(b'0' + i as u8)).collect();
    let all: Vec<char> = term.replace("...", &dots).chars().collect();
    (hidden < 10).then_some(all)
}

/// Replaces two dimensions that have the same letter by their diagonal, which becomes the last dimension.
fn take_diagonals(cx: &mut Rewriter<'_>, mut letters: Vec<char>, mut tensor: VarId) -> (Vec<char>, VarId) {
    while let Some((i, j)) =
        (0..letters.len()).find_map(|j| letters[..j].iter().position(|c| *c == letters[j]).map(|i| (i, j)))
    {
        let mut spec = cx.spec_of(tensor);
        let (size, letter) = (spec.sizes[i].clone(), letters[i]);
        for dim in [j, i] {
            letters.remove(dim);
            spec.sizes.remove(dim);
        }
        letters.push(letter);
        let args = vec![
            ("self", Argument::Var(tensor)),
            ("offset", Argument::Int(0)),
            ("dim1", Argument::Int(i as i64)),
            ("dim2", Argument::Int(j as i64)),
        ];
        spec.sizes.push(size);
        tensor = cx.emit("aten.diagonal.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes));
    }
    (letters, tensor)
}

/// Contracts the operands pairwise, from left to right.
fn contract(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    terms: &[&str],
    result: &str,
    tensors: &[VarId],
) -> Result<VarId> {
    let mut operands = Vec::new();
    let mut hidden = 0;
    for (term, &tensor) in terms.iter().zip(tensors) {
        let rank = cx.spec_of(tensor).rank();
        let Some(letters) = term_letters(term, rank).filter(|l| l.len() == rank) else {
            return cx.fail(node, format!("`{term}` does not name the {rank} dimensions of its operand"));
        };
        hidden = hidden.max(letters.iter().filter(|c| c.is_ascii_digit()).count());
        operands.push(take_diagonals(cx, letters, tensor));
    }
    let dots: String = (0..hidden).rev().map(|i| char::from(b'0' + i as u8)).collect();
    let want: Vec<char> = result.replace("...", &dots).chars().collect();
    operands.reverse();
    let Some((mut names, mut value)) = operands.pop() else { return cx.fail(node, "it has no operands") };
    while let Some((other_names, other)) = operands.pop() {
        let later = |c: &char| want.contains(c) || operands.iter().any(|(l, _)| l.contains(c));
        (names, value) = contract_two(cx, node, (&names, value), (&other_names, other), &later)?;
    }
    let summed: Vec<usize> = (0..names.len()).filter(|&i| !want.contains(&names[i])).collect();
    if !summed.is_empty() {
        value = cx.reduce("aten.sum.dim_IntList", value, &summed, false);
        names.retain(|c| want.contains(c));
    }
    let order: Option<Vec<usize>> = want.iter().map(|c| names.iter().position(|n| n == c)).collect();
    match order {
        Some(order) => Ok(cx.permute(value, &order)),
        None => cx.fail(node, "its result names a dimension that no operand has"),
    }
}

/// A batched matrix product. Shared letters that are still needed are batch dimensions; the other shared letters are
/// summed.
fn contract_two(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (a_names, a): (&[char], VarId),
    (b_names, b): (&[char], VarId),
    later: &dyn Fn(&char) -> bool,
) -> Result<(Vec<char>, VarId)> {
    let mut sizes: HashMap<char, Size> = HashMap::new();
    for (names, v) in [(a_names, a), (b_names, b)] {
        for (&c, size) in names.iter().zip(cx.spec_of(v).sizes) {
            let known = sizes.entry(c).or_insert_with(|| size.clone());
            if *known == Size::Int(1) {
                *known = size;
            }
        }
    }
    let own = |names: &[char], other: &[char]| -> Vec<char> {
        names.iter().copied().filter(|c| !other.contains(c)).collect()
    };
    let shared: Vec<char> = a_names.iter().copied().filter(|c| b_names.contains(c)).collect();
    let (batch, inner): (Vec<char>, Vec<char>) = shared.into_iter().partition(|c| later(c));
    let (rows, columns) = (own(a_names, b_names), own(b_names, a_names));
    let count = |names: &[char]| names.iter().fold(Size::Int(1), |n, c| n.mul(&sizes[c]));
    let mut matrix = |v: VarId, names: &[char], parts: [&[char]; 3]| -> Result<VarId> {
        let order: Vec<char> = parts.concat();
        let dims: Vec<usize> = order.iter().filter_map(|c| names.iter().position(|n| n == c)).collect();
        let moved = cx.permute(v, &dims);
        // A batch dimension may have size 1 in one of the operands.
        let full = order.iter().map(|c| sizes[c].clone()).collect();
        let wide = cx.expand(node, moved, full)?;
        cx.view(node, wide, parts.iter().map(|p| count(p)).collect())
    };
    let left = matrix(a, a_names, [&batch, &rows, &inner])?;
    let right = matrix(b, b_names, [&batch, &inner, &columns])?;
    let product = cx.matmul(left, right);
    let names: Vec<char> = [batch, rows, columns].concat();
    let full = names.iter().map(|c| sizes[c].clone()).collect();
    let value = cx.view(node, product, full)?;
    Ok((names, value))
}
