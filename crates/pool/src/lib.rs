//! The threads that kernels and the host executor share.
//!
//! A [`Pool`] is a value: whoever runs a program makes one and hands it down; nothing here is global.
//! A pool of one thread runs everything on the caller and touches no atomics.

mod parallel;

pub use parallel::Pool;
