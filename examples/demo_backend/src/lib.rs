//! The runtime half of `BackendWithCompilerDemo`.
#![forbid(unsafe_code)]
