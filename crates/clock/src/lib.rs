//! A clock for every target, including those whose standard library has none.
//!
//! On `wasm32-unknown-unknown` the standard library has neither clock nor threads: `std::time::Instant::now` and
//! `std::thread::sleep` panic there. [`Instant`] and [`sleep`] are the standard library's everywhere else.
#![cfg_attr(
    not(all(target_family = "wasm", target_os = "unknown")),
    doc = "On that target, `set` installs the function that reads the clock; until then the time does not advance."
)]
#![forbid(unsafe_code)]

#[cfg(any(test, all(target_family = "wasm", target_os = "unknown")))]
#[cfg_attr(test, allow(unreachable_pub, reason = "natively it is only tested"))]
mod set;

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub use set::{Instant, set, sleep};

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub use std::{thread::sleep, time::Instant};

/// Whether the standard library has a clock and threads on this target.
pub const IS_NATIVE: bool = !cfg!(all(target_family = "wasm", target_os = "unknown"));
