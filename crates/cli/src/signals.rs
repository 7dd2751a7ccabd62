//! Signals that end the command: incomplete files are removed first.
//!
//! Windows has no signals; incomplete files left there are removed by the next write to the same name.

/// Handles the signals that end a process (SIGINT, SIGTERM, SIGHUP) to remove incomplete files first. The process then ends
/// as if the signal had not been handled. Signals that the process inherited as ignored stay ignored.
///
/// The thread that waits for them takes 64 MiB of address space, which matters under `ulimit -v`: start it only once there
/// is something to clean up.
#[cfg(unix)]
pub(crate) fn handle_termination() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let ignored = ignored_signals();
    let wanted = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    // If no handler can be installed, the command still works.
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
pub(crate) fn handle_termination() {}

/// Makes a write above the file size limit (`ulimit -f`) fail with an error, instead of ending the process by SIGXFSZ.
#[cfg(unix)]
pub(crate) fn fail_writes_above_the_size_limit() {
    // A handler that does nothing suffices; if none can be installed, the signal ends the process, as it does by default.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
}

#[cfg(not(unix))]
pub(crate) fn fail_writes_above_the_size_limit() {}

/// The signals that this process ignores, from `/proc`: bit `n - 1` is for signal `n`. Under `nohup`, SIGHUP is set.
#[cfg(unix)]
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    match mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()) {
        Some(mask) => mask,
        // Unknown: assume that SIGHUP, the one most likely to be ignored, is.
        None => 1 << (signal_hook::consts::SIGHUP - 1),
    }
}
