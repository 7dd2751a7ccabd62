//! The bytes of a payload's constants, which are ranges of the payload or named data.

use crate::error::{Error, Result, fail};
use crate::payload::{Constant, Payload, Quantization, Role, Scales, Value};
use pteron_operator::Budget;
use pteron_runtime::{ConstantBytes, FreeableBuffer, NamedDataMap};

/// Alignment of constants in bytes.
const ALIGNMENT: usize = 16;

/// The bytes of a payload's constants, by constant index.
pub(crate) struct Data {
    constants: Vec<Option<ConstantBytes>>,
}

impl Data {
    /// Locates the bytes that the values of a payload refer to. Misaligned bytes are copied; copies are charged to
    /// `memory`.
    pub(crate) fn load(
        payload: &Payload,
        bytes: &FreeableBuffer,
        named: Option<&dyn NamedDataMap>,
        memory: &Budget,
    ) -> Result<Self> {
        let mut data = Self { constants: vec![None; payload.constants.len()] };
        payload.values.iter().try_for_each(|value| data.load_value(payload, value, bytes, named, memory))?;
        Ok(data)
    }

    /// Like [`Self::load`], but goes on after an error. Returns the errors, each with the index of the value that it
    /// is about.
    pub(crate) fn load_present(
        payload: &Payload,
        bytes: &FreeableBuffer,
        named: Option<&dyn NamedDataMap>,
        memory: &Budget,
    ) -> (Self, Vec<(usize, Error)>) {
        let mut data = Self { constants: vec![None; payload.constants.len()] };
        let values = payload.values.iter().enumerate();
        let failed = values
            .filter_map(|(v, value)| Some((v, data.load_value(payload, value, bytes, named, memory).err()?)));
        let failed = failed.collect();
        (data, failed)
    }

    fn load_value(
        &mut self,
        payload: &Payload,
        value: &Value,
        bytes: &FreeableBuffer,
        named: Option<&dyn NamedDataMap>,
        memory: &Budget,
    ) -> Result<()> {
        let Role::Constant(index) = value.role else { return Ok(()) };
        let size = value.datatype.nbytes(&value.dims).unwrap_or(u64::MAX);
        self.load_with_size(payload, index, size, bytes, named, memory)
            .map_err(|e| Error::new(format!("value %{}: {e}", value.id)))?;
        let (scales, width) = match &value.quantization {
            Quantization::PerChannel { scales, .. } => (scales, 4),
            Quantization::PerGroup { scales, .. } => (scales, 2),
            _ => return Ok(()),
        };
        if let Scales::Constant { index, count } = scales {
            let size = *count as u64 * width;
            let present = self.load_with_size(payload, *index, size, bytes, named, memory);
            present.map_err(|e| Error::new(format!("the scales of value %{}: {e}", value.id)))?;
        }
        Ok(())
    }

    fn load_with_size(
        &mut self,
        payload: &Payload,
        index: usize,
        size: u64,
        bytes: &FreeableBuffer,
        named: Option<&dyn NamedDataMap>,
        memory: &Budget,
    ) -> Result<()> {
        if self.constants[index].is_none() {
            self.constants[index] = Some(load_constant(&payload.constants[index], bytes, named, memory)?);
        }
        match &self.constants[index] {
            Some(constant) if constant.size() as u64 >= size => Ok(()),
            constant => {
                let len = constant.as_ref().map_or(0, ConstantBytes::size);
                fail(format!("it needs {size} bytes of constant {index}, which has {len}"))
            }
        }
    }

    fn constant(&self, index: usize) -> Result<&ConstantBytes> {
        let constant = self.constants.get(index).and_then(Option::as_ref);
        constant.ok_or_else(|| Error::new(format!("constant {index} has no bytes")))
    }

    /// The bytes of a constant, read now and released when the handle is dropped.
    fn read_constant(&self, index: usize) -> Result<ConstantBytes> {
        let constant = self.constant(index)?.reopen();
        constant.read().map_err(|e| Error::new(pteron_runtime::one_line(&e)))?;
        Ok(constant)
    }

    fn constant_index(value: &Value) -> Result<usize> {
        match value.role {
            Role::Constant(index) => Ok(index),
            _ => fail(format!("value %{} is not constant", value.id)),
        }
    }

    /// The bytes of a constant value, read now and released when the handle is dropped.
    pub(crate) fn read_value(&self, value: &Value) -> Result<ConstantBytes> {
        self.read_constant(Self::constant_index(value)?)
    }

    /// A constant value as a graph constant, whose bytes are read when they are packed.
    pub(crate) fn graph_constant(&self, value: &Value) -> Result<pteron_engine::Constant> {
        Ok(self.constant(Self::constant_index(value)?)?.to_graph_constant())
    }

    /// The bytes of a constant value, which are read when something uses them.
    pub(crate) fn reopen_value(&self, value: &Value) -> Result<ConstantBytes> {
        Ok(self.constant(Self::constant_index(value)?)?.reopen())
    }

    /// The scales of a tensor, of its channels or of its groups. Group scales that are stored as bytes are bf16.
    pub(crate) fn scales(&self, quantization: &Quantization) -> Result<Vec<f32>> {
        let (scales, wide) = match quantization {
            Quantization::PerTensor { scale, .. } => return Ok(vec![*scale]),
            Quantization::PerChannel { scales, .. } => (scales, true),
            Quantization::PerGroup { scales, .. } => (scales, false),
            _ => return fail("a value without scales"),
        };
        let scales: Vec<f32> = match scales {
            // The reference reads group scales as bf16, so inline f32 scales are rounded to it.
            Scales::Inline(scales) if !wide => scales.iter().map(|s| truncate_to_bf16(*s)).collect(),
            Scales::Inline(scales) => scales.clone(),
            Scales::Constant { index, count } if wide => {
                let bytes = self.read_constant(*index)?;
                let words = bytes.chunks_exact(4).take(*count);
                words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            Scales::Constant { index, count } => {
                let bytes = self.read_constant(*index)?;
                let halves = bytes.chunks_exact(2).take(*count);
                halves.map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect()
            }
        };
        match scales.iter().position(|s| !(s.is_normal() && *s > 0.0)) {
            Some(i) => fail(format!("the scale {} at index {i}: expected a finite scale above 0", scales[i])),
            None => Ok(scales),
        }
    }
}

/// Rounds a group scale to bf16 as the reference does. The first releases stored group scales as f32.
fn truncate_to_bf16(scale: f32) -> f32 {
    f32::from_bits((scale * 1.003_891_1).to_bits() & 0xffff_0000)
}

/// The bytes of a constant, aligned. Named data is read on first access.
fn load_constant(
    constant: &Constant,
    bytes: &FreeableBuffer,
    named: Option<&dyn NamedDataMap>,
    memory: &Budget,
) -> Result<ConstantBytes> {
    let stored = match constant {
        Constant::Payload(range) => {
            let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
            let part = range.and_then(|(start, end)| bytes.slice(start..end));
            ConstantBytes::in_memory(part.ok_or_else(|| Error::new("its bytes are not in the payload"))?)
        }
        Constant::Named { key, .. } => {
            let map = named.ok_or_else(|| {
                Error::new(format!("its bytes are the named data `{key}`, and there is no named data"))
            })?;
            map.constant(key).map_err(|e| {
                Error::new(format!("its bytes are the named data `{key}`: {}", pteron_runtime::one_line(&e)))
            })?
        }
    };
    stored.aligned(ALIGNMENT, "its constants", memory).map_err(|e| Error::new(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Datatype;

    /// A payload with two constants in the same 16 bytes.
    fn payload() -> Payload {
        let value = |index| Value {
            id: index as u32,
            datatype: Datatype::Fp32,
            dims: vec![4],
            quantization: Quantization::None,
            role: Role::Constant(index),
            quantized_by_row: false,
        };
        Payload {
            identifier: *b"XN01",
            header: None,
            version: String::new(),
            values: vec![value(1), value(2)],
            nodes: Vec::new(),
            constants: vec![Constant::Payload(0..0), Constant::Payload(0..16), Constant::Payload(0..16)],
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    #[test]
    fn copies_of_misaligned_constants_are_charged_to_the_budget() {
        let memory = Budget::new(31);
        let aligned = FreeableBuffer::from_bytes(&[7; 32]).unwrap();
        let misaligned = aligned.slice(1..17).unwrap();
        let data = Data::load(&payload(), &aligned.slice(0..16).unwrap(), None, &memory).unwrap();
        assert_eq!((&data.read_constant(1).unwrap()[..], memory.held()), (&[7; 16][..], 0));
        let error = Data::load(&payload(), &misaligned, None, &memory).err().unwrap().to_string();
        assert!(error.starts_with("value %2: ") && error.contains("32"), "{error}");
        let memory = Budget::new(32);
        let data = Data::load(&payload(), &misaligned, None, &memory).unwrap();
        assert_eq!((&data.read_constant(2).unwrap()[..], memory.held()), (&[7; 16][..], 32));
        drop(data);
        assert_eq!(memory.held(), 0);
        let (data, failed) = Data::load_present(&payload(), &misaligned, None, &Budget::new(16));
        assert_eq!((failed.len(), data.read_constant(1).is_ok()), (1, true));
    }
}
