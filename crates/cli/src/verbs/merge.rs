use crate::failure::Result;
use crate::general::{self, GeneralOpts, KeepOpts, OutputArg, exit_status};
use crate::progress;
use clap::Args;
use std::path::{Path, PathBuf};
use toolbox::merge::merge;
use toolbox::paths::Paths;
use toolbox::show::{bytes, count};

/// Merge files of named data (.ptd) into one
///
/// A key that occurs in two files is kept once if type, shape, layout and bytes are equal. Otherwise nothing is
/// written, and every conflicting key is listed with both files. The output may be one of the files, which is
/// replaced when the new one is complete.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron merge encoder.ptd decoder.ptd -o weights.ptd",
    exit_status!()
))]
pub(crate) struct Opts {
    /// The files; `-` is stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Do not share equal blobs; finding them reads some bytes twice
    #[arg(long)]
    no_share: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    keep: KeepOpts,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn paths(&self, paths: &mut Paths) {
        self.files.iter().for_each(|path| paths.read("", path));
        let over: Vec<&Path> = self.files.iter().map(PathBuf::as_path).collect();
        self.output.paths_of_edit(paths, &over);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let files = general::open_data(&self.files, "merge")?;
        let merged = merge(&files, !self.no_share, &progress::of_bytes())?;
        self.keep.check(general, &self.files[0], &merged.lost)?;
        self.output.write_file(&merged.data)?;
        let text = format!(
            "{} of {} in {} instead of {}",
            count(merged.entries, "key"),
            count(files.len(), "file"),
            bytes(merged.bytes_after),
            bytes(merged.bytes_before)
        );
        general::report(&self.output, self.json, &merged, &text)
    }
}
