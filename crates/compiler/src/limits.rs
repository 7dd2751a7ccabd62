//! How much an archive may ask for.

/// Bytes of a model's JSON. That of a network of 100,000 nodes has about 200 MB.
pub(crate) const MAX_JSON_BYTES: u64 = 1 << 30;

/// Bytes that compressed records may inflate to, all together: `torch.export` compresses none.
pub(crate) const MAX_INFLATED_BYTES: u64 = 1 << 31;

/// Bytes that are copied because a tensor is no dense view of its storage, or made for state of a program that starts as
/// zeros, all together.
pub(crate) const MAX_COPIED_BYTES: u64 = 1 << 32;

/// Models in an archive.
pub(crate) const MAX_MODELS: usize = 256;

/// Nodes of a program after decomposition. A loop of PyTorch that is unrolled (a recurrent network over a long
/// sequence) makes some twenty a step.
pub(crate) const MAX_NODES: usize = 4_000_000;

/// Parentheses in each other in a size.
pub(crate) const MAX_EXPRESSION_DEPTH: usize = 64;
