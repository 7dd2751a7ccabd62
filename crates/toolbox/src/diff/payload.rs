//! Compares the payloads of two delegates: nodes, tensors, and the bytes of constants.

use super::align::{Pair, align};
use super::dataflow::Pairing;
use super::{Class, Notes};
use crate::Result;
use crate::delegates;
use pteron_format::pte::BackendDelegate;
use pteron_runtime::{
    BackendRegistry, PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadValue, Program,
};
use std::collections::BTreeSet;
use std::ops::Range;

/// A payload that its backend has read.
struct ReadPayload<'a> {
    program: &'a Program,
    /// The payload's byte range in the file.
    range: Range<u64>,
    contents: PayloadContents,
}

/// Compares two payloads of the same backend whose bytes differ. Returns `false` and notes nothing if the backend cannot
/// read both.
pub(super) fn diff(
    place: &str,
    a: (&Program, &BackendDelegate),
    b: (&Program, &BackendDelegate),
    backends: &BackendRegistry,
    notes: &mut Notes,
) -> Result<bool> {
    let (Some(a), Some(b)) = (ReadPayload::read(a, backends)?, ReadPayload::read(b, backends)?) else {
        return Ok(false);
    };
    let before = notes.differences.len();
    notes.compare(Class::Form, || format!("{place}, format"), &a.contents.format, &b.contents.format);
    let interface = |side: &ReadPayload<'_>| {
        let values = side.contents.values.iter();
        let typed = values.filter_map(|value| match value.role {
            PayloadRole::Input(i) => Some((i, format!("input {i} {}", value.type_text()))),
            PayloadRole::Output(i) => Some((i, format!("output {i} {}", value.type_text()))),
            _ => None,
        });
        let mut typed: Vec<_> = typed.collect();
        typed.sort();
        typed.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ")
    };
    notes.compare(Class::Meaning, || format!("{place}, arguments"), &interface(&a), &interface(&b));

    let kinds = |side: &ReadPayload<'_>| {
        let sketch = |node| side.text(node, &|value| format!("{}{:?}", value.dtype, value.sizes));
        side.contents.nodes.iter().map(sketch).collect::<Vec<_>>()
    };
    let text = |side: &ReadPayload<'_>| {
        side.contents.nodes.iter().map(|node| side.text(node, &PayloadValue::type_text)).collect::<Vec<_>>()
    };
    let (nodes_a, nodes_b) = (text(&a), text(&b));
    let (mut wiring, mut compared) = (Pairing::default(), BTreeSet::new());
    for pair in align(&kinds(&a), &kinds(&b)) {
        match pair {
            Pair::OnlyA(i) => {
                notes.note(Class::Meaning, format!("{place}, node {i}"), Some(nodes_a[i].clone()), None);
            }
            Pair::OnlyB(j) => {
                notes.note(Class::Meaning, format!("{place}, node {j}"), None, Some(nodes_b[j].clone()));
            }
            Pair::Both(i, j) => {
                notes.compare(Class::Meaning, || format!("{place}, node {i}"), &nodes_a[i], &nodes_b[j]);
                let (node_a, node_b) = (&a.contents.nodes[i], &b.contents.nodes[j]);
                let used = |node: &PayloadNode| -> Vec<usize> {
                    node.inputs.iter().chain(&node.outputs).copied().collect()
                };
                let mut wired = true;
                for (x, y) in used(node_a).into_iter().zip(used(node_b)) {
                    wired &= wiring.pair(x, y) && a.has_same_role(x, &b, y);
                    compared.insert((x, y));
                }
                if !wired {
                    let (x, y) = (a.contents.node_text(node_a), b.contents.node_text(node_b));
                    let place = format!("{place}, node {i} works on other values");
                    notes.note(Class::Meaning, place, Some(x), Some(y));
                }
            }
        }
    }
    for (x, y) in compared {
        compare_constants(place, (&a, x), (&b, y), notes)?;
    }
    if notes.differences.len() == before {
        let len = |range: &Range<u64>| range.end - range.start;
        let (x, y) = (len(&a.range), len(&b.range));
        let other = format!("{y} other bytes, which neither nodes nor tensors show");
        notes.note(Class::Meaning, place.to_owned(), Some(format!("{x} bytes")), Some(other));
    }
    Ok(true)
}

impl<'a> ReadPayload<'a> {
    fn read(
        (program, delegate): (&'a Program, &BackendDelegate),
        backends: &BackendRegistry,
    ) -> Result<Option<Self>> {
        let Some(backend) = backends.get(&delegate.id) else { return Ok(None) };
        let contents = backend.contents(&delegates::read_payload(program, delegate)?);
        let range = program.tables().delegate_data(delegate);
        Ok(contents.and_then(|read| read.ok()).map(|contents| Self { program, range, contents }))
    }

    fn value(&self, index: usize) -> Option<&PayloadValue> {
        self.contents.values.get(index)
    }

    /// A node as text without value names: kind, types of inputs and outputs, attributes.
    fn text(&self, node: &PayloadNode, type_text: &dyn Fn(&PayloadValue) -> String) -> String {
        let types = |list: &[usize]| {
            list.iter().filter_map(|&v| self.value(v)).map(type_text).collect::<Vec<_>>().join(", ")
        };
        let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
        let attributes = if node.attributes.is_empty() { "" } else { ", " };
        format!("{}({inputs}) -> {outputs}{attributes}{}", node.kind, node.attributes)
    }

    /// Whether two values are both constants, both internal, or the same input or output of the payload.
    fn has_same_role(&self, x: usize, other: &ReadPayload<'_>, y: usize) -> bool {
        match (self.value(x).map(|v| &v.role), other.value(y).map(|v| &v.role)) {
            (Some(PayloadRole::Constant(_)), Some(PayloadRole::Constant(_))) => true,
            (a, b) => a == b,
        }
    }

    /// The file range of constant bytes; `None` if they are not in the file.
    fn file_range(&self, bytes: &PayloadBytes) -> Option<Range<u64>> {
        match bytes {
            PayloadBytes::Payload(part) => {
                let start = self.range.start.checked_add(part.start)?;
                Some(start..self.range.start.checked_add(part.end)?)
            }
            PayloadBytes::Named(key, _) => self.program.tables().named_data(key),
        }
    }
}

/// Compares the bytes and the scales of two constants.
fn compare_constants(
    place: &str,
    a: (&ReadPayload<'_>, usize),
    b: (&ReadPayload<'_>, usize),
    notes: &mut Notes,
) -> Result<()> {
    let (Some(x), Some(y)) = (a.0.value(a.1), b.0.value(b.1)) else { return Ok(()) };
    let data = |value: &PayloadValue| match &value.role {
        PayloadRole::Constant(bytes) => Some(bytes.clone()),
        _ => None,
    };
    let pairs = [("", data(x), data(y)), (", scales", x.scales.clone(), y.scales.clone())];
    for (what, bytes_a, bytes_b) in pairs {
        let (Some(bytes_a), Some(bytes_b)) = (bytes_a, bytes_b) else { continue };
        let names = if x.name == y.name { x.name.clone() } else { format!("{} and {}", x.name, y.name) };
        let of = || format!("{place}, {names} {}{what}", x.type_text());
        match (a.0.file_range(&bytes_a), b.0.file_range(&bytes_b)) {
            (Some(range_a), Some(range_b)) => {
                notes.compare_bytes(of, (a.0.program.loader(), range_a), (b.0.program.loader(), range_b))?;
            }
            _ => notes.compare(Class::Meaning, of, &bytes_a.to_string(), &bytes_b.to_string()),
        }
    }
    Ok(())
}
