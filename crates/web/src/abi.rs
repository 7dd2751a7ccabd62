//! The functions that the WebAssembly module exports and imports. Addresses are in its linear memory, which JavaScript
//! reads and writes while no exported function runs.

use crate::{ABI, Engine};
use std::cell::RefCell;

#[link(wasm_import_module = "pteron")]
unsafe extern "C" {
    /// JavaScript's clock, in milliseconds. The module for several threads has WASI's clock instead.
    #[cfg(target_os = "unknown")]
    safe fn now() -> f64;
    /// Reports a panic with its message in UTF-8. JavaScript throws an exception, so this function does not return.
    safe fn panicked(address: *const u8, len: usize);
}

thread_local! {
    static ENGINE: RefCell<Engine> = RefCell::new(Engine::default());
}

/// Initializes the module: called once, before any other function. Returns the version of this interface.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pteron_start() -> u32 {
    #[cfg(target_os = "unknown")]
    pteron_clock::set(|| std::time::Duration::try_from_secs_f64(now() / 1e3).unwrap_or_default());
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        panicked(text.as_ptr(), text.len());
    }));
    ABI
}

/// Called on a thread that a trap or a panic has ended: the threads that wait for it panic in turn.
#[cfg(not(target_os = "unknown"))]
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pteron_thread_lost() {
    pteron_pool::thread_lost();
}

/// Creates a buffer of zeros; returns 0 if there is not enough memory.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pteron_buffer(len: usize) -> u32 {
    ENGINE.with_borrow_mut(|engine| engine.create_buffer(len).unwrap_or(0))
}

/// The address of the bytes of a buffer, valid until it is freed; 0 if there is no such buffer.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pteron_address(buffer: u32) -> usize {
    ENGINE.with_borrow_mut(|engine| {
        engine.bytes_mut(buffer).map_or(0, |bytes| bytes.as_mut_ptr().expose_provenance())
    })
}

/// The number of bytes of a buffer; 0 if there is no such buffer.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pteron_length(buffer: u32) -> usize {
    ENGINE.with_borrow(|engine| engine.bytes(buffer).map_or(0, <[u8]>::len))
}

/// Frees a buffer, if it exists.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pteron_free(buffer: u32) {
    ENGINE.with_borrow_mut(|engine| engine.free(buffer));
}

/// Executes the request in a buffer, frees the buffer, and returns the buffer of the response; 0 if there is not enough memory
/// for it.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pteron_call(request: u32) -> u32 {
    ENGINE.with_borrow_mut(|engine| engine.call(request).unwrap_or(0))
}
