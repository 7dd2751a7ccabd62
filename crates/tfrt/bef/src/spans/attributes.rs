//! Spans of attributes whose types are recorded.

use super::{Labels, SectionTables, plural, shorten};
use crate::attribute::{AttributeType, DType, ElementType};
use crate::error::Result;

impl<'a> SectionTables<'_, 'a> {
    pub(super) fn label_attributes(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        let Some(types) = &self.attribute_types else {
            return labels.nest("attributes", |labels| {
                labels.label_rest("values of types that the file does not record")
            });
        };
        for (index, (offset, kind)) in types.iter().enumerate() {
            if offset < labels.cursor.position() {
                return Ok(());
            }
            labels.nest("attributes", |labels| labels.skip_to(offset, "padding"))?;
            // Ensures that the value is well-formed and not nested too deeply.
            self.file.attributes().at(offset).check(kind)?;
            labels.nest(format_args!("attributes[{index}]"), |labels| {
                self.label_attribute(offset, kind, labels)
            })?;
        }
        Ok(())
    }

    /// Describes the attribute that a kernel refers to by `offset`.
    pub(super) fn describe_attribute(&self, offset: u32) -> String {
        let number = self.attribute_types.as_ref().and_then(|types| types.position(offset.into()));
        match number {
            Some(number) => format!("attribute {number}, at offset {offset}"),
            None => format!("attribute at offset {offset}"),
        }
    }

    /// Labels the attribute at `offset`, which is the cursor's position.
    fn label_attribute(&self, offset: u64, kind: AttributeType, labels: &mut Labels<'a, '_>) -> Result<()> {
        match kind {
            AttributeType::Scalar(dtype) => {
                let value = self.file.attributes().at(offset).decode(kind)?;
                labels.label_bytes(dtype.element_size().unwrap_or(1), "", |_| value.to_string()).map(drop)
            }
            AttributeType::Type => labels.label_u8("", describe_dtype).map(drop),
            AttributeType::String | AttributeType::Func => {
                let length = labels.label_u32("length", |length| plural(length, "byte"))?;
                let text = |bytes: &[u8]| format!("{:?}", shorten(&String::from_utf8_lossy(bytes)));
                labels.label_bytes(length.into(), "", |bytes| text(bytes.bytes())).map(drop)
            }
            AttributeType::Array(element) => label_array(element, labels),
            AttributeType::Shape => label_shape(labels),
            AttributeType::Dense => label_dense(labels),
            AttributeType::Aggregate => self.label_aggregate(offset, labels),
            AttributeType::SymbolRef => label_symbol_ref(labels),
        }
    }

    fn label_aggregate(&self, start: u64, labels: &mut Labels<'a, '_>) -> Result<()> {
        if labels.cursor.clone().take(4)?.u32(0)? == 0 {
            return labels.label_u32("", |_| "empty".into()).map(drop);
        }
        label_base("unused", labels)?;
        let count = labels.label_u32("count", |count| plural(count, "element"))?;
        let mut offsets = Vec::new();
        for index in 0..count {
            let field = format_args!("offsets[{index}]");
            offsets.push(
                labels.label_u32(field, |offset| format!("{offset} bytes from the aggregate's start"))?,
            );
        }
        for (index, offset) in offsets.into_iter().enumerate() {
            let element = start + u64::from(offset);
            labels.skip_to(element - 1, "padding")?;
            labels.nest(format_args!("elements[{index}]"), |labels| {
                let describe =
                    |kind: Option<AttributeType>| kind.map_or("unknown".into(), |kind| kind.to_string());
                let number = labels.label_u8("type", |number| describe(AttributeType::new(number)))?;
                match AttributeType::new(number) {
                    Some(kind) => self.label_attribute(element, kind, labels),
                    None => Ok(()),
                }
            })?;
        }
        Ok(())
    }
}

fn describe_dtype(number: u8) -> String {
    DType::new(number).map_or_else(|| format!("unknown type {number}"), |dtype| dtype.to_string())
}

fn label_array(element: ElementType, labels: &mut Labels<'_, '_>) -> Result<()> {
    let count = labels.label_u32("count", |count| plural(count, "element"))?;
    let name = match element {
        ElementType::Data(dtype) => dtype.to_string(),
        ElementType::Type => "type".into(),
    };
    labels.label_bytes(u64::from(count) * element.size(), "elements", |_| plural(count, &name)).map(drop)
}

/// Labels the 8-byte base of shapes, tensors and aggregates.
fn label_base(element_type: &str, labels: &mut Labels<'_, '_>) -> Result<()> {
    labels.label_u8("alignment", |alignment| format!("payload at a multiple of {alignment}"))?;
    labels.label_u8("element_type", |number| {
        if number == 0 { element_type.into() } else { describe_dtype(number) }
    })?;
    labels.label_u16("prefix_size", |size| plural(size, "byte") + " before the payload")?;
    labels.label_u32("byte_size", |size| plural(size, "byte") + " in all").map(drop)
}

fn label_dims(rank: u32, labels: &mut Labels<'_, '_>) -> Result<()> {
    (0..rank).try_for_each(|index| {
        let dim = i64::from_le_bytes(labels.cursor.clone().take(8)?.array(0)?);
        let meaning = if dim < 0 { "unknown".into() } else { dim.to_string() };
        labels.label_bytes(8, format_args!("dims[{index}]"), |_| meaning).map(drop)
    })
}

fn label_shape(labels: &mut Labels<'_, '_>) -> Result<()> {
    if labels.cursor.clone().take(4)?.u32(0)? == 0 {
        return labels.label_u32("", |_| "unranked".into()).map(drop);
    }
    label_base("unused", labels)?;
    let rank = labels.label_u32("rank", |rank| format!("rank {rank}"))?;
    label_dims(rank, labels)
}

fn label_dense(labels: &mut Labels<'_, '_>) -> Result<()> {
    let header = labels.cursor.clone().take(8)?;
    let (prefix, size) = (20, u64::from(header.u32(4)?));
    label_base("none", labels)?;
    labels.label_u32("element_offset", |offset| format!("elements from byte {offset} on"))?;
    labels.label_u32("element_count", |count| plural(count, "element"))?;
    let rank = labels.label_u32("rank", |rank| format!("rank {rank}"))?;
    label_dims(rank, labels)?;
    let payload = size.saturating_sub(prefix + 8 * u64::from(rank));
    labels.label_bytes(payload, "elements", |_| "elements, row-major".into()).map(drop)
}

fn label_symbol_ref(labels: &mut Labels<'_, '_>) -> Result<()> {
    labels.label_vbr("id", |id| format!("symbol {id}"))?;
    let length = |length| plural(length, "byte");
    let mut lengths = vec![labels.label_vbr("root.length", length)?];
    let nested = labels.label_vbr("nested", |count| plural(count, "nested symbol"))?;
    for index in 0..nested {
        lengths.push(labels.label_vbr(format_args!("nested[{index}].length"), length)?);
    }
    let module = labels.label_vbr("module.length", length)?;
    for (index, length) in lengths.into_iter().enumerate() {
        let text = |bytes: &[u8]| format!("@{}", shorten(&String::from_utf8_lossy(bytes)));
        match index.checked_sub(1) {
            None => labels.label_bytes(length, "root", |bytes| text(bytes.bytes()))?,
            Some(index) => {
                labels.label_bytes(length, format_args!("nested[{index}]"), |bytes| text(bytes.bytes()))?
            }
        };
    }
    labels.label_bytes(module, "module", |_| "the compiled module's text".into())?;
    labels.label_u8("", |_| "end".into()).map(drop)
}
