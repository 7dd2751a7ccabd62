//! Returning free memory of the allocator to the operating system.

/// Returns free pages between live allocations to the operating system. With allocators other than glibc's, does
/// nothing.
pub(crate) fn release_free_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the signature is the one that glibc declares, and every program for this target links glibc. The function
        // may be called on any thread at any time.
        unsafe extern "C" {
            /// glibc: releases the unused pages of all arenas, and keeps `pad` bytes at the top of the heap.
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}
