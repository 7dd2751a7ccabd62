//! Limits on what files may use: options of every verb.

use crate::failure::Failure;
use crate::terminal::say;
use clap::{Args, ValueEnum};
use pteron::{Interrupt, Limits};
use pteron_toolbox::bef::RunOptions;
use std::time::{Duration, Instant};

/// Options of every verb.
#[derive(Debug, Args)]
pub(crate) struct LimitOpts {
    /// Limits on what a program may use: `default` for the free memory of this machine, `strict` for untrusted files
    #[arg(long, value_enum, default_value_t, global = true, value_name = "WHICH", help_heading = "Limits")]
    limits: LimitPreset,
    /// Maximum memory of a program, including packed weights and workspaces: 512M, 2G, or bytes; for a BEF program, of
    /// all its values together
    #[arg(long, value_parser = parse_size, global = true, value_name = "SIZE", help_heading = "Limits")]
    max_memory: Option<u64>,
    /// Maximum number of instructions per execution; for a BEF program, of kernels, which are counted by the thousand
    #[arg(long, global = true, value_name = "N", help_heading = "Limits")]
    max_instructions: Option<u64>,
    /// End the command with an error after this long: 10s, 500ms, 2m
    #[arg(long, value_parser = parse_duration, global = true, value_name = "TIME", help_heading = "Limits")]
    timeout: Option<Duration>,
}

/// Predefined sets of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum LimitPreset {
    /// The free memory of this machine, and ten million instructions
    #[default]
    Default,
    /// 64 MiB of arenas, 256 MiB in total, 100,000 instructions, ten seconds per execution
    Strict,
    /// No limits
    None,
}

/// The limits and the timeout that the arguments set for the whole command.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    limits: Limits,
    interrupt: Option<Interrupt>,
    /// The timeout, and the instant at which it ends; `None` without --timeout.
    timeout: Option<(Duration, Instant)>,
}

/// How long after the timeout a verb may still end by itself, with a more specific error than the timeout's.
const GRACE: Duration = Duration::from_millis(500);

impl LimitOpts {
    /// Whether --max-instructions was given.
    pub(crate) fn has_max_instructions(&self) -> bool {
        self.max_instructions.is_some()
    }

    /// Starts the timeout. `executes`: whether the verb executes instructions, which are interrupted with an error of their
    /// own.
    pub(crate) fn start_timeout(&self, executes: bool) -> Bounds {
        let mut limits = match self.limits {
            LimitPreset::Default => Limits::default(),
            LimitPreset::Strict => Limits::strict(),
            LimitPreset::None => Limits::none(),
        };
        if let Some(bytes) = self.max_memory {
            // An explicit limit may exceed the default one.
            limits = Limits { time: limits.time, instructions: limits.instructions, ..Limits::none() }
                .within_memory(bytes);
        }
        limits.instructions = self.max_instructions.unwrap_or(limits.instructions);
        let end = self.timeout.and_then(|time| Instant::now().checked_add(time));
        let interrupt = end.map(|end| Interrupt::new().until(end));
        let timeout = self.timeout.zip(end);
        if let Some((time, _)) = timeout {
            exit_after_timeout(time, if executes { GRACE } else { Duration::ZERO });
        }
        Bounds { limits, interrupt, timeout }
    }
}

/// Ends the process some time after the timeout if the command has not ended by itself: not everything that a verb does
/// can be interrupted.
fn exit_after_timeout(time: Duration, grace: Duration) {
    let watch = move || {
        std::thread::sleep(time.saturating_add(grace));
        say(format_args!("error: {}", timeout_message(time)));
        pteron::discard_unfinished_files(|| std::process::exit(1));
    };
    let _ = std::thread::Builder::new().name("timeout".to_owned()).spawn(watch);
}

fn timeout_message(time: Duration) -> String {
    format!("the command took longer than --timeout {time:?}")
}

/// Maximum memory, in bytes, that parsing and translating take for each byte of MLIR text.
const TEXT_EXPANSION: u64 = 64;

impl Bounds {
    /// Fails if the command's timeout has passed; called when the verb is done.
    pub(crate) fn check_time(&self) -> Result<(), Failure> {
        match self.timeout {
            Some((time, end)) if Instant::now() > end => {
                Err(pteron_toolbox::Error::input(timeout_message(time)).into())
            }
            _ => Ok(()),
        }
    }

    /// The limits on programs that the arguments set.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The handle that interrupts executions when the timeout passes; `None` without --timeout.
    pub(crate) fn interrupt(&self) -> Option<Interrupt> {
        self.interrupt.clone()
    }

    /// Applies the limits to a BEF program: kernels count as instructions, values as memory, and the run of a function as an
    /// execution.
    pub(crate) fn apply_to_bef(&self, options: &mut RunOptions) {
        let Self { limits, timeout, .. } = self;
        options.limits.kernels = limits.instructions;
        options.limits.memory = limits.memory;
        options.limits.value_bytes = limits.memory;
        (options.time, options.deadline) = (limits.time, timeout.map(|(_, end)| end));
    }

    /// Options for translating this MLIR text to BEF within the limits: attributes are held expanded, and in the file,
    /// which grows while it is written.
    ///
    /// # Errors
    /// If the text itself takes more memory than the limits allow.
    pub(crate) fn translation_options(
        &self,
        text: &[u8],
        name: &str,
    ) -> Result<pteron_mlir::Options, String> {
        let memory = self.limits.memory;
        let takes = (text.len() as u64).saturating_mul(TEXT_EXPANSION);
        if takes > memory {
            return Err(format!(
                "{name}: to translate {} bytes of text takes up to {takes} bytes of memory: the limit is {memory}; raise it with \
                 --max-memory SIZE",
                text.len()
            ));
        }
        let default = pteron_mlir::Options::default();
        Ok(pteron_mlir::Options { max_payload: default.max_payload.min(memory / 4), ..default })
    }
}

/// Parses a size in bytes such as `512M`; units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("a size is a number of bytes, or one with K, M, G or T".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "a size is a whole number, as in 512M".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than 64 bits count".to_owned())
}

/// Parses a time such as `10s`; a number without a unit is in seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time is a number with ms, s, m or h".to_owned()),
    };
    let number: f64 = digits.parse().map_err(|_| "a time is a number, as in 10s".to_owned())?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| "the time is too long, or negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_parsed_with_units() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!((parse_size("7"), parse_size("1k"), parse_size("2GiB")), (Ok(7), Ok(1024), Ok(2 << 30)));
        assert!(
            parse_size("M").is_err() && parse_size("1.5G").is_err() && parse_size("99999999999T").is_err()
        );
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(
            (parse_duration("2m"), parse_duration("3")),
            (Ok(Duration::from_secs(120)), Ok(Duration::from_secs(3)))
        );
        assert!(parse_duration("-1s").is_err() && parse_duration("soon").is_err());
    }
}
