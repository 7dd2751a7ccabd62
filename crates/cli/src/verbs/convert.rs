use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, InputArg, KeepOpts, OutputArg, exit_status};
use crate::progress;
use clap::{Args, ValueEnum};
use pteron_toolbox::convert::{Format, Options, convert};
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::bytes;

/// Convert weights between named data (.ptd), .safetensors and .npz, and from .gguf
///
/// The contents of the input determine its format; the name of the output, or --to, the format to write. The metadata
/// of a .safetensors file records which entries were no tensors and which were not row-major, so that a .ptd
/// made of it has the same entries: keys, types, sizes, dim orders and bytes. In an .npz, bfloat16 becomes float32, and types that NumPy lacks become bytes.
///
/// Quantized tensors of a .gguf (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K) are dequantized to float32, unless
/// --keep-quantized keeps their bytes. Its metadata, except arrays, is copied to a .safetensors.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron convert weights.ptd -o weights.safetensors\n",
    "  pteron convert weights.safetensors -o weights.ptd\n",
    "  pteron convert weights.ptd -o arrays.npz\n",
    "  pteron convert model.gguf -o weights.ptd\n\n",
    "  # to stdout, which has no name: --to gives the format\n",
    "  pteron convert arrays.npz --to ptd | pteron inspect -",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// The format to write [default: by the extension of the output]
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Option<TargetFormat>,
    /// Keep the bytes of quantized tensors (.gguf), as uint8 with the blocks of a row in the last dimension
    #[arg(long)]
    keep_quantized: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    keep: KeepOpts,
    #[command(flatten)]
    output: OutputArg,
}

/// The formats that can be written.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum TargetFormat {
    /// Named data
    Ptd,
    /// Safetensors
    Safetensors,
    /// An archive of NumPy arrays
    Npz,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.output.declare_binary(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let format = self.format()?;
        let loader = self.input.open_uncompiled()?;
        let options = Options { keep_quantized: self.keep_quantized };
        let converted = convert(&loader, format, options, general.limits(), &progress::byte_progress())?;
        self.keep.check(general, self.input.path(), &converted.lost)?;
        self.output.write_file(&converted.file)?;
        let text = format!("{}, {}", match converted.entries {
            1 => "1 entry".to_owned(),
            n => format!("{n} entries"),
        }, bytes(converted.file.bytes()));
        general::write_report(&self.output, self.json, &converted, &text)
    }

    /// The format to write. Fails if --to contradicts the name of the output.
    fn format(&self) -> Result<Format> {
        let asked = self.to.map(|to| match to {
            TargetFormat::Ptd => Format::Ptd,
            TargetFormat::Safetensors => Format::Safetensors,
            TargetFormat::Npz => Format::Npz,
        });
        let Some(path) = self.output.path() else {
            let message = "stdout has no name to determine the format: give it with `--to FORMAT`";
            return asked.ok_or_else(|| Failure::Usage(message.to_owned()));
        };
        let name = path.display();
        match (asked, Format::from_path(path)) {
            (Some(asked), Some(named)) if asked != named => Err(Failure::Usage(format!(
                "{name} has the extension .{}, but --to is .{}: change one of them",
                named.extension(),
                asked.extension()
            ))),
            (Some(format), _) | (None, Some(format)) => Ok(format),
            (None, None) => Err(Failure::Usage(format!(
                "{name}: the extension is not .ptd, .safetensors or .npz, which can be written; \
                 rename it, or give the format with `--to FORMAT`"
            ))),
        }
    }
}
