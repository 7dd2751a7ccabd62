//! What the command asks of the system's allocator.

/// Gives free memory back to the system, of which allocators keep pages that lie between others in use. glibc alone has to
/// be told.
pub(crate) fn reclaim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: this is how glibc declares it, which every program for this target is linked with; it may be called on
        // any thread at any time.
        unsafe extern "C" {
            /// glibc: returns the pages of all arenas on which nothing is allocated, but for so many bytes at the end.
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}
