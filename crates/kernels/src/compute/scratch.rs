//! Memory that a thread keeps for packing blocks. Its size is bounded by the block sizes of the
//! callers, not by the problem, and after a thread's first call nothing is allocated.

use std::cell::RefCell;
use tensor::AlignedBuffer;

thread_local! {
    /// What is not in use now: the last one that was given back is the next to be lent.
    static SCRATCH: RefCell<Vec<AlignedBuffer>> = const { RefCell::new(Vec::new()) };
}

/// So many copies of a value, for as long as a computation takes. Ends the computation if there is no memory, as
/// [`with`] does.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Vec<T> {
    let out_of_memory = |_| pool::out_of_memory(len.saturating_mul(size_of::<T>()));
    tensor::memory::filled(len, value).unwrap_or_else(out_of_memory)
}

/// Lends `len` elements of the thread's scratch, holding whatever was left there. A use within a use gets other memory, which
/// is kept, too. Ends the computation if there is no memory ([`pool::out_of_memory`]).
pub(crate) fn with<R>(len: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    let bytes = len * size_of::<f32>();
    let mut buffer = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < bytes {
        buffer = AlignedBuffer::zeroed(bytes).unwrap_or_else(|_| pool::out_of_memory(bytes));
    }
    let result = body(&mut bytemuck::cast_slice_mut(&mut buffer[..bytes])[..len]);
    SCRATCH.with_borrow_mut(|kept| kept.push(buffer));
    result
}
