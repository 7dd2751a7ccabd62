//! Spans of strings, name tables, the function index and the optional sections.

use super::{Labels, SectionTables, plural, shorten};
use crate::attribute::AttributeType;
use crate::error::Result;
use crate::function_kind::FunctionKind;
use crate::ids::FunctionId;

/// Labels the strings of `Strings` or `LocationStrings`.
pub(super) fn label_strings(table: &str, labels: &mut Labels<'_, '_>) -> Result<()> {
    while labels.cursor.remaining() > 0 {
        let offset = labels.cursor.position();
        let rest = labels.cursor.clone().take(labels.cursor.remaining())?;
        let Some(length) = rest.bytes().iter().position(|&byte| byte == 0) else { return Ok(()) };
        labels.label_bytes(length as u64 + 1, format_args!("{table}[{offset}]"), |bytes| {
            format!("{:?}", shorten(&String::from_utf8_lossy(&bytes.bytes()[..length])))
        })?;
    }
    Ok(())
}

impl<'a> SectionTables<'_, 'a> {
    /// Labels the name table of `Kernels` or `Types`.
    pub(super) fn label_name_table(&self, table: &str, labels: &mut Labels<'a, '_>) -> Result<()> {
        labels.nest(table, |labels| {
            let count = labels.label_vbr("count", |count| plural(count, "name"))?;
            (0..count).try_for_each(|index| {
                labels.label_vbr(format_args!("[{index}]"), |offset| self.describe_string(offset)).map(drop)
            })
        })
    }

    pub(super) fn label_function_index(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        labels.nest("function_index", |labels| {
            let count = labels.label_vbr("count", |count| plural(count, "function"))?;
            (0..count).try_for_each(|index| {
                labels.nest(format_args!("[{index}]"), |labels| self.label_function_entry(labels))
            })
        })
    }

    fn label_function_entry(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        labels.label_u8("kind", |kind| match FunctionKind::new(kind) {
            Some(FunctionKind::Async) => "async".into(),
            Some(FunctionKind::Native) => "native".into(),
            Some(FunctionKind::Sync) => "sync".into(),
            None => format!("unknown kind {kind}"),
        })?;
        labels.label_vbr("offset", |offset| format!("record at offset {offset}"))?;
        labels.label_vbr("name", |offset| self.describe_string(offset))?;
        for (list, noun) in [("arguments", "argument"), ("results", "result")] {
            labels.nest(list, |labels| {
                let count = labels.label_vbr("", |count| plural(count, noun))?;
                (0..count).try_for_each(|index| {
                    labels.label_vbr(format_args!("[{index}]"), |kind| self.type_name(kind)).map(drop)
                })
            })?;
        }
        Ok(())
    }

    pub(super) fn label_attribute_types(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        labels.nest("attribute_types", |labels| {
            let count = labels.label_vbr("count", |count| plural(count, "attribute"))?;
            (0..count).try_for_each(|index| {
                labels.nest(format_args!("[{index}]"), |labels| {
                    labels.label_vbr("offset", |offset| format!("at offset {offset}"))?;
                    labels.label_vbr("type", |number| {
                        let kind = u8::try_from(number).ok().and_then(AttributeType::new);
                        kind.map_or_else(|| format!("unknown type {number}"), |kind| kind.to_string())
                    })
                })?;
                Ok(())
            })
        })
    }

    pub(super) fn label_attribute_names(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        labels.nest("attribute_names", |labels| {
            // The number of names of each kernel is only reliable if the functions verify.
            if self.file.verify().is_err() {
                return labels.label_rest("names of the attributes of kernels");
            }
            labels.label_vbr("count", |count| plural(count, "function"))?;
            for id in (0..self.index.len() as u32).map(FunctionId) {
                let Some(record) = self.file.function(&self.index, id)? else { continue };
                labels.nest(format_args!("[{id}]"), |labels| {
                    labels.label_vbr("", |count| plural(count, "kernel"))?;
                    for (kernel, attributes) in record.kernels().enumerate() {
                        for index in 0..attributes?.attributes().len() {
                            let field = format_args!("kernels[{kernel}].attrs[{index}]");
                            labels.label_vbr(field, |offset| self.describe_string(offset))?;
                        }
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    pub(super) fn label_register_types(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        labels.nest("register_types", |labels| {
            labels.label_vbr("count", |count| plural(count, "function"))?;
            for (id, entry) in self.index.iter().enumerate() {
                if entry.kind == FunctionKind::Native {
                    continue;
                }
                labels.nest(format_args!("[{id}]"), |labels| {
                    let count = labels.label_vbr("", |count| plural(count, "register"))?;
                    (0..count).try_for_each(|index| {
                        labels.label_vbr(format_args!("[{index}]"), |kind| self.type_name(kind)).map(drop)
                    })
                })?;
            }
            Ok(())
        })
    }
}
