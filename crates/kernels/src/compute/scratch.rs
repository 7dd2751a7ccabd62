//! Memory that a thread keeps for packing blocks. Its size is bounded by the block sizes of the
//! callers, not by the problem, and after a thread's first call nothing is allocated.

use std::cell::RefCell;
use tensor::AlignedBuffer;

thread_local! {
    static SCRATCH: RefCell<AlignedBuffer> = RefCell::new(AlignedBuffer::default());
}

thread_local! {
    static TABLE: RefCell<Vec<*const f32>> = const { RefCell::new(Vec::new()) };
}

/// Lends the thread's table of pointers, empty. A use within a use gets one of its own.
pub(crate) fn with_table<R>(body: impl FnOnce(&mut Vec<*const f32>) -> R) -> R {
    let mut table = TABLE.with(|cell| cell.take());
    table.clear();
    let result = body(&mut table);
    TABLE.with(|cell| cell.replace(table));
    result
}

/// Lends `len` elements of the thread's scratch, holding whatever was left there. A use within a use
/// gets memory of its own. Ends the computation if there is no memory ([`pool::out_of_memory`]).
pub(crate) fn with<R>(len: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    let bytes = len * size_of::<f32>();
    SCRATCH.with(|cell| match cell.try_borrow_mut() {
        Ok(mut buffer) => {
            if buffer.len() < bytes {
                *buffer = AlignedBuffer::zeroed(bytes).unwrap_or_else(|_| pool::out_of_memory(bytes));
            }
            body(&mut bytemuck::cast_slice_mut(&mut buffer[..bytes])[..len])
        }
        Err(_) => {
            let mut own = AlignedBuffer::zeroed(bytes).unwrap_or_else(|_| pool::out_of_memory(bytes));
            body(bytemuck::cast_slice_mut(&mut own))
        }
    })
}
