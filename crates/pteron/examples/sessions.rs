//! Executes one loaded method from several threads concurrently, sharing one copy of its weights, and prints the
//! process's memory use before and after.
//!
//!     cargo run --release -p pteron --example sessions -- model.pte 8

use pteron::{EValue, Program, SharedMethod, Tensor};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or("examples/digits/digits.pte".to_owned());
    let threads: usize = args.next().map_or(Ok(8), |n| n.parse())?;

    let program = Program::open(path)?;
    let mut inputs: Vec<EValue> = Vec::new();
    for input in program.method_meta("forward")?.inputs() {
        inputs.push(match input.tensor {
            Some(tensor) => Tensor::zeros(tensor.meta)?.into(),
            None => input.traced.unwrap_or_default(),
        });
    }
    let forward = SharedMethod::new(program.load_method("forward", pteron::load_options())?)?;
    forward.execute(&inputs)?;
    println!("one session: {}", memory());

    // All sessions exist at the same time.
    let mut sessions = (0..threads).map(|_| forward.session()).collect::<Result<Vec<_>, _>>()?;
    let results = std::thread::scope(|scope| {
        let running: Vec<_> =
            sessions.iter_mut().map(|session| scope.spawn(|| session.execute(&inputs).map(drop))).collect();
        running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    for result in results {
        result.map_err(|_| "a thread has panicked")??;
    }
    println!("{threads} sessions: {}", memory());
    Ok(())
}

/// The resident set size of the process, or `unknown` where there is no `/proc`.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}
