//! Families of operations, which determine the colours of nodes. A family is guessed from the name, because the name is all
//! that operators, nodes of payloads, fused steps and BEF kernels have in common; only the colour depends on it.

/// The names of the families, in the order of their colours.
pub const FAMILIES: [&str; 13] = [
    "Data",
    "Convolution",
    "Product",
    "Attention",
    "Normalization",
    "Activation",
    "Elementwise",
    "Pooling and reduction",
    "Layout and views",
    "Quantization",
    "Lookup",
    "Control",
    "Delegate",
];

/// The index of the default family.
const ELEMENTWISE: u8 = 6;

/// Substrings of operator names with their families, in order of precedence.
const PARTS: &[(&str, u8)] = &[
    ("delegate", 12),
    ("quantize", 9),
    ("choose_qparams", 9),
    ("attention", 3),
    ("sdpa", 3),
    ("scaled_dot", 3),
    ("cache", 3),
    ("conv", 1),
    ("norm", 4),
    ("softmax", 5),
    ("embedding", 10),
    ("gather", 10),
    ("scatter", 10),
    ("index", 10),
    ("lookup", 10),
    ("linear", 2),
    ("matmul", 2),
    ("gemm", 2),
    ("matrixmultiply", 2),
    ("fullyconnected", 2),
    ("addmm", 2),
    ("bmm", 2),
    ("baddbmm", 2),
    ("mm.out", 2),
    ("relu", 5),
    ("gelu", 5),
    ("silu", 5),
    ("sigmoid", 5),
    ("tanh", 5),
    ("clamp", 5),
    ("swish", 5),
    ("elu", 5),
    ("activation", 5),
    ("pool", 7),
    ("reduce", 7),
    ("mean", 7),
    ("sum", 7),
    ("amax", 7),
    ("argm", 7),
    ("view", 8),
    ("reshape", 8),
    ("permute", 8),
    ("transpose", 8),
    ("copy", 8),
    ("concat", 8),
    ("cat.out", 8),
    ("slice", 8),
    ("split", 8),
    ("stack", 8),
    ("expand", 8),
    ("squeeze", 8),
    ("pad", 8),
    ("resize", 8),
    ("upsample", 8),
    ("layout", 8),
    ("dim_order", 8),
    ("select", 8),
    ("flip", 8),
    ("jump", 11),
    ("move", 11),
    ("free", 11),
    ("tfrt.call", 11),
    ("tfrt.if", 11),
    ("tfrt.cond", 11),
    ("tfrt.case", 11),
    ("repeat", 11),
    ("while", 11),
    ("chain", 11),
    ("return", 11),
    ("constant", 0),
];

/// The family of an operator, kind of node or kernel, as an index into [`FAMILIES`].
pub(super) fn family_of(name: &str) -> u8 {
    let name = name.to_ascii_lowercase();
    PARTS.iter().find(|(part, _)| name.contains(part)).map_or(ELEMENTWISE, |&(_, family)| family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_recognised_by_name() {
        for (name, expected) in [
            ("aten::convolution.out", "Convolution"),
            ("Conv2d", "Convolution"),
            ("aten::_native_batch_norm_legit_no_training.out", "Normalization"),
            ("quantized_decomposed::dequantize_per_channel.out", "Quantization"),
            ("aten::mm.out", "Product"),
            ("llama::custom_sdpa.out", "Attention"),
            ("aten::add.out", "Elementwise"),
            ("tfrt.call", "Control"),
            ("JumpFalseCall", "Control"),
        ] {
            assert_eq!(FAMILIES[usize::from(family_of(name))], expected, "{name}");
        }
    }
}
