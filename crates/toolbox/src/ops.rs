//! The operators that a build supports, and the requirements of a file: the operators, backends and kernels that it
//! uses, and which of them the build lacks.

use crate::bundle::Bundle;
use crate::show::name;
use crate::{Context, Error, Result, delegates, kind};
use pteron_format::FileKind;
use pteron_operator::KernelRegistry;
use pteron_runtime::{
    BackendRegistry, DataLoader, Limits, Missing, MissingOperator, Program, PteDataMap, Purpose, RefusedNode,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An operator for which a registry has a kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Supported {
    /// The operator's full name.
    pub name: String,
    /// The operator's schema in PyTorch's notation.
    pub schema: String,
    /// The scalar types that the operator accepts for its main input.
    pub dtypes: Vec<&'static str>,
}

/// The operators and backends that a file needs, and whether this build has them.
#[derive(Debug, Clone, Serialize)]
pub struct Requirements {
    pub file: String,
    pub format: &'static str,
    /// Whether this build can run the whole file: `missing` is empty.
    pub can_run: bool,
    /// The operators that the file's methods call, sorted by name; for a BEF program, the kernels that it calls.
    pub operators: Vec<Needed>,
    /// The backends that the file's delegates need, sorted by id.
    pub backends: Vec<NeededBackend>,
    /// A sentence for each missing operator, backend or device, invalid method, and payload or node that does not run.
    pub missing: Vec<String>,
}

/// An operator that a program calls.
#[derive(Debug, Clone, Serialize)]
pub struct Needed {
    /// The operator's full name.
    pub name: String,
    /// The number of instructions that call the operator, in all methods.
    pub calls: usize,
    /// Whether the registry has a kernel for the operator.
    pub available: bool,
    /// If the registry has no kernel for the operator, names of similar kernels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub similar: Vec<String>,
}

/// A backend that delegates of a program need.
#[derive(Debug, Clone, Serialize)]
pub struct NeededBackend {
    pub id: String,
    /// The number of delegates that need the backend, in all methods.
    pub delegates: usize,
    pub payload_bytes: u64,
    /// Whether the backend is registered and available.
    pub available: bool,
    /// The nodes in the backend's payloads by kind, sorted; empty if the backend cannot list them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NeededNode>,
    /// Keys of named data that the payloads refer to and that are not in the program but in a `.ptd`. Nodes that read
    /// such data were not checked.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub absent_data: BTreeSet<String>,
}

impl NeededBackend {
    fn node_of_kind(&mut self, kind: &str) -> &mut NeededNode {
        let at = self.nodes.binary_search_by(|node| node.kind.as_str().cmp(kind)).unwrap_or_else(|at| {
            self.nodes.insert(at, NeededNode { kind: kind.to_owned(), count: 0, refused: 0 });
            at
        });
        &mut self.nodes[at]
    }

    fn count_node(&mut self, kind: &str) {
        self.node_of_kind(kind).count += 1;
    }

    fn count_refused(&mut self, kind: &str) {
        self.node_of_kind(kind).refused += 1;
    }
}

/// The nodes of one kind in the payloads of a backend.
#[derive(Debug, Clone, Serialize)]
pub struct NeededNode {
    /// The kind, in the notation of the payload's format.
    pub kind: String,
    /// The number of nodes of this kind.
    pub count: usize,
    /// The number of nodes of this kind that the backend does not support.
    pub refused: usize,
}

/// Generates a Rust source file with a registry of exactly the kernels that the programs call, for
/// `pteron::kernels!`. Operators that this build lacks are listed in a comment, to be registered by the application.
///
/// # Errors
/// If one is a BEF program: its kernels are no operators.
pub fn registry_source(programs: &[Requirements]) -> Result<String> {
    let mut names = BTreeSet::new();
    let mut own = BTreeSet::new();
    for program in programs {
        if program.format == FileKind::Bef.name() {
            let problem = "a BEF program, whose kernels are not those of a registry of operators";
            return Err(Error::bad_file(&program.file, problem));
        }
        for op in &program.operators {
            if op.available { &mut names } else { &mut own }.insert(op.name.as_str());
        }
    }
    let mut text = "//! Written by `pteron ops --emit`. Do not edit.\n\n".to_owned();
    text += "/// The kernels that these programs call:\n///\n";
    programs.iter().for_each(|program| text += &format!("/// - {:?}\n", program.file));
    if !own.is_empty() {
        text += "///\n/// Not of the library, and to be registered beside these:\n///\n";
        own.iter().for_each(|name| text += &format!("/// - {name:?}\n"));
    }
    text += "pub fn kernels() -> pteron::KernelRegistry {\n    pteron::kernels![\n";
    names.iter().for_each(|name| text += &format!("        {name},\n"));
    text += "    ]\n}\n";
    Ok(text)
}

/// All operators of the registry, sorted by name.
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

/// The names of the kernels that BEF programs can call, sorted.
#[cfg(feature = "bef")]
pub fn bef_kernels() -> Vec<String> {
    pteron_tfrt_kernels::registry().names().into_iter().map(str::to_owned).collect()
}

/// The requirements of a program (`.pte`, `.bpte`) or BEF program.
///
/// # Errors
/// If the file cannot be read or is none of these.
pub fn requirements(
    loader: &Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
    limits: &Limits,
) -> Result<Requirements> {
    let kind = kind::file_kind(&**loader)?;
    let mut all = Requirements {
        file: loader.name().to_owned(),
        format: kind.map_or("", FileKind::name),
        can_run: false,
        operators: Vec::new(),
        backends: Vec::new(),
        missing: Vec::new(),
    };
    match kind {
        Some(FileKind::Pte) => {
            all.add_program(&Program::load(Arc::clone(loader), limits)?, kernels, backends)?;
        }
        Some(FileKind::Bpte) => {
            let bundle = Bundle::open(&**loader, limits)?;
            all.add_program(&Program::load(bundle.program(), limits)?, kernels, backends)?;
        }
        #[cfg(feature = "bef")]
        Some(FileKind::Bef) => all.add_bef(&loader.load(0, loader.size(), Purpose::Program)?)?,
        other => return Err(kind::wrong_format(&**loader, other, "ops", "programs (.pte, .bpte, .bef)")),
    }
    all.can_run = all.missing.is_empty();
    Ok(all)
}

impl Requirements {
    fn add_program(
        &mut self,
        program: &Program,
        kernels: &KernelRegistry,
        backends: &BackendRegistry,
    ) -> Result<()> {
        let mut lacking = Missing::default();
        for method in program.methods() {
            let missing = program.missing_in(method.name(), kernels, backends)?;
            for op in method.operators() {
                let absent = missing.operators.iter().find(|m| m.name == op.name);
                match self.operators.iter_mut().find(|n| n.name == op.name) {
                    Some(seen) => seen.calls += op.calls,
                    None => self.operators.push(Needed {
                        name: op.name,
                        calls: op.calls,
                        available: absent.is_none(),
                        similar: absent.map_or_else(Vec::new, |m| m.similar.clone()),
                    }),
                }
            }
            for backend in method.backends() {
                let available = missing.backends.iter().all(|m| m.id != backend.id);
                match self.backends.iter_mut().find(|n| n.id == backend.id) {
                    Some(seen) => {
                        seen.delegates += backend.delegates;
                        seen.payload_bytes = seen.payload_bytes.saturating_add(backend.payload_bytes);
                    }
                    None => self.backends.push(NeededBackend {
                        id: backend.id,
                        delegates: backend.delegates,
                        payload_bytes: backend.payload_bytes,
                        available,
                        nodes: Vec::new(),
                        absent_data: BTreeSet::new(),
                    }),
                }
            }
            lacking.merge(missing);
        }
        self.operators.sort_by(|a, b| a.name.cmp(&b.name));
        self.backends.sort_by(|a, b| a.id.cmp(&b.id));
        self.missing = lacking.sentences();
        for invalid in program.invalid_methods() {
            let unnamed = invalid.name.as_deref().unwrap_or("without a name");
            self.missing.push(format!("the method {} is not valid: {}", name(unnamed), invalid.error));
        }
        self.add_payloads(program, backends)
    }

    /// Adds the nodes of the delegates' payloads by kind, and those that the backends refuse.
    fn add_payloads(&mut self, program: &Program, backends: &BackendRegistry) -> Result<()> {
        let named = PteDataMap::new(program.clone());
        for plan in &program.tables().execution_plan {
            for (index, delegate) in plan.delegates.iter().enumerate() {
                let Some(backend) = backends.get(&delegate.id).filter(|backend| backend.is_available())
                else {
                    continue;
                };
                let Some(needed) = self.backends.iter_mut().find(|n| n.id == delegate.id) else { continue };
                let payload = delegates::read_payload(program, delegate)?;
                let place = format!("delegate {index} of {} ({})", name(&plan.name), name(&delegate.id));
                match backend.contents(&payload) {
                    Some(Ok(contents)) => {
                        contents.nodes.iter().for_each(|node| needed.count_node(&node.kind))
                    }
                    Some(Err(error)) => self.missing.push(format!("{place} cannot be read: {error}")),
                    None => {}
                }
                let Some(Ok(support)) = backend.support(&payload, Some(&named)) else { continue };
                needed.absent_data.extend(support.absent);
                for refused in support.refused {
                    needed.count_refused(&refused.kind);
                    let RefusedNode { node, kind, reason } = refused;
                    self.missing.push(format!(
                        "{place} has a node that does not run here: node {node} ({kind}): {reason}"
                    ));
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "bef")]
    fn add_bef(&mut self, bytes: &[u8]) -> Result<()> {
        let context = || format!("{} is not a valid BEF file", self.file);
        let program = pteron_bef::File::open(bytes).and_then(|file| file.verify()).context(context)?;
        for kernel in crate::bef::kernels(&program).context(context)? {
            if !kernel.supported {
                let absent =
                    MissingOperator { name: kernel.name.clone(), calls: kernel.calls, similar: Vec::new() };
                self.missing.push(absent.to_string());
            }
            self.operators.push(Needed {
                name: kernel.name,
                calls: kernel.calls,
                available: kernel.supported,
                similar: Vec::new(),
            });
        }
        self.operators.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }
}
