//! One module per verb. Each has `Opts`, which clap parses, with two methods: `declare_paths` declares every path that
//! the verb reads and writes, and `run` executes it.

use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts};
use pteron_toolbox::paths::Paths;

macro_rules! verbs {
    ($($(#[$attribute:meta])* $module:ident => $name:ident,)*) => {
        $($(#[$attribute])* mod $module;)*

        /// The verbs of the command, each with its options.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[$attribute])* $name($module::Opts),)*
        }

        impl Verb {
            /// Executes the verb, unless its paths conflict.
            pub(crate) fn run(self, general: &GeneralOpts) -> Result {
                let paths = self.paths();
                general::check_paths(&paths)?;
                let _edits = general::lock_edited(&paths);
                let answers = self.exit_status_is_answer();
                let done = match self {
                    $($(#[$attribute])* Self::$name(opts) => opts.run(general),)*
                };
                done.map_err(|failure| if answers { failure.into_trouble() } else { failure })
            }

            /// The paths that the verb reads and writes, except files in folders whose names are known only when it
            /// runs.
            pub(crate) fn paths(&self) -> Paths {
                let mut paths = Paths::default();
                match self {
                    $($(#[$attribute])* Self::$name(opts) => opts.declare_paths(&mut paths),)*
                }
                paths
            }
        }
    };
}

verbs! {
    run => Run,
    inspect => Inspect,
    validate => Validate,
    verify => Verify,
    profile => Profile,
    compare => Compare,
    compile => Compile,
    retarget => Retarget,
    bundle => Bundle,
    ops => Ops,
    translate => Translate,
    print => Print,
    plan => Plan,
    diff => Diff,
    report => Report,
    extract => Extract,
    strip => Strip,
    externalize => Externalize,
    embed => Embed,
    merge => Merge,
    dedupe => Dedupe,
    convert => Convert,
    set_weight => SetWeight,
    set_task => SetTask,
    #[cfg(feature = "batch")]
    batch => Batch,
    #[cfg(not(feature = "batch"))]
    no_batch => Batch,
    #[cfg(feature = "serve")]
    serve => Serve,
    #[cfg(not(feature = "serve"))]
    no_serve => Serve,
    bef => Bef,
    completion => Completion,
}

impl Verb {
    /// Whether exit status 1 answers a question, such as whether two files differ, instead of reporting a failure.
    fn exit_status_is_answer(&self) -> bool {
        matches!(self, Self::Compare(_) | Self::Diff(_) | Self::Plan(_) | Self::Validate(_) | Self::Verify(_))
    }
}

/// The names of the verbs that print more with `-v`.
pub(crate) const DETAILED: [&str; 5] = ["compare", "inspect", "print", "profile", "verify"];

/// The names of the verbs that may execute instructions, so that --max-instructions applies.
pub(crate) const EXECUTING: [&str; 10] =
    ["batch", "bef", "bundle", "compare", "compile", "profile", "report", "run", "serve", "verify"];

/// Fails if general options were given that have no effect on `verb`.
pub(crate) fn refuse_ineffective_options(general: &GeneralOpts, verb: &str) -> Result {
    let options = [
        ("-v", general.verbosity() > 0 && !DETAILED.contains(&verb), "there are no more details to print"),
        (
            "--max-instructions",
            general.has_max_instructions() && !EXECUTING.contains(&verb),
            "no instruction is executed",
        ),
    ];
    match options.into_iter().find(|(_, refused, _)| *refused) {
        Some((option, _, why)) => Err(Failure::Usage(format!("`{verb}` does not take {option}: {why}"))),
        None => Ok(()),
    }
}
