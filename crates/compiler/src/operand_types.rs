//! The types of operands that the kernels of the reference runtime take.

use crate::promotion::{is_cast_operand, promoted_type};
use pteron_exported::{ExportedNode, ExportedProgram, Selection, Slot, VarId};
use pteron_operator::DtypeSet;
use pteron_tensor::ScalarType;
use std::collections::HashMap;

/// The operators of ExecuTorch 1.5's portable, optimized and primitive kernels: the only ones that a program may call
/// if it must also run on the reference runtime. A line has an operator and, where its kernel does not take every type,
/// groups of operands, separated by `;`, with the types that they may have. Operands joined by `=` must have the same
/// type. `tools/reference/operand_types.py` measures the types on the reference runtime.
const PORTABLE: &str = include_str!("portable_operators.txt");

/// The namespaces of the reference runtime's operators, and `torchvision::`, of which the reference runtime has none.
const KNOWN_NAMESPACES: [&str; 6] =
    ["aten::", "executorch_prim::", "dim_order_ops::", "et_copy::", "llama::", "torchvision::"];

/// The types that the portable kernels take, by operator.
pub(crate) struct PortableKernels(HashMap<&'static str, Vec<Group>>);

/// Operands of a kernel that must have the same type, and the types that the kernel supports for them.
struct Group {
    names: Vec<&'static str>,
    types: DtypeSet,
}

/// The element type of a value as a node's operand, after type promotion.
type TypeOf<'a> = &'a dyn Fn(VarId) -> Option<ScalarType>;

impl PortableKernels {
    pub(crate) fn read() -> Self {
        Self(PORTABLE.lines().map(parse_kernel).collect())
    }

    /// Whether the reference runtime has the operator, or could: it is a custom one outside the known namespaces.
    pub(crate) fn may_have(&self, name: &str) -> bool {
        self.0.contains_key(name) || !KNOWN_NAMESPACES.iter().any(|namespace| name.starts_with(namespace))
    }

    /// Checks the operands of a node against the kernel that was selected for it, after type promotion.
    ///
    /// # Errors
    /// Which operands the kernel does not take, and which types it takes.
    pub(crate) fn check(
        &self,
        program: &ExportedProgram,
        node: &ExportedNode,
        selection: &Selection,
        type_of: TypeOf<'_>,
    ) -> Result<(), String> {
        let schema = selection.kernel.schema();
        let Some(groups) = self.0.get(schema.name.as_str()) else { return Ok(()) };
        let promoted = promoted_type(program, node);
        for group in groups {
            let mut first = None;
            for (slot, declared) in selection.slots.iter().zip(&schema.args) {
                if !group.names.contains(&declared.name.as_str()) {
                    continue;
                }
                for dtype in operand_types(slot, node, type_of) {
                    let dtype = promoted.filter(|_| is_cast_operand(&declared.name)).unwrap_or(dtype);
                    if !group.types.contains(dtype) {
                        return Err(format!(
                            "the reference runtime's kernel of `{}` takes no {dtype} as `{}`; it takes {}",
                            schema.name, declared.name, group.types
                        ));
                    }
                    if *first.get_or_insert(dtype) != dtype {
                        return Err(format!(
                            "the reference runtime's kernel of `{}` takes operands of one type as {}",
                            schema.name,
                            group.names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The element types of the tensors that a node passes at a position of a kernel's schema.
fn operand_types(slot: &Slot, node: &ExportedNode, type_of: TypeOf<'_>) -> Vec<ScalarType> {
    let vars = match slot {
        Slot::Given(arg) => arg.vars(),
        Slot::Out(first, count) => node.outputs.iter().skip(*first).take(*count).copied().collect(),
        Slot::Default(_) => Vec::new(),
    };
    vars.into_iter().filter_map(type_of).collect()
}

/// Parses a line of [`PORTABLE`] into the kernel's name and its groups of operands.
fn parse_kernel(line: &'static str) -> (&'static str, Vec<Group>) {
    let (name, groups) = line.split_once(' ').unwrap_or((line, ""));
    (name, groups.split(';').filter_map(parse_group).collect())
}

fn parse_group(text: &'static str) -> Option<Group> {
    let (names, types) = text.trim().split_once(':')?;
    let types = types.split_whitespace().map(dtype_set).fold(DtypeSet::NONE, DtypeSet::union);
    Some(Group { names: names.split('=').collect(), types })
}

/// The set of types that has this name in [`PORTABLE`].
fn dtype_set(name: &str) -> DtypeSet {
    use ScalarType::*;
    match name {
        "bool" => DtypeSet::BOOL,
        "int" => DtypeSet::INTEGRAL,
        "half" => DtypeSet::of(&[Half, BFloat16]),
        "complex" => DtypeSet::of(&[ComplexHalf, ComplexFloat, ComplexDouble]),
        "bits" => DtypeSet::of(&[Float8E5M2, Float8E4M3FN, UInt16, UInt32]),
        name => match ScalarType::ALL.iter().find(|dtype| dtype.name() == name) {
            Some(&dtype) => DtypeSet::of(&[dtype]),
            None => DtypeSet::NONE,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_types() {
        for line in PORTABLE.lines() {
            let (name, groups) = parse_kernel(line);
            let written = line.strip_prefix(name).unwrap_or_default();
            assert_eq!(groups.len(), written.matches(':').count(), "{line}");
            for group in written.split(';').filter(|g| !g.trim().is_empty()) {
                let types = group.split_once(':').map_or("", |(_, types)| types);
                assert!(types.split_whitespace().all(|word| dtype_set(word) != DtypeSet::NONE), "{line}");
            }
        }
    }
}
