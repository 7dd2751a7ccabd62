//! Kernels that are ready, in the order in which the reference takes them.

use super::order;
use crate::body::Body;
use smallvec::SmallVec;

pub(super) type Kernels = SmallVec<[u32; 8]>;

/// Ready kernels of one thread: those of the stream that it follows, and the others.
pub(super) struct Ready {
    pub(super) stream: u32,
    inline: Kernels,
    outline: Kernels,
}

impl Ready {
    pub(super) fn new(stream: u32) -> Self {
        Self { stream, inline: Kernels::new(), outline: Kernels::new() }
    }

    /// Kernels of one stream, all ready.
    pub(super) fn of(stream: u32, kernels: Kernels) -> Self {
        Self { stream, inline: kernels, outline: Kernels::new() }
    }

    /// Adds a ready kernel.
    #[inline]
    pub(super) fn push(&mut self, kernel: u32, body: &Body) {
        if body.nodes[kernel as usize].stream == self.stream {
            self.inline.push(kernel);
        } else {
            self.outline.push(kernel);
        }
    }

    /// The next kernel to run here: the last of the stream to become ready.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.inline.pop()
    }

    /// Whether kernels of other streams are ready.
    #[inline(always)]
    pub(super) fn has_others(&self) -> bool {
        !self.outline.is_empty()
    }

    /// Sends kernels of other streams to `spawn`, a stream at a time; but first, if none of the stream
    /// is ready, goes over to the stream of the first other kernel.
    #[inline(never)]
    pub(super) fn settle_others(&mut self, body: &Body, mut spawn: impl FnMut(u32, Kernels)) {
        let stream = |&kernel: &u32| body.nodes[kernel as usize].stream;
        if self.inline.is_empty() {
            self.stream = stream(&self.outline[0]);
            let middle = order::partition(&mut self.outline, |kernel| stream(kernel) != self.stream);
            self.inline.extend(self.outline.drain(middle..));
        }
        order::sort(&mut self.outline, |a, b| stream(a) < stream(b));
        for group in self.outline.chunk_by(|a, b| stream(a) == stream(b)) {
            spawn(stream(&group[0]), group.into());
        }
        self.outline.clear();
    }
}
