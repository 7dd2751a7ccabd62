use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, InputArg, KeepOpts, OutputArg, exit_status};
use crate::pictures::PictureOpts;
use crate::progress;
use crate::task::TaskOpts;
use clap::Args;
use pteron_toolbox::edit;
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::task;
use std::sync::Arc;

/// Store task metadata in a program (.pte): preprocessing of images, labels, tokenizer, licence, provenance
///
/// `run`, `compare --inputs-from`, `compile --calibrate`, the server, the page and Python use what the program stores, so
/// that no option has to say it again. ExecuTorch ignores it: the program runs there as before. docs/task.md describes the
/// fields. The output may be the file itself, which is replaced when the new one is complete.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron set-task mobilenet.pte --resize 256 --crop 224 --preset imagenet --labels imagenet.txt -o mobilenet.pte\n",
    "  pteron run mobilenet.pte cat.jpg --top 5\n\n",
    "  # all of it from a file\n",
    "  pteron set-task model.pte --task task.json -o model.pte\n\n",
    "  # without metadata again\n",
    "  pteron strip model.pte --task -o model.pte",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    #[command(flatten)]
    task: TaskOpts,
    #[command(flatten)]
    pictures: PictureOpts,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    keep: KeepOpts,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.task.declare_paths(paths);
        self.output.declare_edit(paths, &[self.input.path()]);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        if !self.task.is_given() && !self.pictures.is_given() {
            let message = "nothing to store: give --task FILE, or options for task metadata or images";
            return Err(Failure::Usage(message.to_owned()));
        }
        let loader = self.input.open(general)?;
        let program = File::open_program(Arc::clone(&loader), "set-task", general.limits())?;
        let task = self.task.metadata(&self.pictures, task::of(&program)?)?;
        let set = edit::set_task(&program, task, &progress::byte_progress())?;
        self.keep.check(general, self.input.path(), &set.lost)?;
        self.output.write_edited(general, &loader, &set.program)?;
        let text = format!("the program stores {}", task::summary(&set.task));
        general::write_report(&self.output, self.json, &set, &text)
    }
}
