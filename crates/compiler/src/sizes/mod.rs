//! Infers the sizes of results from those of operands: where a plan gives only upper bounds, and where nothing gives them.

mod views;
mod windows;

use crate::rewrite::{broadcast_sizes, reduced_sizes};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, IntArgument, Size, SymOp, VarType};
use pteron_tensor::ScalarType;
use std::collections::BTreeMap;

/// The sizes of a node's result, if they follow from its arguments and do not depend on elements.
pub(crate) fn sizes_of(program: &ExportedProgram, node: &ExportedNode, result: usize) -> Option<Vec<Size>> {
    let (_, name) = node.target.split_once('.')?;
    let name = name.split('.').next()?;
    let args = NodeArgs { program, node };
    match name {
        name if has_operand_sizes(name) => args.operand_sizes(),
        "native_layer_norm"
        | "native_group_norm"
        | "_native_batch_norm_legit"
        | "_native_batch_norm_legit_no_training"
        | "native_batch_norm"
            if result == 0 =>
        {
            args.operand_sizes()
        }
        "amax" | "amin" | "mean" | "sum" | "var" | "std" | "var_mean" | "logsumexp" | "norm"
        | "linalg_vector_norm" | "nansum" | "count_nonzero" => args.reduced_sizes("dim"),
        "all" | "any" | "argmax" | "argmin" | "max" | "min" | "prod" | "median" | "mode"
            if node.arg("other").is_none() =>
        {
            args.reduced_sizes("dim")
        }
        "permute" | "t" | "transpose" | "unsqueeze" | "squeeze" | "slice" | "select" | "expand" | "view"
        | "repeat" | "stack" | "split" | "split_with_sizes" | "unbind" | "flatten" | "reshape"
        | "broadcast_to" | "movedim" | "glu" | "pixel_shuffle" | "pixel_unshuffle" | "unfold" => {
            views::view_sizes(&args, name, result)
        }
        "full" | "zeros" | "ones" | "empty" | "rand" | "randn" | "_empty_dim_order" | "new_full"
        | "new_zeros" | "new_ones" | "new_empty" => args.sizes_argument("size")?.into_iter().collect(),
        "arange" => args.arange_sizes(),
        "mm" | "bmm" | "addmm" | "baddbmm" | "linear" => args.product_sizes(name),
        "searchsorted" => args.operand_sizes(),
        "mv" => Some(vec![args.operand_sizes()?.first()?.clone()]),
        "dot" => Some(Vec::new()),
        "one_hot" => {
            let mut sizes = args.operand_sizes()?;
            sizes.push(args.size_argument("num_classes").filter(|size| size.known() != Some(-1))?);
            Some(sizes)
        }
        "einsum" => args.einsum_sizes(),
        "matmul" => matmul_sizes(args.operand_sizes()?, args.tensor_sizes("other")?),
        "embedding" => {
            let (mut sizes, table) = (args.tensor_sizes("indices")?, args.tensor_sizes("weight")?);
            sizes.push(table.last()?.clone());
            Some(sizes)
        }
        "cat" => args.concatenated_sizes(),
        "gather" => args.tensor_sizes("index"),
        "index_select" => {
            let mut x = args.operand_sizes()?;
            let dim = wrap_dim(args.int_argument("dim")?, x.len())?;
            x[dim] = args.tensor_sizes("index")?.first().cloned().unwrap_or(Size::Int(1));
            Some(x)
        }
        "index" => args.indexed_sizes(),
        "topk" => {
            let mut x = args.operand_sizes()?;
            let dim = wrap_dim(args.int_argument("dim").unwrap_or(-1), x.len())?;
            x[dim] = args.size_argument("k")?;
            Some(x)
        }
        "where" => {
            let all = ["condition", "self", "other"].map(|name| args.tensor_sizes(name));
            all.into_iter().flatten().reduce(|a, b| broadcast_sizes(&a, &b))
        }
        "scaled_dot_product_attention" => {
            let mut sizes = args.tensor_sizes("query")?;
            *sizes.last_mut()? = args.tensor_sizes("value")?.pop()?;
            Some(sizes)
        }
        "adaptive_avg_pool1d"
        | "adaptive_avg_pool2d"
        | "adaptive_avg_pool3d"
        | "_adaptive_avg_pool2d"
        | "_adaptive_avg_pool3d"
        | "adaptive_max_pool2d"
        | "adaptive_max_pool3d" => {
            let (mut x, sizes) = (args.operand_sizes()?, args.sizes_argument("output_size")?);
            x.truncate(x.len().checked_sub(sizes.len())?);
            x.extend(sizes.into_iter().collect::<Option<Vec<_>>>()?);
            Some(x)
        }
        "convolution"
        | "conv1d"
        | "conv2d"
        | "conv3d"
        | "conv_transpose1d"
        | "conv_transpose2d"
        | "avg_pool1d"
        | "avg_pool2d"
        | "avg_pool3d"
        | "max_pool1d"
        | "max_pool2d"
        | "max_pool3d"
        | "max_pool1d_with_indices"
        | "max_pool2d_with_indices"
        | "max_pool3d_with_indices"
        | "pad"
        | "constant_pad_nd"
        | "reflection_pad1d"
        | "reflection_pad2d"
        | "replication_pad1d"
        | "replication_pad2d" => windows::windowed_sizes(&args, name),
        name if name.starts_with("upsample_") => args.resampled_sizes(),
        _ => None,
    }
}

/// Whether all results of the operator `name` have the sizes of its operand.
pub(crate) fn has_operand_sizes(name: &str) -> bool {
    LIKE_OPERAND.contains(&name)
}

const LIKE_OPERAND: &[&str] = &[
    "_clone_dim_order",
    "_conj_physical",
    "_log_softmax",
    "_softmax",
    "_to_copy",
    "_to_dim_order_copy",
    "alias",
    "alias_copy",
    "argsort",
    "batch_norm",
    "bucketize",
    "clone",
    "contiguous",
    "copy",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dequantize_per_channel",
    "dequantize_per_tensor",
    "detach",
    "detach_copy",
    "diagonal_scatter",
    "dropout",
    "empty_like",
    "fill",
    "flip",
    "full_like",
    "group_norm",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "instance_norm",
    "isneginf",
    "isposinf",
    "layer_norm",
    "lift_fresh_copy",
    "log_softmax",
    "logcumsumexp",
    "masked_fill",
    "masked_scatter",
    "msort",
    "native_dropout",
    "ones_like",
    "prelu",
    "quantize_per_channel",
    "quantize_per_tensor",
    "rand_like",
    "randn_like",
    "rms_norm",
    "roll",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "select_scatter",
    "slice_scatter",
    "softmax",
    "sort",
    "to",
    "tril",
    "triu",
    "zeros_like",
];

/// The arguments of a node.
struct NodeArgs<'a> {
    program: &'a ExportedProgram,
    node: &'a ExportedNode,
}

impl NodeArgs<'_> {
    /// The sizes of the operand.
    fn operand_sizes(&self) -> Option<Vec<Size>> {
        self.tensor_sizes("self").or_else(|| self.tensor_sizes("input"))
    }

    /// An integer argument, known or computed.
    fn size_argument(&self, name: &str) -> Option<Size> {
        match self.node.arg(name)? {
            Argument::Int(number) => Some(Size::Int(*number)),
            Argument::Var(var) => match &self.program.var(*var).ty {
                VarType::Int(size) => Some(size.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// The sizes of a reduction over the dimensions of an argument; over all of them if it is absent or empty.
    fn reduced_sizes(&self, name: &str) -> Option<Vec<Size>> {
        let x = self.operand_sizes()?;
        let keep = matches!(self.node.arg("keepdim"), Some(Argument::Bool(true) | Argument::Int(1)));
        let dims = match self.node.arg(name) {
            None | Some(Argument::None) => Vec::new(),
            Some(Argument::Int(dim)) => vec![*dim],
            Some(_) => self.known_ints(name)?,
        };
        let dims: Vec<usize> = match dims.is_empty() {
            true => (0..x.len()).collect(),
            false if x.is_empty() => Vec::new(),
            false => dims.into_iter().map(|dim| wrap_dim(dim, x.len())).collect::<Option<_>>()?,
        };
        Some(reduced_sizes(&x, &dims, keep))
    }

    /// The size of `arange`: the number of steps from `start` up to `end`.
    fn arange_sizes(&self) -> Option<Vec<Size>> {
        if ["start", "end", "step"].iter().any(|name| matches!(self.node.arg(name), Some(Argument::Float(_))))
        {
            let number = |name, default| match self.node.arg(name) {
                None => Some(default),
                Some(Argument::Float(number)) => Some(*number),
                Some(Argument::Int(number)) => Some(*number as f64),
                Some(_) => None,
            };
            let count = ((number("end", 0.0)? - number("start", 0.0)?) / number("step", 1.0)?).ceil();
            return (0.0..=f64::from(i32::MAX)).contains(&count).then(|| vec![Size::Int(count as i64)]);
        }
        let start =
            if self.node.arg("start").is_some() { self.size_argument("start")? } else { Size::Int(0) };
        let step = if self.node.arg("step").is_some() { self.int_argument("step")? } else { 1 };
        let span = self.size_argument("end")?.add(&start.mul(&Size::Int(-1)));
        match step {
            1 => Some(vec![span]),
            2.. => {
                let rounded = span.add(&Size::Int(step - 1));
                Some(vec![rounded.combine(SymOp::FloorDiv, &Size::Int(step))])
            }
            _ => None,
        }
    }

    /// The sizes that an equation such as `ij,jk->ik` gives its result.
    fn einsum_sizes(&self) -> Option<Vec<Size>> {
        let (Argument::Str(equation), Argument::Vars(operands)) =
            (self.node.arg("equation")?, self.node.arg("tensors")?)
        else {
            return None;
        };
        let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (terms, result) = equation.split_once("->")?;
        let mut sizes: BTreeMap<char, Size> = BTreeMap::new();
        for (term, &operand) in terms.split(',').zip(operands) {
            let spec = self.program.spec(operand)?;
            if term.chars().count() != spec.rank() {
                return None;
            }
            for (letter, size) in term.chars().zip(&spec.sizes) {
                let known = sizes.entry(letter).or_insert_with(|| size.clone());
                if *known == Size::Int(1) {
                    *known = size.clone();
                }
            }
        }
        result.chars().map(|letter| sizes.get(&letter).cloned()).collect()
    }

    fn product_sizes(&self, name: &str) -> Option<Vec<Size>> {
        let (mut sizes, columns) = match name {
            "mm" | "bmm" => (self.operand_sizes()?, self.tensor_sizes("mat2")?.pop()?),
            "addmm" => (self.tensor_sizes("mat1")?, self.tensor_sizes("mat2")?.pop()?),
            "baddbmm" => (self.tensor_sizes("batch1")?, self.tensor_sizes("batch2")?.pop()?),
            _ => {
                let weight = self.tensor_sizes("weight")?;
                (
                    self.tensor_sizes("input")?,
                    if weight.len() == 2 { weight.first()?.clone() } else { return None },
                )
            }
        };
        *sizes.last_mut()? = columns;
        Some(sizes)
    }

    /// The sizes of an image or a signal resampled to a size, or by factors.
    fn resampled_sizes(&self) -> Option<Vec<Size>> {
        let mut x = self.operand_sizes()?;
        let spatial = x.get_mut(2..)?;
        match (self.node.arg("output_size"), self.node.arg("scale_factors")) {
            (Some(Argument::Ints(_)), _) => {
                let sizes = self.sizes_argument("output_size")?;
                for (size, new) in spatial.iter_mut().zip(sizes) {
                    *size = new?;
                }
            }
            (_, Some(Argument::Floats(factors))) if factors.len() == spatial.len() => {
                for (size, factor) in spatial.iter_mut().zip(factors) {
                    *size = Size::Int((size.known()? as f64 * factor).floor() as i64);
                }
            }
            _ => return None,
        }
        Some(x)
    }

    fn concatenated_sizes(&self) -> Option<Vec<Size>> {
        let Some(Argument::Vars(parts)) = self.node.arg("tensors") else { return None };
        // An empty tensor of rank 1 may be among tensors of any rank.
        let parts: Vec<Vec<Size>> =
            parts.iter().map(|&part| Some(self.program.spec(part)?.sizes.clone())).collect::<Option<_>>()?;
        let (first, others) = parts.split_first()?;
        let mut sizes = first.clone();
        let dim = wrap_dim(self.int_argument("dim").unwrap_or(0), sizes.len())?;
        for part in others {
            if part.len() != sizes.len() {
                return None;
            }
            sizes[dim] = sizes[dim].add(&part[dim]);
        }
        Some(sizes)
    }

    /// The sizes of the result of indexing by integer tensors, each for one dimension.
    fn indexed_sizes(&self) -> Option<Vec<Size>> {
        let x = self.operand_sizes()?;
        let indices: Vec<Option<_>> = match self.node.arg("indices")? {
            Argument::OptionalVars(list) => list.clone(),
            Argument::Vars(list) => list.iter().copied().map(Some).collect(),
            _ => return None,
        };
        let specs =
            indices.iter().flatten().map(|&var| self.program.spec(var)).collect::<Option<Vec<_>>>()?;
        if specs.iter().any(|spec| matches!(spec.dtype, ScalarType::Bool | ScalarType::Byte)) {
            return None;
        }
        let at = specs.iter().map(|spec| spec.sizes.clone()).reduce(|a, b| broadcast_sizes(&a, &b))?;
        let indexed = |dim: &usize| indices.get(*dim).is_some_and(Option::is_some);
        let dims: Vec<usize> = (0..x.len()).filter(indexed).collect();
        let (first, last) = (*dims.first()?, *dims.last()?);
        let place = if last - first + 1 == dims.len() { first } else { 0 };
        let mut sizes: Vec<Size> =
            (0..x.len()).filter(|dim| !indexed(dim)).map(|dim| x[dim].clone()).collect();
        sizes.splice(place..place, at);
        Some(sizes)
    }

    fn tensor_sizes(&self, name: &str) -> Option<Vec<Size>> {
        let var = self.node.arg(name)?.var()?;
        Some(self.program.spec(var)?.sizes.clone())
    }

    fn int_argument(&self, name: &str) -> Option<i64> {
        match self.node.arg(name)? {
            Argument::Int(number) => Some(*number),
            _ => None,
        }
    }

    fn known_ints(&self, name: &str) -> Option<Vec<i64>> {
        let Argument::Ints(items) = self.node.arg(name)? else { return None };
        let known = |item: &IntArgument| match item {
            IntArgument::Int(number) => Some(*number),
            IntArgument::Var(_) => None,
        };
        items.iter().map(known).collect()
    }

    /// The sizes that a call specifies; `None` for those that it leaves to be inferred.
    fn sizes_argument(&self, name: &str) -> Option<Vec<Option<Size>>> {
        let Argument::Ints(items) = self.node.arg(name)? else { return None };
        let size = |item: &IntArgument| match item {
            IntArgument::Int(number) if *number < 0 => Some(None),
            IntArgument::Int(number) => Some(Some(Size::Int(*number))),
            IntArgument::Var(var) => match &self.program.var(*var).ty {
                VarType::Int(size) => Some(Some(size.clone())),
                _ => None,
            },
        };
        items.iter().map(size).collect()
    }
}

/// The sizes of a product of vectors, matrices or batches of matrices.
fn matmul_sizes(mut a: Vec<Size>, mut b: Vec<Size>) -> Option<Vec<Size>> {
    let rows = if a.len() > 1 { Some(a.remove(a.len() - 2)) } else { None };
    let columns = if b.len() > 1 { b.pop() } else { None };
    // The contracted dimensions.
    a.pop()?;
    b.pop()?;
    let mut sizes = broadcast_sizes(&a, &b);
    sizes.extend(rows.into_iter().chain(columns));
    Some(sizes)
}

/// A dimension counted from the first; `None` if it is out of range.
pub(crate) fn wrap_dim(dim: i64, rank: usize) -> Option<usize> {
    let dim = usize::try_from(if dim < 0 { dim.checked_add(rank as i64)? } else { dim }).ok()?;
    (dim < rank).then_some(dim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::{Source, TensorSpec};
    use pteron_tensor::{DimOrder, ScalarType};
    use std::sync::Arc;

    /// The inferred sizes of a call of `target`, whose first operand has the sizes `s, 4, 1`, as text.
    fn sizes(target: &str, args: Vec<(&str, Argument)>) -> Option<String> {
        let mut program = ExportedProgram::new("forward");
        let sizes = vec![Size::symbol("s"), Size::Int(4), Size::Int(1)];
        let dim_order = DimOrder::contiguous(3);
        let spec = TensorSpec { dtype: ScalarType::Float, sizes, dim_order };
        let x = program.add_var("x", VarType::Tensor(spec));
        let mut all: Vec<(Arc<str>, Argument)> = vec![("self".into(), Argument::Var(x))];
        all.extend(args.into_iter().map(|(name, arg)| (name.into(), arg)));
        let source = Arc::<Source>::default();
        let node = ExportedNode { target: target.into(), args: all, outputs: Vec::new(), source };
        let sizes = sizes_of(&program, &node, 0)?;
        Some(sizes.iter().map(|size| size.to_string()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn sizes_follow_from_operands() {
        let ints = |items: &[i64]| Argument::ints(items);
        let of = |target, args| sizes(target, args).unwrap();
        assert_eq!(of("aten.permute.default", vec![("dims", ints(&[1, -1, 0]))]), "4 1 s");
        assert_eq!(
            of("aten.transpose.int", vec![("dim0", Argument::Int(0)), ("dim1", Argument::Int(-2))]),
            "4 s 1"
        );
        assert_eq!(of("aten.unsqueeze.default", vec![("dim", Argument::Int(-1))]), "s 4 1 1");
        assert_eq!(of("aten.squeeze.dims", vec![("dim", ints(&[0, 2]))]), "s 4");
        let part = vec![
            ("dim", Argument::Int(1)),
            ("start", Argument::Int(-3)),
            ("end", Argument::Int(9)),
            ("step", Argument::Int(2)),
        ];
        assert_eq!(of("aten.slice.Tensor", part), "s 2 1");
        assert_eq!(of("aten.select.int", vec![("dim", Argument::Int(1))]), "s 1");
        assert_eq!(of("aten.expand.default", vec![("size", ints(&[2, -1, -1, 5]))]), "2 s 4 5");
        assert_eq!(of("aten.view.default", vec![("size", ints(&[2, 2]))]), "2 2");
        assert_eq!(of("aten.full_like.default", vec![("fill_value", Argument::Int(2))]), "s 4 1");
        assert_eq!(
            of("aten.amax.default", vec![("dim", ints(&[1])), ("keepdim", Argument::Bool(true))]),
            "s 1 1"
        );
        assert_eq!(of("aten.argmin.default", vec![("dim", Argument::Int(0))]), "4 1");
        assert_eq!(of("aten.sum.default", vec![]), "");
        assert_eq!(of("aten.slice.Tensor", vec![("end", Argument::Int(i64::MAX))]), "s 4 1");
        assert_eq!(of("aten.repeat.default", vec![("repeats", ints(&[2, 3, 1, 2]))]), "2 3*s 4 2");
        assert_eq!(
            of("aten.topk.default", vec![("k", Argument::Int(3)), ("dim", Argument::Int(1))]),
            "s 3 1"
        );
        assert_eq!(of("aten.constant_pad_nd.default", vec![("pad", ints(&[1, 1, 0, 2]))]), "s 6 3");
        assert_eq!(of("aten.adaptive_avg_pool2d.default", vec![("output_size", ints(&[2, 2]))]), "s 2 2");
        let pool = vec![("kernel_size", ints(&[2, 1])), ("stride", ints(&[2, 1]))];
        assert_eq!(of("aten.avg_pool2d.default", pool), "s 2 1");
        let pieces = vec![("split_sizes", ints(&[3, 1])), ("dim", Argument::Int(1))];
        assert_eq!(of("aten.split_with_sizes.default", pieces), "s 3 1");
        assert_eq!(
            of("aten.arange.start", vec![("start", Argument::Int(1)), ("end", Argument::Int(7))]),
            "6"
        );
        assert_eq!(of("aten.flatten.using_ints", vec![("start_dim", Argument::Int(1))]), "s 4");
        assert_eq!(of("aten.flatten.using_ints", vec![]), "4*s");
        assert_eq!(
            of("aten.movedim.int", vec![("source", Argument::Int(0)), ("destination", Argument::Int(-1))]),
            "4 1 s"
        );
        assert_eq!(of("aten.glu.default", vec![("dim", Argument::Int(1))]), "s 2 1");
        let window =
            vec![("dimension", Argument::Int(1)), ("size", Argument::Int(3)), ("step", Argument::Int(1))];
        assert_eq!(of("aten.unfold.default", window), "s 2 1 3");
        let ceil = vec![
            ("kernel_size", ints(&[3, 1])),
            ("stride", ints(&[2, 1])),
            ("ceil_mode", Argument::Bool(true)),
        ];
        assert_eq!(of("aten.max_pool2d.default", ceil), "s 2 1");
        // `max` of two tensors is no reduction.
        assert_eq!(sizes("aten.max.other", vec![("other", Argument::Int(1))]), None);
        assert_eq!(sizes("aten.slice.Tensor", vec![("end", Argument::Int(3))]), None);
        assert_eq!(sizes("aten.view.default", vec![("size", ints(&[-1, -1]))]), None);
        assert_eq!(sizes("aten.nonzero.default", vec![]), None);
        assert_eq!(sizes("aten.select.int", vec![("dim", Argument::Int(3))]), None);
    }
}
