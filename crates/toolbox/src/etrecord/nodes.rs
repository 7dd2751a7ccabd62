//! The nodes of the exported graph from which the instructions of a program were made.

use super::{open, read_entry};
use crate::show::count;
use crate::{Error, Result, one_line};
use pteron_format::pte::Instruction;
use pteron_runtime::{DataLoader, Limits, LoaderReader, Program};
use pteron_trace::Place;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use zip::ZipArchive;

const EDGE_PROGRAM: &str = "edge_dialect_exported_program";
const DEBUG_HANDLES: &str = "debug_handle_map";
const DELEGATES: &str = "delegate_map";

/// The maximum number of nodes of an instruction that are kept.
const MAX_NODES: usize = 256;

/// What an ETRecord tells about the nodes of each method.
#[derive(Debug, Default)]
pub struct Etrecord {
    name: String,
    methods: BTreeMap<String, Method>,
}

#[derive(Debug, Default)]
struct Method {
    /// The debug handles of each instruction, by its index.
    instructions: BTreeMap<u32, Handles>,
    /// For each instruction that calls a delegate, the debug handles of the ids that the delegate records.
    delegates: HashMap<u32, HashMap<String, Handles>>,
    /// The nodes of the edge dialect program, by debug handle.
    nodes: HashMap<u64, Vec<SourceNode>>,
}

impl Method {
    /// The nodes with these debug handles, at most [`MAX_NODES`].
    fn nodes_of(&self, handles: &[u64]) -> Vec<&SourceNode> {
        handles.iter().filter_map(|handle| self.nodes.get(handle)).flatten().take(MAX_NODES).collect()
    }
}

/// A node of the exported graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceNode {
    /// The node's name, such as `aten_addmm_default`.
    pub name: String,
    /// The module that it belongs to, such as `encoder.fc1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The line of the model's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// The operator that the node calls, such as `addmm`.
    #[serde(skip)]
    operator: String,
}

impl fmt::Display for SourceNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.module.as_ref().map_or(Ok(()), |module| write!(f, " of {module}"))
    }
}

/// One debug handle, or several.
#[derive(Debug, Clone, Default)]
struct Handles(Vec<u64>);

impl<'de> Deserialize<'de> for Handles {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum OneOrMany {
            One(u64),
            Many(Vec<Option<u64>>),
            Other(serde::de::IgnoredAny),
        }
        Ok(Self(match OneOrMany::deserialize(from)? {
            OneOrMany::One(handle) => vec![handle],
            OneOrMany::Many(handles) => handles.into_iter().flatten().collect(),
            OneOrMany::Other(_) => Vec::new(),
        }))
    }
}

#[derive(Deserialize)]
struct DelegateEntry {
    #[serde(default)]
    delegate_map: HashMap<String, Handles>,
}

/// The parts of PyTorch's serialized program that name nodes.
#[derive(Deserialize)]
struct SerializedProgram {
    graph_module: SerializedModule,
}

#[derive(Deserialize)]
struct SerializedModule {
    graph: SerializedGraph,
}

#[derive(Deserialize)]
struct SerializedGraph {
    nodes: Vec<SerializedNode>,
}

#[derive(Deserialize)]
struct SerializedNode {
    #[serde(default)]
    name: Option<String>,
    target: String,
    #[serde(default)]
    outputs: Vec<serde_json::Value>,
    #[serde(default)]
    metadata: HashMap<String, String>,
}

impl Etrecord {
    /// Reads the maps and the names of nodes.
    ///
    /// # Errors
    /// If the file cannot be read, is no ETRecord, or lacks what an exporter of a whole program records.
    pub fn read(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<Self> {
        let wrong = |problem: &str| Error::bad_file(loader.name(), problem.to_owned());
        let zip = open(loader)?;
        let mut zip = zip.ok_or_else(|| wrong("it is no ETRecord: the entry `ETRECORD_V0` is missing"))?;
        let mut entries = Entries { zip: &mut zip, file: loader.name(), limits };
        let handles: Option<BTreeMap<String, BTreeMap<u32, Handles>>> = entries.json(DEBUG_HANDLES)?;
        let handles =
            handles.ok_or_else(|| wrong("it has no `debug_handle_map`, so it knows no instructions"))?;
        let mut delegates: HashMap<String, HashMap<u32, DelegateEntry>> =
            entries.json(DELEGATES)?.unwrap_or_default();
        let mut methods = BTreeMap::new();
        for (name, instructions) in handles {
            // Until release 1.1, the program of the only method had no name.
            let program: Option<SerializedProgram> = match entries.json(&format!("{EDGE_PROGRAM}/{name}"))? {
                None => entries.json(EDGE_PROGRAM)?,
                program => program,
            };
            let program = program.ok_or_else(|| {
                let problem =
                    format!("it has no edge dialect program of the method `{name}`, so it names no nodes");
                Error::bad_file(loader.name(), problem)
            })?;
            let delegates = delegates.remove(&name).unwrap_or_default();
            let delegates = delegates.into_iter().map(|(index, entry)| (index, entry.delegate_map)).collect();
            let nodes = nodes_by_handle(program);
            methods.insert(name, Method { instructions, delegates, nodes });
        }
        Ok(Self { name: loader.name().to_owned(), methods })
    }

    /// Fails if this is the record of another program: it does not know the method, or the instructions are others.
    pub fn check(&self, program: &Program, method: &str) -> Result<()> {
        let wrong = |problem: String| Error::bad_file(&self.name, problem);
        let Some(known) = self.methods.get(method) else {
            let all: Vec<&str> = self.methods.keys().map(String::as_str).take(16).collect();
            return Err(wrong(format!("it has no method `{method}`; it has {}", all.join(", "))));
        };
        let plan = program.method_meta(method)?.plan();
        let chain = plan.chains.first().map_or(&[][..], |chain| &chain.instructions);
        if let Some(&last) =
            known.instructions.keys().next_back().filter(|&&last| last as usize >= chain.len())
        {
            return Err(wrong(format!(
                "it is of another program: it has an instruction {last} of `{method}`, the program has {}",
                count(chain.len(), "instruction")
            )));
        }
        let (mut same, mut other, mut first) = (0usize, 0usize, None);
        for (&index, handles) in &known.instructions {
            let Some(instruction) = chain.get(index as usize) else { continue };
            let Instruction::KernelCall { op_index, .. } = instruction else { continue };
            let Some(operator) = plan.operators.get(*op_index as usize) else { continue };
            let nodes = known.nodes_of(&handles.0);
            if nodes.is_empty() {
                continue;
            }
            let called = operator.full_name();
            match nodes.iter().any(|node| operator_kind(&node.operator) == operator_kind(&called)) {
                true => same += 1,
                false => {
                    other += 1;
                    let text = (index, called, nodes[0].name.clone());
                    first.get_or_insert(text);
                }
            }
        }
        match first {
            // Passes after the edge dialect replace some operators.
            Some((index, operator, node)) if other > same => Err(wrong(format!(
                "it is of another program: instruction {index} of `{method}` calls {operator}, the record's node for it is \
                 `{node}`"
            ))),
            _ => Ok(()),
        }
    }

    /// The nodes from which the value at a place was computed; empty if they are not known. `what` is the operator or
    /// backend that the instruction calls; `handle` is the debug handle of the delegate's node at the place, if it has one.
    pub fn nodes(&self, method: &str, place: Place, what: &str, handle: Option<u32>) -> Vec<SourceNode> {
        let Some(method) = self.methods.get(method) else { return Vec::new() };
        let (Some(0), Some(index)) = (place.chain, place.instruction) else { return Vec::new() };
        let own;
        let handles = match place.node {
            None => method.instructions.get(&index).map(|handles| &handles.0[..]),
            Some(node) => {
                let ids = method.delegates.get(&index);
                let recorded = ids.and_then(|ids| {
                    let of = |id: u32| ids.get(&id.to_string());
                    handle.and_then(of).or_else(|| of(node))
                });
                own = handle.map(|handle| [u64::from(handle)]);
                recorded.map(|handles| &handles.0[..]).or(own.as_ref().map(|own| &own[..]))
            }
        };
        let nodes = method.nodes_of(handles.unwrap_or_default());
        // All nodes that one operator of the model was decomposed into have its handle.
        let is_same = |node: &&&SourceNode| operator_kind(&node.operator) == operator_kind(what);
        match nodes.iter().any(|node| is_same(&node)) {
            true => nodes.iter().filter(is_same).map(|&node| node.clone()).collect(),
            false => nodes.into_iter().cloned().collect(),
        }
    }
}

/// The entries of an archive.
struct Entries<'a> {
    zip: &'a mut ZipArchive<LoaderReader>,
    file: &'a str,
    limits: &'a Limits,
}

impl Entries<'_> {
    /// Parses an entry; `None` if there is none of this name.
    fn json<T: for<'de> Deserialize<'de>>(&mut self, name: &str) -> Result<Option<T>> {
        let wrong = |problem: &dyn fmt::Display| Error::bad_file(self.file, format!("`{name}`: {problem}"));
        let Some(index) = self.zip.index_for_name(name) else { return Ok(None) };
        let mut entry = self.zip.by_index(index).map_err(|e| wrong(&one_line(&e)))?;
        let bytes = read_entry(&mut entry, self.limits).map_err(|e| wrong(&e))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|e| wrong(&e))
    }
}

fn nodes_by_handle(program: SerializedProgram) -> HashMap<u64, Vec<SourceNode>> {
    let mut nodes: HashMap<u64, Vec<SourceNode>> = HashMap::new();
    for node in program.graph_module.graph.nodes {
        let SerializedNode { name, target, outputs, metadata } = node;
        let Some(handle) = metadata.get("debug_handle").and_then(|handle| handle.parse().ok()) else {
            continue;
        };
        let output = || Some(outputs.first()?.get("as_tensor")?.get("name")?.as_str()?.to_owned());
        let Some(name) = name.or_else(output) else { continue };
        let module = metadata.get("nn_module_stack").and_then(|stack| innermost_module(stack));
        let line = metadata.get("stack_trace").and_then(|trace| innermost_line(trace));
        nodes.entry(handle).or_default().push(SourceNode { name, module, line, operator: target });
    }
    nodes
}

/// The path of the innermost module of a stack, which is written `KEY,PATH,TYPE;KEY,PATH,TYPE`; `None` for the model itself.
fn innermost_module(stack: &str) -> Option<String> {
    let path = stack.rsplit(';').next()?.split(',').nth(1)?;
    Some(path.to_owned()).filter(|path| !path.is_empty())
}

/// The source line of a stack trace's innermost frame that is not of PyTorch itself.
fn innermost_line(trace: &str) -> Option<String> {
    let line = |frame: &str| {
        let (file, rest) = frame.trim().strip_prefix("File \"")?.split_once("\", line ")?;
        let is_library = file.replace('\\', "/").contains("/torch/");
        let number = rest.split(',').next()?;
        (!is_library).then(|| format!("{}:{number}", file.rsplit(['/', '\\']).next().unwrap_or(file)))
    };
    trace.lines().rev().find_map(line)
}

/// The kind of an operator: `permute` for `aten::permute_copy.out` and `torch.ops.aten.permute_copy.default`.
fn operator_kind(name: &str) -> &str {
    let mut parts = name.rsplit(['.', ':']).filter(|part| !part.is_empty());
    let (last, before) = (parts.next().unwrap_or(name), parts.next());
    let kind = if name.contains('.') { before.unwrap_or(last) } else { last };
    let kind = kind.trim_start_matches('_');
    kind.strip_suffix("_copy").unwrap_or(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_both_notations_have_the_same_kind() {
        for (name, kind) in [
            ("aten::permute_copy.out", "permute"),
            ("torch.ops.aten.permute_copy.default", "permute"),
            ("executorch.exir.dialects.edge.ops.aten.addmm.default", "addmm"),
            ("aten::_softmax.out", "softmax"),
            ("executorch_prim::et_view", "et_view"),
        ] {
            assert_eq!(operator_kind(name), kind, "{name}");
        }
    }

    #[test]
    fn modules_and_lines_are_the_innermost() {
        let stack = "L__self__,,net.Net;L__self___body_0,body.0,torch.nn.modules.linear.Linear";
        assert_eq!(innermost_module(stack).as_deref(), Some("body.0"));
        assert_eq!(innermost_module("L__self__,,net.Net"), None);
        let trace = "File \"/a/net.py\", line 3, in forward\n    return f(x)\n  File \"/a/f.py\", line 12, in f\n    x + 1\n  \
            File \"/lib/torch/nn/modules/linear.py\", line 134, in forward\n    return F.linear(x)";
        assert_eq!(innermost_line(trace).as_deref(), Some("f.py:12"));
        assert_eq!(innermost_line("nothing"), None);
    }

    #[test]
    fn handles_are_one_or_many() {
        let map: HashMap<u32, Handles> =
            serde_json::from_str(r#"{"0": 3, "1": [4, null, 5], "2": null}"#).unwrap();
        assert_eq!((&map[&0].0[..], &map[&1].0[..], &map[&2].0[..]), (&[3][..], &[4, 5][..], &[][..]));
    }
}
