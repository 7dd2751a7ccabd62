//! Decodes the flatbuffer. It is verified while it is decoded, so that errors give byte offsets.

use super::check::{check_constant, check_node};
use super::fields::{self, Fields, MAX_STEP};
use super::value::{Constant, Datatype, Quantization, Role, Scales, Value};
use super::{Header, MAX_EXTERNALS, MAX_RANK, Node, Payload};
use pteron_format::flatbuffer::{Reader, Table};
use pteron_format::{Error, ErrorKind, Limits, Result};
use std::collections::HashMap;
use std::ops::Range;

/// The id that means "no value".
pub(super) const NO_VALUE: u32 = u32::MAX;
/// The offset that marks a constant as named data.
pub(super) const NAMED: u64 = u64::MAX;

pub(super) fn payload(bytes: &[u8], limits: &Limits) -> Result<Payload> {
    let header = Header::parse(bytes)?;
    let range = header.as_ref().map_or(0..bytes.len() as u64, |h| h.flatbuffer.clone());
    let flatbuffer = &bytes[range.start as usize..range.end as usize];
    let identifier = match flatbuffer.get(4..8) {
        Some(found @ (b"XN00" | b"XN01")) => [found[0], found[1], found[2], found[3]],
        found => {
            let found = found.unwrap_or_default().escape_ascii().to_string();
            let expected = "`XN00` or `XN01` of an XNNPACK payload";
            return Err(Error::new(
                ErrorKind::NotThisFormat,
                "identifier",
                expected,
                format_args!("`{found}`"),
            )
            .at(range.start + 4)
            .hint("the payload is of another backend, or of a version that is not known here"));
        }
    };
    let reader = Reader::new(flatbuffer, range.start, limits);
    reader.root(|t| {
        let mut graph = Graph { limits, constants: constants(t, header.as_ref())?, ..Graph::new(limits) };
        graph.num_externs = t.get(3, "num_externs", 0)?;
        if graph.num_externs > MAX_EXTERNALS {
            let expected = format!("at most {MAX_EXTERNALS}");
            return Err(t.error(ErrorKind::Limit, 3, "num_externs", expected, graph.num_externs));
        }
        t.tables(2, "xvalues", |t| graph.value(t))?;
        let nodes = t.tables(1, "xnodes", |t| graph.node(t))?;
        graph.check_written(t)?;
        let (inputs, outputs) = graph.externals();
        Ok(Payload {
            identifier,
            header: header.clone(),
            version: t.string(0, "version")?.unwrap_or_default(),
            values: graph.values,
            nodes,
            constants: graph.constants,
            inputs,
            outputs,
        })
    })
}

/// Reads the constants: from `constant_data` if there is a header, else from the flatbuffer's own buffers.
fn constants(t: &Table<'_, '_>, header: Option<&Header>) -> Result<Vec<Constant>> {
    let Some(header) = header else {
        return t
            .tables(6, "constant_buffer", |t| Ok(Constant::Payload(t.bulk(0, "storage")?.unwrap_or(0..0))));
    };
    t.tables(8, "constant_data", |t| {
        let (offset, size): (u64, u64) = (t.get(0, "offset", 0)?, t.get(1, "size", 0)?);
        if let Some(key) = t.string(2, "named_key")?.filter(|key| offset == NAMED || !key.is_empty()) {
            return Ok(Constant::Named { key, size });
        }
        let range = region(&header.constants, offset, size);
        range.map(Constant::Payload).ok_or_else(|| {
            let len = header.constants.end - header.constants.start;
            let expected = format!("a part of the {len} bytes of constants");
            t.error(ErrorKind::Invalid, 0, "offset", expected, format_args!("{size} bytes from {offset} on"))
        })
    })
}

fn region(constants: &Range<u64>, offset: u64, size: u64) -> Option<Range<u64>> {
    let start = constants.start.checked_add(offset)?;
    let end = start.checked_add(size).filter(|end| *end <= constants.end)?;
    Some(start..end)
}

/// What defines a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Nothing has defined it yet.
    Nobody,
    /// The caller (an input), or it is a constant.
    Caller,
    /// The node with this index.
    Node(usize),
}

/// The part of the graph that has been read so far.
struct Graph<'l> {
    limits: &'l Limits,
    num_externs: u32,
    constants: Vec<Constant>,
    values: Vec<Value>,
    /// Value indices by id.
    by_id: HashMap<u32, usize>,
    /// Value indices by external id.
    by_external: HashMap<u32, usize>,
    writers: Vec<Writer>,
    nodes: usize,
}

impl<'l> Graph<'l> {
    fn new(limits: &'l Limits) -> Self {
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

    fn value(&mut self, t: &Table<'_, '_>) -> Result<()> {
        let read = t.union(0, "xvalue_union", |kind, t| match kind {
            1 => self.tensor_value(t, None),
            2 => {
                let params = t.union(1, "quant_params", |kind, t| self.quantization(kind, t))?;
                let params = params.ok_or_else(|| {
                    t.error(ErrorKind::Invalid, 1, "quant_params", "quantization parameters", "none")
                })?;
                t.required(0, "tensor_value", |t| self.tensor_value(t, Some(params)))
            }
            _ => Err(t.error_here(ErrorKind::Newer, "a kind of value up to 2", kind)),
        })?;
        let value = read.ok_or_else(|| t.error(ErrorKind::Invalid, 0, "xvalue_union", "a value", "none"))?;
        let index = self.values.len();
        self.by_id.insert(value.id, index);
        if let Role::Input(id) | Role::Output(id) = value.role {
            self.by_external.insert(id, index);
        }
        let written = matches!(value.role, Role::Input(_) | Role::Constant(_));
        self.writers.push(if written { Writer::Caller } else { Writer::Nobody });
        self.values.push(value);
        Ok(())
    }

    fn quantization(&self, kind: u8, t: &Table<'_, '_>) -> Result<Quantization> {
        match kind {
            1 => Ok(Quantization::PerChannel {
                scales: self.scales(t, 2, 3, 4)?,
                channel_dim: small(t, 1, "channel_dim")?,
            }),
            2 => {
                let scale: f32 = t.get(0, "scale", 0.0)?;
                if !is_scale(scale) {
                    return Err(t.error(ErrorKind::Invalid, 0, "scale", "a finite scale above 0", scale));
                }
                Ok(Quantization::PerTensor { scale, zero_point: t.get(1, "zero_point", 0)? })
            }
            3 => Ok(Quantization::PerToken { num_nonbatch_dims: small(t, 0, "num_nonbatch_dims")? }),
            4 => {
                let group_size = small(t, 2, "group_size")?;
                if group_size == 0 || group_size % 32 != 0 {
                    let expected = "a multiple of 32";
                    return Err(t.error(ErrorKind::Invalid, 2, "group_size", expected, group_size));
                }
                let scales = self.scales(t, 4, 5, 2)?;
                Ok(Quantization::PerGroup { scales, channel_dim: small(t, 1, "channel_dim")?, group_size })
            }
            _ => Err(t.error_here(ErrorKind::Newer, "a kind of quantization parameters up to 4", kind)),
        }
    }

    /// Reads the scales of a table. `index` and `count` are the fields that refer to a constant; its scales have
    /// `width` bytes each.
    fn scales(&self, t: &Table<'_, '_>, index: usize, count: usize, width: u64) -> Result<Scales> {
        let place: u32 = t.get(index, "scale_buffer_idx", 0)?;
        if place == 0 {
            let scales = t.scalars::<f32>(0, "scale")?;
            return match scales.iter().position(|s| !is_scale(*s)) {
                Some(i) => {
                    let found = format!("{} at index {i}", scales[i]);
                    Err(t.error(ErrorKind::Invalid, 0, "scale", "finite scales above 0", found))
                }
                None => Ok(Scales::Inline(scales)),
            };
        }
        let constant = self.constants.get(place as usize).ok_or_else(|| {
            let expected = format!("the index of one of {} constants", self.constants.len());
            t.error(ErrorKind::Invalid, index, "scale_buffer_idx", expected, place)
        })?;
        let number: u32 = t.get(count, "num_scales", 0)?;
        if constant.size() < u64::from(number) * width {
            let expected = format!(
                "at most the {} of the constant's {} bytes",
                constant.size() / width,
                constant.size()
            );
            return Err(t.error(ErrorKind::Invalid, count, "num_scales", expected, number));
        }
        Ok(Scales::Constant { index: place as usize, count: number as usize })
    }

    fn tensor_value(&self, t: &Table<'_, '_>, params: Option<Quantization>) -> Result<Value> {
        let invalid = |id, name, expected: String, found: String| {
            t.error(ErrorKind::Invalid, id, name, expected, found)
        };
        let datatype = datatype(t, 0, "datatype")?.ok_or_else(|| {
            invalid(0, "datatype", "a type of elements".to_owned(), "xnn_datatype_invalid".to_owned())
        })?;
        let dims = t.scalars::<u32>(2, "dims")?;
        let num_dims: u32 = t.get(1, "num_dims", 0)?;
        if num_dims as usize != dims.len() {
            return Err(invalid(
                1,
                "num_dims",
                format!("the {} of `dims`", dims.len()),
                num_dims.to_string(),
            ));
        }
        if dims.len() > MAX_RANK {
            return Err(invalid(2, "dims", format!("at most {MAX_RANK} dimensions"), dims.len().to_string()));
        }
        let dims: Vec<usize> = dims.into_iter().map(|d| d as usize).collect();
        let bytes = datatype.nbytes(&dims).filter(|bytes| *bytes <= self.limits.tensor_bytes);
        let Some(bytes) = bytes else {
            let expected = format!("at most {} bytes", self.limits.tensor_bytes);
            return Err(t.error(ErrorKind::Limit, 2, "dims", expected, format_args!("{dims:?}")));
        };
        let id: u32 = t.get(6, "id_out", 0)?;
        if id == NO_VALUE || self.by_id.contains_key(&id) {
            return Err(invalid(6, "id_out", "an id of its own".to_owned(), format!("{id}, which is taken")));
        }
        let role = self.role(t)?;
        let dynamic = datatype_of_dynamic(t, role)?;
        let value = Value {
            id,
            datatype,
            dims,
            role,
            quantization: params.unwrap_or(Quantization::None),
            quantized_by_row: dynamic,
        };
        if let Role::Constant(index) = role {
            let found = self.constants[index].size();
            if found < bytes {
                let expected = format!("a constant of at least {bytes} bytes, as type and sizes say");
                return Err(invalid(3, "constant_buffer_idx", expected, format!("one of {found}")));
            }
        }
        match check_constant(&value) {
            Some((expected, found)) => Err(invalid(0, "datatype", expected, found)),
            None => Ok(value),
        }
    }

    fn role(&self, t: &Table<'_, '_>) -> Result<Role> {
        let flags: u32 = t.get(5, "flags", 0)?;
        let constant: u32 = t.get(3, "constant_buffer_idx", 0)?;
        if flags & !3 != 0 || flags == 3 {
            let expected = "1 for an input, 2 for an output, or 0";
            return Err(t.error(ErrorKind::Unsupported, 5, "flags", expected, format_args!("{flags:#x}")));
        }
        if constant != 0 {
            if flags != 0 {
                let expected = "no constant bytes of an input or output";
                return Err(t.error(ErrorKind::Invalid, 3, "constant_buffer_idx", expected, constant));
            }
            if constant as usize >= self.constants.len() {
                let expected = format!("the index of one of {} constants", self.constants.len());
                return Err(t.error(ErrorKind::Invalid, 3, "constant_buffer_idx", expected, constant));
            }
            return Ok(Role::Constant(constant as usize));
        }
        if flags == 0 {
            return Ok(Role::Internal);
        }
        let external: u32 = t.get(4, "external_id", 0)?;
        if external >= self.num_externs || self.by_external.contains_key(&external) {
            let expected = format!("an external id of its own below {}", self.num_externs);
            return Err(t.error(ErrorKind::Invalid, 4, "external_id", expected, external));
        }
        Ok(if flags == 1 { Role::Input(external) } else { Role::Output(external) })
    }

    /// Reads the id of a value that a node reads. Fails if the value is not defined yet.
    fn input(&self, t: &Table<'_, '_>, field: usize, name: &'static str) -> Result<usize> {
        let id: u32 = t.get(field, name, 0)?;
        let index = self.find(t, field, name, id)?;
        match self.writers[index] {
            Writer::Nobody => {
                let expected = "a value that is an input, a constant, or written by a node before";
                let found = format!("value {id} (xvalues[{index}]), which no node before has written");
                Err(t.error(ErrorKind::Invalid, field, name, expected, found))
            }
            _ => Ok(index),
        }
    }

    /// Reads the id of a value that a node writes. Fails if the value is already defined.
    fn output(&mut self, t: &Table<'_, '_>, field: usize, name: &'static str) -> Result<usize> {
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
        let found = format!("value {id} (xvalues[{index}]), {by}");
        Err(t.error(ErrorKind::Invalid, field, name, "a value that nothing else writes", found))
    }

    fn find(&self, t: &Table<'_, '_>, field: usize, name: &'static str, id: u32) -> Result<usize> {
        self.by_id.get(&id).copied().ok_or_else(|| {
            let expected = format!("the id of one of {} values", self.values.len());
            t.error(ErrorKind::Invalid, field, name, expected, id)
        })
    }

    fn node(&mut self, t: &Table<'_, '_>) -> Result<Node> {
        let bounds = t.table(3, "output_min_max", |t| {
            let bounds: (f32, f32) = (t.get(0, "output_min", 0.0)?, t.get(1, "output_max", 0.0)?);
            if bounds.0 <= bounds.1 {
                return Ok(bounds);
            }
            let found = format!("{} to {}", bounds.0, bounds.1);
            Err(t.error(ErrorKind::Invalid, 0, "output_min", "bounds, the lower one first", found))
        })?;
        let debug_handle = t.get(2, "debug_handle", 0)?;
        let read = t.union(0, "xnode_union", |kind, t| {
            let node = self.node_table(kind, t)?;
            let bounds = bounds.unwrap_or(node.bounds);
            let node = Node { bounds, debug_handle, ..node };
            match check_node(&self.values, &node) {
                Some((expected, found)) => Err(t.error_here(ErrorKind::Invalid, expected, found)),
                None => Ok(node),
            }
        })?;
        self.nodes += 1;
        read.ok_or_else(|| t.error(ErrorKind::Invalid, 0, "xnode_union", "a node", "none"))
    }

    /// Reads the table of a node with a tag of the schema's union.
    fn node_table(&mut self, kind: u8, t: &Table<'_, '_>) -> Result<Node> {
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

    /// Checks that every output is written.
    fn check_written(&self, t: &Table<'_, '_>) -> Result<()> {
        let missing =
            |i: &usize| matches!(self.values[*i].role, Role::Output(_)) && self.writers[*i] == Writer::Nobody;
        match (0..self.values.len()).find(missing) {
            Some(index) => {
                let found = format!(
                    "the output value {} (xvalues[{index}]), which none writes",
                    self.values[index].id
                );
                Err(t.error(ErrorKind::Invalid, 1, "xnodes", "nodes that write every output", found))
            }
            None => Ok(()),
        }
    }

    fn externals(&self) -> (Vec<usize>, Vec<usize>) {
        let mut ids: Vec<(u32, usize)> = self.by_external.iter().map(|(id, index)| (*id, *index)).collect();
        ids.sort_unstable();
        let is_input = |index: &usize| matches!(self.values[*index].role, Role::Input(_));
        ids.into_iter().map(|(_, index)| index).partition(is_input)
    }
}

/// The table of a node that is being read.
struct NodeTable<'g, 'l, 't, 'r, 'a> {
    graph: &'g mut Graph<'l>,
    t: &'t Table<'r, 'a>,
    /// The number of the next field.
    next: usize,
    /// The number of the field with the length of lists.
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

    fn real(&mut self, name: &'static str, place: &mut f32) -> Result<()> {
        let id = self.next();
        *place = self.t.get(id, name, 0.0)?;
        Ok(())
    }

    /// The length is compared with each list behind it.
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

fn is_scale(scale: f32) -> bool {
    scale.is_normal() && scale > 0.0
}

/// Reads a field that is a non-negative `i32`.
fn small(t: &Table<'_, '_>, id: usize, name: &'static str) -> Result<usize> {
    let number: i32 = t.get(id, name, 0)?;
    usize::try_from(number)
        .map_err(|_| t.error(ErrorKind::Invalid, id, name, "a number of 0 or more", number))
}

fn datatype(t: &Table<'_, '_>, id: usize, name: &'static str) -> Result<Option<Datatype>> {
    let code: i16 = t.get(id, name, 0)?;
    match Datatype::from_code(code) {
        None if code != 0 => Err(t.error(ErrorKind::Newer, id, name, "a type of elements up to 14", code)),
        known => Ok(known),
    }
}

/// Whether nodes read an input dynamically quantized, per token, as the first releases wrote it.
fn datatype_of_dynamic(t: &Table<'_, '_>, role: Role) -> Result<bool> {
    match (datatype(t, 7, "dq_datatype")?, role) {
        (None, _) => Ok(false),
        (Some(Datatype::Qint8), Role::Input(_)) => Ok(true),
        (Some(found), _) => {
            let expected = "none, or qint8 of an input";
            Err(t.error(ErrorKind::Unsupported, 7, "dq_datatype", expected, found.name()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::write::write_node;
    use super::*;
    use std::convert::Infallible;

    /// Makes up fields: every number of a node is another one, and every bit is set.
    #[derive(Default)]
    struct Example {
        numbers: usize,
        inputs: Vec<usize>,
        outputs: Vec<usize>,
    }

    /// The first value that a node of an example writes; it reads those before.
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

        fn real(&mut self, _: &'static str, place: &mut f32) -> Result<(), Infallible> {
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
            let written = id >= FIRST_WRITTEN;
            graph.by_id.insert(id as u32, id);
            graph.writers.push(if written { Writer::Nobody } else { Writer::Caller });
            graph.values.push(Value {
                id: id as u32,
                datatype: Datatype::Fp32,
                dims: vec![2; 3],
                role: if written { Role::Internal } else { Role::Input(id as u32) },
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
                .root(|t| t.union(0, "xnode_union", |kind, t| graph.node_table(kind, t)));
            assert_eq!(read.unwrap(), Some(node), "{name}");
        }
    }

    #[test]
    fn the_table_has_all_tags_of_the_schema() {
        let mut tags: Vec<u8> = fields::KINDS.iter().map(|&(tag, _)| tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (1..=47).collect::<Vec<u8>>());
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
