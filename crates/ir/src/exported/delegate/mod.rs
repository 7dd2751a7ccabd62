//! Delegation ahead of time: a partitioner tags the nodes that a backend takes, the backend makes a payload of each
//! tagged part, and one call of the payload takes the part's place.
//!
//! ```text
//! ExportedProgram ─ Partitioner::partition ─► tagged ─ to_backend ─► parts ─ Preprocess::preprocess ─► payloads
//!                                                         └────────► the program, with a call for each part
//! ```

mod lower;
mod propose;
mod recover;
mod tags;

pub use lower::{lower_partition, to_backend, to_backend_whole};
pub use propose::tag_supported;
pub use recover::{LoweredCall, Recover};

use super::{ExportedProgram, VarId};
use crate::{Malformed, SharedBytes};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The target of a node that calls a payload: its first argument, `lowered_module`, is the payload's index in
/// [`ExportedProgram::lowered`]; the others are what the payload is given, in order.
pub const CALL_DELEGATE: &str = "executorch_call_delegate";

/// A setting of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompileSpec {
    /// Its name.
    pub key: String,
    /// Its value, meaningful to the backend.
    pub value: Vec<u8>,
}

/// For which backend a tagged part is, and with which settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelegationSpec {
    /// The id by which programs name the backend.
    pub backend_id: String,
    /// The settings.
    pub compile_specs: Vec<CompileSpec>,
}

/// What a partitioner decided.
#[derive(Debug, Clone)]
pub struct PartitionResult {
    /// The program, with [tags](ExportedProgram::tags).
    pub tagged_exported_program: ExportedProgram,
    /// What each tag stands for.
    pub partition_tags: BTreeMap<Arc<str>, DelegationSpec>,
    /// Why nodes that the backend does not take are left, by their first results: for reports, and may be empty.
    pub reasons: BTreeMap<VarId, String>,
}

/// Decides which nodes a backend takes.
pub trait Partitioner {
    /// Tags the nodes of each part. The partitioner may rewrite the program, but not change what it computes.
    ///
    /// # Errors
    /// Why the program cannot be partitioned at all. Nodes that the backend does not take are left without a tag.
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError>;
}

/// The ahead-of-time half of a backend.
pub trait Preprocess {
    /// The id by which programs name the backend.
    fn backend_id(&self) -> &str;

    /// Makes a payload of a part: a program whose inputs are all [`InputKind::User`](super::InputKind::User), in the
    /// order in which calls give them, and whose outputs are values, in the order in which calls take them.
    ///
    /// # Errors
    /// Why the part cannot be brought into the backend's form.
    fn preprocess(
        &self,
        part: &ExportedProgram,
        compile_specs: &[CompileSpec],
    ) -> Result<PreprocessResult, DelegationError>;
}

/// What a backend makes of a part.
#[derive(Debug, Clone, Default)]
pub struct PreprocessResult {
    /// The payload that the backend is given at run time.
    pub processed_bytes: Vec<u8>,
    /// For each handle that the backend reports at run time the nodes of the source program that it stands for.
    pub debug_handle_map: BTreeMap<DebugHandle, Vec<String>>,
    /// Bytes that the payload names.
    pub named_data: Vec<NamedBytes>,
    /// How many bytes the backend reads behind the end of a tensor in an arena.
    pub reads_past_end: u64,
}

/// What a backend calls a place of its payload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DebugHandle {
    /// A number.
    Int(u32),
    /// A name.
    Str(String),
}

/// Bytes that a payload names by a key. Equal keys of one program must stand for equal bytes.
#[derive(Clone)]
pub struct NamedBytes {
    /// The key.
    pub key: String,
    /// The bytes, or their owner, which is asked for them when the program is written.
    pub bytes: SharedBytes,
    /// To what the first byte is aligned in the file.
    pub alignment: u64,
}

impl fmt::Debug for NamedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, bytes, alignment } = self;
        write!(f, "{} bytes `{key}`, aligned to {alignment}", bytes.len())
    }
}

/// A part of a program that a backend has taken.
#[derive(Debug, Clone)]
pub struct LoweredModule {
    /// The backend, and its settings.
    pub spec: DelegationSpec,
    /// The payload.
    pub result: PreprocessResult,
    /// What it computes.
    pub original: ExportedProgram,
}

/// Why a program could not be delegated.
#[derive(Debug, thiserror::Error)]
pub enum DelegationError {
    /// A part would have to run before and after other nodes.
    #[error(
        "the nodes tagged `{tag}` cannot run at once: {path}; give the nodes before and behind another tag"
    )]
    Cycle {
        /// The tag.
        tag: String,
        /// From a node of the part through others back into it.
        path: String,
    },
    /// A tag stands in more than one graph.
    #[error(
        "the tag `{tag}` stands in a nested graph and around it, or in two of them; tags are those of one graph"
    )]
    Spread {
        /// The tag.
        tag: String,
    },
    /// A tag that the partitioner does not explain.
    #[error("the tag `{tag}` of node `{node}` is not among the partition tags: {known}")]
    UnknownTag {
        /// The tag.
        tag: String,
        /// A node that has it.
        node: String,
        /// The tags that there are.
        known: String,
    },
    /// A part is for a backend that was not given.
    #[error("there is no backend `{backend_id}`, for which the nodes tagged `{tag}` are")]
    NoBackend {
        /// The tag.
        tag: String,
        /// The backend.
        backend_id: String,
    },
    /// Two payloads name different bytes by one key.
    #[error("two payloads name different bytes `{key}`")]
    SameKey {
        /// The key.
        key: String,
    },
    /// A backend could not preprocess a part.
    #[error("{backend_id} cannot take node `{node}` ({target}): {problem}")]
    Preprocess {
        /// The backend.
        backend_id: String,
        /// The node.
        node: String,
        /// Its operator.
        target: String,
        /// Why.
        problem: String,
    },
    /// A backend could not write its payload.
    #[error("{backend_id}: the payload: {problem}")]
    Payload {
        /// The backend.
        backend_id: String,
        /// Why.
        problem: String,
    },
    /// A payload could not be brought back to operators.
    #[error("{backend_id}: the payload cannot be brought back to operators: {problem}")]
    Recover {
        /// The backend.
        backend_id: String,
        /// Why.
        problem: String,
    },
    /// What a partitioner or a backend made of the program breaks a rule.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exported::{Argument, ExportedNode, InputKind, TensorSpec, VarType};
    use tensor::ScalarType;

    fn value(program: &mut ExportedProgram, name: &str) -> VarId {
        let spec = TensorSpec::contiguous(ScalarType::Float, vec![2.into()]);
        program.add_var(name, VarType::Tensor(spec))
    }

    fn node(program: &mut ExportedProgram, target: &str, operands: &[VarId]) -> VarId {
        let output = value(program, &format!("v{}", program.graph.nodes.len()));
        let args = operands.iter().map(|&v| ("".into(), Argument::Var(v))).collect();
        let node =
            ExportedNode { target: target.into(), args, outputs: vec![output], source: Arc::default() };
        program.graph.nodes.push(node);
        output
    }

    fn input(program: &mut ExportedProgram) -> VarId {
        let x = value(program, "x");
        program.graph.inputs.push(x);
        program.inputs.push(InputKind::User);
        x
    }

    /// Nodes `v0`, `v1`, … of these targets, each of the one before.
    pub(super) fn chain(targets: &[&str]) -> ExportedProgram {
        let mut program = ExportedProgram::new("forward");
        let mut at = input(&mut program);
        for target in targets {
            at = node(&mut program, target, &[at]);
        }
        program.graph.outputs.push(Argument::Var(at));
        program
    }

    pub(super) fn names(program: &ExportedProgram) -> Vec<&str> {
        program.graph.nodes.iter().map(|node| &*node.target).collect()
    }

    /// Takes the nodes whose target starts with `+`, and puts their targets into its payload.
    struct Plus;

    impl Partitioner for Plus {
        fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
            let mut program = program.clone();
            let tags = tag_supported(&mut program, "plus", &|_, node| node.target.starts_with('+'));
            let spec = DelegationSpec { backend_id: "Plus".into(), ..DelegationSpec::default() };
            let partition_tags = tags.into_iter().map(|tag| (tag, spec.clone())).collect();
            Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons: BTreeMap::new() })
        }
    }

    impl Preprocess for Plus {
        fn backend_id(&self) -> &str {
            "Plus"
        }

        fn preprocess(
            &self,
            part: &ExportedProgram,
            _: &[CompileSpec],
        ) -> Result<PreprocessResult, DelegationError> {
            part.verify()?;
            Ok(PreprocessResult { processed_bytes: names(part).join(" ").into_bytes(), ..Default::default() })
        }
    }

    fn payloads(program: &ExportedProgram) -> Vec<String> {
        let bytes = program.lowered.iter().map(|module| module.result.processed_bytes.clone());
        bytes.map(|bytes| String::from_utf8(bytes).unwrap()).collect()
    }

    #[test]
    fn connected_nodes_become_one_call() {
        let program = to_backend(&chain(&["+a", "+b", "c", "+d", "+e"]), &Plus, &[&Plus]).unwrap();
        assert_eq!(names(&program), [CALL_DELEGATE, "c", CALL_DELEGATE]);
        assert_eq!(payloads(&program), ["+a +b", "+d +e"]);
    }

    #[test]
    fn a_part_does_not_wait_for_itself() {
        // x -> +a -> b -> +c, and +a -> +c: all supported nodes at once would need what `b` gives.
        let mut program = ExportedProgram::new("forward");
        let x = input(&mut program);
        let a = node(&mut program, "+a", &[x]);
        let b = node(&mut program, "b", &[a]);
        let c = node(&mut program, "+c", &[a, b]);
        // Of the level of `+a`, but behind it in the file.
        let d = node(&mut program, "+d", &[a]);
        program.graph.outputs.extend([Argument::Var(c), Argument::Var(d)]);
        let lowered = to_backend(&program, &Plus, &[&Plus]).unwrap();
        assert_eq!(payloads(&lowered), ["+a +d", "+c"]);
        assert_eq!(names(&lowered), [CALL_DELEGATE, "b", CALL_DELEGATE]);
        let first = &lowered.graph.nodes[0];
        assert_eq!(first.outputs, [a, d]);
    }

    #[test]
    fn a_whole_program_becomes_one_call() {
        let spec = DelegationSpec { backend_id: "Plus".into(), ..DelegationSpec::default() };
        let program = to_backend_whole(&chain(&["a", "b"]), &Plus, &spec).unwrap();
        assert_eq!((names(&program), payloads(&program)), (vec![CALL_DELEGATE], vec!["a b".to_owned()]));
    }

    #[test]
    fn tags_and_backends_must_be_there() {
        struct Wrong;
        impl Partitioner for Wrong {
            fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
                let mut result = Plus.partition(program)?;
                result.partition_tags.clear();
                Ok(result)
            }
        }
        let program = chain(&["+a"]);
        let problem = to_backend(&program, &Wrong, &[&Plus]).unwrap_err().to_string();
        assert!(problem.contains("`plus0` of node `v0`"), "{problem}");
        let problem = to_backend(&program, &Plus, &[]).unwrap_err().to_string();
        assert!(problem.contains("no backend `Plus`"), "{problem}");
    }

    #[test]
    fn the_work_grows_with_the_nodes() {
        let targets: Vec<&str> = (0..60_000).map(|i| if i % 3 == 0 { "b" } else { "+a" }).collect();
        let program = to_backend(&chain(&targets), &Plus, &[&Plus]).unwrap();
        assert_eq!(program.lowered.len(), 20_000);
    }
}
