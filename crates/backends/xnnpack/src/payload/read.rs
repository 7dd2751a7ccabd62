//! Decodes the flatbuffer with its constants and values. It is verified while it is decoded, so that errors give byte
//! offsets.

use super::check::check_constant;
use super::graph::Graph;
use super::value::{Constant, Datatype, NAMED, NO_VALUE, Quantization, Role, Scales, Value};
use super::{Header, MAX_EXTERNALS, MAX_RANK, Payload};
use pteron_format::flatbuffer::{Reader, Table};
use pteron_format::{Error, ErrorKind, Limits, Result};
use std::ops::Range;

pub(super) fn payload(bytes: &[u8], limits: &Limits) -> Result<Payload> {
    let header = Header::parse(bytes)?;
    let range = header.as_ref().map_or(0..bytes.len() as u64, |h| h.flatbuffer.clone());
    let flatbuffer = &bytes[range.start as usize..range.end as usize];
    let identifier = match flatbuffer.get(4..8) {
        Some(identifier @ (b"XN00" | b"XN01")) => {
            [identifier[0], identifier[1], identifier[2], identifier[3]]
        }
        identifier => {
            let identifier = identifier.unwrap_or_default().escape_ascii().to_string();
            let expected = "`XN00` or `XN01` of an XNNPACK payload";
            return Err(Error::new(
                ErrorKind::NotThisFormat,
                "identifier",
                expected,
                format_args!("`{identifier}`"),
            )
            .at(range.start + 4)
            .hint("the payload is of another backend, or of a version that is not known here"));
        }
    };
    let reader = Reader::new(flatbuffer, range.start, limits);
    reader.root(|t| {
        let mut graph = Graph::new(limits);
        graph.constants = read_constants(t, header.as_ref())?;
        graph.num_externs = t.get(3, "num_externs", 0)?;
        if graph.num_externs > MAX_EXTERNALS {
            let expected = format!("at most {MAX_EXTERNALS}");
            return Err(t.error(ErrorKind::Limit, 3, "num_externs", expected, graph.num_externs));
        }
        t.tables(2, "xvalues", |t| graph.read_value(t))?;
        let nodes = t.tables(1, "xnodes", |t| graph.read_node(t))?;
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
fn read_constants(t: &Table<'_, '_>, header: Option<&Header>) -> Result<Vec<Constant>> {
    let Some(header) = header else {
        return t.tables(6, "constant_buffer", |t| {
            Ok(Constant::Payload(t.byte_range(0, "storage")?.unwrap_or(0..0)))
        });
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

impl Graph<'_> {
    fn read_value(&mut self, t: &Table<'_, '_>) -> Result<()> {
        let read = t.union(0, "xvalue_union", |kind, t| match kind {
            1 => self.tensor_value(t, None),
            2 => {
                let params = t.union(1, "quant_params", |kind, t| self.quantization(kind, t))?;
                let params = params.ok_or_else(|| {
                    t.error(ErrorKind::Invalid, 1, "quant_params", "quantization parameters", "none")
                })?;
                t.required_table(0, "tensor_value", |t| self.tensor_value(t, Some(params)))
            }
            _ => Err(t.error_here(ErrorKind::Newer, "a kind of value up to 2", kind)),
        })?;
        let value = read.ok_or_else(|| t.error(ErrorKind::Invalid, 0, "xvalue_union", "a value", "none"))?;
        self.add(value);
        Ok(())
    }

    fn quantization(&self, kind: u8, t: &Table<'_, '_>) -> Result<Quantization> {
        match kind {
            1 => Ok(Quantization::PerChannel {
                scales: self.scales(t, 2, 3, 4)?,
                channel_dim: read_non_negative(t, 1, "channel_dim")?,
            }),
            2 => {
                let scale: f32 = t.get(0, "scale", 0.0)?;
                if !is_valid_scale(scale) {
                    return Err(t.error(ErrorKind::Invalid, 0, "scale", "a finite scale above 0", scale));
                }
                Ok(Quantization::PerTensor { scale, zero_point: t.get(1, "zero_point", 0)? })
            }
            3 => Ok(Quantization::PerToken {
                num_nonbatch_dims: read_non_negative(t, 0, "num_nonbatch_dims")?,
            }),
            4 => {
                let group_size = read_non_negative(t, 2, "group_size")?;
                if group_size == 0 || group_size % 32 != 0 {
                    let expected = "a multiple of 32";
                    return Err(t.error(ErrorKind::Invalid, 2, "group_size", expected, group_size));
                }
                let scales = self.scales(t, 4, 5, 2)?;
                Ok(Quantization::PerGroup {
                    scales,
                    channel_dim: read_non_negative(t, 1, "channel_dim")?,
                    group_size,
                })
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
            return match scales.iter().position(|s| !is_valid_scale(*s)) {
                Some(i) => {
                    let actual = format!("{} at index {i}", scales[i]);
                    Err(t.error(ErrorKind::Invalid, 0, "scale", "finite scales above 0", actual))
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
        let invalid = |id, name, expected: String, actual: String| {
            t.error(ErrorKind::Invalid, id, name, expected, actual)
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
        let dynamic = is_quantized_by_row(t, role)?;
        let value = Value {
            id,
            datatype,
            dims,
            role,
            quantization: params.unwrap_or(Quantization::None),
            quantized_by_row: dynamic,
        };
        if let Role::Constant(index) = role {
            let actual = self.constants[index].size();
            if actual < bytes {
                let expected = format!("a constant of at least {bytes} bytes, as type and sizes say");
                return Err(invalid(3, "constant_buffer_idx", expected, format!("one of {actual}")));
            }
        }
        match check_constant(&value) {
            Some((expected, actual)) => Err(invalid(0, "datatype", expected, actual)),
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
}

fn is_valid_scale(scale: f32) -> bool {
    scale.is_normal() && scale > 0.0
}

/// Reads a field that is a non-negative `i32`.
fn read_non_negative(t: &Table<'_, '_>, id: usize, name: &'static str) -> Result<usize> {
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

/// Whether a value is an input that nodes read dynamically quantized, per token, in the notation of the first releases.
fn is_quantized_by_row(t: &Table<'_, '_>, role: Role) -> Result<bool> {
    match (datatype(t, 7, "dq_datatype")?, role) {
        (None, _) => Ok(false),
        (Some(Datatype::Qint8), Role::Input(_)) => Ok(true),
        (Some(datatype), _) => {
            let expected = "none, or qint8 of an input";
            Err(t.error(ErrorKind::Unsupported, 7, "dq_datatype", expected, datatype.name()))
        }
    }
}
