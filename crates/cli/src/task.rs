//! Options for the task metadata of a program that is written.

use crate::failure::Result;
use crate::pictures::PictureOpts;
use clap::Args;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::run;
use pteron_toolbox::task::{TaskMetadata, Tokenizer};
use std::path::PathBuf;

/// Options for the task metadata to store. Its preprocessing is given by the options for images.
#[derive(Debug, Args)]
pub(crate) struct TaskOpts {
    /// Store the task metadata in this file (JSON): preprocessing, labels, tokenizer, licence, provenance; other options for
    /// images and task metadata replace fields of it
    #[arg(help_heading = "Options for task metadata", long, value_name = "FILE")]
    task: Option<PathBuf>,
    /// Store the labels of the classes, one per line
    #[arg(help_heading = "Options for task metadata", long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Store the SHA-256 of this file of the tokenizer
    #[arg(help_heading = "Options for task metadata", long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Store the licence of the model, an SPDX expression
    #[arg(help_heading = "Options for task metadata", long, value_name = "TEXT")]
    license: Option<String>,
    /// Store where the model comes from
    #[arg(help_heading = "Options for task metadata", long, value_name = "TEXT")]
    provenance: Option<String>,
}

impl TaskOpts {
    /// Declares the files that are read.
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        let files = [("--task", &self.task), ("--labels", &self.labels), ("--tokenizer", &self.tokenizer)];
        files.into_iter().for_each(|(option, path)| path.iter().for_each(|path| paths.read(option, path)));
    }

    /// The metadata in the file of `--task` or, without one, that of the source, in which the other options and the options for images
    /// replace fields.
    pub(crate) fn metadata(
        &self,
        pictures: &PictureOpts,
        source: Option<TaskMetadata>,
    ) -> Result<TaskMetadata> {
        let mut task = match &self.task {
            Some(path) => TaskMetadata::read(path)?,
            None => source.unwrap_or_default(),
        };
        if pictures.is_given() {
            let preparation = pictures.preparation(Some(&task));
            task.preprocessing = Some(task.preprocessing.take().unwrap_or_default().with(&preparation));
        }
        if let Some(path) = &self.labels {
            task.labels = run::read_labels(path)?;
        }
        if let Some(path) = &self.tokenizer {
            task.tokenizer = Some(Tokenizer::of_file(path)?);
        }
        task.license = self.license.clone().or(task.license);
        task.provenance = self.provenance.clone().map(Into::into).or(task.provenance);
        Ok(task)
    }

    /// Whether any option was given.
    pub(crate) fn is_given(&self) -> bool {
        let files = [&self.task, &self.labels, &self.tokenizer];
        files.into_iter().any(Option::is_some) || self.license.is_some() || self.provenance.is_some()
    }
}
