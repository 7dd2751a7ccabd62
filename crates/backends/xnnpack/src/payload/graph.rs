//! The part of a payload's graph that has been read so far, against which the next node is verified.

use super::Constant;
use super::value::{Role, Value};
use pteron_format::flatbuffer::Table;
use pteron_format::{ErrorKind, Limits, Result};
use std::collections::HashMap;

/// What writes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Nothing has defined the value yet.
    Nobody,
    /// No node: the value is an input, which the caller writes, or a constant.
    Caller,
    /// The node with this index.
    Node(usize),
}

/// The part of the graph that has been read so far.
pub(super) struct Graph<'l> {
    pub(super) limits: &'l Limits,
    pub(super) num_externs: u32,
    pub(super) constants: Vec<Constant>,
    pub(super) values: Vec<Value>,
    /// Value indices by id.
    pub(super) by_id: HashMap<u32, usize>,
    /// Value indices by external id.
    pub(super) by_external: HashMap<u32, usize>,
    /// What writes each value, by its index.
    writers: Vec<Writer>,
    /// The number of nodes read so far.
    pub(super) nodes: usize,
}

impl<'l> Graph<'l> {
    pub(super) fn new(limits: &'l Limits) -> Self {
        Self {
            limits,
            num_externs: 0,
            constants: Vec::new(),
            values: Vec::new(),
            by_id: HashMap::new(),
            by_external: HashMap::new(),
            writers: Vec::new(),
            nodes: 0,
        }
    }

    /// Adds a value, whose ids no other value may have.
    pub(super) fn add(&mut self, value: Value) {
        let index = self.values.len();
        self.by_id.insert(value.id, index);
        if let Role::Input(id) | Role::Output(id) = value.role {
            self.by_external.insert(id, index);
        }
        let written = matches!(value.role, Role::Input(_) | Role::Constant(_));
        self.writers.push(if written { Writer::Caller } else { Writer::Nobody });
        self.values.push(value);
    }

    /// Reads the id of a value that a node reads; returns the value's index. Fails if no earlier node has written the
    /// value.
    pub(super) fn input(&self, t: &Table<'_, '_>, field: usize, name: &'static str) -> Result<usize> {
        let id: u32 = t.get(field, name, 0)?;
        let index = self.find(t, field, name, id)?;
        match self.writers[index] {
            Writer::Nobody => {
                let expected = "a value that is an input, a constant, or written by a node before";
                let actual = format!("value {id} (xvalues[{index}]), which no node before has written");
                Err(t.error(ErrorKind::Invalid, field, name, expected, actual))
            }
            _ => Ok(index),
        }
    }

    /// Reads the id of a value that a node writes. Fails if the value is already defined.
    pub(super) fn output(&mut self, t: &Table<'_, '_>, field: usize, name: &'static str) -> Result<usize> {
        let id: u32 = t.get(field, name, 0)?;
        let index = self.find(t, field, name, id)?;
        let by = match self.writers[index] {
            Writer::Nobody => {
                self.writers[index] = Writer::Node(self.nodes);
                return Ok(index);
            }
            Writer::Caller => "an input or a constant".to_owned(),
            Writer::Node(node) => format!("which xnodes[{node}] writes"),
        };
        let actual = format!("value {id} (xvalues[{index}]), {by}");
        Err(t.error(ErrorKind::Invalid, field, name, "a value that nothing else writes", actual))
    }

    fn find(&self, t: &Table<'_, '_>, field: usize, name: &'static str, id: u32) -> Result<usize> {
        self.by_id.get(&id).copied().ok_or_else(|| {
            let expected = format!("the id of one of {} values", self.values.len());
            t.error(ErrorKind::Invalid, field, name, expected, id)
        })
    }

    /// Checks that every output is written.
    pub(super) fn check_written(&self, t: &Table<'_, '_>) -> Result<()> {
        let missing =
            |i: &usize| matches!(self.values[*i].role, Role::Output(_)) && self.writers[*i] == Writer::Nobody;
        match (0..self.values.len()).find(missing) {
            Some(index) => {
                let actual = format!(
                    "the output value {} (xvalues[{index}]), which none writes",
                    self.values[index].id
                );
                Err(t.error(ErrorKind::Invalid, 1, "xnodes", "nodes that write every output", actual))
            }
            None => Ok(()),
        }
    }

    /// The inputs and the outputs, each in the order of their external ids.
    pub(super) fn externals(&self) -> (Vec<usize>, Vec<usize>) {
        let mut ids: Vec<(u32, usize)> = self.by_external.iter().map(|(id, index)| (*id, *index)).collect();
        ids.sort_unstable();
        let is_input = |index: &usize| matches!(self.values[*index].role, Role::Input(_));
        ids.into_iter().map(|(_, index)| index).partition(is_input)
    }
}
