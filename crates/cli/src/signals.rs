//! Signals that end the command: first, files that are not complete are removed.
//!
//! Windows has no signals; what is left there is removed by the next write of the same name.

/// Takes the signals that end a process (Ctrl-C, SIGTERM, a terminal that closes) to clean up first. The process
/// then ends as if the signal had not been taken. Those that the process was told to ignore stay ignored.
///
/// The thread that waits for them takes 64 MiB of address space, which matters under `ulimit -v`: it is not started
/// before there is something to clean up.
#[cfg(unix)]
pub(crate) fn take() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let ignored = ignored();
    let wanted = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    // Without them, the command works all the same.
    let Ok(mut signals) = Signals::new(wanted) else { return };
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            pteron::discard_unfinished_files(|| {
                let _ = emulate_default_handler(signal);
                std::process::exit(128 + signal)
            })
        }
    });
}

#[cfg(not(unix))]
pub(crate) fn take() {}

/// The signals that this process ignores, a bit each, where the system says so. `nohup` has it ignore the first.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    match mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()) {
        Some(mask) => mask,
        // Only the terminal's is likely to be ignored.
        None => 1 << (signal_hook::consts::SIGHUP - 1),
    }
}
