//! The operators that a build has, and those that a program asks for.

use crate::Result;
use operator::KernelRegistry;
use runtime::Program;
use serde::Serialize;

/// An operator of a registry.
#[derive(Debug, Clone, Serialize)]
pub struct Supported {
    /// Its full name.
    pub name: String,
    /// Its declaration, as PyTorch writes it.
    pub schema: String,
    /// The scalar types that its main input may have.
    pub dtypes: Vec<&'static str>,
}

/// An operator that a program calls.
#[derive(Debug, Clone, Serialize)]
pub struct Needed {
    /// Its full name.
    pub name: String,
    /// How many instructions call it, in all methods.
    pub calls: usize,
    /// Whether there is a kernel for it.
    pub available: bool,
    /// Kernels with a name like it, if there is none for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub similar: Vec<String>,
}

/// Every operator of the registry, by name.
pub fn supported(kernels: &KernelRegistry) -> Vec<Supported> {
    let names = kernels.names().into_iter();
    names
        .filter_map(|name| kernels.get(name))
        .map(|kernel| Supported {
            name: kernel.schema().name.clone(),
            schema: kernel.schema().to_string(),
            dtypes: kernel.dtypes().iter().map(|t| t.name()).collect(),
        })
        .collect()
}

/// Every operator that the methods of a program call, by name.
pub fn needed(program: &Program, kernels: &KernelRegistry) -> Result<Vec<Needed>> {
    let mut all: Vec<Needed> = Vec::new();
    for op in program.methods().flat_map(|m| m.operators()) {
        match all.iter_mut().find(|n| n.name == op.name) {
            Some(seen) => seen.calls += op.calls,
            None => {
                let available = kernels.contains(&op.name);
                let similar = if available { Vec::new() } else { kernels.similar(&op.name) };
                let similar = similar.into_iter().map(str::to_owned).collect();
                all.push(Needed { name: op.name, calls: op.calls, available, similar });
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}
