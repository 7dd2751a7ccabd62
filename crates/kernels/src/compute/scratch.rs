//! Scratch memory that each thread keeps, for packed blocks. Its size is bounded by the block sizes of the callers, not
//! by the problem, and nothing is allocated once a thread's buffers are as large as its calls need.

use pteron_tensor::AlignedBuffer;
use std::cell::RefCell;

thread_local! {
    /// Buffers not in use: a stack, so that the buffer returned last is lent next.
    static SCRATCH: RefCell<Vec<AlignedBuffer>> = const { RefCell::new(Vec::new()) };
}

/// A vector of `len` copies of a value. Ends the computation if memory runs out, as [`with_buffer`] does.
pub(crate) fn filled_vec<T: Clone>(len: usize, value: T) -> Vec<T> {
    let out_of_memory = |_| pteron_pool::out_of_memory(len.saturating_mul(size_of::<T>()));
    pteron_tensor::memory::filled(len, value).unwrap_or_else(out_of_memory)
}

/// Lends `len` elements of the thread's scratch memory, with unspecified contents. A nested call gets another buffer,
/// which is kept as well. Ends the computation if memory runs out ([`pteron_pool::out_of_memory`]).
pub(crate) fn with_buffer<R>(len: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    let bytes = len * size_of::<f32>();
    let mut buffer = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < bytes {
        buffer = AlignedBuffer::zeroed(bytes).unwrap_or_else(|_| pteron_pool::out_of_memory(bytes));
    }
    let result = body(&mut bytemuck::cast_slice_mut(&mut buffer[..bytes])[..len]);
    SCRATCH.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}
