//! A hex view of a BEF file that says what each byte means.

use crate::{Context, Result};
use bef::{FunctionId, FunctionKind, KernelCode, SectionId, Verified, vbr};
use std::fmt::Write;

/// Bytes of one line.
const PER_LINE: usize = 8;
/// Lines of a run of bytes that mean one thing; the rest is left out.
const LONGEST_RUN: usize = 4;

/// Every byte of a valid BEF file in hex, with what it means.
pub fn labelled_bytes(bytes: &[u8], name: &str) -> Result<String> {
    let context = || format!("{name} is not a valid BEF file");
    let program = bef::File::open(bytes).and_then(|file| file.verify()).context(context)?;
    let mut view = View { bytes, at: 0, out: String::new() };
    view.take(2, "magic");
    view.take(1, "version");
    for section in program.file().sections() {
        let name = SectionId::new(section.id).map_or("unknown section", SectionId::name);
        view.heading(&format!("{name} ({} bytes)", section.data.len()));
        view.take(1, &format!("section {}", section.id));
        let word = view.peek_vbr();
        view.vbr(&format!("{} bytes, {}", word >> 1, if word & 1 == 1 { "aligned" } else { "not aligned" }));
        if let Some(alignment) = section.alignment {
            view.take(1, &format!("alignment {alignment}"));
        }
        view.until(section.data.start(), "padding");
        let end = section.data.start() + section.data.len();
        match SectionId::new(section.id) {
            Some(SectionId::Strings | SectionId::LocationStrings) => view.strings(end),
            Some(SectionId::Kernels) => view.names(program.kernel_names(), "kernel"),
            Some(SectionId::Types) => view.names(program.type_names(), "type"),
            Some(SectionId::Attributes) => view.attributes(&program, section.data.start()),
            Some(SectionId::FunctionIndex) => view.function_index(&program),
            Some(SectionId::Functions) => view.functions(&program).context(context)?,
            Some(SectionId::Locations) => view.locations(&program, section.data.start(), end),
            Some(SectionId::AttributeTypes) => view.attribute_types(&program),
            Some(SectionId::AttributeNames) => view.vbrs(end, "function or name"),
            Some(SectionId::RegisterTypes) => view.register_types(&program, end),
            None => {}
        }
        view.until(end, "rest of the section");
    }
    view.until(bytes.len() as u64, "rest of the file");
    Ok(view.out)
}

struct View<'a> {
    bytes: &'a [u8],
    at: usize,
    out: String,
}

impl View<'_> {
    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.out, "\n-- {text}");
    }

    /// The next bytes, which mean one thing.
    fn take(&mut self, count: usize, meaning: &str) {
        let end = self.at.saturating_add(count).min(self.bytes.len());
        let lines = (end - self.at).div_ceil(PER_LINE);
        for (i, line) in self.bytes[self.at..end].chunks(PER_LINE).enumerate() {
            if i == LONGEST_RUN && lines > LONGEST_RUN + 1 {
                let left = end - self.at - LONGEST_RUN * PER_LINE;
                let _ = writeln!(self.out, "{:10} {:24} {left} more bytes", "", "...");
                break;
            }
            let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
            let meaning = if i == 0 { meaning } else { "" };
            let text = format!("{:#010x} {:24} {meaning}", self.at + i * PER_LINE, hex.join(" "));
            let _ = writeln!(self.out, "{}", text.trim_end());
        }
        self.at = end;
    }

    /// All bytes up to an offset of the file, if there are any.
    fn until(&mut self, end: u64, meaning: &str) {
        let end = usize::try_from(end).unwrap_or(usize::MAX).min(self.bytes.len());
        if end > self.at {
            self.take(end - self.at, meaning);
        }
    }

    fn peek_vbr(&self) -> u64 {
        vbr::decode(&self.bytes[self.at..]).map_or(0, |(value, _)| value)
    }

    /// The next integer of variable length.
    fn vbr(&mut self, meaning: &str) -> u64 {
        let (value, len) = vbr::decode(&self.bytes[self.at..]).unwrap_or((0, 1));
        self.take(len, meaning);
        value
    }

    fn vbrs(&mut self, end: u64, meaning: &str) {
        while (self.at as u64) < end {
            let value = self.peek_vbr();
            self.vbr(&format!("{meaning} {value}"));
        }
    }

    /// The next word of four bytes.
    fn word(&mut self, meaning: impl FnOnce(u32) -> String) {
        let word = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk).copied().map(u32::from_le_bytes);
        self.take(4, &meaning(word.unwrap_or(0)));
    }

    fn strings(&mut self, end: u64) {
        while (self.at as u64) < end {
            let rest = &self.bytes[self.at..end as usize];
            let text = rest.split(|b| *b == 0).next().unwrap_or(rest);
            let meaning = format!("{:?}", String::from_utf8_lossy(text));
            self.take((text.len() + 1).min(rest.len()), &meaning);
        }
    }

    /// A count, and as many names.
    fn names(&mut self, names: &[&str], what: &str) {
        self.vbr(&format!("{} {what}s", names.len()));
        for (i, name) in names.iter().enumerate() {
            self.vbr(&format!("{what} {i}: {name}"));
        }
    }

    fn attributes(&mut self, program: &Verified<'_>, start: u64) {
        let Some(types) = program.attribute_types() else { return };
        for (offset, kind) in types.iter() {
            self.until(start + offset, "padding, or the length or the parts of an attribute");
            let next = types.iter().map(|(o, _)| o).filter(|o| *o > offset).min();
            let decoded = u32::try_from(offset).ok().and_then(|o| program.attribute(o).decode(kind).ok());
            let mut value = decoded.map_or_else(String::new, |a| format!("{a:?}"));
            if let Some((cut, _)) = value.char_indices().nth(60) {
                value.truncate(cut);
                value.push('…');
            }
            match next {
                Some(next) => self.until(start + next, &format!("{value} (and padding)")),
                None => {
                    let end =
                        program.file().section(SectionId::Attributes).map_or(0, |r| r.start() + r.len());
                    self.until(end, &value);
                }
            }
        }
    }

    fn function_index(&mut self, program: &Verified<'_>) {
        self.vbr(&format!("{} functions", program.functions().len()));
        for (i, f) in program.functions().iter().enumerate() {
            let kind = match f.kind {
                FunctionKind::Async => "asynchronous",
                FunctionKind::Sync => "synchronous",
                FunctionKind::Native => "native",
            };
            self.take(1, &format!("function {i}: {kind}"));
            self.vbr(&format!("  its record is at {:#x} of the section Functions", f.offset));
            self.vbr(&format!("  its name is {:?}", f.name));
            for (types, what) in [(f.arguments, "argument"), (f.results, "result")] {
                self.vbr(&format!("  {} {what}s", types.len()));
                for t in types {
                    self.vbr(&format!("  {what} of type {}", program.type_name(*t)));
                }
            }
        }
    }

    fn functions(&mut self, program: &Verified<'_>) -> bef::Result<()> {
        let mut order: Vec<(u64, FunctionId)> = Vec::new();
        for (i, f) in program.functions().iter().enumerate() {
            if f.kind != FunctionKind::Native {
                order.push((f.offset, FunctionId(i as u32)));
            }
        }
        order.sort_unstable();
        for (_, id) in order {
            let Some(record) = program.function(id)? else { continue };
            let name = program.functions().name(id).unwrap_or_default();
            self.until(record.start(), "padding");
            self.vbr(&format!("function {} {name:?}: its location", id.0));
            self.vbr(&format!("{} registers", record.register_uses().len()));
            for (r, uses) in record.register_uses().iter().enumerate() {
                self.vbr(&format!("register {r} has {uses} uses"));
            }
            self.vbr(&format!("{} kernels", record.kernel_table().len()));
            for (k, entry) in record.kernel_table().iter().enumerate() {
                self.vbr(&format!("kernel {k} is at {:#x} of the kernels", entry.offset));
                self.vbr(&format!("  waits for {} operands", entry.num_operands));
                self.vbr(&format!("  runs in stream {}", entry.stream_id));
            }
            for (i, r) in record.results().iter().enumerate() {
                self.vbr(&format!("result {i} is register {}", r.0));
            }
            self.until(record.kernels_start(), "padding");
            for (k, kernel) in record.kernels().enumerate() {
                let kernel = kernel?;
                self.until(kernel.start(), "padding");
                let title = match k {
                    0 => "pseudo kernel, which defines the arguments".to_owned(),
                    _ => format!("kernel {k}: {}", program.kernel_name(KernelCode(kernel.code()))),
                };
                self.word(|_| title);
                self.word(|w| format!("  location {w:#x}"));
                self.word(|w| format!("  {w} arguments"));
                self.word(|w| format!("  {w} attributes"));
                self.word(|w| format!("  {w} functions"));
                self.word(|w| format!("  {w} results"));
                for i in 0..kernel.results().len() {
                    self.word(|w| format!("  result {i} is used by {w}"));
                }
                kernel.arguments().iter().for_each(|_| self.word(|w| format!("  argument: register {w}")));
                kernel.attributes().iter().for_each(|_| self.word(|w| format!("  attribute at {w:#x}")));
                kernel.functions().iter().for_each(|_| self.word(|w| format!("  function {w}")));
                kernel.results().iter().for_each(|_| self.word(|w| format!("  result: register {w}")));
                for users in kernel.used_bys() {
                    users.iter().for_each(|_| self.word(|w| format!("  used by kernel {w}")));
                }
            }
        }
        Ok(())
    }

    fn locations(&mut self, program: &Verified<'_>, start: u64, end: u64) {
        let mut starts: Vec<u64> = Vec::new();
        for i in 0..program.functions().len() as u32 {
            let Ok(Some(record)) = program.function(FunctionId(i)) else { continue };
            starts.push(record.location());
            starts.extend(record.kernels().flatten().map(|k| u64::from(k.location())));
        }
        starts.retain(|&o| start + o < end);
        starts.sort_unstable();
        starts.dedup();
        for (i, &offset) in starts.iter().enumerate() {
            self.until(start + offset, "not used");
            let text = match program.location(offset) {
                Ok(Some(location)) => location.to_string(),
                _ => "unknown".to_owned(),
            };
            let next = starts.get(i + 1).map_or(end, |n| start + n);
            self.until(next, &text);
        }
    }

    fn attribute_types(&mut self, program: &Verified<'_>) {
        let Some(types) = program.attribute_types() else { return };
        self.vbr(&format!("{} attributes", types.len()));
        for (offset, kind) in types.iter() {
            self.vbr(&format!("the attribute at {offset:#x}"));
            self.vbr(&format!("  is {kind:?}"));
        }
    }

    fn register_types(&mut self, program: &Verified<'_>, end: u64) {
        self.vbr("number of functions");
        for i in 0..program.functions().len() as u32 {
            let Ok(Some(record)) = program.function(FunctionId(i)) else { continue };
            let registers = record.register_uses().len();
            if self.at as u64 >= end {
                return;
            }
            self.vbr(&format!("function {i} has {registers} registers"));
            for r in 0..registers {
                let t = bef::TypeId(self.peek_vbr() as u32);
                let name = program.type_names().get(t.0 as usize).copied().unwrap_or("?");
                self.vbr(&format!("  register {r} is {name}"));
            }
        }
    }
}
