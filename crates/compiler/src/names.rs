//! Maps kernel names to the names of operators in exported programs.

/// View operators; the names of their kernels end in `_copy`.
const VIEWS: &[&str] = &[
    "alias",
    "as_strided",
    "detach",
    "diagonal",
    "expand",
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
];

/// Operators as (name, overload of the kernel, overload in exported programs), where the overloads differ.
const OVERLOADS: &[(&str, &str, &str)] = &[
    ("add", "out", "Tensor"),
    ("all", "all_out", "default"),
    ("all", "out", "dim"),
    ("any", "all_out", "default"),
    ("any", "out", "dim"),
    ("div", "out", "Tensor"),
    ("div", "out_mode", "Tensor_mode"),
    ("floor_divide", "out", "default"),
    ("max", "dim_max", "dim"),
    ("max", "unary_out", "default"),
    ("mean", "out", "dim"),
    ("min", "dim_min", "dim"),
    ("min", "unary_out", "default"),
    ("mul", "out", "Tensor"),
    ("prod", "int_out", "dim_int"),
    ("scatter", "src_out", "src"),
    ("scatter", "value_out", "value"),
    ("sort", "values", "default"),
    ("sub", "out", "Tensor"),
    ("sum", "IntList_out", "dim_IntList"),
    ("topk", "values", "default"),
    ("var", "correction_out", "correction"),
    ("var", "out", "dim"),
];

/// The operator that a kernel computes: `aten.add.Tensor` for `aten::add.out`.
pub(crate) fn target_of(kernel: &str) -> String {
    let (namespace, name) = kernel.split_once("::").unwrap_or(("", kernel));
    let (base, overload) = name.split_once('.').unwrap_or((name, ""));
    let base = base.strip_suffix("_copy").filter(|view| VIEWS.contains(view)).unwrap_or(base);
    let special = OVERLOADS.iter().find(|(b, o, _)| *b == base && *o == overload && namespace == "aten");
    let overload = match special {
        Some((_, _, known)) => known,
        None if matches!(overload, "" | "out") => "default",
        None => overload.strip_suffix("_out").unwrap_or(overload),
    };
    format!("{namespace}.{base}.{overload}")
}

#[cfg(test)]
mod tests {
    use super::target_of;

    #[test]
    fn kernel_names_map_to_the_names_that_exporters_use() {
        for (kernel, target) in [
            ("aten::add.out", "aten.add.Tensor"),
            ("aten::add.Scalar_out", "aten.add.Scalar"),
            ("aten::view_copy.out", "aten.view.default"),
            ("aten::_to_copy.out", "aten._to_copy.default"),
            ("aten::select_copy.int_out", "aten.select.int"),
            ("aten::mean.out", "aten.mean.dim"),
            ("aten::convolution.out", "aten.convolution.default"),
            ("quantized_decomposed::add.out", "quantized_decomposed.add.default"),
        ] {
            assert_eq!(target_of(kernel), target);
        }
    }
}
