//! Kernels that are ready, in the order in which the reference takes them.

use super::order;
use crate::body::Body;
use smallvec::SmallVec;

pub(super) type Kernels = SmallVec<[u32; 8]>;

/// No kernel.
const NONE: u32 = u32::MAX;

/// Ready kernels of one thread: those of the stream that it follows, and the others.
pub(super) struct Ready {
    stream: u32,
    /// The kernel of the stream that became ready last, before those of `inline`.
    next: u32,
    inline: Kernels,
    outline: Kernels,
}

impl Ready {
    #[inline]
    pub(super) fn new(stream: u32) -> Self {
        Self::of(stream, Kernels::new())
    }

    /// Kernels of one stream, all ready.
    #[inline]
    pub(super) fn of(stream: u32, kernels: Kernels) -> Self {
        Self { stream, next: NONE, inline: kernels, outline: Kernels::new() }
    }

    /// A kernel that is ready.
    #[inline]
    pub(super) fn with(stream: u32, kernel: u32) -> Self {
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

    /// The next kernel to run here: the last of the stream to become ready.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<u32> {
        if self.next == NONE {
            return self.inline.pop();
        }
        Some(std::mem::replace(&mut self.next, NONE))
    }

    /// Whether kernels of other streams are ready.
    #[inline(always)]
    pub(super) fn has_others(&self) -> bool {
        !self.outline.is_empty()
    }

    /// Prepares [`Self::others`]; but first, if no kernel of the stream is ready, goes over to the stream of
    /// the first other kernel. False if there are no others then.
    #[inline(always)]
    pub(super) fn settle_others(&mut self, body: &Body) -> bool {
        let goes_over = self.next == NONE && self.inline.is_empty();
        if let (true, &[only]) = (goes_over, &self.outline[..]) {
            (self.stream, self.next) = (body.nodes[only as usize].stream, only);
            self.outline.clear();
            return false;
        }
        self.settle_many(body, goes_over)
    }

    #[inline(never)]
    fn settle_many(&mut self, body: &Body, goes_over: bool) -> bool {
        let stream = |&kernel: &u32| body.nodes[kernel as usize].stream;
        if goes_over {
            self.stream = stream(&self.outline[0]);
            let middle = order::partition(&mut self.outline, |kernel| stream(kernel) != self.stream);
            self.inline.extend_from_slice(&self.outline[middle..]);
            self.outline.truncate(middle);
        }
        order::sort(&mut self.outline, |a, b| stream(a) < stream(b));
        !self.outline.is_empty()
    }

    /// The ready kernels of other streams, a stream at a time.
    pub(super) fn others<'a>(&'a self, body: &'a Body) -> impl Iterator<Item = (u32, &'a [u32])> {
        let stream = |&kernel: &u32| body.nodes[kernel as usize].stream;
        self.outline.chunk_by(move |a, b| stream(a) == stream(b)).map(move |group| (stream(&group[0]), group))
    }

    /// Forgets the kernels of other streams.
    pub(super) fn clear_others(&mut self) {
        self.outline.clear();
    }
}
