//! What the delegates of a method compute: the nodes of the source program that each replaced, and the nodes behind its
//! debug handles.
//!
//! A program that is compiled with source frames keeps it as named data, in this text form:
//!
//! ```text
//! delegates 1
//! delegate XnnpackBackend
//! node<TAB>conv2d<TAB>aten.convolution.default<TAB>x weight<TAB>model.py:12, in forward<TAB>layers.0
//! handle<TAB>3<TAB>conv2d relu
//! named<TAB>conv step<TAB>conv2d
//! ```
//!
//! A `node` line has the names of the node's results, its operator, the names of the values that it reads, its source line
//! and its module path; `handle` and `named` lines have a debug handle, a number or a name, and the nodes behind it. In all
//! fields, backslashes, tabs, line ends, and spaces within names are escaped.

use super::{DebugHandle, LoweredModule};
use crate::{ExportedNode, ExportedProgram};
use std::fmt;
use std::str::FromStr;

/// The first line of the text form.
const HEADER: &str = "delegates 1";

/// The source nodes of each delegate of a method, by delegate index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelegateSources {
    /// The delegates.
    pub delegates: Vec<DelegateSource>,
}

/// The source nodes that a delegate replaced, and its debug handles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelegateSource {
    /// The id of the backend.
    pub backend_id: String,
    /// The nodes that the delegate replaced, in execution order.
    pub nodes: Vec<SourceNode>,
    /// The delegate's debug handles, each with the names of the source nodes behind it.
    pub handles: Vec<(DebugHandle, Vec<String>)>,
}

/// A node of the source program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceNode {
    /// The names of the node's results. The first is also the name of the node.
    pub results: Vec<String>,
    /// The node's operator.
    pub target: String,
    /// The names of the values that the node reads.
    pub inputs: Vec<String>,
    /// The node's source line, such as `model.py:12, in forward`; empty if it is unknown.
    pub line: String,
    /// The path of the module that the node belongs to, such as `layers.0`.
    pub module: String,
}

impl SourceNode {
    fn from_node(program: &ExportedProgram, node: &ExportedNode) -> Self {
        let name = |var| program.var(var).name.to_string();
        let line = node.line().map(|l| format!("{}:{}, in {}", l.file, l.line, l.function));
        Self {
            results: node.outputs.iter().map(|&var| name(var)).collect(),
            target: node.target.to_string(),
            inputs: node.operands().map(name).collect(),
            line: line.unwrap_or_default(),
            module: node.source.module.clone(),
        }
    }

    /// The node's name: that of its first result.
    pub fn name(&self) -> &str {
        self.results.first().map_or("", String::as_str)
    }

    /// The node with its line and module, as far as they are known: `conv2d (model.py:12, in forward; layers.0)`.
    pub fn describe(&self) -> String {
        let known: Vec<&str> = [&*self.line, &*self.module].into_iter().filter(|t| !t.is_empty()).collect();
        if known.is_empty() {
            self.name().to_owned()
        } else {
            format!("{} ({})", self.name(), known.join("; "))
        }
    }
}

impl DelegateSource {
    fn from_module(module: &LoweredModule) -> Self {
        let mut nodes = Vec::new();
        module
            .original
            .graph
            .for_each_node(&mut |node| nodes.push(SourceNode::from_node(&module.original, node)));
        let handles = module.result.debug_handle_map.iter();
        Self {
            backend_id: module.spec.backend_id.clone(),
            nodes,
            handles: handles.map(|(handle, nodes)| (handle.clone(), nodes.clone())).collect(),
        }
    }

    /// The node with a name.
    pub fn node(&self, name: &str) -> Option<&SourceNode> {
        self.nodes.iter().find(|node| node.name() == name)
    }

    /// The names of the nodes behind a debug handle, with their lines and modules; `None` if the handle is unknown.
    pub fn describe_handle(&self, handle: &DebugHandle) -> Option<String> {
        let (_, names) = self.handles.iter().find(|(known, _)| known == handle)?;
        let text = |name: &String| self.node(name).map_or_else(|| name.clone(), SourceNode::describe);
        Some(names.iter().map(text).collect::<Vec<_>>().join(", "))
    }
}

impl DelegateSources {
    /// The sources of the delegates of a lowered program; `None` if it has no delegates.
    pub fn from_program(program: &ExportedProgram) -> Option<Self> {
        let delegates: Vec<_> =
            program.lowered.iter().map(|module| DelegateSource::from_module(module)).collect();
        (!delegates.is_empty()).then_some(Self { delegates })
    }
}

impl fmt::Display for DelegateSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for delegate in &self.delegates {
            writeln!(f, "delegate {}", escape(&delegate.backend_id))?;
            for node in &delegate.nodes {
                let (results, inputs) = (join_names(&node.results), join_names(&node.inputs));
                let (target, line, module) = (escape(&node.target), escape(&node.line), escape(&node.module));
                writeln!(f, "node\t{results}\t{target}\t{inputs}\t{line}\t{module}")?;
            }
            for (handle, nodes) in &delegate.handles {
                match handle {
                    DebugHandle::Int(handle) => writeln!(f, "handle\t{handle}\t{}", join_names(nodes))?,
                    DebugHandle::Str(handle) => {
                        writeln!(f, "named\t{}\t{}", escape(handle), join_names(nodes))?
                    }
                }
            }
        }
        Ok(())
    }
}

impl FromStr for DelegateSources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return Err(format!("it does not begin with `{HEADER}`"));
        }
        let mut all = Self::default();
        for (number, line) in lines.enumerate() {
            let fail = |problem: &str| format!("line {}: {problem}", number + 2);
            if let Some(id) = line.strip_prefix("delegate ") {
                all.delegates.push(DelegateSource { backend_id: unescape(id), ..DelegateSource::default() });
                continue;
            }
            let delegate = all.delegates.last_mut().ok_or_else(|| fail("no `delegate` line is before it"))?;
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["node", results, target, inputs, line, module] => delegate.nodes.push(SourceNode {
                    results: split_names(results),
                    target: unescape(target),
                    inputs: split_names(inputs),
                    line: unescape(line),
                    module: unescape(module),
                }),
                ["handle", handle, nodes] => {
                    let handle = handle.parse().map_err(|_| fail("the handle is no number"))?;
                    delegate.handles.push((DebugHandle::Int(handle), split_names(nodes)));
                }
                ["named", handle, nodes] => {
                    delegate.handles.push((DebugHandle::Str(unescape(handle)), split_names(nodes)));
                }
                _ => return Err(fail("it is no `delegate`, `node`, `handle` or `named` line")),
            }
        }
        Ok(all)
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c => out.push(c),
        }
    }
    out
}

fn unescape(text: &str) -> String {
    let (mut out, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('t')) => out.push('\t'),
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some('r')) => out.push('\r'),
            ('\\', Some('s')) => out.push(' '),
            ('\\', Some(other)) => out.push(other),
            (c, _) => out.push(c),
        }
    }
    out
}

/// Names, separated by spaces.
fn join_names(names: &[String]) -> String {
    names.iter().map(|name| escape(name).replace(' ', "\\s")).collect::<Vec<_>>().join(" ")
}

fn split_names(text: &str) -> Vec<String> {
    text.split(' ').filter(|name| !name.is_empty()).map(unescape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_read_back() {
        let node = SourceNode {
            results: vec!["a b".into(), "c\\s".into()],
            target: "aten.add\tTensor".into(),
            inputs: vec!["x".into(), "y\n".into()],
            line: "C:\\model.py:3, in forward".into(),
            module: String::new(),
        };
        let handles = vec![
            (DebugHandle::Int(7), vec!["a b".to_owned()]),
            (DebugHandle::Str("step\t1".into()), Vec::new()),
        ];
        let delegate = DelegateSource { backend_id: "My\nBackend".into(), nodes: vec![node], handles };
        let sources = DelegateSources { delegates: vec![delegate, DelegateSource::default()] };
        assert_eq!(sources.to_string().parse(), Ok(sources.clone()));
        assert_eq!(
            sources.delegates[0].describe_handle(&DebugHandle::Int(7)).as_deref(),
            Some("a b (C:\\model.py:3, in forward)")
        );
        assert_eq!(sources.delegates[0].describe_handle(&DebugHandle::Int(8)), None);
        for wrong in ["", "delegates 2\n", "delegates 1\nnode\ta\n", "delegates 1\ndelegate X\nhandle\tq\t\n"]
        {
            assert!(wrong.parse::<DelegateSources>().is_err(), "{wrong:?}");
        }
    }
}
