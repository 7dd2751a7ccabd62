//! Serializes payloads.

use super::Payload;
use super::fields::{self, Fields};
use super::node::Node;
use super::value::{Constant, Datatype, NAMED, NO_VALUE, Quantization, Role, Scales, Value};
use pteron_format::flatbuffer::{Field, Ref, Writer};
use pteron_format::{Error, ErrorKind, Result};
use std::convert::Infallible;
use std::ops::Range;

/// Offset of the flatbuffer, after the header.
const FLATBUFFER_START: u64 = 32;
/// Alignment in bytes of the parts, and of each constant.
const ALIGNMENT: usize = 16;

/// Serializes a payload; `source` contains the bytes that [`Constant::Payload`] ranges refer to.
pub(super) fn serialize(payload: &Payload, source: &[u8]) -> Result<Vec<u8>> {
    let too_large = payload.values.iter().flat_map(|value| &value.dims).find(|&&d| u32::try_from(d).is_err());
    if let Some(size) = too_large {
        return Err(Error::new(ErrorKind::Limit, "xvalues", "sizes below 2^32", size));
    }
    let (places, constants) = constants(payload, source)?;
    let flatbuffer = flatbuffer(payload, &places)?;
    let behind = (FLATBUFFER_START as usize + flatbuffer.len()).next_multiple_of(ALIGNMENT);
    let mut out = Vec::with_capacity(behind + constants.len());
    out.extend([0; 4]);
    out.extend(b"XH00");
    out.extend(30u16.to_le_bytes());
    out.extend((FLATBUFFER_START as u32).to_le_bytes());
    out.extend((flatbuffer.len() as u32).to_le_bytes());
    out.extend((behind as u32).to_le_bytes());
    out.extend((constants.len() as u64).to_le_bytes());
    out.resize(FLATBUFFER_START as usize, 0);
    out.extend(flatbuffer);
    out.resize(behind, 0);
    out.extend(constants);
    Ok(out)
}

/// The bytes of the constants that are stored in the payload, and the range of each constant in them. Named constants
/// have an empty range.
fn constants(payload: &Payload, source: &[u8]) -> Result<(Vec<Range<usize>>, Vec<u8>)> {
    let (mut places, mut bytes) = (Vec::with_capacity(payload.constants.len()), Vec::new());
    for (index, constant) in payload.constants.iter().enumerate() {
        let Constant::Payload(range) = constant else {
            places.push(0..0);
            continue;
        };
        let part = source.get(range.start as usize..range.end as usize).ok_or_else(|| {
            let expected = format!("bytes of the source's {}", source.len());
            Error::new(ErrorKind::Invalid, format!("constants[{index}]"), expected, format!("{range:?}"))
        })?;
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        places.push(bytes.len()..bytes.len() + part.len());
        bytes.extend_from_slice(part);
    }
    Ok((places, bytes))
}

fn flatbuffer(payload: &Payload, places: &[Range<usize>]) -> Result<Vec<u8>> {
    let mut w = Writer::new();
    let version = w.string(&payload.version);
    let nodes = w.tables(&payload.nodes, |w, node| write_node(w, node, &payload.values));
    let values = w.tables(&payload.values, write_value);
    let ids = |list: &[usize]| list.iter().map(|&v| payload.values[v].id).collect::<Vec<_>>();
    let (inputs, outputs) = (w.scalars(&ids(&payload.inputs)), w.scalars(&ids(&payload.outputs)));
    let constants: Vec<(&Constant, &Range<usize>)> = payload.constants.iter().zip(places).collect();
    let constants = w.tables(&constants, |w, (constant, place)| match constant {
        Constant::Payload(_) => {
            w.table(&[Field::scalar(place.start as u64, 0), Field::scalar(place.len() as u64, 0)])
        }
        Constant::Named { key, size } => {
            let key = w.string(key);
            w.table(&[Field::required_scalar(NAMED), Field::scalar(*size, 0), Field::Ref(key)])
        }
    });
    let externs = (payload.inputs.len() + payload.outputs.len()) as u32;
    let root = w.table(&[
        Field::Ref(version),
        Field::Ref(nodes),
        Field::Ref(values),
        Field::scalar(externs, 0),
        Field::Ref(inputs),
        Field::Ref(outputs),
        Field::Absent,
        Field::Absent,
        Field::Ref(constants),
    ]);
    Ok(w.finish(root, payload.identifier)?.bytes)
}

fn write_sizes(w: &mut Writer, sizes: &[usize]) -> Ref {
    let sizes: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    w.scalars(&sizes)
}

/// An integer field that is omitted if it is 0.
fn nonzero_int(n: usize) -> Field {
    Field::scalar(n as u32, 0)
}

fn write_value(w: &mut Writer, value: &Value) -> Ref {
    let dims = write_sizes(w, &value.dims);
    let (constant, external, flags) = match value.role {
        Role::Input(id) => (0, id, 1),
        Role::Output(id) => (0, id, 2),
        Role::Constant(index) => (index, NO_VALUE, 0),
        Role::Internal => (0, NO_VALUE, 0),
    };
    let by_row = if value.quantized_by_row { Datatype::Qint8.code() } else { 0 };
    let tensor = w.table(&[
        Field::scalar(value.datatype.code(), 0),
        nonzero_int(value.dims.len()),
        Field::Ref(dims),
        nonzero_int(constant),
        Field::scalar(external, 0),
        Field::scalar(flags, 0u32),
        Field::scalar(value.id, 0),
        Field::scalar(by_row, 0),
    ]);
    let (kind, value) = match write_quantization(w, &value.quantization) {
        None => (1u8, tensor),
        Some((kind, params)) => {
            (2, w.table(&[Field::Ref(tensor), Field::scalar(kind, 0), Field::Ref(params)]))
        }
    };
    w.table(&[Field::scalar(kind, 0), Field::Ref(value)])
}

/// Writes quantization parameters; returns their tag in the schema's union.
fn write_quantization(w: &mut Writer, quantization: &Quantization) -> Option<(u8, Ref)> {
    /// The field of inline scales, and the index and count fields of scales in a constant.
    fn write_scales(w: &mut Writer, scales: &Scales) -> (Field, [Field; 2]) {
        match scales {
            Scales::Inline(scales) => (Field::Ref(w.scalars(scales)), [Field::Absent; 2]),
            Scales::Constant { index, count: n } => (Field::Absent, [nonzero_int(*index), nonzero_int(*n)]),
        }
    }
    Some(match quantization {
        Quantization::None => return None,
        Quantization::PerChannel { scales: s, channel_dim } => {
            let (inline, [index, number]) = write_scales(w, s);
            (1, w.table(&[inline, Field::scalar(*channel_dim as i32, 0), index, number]))
        }
        Quantization::PerTensor { scale, zero_point } => {
            (2, w.table(&[Field::scalar(*scale, 0.0), Field::scalar(*zero_point, 0)]))
        }
        Quantization::PerToken { num_nonbatch_dims } => {
            (3, w.table(&[Field::scalar(*num_nonbatch_dims as i32, 0)]))
        }
        Quantization::PerGroup { scales: s, channel_dim, group_size } => {
            let (inline, [index, number]) = write_scales(w, s);
            let (channel, group) = (*channel_dim as i32, *group_size as i32);
            let fields =
                [inline, Field::scalar(channel, 0), Field::scalar(group, 0), Field::Absent, index, number];
            (4, w.table(&fields))
        }
    })
}

pub(super) fn write_node(w: &mut Writer, node: &Node, values: &[Value]) -> Ref {
    let mut table = Table { node, values, inputs: 0, outputs: 0, fields: Vec::new(), w };
    let Ok(()) = fields::visit(&node.op, node.inputs.len(), &mut table);
    let fields = table.fields;
    let table = w.table(&fields);
    let bounds = node.is_bounded().then(|| {
        let (low, high) = node.bounds;
        w.table(&[Field::scalar(low, 0.0), Field::scalar(high, 0.0)])
    });
    let handle = Field::scalar(node.debug_handle, 0);
    let kind = node.op.kind(node.inputs.len()).0;
    w.table(&[Field::scalar(kind, 0), Field::Ref(table), handle, bounds.map_or(Field::Absent, Field::Ref)])
}

/// The table of a node that is being written. `fields` are the fields written so far.
struct Table<'w> {
    node: &'w Node,
    values: &'w [Value],
    /// The number of the node's inputs written so far.
    inputs: usize,
    /// The number of the node's outputs written so far.
    outputs: usize,
    fields: Vec<Field>,
    w: &'w mut Writer,
}

impl Table<'_> {
    fn push(&mut self, field: Field) -> Result<(), Infallible> {
        self.fields.push(field);
        Ok(())
    }

    fn id(&self, value: usize) -> Field {
        Field::scalar(self.values[value].id, 0)
    }
}

impl Fields for Table<'_> {
    type Error = Infallible;

    fn input(&mut self, _: &'static str) -> Result<(), Infallible> {
        let id = self.node.inputs.get(self.inputs).map_or(Field::required_scalar(NO_VALUE), |&v| self.id(v));
        self.inputs += 1;
        self.push(id)
    }

    fn optional(&mut self, name: &'static str) -> Result<(), Infallible> {
        self.input(name)
    }

    fn absent(&mut self, _: &'static str) -> Result<(), Infallible> {
        self.push(Field::Absent)
    }

    fn output(&mut self, _: &'static str) -> Result<(), Infallible> {
        let id = self.node.outputs.get(self.outputs).map_or(Field::Absent, |&v| self.id(v));
        self.outputs += 1;
        self.push(id)
    }

    fn flags(&mut self, _: &'static str, _: &mut [(u32, &mut bool)]) -> Result<(), Infallible> {
        self.push(Field::scalar(self.node.flags, 0))
    }

    fn number(&mut self, _: &'static str, _: fields::Range, place: &mut usize) -> Result<(), Infallible> {
        self.push(nonzero_int(*place))
    }

    fn float(&mut self, _: &'static str, place: &mut f32) -> Result<(), Infallible> {
        self.push(Field::scalar(*place, 0.0))
    }

    fn length(&mut self, _: &'static str, sizes: &mut Vec<usize>) -> Result<(), Infallible> {
        self.push(nonzero_int(sizes.len()))
    }

    fn sizes(&mut self, _: &'static str, place: &mut Vec<usize>) -> Result<(), Infallible> {
        let sizes = write_sizes(self.w, place);
        self.push(Field::Ref(sizes))
    }

    fn axis(&mut self, _: &'static str, place: &mut usize) -> Result<(), Infallible> {
        self.push(nonzero_int(*place))
    }
}
