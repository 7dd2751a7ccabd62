use crate::terminal::{Style, say_after};
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Why a verb failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are invalid; the text says why. Exit status 2.
    Usage(String),
    /// An operation failed. Exit status 1.
    Failed(Box<dyn Error + Send + Sync>),
    /// An operation failed in a verb whose exit status 1 is an answer. Exit status 2.
    Trouble(Box<dyn Error + Send + Sync>),
    /// The failure has been printed already. Exit status 1.
    Reported,
    /// The reader of stdout has closed it (`EPIPE`). Nothing is printed. Exit status 0.
    OutputClosed,
}

/// The result of a verb.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Prints the error with all its causes to stderr, coloured by `style`, and returns the exit status.
    pub(crate) fn report(self, style: Style) -> ExitCode {
        match self {
            Self::OutputClosed => ExitCode::SUCCESS,
            Self::Reported => ExitCode::from(1),
            Self::Usage(message) => {
                say_after(&style.error("error:"), &message);
                ExitCode::from(2)
            }
            Self::Failed(ref e) | Self::Trouble(ref e) => {
                say_after(&style.error("error:"), &e.to_string());
                let mut cause = e.source();
                while let Some(e) = cause {
                    say_after(&format!("  {}", style.note("caused by:")), &e.to_string());
                    cause = e.source();
                }
                if let Some(help) = hint(&**e) {
                    say_after(&format!("  {}", style.note("help:")), help);
                }
                ExitCode::from(if matches!(self, Self::Trouble(_)) { 2 } else { 1 })
            }
        }
    }

    /// Gives failed operations exit status 2, for a verb whose exit status 1 is an answer.
    pub(crate) fn into_trouble(self) -> Self {
        match self {
            Self::Failed(e) => Self::Trouble(e),
            other => other,
        }
    }
}

/// A hint on a command or option that helps against the error, if there is one.
fn hint(e: &(dyn Error + 'static)) -> Option<&'static str> {
    use pteron::Error as Runtime;
    let mut next = Some(e);
    while let Some(e) = next {
        if let Some(e) = e.downcast_ref::<Runtime>().or(match e.downcast_ref() {
            Some(pteron_toolbox::Error::Runtime(e)) => Some(e),
            _ => None,
        }) {
            return match e {
                // `validate` takes programs and named data, not files of other formats.
                Runtime::Format { source, .. }
                    if source.kind() == pteron::format::ErrorKind::NotThisFormat =>
                {
                    None
                }
                Runtime::Format { .. } => {
                    Some("`pteron validate FILE` lists everything that is wrong with a file")
                }
                Runtime::ExternalData { .. } => Some("name the file with `--data FILE`"),
                Runtime::Limit { field: "instructions", .. } => Some("raise it with --max-instructions N"),
                Runtime::Limit { .. } => Some(
                    "if the file is to be trusted, raise it with --max-memory SIZE, or use --limits none",
                ),
                Runtime::Protected { .. } => Some("--force replaces it"),
                Runtime::Input { .. } => Some("`pteron inspect FILE` shows the inputs of every method"),
                _ => None,
            };
        }
        next = e.source();
    }
    None
}

impl From<pteron_toolbox::Error> for Failure {
    fn from(e: pteron_toolbox::Error) -> Self {
        match e {
            pteron_toolbox::Error::Runtime(pteron::Error::Io { source, .. })
                if source.kind() == io::ErrorKind::BrokenPipe =>
            {
                Self::OutputClosed
            }
            e => Self::Failed(Box::new(e)),
        }
    }
}

impl From<pteron::Error> for Failure {
    fn from(e: pteron::Error) -> Self {
        pteron_toolbox::Error::from(e).into()
    }
}

/// Any plain I/O error is taken to be one of writing to stdout.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        pteron::Error::Io { path: "stdout".into(), action: "write", source: e }.into()
    }
}
