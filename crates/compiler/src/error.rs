use pteron_exported::{ExportedNode, ExportedProgram, SourceFrame};
use pteron_operator::{shown, shown_line};
use std::fmt;

/// Why an archive could not be read or compiled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a readable archive.
    #[error("{}", shown_line(&format!("{place}: {problem}{}", format_help(.help))))]
    Archive {
        /// The archive entry, and the position in it.
        place: String,
        /// What is wrong.
        problem: String,
        /// How to fix the problem; may be empty.
        help: String,
    },
    /// A node of the program cannot be compiled.
    #[error(transparent)]
    Node(#[from] Box<NodeError>),
    /// Operators that have neither a kernel nor a decomposition.
    #[error("{}", list_operators(.0))]
    Unsupported(Vec<UnsupportedOperator>),
    /// The program is malformed.
    #[error(transparent)]
    Malformed(#[from] pteron_ir::Malformed),
    /// A program could not be lifted back to operators.
    #[error("{}", shown_line(&format!("{place}: {problem}")))]
    Recover {
        /// The method, and the instruction.
        place: String,
        /// Why the method could not be lifted.
        problem: String,
    },
    /// A backend failed to compile a part of the program.
    #[error(transparent)]
    Delegation(#[from] pteron_exported::delegate::DelegationError),
    /// The program could not be written.
    #[error("the compiled program: {0}")]
    Format(#[from] pteron_format::Error),
    /// An option is invalid, e.g. names an unknown pass or model.
    #[error("{}", pteron_operator::shown_message(.0))]
    Option(String),
}

/// A node that cannot be compiled, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeError {
    /// The node's name in the archive.
    pub node: String,
    /// The node's operator.
    pub target: String,
    /// The node's source line, if the archive records it.
    pub line: Option<SourceFrame>,
    /// What is wrong.
    pub problem: String,
}

/// An operator that has neither a kernel nor a decomposition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedOperator {
    /// The operator.
    pub target: String,
    /// How many nodes call the operator.
    pub count: usize,
    /// The name of the first node that calls the operator.
    pub node: String,
    /// The source line of that first node, if the archive records it.
    pub line: Option<SourceFrame>,
    /// Operators with similar names, or why no kernel takes the call.
    pub hint: String,
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error at `place` in an archive.
    pub(crate) fn archive(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Archive { place: place.into(), problem: problem.into(), help: String::new() }
    }

    /// An error at `place` in an archive, with a remedy.
    pub(crate) fn archive_with_help(
        place: impl Into<String>,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self::Archive { place: place.into(), problem: problem.into(), help: help.into() }
    }

    /// A node that cannot be compiled.
    pub(crate) fn node(program: &ExportedProgram, node: &ExportedNode, problem: impl Into<String>) -> Self {
        Self::Node(Box::new(NodeError {
            node: program.node_name(node),
            target: node.target.to_string(),
            line: node.line().cloned(),
            problem: problem.into(),
        }))
    }
}

impl std::error::Error for NodeError {}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("node `{}` ({}): {}", shown(&self.node), shown(&self.target), self.problem);
        shown_line(&text).fmt(f)?;
        write_source_line(f, self.line.as_ref())
    }
}

fn write_source_line(f: &mut fmt::Formatter<'_>, line: Option<&SourceFrame>) -> fmt::Result {
    line.map_or(Ok(()), |line| write!(f, "\n    at {}", shown_line(&line.to_string())))
}

fn format_help(help: &str) -> String {
    if help.is_empty() { String::new() } else { format!("; {help}") }
}

fn list_operators(operators: &[UnsupportedOperator]) -> String {
    struct Line<'a>(&'a UnsupportedOperator);
    impl fmt::Display for Line<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let UnsupportedOperator { target, count, node, line, hint } = self.0;
            let text = format!("  {} ({count} of them, first `{}`){hint}", shown(target), shown(node));
            shown_line(&text).fmt(f)?;
            write_source_line(f, line.as_ref())
        }
    }
    let what = match operators.len() {
        1 => "1 operator is".to_owned(),
        n => format!("{n} operators are"),
    };
    let lines: Vec<String> = operators.iter().map(|o| Line(o).to_string()).collect();
    format!("{what} not supported:\n{}", lines.join("\n"))
}
