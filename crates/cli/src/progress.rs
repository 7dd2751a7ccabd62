//! Progress bars on stderr for operations that take longer than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pteron_toolbox::file::{Listener, Progress};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an operation must have taken before it shows a progress bar.
const DELAY: Duration = Duration::from_secs(1);

/// A progress bar of the bytes that an operation has processed; none if stderr is no terminal.
pub(crate) fn byte_progress() -> Progress {
    match io::stderr().is_terminal() {
        true => Progress::new(Bytes { bar: Mutex::new(ProgressBar::hidden()), start: Instant::now() }),
        false => Progress::default(),
    }
}

/// A writer that reports the bytes written as progress.
pub(crate) struct ProgressWriter<'w> {
    out: &'w mut dyn Write,
    progress: Progress,
}

/// Wraps a writer to show how much of a file of `bytes` has been written.
pub(crate) fn progress_writer(out: &mut dyn Write, bytes: u64) -> ProgressWriter<'_> {
    let progress = byte_progress();
    progress.begin("writing", bytes);
    ProgressWriter { out, progress }
}

impl Write for ProgressWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.progress.advance(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A progress bar of steps, whose total may be unknown; none if stderr is no terminal.
pub(crate) struct Steps {
    bar: ProgressBar,
    start: Instant,
    is_terminal: bool,
}

impl Steps {
    pub(crate) fn new(count: Option<usize>) -> Self {
        let target = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(count.map(|count| count as u64), target);
        let template = if count.is_some() { "{msg} {bar:40} {pos}/{len}, {eta} left" } else { "{msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, start: Instant::now(), is_terminal: io::stderr().is_terminal() }
    }

    /// Counts one more step, and shows the message.
    pub(crate) fn step(&self, message: String) {
        if self.is_terminal && self.bar.is_hidden() && self.start.elapsed() > DELAY {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(pteron_toolbox::show::name(&message).to_string());
        self.bar.inc(1);
    }

    /// Hides the bar while `write` writes to the terminal.
    pub(crate) fn suspend(&self, write: impl FnOnce()) {
        self.bar.suspend(write);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

struct Bytes {
    bar: Mutex<ProgressBar>,
    start: Instant,
}

impl Bytes {
    fn update_bar(&self, use_bar: impl FnOnce(&mut ProgressBar)) {
        use_bar(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Listener for Bytes {
    fn begin(&self, what: &'static str, bytes: u64) {
        self.update_bar(|bar| {
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
        self.update_bar(|bar| {
            if bar.is_hidden() && self.start.elapsed() > DELAY {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            bar.inc(bytes);
        });
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.update_bar(|bar| bar.finish_and_clear());
    }
}
