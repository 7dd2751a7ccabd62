//! The types of the results of a call, as PyTorch defines them.

use crate::dtypes::{promote, result_type};
use crate::rewrite::broadcast_sizes;
use crate::sizes::{has_operand_sizes, sizes_of, wrap_dim};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, Size, SymExpr, TensorSpec, VarType};
use pteron_operator::{ArgType, Schema};
use pteron_tensor::{MAX_RANK, ScalarType};

/// A rule that gives the element type of a result.
#[derive(Clone, Copy)]
enum Dtype {
    /// The type of the operand.
    Operand,
    /// The promoted type of the operands.
    Promoted,
    /// The promoted type of the operands; float32 if that is an integer or a boolean, except for a rounding division.
    Floating,
    /// The type of the operand; int64 if that is an integer or a boolean.
    Summed,
    /// The type of the operand, or of its parts if it is complex.
    Real,
    /// The promoted type of a list of tensors.
    OfList,
    /// The type of the value that fills the result.
    Filled,
    /// int64 if the bounds of the range are integers, otherwise float32.
    Counted,
    /// The element type that the argument with this name gives.
    Of(&'static str),
    /// This type, whatever the operands are.
    Always(ScalarType),
}

use Dtype::{Always, Counted, Filled, Floating, Of, OfList, Operand, Promoted, Real, Summed};
use ScalarType::{Bool, Float, Long};

/// Operators that broadcast their operands: names separated by spaces, for each rule of the result's type.
const ELEMENTWISE: &[(Dtype, &str)] = &[
    (
        Operand,
        "bitwise_not ceil celu clone contiguous elu floor frac gelu hardshrink hardsigmoid hardswish \
         hardtanh leaky_relu log_sigmoid masked_fill mish nan_to_num neg relu relu6 round selu sgn sign \
         silu softplus softshrink softsign square tanhshrink threshold trunc",
    ),
    (
        Promoted,
        "add addcmul bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor clamp \
         clamp_max clamp_min floor_divide fmax fmin fmod gcd heaviside hypot lcm lerp logaddexp \
         logaddexp2 maximum minimum mul nextafter pow remainder rsub sub where",
    ),
    (
        Floating,
        "acos acosh addcdiv asin asinh atan atan2 atanh copysign cos cosh deg2rad div erf erfc erfinv exp \
         exp2 expm1 i0 log log10 log1p log2 logit rad2deg reciprocal rsqrt sigmoid sin sinc sinh sqrt tan \
         tanh xlogy",
    ),
    (Real, "abs"),
    (
        Always(Bool),
        "eq ge gt isclose isfinite isinf isnan isneginf isposinf le logical_and logical_not logical_or \
         logical_xor lt ne signbit",
    ),
];

/// Other operators whose result sizes are inferred: type rule of the first result, type rule of the others, and names.
const OTHERS: &[(Dtype, Dtype, &str)] = &[
    (
        Operand,
        Operand,
        "_adaptive_avg_pool2d _adaptive_avg_pool3d _clone_dim_order _log_softmax _softmax _to_copy \
         _to_dim_order_copy adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d alias alias_copy \
         amax amin avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bmm broadcast_to constant_pad_nd \
         conv1d conv2d conv3d conv_transpose1d conv_transpose2d convolution copy detach detach_copy \
         diagonal_scatter dot dropout empty_like expand fill flatten flip full_like gather glu group_norm \
         index index_add index_copy index_fill index_put index_select instance_norm layer_norm \
         lift_fresh_copy linalg_vector_norm linear log_softmax logcumsumexp logsumexp masked_scatter \
         matmul max_pool1d max_pool2d max_pool3d mean mm movedim msort mv native_layer_norm new_empty \
         new_full new_ones new_zeros norm ones_like pad permute pixel_shuffle pixel_unshuffle prelu \
         rand_like randn_like reflection_pad1d reflection_pad2d repeat replication_pad1d \
         replication_pad2d reshape rms_norm roll scatter scatter_add scatter_reduce select select_scatter \
         slice slice_scatter softmax split split_with_sizes squeeze std t to transpose tril triu unbind \
         unfold unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d \
         upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean view zeros_like",
    ),
    (
        Operand,
        Always(Long),
        "adaptive_max_pool2d adaptive_max_pool3d cummax cummin max max_pool1d_with_indices \
         max_pool2d_with_indices max_pool3d_with_indices median min sort topk",
    ),
    (Operand, Always(Bool), "native_dropout"),
    (Summed, Summed, "cumprod cumsum nansum prod sum"),
    (Always(Long), Always(Long), "argmax argmin argsort bucketize count_nonzero one_hot searchsorted"),
    (Always(Bool), Always(Bool), "all any"),
    (Promoted, Promoted, "l1_loss mse_loss outer"),
    (OfList, OfList, "cat einsum stack"),
    (Filled, Filled, "full"),
    (Counted, Counted, "arange"),
    (Always(Float), Always(Float), "_empty_dim_order empty ones rand randn zeros"),
    (Of("mat1"), Of("mat1"), "addmm"),
    (Of("weight"), Of("weight"), "embedding"),
    (Of("query"), Of("query"), "scaled_dot_product_attention"),
    (Of("dtype"), Of("dtype"), "quantize_per_channel quantize_per_tensor"),
    (Of("out_dtype"), Of("out_dtype"), "dequantize_per_channel dequantize_per_tensor"),
];

/// Whether `name` is in the list `names`, which spaces separate.
fn is_in_list(name: &str, names: &str) -> bool {
    names.split(' ').any(|other| other == name)
}

/// What an error suggests if the types of a call's results cannot be inferred.
const GIVE_RESULTS: &str = "give the types of its results";

/// The largest number of results of a call.
const MAX_RESULTS: usize = 1 << 16;

/// The number of results of a call.
///
/// # Errors
/// The operator returns a list whose length is not known.
pub(super) fn result_count(
    program: &ExportedProgram,
    node: &ExportedNode,
    schema: &Schema,
) -> Result<usize, String> {
    let outs: Vec<_> = schema.args.iter().rev().take_while(|arg| arg.written).collect();
    let lists = outs.iter().any(|arg| arg.list) || schema.returns.iter().any(|result| result.list);
    if !lists {
        return Ok(if outs.is_empty() { schema.returns.len() } else { outs.len() });
    }
    let size = || {
        let spec = program.spec(node.arg("self")?.var()?)?;
        let dim = match node.arg("dim") {
            Some(Argument::Int(dim)) => *dim,
            _ => 0,
        };
        spec.sizes.get(wrap_dim(dim, spec.rank())?)?.known()
    };
    let pieces = match (operator_name(node), node.arg("split_sizes"), node.arg("split_size")) {
        (_, Some(Argument::Ints(sizes)), _) => Some(sizes.len()),
        ("split", _, Some(Argument::Int(each @ 1..))) => {
            size().and_then(|size| usize::try_from(size.max(1).checked_add(each - 1)? / each).ok())
        }
        ("unbind", ..) => size().and_then(|size| usize::try_from(size).ok()),
        _ => None,
    };
    match pieces {
        Some(count) if count > MAX_RESULTS => {
            Err(format!("it has {count} results, of at most {MAX_RESULTS}"))
        }
        Some(count) => Ok(count),
        None => Err(format!("how many results it has is not known: {GIVE_RESULTS}")),
    }
}

/// The types of `count` results of a call.
///
/// # Errors
/// Its operands do not fit, or the types are not known without running it.
pub(super) fn result_types(
    program: &ExportedProgram,
    node: &ExportedNode,
    schema: &Schema,
    count: usize,
) -> Result<Vec<VarType>, String> {
    if let Some(number) = schema.fresh_result().filter(|result| result.ty != ArgType::Tensor) {
        return scalar_result_type(program, node, number.ty).map(|ty| vec![ty]);
    }
    check_product(program, node)?;
    let call = Call { program, node };
    (0..count).map(|result| call.result_spec(result).map(VarType::Tensor)).collect()
}

/// The name of a node's operator, without namespace and overload.
fn operator_name(node: &ExportedNode) -> &str {
    node.target.split('.').nth(1).unwrap_or_default()
}

/// The type of a result that is a scalar.
fn scalar_result_type(
    program: &ExportedProgram,
    node: &ExportedNode,
    ty: ArgType,
) -> Result<VarType, String> {
    let spec = node.arg("self").and_then(Argument::var).and_then(|var| program.spec(var));
    match (operator_name(node), ty, spec, node.arg("dim")) {
        ("sym_size", _, Some(spec), Some(Argument::Int(dim))) => {
            match wrap_dim(*dim, spec.rank()).and_then(|dim| spec.sizes.get(dim)) {
                Some(size) => Ok(VarType::Int(size.clone())),
                None => Err(format!("there is no dimension {dim} in a tensor of {}", spec.rank())),
            }
        }
        (_, ArgType::Float, ..) => Ok(VarType::Float),
        (_, ArgType::Bool, ..) => Ok(VarType::Bool),
        _ => Err("which number it returns is not known".to_owned()),
    }
}

struct Call<'a> {
    program: &'a ExportedProgram,
    node: &'a ExportedNode,
}

impl Call<'_> {
    fn result_spec(&self, result: usize) -> Result<TensorSpec, String> {
        let name = operator_name(self.node);
        let listed = ELEMENTWISE.iter().find(|(_, names)| is_in_list(name, names)).map(|(dtype, _)| *dtype);
        // PyTorch's special functions are elementwise.
        let elementwise = listed.or_else(|| name.starts_with("special_").then_some(Floating));
        let other = OTHERS.iter().find(|(.., names)| is_in_list(name, names));
        let (sizes, dtype) = match (elementwise, other) {
            (Some(dtype), _) => (self.broadcast_sizes()?, dtype),
            (None, Some((first, others, _))) => {
                let sizes = self.result_sizes(name, result).ok_or_else(|| {
                    format!("the sizes of its results do not follow from its arguments: {GIVE_RESULTS}")
                })?;
                (sizes, if result == 0 { *first } else { *others })
            }
            (None, None) => return Err(format!("the types of its results are not known: {GIVE_RESULTS}")),
        };
        self.check_sizes(&sizes, name)?;
        let dtype = self
            .result_dtype(dtype)
            .ok_or_else(|| format!("the type of its result is not known: {GIVE_RESULTS}"))?;
        Ok(TensorSpec::contiguous(dtype, sizes))
    }

    /// Fails if no tensor can have these sizes.
    fn check_sizes(&self, sizes: &[Size], name: &str) -> Result<(), String> {
        if sizes.len() > MAX_RANK {
            return Err(format!("its result would have {} dimensions, of at most {MAX_RANK}", sizes.len()));
        }
        for size in sizes {
            match size {
                Size::Int(size) if !(0..=i64::from(i32::MAX)).contains(size) => {
                    return Err(format!("a size of its result would be {size}"));
                }
                // Sizes without symbols are folded, unless they overflow or divide by zero.
                Size::Sym(expr) if is_constant(expr) => {
                    return Err(format!("a size of its result would be {size}"));
                }
                _ => {}
            }
        }
        let numel = |sizes: &[Size]| sizes.iter().fold(Size::Int(1), |n, size| n.mul(size)).known();
        match (self.operand().and_then(|spec| numel(&spec.sizes)), numel(sizes)) {
            (Some(actual), Some(requested)) if matches!(name, "view" | "reshape") && actual != requested => {
                Err(format!("its operand has {actual} elements, and its result would have {requested}"))
            }
            _ => Ok(()),
        }
    }

    /// The sizes of a result of an operator that does not broadcast its operands.
    fn result_sizes(&self, name: &str, result: usize) -> Option<Vec<Size>> {
        if name == "native_layer_norm" && result > 0 {
            let mut sizes = self.operand()?.sizes.clone();
            let Some(Argument::Ints(normalized)) = self.node.arg("normalized_shape") else { return None };
            let leading = sizes.len().checked_sub(normalized.len())?;
            sizes[leading..].fill(Size::Int(1));
            return Some(sizes);
        }
        match (name, self.node.arg("reduction")) {
            ("outer", _) => return Some(self.all_sizes()?.into_iter().flatten().collect()),
            ("l1_loss" | "mse_loss", Some(Argument::Int(0))) => return self.broadcast_sizes().ok(),
            ("l1_loss" | "mse_loss", _) => return Some(Vec::new()),
            _ => {}
        }
        if has_operand_sizes(name) {
            return Some(self.operand()?.sizes.clone());
        }
        sizes_of(self.program, self.node, result)
    }

    /// The sizes of all operands.
    fn all_sizes(&self) -> Option<Vec<Vec<Size>>> {
        self.node.operands().map(|var| Some(self.program.spec(var)?.sizes.clone())).collect()
    }

    fn operand(&self) -> Option<&TensorSpec> {
        let first = ["self", "input"].iter().find_map(|name| self.node.arg(name));
        self.program.spec(first?.var()?)
    }

    /// The broadcast of the sizes of all operands.
    fn broadcast_sizes(&self) -> Result<Vec<Size>, String> {
        let mut sizes: Option<&TensorSpec> = None;
        let mut all = Vec::new();
        for spec in self.node.operands().filter_map(|var| self.program.spec(var)) {
            let pairs = all.iter().rev().zip(spec.sizes.iter().rev());
            let clash = |(a, b): (&Size, &Size)| match (a.known(), b.known()) {
                (Some(a), Some(b)) => a != b && a != 1 && b != 1,
                _ => false,
            };
            if let Some(before) = sizes.filter(|_| pairs.into_iter().any(clash)) {
                let (a, b) = (VarType::Tensor(before.clone()), VarType::Tensor(spec.clone()));
                return Err(format!("its operands {a} and {b} do not broadcast"));
            }
            all = broadcast_sizes(&all, &spec.sizes);
            sizes = Some(spec);
        }
        match sizes {
            Some(_) => Ok(all),
            None => Err("none of its operands is a tensor".to_owned()),
        }
    }

    /// The element type of a result by `rule`. An argument `dtype` overrides the type of the operand.
    fn result_dtype(&self, rule: Dtype) -> Option<ScalarType> {
        let dtype_argument = |name: &str| match self.node.arg(name)? {
            Argument::Dtype(dtype) => Some(*dtype),
            Argument::Var(var) => Some(self.program.spec(*var)?.dtype),
            _ => None,
        };
        match rule {
            Always(dtype @ (Bool | Long)) => return Some(dtype),
            Of("out_dtype") => return Some(dtype_argument("out_dtype").unwrap_or(Float)),
            Of(name) => return dtype_argument(name),
            _ => {}
        }
        if let Some(dtype) = dtype_argument("dtype") {
            return Some(dtype);
        }
        let operand = || self.operand().map(|spec| spec.dtype);
        let is_whole = |name: &str| matches!(self.node.arg(name), Some(Argument::Int(_)) | None);
        Some(match rule {
            Operand => operand()?,
            Promoted => self.promoted_dtype()?,
            Floating => match self.promoted_dtype()? {
                dtype if dtype.is_floating() || dtype.is_complex() => dtype,
                // A division that rounds is one of integers.
                dtype if matches!(self.node.arg("rounding_mode"), Some(Argument::Str(_))) => dtype,
                _ => Float,
            },
            Summed => match operand()? {
                dtype if dtype.is_floating() || dtype.is_complex() => dtype,
                _ => Long,
            },
            Real => operand()?.to_real(),
            OfList => {
                let Argument::Vars(all) = self.node.arg("tensors")? else { return None };
                let types = all.iter().map(|&var| Some(self.program.spec(var)?.dtype));
                types.collect::<Option<Vec<_>>>()?.into_iter().reduce(promote)?
            }
            Filled => match self.node.arg("fill_value")? {
                Argument::Bool(_) => Bool,
                Argument::Int(_) => Long,
                Argument::Float(_) => Float,
                _ => return None,
            },
            Counted if ["start", "end", "step"].into_iter().all(is_whole) => Long,
            Counted => Float,
            Always(dtype) => dtype,
            Of(_) => return None,
        })
    }

    /// The promoted type of the tensor operands and scalars, leaving out `alpha`, `value`, `weight`, `eps`, masks and
    /// conditions.
    fn promoted_dtype(&self) -> Option<ScalarType> {
        let counts =
            |name: &str| !matches!(name, "alpha" | "condition" | "mask" | "value" | "weight" | "eps");
        let operands = self.node.args.iter().filter(|(name, _)| counts(name));
        result_type(self.program, operands.map(|(_, arg)| arg))
    }
}

/// Whether an expression has no symbols.
fn is_constant(expr: &SymExpr) -> bool {
    match expr {
        SymExpr::Symbol(_) => false,
        SymExpr::Int(_) => true,
        SymExpr::Op(_, operands) => operands.iter().all(is_constant),
    }
}

/// Checks that the inner sizes of a matrix product's two operands are equal.
fn check_product(program: &ExportedProgram, node: &ExportedNode) -> Result<(), String> {
    let (a, b, back) = match operator_name(node) {
        "mm" | "bmm" => ("self", "mat2", 2),
        "mv" => ("self", "vec", 1),
        "dot" => ("self", "tensor", 1),
        "addmm" => ("mat1", "mat2", 2),
        "baddbmm" => ("batch1", "batch2", 2),
        "matmul" => ("self", "other", 2),
        "linear" => ("input", "weight", 1),
        _ => return Ok(()),
    };
    let sizes = |name: &str| program.spec(node.arg(name)?.var()?).map(|spec| &spec.sizes);
    let (Some(first), Some(second)) = (sizes(a), sizes(b)) else { return Ok(()) };
    let expected =
        second.len().checked_sub(back).or(second.len().checked_sub(1)).and_then(|dim| second.get(dim));
    match (first.last().and_then(Size::known), expected.and_then(Size::known)) {
        (Some(actual), Some(expected)) if actual != expected => {
            Err(format!("a row of `{a}` has {actual} elements, and `{b}` takes {expected}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::bind::Signatures;
    use crate::pt2;
    use pteron_exported::CompileBudget;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    /// Appends the archives below a folder to `paths`.
    fn archives(folder: &Path, paths: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            match path.extension().is_some_and(|extension| extension == "pt2") {
                true => paths.push(path),
                false => archives(&path, paths),
            }
        }
    }

    /// The types that are inferred for the nodes of exported programs equal those that PyTorch has recorded.
    #[test]
    fn types_are_those_of_exporters() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/archives");
        let mut paths = Vec::new();
        archives(Path::new(folder), &mut paths);
        let signatures = Signatures::from_registry(&pteron_kernels::registry());
        let (mut wrong, mut right) = (Vec::new(), 0);
        for path in paths {
            let bytes: pteron_ir::SharedBytes = Arc::new(std::fs::read(&path).unwrap());
            let Ok(programs) = pt2::read(&bytes, &CompileBudget::default()) else { continue };
            for program in programs {
                // A nested graph may be of autocast, which changes the types of its nodes' results.
                program.graph.nodes.iter().for_each(|node| {
                    let args: Vec<_> = node.args.iter().map(|(name, arg)| (&**name, arg.clone())).collect();
                    let Ok(bound) = signatures.bind(&program, &node.target, &[], &args) else { return };
                    if bound.target != *node.target {
                        wrong.push(format!("{}: {} for {}", path.display(), bound.target, node.target));
                    }
                    let result = result_count(&program, node, &bound.schema)
                        .and_then(|count| result_types(&program, node, &bound.schema, count));
                    let Ok(types) = result else { return };
                    let declared: Vec<_> =
                        node.outputs.iter().map(|&var| program.var(var).ty.clone()).collect();
                    match alike(&program, &types, &declared) {
                        true => right += 1,
                        false => wrong.push(format!(
                            "{}: {}: {types:?}, not {declared:?}",
                            path.display(),
                            node.target
                        )),
                    }
                });
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(right > 1000, "{right}");
    }

    /// Whether types are equal, with symbolic sizes compared by their upper bounds and dim orders ignored.
    fn alike(program: &ExportedProgram, inferred: &[VarType], declared: &[VarType]) -> bool {
        inferred.len() == declared.len()
            && inferred.iter().zip(declared).all(|pair| match pair {
                (VarType::Tensor(a), VarType::Tensor(b)) => {
                    let bounds = |spec: &TensorSpec| -> Vec<_> {
                        spec.sizes.iter().map(|size| size.bounds(&program.ranges).max).collect()
                    };
                    a.dtype == b.dtype && bounds(a) == bounds(b)
                }
                (VarType::Int(_), VarType::Int(_)) => true,
                (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
            })
    }
}
