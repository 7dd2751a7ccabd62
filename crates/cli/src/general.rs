//! Options and functions that the verbs share: colour and verbosity, inputs that may be stdin, outputs that may be
//! stdout.

use crate::failure::{Failure, Result};
use crate::limits::{Bounds, LimitOpts};
use crate::maps;
use crate::progress;
use crate::registries::registries;
use crate::terminal::{Style, say};
use clap::{Args, ValueEnum};
use pteron::{
    BackendRegistry, DataLoader, EditLock, Features, Isa, Limits, Protected, PtdDataMap, available_threads,
};
use pteron_toolbox::bundle::rebundle;
use pteron_toolbox::edit::Output;
use pteron_toolbox::paths::{self, Paths};
use pteron_toolbox::pattern::Pattern;
use pteron_toolbox::show::{Escapes, Screen};
use pteron_verify::Setting;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The text on exit statuses with which the long help of a verb ends.
macro_rules! exit_status {
    () => {
        "\n\nExit status:\n  0  done\n  1  something failed; stderr says what\n  2  the arguments are invalid"
    };
}
pub(crate) use exit_status;

/// The text on exit statuses in the long help of a verb such as `diff`, for which exit status 1 is an answer.
macro_rules! exit_status_of_answer {
    ($yes:literal, $no:literal) => {
        concat!(
            "\n\nExit status:\n  0  ",
            $yes,
            "\n  1  ",
            $no,
            "\n  2  something failed or the arguments are invalid; stderr says what"
        )
    };
}
pub(crate) use exit_status_of_answer;

/// Options of every verb.
#[derive(Debug, Args)]
pub(crate) struct GeneralOpts {
    /// When to colour messages
    #[arg(
        long,
        value_enum,
        default_value_t,
        global = true,
        value_name = "WHEN",
        help_heading = "General options"
    )]
    color: Color,
    /// Print more details; repeat for even more
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = "General options")]
    verbose: u8,
    #[command(flatten)]
    limit_opts: LimitOpts,
    /// The limits and the deadline of `limit_opts`, set when the command starts.
    #[arg(skip)]
    bounds: Bounds,
}

/// Options of the verbs that run programs.
#[derive(Debug, Args)]
pub(crate) struct ExecutionOpts {
    /// Number of threads of an execution; the results do not depend on it [default: the number of cores, or an equal share of
    /// them if several executions run concurrently]
    #[arg(short, long, value_name = "N", value_parser = parse_threads)]
    threads: Option<NonZeroUsize>,
    /// Instruction set to use, with those that it implies: portable; on x86-64 avx2, avxvnni, avx512, avx512vnni or amx;
    /// on AArch64 dotprod or i8mm [default: all that this machine has]
    #[arg(long, value_name = "NAME")]
    isa: Option<Features>,
    /// Run instructions as written: pack no weights, fuse no operators
    #[arg(long)]
    no_prepare: bool,
}

/// The maximum number of threads; more would only take memory.
pub(crate) const MAX_THREADS: usize = 1024;

/// Parses a number of threads.
pub(crate) fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse().ok().filter(|n: &NonZeroUsize| n.get() <= MAX_THREADS);
    number.ok_or_else(|| format!("a number of threads is 1 to {MAX_THREADS}"))
}

/// Parses a signal-to-noise ratio in decibels. NaN is none: every ratio would reach it.
pub(crate) fn parse_decibels(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| !ratio.is_nan());
    ratio.ok_or_else(|| "it is a number of decibels".to_owned())
}

impl ExecutionOpts {
    /// The options that apply to ExecuTorch methods only, by name, each with whether it was given.
    pub(crate) fn method_options(&self) -> [(&'static str, bool); 3] {
        [
            ("--threads", self.threads.is_some()),
            ("--isa", self.isa.is_some()),
            ("--no-prepare", self.no_prepare),
        ]
    }

    /// The threads, instruction set and preparation with which programs run, by default on all cores.
    pub(crate) fn setting(&self) -> Result<Setting> {
        self.setting_of_each(NonZeroUsize::MIN)
    }

    /// The number of threads that was given.
    #[cfg(feature = "batch")]
    pub(crate) fn threads(&self) -> Option<NonZeroUsize> {
        self.threads
    }

    /// As [`setting`](Self::setting), for each of `executions` that run concurrently and share the cores.
    pub(crate) fn setting_of_each(&self, executions: NonZeroUsize) -> Result<Setting> {
        let isa = match self.isa {
            Some(features) => Isa::of(features).map_err(|e| Failure::Failed(Box::new(e)))?,
            None => Isa::detect(),
        };
        let share = || (available_threads() / executions).max(1);
        let threads = self.threads.map_or_else(share, NonZeroUsize::get);
        Ok(Setting { no_prepare: self.no_prepare, isa, threads })
    }
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl GeneralOpts {
    /// Starts the command's timeout. `executes` says whether the verb executes instructions.
    pub(crate) fn start_timeout(&mut self, executes: bool) {
        self.bounds = self.limit_opts.start_timeout(executes);
    }

    /// The limits and the deadline of the command.
    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The limits on the memory and instructions of the programs that the command runs.
    pub(crate) fn limits(&self) -> &Limits {
        self.bounds.limits()
    }

    /// Opens a file, or reads all of stdin for `-`. A torch.export archive is compiled to a program in memory.
    pub(crate) fn open(&self, file: &Path) -> Result<Arc<dyn DataLoader>> {
        Ok(self.compile_archive(open_uncompiled(file)?)?)
    }

    /// Compiles a torch.export archive in memory; returns any other file unchanged.
    pub(crate) fn compile_archive(
        &self,
        loader: Arc<dyn DataLoader>,
    ) -> pteron_toolbox::Result<Arc<dyn DataLoader>> {
        Ok(pteron::compile::program(loader, registries().kernels(), self.limits())?)
    }

    /// Opens `.ptd` files; `verb` is named in errors.
    pub(crate) fn open_data(&self, files: &[PathBuf], verb: &'static str) -> Result<Vec<PtdDataMap>> {
        let open = |file: &PathBuf| {
            Ok(pteron_toolbox::file::File::open_data(open_uncompiled(file)?, verb, self.limits())?)
        };
        files.iter().map(open).collect()
    }

    /// Whether --max-instructions was given.
    pub(crate) fn has_max_instructions(&self) -> bool {
        self.limit_opts.has_max_instructions()
    }

    /// How often `-v` was given.
    pub(crate) fn verbosity(&self) -> u8 {
        self.verbose
    }

    /// The style of text on stderr.
    pub(crate) fn stderr_style(&self) -> Style {
        self.terminal_style(io::stderr().is_terminal())
    }

    /// The style of text on stdout.
    pub(crate) fn stdout_style(&self) -> Style {
        self.terminal_style(io::stdout().is_terminal())
    }

    fn terminal_style(&self, terminal: bool) -> Style {
        Style::new(match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        })
    }
}

/// Whether an edit fails if it cannot keep something of the file.
#[derive(Debug, Args)]
pub(crate) struct KeepOpts {
    /// Fail if something of the file cannot be kept, such as a field of a newer schema, instead of printing a note
    #[arg(long)]
    strict: bool,
}

impl KeepOpts {
    /// Prints a note that lists `lost`, what an edit of `file` cannot keep; with --strict, fails instead.
    pub(crate) fn check(&self, general: &GeneralOpts, file: &Path, lost: &[String]) -> Result {
        if self.strict {
            pteron_toolbox::edit::refuse_losses(&file.display().to_string(), lost)?;
        }
        let style = general.stderr_style();
        for what in lost {
            say(format_args!("{} not kept: {what}", style.note("note:")));
        }
        Ok(())
    }
}

/// The input file of a verb.
#[derive(Debug, Args)]
pub(crate) struct InputArg {
    /// The file to read; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl InputArg {
    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// Declares that the file is read.
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        paths.read("", &self.file);
    }

    /// Opens the file as a program, whose ranges are read on demand, or reads all of stdin. A torch.export archive is
    /// compiled.
    pub(crate) fn open(&self, general: &GeneralOpts) -> Result<Arc<dyn DataLoader>> {
        general.open(&self.file)
    }

    /// As [`open`](Self::open), but does not compile archives.
    pub(crate) fn open_uncompiled(&self) -> Result<Arc<dyn DataLoader>> {
        open_uncompiled(&self.file)
    }
}

/// Fails if paths conflict: see [`Paths::check`].
pub(crate) fn check_paths(paths: &Paths) -> Result {
    paths.check(io::stdout().is_terminal()).map_err(Failure::Usage)
}

/// Waits until no other command edits the files that this one edits in place, and keeps others from them until the locks
/// are dropped.
pub(crate) fn lock_edited(paths: &Paths) -> Vec<EditLock> {
    let lock = |path: PathBuf| {
        EditLock::take(&path, || say(format_args!("waiting for another edit of {}", path.display())))
    };
    paths.edited_paths().into_iter().filter_map(lock).collect()
}

/// A copy of the registry of backends that this command supports.
pub(crate) fn backends() -> BackendRegistry {
    registries().backends().clone()
}

/// Opens a file, or reads all of stdin for `-`. Archives are not compiled.
pub(crate) fn open_uncompiled(file: &Path) -> Result<Arc<dyn DataLoader>> {
    Ok(pteron_toolbox::run::open(file, maps::map_large_bef())?)
}

/// The names of the entries or parts that a verb processes.
#[derive(Debug, Args)]
pub(crate) struct NamesArg {
    /// Only those with this name, in which `*` stands for any characters and `?` for one; may be repeated
    #[arg(long, value_name = "GLOB")]
    name: Vec<String>,
}

impl NamesArg {
    /// The given names as patterns.
    pub(crate) fn patterns(&self) -> Vec<Pattern> {
        self.name.iter().map(Pattern::new).collect()
    }
}

/// The output of a verb.
#[derive(Debug, Args)]
pub(crate) struct OutputArg {
    /// Write to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArg,
}

/// Whether protected files are replaced.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ForceArg {
    /// Replace the file even if it is read-only or another user's
    #[arg(long)]
    force: bool,
}

impl ForceArg {
    /// What happens to protected files: those that are read-only or another user's are replaced only with --force.
    pub(crate) fn protected(self) -> Protected {
        if self.force { Protected::Replace } else { Protected::Keep }
    }
}

impl OutputArg {
    /// An output to stdout.
    pub(crate) fn stdout() -> Self {
        Self { output: None, force: ForceArg::default() }
    }

    /// An output to a file, or to stdout for `-`.
    pub(crate) fn to_path(path: &Path) -> Self {
        Self { output: Some(path.to_owned()), force: ForceArg::default() }
    }

    /// Declares the output of a verb that writes a report or another kind of file than it reads: it may not overwrite an
    /// input.
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.path().into_iter().for_each(|path| paths.write("-o", path));
    }

    /// Declares a binary output, which may not overwrite an input.
    pub(crate) fn declare_binary(&self, paths: &mut Paths) {
        self.declare_edit(paths, &[]);
    }

    /// Declares a binary output, which may overwrite only the inputs `over`.
    pub(crate) fn declare_edit(&self, paths: &mut Paths, over: &[&Path]) {
        match self.path() {
            Some(path) => paths.edit("-o", path, over),
            None => paths.binary_stdout(),
        }
    }

    /// Writes text, followed by a line end if it has none.
    pub(crate) fn write_text(&self, text: &str) -> Result {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        self.write_text_with(|out| Ok(write!(out, "{text}{end}")?))
    }

    /// Writes text that a callback streams, so that the whole text is never in memory.
    pub(crate) fn write_text_with(&self, write: impl FnOnce(&mut dyn Write) -> Result) -> Result {
        self.write_with(|out| {
            let mut out = Screen::new(BufWriter::new(out), Escapes::Text);
            write(&mut out)?;
            Ok(out.finish()?)
        })
    }

    /// Writes source text, such as MLIR, unescaped; only on a terminal it is escaped.
    pub(crate) fn write_source(&self, text: &str) -> Result {
        match self.is_file() || !io::stdout().is_terminal() {
            true => {
                let end = if text.ends_with('\n') { "" } else { "\n" };
                self.write_with(|out| Ok(write!(out, "{text}{end}")?))
            }
            false => self.write_text(text),
        }
    }

    /// Writes a value as indented JSON.
    pub(crate) fn write_json(&self, value: &impl serde::Serialize) -> Result {
        self.write_with(|out| write_json_line(out, value))
    }

    fn write_with(&self, write: impl FnOnce(&mut dyn Write) -> Result) -> Result {
        match self.path() {
            Some(path) => write_file_with(path, self.protected(), write),
            None => write_stdout(write),
        }
    }

    /// Writes binary data, but never to a terminal.
    pub(crate) fn write_binary(&self, bytes: &[u8]) -> Result {
        self.write_binary_with(|out| Ok(out.write_all(bytes)?))
    }

    /// Writes a file that the toolbox has produced, but never to a terminal.
    pub(crate) fn write_file(&self, file: &Output) -> Result {
        self.write_binary_with(|out| Ok(file.write_to(out)?))
    }

    /// Writes the edited program, with the test cases of the original `file` if that is a bundled program.
    pub(crate) fn write_edited(
        &self,
        general: &GeneralOpts,
        file: &Arc<dyn DataLoader>,
        edited: &Output,
    ) -> Result {
        match rebundle(file, edited, general.limits(), &progress::byte_progress())? {
            Some(bundle) => self.write_file(&bundle),
            None => self.write_file(edited),
        }
    }

    /// Whether the output is a file, so that stdout is free for a report.
    pub(crate) fn is_file(&self) -> bool {
        self.path().is_some()
    }

    /// What happens to a protected output file: see [`ForceArg::protected`].
    pub(crate) fn protected(&self) -> Protected {
        self.force.protected()
    }

    /// Writes another file of the same command; --force holds for it, too.
    pub(crate) fn write_other<E: Into<Failure>>(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
    ) -> Result {
        write_file_with(path, self.protected(), |out| fill(out).map_err(Into::into))
    }

    /// The output file; `None` for stdout.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| !paths::is_stdout(path))
    }

    /// Writes binary data through a callback, but never to a terminal.
    pub(crate) fn write_binary_with(&self, write: impl FnOnce(&mut dyn Write) -> Result) -> Result {
        if let Some(path) = self.path() {
            return write_file_with(path, self.protected(), write);
        }
        if io::stdout().is_terminal() {
            return Err(Failure::Usage(paths::BINARY_TO_TERMINAL.to_owned()));
        }
        write_stdout(write)
    }
}

/// Writes a file that the toolbox has produced to `path`, replacing an existing file.
pub(crate) fn write_file(path: &Path, protected: Protected, file: &Output) -> Result {
    write_file_with(path, protected, |out| Ok(file.write_to(out)?))
}

/// Writes to stdout through a callback.
pub(crate) fn write_stdout(write: impl FnOnce(&mut dyn Write) -> Result) -> Result {
    pteron::write_stream("stdout", io::stdout().lock(), write)
}

/// Formats text into a writer. An I/O error of the writer is returned unchanged.
pub(crate) fn format_into(
    out: &mut dyn Write,
    format: impl FnOnce(&mut dyn std::fmt::Write) -> std::fmt::Result,
) -> Result {
    struct Adapter<'a>(&'a mut dyn Write, io::Result<()>);
    impl std::fmt::Write for Adapter<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.1 = self.0.write_all(text.as_bytes());
            if self.1.is_ok() { Ok(()) } else { Err(std::fmt::Error) }
        }
    }
    let mut adapter = Adapter(out, Ok(()));
    let formatted = format(&mut adapter);
    adapter.1?;
    Ok(formatted.map_err(io::Error::other)?)
}

/// Writes a file atomically: the old file, which may be an input, stays until the new one is complete.
pub(crate) fn write_file_with(
    path: &Path,
    protected: Protected,
    write: impl FnOnce(&mut dyn Write) -> Result,
) -> Result {
    pteron::replace_file_with(path, protected, write)
}

/// Prints a report on a file that was written, as text or as JSON. If the file itself went to stdout, the report goes to
/// stderr.
pub(crate) fn write_report(
    output: &OutputArg,
    json: bool,
    value: &impl serde::Serialize,
    text: &str,
) -> Result {
    let write = |out: &mut dyn Write| match json {
        true => write_json_line(out, value),
        false => Ok(writeln!(Screen::new(out, Escapes::Text), "{text}")?),
    };
    match output.is_file() {
        true => write_stdout(write),
        // Errors of writing to stderr are ignored everywhere.
        false => {
            let _ = write(&mut io::stderr().lock());
            Ok(())
        }
    }
}

/// Writes a value as indented JSON with a line end, streamed so that the whole text is never in memory.
pub(crate) fn write_json_line(out: &mut dyn Write, value: &impl serde::Serialize) -> Result {
    let mut out = Screen::new(BufWriter::new(out), Escapes::Json);
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.finish()?)
}
