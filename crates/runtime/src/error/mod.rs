//! Errors, and their texts.

mod backend;
mod missing;
mod text;

pub use backend::BackendError;
pub use missing::{Missing, MissingBackend, MissingDevice, MissingOperator};
pub use text::one_line;

use pteron_exported::SizeProblem;
use pteron_operator::{Tag, shown, shown_line};
use pteron_tensor::{DimOrder, ScalarType};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Errors from opening a file to reading an output. Every variant says where the error is; the frequent ones also say
/// what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operating system call failed.
    #[error("cannot {action} {}", shown_line(&path.display().to_string()))]
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A file was not replaced, because it is read-only or another user's.
    #[error("{} is {why}, and is not replaced unless that is asked for", path.display())]
    Protected {
        /// The file.
        path: PathBuf,
        /// Why the file is protected: `read-only` or `another user's`.
        why: &'static str,
    },
    /// A byte range outside the file.
    #[error("{file}: bytes {offset}..{} are out of bounds, the file has {size} bytes; it is truncated, or its header is wrong", offset.saturating_add(*len))]
    OutOfFile {
        /// The file's name.
        file: String,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// The size of the file.
        size: u64,
    },
    /// The file is malformed.
    #[error("{file} is not valid")]
    Format {
        /// The file's name.
        file: String,
        /// What is wrong, and where.
        source: Box<pteron_format::Error>,
    },
    /// A method is malformed. The other methods of the program are not affected.
    #[error("the method `{}` of {file} is not valid", shown(method))]
    InvalidMethod {
        /// The file's name.
        file: String,
        /// The method.
        method: String,
        /// What is wrong, and where.
        source: Box<pteron_format::Error>,
    },
    /// An archive that is compiled when it is opened failed to compile.
    #[error("cannot compile {file}")]
    Compile {
        /// The file's name.
        file: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A limit of [`Limits`](crate::Limits) would be exceeded.
    #[error(
        "{} needs {needed}, the limit is {limit}; raise `Limits::{field}` if that is intended",
        shown_line(what)
    )]
    Limit {
        /// What exceeds the limit, such as an arena.
        what: String,
        /// The amount that is needed, in the unit of the limit.
        needed: u64,
        /// The amount that the limit allows.
        limit: u64,
        /// The field of `Limits`.
        field: &'static str,
    },
    /// No method of this name.
    #[error(
        "there is no method `{}`; the program has {}{}",
        shown(name),
        text::list_names(available),
        pteron_operator::did_you_mean(name, available.iter().map(String::as_str))
    )]
    NoSuchMethod {
        /// The requested name.
        name: String,
        /// The names of the program's methods.
        available: Vec<String>,
    },
    /// Operators or backends are missing from the registries. One error lists all of them.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// Two sources of named data hold the same key.
    #[error(
        "named data `{}` is both in {first} and in {second}; a key may come from one place only",
        shown(key)
    )]
    DuplicateKey {
        /// The key.
        key: String,
        /// The first source.
        first: String,
        /// The second source.
        second: String,
    },
    /// Tensors whose data should be in a `.ptd` file have no data.
    #[error(
        "method `{}`: {count} tensor(s) are stored outside the program, and {}; first: `{}`",
        shown(method),
        shown_line(problem),
        shown(key)
    )]
    ExternalData {
        /// The method.
        method: String,
        /// The number of keys without data.
        count: usize,
        /// The first of these keys in alphabetical order.
        key: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A part of the method cannot be loaded.
    #[error("method `{}`, {}: {}", shown(method), shown_line(place), shown_line(problem))]
    Load {
        /// The method.
        method: String,
        /// The value, instruction or delegate.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// A backend could not make a delegate.
    #[error("method `{}`: the backend `{}` cannot load delegate {index}{}", shown(method), shown(backend), source_line_suffix(.source_frame))]
    BackendInit {
        /// The method.
        method: String,
        /// The backend's id.
        backend: String,
        /// The delegate's index in the method's delegate table.
        index: usize,
        /// The source line that the delegate's first call was exported from, if the file records it.
        source_frame: Option<String>,
        /// Why the backend could not create the delegate.
        source: BackendError,
    },
    /// The caller's inputs do not fit the method.
    #[error("method `{}`: {problem}", shown(method))]
    Input {
        /// The method.
        method: String,
        /// Which input does not fit, and why.
        problem: InputProblem,
    },
    /// An instruction failed.
    #[error("method `{}`, instruction {at}", shown(method))]
    Execute {
        /// The method.
        method: String,
        /// The instruction.
        at: Box<InstructionPlace>,
        /// Why the instruction failed.
        source: Box<ExecuteError>,
    },
    /// Loading a method was [interrupted](crate::Interrupt).
    #[error("loading method `{}` was interrupted{}", shown(method), loading_place_suffix(.place))]
    Interrupted {
        /// The method.
        method: String,
        /// The delegate that was being loaded; `None` if loading stopped elsewhere.
        place: Option<String>,
        /// Why loading was interrupted.
        source: pteron_pool::Interrupted,
    },
    /// An allocation failed, or a shape overflows.
    #[error(transparent)]
    Tensor(#[from] pteron_tensor::Error),
    /// A kernel could not be registered, or a value is not of the requested kind.
    #[error(transparent)]
    Operator(#[from] pteron_operator::Error),
    /// A named-data key does not exist.
    #[error("there is no named data `{}` in {source_name}", shown(key))]
    NoSuchKey {
        /// The key.
        key: String,
        /// The map that was searched.
        source_name: String,
    },
    /// An operation that the loading mode, the method or its options do not support.
    #[error("{}", shown_line(.0))]
    Unsupported(String),
}

/// The result of a runtime operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn format(file: &str, source: pteron_format::Error) -> Self {
        Self::Format { file: file.to_owned(), source: Box::new(source) }
    }
}

/// Why an instruction failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// The kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] pteron_operator::Error),
    /// The delegate failed.
    #[error(transparent)]
    Backend(BackendError),
    /// A tensor error outside a kernel.
    #[error(transparent)]
    Tensor(#[from] pteron_tensor::Error),
    /// The condition of a jump is neither a boolean nor a tensor of booleans. The text says what it is.
    #[error("the condition of the jump is {0}, not a boolean")]
    Condition(String),
    /// The value with this index is a tensor that has no memory: it was freed, or never allocated.
    #[error("value {0} has no memory: it was freed, or it was never given any")]
    NoMemory(usize),
    /// The execution was [interrupted](crate::Interrupt), or exceeded [`Limits::time`](crate::Limits::time).
    #[error("the execution was interrupted: {0}")]
    Interrupted(pteron_pool::Interrupted),
    /// The execution exceeded [`Limits::instructions`](crate::Limits::instructions).
    #[error(
        "{0} instructions have been executed, the limit; the program loops, or raise `Limits::instructions`"
    )]
    TooManyInstructions(u64),
}

impl From<BackendError> for ExecuteError {
    fn from(error: BackendError) -> Self {
        error.interrupted().map_or(Self::Backend(error), Self::Interrupted)
    }
}

impl From<pteron_pool::Interrupted> for ExecuteError {
    fn from(why: pteron_pool::Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

/// The position of an instruction, and what it calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstructionPlace {
    /// The index of the instruction's chain.
    pub chain: usize,
    /// The index of the instruction in the chain.
    pub instruction: usize,
    /// The operator or backend that the instruction calls, or the kind of instruction.
    pub what: String,
    /// The source line of the model from which the instruction was exported, if the file records it.
    pub source_frame: Option<String>,
}

impl fmt::Display for InstructionPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.chain != 0 {
            write!(f, "{}:", self.chain)?;
        }
        write!(f, "{} ({})", self.instruction, shown(&self.what))?;
        f.write_str(&source_line_suffix(&self.source_frame))
    }
}

/// What is wrong with the inputs of a call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InputProblem {
    /// Too few or too many inputs.
    #[error("it takes {expected} input(s), {found} were given")]
    Count {
        /// The number of inputs of the method.
        expected: usize,
        /// The number of inputs that were given.
        found: usize,
    },
    /// There is no input with this index.
    #[error("there is no input {index}; the method takes {count}")]
    Index {
        /// The index of the input.
        index: usize,
        /// The number of inputs.
        count: usize,
    },
    /// No input has this name.
    #[error("there is no input `{}`{hint}", shown(name))]
    Name {
        /// The name given.
        name: String,
        /// The end of the message: similar names of inputs, or what to do.
        hint: String,
    },
    /// An input was given twice: by position and by name, or by name twice.
    #[error("the input `{}` was given twice", shown(name))]
    Twice {
        /// The input's name.
        name: String,
    },
    /// An input was never set.
    #[error("input {index} has not been set")]
    Unset {
        /// The index of the input.
        index: usize,
    },
    /// The value has another kind than the input.
    #[error("input {index} is {expected}, {found} was given")]
    Kind {
        /// The index of the input.
        index: usize,
        /// The kind of the input, as the program declares it.
        expected: Tag,
        /// The kind of the given value.
        found: Tag,
    },
    /// A number, string or boolean differs from the value that was fixed at export.
    #[error("input {index} was fixed to {expected} when the model was exported, {found} was given")]
    Traced {
        /// The index of the input.
        index: usize,
        /// The value in the program, as text.
        expected: String,
        /// The given value, as text.
        found: String,
    },
    /// The tensor has another scalar type than the input.
    #[error("input {index} is a tensor of {expected}, one of {found} was given")]
    Dtype {
        /// The index of the input.
        index: usize,
        /// The scalar type of the input, as the program declares it.
        expected: ScalarType,
        /// The scalar type of the given tensor.
        found: ScalarType,
    },
    /// The shape of the tensor is outside the bounds of the input.
    #[error("input {index} has shape {expected}, a tensor of shape {found} was given{hint}")]
    Shape {
        /// The index of the input.
        index: usize,
        /// The shape of the input with its bounds, as the program declares it.
        expected: String,
        /// The shape of the given tensor.
        found: String,
        /// What to do about the error, as the end of the message.
        hint: &'static str,
    },
    /// A size of the tensor is not one that the export allows.
    #[error("input {}: dimension {} has size {}; it was exported with {}", .0.input, .0.dim, .0.found, .0.exported)]
    Size(SizeProblem),
    /// The tensor has another dim order than the input, and may not be converted to that of the input.
    #[error("input {index} has dim order {expected}, a tensor of dim order {found} was given")]
    DimOrder {
        /// The index of the input.
        index: usize,
        /// The dim order of the input, as the program declares it.
        expected: DimOrder,
        /// The dim order of the given tensor.
        found: DimOrder,
    },
}

/// The source line of an error as the end of the error's message; empty if the line is not known.
fn source_line_suffix(source_frame: &Option<String>) -> String {
    source_frame.as_ref().map_or_else(String::new, |frame| format!(", from {}", shown(frame)))
}

fn loading_place_suffix(place: &Option<String>) -> String {
    place.as_ref().map_or_else(String::new, |place| format!(" in {}", shown(place)))
}
