//! Queue of ready kernels, in the scheduling order of the reference implementation.

use super::order;
use crate::body::Body;
use smallvec::SmallVec;

pub(super) type Kernels = SmallVec<[u32; 8]>;

/// Stands for "no kernel" in place of a kernel's index.
const NONE: u32 = u32::MAX;

/// Ready kernels of one thread: a stack of those in the stream that it follows, and a list of those in other streams.
pub(super) struct Ready {
    stream: u32,
    /// Top of the stack: the kernel of the stream that became ready last.
    next: u32,
    inline: Kernels,
    outline: Kernels,
}

impl Ready {
    #[inline]
    pub(super) fn new(stream: u32) -> Self {
        Self::from_kernels(stream, Kernels::new())
    }

    /// A queue of these kernels, all of one stream.
    #[inline]
    pub(super) fn from_kernels(stream: u32, kernels: Kernels) -> Self {
        Self { stream, next: NONE, inline: kernels, outline: Kernels::new() }
    }

    /// A queue of one kernel.
    #[inline]
    pub(super) fn from_kernel(stream: u32, kernel: u32) -> Self {
        Self { stream, next: kernel, inline: Kernels::new(), outline: Kernels::new() }
    }

    /// Adds a ready kernel.
    #[inline(always)]
    pub(super) fn push(&mut self, kernel: u32, body: &Body) {
        if body.nodes[kernel as usize].stream != self.stream {
            self.outline.push(kernel);
        } else if self.next == NONE {
            self.next = kernel;
        } else {
            self.inline.push(self.next);
            self.next = kernel;
        }
    }

    /// The next kernel to run on this thread: the one of its stream that became ready last.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<u32> {
        if self.next == NONE {
            return self.inline.pop();
        }
        Some(std::mem::replace(&mut self.next, NONE))
    }

    /// Whether kernels of other streams are ready.
    #[inline(always)]
    pub(super) fn has_other_streams(&self) -> bool {
        !self.outline.is_empty()
    }

    /// Sorts the kernels of other streams for [`Self::other_streams`]. If no kernel of the current stream is ready,
    /// first switches to the stream of the first other kernel. Returns false if no kernels of other streams remain.
    #[inline(always)]
    pub(super) fn sort_other_streams(&mut self, body: &Body) -> bool {
        let switches_stream = self.next == NONE && self.inline.is_empty();
        if let (true, &[only]) = (switches_stream, &self.outline[..]) {
            (self.stream, self.next) = (body.nodes[only as usize].stream, only);
            self.outline.clear();
            return false;
        }
        self.sort_many_other_streams(body, switches_stream)
    }

    #[inline(never)]
    fn sort_many_other_streams(&mut self, body: &Body, switches_stream: bool) -> bool {
        let stream = |&kernel: &u32| body.nodes[kernel as usize].stream;
        if switches_stream {
            self.stream = stream(&self.outline[0]);
            let middle = order::partition(&mut self.outline, |kernel| stream(kernel) != self.stream);
            self.inline.extend_from_slice(&self.outline[middle..]);
            self.outline.truncate(middle);
        }
        order::sort(&mut self.outline, |a, b| stream(a) < stream(b));
        !self.outline.is_empty()
    }

    /// The ready kernels of other streams, grouped by stream.
    pub(super) fn other_streams<'a>(&'a self, body: &'a Body) -> impl Iterator<Item = (u32, &'a [u32])> {
        let stream = |&kernel: &u32| body.nodes[kernel as usize].stream;
        self.outline.chunk_by(move |a, b| stream(a) == stream(b)).map(move |group| (stream(&group[0]), group))
    }

    /// Removes the kernels of other streams.
    pub(super) fn clear_other_streams(&mut self) {
        self.outline.clear();
    }
}
