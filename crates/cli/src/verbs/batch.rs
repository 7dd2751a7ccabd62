use crate::failure::{Failure, Result};
use crate::general::{ExecutionOpts, GeneralOpts, exit_status, write_json_line, write_stdout};
use crate::maps;
use crate::pictures::PictureOpts;
use crate::progress::Steps;
use crate::registries;
use crate::terminal;
use clap::{Args, ValueEnum};
use pteron::{Program, available_threads};
use pteron_batch::files::{Identity, Inputs, Job, MappedFile, Mapping, OnError};
use pteron_toolbox::batch::{Joining, RowRules};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::run::{self, expect_program, open_data, read_labels};
use pteron_toolbox::{show, stream, task};
use serde_json::json;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Execute a program over the rows of Parquet and Arrow files
///
/// Each file becomes a file of the same name and format, with the outputs as further columns. It appears when it is complete,
/// and says in its metadata what it was made of: a second run makes those that are not there, and fails if one was made by
/// another program, with other options, or of another input. A few thousand rows are read at a time, and executed on all
/// cores.
///
/// A row is a number, a list with as many elements as the input takes, nested lists in its shape, or bytes. One that is null,
/// has other sizes, or has elements that are null, NaN or infinite fails: its results are null, and the column `error` says
/// why. A program whose file is replaced during the run is an error.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron batch model.pte rows.parquet more/ -o results\n\n",
    "  # the column for the input, and what is written\n",
    "  pteron batch model.pte rows.parquet -o results --input pixels --keep id --outputs scores\n\n",
    "  # inputs by name, one of them made of two columns of numbers\n",
    "  pteron batch model.pte rows.parquet -o results --input image=pixels --input person=age,height\n\n",
    "  # labels of pictures, which the column `photo` has as bytes or paths\n",
    "  pteron batch model.pte photos.parquet -o results --input photo --pictures --preset imagenet --labels labels.txt\n\n",
    "  # end at the first row without a result, and name it by its id\n",
    "  pteron batch model.pte rows.parquet -o results --on-error raise --key id",
    exit_status!()
))]
pub(crate) struct Opts {
    /// The program: a .pte, .pt2 or .bpte file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Parquet files (.parquet), Arrow files and streams (.arrow, .feather, .ipc, .arrows), and folders of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The folder for the outputs, which is created
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// The column for an input, by the input's name or position, or for each input in their order; several columns of numbers
    /// make one input. May be repeated [default: the columns with the names of the inputs, or the only column]
    #[arg(short, long, value_name = "[INPUT=]COLUMN,…", value_parser = parse_input)]
    input: Vec<(Option<String>, Vec<String>)>,
    /// The names of the output columns [default: those of the program, or `output_0` and so on]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    outputs: Vec<String>,
    /// The columns that are kept, or '' for none [default: all]
    #[arg(long, value_name = "COLUMN,…")]
    keep: Option<String>,
    /// What happens to rows that fail
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_error: Failed,
    /// The column by which the error of --on-error raise names rows
    #[arg(long, value_name = "COLUMN")]
    key: Option<String>,
    /// Whether NaN and infinity make a row fail. A null that went through NumPy or pandas is NaN
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    nonfinite: Nonfinite,
    /// Accept rows that are smaller than a dynamic input's bounds
    #[arg(long)]
    inexact: bool,
    /// Write the indices of the K largest elements of the only output, and in another column, …_score, these elements
    #[arg(short = 'k', long, value_name = "K")]
    top: Option<NonZeroUsize>,
    /// Write the labels in this file, one per line, instead of indices; implies --top 1
    #[arg(short, long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Decode the pictures (PNG, JPEG, WebP, BMP) in the input columns, or in the files whose paths these have
    #[arg(long)]
    pictures: bool,
    /// The method [default: `forward`, or the only one]
    #[arg(short, long, value_name = "NAME")]
    method: Option<String>,
    /// A file of external weights of the program (.ptd); may be repeated
    #[arg(short, long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// The maximum number of rows of an execution, if the program allows different ones
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Execute each row alone, even if the program takes batches
    #[arg(long, conflicts_with = "batch_size")]
    alone: bool,
    /// The number of rows that are read at a time [default: 4096, or fewer if rows are large]
    #[arg(long, value_name = "N")]
    rows: Option<NonZeroUsize>,
    /// The number of executions at a time, each with --threads [default: as many as use all cores]
    #[arg(long, value_name = "N", value_parser = crate::general::parse_threads)]
    workers: Option<NonZeroUsize>,
    #[command(flatten)]
    execution: ExecutionOpts,
    /// Make outputs that are there again
    #[arg(long)]
    again: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    preparation: PictureOpts,
}

/// What happens to rows that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Failed {
    /// Their results are null, and the column `error` has the reasons
    #[default]
    Null,
    /// They end the run
    Raise,
}

/// Whether rows with elements that are no finite numbers fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Nonfinite {
    /// They fail
    #[default]
    Error,
    /// The program gets them
    Allow,
}

/// Reads `INPUT=COLUMN,…` or `COLUMN,…`.
fn parse_input(text: &str) -> Result<(Option<String>, Vec<String>), String> {
    let (input, columns) = match text.rsplit_once('=') {
        Some((input, columns)) => (Some(input.to_owned()), columns),
        None => (None, text),
    };
    let columns: Vec<String> = columns.split(',').map(str::to_owned).collect();
    match columns.iter().any(String::is_empty) {
        true => Err("a column has a name".to_owned()),
        false => Ok((input, columns)),
    }
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        paths.read("", &self.model);
        self.files.iter().for_each(|path| paths.read("", path));
        self.labels.iter().for_each(|path| paths.read("--labels", path));
        self.data.iter().for_each(|path| paths.read("--data", path));
        paths.folder("-o", &self.output);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        if stream::is_stream(&self.model) || self.data.iter().any(|path| stream::is_stream(path)) {
            let message = "a stream cannot be compared with the program that the run began with: name a file";
            return Err(Failure::Usage(message.to_owned()));
        }
        let started = Instant::now();
        let identity = Identity::of([&self.model].into_iter().chain(&self.data).cloned().collect())?;
        let (program, mapping) = self.open(general)?;
        let threads = self.execution.threads().map_or(1, NonZeroUsize::get);
        let workers = self.workers.map_or((available_threads() / threads).max(1), NonZeroUsize::get);
        let mut options = registries::load_options();
        options.data = open_data(&self.data, maps::map_large_bef(), general.limits())?;
        options.limits = general.limits().clone();
        options.interrupt = general.bounds().interrupt();
        let each = NonZeroUsize::new(workers).unwrap_or(NonZeroUsize::MIN);
        let options = self.execution.setting_of_each(each)?.apply(&options);
        // What was read belongs to the digest.
        identity.check()?;
        let (steps, rows) = (Steps::new(None), AtomicUsize::new(0));
        let progress = |count: usize| {
            let rows = rows.fetch_add(count, Ordering::Relaxed) + count;
            let seconds = started.elapsed().as_secs_f64().max(1e-3);
            steps.step(format!("{} rows, {} a second", grouped(rows), grouped((rows as f64 / seconds) as usize)));
        };
        let job = Job {
            program,
            options,
            identity: &identity,
            mapping,
            workers,
            rows: self.rows.map(NonZeroUsize::get),
            again: self.again,
            progress: Some(&progress),
        };
        let files = job.run(&self.files, &self.output)?;
        drop(steps);
        match self.json {
            true => print_json(&files, identity.digest(), started.elapsed().as_secs_f64()),
            false => print_text(&files),
        }
    }

    /// Opens the program, and reads the options about its columns.
    fn open(&self, general: &GeneralOpts) -> Result<(Program, Mapping)> {
        let limits = general.limits();
        let loader = general.compile_archive(run::open(&self.model, maps::map_large_bef())?)?;
        let bundle = Bundle::open_if_bundled(&*loader, limits)?;
        let loader = bundle.as_ref().map_or(loader, Bundle::program);
        expect_program(&*loader, "batch", "programs (.pte, .bpte) and archives (.pt2)")?;
        let program = Program::load(loader, limits).map_err(pteron_toolbox::Error::from)?;
        let pictures = match self.pictures || self.preparation.is_given() {
            true => {
                let stored = task::of(&program)?;
                self.preparation.warn_of_default("pictures", stored.as_ref());
                Some(self.preparation.preparation(stored.as_ref()))
            }
            false => None,
        };
        let mapping = Mapping {
            method: self.method.clone(),
            inputs: self.inputs(),
            outputs: (!self.outputs.is_empty()).then(|| self.outputs.clone()),
            keep: self.keep.as_ref().map(|names| {
                names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }),
            on_error: match self.on_error {
                Failed::Null => OnError::Null,
                Failed::Raise => OnError::Raise,
            },
            key: self.key.clone(),
            rules: RowRules { exact: !self.inexact, finite: self.nonfinite == Nonfinite::Error },
            joining: if self.alone { Joining::Alone } else { Joining::Automatic },
            batch_size: self.batch_size,
            top: self.top.map(NonZeroUsize::get),
            labels: self.labels.as_deref().map(read_labels).transpose()?,
            pictures,
        };
        Ok((program, mapping))
    }

    fn inputs(&self) -> Inputs {
        if self.input.is_empty() {
            return Inputs::Unnamed;
        }
        if self.input.iter().all(|(input, _)| input.is_none()) {
            return Inputs::Ordered(self.input.iter().map(|(_, columns)| columns.clone()).collect());
        }
        let named = self.input.iter().enumerate().map(|(i, (input, columns))| {
            (input.clone().unwrap_or_else(|| i.to_string()), columns.clone())
        });
        Inputs::Named(named.collect())
    }
}

fn print_text(files: &[MappedFile]) -> Result {
    let mut out = terminal::stdout();
    for MappedFile { output, rows, failed, seconds, is_old, .. } in files {
        let when = if *is_old { ", made before".to_owned() } else { format!(" in {seconds:.1} s") };
        writeln!(
            out,
            "{}: {} rows, {} without a result{when}",
            show::name(&output.display().to_string()),
            grouped(*rows),
            grouped(*failed),
        )?;
    }
    Ok(())
}

fn print_json(files: &[MappedFile], digest: &str, seconds: f64) -> Result {
    let file = |file: &MappedFile| {
        json!({
            "input": file.input.display().to_string(),
            "output": file.output.display().to_string(),
            "rows": file.rows,
            "failed": file.failed,
            "seconds": file.seconds,
            "made_before": file.is_old,
        })
    };
    let sum = |of: fn(&MappedFile) -> usize| files.iter().map(of).sum::<usize>();
    let value = json!({
        "program": digest,
        "rows": sum(|file| file.rows),
        "failed": sum(|file| file.failed),
        "seconds": seconds,
        "files": files.iter().map(file).collect::<Vec<_>>(),
    });
    write_stdout(|out| write_json_line(out, &value))
}

/// A number with a comma after each three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let comma = |i: usize| i > 0 && (digits.len() - i).is_multiple_of(3);
    digits.chars().enumerate().flat_map(|(i, digit)| comma(i).then_some(',').into_iter().chain([digit])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn columns_are_named_for_inputs() {
        assert_eq!(parse_input("x=a,b").unwrap(), (Some("x".to_owned()), vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(parse_input("a").unwrap(), (None, vec!["a".to_owned()]));
        assert!(parse_input("x=").is_err());
    }
}
