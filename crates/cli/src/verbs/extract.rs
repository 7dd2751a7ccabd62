use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, NamesArg, OutputArg, exit_status};
use crate::progress;
use clap::Args;
use pteron::Protected;
use std::path::PathBuf;
use pteron_toolbox::extract::{self, Selection, extract};
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{bytes, table};

/// Write parts of a program (.pte) or of named data (.ptd) to separate files
///
/// Constants and other tensors become NumPy arrays; payloads of delegates, named data and segments are written
/// unchanged. Unless parts are selected, all but segments are written. --list writes nothing.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron extract model.pte --list\n",
    "  pteron extract model.pte -o parts\n\n",
    "  # one weight\n",
    "  pteron extract model.pte --name linear.weight -o parts\n\n",
    "  # the weights of a layer\n",
    "  pteron extract model.pte --name 'encoder.0.*' -o parts\n\n",
    "  # the payloads of delegates\n",
    "  pteron extract model.pte --delegates -o payloads",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// Segments
    #[arg(long)]
    segments: bool,
    /// Payloads of delegates
    #[arg(long)]
    delegates: bool,
    /// Named data
    #[arg(long)]
    named_data: bool,
    /// Constants and initial values, including those of delegates; the tensors of a .ptd
    #[arg(long)]
    constants: bool,
    #[command(flatten)]
    names: NamesArg,
    /// List the parts and write nothing
    #[arg(short, long)]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The folder to write to
    #[arg(short, long, value_name = "FOLDER", required_unless_present = "list")]
    output: Option<PathBuf>,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.output.iter().for_each(|path| paths.folder("-o", path));
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let file = File::open(self.input.open(general)?, "extract", general.limits())?;
        let Self { segments, delegates, named_data, constants, .. } = self;
        let selected = Selection { segments, delegates, named_data, constants };
        let selection = if selected == Selection::default() { Selection::PARTS } else { selected };
        let mut parts = extract(&file, selection, &general::backends(), &progress::byte_progress())?;
        extract::retain_named(&mut parts, &self.names.patterns())?;
        if let Some(folder) = self.output.as_ref().filter(|_| !self.list) {
            let mut paths = Paths::default();
            self.input.declare_paths(&mut paths);
            parts.iter().for_each(|part| paths.write("", &folder.join(&part.path)));
            general::check_paths(&paths)?;
            for part in &parts {
                let path = folder.join(&part.path);
                let parent = path.parent().unwrap_or(folder);
                std::fs::create_dir_all(parent).map_err(pteron_toolbox::Error::write(parent))?;
                general::write_file(&path, Protected::Keep, &part.output)?;
            }
        }
        if self.json {
            return general::write_stdout(|out| general::write_json_line(out, &parts));
        }
        let rows = parts.iter().map(|part| {
            vec![part.path.clone(), bytes(part.bytes.end - part.bytes.start), part.what.clone()]
        });
        OutputArg::stdout().write_text(&table(rows.collect(), "<><", 0))
    }
}
