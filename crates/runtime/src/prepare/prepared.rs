//! A prepared method, and the settings of its preparation.

use super::raise::Listing;
use super::region::Region;
use crate::backend::DelegateEntry;
use crate::load::Loaded;
use crate::plan::{Chain, Id, State};
use pteron_engine::Packs;
use pteron_operator::{KernelContext, Reservation};

/// Instructions that run as they are written, because preparing them would exceed the memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsWritten {
    /// The index of the chain.
    pub chain: usize,
    /// The range of instructions in the chain.
    pub instructions: std::ops::Range<usize>,
    /// The reason: what exceeds which limit.
    pub reason: String,
}

/// A loaded method with its regions.
pub(crate) struct Prepared {
    pub(crate) state: State,
    pub(crate) chains: Vec<Chain>,
    pub(crate) delegates: Vec<DelegateEntry>,
    pub(crate) inputs: Vec<Id>,
    pub(crate) outputs: Vec<Id>,
    pub(crate) regions: Vec<Region>,
    /// Packed weights, shared by regions and prepared calls.
    pub(crate) packs: Packs,
    /// Budget reservations for arenas, tables and constants.
    pub(crate) reservations: Vec<Reservation>,
    /// The instructions that could not be prepared within the memory limit.
    pub(crate) as_written: Vec<AsWritten>,
}

/// How a method is prepared.
pub(crate) struct Settings<'a> {
    pub(crate) ctx: KernelContext<'a>,
    /// Whether regions keep their graphs.
    pub(crate) keep_graphs: bool,
    /// Maximum number of bytes that the nodes of one delegate may write.
    pub(crate) backend_bytes: usize,
}

impl Prepared {
    /// Wraps a loaded method without preparing it: all its instructions run as they are written.
    pub(crate) fn from_loaded(loaded: Loaded, packs: Packs) -> Self {
        let Loaded { state, chains, delegates, inputs, outputs, reservations, .. } = loaded;
        let (regions, as_written) = (Vec::new(), Vec::new());
        Self { state, chains, delegates, inputs, outputs, regions, packs, reservations, as_written }
    }

    /// The method's instructions, with the values that they refer to.
    pub(crate) fn listing(&self) -> Listing<'_> {
        let Self { state, chains, inputs, outputs, .. } = self;
        Listing { state, chains, inputs, outputs }
    }

    /// Records that instructions could not be prepared, if `error` says that a limit is the reason.
    pub(crate) fn note_as_written(
        &mut self,
        chain: usize,
        instructions: std::ops::Range<usize>,
        error: Option<pteron_operator::Error>,
    ) {
        if let Some(error @ pteron_operator::Error::Limit { .. }) = error {
            self.as_written.push(AsWritten { chain, instructions, reason: error.to_string() });
        }
    }
}
