//! From a graph to an executable.

use super::executable::Executable;
use super::lower::lower;
use super::packs::Packs;
use crate::check::check_graph;
use crate::graph::Graph;
use crate::passes;
use pteron_operator::{KernelContext, Result};

impl Executable {
    /// Lowers a graph: runs the passes, packs weights, plans the workspace. The executable is compiled for the
    /// instruction set of `ctx` and keeps it, even if it is run under another context.
    pub fn new(graph: Graph, ctx: &KernelContext<'_>) -> Result<Self> {
        Self::with_packs(graph, ctx, &mut Packs::default())
    }

    /// Like [`Self::new`], but shares weights that other executables have packed through `packs`.
    pub fn with_packs(mut graph: Graph, ctx: &KernelContext<'_>, packs: &mut Packs) -> Result<Self> {
        passes::run(&mut graph, ctx);
        check_graph(&graph)?;
        lower(graph, ctx, packs)
    }
}
