use crate::failure::{Failure, Result};
use crate::general::{self, ForceArg, GeneralOpts, KeepOpts, exit_status};
use crate::progress;
use clap::Args;
use pteron::DataLoader;
use serde_json::json;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use pteron_toolbox::bundle::rebundle;
use pteron_toolbox::edit;
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{bytes, count};

/// Move the weights that several programs (.pte) have in common into one file of named data (.ptd)
///
/// The new programs are written to the folder of the weights, under the same names. If that would replace a
/// program, `.shared` is added to the name; --in-place replaces it. With `--data WEIGHTS` they give the same
/// outputs, and processes that map the weights share their memory.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron dedupe a.pte b.pte -o weights.ptd\n",
    "  pteron run a.shared.pte --data weights.ptd\n\n",
    "  # replace the programs\n",
    "  pteron dedupe a.pte b.pte -o weights.ptd --in-place",
    exit_status!()
))]
pub(crate) struct Opts {
    /// The programs
    #[arg(value_name = "PROGRAM", required = true, num_args = 2..)]
    programs: Vec<PathBuf>,
    /// Write the shared weights to this file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Do not move smaller weights: outside they cost more than they save
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    at_least: u64,
    /// Write the programs to this folder instead of that of the weights
    #[arg(long, value_name = "FOLDER", conflicts_with = "in_place")]
    into: Option<PathBuf>,
    /// Replace the programs
    #[arg(long)]
    in_place: bool,
    #[command(flatten)]
    force: ForceArg,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    keep: KeepOpts,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.programs.iter().for_each(|path| paths.read("", path));
        paths.write("-o", &self.output);
        self.into.iter().for_each(|path| paths.folder("--into", path));
        for (program, target) in self.programs.iter().zip(&self.output_paths()) {
            let over: &[&Path] = if self.in_place { &[program] } else { &[] };
            paths.edit("", target, over);
        }
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let (limits, protected) = (general.limits(), self.force.protected());
        let targets = self.output_paths();
        let files = self.programs.iter().map(|path| general.open(path)).collect::<Result<Vec<_>>>()?;
        let open = |file: &Arc<dyn DataLoader>| {
            File::open_program(Arc::clone(file), "dedupe", limits).map_err(Failure::from)
        };
        let programs = files.iter().map(open).collect::<Result<Vec<_>>>()?;
        let shared = edit::dedupe(&programs, self.at_least, &progress::byte_progress())?;
        for (member, path) in shared.programs.iter().zip(&self.programs) {
            self.keep.check(general, path, &member.lost)?;
        }
        // Write the weights first: if a later write fails, every program on disk can still be run.
        general::write_file(&self.output, protected, &shared.data)?;
        for ((file, member), target) in files.iter().zip(&shared.programs).zip(&targets) {
            match rebundle(file, &member.program, limits, &progress::byte_progress())? {
                Some(bundle) => general::write_file(target, protected, &bundle)?,
                None => general::write_file(target, protected, &member.program)?,
            }
        }
        if self.json {
            let mut report = serde_json::to_value(&shared).map_err(|e| Failure::Failed(Box::new(e)))?;
            for (member, target) in targets.iter().enumerate() {
                report["programs"][member]["written"] = json!(target);
            }
            return general::write_stdout(|out| Ok(writeln!(out, "{report:#}")?));
        }
        let mut text = String::new();
        for (member, target) in shared.programs.iter().zip(&targets) {
            let (after, before) = (bytes(member.bytes_after), bytes(member.bytes_before));
            let _ = writeln!(text, "{}: {after} instead of {before}", target.display());
        }
        let weights = format!("{} of {}", bytes(shared.bytes_shared), count(shared.keys.len(), "weight"));
        let _ = writeln!(text, "{}: {}, {weights}", self.output.display(), bytes(shared.data.bytes()));
        let _ = match shared.bytes_before.checked_sub(shared.bytes_after) {
            Some(saved) => writeln!(text, "{} saved", bytes(saved)),
            None => writeln!(text, "{} more", bytes(shared.bytes_after - shared.bytes_before)),
        };
        general::write_stdout(|out| Ok(write!(out, "{text}")?))
    }

    /// The path to which each program is written, in the order of the programs.
    fn output_paths(&self) -> Vec<PathBuf> {
        if self.in_place {
            return self.programs.clone();
        }
        let beside = self.output.parent().unwrap_or(Path::new(""));
        let folder = self.into.as_deref().unwrap_or(beside);
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let inputs: HashSet<PathBuf> = self.programs.iter().map(|path| real(path)).collect();
        let mut targets = Vec::new();
        for program in &self.programs {
            let mut target = folder.join(program.file_name().unwrap_or_default());
            if inputs.contains(&real(&target)) {
                let stem = program.file_stem().unwrap_or_default().to_string_lossy();
                let end = program.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
                target.set_file_name(format!("{stem}.shared{end}"));
            }
            targets.push(target);
        }
        targets
    }
}
