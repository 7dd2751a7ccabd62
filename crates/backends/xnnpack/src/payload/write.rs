//! Serializes payloads.

use super::node::{Conv, Node, Op, Pool, Unary};
use super::value::{Constant, Datatype, Quantization, Role, Scales, Value};
use super::{Payload, read};
use pteron_format::flatbuffer::{Field, Ref, Writer};
use pteron_format::{Error, ErrorKind, Result};
use std::ops::Range;

/// Offset of the flatbuffer, after the header.
const FLATBUFFER_START: u64 = 32;
/// Alignment in bytes of the parts, and of each constant.
const ALIGNMENT: usize = 16;

/// Serializes a payload; `source` contains the bytes that [`Constant::Payload`] ranges refer to.
pub(super) fn bytes(payload: &Payload, source: &[u8]) -> Result<Vec<u8>> {
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
            w.table(&[Field::number(place.start as u64, 0), Field::number(place.len() as u64, 0)])
        }
        Constant::Named { key, size } => {
            let key = w.string(key);
            w.table(&[Field::always(read::NAMED), Field::number(*size, 0), Field::Ref(key)])
        }
    });
    let externs = (payload.inputs.len() + payload.outputs.len()) as u32;
    let root = w.table(&[
        Field::Ref(version),
        Field::Ref(nodes),
        Field::Ref(values),
        Field::number(externs, 0),
        Field::Ref(inputs),
        Field::Ref(outputs),
        Field::Absent,
        Field::Absent,
        Field::Ref(constants),
    ]);
    Ok(w.finish(root, payload.identifier)?.bytes)
}

fn sizes(w: &mut Writer, sizes: &[usize]) -> Ref {
    let sizes: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    w.scalars(&sizes)
}

/// An integer field that is omitted if it is 0.
fn count(n: usize) -> Field {
    Field::number(n as u32, 0)
}

fn write_value(w: &mut Writer, value: &Value) -> Ref {
    let dims = sizes(w, &value.dims);
    let (constant, external, flags) = match value.role {
        Role::Input(id) => (0, id, 1),
        Role::Output(id) => (0, id, 2),
        Role::Constant(index) => (index, read::NO_VALUE, 0),
        Role::Internal => (0, read::NO_VALUE, 0),
    };
    let by_row = if value.quantized_by_row { Datatype::Qint8.code() } else { 0 };
    let tensor = w.table(&[
        Field::number(value.datatype.code(), 0),
        count(value.dims.len()),
        Field::Ref(dims),
        count(constant),
        Field::number(external, 0),
        Field::number(flags, 0u32),
        Field::number(value.id, 0),
        Field::number(by_row, 0),
    ]);
    let (kind, value) = match write_quantization(w, &value.quantization) {
        None => (1u8, tensor),
        Some((kind, params)) => {
            (2, w.table(&[Field::Ref(tensor), Field::number(kind, 0), Field::Ref(params)]))
        }
    };
    w.table(&[Field::number(kind, 0), Field::Ref(value)])
}

/// Writes quantization parameters; returns their tag in the schema's union.
fn write_quantization(w: &mut Writer, quantization: &Quantization) -> Option<(u8, Ref)> {
    /// The field of inline scales, and the index and count fields of scales in a constant.
    fn scales(w: &mut Writer, scales: &Scales) -> (Field, [Field; 2]) {
        match scales {
            Scales::Inline(scales) => (Field::Ref(w.scalars(scales)), [Field::Absent; 2]),
            Scales::Constant { index, count: n } => (Field::Absent, [count(*index), count(*n)]),
        }
    }
    Some(match quantization {
        Quantization::None => return None,
        Quantization::PerChannel { scales: s, channel_dim } => {
            let (inline, [index, number]) = scales(w, s);
            (1, w.table(&[inline, Field::number(*channel_dim as i32, 0), index, number]))
        }
        Quantization::PerTensor { scale, zero_point } => {
            (2, w.table(&[Field::number(*scale, 0.0), Field::number(*zero_point, 0)]))
        }
        Quantization::PerToken { num_nonbatch_dims } => {
            (3, w.table(&[Field::number(*num_nonbatch_dims as i32, 0)]))
        }
        Quantization::PerGroup { scales: s, channel_dim, group_size } => {
            let (inline, [index, number]) = scales(w, s);
            let (channel, group) = (*channel_dim as i32, *group_size as i32);
            let fields =
                [inline, Field::number(channel, 0), Field::number(group, 0), Field::Absent, index, number];
            (4, w.table(&fields))
        }
    })
}

fn write_node(w: &mut Writer, node: &Node, values: &[Value]) -> Ref {
    let fields = fields(w, node, values);
    let table = w.table(&fields);
    let bounds = node.is_bounded().then(|| {
        let (low, high) = node.bounds;
        w.table(&[Field::number(low, 0.0), Field::number(high, 0.0)])
    });
    let handle = Field::number(node.debug_handle, 0);
    let kind = node.op.kind(node.inputs.len()).0;
    w.table(&[Field::number(kind, 0), Field::Ref(table), handle, bounds.map_or(Field::Absent, Field::Ref)])
}

/// The fields of a node's table.
fn fields(w: &mut Writer, node: &Node, values: &[Value]) -> Vec<Field> {
    let id = |v: usize| Field::number(values[v].id, 0);
    let input = |n: usize| node.inputs.get(n).map_or(Field::always(read::NO_VALUE), |&v| id(v));
    let output = |n: usize| node.outputs.get(n).map_or(Field::Absent, |&v| id(v));
    let flags = Field::number(node.flags, 0);
    let one = |before: Vec<Field>| [before, vec![input(0), output(0), flags]].concat();
    match &node.op {
        Op::Unary(Unary::LeakyRelu { slope }) => one(vec![Field::number(*slope, 0.0)]),
        Op::Unary(Unary::Elu { alpha }) => one(vec![Field::number(*alpha, 0.0)]),
        Op::Unary(_) | Op::Convert | Op::Copy | Op::Softmax | Op::GlobalAvgPool { .. } => one(Vec::new()),
        Op::Binary(_) | Op::PRelu | Op::BatchMatMul { .. } => vec![input(0), input(1), output(0), flags],
        Op::FullyConnected { .. } => vec![input(0), input(1), input(2), output(0), flags],
        Op::Conv(conv) | Op::DepthwiseConv(conv) | Op::ConvTranspose(conv) => {
            convolution(conv, &[input(0), input(1), input(2), output(0), flags])
        }
        Op::AvgPool(pool) | Op::MaxPool(pool) => one(pooling(pool, true)),
        Op::ArgMaxPool(pool) => [pooling(pool, false), vec![input(0), output(0), output(1), flags]].concat(),
        Op::Transpose { perm } => one(vec![count(perm.len()), Field::Ref(sizes(w, perm))]),
        Op::Reshape { sizes: new } => one(vec![count(new.len()), Field::Ref(sizes(w, new))]),
        Op::Slice { offsets, sizes: new } => {
            let (offsets, rank) = (Field::Ref(sizes(w, offsets)), count(new.len()));
            one(vec![rank, offsets, Field::Ref(sizes(w, new))])
        }
        Op::Pad { pre, post, value } => {
            let (pre, post) = (Field::Ref(sizes(w, pre)), Field::Ref(sizes(w, post)));
            one(vec![pre, post, Field::number(*value, 0.0)])
        }
        Op::ResizeBilinear { height, width, .. } => one(vec![count(*height), count(*width)]),
        Op::Concat { axis } => {
            let given = |n: usize| node.inputs.get(n).map_or(Field::Absent, |&v| id(v));
            vec![count(*axis), given(0), given(1), given(2), given(3), output(0), flags, given(4)]
        }
        Op::ScaledDotProductAttention => {
            vec![input(0), input(1), input(2), input(3), input(4), output(0), flags]
        }
    }
}

fn convolution(conv: &Conv, values: &[Field]) -> Vec<Field> {
    let Conv { padding, kernel, stride, dilation, group_inputs, group_outputs, groups, adjustment } = conv;
    let numbers = padding.iter().chain(kernel).chain(stride).chain(dilation);
    let numbers = numbers.chain([group_inputs, group_outputs, groups]).chain(adjustment);
    numbers.map(|&n| count(n)).chain(values.iter().copied()).collect()
}

fn pooling(pool: &Pool, has_steps: bool) -> Vec<Field> {
    let mut fields: Vec<Field> = pool.padding.iter().chain(&pool.window).map(|&n| count(n)).collect();
    if has_steps {
        fields.extend(pool.stride.iter().chain(&pool.dilation).map(|&n| count(n)));
    }
    fields
}
