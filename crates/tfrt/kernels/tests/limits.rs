//! Programs that exceed the limits are stopped soon.

use pteron_tfrt_kernels::driver::{self, Options, Queue};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A parallel loop of 2^31 - 1 blocks.
const HUGE_LOOP: &[u8] = include_bytes!("data/huge_loop.bef");

/// The same loop, over a function that does not take the bounds as arguments.
const MISMATCHED_LOOP: &[u8] = include_bytes!("data/misfit_loop.bef");

#[test]
fn a_loop_over_a_function_with_the_wrong_signature_is_rejected() {
    let start = Instant::now();
    let options = Options::default();
    assert_eq!(driver::run(Arc::new(MISMATCHED_LOOP), &options, io::sink(), io::sink()), 1);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_loop_of_too_many_blocks_ends_with_an_error() {
    for queue in [Queue::SingleThreaded, Queue::MultiThreaded(2)] {
        let limits = pteron_host::Limits { kernels: 10_000, ..pteron_host::Limits::DEFAULT };
        let options = Options { queue, limits, ..Options::default() };
        let start = Instant::now();
        assert_eq!(driver::run(Arc::new(HUGE_LOOP), &options, io::sink(), io::sink()), 1);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
