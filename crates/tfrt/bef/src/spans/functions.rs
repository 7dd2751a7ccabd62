//! Spans of function records and kernels.

use super::{Labels, SectionTables, plural, shorten};
use crate::error::Result;
use crate::function_kind::FunctionKind;
use crate::ids::FunctionId;
use crate::section::function_index::FunctionEntry;
use crate::section::functions::{
    FunctionRecord, KERNEL_ALIGNMENT, PSEUDO_KERNEL_CODE, PSEUDO_KERNEL_LOCATION,
};

impl<'a> SectionTables<'_, 'a> {
    /// Labels the records in the order in which they are stored.
    pub(super) fn label_functions(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        let mut entries: Vec<(usize, FunctionEntry<'_>)> = self.index.iter().enumerate().collect();
        entries.retain(|(_, entry)| entry.kind != FunctionKind::Native);
        entries.sort_by_key(|(_, entry)| entry.offset);
        for (id, entry) in entries {
            labels.skip_to(entry.offset, "not used")?;
            // A record is explained once, however many index entries refer to it.
            if entry.offset == labels.cursor.position() {
                let record = self.file.record(&entry)?;
                labels.nest(format_args!("functions[{id}]"), |labels| self.label_record(&record, labels))?;
            }
        }
        Ok(())
    }

    fn label_record(&self, record: &FunctionRecord<'a>, labels: &mut Labels<'a, '_>) -> Result<()> {
        labels.label_vbr("location", |offset| self.describe_location(offset))?;
        labels.label_vbr("registers", |count| plural(count, "register"))?;
        for register in 0..record.register_uses().len() {
            labels.label_vbr(format_args!("registers[{register}]"), |uses| plural(uses, "use"))?;
        }
        labels.label_vbr("kernels", |count| plural(count, "kernel") + ", the pseudo kernel included")?;
        for kernel in 0..record.kernel_table().len() {
            labels.nest(format_args!("kernels[{kernel}]"), |labels| {
                labels.label_vbr("offset", |offset| format!("{offset} bytes from the first kernel"))?;
                labels.label_vbr("num_operands", |count| plural(count, "operand"))?;
                labels.label_vbr("stream_id", |stream| format!("stream {stream}"))
            })?;
        }
        for result in 0..record.results().len() {
            labels.label_vbr(format_args!("results[{result}]"), |register| {
                format!("returns register {register}")
            })?;
        }
        labels.label_padding(KERNEL_ALIGNMENT)?;
        let first = labels.cursor.position();
        for (index, table) in record.kernel_table().iter().enumerate() {
            labels.skip_to(first.saturating_add(table.offset), "not used")?;
            labels.nest(format_args!("kernels[{index}]"), |labels| self.label_kernel(index == 0, labels))?;
        }
        Ok(())
    }

    fn label_kernel(&self, first: bool, labels: &mut Labels<'a, '_>) -> Result<()> {
        let is_pseudo = |code| first && matches!(code, 0 | PSEUDO_KERNEL_CODE);
        let code = labels.label_u32("code", |code| match self.kernels.get(code as usize) {
            _ if is_pseudo(code) => "the pseudo kernel".into(),
            Some(name) => shorten(name),
            None => format!("unknown kernel {code}"),
        })?;
        labels.label_u32("location", |offset| match offset {
            0 | PSEUDO_KERNEL_LOCATION if is_pseudo(code) => "the pseudo kernel has none".into(),
            _ => self.describe_location(offset.into()),
        })?;
        let mut counts = [0; 4];
        let nouns = ["argument", "attribute", "function", "result"];
        for ((count, name), noun) in counts.iter_mut().zip(["args", "attrs", "funcs", "results"]).zip(nouns) {
            *count = labels.label_u32(format_args!("num_{name}"), |count| plural(count, noun))?;
        }
        let [arguments, attributes, functions, results] = counts;
        let mut used_bys = Vec::new();
        for index in 0..results {
            let field = format_args!("num_used_bys[{index}]");
            used_bys.push(
                labels.label_u32(field, |count| plural(count, "use") + &format!(" of result {index}"))?,
            );
        }
        for index in 0..arguments {
            labels.label_u32(format_args!("args[{index}]"), |register| format!("register {register}"))?;
        }
        for index in 0..attributes {
            labels.label_u32(format_args!("attrs[{index}]"), |offset| self.describe_attribute(offset))?;
        }
        for index in 0..functions {
            labels.label_u32(format_args!("funcs[{index}]"), |id| match self.index.name(FunctionId(id)) {
                Some("") => format!("function {id}, a region"),
                Some(name) => format!("function {id}, @{}", shorten(name)),
                None => format!("unknown function {id}"),
            })?;
        }
        for index in 0..results {
            labels.label_u32(format_args!("results[{index}]"), |register| format!("register {register}"))?;
        }
        for (result, count) in used_bys.into_iter().enumerate() {
            for index in 0..count {
                let field = format_args!("used_bys[{result}][{index}]");
                labels.label_u32(field, |kernel| format!("kernel {kernel}"))?;
            }
        }
        Ok(())
    }
}
