//! The threads that kernels and the host executor share.
//!
//! A [`Pool`] is a value that the code that runs a program creates and passes down; there is no global pool. A pool of
//! one thread runs every loop on the caller, and touches no atomics in it unless an interrupt handle is armed. The same
//! threads run the tasks of a multi-threaded [`WorkQueue`], so that kernels and the executor above them never compete
//! for cores. The crate also asks the system for permission to use the AMX tiles.

#[cfg(target_arch = "x86_64")]
mod amx;
mod blocking;
mod event;
mod interrupt;
mod job;
pub mod limits;
mod parallel;
mod queue;
mod single;
mod sync;
mod workers;

#[cfg(target_arch = "x86_64")]
pub use amx::is_available as has_amx_int8;
pub use interrupt::{
    Armed, Interrupt, Interrupted, armed, checkpoint, count, counted, interruptible, out_of_memory, progress,
};
pub use parallel::{Pool, available_threads};
pub use queue::{HandOver, Refused, Resume, Task, WorkQueue};
#[doc(hidden)]
pub use sync::UnsafeCell;
#[cfg(all(target_family = "wasm", not(target_os = "unknown")))]
pub use sync::thread_lost;
