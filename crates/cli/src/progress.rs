//! Bars on stderr for what takes longer than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use toolbox::file::{Listener, Progress};

/// What is done sooner shows no bar.
const DELAY: Duration = Duration::from_secs(1);

/// Shows how many bytes are done, if stderr is a terminal.
pub(crate) fn of_bytes() -> Progress {
    match io::stderr().is_terminal() {
        true => Progress::new(Bytes { bar: Mutex::new(ProgressBar::hidden()), start: Instant::now() }),
        false => Progress::default(),
    }
}

struct Bytes {
    bar: Mutex<ProgressBar>,
    start: Instant,
}

impl Bytes {
    fn with(&self, use_bar: impl FnOnce(&mut ProgressBar)) {
        use_bar(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Listener for Bytes {
    fn begin(&self, what: &'static str, bytes: u64) {
        self.with(|bar| {
            bar.finish_and_clear();
            *bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
            let template = "{msg:10} {bar:40} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(what);
        });
    }

    fn advance(&self, bytes: u64) {
        self.with(|bar| {
            if bar.is_hidden() && self.start.elapsed() > DELAY {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            bar.inc(bytes);
        });
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.with(|bar| bar.finish_and_clear());
    }
}
