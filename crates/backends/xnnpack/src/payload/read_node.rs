//! Reads the nodes of a payload, and verifies each against the values that are there.

use super::Node;
use super::check::check_node;
use super::fields::{self, Fields, MAX_STEP};
use super::graph::Graph;
use super::value::NO_VALUE;
use pteron_format::flatbuffer::Table;
use pteron_format::{Error, ErrorKind, Result};

impl Graph<'_> {
    /// Reads a node, and checks that it fits its values.
    pub(super) fn read_node(&mut self, t: &Table<'_, '_>) -> Result<Node> {
        let bounds = t.table(3, "output_min_max", |t| {
            let bounds: (f32, f32) = (t.get(0, "output_min", 0.0)?, t.get(1, "output_max", 0.0)?);
            if bounds.0 <= bounds.1 {
                return Ok(bounds);
            }
            let actual = format!("{} to {}", bounds.0, bounds.1);
            Err(t.error(ErrorKind::Invalid, 0, "output_min", "bounds, the lower one first", actual))
        })?;
        let debug_handle = t.get(2, "debug_handle", 0)?;
        let read = t.union(0, "xnode_union", |kind, t| {
            let node = self.read_node_table(kind, t)?;
            let bounds = bounds.unwrap_or(node.bounds);
            let node = Node { bounds, debug_handle, ..node };
            match check_node(&self.values, &node) {
                Some((expected, actual)) => Err(t.error_here(ErrorKind::Invalid, expected, actual)),
                None => Ok(node),
            }
        })?;
        self.nodes += 1;
        read.ok_or_else(|| t.error(ErrorKind::Invalid, 0, "xnode_union", "a node", "none"))
    }

    /// Reads the table of a node with a tag of the schema's union.
    fn read_node_table(&mut self, kind: u8, t: &Table<'_, '_>) -> Result<Node> {
        let mut table = NodeTable::new(self, t);
        let op = fields::read(kind, &mut table)?;
        let NodeTable { inputs, outputs, flags, .. } = table;
        match op {
            Some(op) => Ok(Node { flags, ..Node::new(op, inputs, outputs) }),
            None => {
                let last = fields::KINDS.iter().map(|(tag, _)| tag).max().unwrap_or(&0);
                Err(t.error_here(ErrorKind::Newer, format!("a kind of node up to {last}"), kind))
            }
        }
    }
}

/// The table of a node that is being read.
struct NodeTable<'g, 'l, 't, 'r, 'a> {
    graph: &'g mut Graph<'l>,
    t: &'t Table<'r, 'a>,
    /// The id of the field that is read next.
    next: usize,
    /// The id of the field that holds the length of the lists of sizes, once that has been read.
    length: Option<usize>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    flags: u32,
}

impl<'g, 'l, 't, 'r, 'a> NodeTable<'g, 'l, 't, 'r, 'a> {
    fn new(graph: &'g mut Graph<'l>, t: &'t Table<'r, 'a>) -> Self {
        Self { graph, t, next: 0, length: None, inputs: Vec::new(), outputs: Vec::new(), flags: 0 }
    }

    fn next(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }
}

impl Fields for NodeTable<'_, '_, '_, '_, '_> {
    type Error = Error;

    fn input(&mut self, name: &'static str) -> Result<()> {
        let id = self.next();
        self.inputs.push(self.graph.input(self.t, id, name)?);
        Ok(())
    }

    fn optional(&mut self, name: &'static str) -> Result<()> {
        let id = self.next();
        if self.t.get(id, name, 0u32)? != NO_VALUE {
            self.inputs.push(self.graph.input(self.t, id, name)?);
        }
        Ok(())
    }

    fn absent(&mut self, _: &'static str) -> Result<()> {
        self.next();
        Ok(())
    }

    fn output(&mut self, name: &'static str) -> Result<()> {
        let id = self.next();
        self.outputs.push(self.graph.output(self.t, id, name)?);
        Ok(())
    }

    fn flags(&mut self, name: &'static str, bits: &mut [(u32, &mut bool)]) -> Result<()> {
        let id = self.next();
        self.flags = self.t.get(id, name, 0)?;
        for (mask, is_set) in bits {
            **is_set = self.flags & *mask != 0;
        }
        Ok(())
    }

    fn number(&mut self, name: &'static str, range: fields::Range, place: &mut usize) -> Result<()> {
        let id = self.next();
        let number: u32 = self.t.get(id, name, 0)?;
        if range != fields::Range::Any && number > MAX_STEP {
            return Err(self.t.error(ErrorKind::Limit, id, name, format!("at most {MAX_STEP}"), number));
        }
        if range == fields::Range::Positive && number == 0 {
            return Err(self.t.error(ErrorKind::Invalid, id, name, "a number above 0", 0));
        }
        *place = number as usize;
        Ok(())
    }

    fn float(&mut self, name: &'static str, place: &mut f32) -> Result<()> {
        let id = self.next();
        *place = self.t.get(id, name, 0.0)?;
        Ok(())
    }

    /// Remembers the field, so that its number is compared with the length of each list that is read later.
    fn length(&mut self, _: &'static str, _: &mut Vec<usize>) -> Result<()> {
        self.length = Some(self.next());
        Ok(())
    }

    fn sizes(&mut self, name: &'static str, place: &mut Vec<usize>) -> Result<()> {
        let id = self.next();
        let sizes = self.t.scalars::<u32>(id, name)?;
        if let Some(length) = self.length {
            let number: u32 = self.t.get(length, "num_dims", 0)?;
            if number as usize != sizes.len() {
                let expected = format!("the {} of `{name}`", sizes.len());
                return Err(self.t.error(ErrorKind::Invalid, length, "num_dims", expected, number));
            }
        }
        *place = sizes.into_iter().map(|size| size as usize).collect();
        Ok(())
    }

    fn axis(&mut self, name: &'static str, place: &mut usize) -> Result<()> {
        let id = self.next();
        let first = self.graph.input(self.t, self.next, "input1_id")?;
        let rank = self.graph.values[first].dims.len() as i64;
        let number = i64::from(self.t.get(id, name, 0i32)?);
        let axis = if number < 0 { number + rank } else { number };
        let axis = usize::try_from(axis).ok().filter(|_| axis < rank);
        *place = axis.ok_or_else(|| {
            self.t.error(ErrorKind::Invalid, id, name, format!("a dimension of {rank}"), number)
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::write::write_node;
    use super::super::{Datatype, Op, Quantization, Role, Value};
    use super::*;
    use pteron_format::Limits;
    use pteron_format::flatbuffer::Reader;
    use std::convert::Infallible;

    /// Makes up the fields of a node: each number differs from the others, and every flag is set.
    #[derive(Default)]
    struct Example {
        numbers: usize,
        inputs: Vec<usize>,
        outputs: Vec<usize>,
    }

    /// The first value that a node of an example writes; it reads values before this one.
    const FIRST_WRITTEN: usize = 6;

    impl Fields for Example {
        type Error = Infallible;

        fn input(&mut self, _: &'static str) -> Result<(), Infallible> {
            self.inputs.push(self.inputs.len());
            Ok(())
        }

        fn optional(&mut self, name: &'static str) -> Result<(), Infallible> {
            self.input(name)
        }

        fn output(&mut self, _: &'static str) -> Result<(), Infallible> {
            self.outputs.push(FIRST_WRITTEN + self.outputs.len());
            Ok(())
        }

        fn flags(&mut self, _: &'static str, bits: &mut [(u32, &mut bool)]) -> Result<(), Infallible> {
            bits.iter_mut().for_each(|(_, is_set)| **is_set = true);
            Ok(())
        }

        fn number(&mut self, _: &'static str, _: fields::Range, place: &mut usize) -> Result<(), Infallible> {
            self.numbers += 1;
            *place = self.numbers;
            Ok(())
        }

        fn float(&mut self, _: &'static str, place: &mut f32) -> Result<(), Infallible> {
            *place = 0.25;
            Ok(())
        }

        fn sizes(&mut self, _: &'static str, place: &mut Vec<usize>) -> Result<(), Infallible> {
            self.numbers += 3;
            *place = vec![self.numbers - 2, self.numbers - 1, self.numbers];
            Ok(())
        }

        fn axis(&mut self, _: &'static str, place: &mut usize) -> Result<(), Infallible> {
            *place = 1;
            Ok(())
        }
    }

    fn example(tag: u8) -> (Op, Example) {
        let mut example = Example::default();
        let Ok(op) = fields::read(tag, &mut example);
        (op.unwrap(), example)
    }

    /// A graph of values without a node: inputs, then values that are not written yet.
    fn graph(limits: &Limits) -> Graph<'_> {
        let mut graph = Graph::new(limits);
        for id in 0..FIRST_WRITTEN + 2 {
            let id = id as u32;
            let is_input = (id as usize) < FIRST_WRITTEN;
            graph.add(Value {
                id,
                datatype: Datatype::Fp32,
                dims: vec![2; 3],
                role: if is_input { Role::Input(id) } else { Role::Internal },
                quantization: Quantization::None,
                quantized_by_row: false,
            });
        }
        graph
    }

    #[test]
    fn a_node_of_every_kind_survives_a_round_trip() {
        let limits = Limits::default();
        for &(tag, name) in fields::KINDS {
            let (op, Example { inputs, outputs, .. }) = example(tag);
            assert_eq!(op.kind(inputs.len()), (tag, name));
            let node = Node::new(op, inputs, outputs);
            let mut graph = graph(&limits);
            let mut w = pteron_format::flatbuffer::Writer::new();
            let table = write_node(&mut w, &node, &graph.values);
            let bytes = w.finish(table, *b"XN01").unwrap().bytes;
            let read = Reader::new(&bytes, 0, &limits)
                .root(|t| t.union(0, "xnode_union", |kind, t| graph.read_node_table(kind, t)));
            assert_eq!(read.unwrap(), Some(node), "{name}");
        }
    }

    #[test]
    fn every_tag_has_one_row() {
        let mut rows = fields::KINDS.to_vec();
        rows.sort_unstable();
        for (expected, (tag, name)) in (1..).zip(rows) {
            assert_eq!(tag, expected, "{name}: tag {expected} is missing, or tag {tag} has two rows");
        }
    }

    #[test]
    fn an_operator_belongs_to_one_elementwise_kind() {
        use super::super::{Binary, Unary};
        let targets = |aten: &'static super::super::Aten| aten.targets;
        let unary = Unary::ALL.iter().flat_map(|f| targets(f.aten()));
        let mut all: Vec<_> = unary.chain(Binary::ALL.iter().flat_map(|f| targets(f.aten()))).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(Unary::ALL.iter().all(|f| f.with_parameter(0.5).parameter().is_none_or(|p| p.value == 0.5)));
    }
}
