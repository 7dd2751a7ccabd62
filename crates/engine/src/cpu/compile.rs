//! From a graph to an executable.

use super::batch::Batch;
use super::executable::{Body, Executable};
use super::lower::lower;
use super::packs::Packs;
use super::parts::Parts;
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
        let Some(batch) = Batch::of(&graph) else {
            return Ok(Self(Body::Whole(lower(graph, ctx, packs)?)));
        };
        let rest = match batch.rows % batch.part {
            0 => None,
            rest => Some(lower(batch.part_of(&graph, rest)?, ctx, packs)?),
        };
        let steps = lower(batch.part_of(&graph, batch.part)?, ctx, packs)?;
        drop(graph);
        Ok(Self(Body::Parts(Parts::new((batch.rows, batch.part), steps, rest, ctx)?)))
    }
}
