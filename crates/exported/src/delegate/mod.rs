//! Ahead-of-time delegation: a partitioner tags the nodes that a backend supports, the backend compiles each tagged
//! part to a payload, and a call of the payload replaces the part.
//!
//! ```text
//! ExportedProgram ─ Partitioner::partition ─► tagged ─ to_backend ─► parts ─ Preprocess::preprocess ─► payloads
//!                                                         └────────► the program, with a call for each part
//! ```

mod check;
mod lower;
mod propose;
mod recover;
mod sources;
mod tags;

pub use check::partition;
pub use lower::{lower_partition, to_backend, to_backend_whole};
pub use propose::tag_supported;
pub use recover::{LoweredCall, Recover};
pub use sources::{DelegateSource, DelegateSources, SourceNode};

use super::{ExportedProgram, SourceFrame, VarId};
use pteron_ir::{Malformed, SharedBytes};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The target of a node that calls a payload. Its first argument, `lowered_module`, is the payload's index in
/// [`ExportedProgram::lowered`]; the others are the payload's inputs, in order.
pub const CALL_DELEGATE: &str = "executorch_call_delegate";

/// The greatest alignment of payloads and named data, in bytes: that of a huge page.
pub const MAX_ALIGNMENT: u64 = 1 << 21;

/// A setting of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompileSpec {
    /// The setting's name.
    pub key: String,
    /// The setting's value, which only the backend interprets.
    pub value: Vec<u8>,
}

/// The backend of a tagged part, and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelegationSpec {
    /// The id by which programs name the backend.
    pub backend_id: String,
    /// The settings.
    pub compile_specs: Vec<CompileSpec>,
}

/// The result of a partitioner.
#[derive(Debug, Clone)]
pub struct PartitionResult {
    /// The program, with [tags](ExportedProgram::tags).
    pub tagged_exported_program: ExportedProgram,
    /// The backend and settings of each tag.
    pub partition_tags: BTreeMap<Arc<str>, DelegationSpec>,
    /// Why the backend does not take certain nodes, keyed by their first results. For reports only; may be empty.
    pub reasons: BTreeMap<VarId, String>,
}

/// Decides which nodes are delegated to a backend.
pub trait Partitioner {
    /// Tags the nodes of each part: the first result of each, in [`ExportedProgram::tags`]. The partitioner must not
    /// change the program otherwise; [`partition()`] checks that. (A computed size of a view may become -1, to be
    /// inferred.) Calls of the payloads of other backends cannot be tagged.
    ///
    /// # Errors
    /// The program cannot be partitioned at all. Nodes that the backend does not support are no error; they get no tag.
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError>;

    /// Whether the backend prefers channels-last images. Then convolutions and pools of images compute in that layout,
    /// and so does what follows them element by element; images in another layout are copied before that, and outputs
    /// are copied back to their own layout after it. All backends of a compilation, and the kernels, get that program.
    fn prefers_channels_last(&self) -> bool {
        false
    }

    /// Whether the backend takes products of two computed values only if both are quantized with calibrated ranges. Otherwise, quantization
    /// finds the ranges of the first one's rows at run time, which adds less noise.
    fn needs_calibrated_products(&self) -> bool {
        false
    }
}

/// The ahead-of-time half of a backend, which compiles parts of programs to payloads.
pub trait Preprocess {
    /// The id by which programs name the backend.
    fn backend_id(&self) -> &str;

    /// Compiles a part to a payload. The part is a program whose inputs are all
    /// [`InputKind::User`](super::InputKind::User), in the order in which calls pass them, and whose outputs are
    /// values, in the order in which calls receive them.
    ///
    /// # Errors
    /// The backend cannot compile the part.
    fn preprocess(
        &self,
        part: &ExportedProgram,
        compile_specs: &[CompileSpec],
    ) -> Result<PreprocessResult, DelegationError>;
}

/// The result of compiling a part.
#[derive(Debug, Clone, Default)]
pub struct PreprocessResult {
    /// The payload, which the backend receives at run time.
    pub processed_bytes: Vec<u8>,
    /// Maps each debug handle that the backend reports at run time to the names of the source nodes that it stands for.
    pub debug_handle_map: BTreeMap<DebugHandle, Vec<String>>,
    /// The named data that the payload refers to.
    pub named_data: Vec<NamedBytes>,
    /// How many bytes the backend may read past the end of a tensor in an arena.
    pub reads_past_end: u64,
    /// The alignment of the payload's first byte in memory when the backend is initialized: a power of two of at most
    /// [`MAX_ALIGNMENT`], or 0 if no alignment is required.
    pub payload_alignment: u64,
}

/// A backend's identifier for a place in its payload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DebugHandle {
    /// A number.
    Int(u32),
    /// A name.
    Str(String),
}

/// Bytes that a payload refers to by a key. Equal keys in one program must have equal bytes.
#[derive(Clone)]
pub struct NamedBytes {
    /// The key.
    pub key: String,
    /// The bytes, or an owner that provides them when the program is written.
    pub bytes: SharedBytes,
    /// The alignment of the first byte, in the file and in memory when a backend asks for the
    /// bytes: a power of two of at most [`MAX_ALIGNMENT`].
    pub alignment: u64,
}

impl fmt::Debug for NamedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, bytes, alignment } = self;
        write!(f, "{} bytes `{key}`, aligned to {alignment}", bytes.len())
    }
}

/// A part of a program that was lowered to a backend.
#[derive(Debug, Clone)]
pub struct LoweredModule {
    /// The backend, and its settings.
    pub spec: DelegationSpec,
    /// The payload.
    pub result: PreprocessResult,
    /// The part before lowering.
    pub original: ExportedProgram,
}

/// Why a program could not be delegated.
#[derive(Debug, thiserror::Error)]
pub enum DelegationError {
    /// A part depends on itself through nodes outside it, so it cannot run in one call.
    #[error(
        "the nodes tagged `{tag}` cannot run at once: {path}; give the nodes before and behind another tag"
    )]
    Cycle {
        /// The tag.
        tag: String,
        /// The path from a node of the part, through nodes outside the part, back into the part.
        path: String,
    },
    /// A tag is used in more than one graph.
    #[error(
        "the tag `{tag}` is used in several graphs (the outermost or nested ones); use each tag in one graph only"
    )]
    Spread {
        /// The tag.
        tag: String,
    },
    /// A tag is missing from the partition tags.
    #[error("the tag `{tag}` of node `{node}` is not among the partition tags: {known}")]
    UnknownTag {
        /// The tag.
        tag: String,
        /// A node that has the tag.
        node: String,
        /// The tags that the partitioner describes, as text.
        known: String,
    },
    /// A part is tagged for a backend that was not provided.
    #[error("there is no backend `{backend_id}` for the nodes tagged `{tag}`")]
    NoBackend {
        /// The tag.
        tag: String,
        /// The backend.
        backend_id: String,
    },
    /// Two payloads use one key for different bytes.
    #[error("two payloads use the key `{key}` for different bytes")]
    SameKey {
        /// The key.
        key: String,
    },
    /// A partitioner has changed a program instead of tagging its nodes.
    #[error("the partitioner has changed the program: {what}; it may only tag nodes")]
    Altered {
        /// What the partitioner changed.
        what: String,
    },
    /// A tag is on a value that is no node's first result, or on a call of another backend's payload.
    #[error("the tag `{tag}` of {value} has no effect: {problem}; tag the first results of nodes")]
    NotANode {
        /// The tag.
        tag: String,
        /// What is tagged.
        value: String,
        /// Why the value cannot be tagged.
        problem: String,
    },
    /// A payload or named data asks for an alignment that cannot be given.
    #[error("{backend_id}: the alignment {alignment} of {what} is not a power of two of at most 2^21")]
    Alignment {
        /// The backend.
        backend_id: String,
        /// The payload or named data that requires the alignment.
        what: String,
        /// The required alignment, in bytes.
        alignment: u64,
    },
    /// Payloads of two methods use one key for different bytes. Named data belongs to the file, not to a method.
    #[error(
        "payloads of the methods `{first}` and `{second}` use the key `{key}` for different bytes; a key names the same \
         bytes in the whole file: make the method's name or a hash of the bytes part of it"
    )]
    SameKeyInMethods {
        /// The key.
        key: String,
        /// A method that uses the key.
        first: String,
        /// Another method, which uses the key for other bytes.
        second: String,
    },
    /// A payload uses a key that the file needs for something else.
    #[error("a payload of {backend_id} uses the key `{key}`, which {problem}; choose another key")]
    TakenKey {
        /// The backend.
        backend_id: String,
        /// The key.
        key: String,
        /// Why the payload cannot use the key.
        problem: String,
    },
    /// An error of a backend about a node, with the source line of that node.
    #[error("{source}\n    at {line}")]
    AtLine {
        /// The error.
        source: Box<DelegationError>,
        /// The source line of the node.
        line: SourceFrame,
    },
    /// A backend panicked.
    #[error("{backend_id} panicked when it compiled a part of `{method}`: {message}")]
    Panicked {
        /// The backend.
        backend_id: String,
        /// The method.
        method: String,
        /// The message of the panic.
        message: String,
    },
    /// A backend cannot compile a part.
    #[error("{backend_id} cannot take node `{node}` ({target}): {problem}")]
    Preprocess {
        /// The backend.
        backend_id: String,
        /// The node.
        node: String,
        /// The node's operator.
        target: String,
        /// Why the backend cannot compute the node.
        problem: String,
    },
    /// A backend cannot write its payload.
    #[error("{backend_id}: the payload: {problem}")]
    Payload {
        /// The backend.
        backend_id: String,
        /// Why the backend cannot write the payload.
        problem: String,
    },
    /// A payload cannot be converted back to operators.
    #[error("{backend_id}: the payload cannot be brought back to operators: {problem}")]
    Recover {
        /// The backend.
        backend_id: String,
        /// Why the payload cannot be converted.
        problem: String,
    },
    /// The program that a partitioner or a backend produced breaks an invariant.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Argument, ExportedNode, InputKind, TensorSpec, VarType};
    use pteron_tensor::ScalarType;

    pub(super) fn value(program: &mut ExportedProgram, name: &str) -> VarId {
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

    /// Nodes `v0`, `v1`, … with these targets, each of which uses the one before.
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

    /// A backend that supports the nodes whose targets begin with `+` and writes their targets as its payload.
    pub(super) struct Plus;

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
    fn parts_do_not_depend_on_themselves() {
        // x -> +a -> b -> +c, and +a -> +c: one part of all supported nodes would depend on itself through `b`.
        let mut program = ExportedProgram::new("forward");
        let x = input(&mut program);
        let a = node(&mut program, "+a", &[x]);
        let b = node(&mut program, "b", &[a]);
        let c = node(&mut program, "+c", &[a, b]);
        // On the level of `+a`, but later in the program.
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
    fn unknown_tags_and_backends_are_rejected() {
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
    fn delegation_is_linear_in_the_number_of_nodes() {
        let targets: Vec<&str> = (0..60_000).map(|i| if i % 3 == 0 { "b" } else { "+a" }).collect();
        let program = to_backend(&chain(&targets), &Plus, &[&Plus]).unwrap();
        assert_eq!(program.lowered.len(), 20_000);
    }
}
