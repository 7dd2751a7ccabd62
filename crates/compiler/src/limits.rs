//! Limits on what an archive may make the compiler allocate.

/// Maximum bytes of a model's JSON. The JSON of a network of 100,000 nodes has about 200 MB.
pub(crate) const MAX_JSON_BYTES: u64 = 1 << 30;

/// Maximum bytes that compressed records may inflate to in total; `torch.export` compresses none.
pub(crate) const MAX_INFLATED_BYTES: u64 = 1 << 31;

/// Maximum total bytes that are copied because a tensor is not a dense view of its storage, or allocated for state that
/// a program initializes to zero.
pub(crate) const MAX_COPIED_BYTES: u64 = 1 << 32;

/// Maximum number of models in an archive.
pub(crate) const MAX_MODELS: usize = 256;

/// Maximum number of nodes of a program after decomposition. An unrolled loop, e.g. a recurrent network over a long
/// sequence, takes about twenty nodes per step.
pub(crate) const MAX_NODES: usize = 4_000_000;

/// Maximum number of replacements that lead from a node of an archive to a node that a kernel takes. The longest chain
/// is about ten; a rule that makes the node that it replaces would go on for ever.
pub(crate) const MAX_REPLACEMENTS: u32 = 64;

/// The estimated memory of a node in bytes: its arguments, and the names and types of its results.
pub(crate) const NODE_BYTES: usize = 512;

/// Maximum entries of a table that a decomposition computes from sizes, such as window indices.
pub(crate) const MAX_TABLE: usize = 1 << 24;

/// The memory in bytes that an entry of a table of up to [`MAX_TABLE`] entries takes while the table is computed.
pub(crate) const TABLE_ENTRY_BYTES: usize = 16;

/// Maximum nesting depth of parentheses and of quotients in a size expression.
pub(crate) const MAX_EXPRESSION_DEPTH: usize = 64;

/// Maximum number of terms in a size expression: simplification compares all pairs. PyTorch's expressions have about
/// a dozen.
pub(crate) const MAX_EXPRESSION_TERMS: usize = 1024;
