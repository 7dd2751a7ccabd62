//! What partitioners see of an archive: the operators that are left when it has been lowered.

use super::delegate::{
    CompileSpec, DelegationError, PartitionResult, Partitioner, Preprocess, PreprocessResult,
};
use super::exported::{Callable, ExportedNode, ExportedProgram};
use super::{Delegation, OperatorTable, Options, from_loader};
use crate::{DataLoader, KernelRegistry};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An operator in the lowered programs that partitioners get when an archive is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenOperator {
    /// The operator's name as the target of nodes, such as `aten.add.Tensor`.
    pub target: String,
    /// The number of nodes in all methods that call the operator.
    pub count: usize,
    /// The operator's arguments in the order of the schema of its kernel; without a kernel, those of its nodes.
    pub args: Vec<SeenArgument>,
}

/// An argument of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenArgument {
    /// The argument's name.
    pub name: String,
    /// The default for nodes that omit the argument, as the schema writes it: `1`, `[0, 0]`, `None`.
    pub default: Option<String>,
}

/// The operators that partitioners see when an archive is compiled, by name.
///
/// # Errors
/// The archive cannot be read or compiled.
pub fn seen_by_partitioners(
    archive: &Arc<dyn DataLoader>,
    table: &OperatorTable,
    kernels: &KernelRegistry,
    options: &Options,
) -> crate::Result<Vec<SeenOperator>> {
    let seen = Arc::new(RecordingPartitioner::default());
    let partitioner = Arc::clone(&seen) as Arc<dyn Partitioner + Send + Sync>;
    let delegation = vec![Delegation { partitioner, backend: Arc::new(TakesNothing) }];
    from_loader(archive, table, &Options { delegation, ..options.clone() }, &mut |_, _, _| {})?;
    let programs = std::mem::take(&mut *seen.0.lock().unwrap_or_else(PoisonError::into_inner));
    let operators = Callable::from_registry(kernels, |_| true);
    let mut seen_operators: BTreeMap<String, SeenOperator> = BTreeMap::new();
    for program in &programs {
        program.graph.for_each_node(&mut |node| {
            let new = || SeenOperator {
                target: node.target.to_string(),
                count: 0,
                args: arguments(program, node, &operators),
            };
            seen_operators.entry(node.target.to_string()).or_insert_with(new).count += 1;
        });
    }
    Ok(seen_operators.into_values().collect())
}

fn arguments(program: &ExportedProgram, node: &ExportedNode, operators: &Callable) -> Vec<SeenArgument> {
    match operators.select(program, node) {
        Some(selection) => {
            let declared = selection.kernel.schema().args.iter().filter(|arg| !arg.written);
            declared.map(seen_argument).collect()
        }
        None => {
            node.args.iter().map(|(name, _)| SeenArgument { name: name.to_string(), default: None }).collect()
        }
    }
}

fn seen_argument(arg: &pteron_operator::SchemaArg) -> SeenArgument {
    SeenArgument { name: arg.name.clone(), default: arg.default.clone() }
}

/// A partitioner that takes no nodes, and keeps the programs that it is given.
#[derive(Default)]
struct RecordingPartitioner(Mutex<Vec<ExportedProgram>>);

impl Partitioner for RecordingPartitioner {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(program.clone());
        let (partition_tags, reasons) = (BTreeMap::new(), BTreeMap::new());
        Ok(PartitionResult { tagged_exported_program: program.clone(), partition_tags, reasons })
    }
}

struct TakesNothing;

impl Preprocess for TakesNothing {
    fn backend_id(&self) -> &str {
        "none"
    }

    fn preprocess(
        &self,
        _: &ExportedProgram,
        _: &[CompileSpec],
    ) -> Result<PreprocessResult, DelegationError> {
        Ok(PreprocessResult::default())
    }
}
