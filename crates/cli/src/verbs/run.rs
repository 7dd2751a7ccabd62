use super::bef::RunBefOpts;
use crate::call::{CallArgs, Loaded, note_default_inputs, refuse_options};
use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, exit_status};
use crate::terminal;
use clap::Args;
use pteron::{EValue, LoadOptions, Program, Tensor};
use serde::Serialize;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use pteron_toolbox::json::Json;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::run::{self, CallSpec, Latency, Ranked, Request, RunResult, Top};
use pteron_toolbox::show::{Escapes, Screen};
use pteron_toolbox::task::{self, TaskMetadata};
use pteron_toolbox::{npy, show};

/// Run a method of a program and show what it computes, or the functions of a BEF program
///
/// Inputs are given in the order of the method's inputs (`pteron inspect` lists them):
///
///   2x2xf32=1,2,3,4   a tensor; a single element fills it, none gives zeros
///   4xf32=@raw.bin    a tensor from the little-endian bytes of a file
///   x.npy             a NumPy array; with @, `@x`, in a file of any name
///   digit.png         an image (PNG, JPEG, WebP or BMP), for an input [1, C, H, W] or [C, H, W] with C = 1
///                     (grey), 3 (RGB) or 4 (RGBA): stretched to H by W, with values in 0..1 and
///                     black 0; for integer inputs values in 0..255. What the program stores of its
///                     preprocessing (`pteron set-task`) and the options for images change this
///                     like torchvision's Resize, CenterCrop and Normalize. (Pixels of a JPEG
///                     may differ by a few units from those of another decoder)
///   5  0.5  true      a scalar, if the method takes one
///
/// Without inputs the method gets zeros, or with --seed random values. Scalars that the exporter fixed may be left out.
/// With --inputs-from it is run on each sample in a folder, from the same initial state.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron run add.pte 2x2xf32=1,2,3,4 2x2xf32=1\n\n",
    "  # the three likeliest classes of an image\n",
    "  pteron run digits.pte 3.png --preset 0..1 --top 3 --labels labels.txt\n\n",
    "  # a photograph, preprocessed as for torchvision models\n",
    "  pteron run mobilenet.pte cat.jpg --resize 256 --crop 224 --preset imagenet --top 5\n\n",
    "  # on every photograph of a folder\n",
    "  pteron run labelled.pte --inputs-from photos --top 1\n\n",
    "  # the same, with preprocessing and labels that the program stores (pteron set-task)\n",
    "  pteron run labelled.pte cat.jpg --top 5\n\n",
    "  # weights from a separate file, outputs as NumPy arrays\n",
    "  pteron run model.pte x.npy --data weights.ptd --output out/\n\n",
    "  # how long does it take?\n",
    "  pteron run model.pte --repeat 100\n\n",
    "  # continue from the state of the last run\n",
    "  pteron run counter.pte --restore state.ptd --checkpoint state.ptd\n\n",
    "  # what another method has stored, in a program whose methods share their state\n",
    "  pteron run cache.pte --share-memory-arenas --before 'set_state 1xf32=7' --method get_state\n\n",
    "  # the second test case of a bundled program\n",
    "  pteron run model.bpte --case 1\n\n",
    "  # the functions of a BEF program, or of its text\n",
    "  pteron run program.bef --functions main --work-queue mt:4",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    call: CallArgs,
    /// Write each output to this folder as a .npy file
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Print JSON, with every element
    #[arg(long)]
    json: bool,
    /// Run this many more times and show the latencies
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    repeat: usize,
    /// Start from the state in this file, written by --checkpoint
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// After the last run, save the persistent state (caches, counters, parameters) to this file (.ptd)
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Let all methods use the same memory for their state, as the reference's option `share_memory_arenas`; for programs
    /// that were exported with share_mutable_buffers
    #[arg(long)]
    share_memory_arenas: bool,
    /// Call this method before, with the inputs that follow its name, separated by spaces; may be repeated
    #[arg(long, value_name = "CALL")]
    before: Vec<CallSpec>,
    /// Show only the K largest elements of each row of the first output
    #[arg(short = 'k', long, value_name = "K")]
    top: Option<NonZeroUsize>,
    /// Names for the positions that --top shows, one per line [default: the labels that the program stores]
    #[arg(short, long, value_name = "FILE", requires = "top")]
    labels: Option<PathBuf>,
    #[command(flatten)]
    bef: RunBefOpts,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.call.declare_paths(paths);
        self.restore.iter().for_each(|path| paths.read("--restore", path));
        let before = self.before.iter().flat_map(|call| &call.inputs).filter_map(|input| input.value.path());
        before.for_each(|path| paths.read("--before", path));
        self.labels.iter().for_each(|path| paths.read("--labels", path));
        let over: Vec<&Path> = self.restore.iter().map(PathBuf::as_path).collect();
        self.checkpoint.iter().for_each(|path| paths.edit("--checkpoint", path, &over));
        self.output.iter().for_each(|path| paths.folder("-o", path));
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.call.open(general)?;
        if let Some(program) = pteron_toolbox::bef::open(&*loader)? {
            let own = [
                ("--output", self.output.is_some()),
                ("--json", self.json),
                ("--repeat", self.repeat > 0),
                ("--restore", self.restore.is_some()),
                ("--checkpoint", self.checkpoint.is_some()),
                ("--share-memory-arenas", self.share_memory_arenas),
                ("--before", !self.before.is_empty()),
                ("--top", self.top.is_some()),
            ];
            let own = own.into_iter().chain(self.call.method_options());
            refuse_options("run", loader.name(), "a BEF program", own)?;
            return self.bef.run(general, program, loader.name());
        }
        refuse_options("run", loader.name(), "no BEF program", self.bef.bef_options())?;
        let loaded = self.call.load(general, "run", loader, self.repeat)?;
        let (samples, method) = (self.call.samples(&loaded)?, loaded.method()?);
        let Loaded { program, options, mut request, .. } = loaded;
        request.restore = self.restore.clone();
        request.checkpoint = self.checkpoint.clone();
        request.share_memory_arenas = self.share_memory_arenas;
        request.before = self.before.clone();
        let labels = self.labels.as_deref().map(run::read_labels).transpose()?;
        let stored = match (self.top, &labels) {
            (Some(_), None) => task::of(&program)?.unwrap_or_default(),
            _ => TaskMetadata::default(),
        };
        let call = Call { program: &program, options, labels, stored };
        let Some(samples) = samples else { return self.run_call(&call, &request, None) };
        if samples.len() == 1 {
            request.values = Some(samples.inputs(0, &program, &method)?);
            return self.run_call(&call, &request, None);
        }
        if self.checkpoint.is_some() {
            let message = format!("--checkpoint saves the state after one call, --inputs-from has {} samples", samples.len());
            return Err(Failure::Usage(message));
        }
        // Each sample starts with the initial state.
        (0..samples.len()).try_for_each(|index| {
            request.values = Some(samples.inputs(index, &program, &method)?);
            self.run_call(&call, &request, Some(samples.label(index)))
        })
    }

    /// Runs the method once, and shows what it computes; `sample` is the name of the inputs if there are several samples.
    fn run_call(&self, call: &Call<'_>, request: &Request, sample: Option<&str>) -> Result {
        let Call { program, options, labels, stored } = call;
        let ran = run::run(program, request, options.clone())?;
        note_default_inputs(ran.default_inputs.as_ref());
        let folder = match (&self.output, sample) {
            (Some(folder), Some(sample)) => Some(folder.join(sample)),
            (folder, _) => folder.clone(),
        };
        if let Some(folder) = &folder {
            self.write_outputs(folder, &ran.outputs)?;
        }
        let top = match self.top {
            Some(k) => {
                let tensor = first_tensor(&ran)?;
                let labels = labels.as_deref().unwrap_or_else(|| stored.labels_of(tensor));
                Some(run::top_k(tensor, k.get(), labels)?)
            }
            None => None,
        };
        match self.json {
            true => print_json(&ran, top, sample),
            false => print_text(&ran, top, folder.as_deref(), sample),
        }
    }

    fn write_outputs(&self, folder: &Path, outputs: &[EValue]) -> Result {
        let tensors = outputs.iter().enumerate().filter_map(|(i, output)| Some((i, output.as_tensor().ok()?)));
        let files: Vec<_> = tensors.map(|(i, tensor)| (output_file(folder, i), tensor)).collect();
        let mut paths = Paths::default();
        self.declare_paths(&mut paths);
        files.iter().for_each(|(path, _)| paths.write("", path));
        general::check_paths(&paths)?;
        std::fs::create_dir_all(folder).map_err(pteron_toolbox::Error::write(folder))?;
        Ok(files.iter().try_for_each(|(path, tensor)| npy::write(path, tensor))?)
    }
}

/// What all calls of a run have in common.
struct Call<'a> {
    program: &'a Program,
    options: LoadOptions,
    /// The labels that an option names.
    labels: Option<Vec<String>>,
    /// What the program stores of its task.
    stored: TaskMetadata,
}

fn output_file(folder: &Path, i: usize) -> PathBuf {
    folder.join(format!("output{i}.npy"))
}

fn first_tensor(ran: &RunResult) -> Result<&Tensor> {
    ran.outputs.first().and_then(|output| output.as_tensor().ok()).ok_or_else(|| {
        let message = format!("--top: the first output of `{}` is no tensor", ran.method);
        Failure::Failed(Box::new(pteron_toolbox::Error::input(message)))
    })
}

/// The number of lines in a table whose columns are aligned together; longer output is printed as several tables.
const LINES: usize = 4096;

fn print_text(ran: &RunResult, top: Option<Top<'_>>, folder: Option<&Path>, sample: Option<&str>) -> Result {
    let mut out = terminal::stdout();
    if let Some(sample) = sample {
        writeln!(out, "{}:", show::name(sample))?;
    }
    if let Some(rows) = &top {
        for (i, row) in rows.rows().enumerate() {
            if rows.rows().len() > 1 {
                writeln!(out, "row {i}")?;
            }
            let line = |r: &Ranked<'_>| {
                vec![r.label.map_or_else(|| r.index.to_string(), str::to_owned), show::number(r.value)]
            };
            for lines in row.chunks(LINES) {
                out.write_all(show::table(lines.iter().map(line).collect(), "<<", 0).as_bytes())?;
            }
        }
    }
    for (i, output) in ran.outputs.iter().enumerate() {
        match (folder, output) {
            (Some(folder), EValue::Tensor(t)) => {
                writeln!(out, "output {i}: {} in {}", t.meta(), output_file(folder, i).display())?;
            }
            _ if top.is_some() => {}
            _ => writeln!(out, "output {i}: {}", show::value(output))?,
        }
    }
    if let Some(l) = &ran.latency {
        let load = ran.load.as_secs_f64() * 1e3;
        writeln!(out, "load {load:.3} ms")?;
        writeln!(
            out,
            "{} runs: min {:.3} ms, median {:.3} ms, p99 {:.3} ms",
            l.runs, l.min_ms, l.median_ms, l.p99_ms
        )?;
    }
    Ok(())
}

/// The JSON object that `--json` prints.
#[derive(Serialize)]
struct Report<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_ms: Option<f64>,
    method: &'r str,
    outputs: Vec<Json<'r>>,
    /// The name of the inputs, if there are several samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Top<'r>>,
}

fn print_json(ran: &RunResult, top: Option<Top<'_>>, sample: Option<&str>) -> Result {
    let report = Report {
        latency: ran.latency,
        load_ms: ran.latency.map(|_| ran.load.as_secs_f64() * 1e3),
        method: &ran.method,
        outputs: ran.outputs.iter().map(Json).collect(),
        sample,
        top,
    };
    let mut out = Screen::new(io::BufWriter::new(io::stdout().lock()), Escapes::Json);
    serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.finish()?)
}
