//! One file a verb. Each has `Opts`, what clap parses, with `run`, what the verb does.

use crate::failure::Result;
use crate::general::GeneralOpts;

macro_rules! verbs {
    ($($(#[$attribute:meta])* $module:ident => $name:ident,)*) => {
        $(mod $module;)*

        /// The verbs.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[$attribute])* $name($module::Opts),)*
        }

        impl Verb {
            /// Does what the verb says.
            pub(crate) fn run(self, general: &GeneralOpts) -> Result {
                match self {
                    $(Self::$name(opts) => opts.run(general),)*
                }
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
    bundle => Bundle,
    ops => Ops,
    translate => Translate,
    print => Print,
    plan => Plan,
    diff => Diff,
    extract => Extract,
    strip => Strip,
    externalize => Externalize,
    embed => Embed,
    merge => Merge,
    dedupe => Dedupe,
    convert => Convert,
    set_weight => SetWeight,
    bef => Bef,
    completion => Completion,
}
