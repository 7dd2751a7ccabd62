use super::{
    ArraysReport, FlatTensorReport, GgufReport, HeaderReport, MethodReport, ProgramReport, Report,
    SymbolReport, ValueReport,
};
#[cfg(feature = "bef")]
use crate::bef::BefReport;
use crate::bundle::BundleReport;
use crate::show::{bytes, count, line, name, write_table};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The level of detail of [`write_text`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Detail {
    /// Whether long lists are shown completely.
    pub all: bool,
    /// Whether values and instructions of methods are counted by kind.
    pub counts: bool,
}

/// Number of rows of a long list that are shown by default; a list of one more row is shown whole.
const FEW: usize = 12;

/// The report as text. Long lists are truncated unless `all` is set. The text is not stable across releases; use the
/// JSON form in programs.
pub fn text(report: &Report, all: bool) -> String {
    let mut out = String::new();
    let written = write_text(&mut out, report, Detail { all, counts: false });
    debug_assert!(written.is_ok(), "a String takes all text");
    out
}

/// As [`text`], but writes the text as it is made, so that not all of it is in memory.
///
/// # Errors
/// If `out` takes no more text.
pub fn write_text(out: &mut dyn Write, report: &Report, detail: Detail) -> fmt::Result {
    let all = detail.all;
    match report {
        Report::Pte(program) => write_program(out, program, detail),
        Report::Ptd(file) => write_flat_tensor(out, file, all),
        #[cfg(feature = "bef")]
        Report::Bef(program) => write_bef(out, program, all),
        Report::Bpte(bundle) => write_bundle(out, bundle, detail),
        Report::Etdump(dump) => out.write_str(&dump.text()),
        Report::Etrecord(record) => out.write_str(&record.text()),
        Report::Gguf(file) => write_gguf(out, file, all),
        Report::Safetensors(file) => write_arrays(out, file, "safetensors", all),
        Report::Npz(file) => write_arrays(out, file, "NumPy arrays", all),
        Report::Npy(file) => write_arrays(out, file, "NumPy array", all),
    }
}

fn write_arrays(out: &mut dyn Write, f: &ArraysReport, format: &str, all: bool) -> fmt::Result {
    writeln!(out, "{}: {format}, {} ({} read)", f.file, bytes(f.bytes), bytes(f.bytes_read))?;
    let metadata = f.metadata.iter().map(|(key, text)| (key.as_str(), text.clone()));
    let tensors = f.tensors.iter().map(|t| (t.name.as_str(), t.ty.clone(), t.bytes));
    write_named_tensors(out, metadata, tensors, all)
}

fn write_gguf(out: &mut dyn Write, f: &GgufReport, all: bool) -> fmt::Result {
    writeln!(
        out,
        "{}: GGUF version {}, {} ({} read)",
        f.file,
        f.version,
        bytes(f.bytes),
        bytes(f.bytes_read)
    )?;
    let metadata = f.metadata.iter().map(|(key, value)| {
        let text = match (value.get("len"), value.get("first")) {
            (Some(len), Some(_)) => format!("{len} values"),
            _ => value.to_string(),
        };
        (key.as_str(), text)
    });
    let tensors = f.tensors.iter().map(|t| (t.name.as_str(), format!("{}{:?}", t.kind, t.sizes), t.bytes));
    write_named_tensors(out, metadata, tensors, all)
}

/// Writes the metadata of a file, and its tensors: name, type and bytes of each.
fn write_named_tensors<'r>(
    out: &mut dyn Write,
    metadata: impl ExactSizeIterator<Item = (&'r str, String)>,
    tensors: impl ExactSizeIterator<Item = (&'r str, String, u64)> + Clone,
    all: bool,
) -> fmt::Result {
    if metadata.len() > 0 {
        writeln!(out, "\nmetadata: {}", metadata.len())?;
        let rows = metadata.map(|(key, text)| vec![name(key).to_string(), name(&text).to_string()]);
        write_truncated(out, rows, all, "<<", 2)?;
    }
    let total = tensors.clone().map(|(_, _, len)| len).sum();
    writeln!(out, "\ntensors: {}, {} in all", tensors.len(), bytes(total))?;
    let rows = tensors.map(|(key, ty, len)| vec![bytes(len), ty, name(key).to_string()]);
    write_truncated(out, rows, all, "><<", 2)
}

fn write_program(out: &mut dyn Write, p: &ProgramReport, detail: Detail) -> fmt::Result {
    let all = detail.all;
    match (&p.header, p.compiled_bytes) {
        (Some(header), _) => write_header(out, p, header)?,
        (None, compiled) => {
            let (file, compiled) = (bytes(p.bytes), bytes(compiled.unwrap_or(0)));
            writeln!(out, "{}: torch.export archive, {file}; compiled, a program of {compiled}", p.file)?;
        }
    }
    for method in &p.methods {
        writeln!(out)?;
        write_method(out, method, detail)?;
    }
    for method in &p.invalid_methods {
        let unnamed = method.name.as_deref().unwrap_or("without a name");
        writeln!(out, "\nmethod {}, which is not valid: {}", name(unnamed), line(&method.problem))?;
        method
            .unknown
            .iter()
            .try_for_each(|unknown| writeln!(out, "  unknown to this reader: {}", line(unknown)))?;
        if let Some(readable) = &method.readable {
            write_method_contents(out, readable, detail)?;
        }
    }

    if let Some(task) = &p.task {
        crate::task::write_text(out, task)?;
    }
    if !p.segments.is_empty() {
        writeln!(out, "\nsegments")?;
        let rows = p.segments.iter().enumerate().map(|(i, s)| {
            let holds = match s.holds.as_slice() {
                [] => "nothing that is used".to_owned(),
                [one] => one.clone(),
                [first, rest @ ..] => format!("{first}, and {} more", rest.len()),
            };
            vec![i.to_string(), bytes(s.bytes), format!("at byte {}", s.offset), holds]
        });
        write_truncated(out, rows, all, ">><<", 2)?;
    }
    if !p.named_data.is_empty() {
        writeln!(out, "\nnamed data")?;
        let rows = p.named_data.iter().map(|n| vec![bytes(n.bytes), name(&n.key).to_string()]);
        write_truncated(out, rows, all, "><", 2)?;
    }
    if !p.constants.is_empty() {
        let total = p.constants.iter().map(|c| c.bytes).sum();
        writeln!(out, "\nconstants: {}, {} in all", p.constants.len(), bytes(total))?;
        let several = p.methods.len() > 1;
        let rows = p.constants.iter().map(|c| {
            let mut what = c.name.as_deref().map_or_else(String::new, |text| name(text).to_string());
            if c.mutable {
                what = format!("{what} (initial value)").trim_start().to_owned();
            }
            if several {
                what = format!("{what} in {}", c.methods.join(", ")).trim_start().to_owned();
            }
            vec![bytes(c.bytes), format!("{}{:?}{}", c.dtype, c.sizes, dim_order_note(&c.dim_order)), what]
        });
        write_truncated(out, rows, all, "><<", 2)?;
    }
    Ok(())
}

fn write_header(out: &mut dyn Write, p: &ProgramReport, header: &HeaderReport) -> fmt::Result {
    writeln!(out, "{}: ExecuTorch program, {} ({} read)", p.file, bytes(p.bytes), bytes(p.bytes_read))?;
    write!(out, "header: ")?;
    match &header.extended {
        None => write!(out, "plain, no segments")?,
        Some(e) => {
            write!(out, "extended, {} bytes; segments from byte {}", e.length, e.segment_base_offset)?;
            if let Some(size) = e.segment_data_size {
                write!(out, ", {}", bytes(size))?;
            }
        }
    }
    writeln!(out, "; tables {}; schema version {}", bytes(header.program_size), p.version)
}

fn write_bundle(out: &mut dyn Write, b: &BundleReport, detail: Detail) -> fmt::Result {
    writeln!(out, "{}: bundled program, {}; schema version {}", b.file, bytes(b.bytes), b.version)?;
    for suite in &b.suites {
        writeln!(out, "\ntest cases of {}", name(&suite.method))?;
        let rows = suite.cases.iter().enumerate().map(|(i, case)| {
            let outputs = case.outputs.join(" ");
            vec![
                i.to_string(),
                case.inputs.join(" "),
                if outputs.is_empty() { outputs } else { format!("-> {outputs}") },
            ]
        });
        write_truncated(out, rows, detail.all, "><<", 2)?;
    }
    writeln!(out)?;
    write_program(out, &b.program, detail)
}

#[cfg(feature = "bef")]
fn write_bef(out: &mut dyn Write, p: &BefReport, all: bool) -> fmt::Result {
    writeln!(out, "{}: BEF program, {}", p.file, bytes(p.bytes))?;
    writeln!(out, "\nsections")?;
    let rows = p.sections.iter().map(|s| {
        let section = s.name.map_or_else(|| format!("unknown section {}", s.id), str::to_owned);
        vec![section, bytes(s.bytes), format!("at byte {}", s.data_offset)]
    });
    write_table(out, rows, "<>>", 2)?;
    writeln!(out, "\nfunctions: {}", p.functions.len())?;
    let rows = p.functions.iter().map(|f| {
        let called = if f.name.is_empty() { "(region)" } else { &f.name };
        let types = format!("({}) -> ({})", f.arguments.join(", "), f.results.join(", "));
        let size = match (f.kernels, f.streams) {
            (Some(kernels), Some(streams)) => {
                format!("{}, {}", count(kernels, "kernel"), count(streams, "stream"))
            }
            _ => String::new(),
        };
        vec![name(called).to_string(), f.kind.to_owned(), size, types, f.location.clone().unwrap_or_default()]
    });
    write_truncated(out, rows, all, "<<<<<", 2)?;
    writeln!(out, "\nkernels: {}", p.kernels.len())?;
    let rows = p.kernels.iter().map(|k| {
        let missing = if k.supported { "" } else { "missing here" };
        vec![k.calls.to_string(), name(&k.name).to_string(), missing.to_owned()]
    });
    write_truncated(out, rows, all, "><<", 2)?;
    if !p.attributes.is_empty() {
        writeln!(out, "\nattributes: {}", p.attributes.len())?;
        let rows =
            p.attributes.iter().map(|a| vec![format!("{:#x}", a.offset), a.kind.clone(), a.value.clone()]);
        write_truncated(out, rows, all, "><<", 2)?;
    }
    Ok(())
}

fn write_method(out: &mut dyn Write, m: &MethodReport, detail: Detail) -> fmt::Result {
    writeln!(out, "method {}", name(&m.name))?;
    write_method_contents(out, m, detail)?;
    match &m.missing {
        None => writeln!(out, "  runs here: yes"),
        Some(missing) => {
            writeln!(out, "  runs here: no")?;
            missing.sentences.iter().try_for_each(|sentence| writeln!(out, "    {}", line(sentence)))
        }
    }
}

fn write_method_contents(out: &mut dyn Write, m: &MethodReport, detail: Detail) -> fmt::Result {
    let all = detail.all;
    for (what, values) in [("inputs", &m.inputs), ("outputs", &m.outputs)] {
        writeln!(out, "  {what}{}", if values.is_empty() { ": none" } else { "" })?;
        let named = values.iter().any(|value| value.name.is_some());
        let rows = values.iter().enumerate().map(|(i, v)| match named {
            true => vec![
                i.to_string(),
                v.name.as_deref().map_or_else(String::new, |n| name(n).to_string()),
                value_text(v),
            ],
            false => vec![i.to_string(), value_text(v)],
        });
        write_table(out, rows, if named { "><<" } else { "><" }, 4)?;
    }
    if !m.symbols.is_empty() {
        let bounds = |(symbol, range): (&String, &SymbolReport)| match range.max {
            Some(max) => format!("{} from {} to {max}", name(symbol), range.min),
            None => format!("{} at least {}", name(symbol), range.min),
        };
        let list: Vec<String> = m.symbols.iter().map(bounds).collect();
        writeln!(out, "  sizes: {}", list.join(", "))?;
    }
    let calls: usize = m.operators.iter().map(|o| o.calls).sum();
    if calls > 0 {
        writeln!(out, "  operators: {} in {}", m.operators.len(), count(calls, "call"))?;
        let rows = m.operators.iter().map(|o| {
            let note = if o.available { "" } else { "  (no kernel here)" };
            vec![o.calls.to_string(), format!("{}{note}", name(&o.name))]
        });
        write_truncated(out, rows, all, "><", 4)?;
    }
    if detail.counts {
        let counts = |counts: &BTreeMap<String, usize>| {
            counts.iter().map(|(kind, n)| format!("{n} {kind}")).collect::<Vec<_>>().join(", ")
        };
        writeln!(out, "  values: {}", counts(&m.values))?;
        writeln!(out, "  instructions: {}", counts(&m.instructions.0))?;
    }
    let others: Vec<String> = m
        .instructions
        .0
        .iter()
        .filter(|(kind, _)| *kind != "KernelCall")
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    if !others.is_empty() {
        writeln!(out, "  other instructions: {}", others.join(", "))?;
    }
    if !m.delegates.is_empty() {
        let total = m.delegates.iter().map(|d| d.bytes).sum();
        writeln!(out, "  delegates: {}, {} of payload", m.delegates.len(), bytes(total))?;
        let rows = m.delegates.iter().map(|d| {
            let magic = d.magic.as_deref().unwrap_or("payload of unknown kind");
            vec![
                d.index.to_string(),
                name(&d.backend).to_string(),
                bytes(d.bytes),
                magic.to_owned(),
                count(d.calls, "call"),
                specs_text(&d.compile_spec_values, all),
            ]
        });
        write_truncated(out, rows, all, "><><<<", 4)?;
    }
    if !m.arenas.is_empty() {
        writeln!(out, "  memory plan")?;
        let rows = m.arenas.iter().map(|a| {
            let device = a.device.as_deref().unwrap_or("");
            let tensors = count(a.tensors, "tensor");
            vec![format!("arena {}", a.memory_id), bytes(a.bytes), format!("{tensors} {device}")]
        });
        write_table(out, rows, "<><", 4)?;
    }
    let t = &m.tensors;
    let counts = [
        (t.constant, "constant"),
        (t.planned, "planned"),
        (t.mutable, "planned with initial value"),
        (t.unplanned, "unplanned"),
        (t.external, "outside the file"),
    ];
    let counts: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let devices = t.devices.iter().map(|(device, n)| format!("{n} on {device}"));
    let counts: Vec<String> = counts.into_iter().chain(devices).collect();
    if !counts.is_empty() {
        writeln!(out, "  tensors: {}", counts.join(", "))?;
    }
    if t.external > 0 {
        let rows = t.external_keys.iter().map(|k| vec![name(k).to_string()]);
        write_truncated(out, rows, all, "<", 4)?;
    }
    Ok(())
}

/// The compile specs of a delegate: a few of them, unless `all` is set.
fn specs_text(values: &BTreeMap<String, String>, all: bool) -> String {
    let shown = values.iter().take(if all { usize::MAX } else { 3 });
    let shown: Vec<String> = shown.map(|(key, value)| format!("{}={value}", name(key))).collect();
    let more = match values.len() - shown.len() {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    shown.join(", ") + &more
}

fn value_text(v: &ValueReport) -> String {
    let Some(dtype) = &v.dtype else {
        return match &v.traced {
            Some(fixed) => format!("{} {}, fixed by the exporter", v.kind, fixed["value"]),
            None => v.kind.clone(),
        };
    };
    let mut text = format!("{dtype}{:?}", v.sizes.as_deref().unwrap_or(&[]));
    text.push_str(&dim_order_note(v.dim_order.as_deref().unwrap_or(&[])));
    match (&v.allowed, v.dynamic) {
        (Some(allowed), Some(true)) => {
            text.push_str(&format!(", sizes at most these: [{}]", allowed.join(", ")));
        }
        (None, Some(true)) => text.push_str(", sizes at most these"),
        _ => {}
    }
    if v.planned == Some(false) {
        text.push_str(", unplanned");
    }
    if let Some(device) = &v.device {
        text.push_str(&format!(", on {device}"));
    }
    text
}

/// A note on the dim order; empty if it is row-major.
fn dim_order_note(order: &[u8]) -> String {
    match order.iter().enumerate().all(|(i, &d)| i == usize::from(d)) {
        true => String::new(),
        false => format!(" in dim order {order:?}"),
    }
}

fn write_flat_tensor(out: &mut dyn Write, f: &FlatTensorReport, all: bool) -> fmt::Result {
    writeln!(out, "{}: named data, {} ({} read)", f.file, bytes(f.bytes), bytes(f.bytes_read))?;
    let total = f.segments.iter().sum();
    let segments = count(f.segments.len(), "segment");
    writeln!(out, "schema version {}; {segments}, {}", f.version, bytes(total))?;
    writeln!(out, "\nentries: {}", f.entries.len())?;
    let rows = f.entries.iter().map(|e| {
        let mut what = match (&e.dtype, &e.sizes) {
            (Some(dtype), Some(sizes)) => format!("{dtype}{sizes:?}"),
            _ => "blob".to_owned(),
        };
        what.push_str(&dim_order_note(e.dim_order.as_deref().unwrap_or(&[])));
        vec![bytes(e.bytes), name(&e.key).to_string(), what, format!("segment {}", e.segment)]
    });
    write_truncated(out, rows, all, "><<<", 2)
}

/// Writes a table, truncated to [`FEW`] rows unless `all` is set or it has only one row more.
fn write_truncated(
    out: &mut dyn Write,
    rows: impl ExactSizeIterator<Item = Vec<String>>,
    all: bool,
    align: &str,
    indent: usize,
) -> fmt::Result {
    let more = rows.len().saturating_sub(FEW);
    if !all && more > 1 {
        write_table(out, rows.take(FEW), align, indent)?;
        return writeln!(out, "{:indent$}… and {more} more (--all shows them)", "");
    }
    write_table(out, rows, align, indent)
}
