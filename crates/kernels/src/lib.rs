//! The operator library, organised in families, on top of a compute core of plain functions over slices.
//!
//! # How to add an operator
//!
//! 1. Find its family (one file each), or create one: a module with a doc line, a `pub(crate) const
//!    OPERATORS` table, the functions in the order of the table, unit tests; and a line in
//!    `TABLES`.
//! 2. Add a row: PyTorch's schema verbatim, on one line, so that a search finds it (the single source of name and
//!    arguments), the scalar types of its main input, the function. Add `.in_place(&["self"])` if an argument may alias
//!    the first out: `support::map` handles that, other functions must handle
//!    [`Arg::InPlace`](pteron_operator::Arg) themselves.
//! 3. Write the function: read the arguments ([`Args`](pteron_operator::Args), by the names in the schema),
//!    check them, resize the outs, loop. The loop is nearly always one of the mechanisms below. A
//!    one-line function is good; a function of more than twenty lines needs a mechanism.
//! 4. Test what is specific to it with `support::call` (dtypes, layouts, empty, NaN, negative dims).
//!    `hostile.rs` automatically calls every operator with random arguments.
//!
//! | mechanism | for |
//! | --- | --- |
//! | `support::map` | elementwise operators: promotion, broadcasting, any layout, in place, threads; `elementwise!` generates the loops |
//! | `support::reduce` | reductions over any dims, defined by a `Reducer` |
//! | `support::lanes` | functions of the rows along one dim (softmax, cumsum), in any layout |
//! | `support::copy` and `support::layout` | shape operators: build a `Layout` of the input by slice, permute, expand, ..., and copy it |
//! | `support::convert` | copies that change the type; tensors converted into scratch memory of a given type |
//! | `support::dims` | dimensions, indices, sizes: wrapped, checked, inferred, broadcast |
//! | `support::dtype` | `dispatch!` from a scalar type to a Rust type; `Cast` and `Compute` |
//!
//! Rules: follow PyTorch's semantics for every type, layout and empty tensor that PyTorch allows. Compute in f32
//! (float16, bfloat16, float32), f64, i64 (integers, bool) or complex128, which keeps the number of
//! loops small. Results must not depend on the number of threads. No argument, however hostile, may cause a panic,
//! a hang or an unbounded allocation: sizes go through `support::dims`, temporary memory comes from
//! [`KernelContext::scratch`](pteron_operator::KernelContext::scratch), errors name the argument.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod compute;

mod activation;
mod adaptive;
mod attention;
mod bessel;
mod binary;
mod compare;
mod complex;
mod concat;
mod conv;
mod conv_backward;
mod copy;
mod cumulative;
mod deform_conv;
mod delta_rule;
mod detection;
mod diagonal;
mod distance;
mod distinct;
mod distributions;
mod dropout;
mod embedding_bag;
mod extremes;
mod fft;
mod fill;
mod gamma;
mod gather;
mod glu;
mod grid_sampler;
mod hadamard;
mod histogram;
#[cfg(test)]
mod hostile;
mod index;
#[cfg(test)]
mod interrupts;
mod kv_cache;
mod linalg;
mod masked;
mod matmul;
mod mixture;
mod norm;
mod norm_backward;
mod number;
mod pad;
mod polynomials;
mod pooling;
mod pooling_backward;
mod prim;
mod quantize;
mod quantize_axis;
mod quantized_embedding;
mod quantized_linear;
mod random;
mod rearrange;
mod reduce;
mod resample;
mod segment;
mod softmax;
mod sort;
mod support;
mod torchao;
mod unary;
mod vector_norm;
mod view;

use pteron_operator::{KernelRegistry, Operator};

/// The operator tables. They are constants, so that a row picked by [`operator()`] at compile time references no other
/// row, and the linker drops the functions of the others.
const TABLES: &[&[Operator]] = &[
    activation::OPERATORS,
    adaptive::OPERATORS,
    attention::OPERATORS,
    bessel::OPERATORS,
    binary::OPERATORS,
    compare::OPERATORS,
    complex::OPERATORS,
    concat::OPERATORS,
    conv::OPERATORS,
    conv_backward::OPERATORS,
    copy::OPERATORS,
    cumulative::OPERATORS,
    delta_rule::OPERATORS,
    deform_conv::OPERATORS,
    detection::OPERATORS,
    diagonal::OPERATORS,
    distance::OPERATORS,
    distinct::OPERATORS,
    distributions::OPERATORS,
    dropout::OPERATORS,
    embedding_bag::OPERATORS,
    extremes::OPERATORS,
    fft::OPERATORS,
    fill::OPERATORS,
    gamma::OPERATORS,
    gather::OPERATORS,
    glu::OPERATORS,
    grid_sampler::OPERATORS,
    hadamard::OPERATORS,
    histogram::OPERATORS,
    index::OPERATORS,
    kv_cache::OPERATORS,
    linalg::EIGEN,
    linalg::GENERAL,
    linalg::LU,
    linalg::QR,
    linalg::SINGULAR,
    masked::OPERATORS,
    matmul::OPERATORS,
    mixture::OPERATORS,
    norm::OPERATORS,
    norm_backward::OPERATORS,
    number::OPERATORS,
    pad::OPERATORS,
    polynomials::OPERATORS,
    pooling::OPERATORS,
    pooling_backward::OPERATORS,
    prim::OPERATORS,
    quantize::OPERATORS,
    quantize_axis::OPERATORS,
    quantized_embedding::OPERATORS,
    quantized_linear::OPERATORS,
    random::OPERATORS,
    rearrange::OPERATORS,
    reduce::OPERATORS,
    resample::OPERATORS,
    segment::OPERATORS,
    softmax::OPERATORS,
    sort::OPERATORS,
    torchao::embedding::OPERATORS,
    torchao::linear::OPERATORS,
    unary::OPERATORS,
    vector_norm::OPERATORS,
    view::OPERATORS,
];

/// All operator tables, one for each family.
static FAMILIES: &[&[Operator]] = TABLES;

/// Every operator of the library, family by family.
pub fn operators() -> impl Iterator<Item = &'static Operator> {
    FAMILIES.iter().copied().flatten()
}

/// The operator with a full name (`aten::add.out`); `None` if there is none. Evaluated in a constant, it references
/// only that operator, so that an application links no other.
pub const fn operator(name: &str) -> Option<Operator> {
    let mut family = 0;
    while family < TABLES.len() {
        let table = TABLES[family];
        let mut row = 0;
        while row < table.len() {
            if table[row].is_named(name) {
                return Some(table[row]);
            }
            row += 1;
        }
        family += 1;
    }
    None
}

/// Adds every operator of the library to a registry.
pub fn register_all(registry: &mut KernelRegistry) -> Result<(), pteron_operator::DuplicateKernel> {
    FAMILIES.iter().try_for_each(|family| registry.register_table(family))
}

/// A registry of every operator of the library.
pub fn registry() -> KernelRegistry {
    let mut registry = KernelRegistry::new();
    register_all(&mut registry).expect("names in the tables are unique, as a test checks");
    registry
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_required_operator_has_a_kernel() {
        let registry = super::registry();
        let required = include_str!("../tests/operators.txt").lines().filter(|l| !l.starts_with('#'));
        let missing: Vec<_> = required.filter(|name| registry.get(name).is_none()).collect();
        assert!(missing.is_empty(), "operators without a kernel: {missing:?}");
    }

    #[test]
    fn operators_are_found_by_name_at_compile_time() {
        const ADD: Option<pteron_operator::Operator> = super::operator("aten::add.out");
        assert_eq!(ADD.unwrap().name(), "aten::add.out");
        for op in super::operators() {
            assert_eq!(super::operator(op.name()).unwrap().schema(), op.schema());
        }
        for name in ["", "aten::add.ou", "aten::add.out(", "aten::add.outs"] {
            assert!(super::operator(name).is_none(), "{name}");
        }
    }

    #[test]
    fn names_are_unique_and_schemas_well_formed() {
        let registry = super::registry();
        assert_eq!(registry.len(), super::operators().count());
        for op in super::operators() {
            let kernel = registry.get(op.name()).unwrap();
            assert_eq!(kernel.schema().name, op.name());
            // `pteron::kernels!` takes each part of a name as an identifier.
            let (namespace, name) = op.name().split_once("::").unwrap();
            let (name, overload) = name.split_once('.').unwrap_or((name, "out"));
            for part in [namespace, name, overload] {
                let word = part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                assert!(word && !part.starts_with(|c: char| c.is_ascii_digit()), "{}", op.name());
            }
            for &i in kernel.in_place() {
                assert!(!kernel.schema().args[i].written, "{}", op.name());
            }
        }
    }

    /// Every operator's schema is on its row verbatim, so that a search for the name or schema in the sources finds the row.
    #[test]
    fn every_schema_stands_verbatim_on_its_row() {
        fn read(folder: &std::path::Path, text: &mut String) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => read(&path, text),
                    false => text.push_str(&std::fs::read_to_string(&path).unwrap()),
                }
            }
        }
        let mut sources = String::new();
        read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
        let literal = |schema: &str| format!("\"{}\"", schema.replace('"', "\\\""));
        let lost: Vec<_> =
            super::operators().filter(|op| sources.matches(&literal(op.schema())).count() != 1).collect();
        assert!(lost.is_empty(), "{:?}", lost.iter().map(|op| op.schema()).collect::<Vec<_>>());
    }
}
