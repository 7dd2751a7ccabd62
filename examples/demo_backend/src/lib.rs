//! The runtime half of `BackendWithCompilerDemo`.
