use crate::call::{CallArgs, Loaded, note_default_inputs};
use crate::failure::Result;
use crate::general::{self, GeneralOpts, OutputArg, exit_status};
use clap::Args;
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{bytes, count, name};

/// Bundle a program with a test case: inputs, and the outputs that it computes from them
///
/// The outputs are computed by the program as written, not prepared. A bundled program gets one more test case, in
/// place if the output is the file itself. `pteron verify` runs the test cases.
/// Inputs are written as for `pteron run`.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron bundle model.pte x.npy -o model.bpte\n\n",
    "  # one more test case\n",
    "  pteron bundle model.bpte y.npy -o model2.bpte",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    call: CallArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.call.declare_paths(paths);
        self.output.declare_edit(paths, &[self.call.path()]);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.call.open(general)?;
        let Loaded { program, options, request, bundle } = self.call.load_with_sample(general, "bundle", loader, 0)?;
        let mut bundle = match bundle {
            Some(bundle) => bundle,
            None => {
                let mut paths = Paths::default();
                self.call.declare_paths(&mut paths);
                self.output.declare_binary(&mut paths);
                general::check_paths(&paths)?;
                Bundle::new(&**program.loader())?
            }
        };
        note_default_inputs(bundle.add(&request, options)?.as_ref());
        let mut file = Vec::new();
        bundle.write(&mut file)?;
        self.output.write_binary(&file)?;
        let bundled = bundle.bundled_report(file.len() as u64);
        let has = bundled.suites.iter().map(|suite| {
            format!("{} of {}", count(suite.cases.len(), "test case"), name(&suite.method))
        });
        let text = format!("{}, {}", has.collect::<Vec<_>>().join(", "), bytes(bundled.bytes));
        general::write_report(&self.output, self.json, &bundled, &text)
    }
}
