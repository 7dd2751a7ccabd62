use crate::plan::{ArgRef, Id, OutRef};
use pteron_engine::{Executable, Graph};
use pteron_tensor::{Scalar, Shape};

/// A lowered region: its executable, the values that it reads and writes, and its other updates to the value table.
pub(crate) struct Lowered {
    /// The graph before any pass; `None` unless graphs are kept.
    pub(crate) graph: Option<Box<Graph>>,
    pub(crate) executable: Executable,
    pub(crate) args: Box<[ArgRef]>,
    pub(crate) outs: Box<[OutRef]>,
    pub(crate) sizes: Vec<(Id, Shape)>,
    pub(crate) scalars: Vec<(Id, Scalar)>,
    /// The views that the region makes, as (view, viewed value, sizes), in order.
    pub(crate) views: Vec<(Id, Id, Shape)>,
}

impl Lowered {
    pub(super) fn fork(&self) -> crate::Result<Self> {
        let executable = self.executable.fork().map_err(|e| crate::Error::Unsupported(e.to_string()))?;
        Ok(Self {
            graph: self.graph.clone(),
            executable,
            args: self.args.clone(),
            outs: self.outs.clone(),
            sizes: self.sizes.clone(),
            scalars: self.scalars.clone(),
            views: self.views.clone(),
        })
    }
}
