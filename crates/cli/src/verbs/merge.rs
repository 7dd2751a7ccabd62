use crate::failure::Result;
use crate::general::{self, GeneralOpts, KeepOpts, NamesArg, OutputArg, exit_status};
use crate::progress;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use pteron_toolbox::merge::{MergeOptions, Prefer, merge};
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{bytes, count};

/// Merge files of named data (.ptd) into one
///
/// A key that occurs in two files is kept once if type, shape, layout and bytes are equal. Otherwise nothing is
/// written, and every conflicting key is listed with both files. The output may be one of the files, which is
/// replaced when the new one is complete.
///
/// With one file and --name or --rename, makes a file of some of its entries, or with other keys.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron merge encoder.ptd decoder.ptd -o weights.ptd\n\n",
    "  # where the files differ, what the last one says\n",
    "  pteron merge base.ptd tuned.ptd --prefer last -o weights.ptd\n\n",
    "  # the weights of the encoder, one of them under another key\n",
    "  pteron merge weights.ptd --name 'encoder.*' --rename encoder.w=encoder.weight -o encoder.ptd",
    exit_status!()
))]
pub(crate) struct Opts {
    /// The files; `-` is stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    names: NamesArg,
    /// Give the entry with the key OLD in the files the key NEW; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_renaming)]
    rename: Vec<(String, String)>,
    /// If the files have different entries under a key, take that of the first or of the last file that has one
    #[arg(long, value_enum, value_name = "WHICH")]
    prefer: Option<PreferredFile>,
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

/// The file whose entries are preferred.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PreferredFile {
    /// The first one
    First,
    /// The last one
    Last,
}

/// Parses `OLD=NEW`. What follows the first `=` is the new key.
fn parse_renaming(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.to_owned(), new.to_owned())),
        _ => Err("a new key is given as OLD=NEW".to_owned()),
    }
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.files.iter().for_each(|path| paths.read("", path));
        let over: Vec<&Path> = self.files.iter().map(PathBuf::as_path).collect();
        self.output.declare_edit(paths, &over);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let files = general.open_data(&self.files, "merge")?;
        let options = MergeOptions {
            names: self.names.patterns(),
            rename: self.rename,
            prefer: self.prefer.map(|which| match which {
                PreferredFile::First => Prefer::First,
                PreferredFile::Last => Prefer::Last,
            }),
            share: !self.no_share,
        };
        let merged = merge(&files, &options, &progress::byte_progress())?;
        self.keep.check(general, &self.files[0], &merged.lost)?;
        self.output.write_file(&merged.data)?;
        let text = format!(
            "{} of {} in {} instead of {}",
            count(merged.entries, "key"),
            count(files.len(), "file"),
            bytes(merged.bytes_after),
            bytes(merged.bytes_before)
        );
        general::write_report(&self.output, self.json, &merged, &text)
    }
}
