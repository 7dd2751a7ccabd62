//! Options of the verbs that call a method: the program, its inputs, its data files, threads.

use crate::failure::{Failure, Result};
use crate::general::{ExecutionOpts, GeneralOpts, InputArg};
use crate::maps;
use crate::pictures::PictureOpts;
use crate::registries::{self, registries};
use crate::samples::Samples;
use crate::terminal::say;
use clap::{Args, ValueEnum};
use pteron::compile::Cache;
use pteron::{DataLoader, EValue, LoadOptions, Program};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::comparison::Side;
use pteron_toolbox::input::{GivenInput, InputSpec};
use pteron_toolbox::paths::Paths;
use pteron_toolbox::random::random_inputs;
use pteron_toolbox::run::{
    DefaultInputs, LoadMode, Request, default_method, expect_program, input_values, open_data,
};
use pteron_toolbox::task;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A call of a method.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    #[command(flatten)]
    input: InputArg,
    /// The inputs of the method, in order or by name: `NAME=INPUT`
    #[arg(value_name = "INPUT", allow_negative_numbers = true)]
    inputs: Vec<GivenInput>,
    /// The method [default: `forward`, or the only one]
    #[arg(short, long, value_name = "NAME")]
    method: Option<String>,
    /// Use the inputs of this test case of a bundled program [default: 0, if neither inputs nor --seed are given]
    #[arg(long, value_name = "N", conflicts_with = "inputs")]
    case: Option<usize>,
    /// Draw the inputs, if none are given, from a generator with this seed: floats from -1 to 1, uint8 from 0 to 255, other
    /// integers 0 or 1 [default: zeros]
    #[arg(long, value_name = "N", conflicts_with_all = ["inputs", "case"])]
    seed: Option<u64>,
    /// Take the inputs from this sample, a file or a folder with a file for each input, or from each of the samples in this
    /// folder or file of named arrays (.npz, .safetensors)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["case", "seed"])]
    inputs_from: Option<PathBuf>,
    /// A file of external weights of the program (.ptd); may be repeated
    #[arg(short, long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// How to read the files
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    load: Load,
    /// Cache the program in this folder, compiled and with weights packed for this machine, and map it from there
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    execution: ExecutionOpts,
    #[command(flatten)]
    pictures: PictureOpts,
}

/// Fails if any of the options was given; they do not apply to a file of this kind. Each option comes with whether it was
/// given.
pub(crate) fn refuse_options<'a>(
    verb: &str,
    name: &str,
    kind: &str,
    options: impl Iterator<Item = (&'a str, bool)>,
) -> Result {
    let names: Vec<&str> = options.filter(|(_, is_given)| *is_given).map(|(option, _)| option).collect();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    Err(Failure::Usage(format!(
        "{name} is {kind}: it does not support {names}; `pteron {verb} --help` lists the options"
    )))
}

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Load {
    /// Read the needed parts into memory
    #[default]
    File,
    /// Map the files into memory. They must not change while the command runs: if a mapped file is truncated, a signal
    /// kills the command
    Mmap,
}

impl CallArgs {
    fn load_mode(&self) -> LoadMode {
        match self.load {
            Load::File => maps::map_large_bef(),
            Load::Mmap => maps::map_all(),
        }
    }

    /// Declares the paths that the call reads: the program, input files and data files, and the folder of the cache.
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.inputs.iter().filter_map(|input| input.value.path()).for_each(|path| paths.read("", path));
        self.inputs_from.iter().for_each(|path| paths.read("--inputs-from", path));
        self.data.iter().for_each(|path| paths.read("--data", path));
        self.cache.iter().for_each(|path| paths.folder("--cache", path));
    }

    /// The path of the program.
    pub(crate) fn path(&self) -> &Path {
        self.input.path()
    }

    /// Opens the program, or its cached form if there is a cache. A torch.export archive is compiled.
    pub(crate) fn open(&self, general: &GeneralOpts) -> Result<Arc<dyn DataLoader>> {
        if let Some(folder) = &self.cache {
            let cache = Cache::new(folder, self.execution.setting()?.isa);
            let path = cache.program(self.input.path(), &self.data, registries().kernels());
            let path = path.map_err(pteron_toolbox::Error::from)?;
            return Ok(pteron_toolbox::run::open(&path, maps::map_all())?);
        }
        self.open_other(general, self.input.path())
    }

    /// Removes the first program from the inputs and returns its path: the program that a comparison compares with.
    pub(crate) fn take_program(&mut self) -> Option<PathBuf> {
        let at = self.inputs.iter().position(|input| matches!(input.value, InputSpec::Program(_)))?;
        match self.inputs.remove(at).value {
            InputSpec::Program(path) => Some(path),
            _ => None,
        }
    }

    /// The samples of the call's method that --inputs-from names; `None` without the option.
    pub(crate) fn samples(&self, loaded: &Loaded) -> Result<Option<Samples>> {
        let Some(path) = &self.inputs_from else { return Ok(None) };
        if !self.inputs.is_empty() {
            return Err(Failure::Usage("--inputs-from: inputs are given already".to_owned()));
        }
        let method = loaded.method()?;
        let (program, limits) = (&loaded.program, &loaded.options.limits);
        let samples = Samples::list("--inputs-from", path, &self.pictures, program, &method, limits)?;
        if !samples.has_images() {
            self.pictures.refuse_all()?;
        }
        Ok(Some(samples))
    }

    /// As [`Self::load`], with the inputs of the one sample that --inputs-from names, if it is given.
    pub(crate) fn load_with_sample(
        &self,
        general: &GeneralOpts,
        verb: &'static str,
        loader: Arc<dyn DataLoader>,
        repeat: usize,
    ) -> Result<Loaded> {
        let mut loaded = self.load(general, verb, loader, repeat)?;
        let Some(samples) = self.samples(&loaded)? else { return Ok(loaded) };
        if samples.len() != 1 {
            let path = self.inputs_from.as_deref().unwrap_or(Path::new("")).display();
            return Err(Failure::Usage(format!(
                "--inputs-from: {path} has {} samples, one is needed: name one of them",
                samples.len()
            )));
        }
        loaded.request.values = Some(samples.inputs(0, &loaded.program, &loaded.method()?)?);
        Ok(loaded)
    }

    /// Opens another program, with the load mode that the options of this call select.
    fn open_other(&self, general: &GeneralOpts, path: &Path) -> Result<Arc<dyn DataLoader>> {
        Ok(pteron_toolbox::run::open(path, self.load_mode())
            .and_then(|file| general.compile_archive(file))?)
    }

    /// The options that apply to ExecuTorch methods only, by name, each with whether it was given.
    pub(crate) fn method_options(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let own = [
            ("--method", self.method.is_some()),
            ("--data", !self.data.is_empty()),
            ("--cache", self.cache.is_some()),
        ];
        let inputs = self.input_options().into_iter();
        inputs.chain(own).chain(self.execution.method_options()).chain(self.pictures.image_options())
    }

    /// The options that give or select the inputs of the method, by name, each with whether it was given.
    pub(crate) fn input_options(&self) -> [(&'static str, bool); 4] {
        [
            ("inputs", !self.inputs.is_empty()),
            ("--case", self.case.is_some()),
            ("--seed", self.seed.is_some()),
            ("--inputs-from", self.inputs_from.is_some()),
        ]
    }

    /// Opens the program that a loader serves for `verb`, bundled or not, and prepares the options and the request for a call that is
    /// repeated `repeat` more times.
    pub(crate) fn load(
        &self,
        general: &GeneralOpts,
        verb: &'static str,
        loader: Arc<dyn DataLoader>,
        repeat: usize,
    ) -> Result<Loaded> {
        let mut loaded = self.load_without_case(general, verb, loader, repeat, self.cache.is_none())?;
        match (&loaded.bundle, self.case) {
            (Some(bundle), case)
                if self.inputs.is_empty() && self.seed.is_none() && self.inputs_from.is_none() =>
            {
                let method = self.method.clone().map_or_else(|| default_method(&loaded.program), Ok)?;
                loaded.request.values = Some(bundle.inputs(&method, case.unwrap_or(0))?);
            }
            (None, Some(_)) => {
                let message = "--case: the file is no bundled program (.bpte), so it has no test cases";
                return Err(Failure::Usage(message.to_owned()));
            }
            _ => {}
        }
        Ok(loaded)
    }

    /// Opens another program, which runs on the inputs of this one: its own test cases are not used.
    pub(crate) fn load_other(
        &self,
        general: &GeneralOpts,
        verb: &'static str,
        path: &Path,
    ) -> Result<Loaded> {
        let loader = self.open_other(general, path)?;
        self.load_without_case(general, verb, loader, 0, true)
    }

    /// As [`load`](Self::load), without the inputs of a test case. `with_data`: whether the files of --data are opened.
    fn load_without_case(
        &self,
        general: &GeneralOpts,
        verb: &'static str,
        loader: Arc<dyn DataLoader>,
        repeat: usize,
        with_data: bool,
    ) -> Result<Loaded> {
        let limits = general.limits();
        let bundle = Bundle::open_if_bundled(&*loader, limits)?;
        let loader = bundle.as_ref().map_or(loader, Bundle::program);
        let takes = match verb {
            "run" | "profile" => "programs (.pte, .bpte, .bef), archives (.pt2) and MLIR text (.mlir)",
            _ => "programs (.pte, .bpte) and archives (.pt2)",
        };
        expect_program(&*loader, verb, takes)?;
        let image = self.inputs.iter().find(|input| matches!(input.value, InputSpec::Image(_)));
        if self.inputs_from.is_none() && image.is_none() {
            self.pictures.refuse_all()?;
        }
        let mut options = registries::load_options();
        if with_data {
            options.data = open_data(&self.data, self.load_mode(), limits)?;
        }
        options.limits = limits.clone();
        options.interrupt = general.bounds().interrupt();
        let options = self.execution.setting()?.apply(&options);
        let program = Program::load(loader, limits).map_err(pteron_toolbox::Error::from)?;
        let inputs = self.inputs.clone();
        let method = self.method.clone();
        let stored = match (task::of(&program), image) {
            (stored, None) => stored.ok().flatten(),
            (stored, Some(image)) => {
                let (stored, path) = (stored?, image.value.path().unwrap_or(Path::new("")));
                self.pictures.warn_of_default(&path.display().to_string(), stored.as_ref());
                stored
            }
        };
        let pictures = self.pictures.preparation(stored.as_ref());
        let request = Request { method, inputs, seed: self.seed, repeat, pictures, ..Request::default() };
        Ok(Loaded { program, options, request, bundle })
    }
}

/// A loaded program, with the options and inputs of a call.
pub(crate) struct Loaded {
    pub(crate) program: Program,
    pub(crate) options: LoadOptions,
    /// The called method and its inputs.
    pub(crate) request: Request,
    /// The bundle that contains the program, if it is bundled.
    pub(crate) bundle: Option<Bundle>,
}

impl Loaded {
    /// The name of the called method.
    pub(crate) fn method(&self) -> Result<String> {
        Ok(self.request.method.clone().map_or_else(|| default_method(&self.program), Ok)?)
    }

    /// The program and its load options, as one side of a comparison.
    pub(crate) fn side(&self) -> Side<'_> {
        Side { program: &self.program, options: &self.options }
    }

    /// The inputs for a comparison of programs: the given ones or, with a note on stderr, random ones.
    pub(crate) fn sample_inputs(&self, method: &str) -> Result<Vec<EValue>> {
        let Request { values, inputs, pictures, seed, .. } = &self.request;
        match (values, inputs.is_empty()) {
            (Some(values), _) => Ok(values.clone()),
            (None, false) => Ok(input_values(&self.program, method, inputs.clone(), pictures)?),
            (None, true) => {
                let seed = seed.unwrap_or(0);
                say(format_args!("no inputs given: running with random values of seed {seed}"));
                Ok(random_inputs(&self.program, method, seed)?)
            }
        }
    }
}

/// Prints a note with the inputs that were used because none were given.
pub(crate) fn note_default_inputs(inputs: Option<&DefaultInputs>) {
    if let Some(inputs) = inputs {
        say(format_args!("no inputs given: running with {inputs}"));
    }
}
