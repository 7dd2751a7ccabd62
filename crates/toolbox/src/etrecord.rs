//! ETRecords: what an exporter keeps of a program for ExecuTorch's developer tools, in a zip archive.
//!
//! Source of the format: `executorch/devtools/etrecord/_etrecord.py`. An entry called `ETRECORD_V0` identifies it; the maps are
//! JSON, the programs and tensors are of PyTorch's own formats.

mod nodes;

pub use nodes::{Etrecord, SourceNode};

use crate::show::{bytes, count, table};
use crate::{Error, Result, one_line};
use pteron_runtime::{DataLoader, Limits, LoaderReader};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;
use std::io::{self, Read};
use std::sync::Arc;
use zip::ZipArchive;

/// The entry that identifies an ETRecord.
const IDENTIFIER: &str = "ETRECORD_V0";
/// Descriptions of an ETRecord's entries: pairs of the start of an entry's name, and a text.
const KINDS: [(&str, &str); 9] = [
    ("exported_program", "the program as it was exported"),
    ("edge_dialect_exported_program", "the program in the edge dialect"),
    ("et_dialect_graph_module", "the program before it was written"),
    ("debug_handle_map", "for each instruction, the nodes it was made of"),
    ("delegate_map", "for each delegate, the nodes it was made of"),
    ("instruction_id_to_num_outs_map", "for each instruction, its number of outputs"),
    ("reference_outputs", "expected outputs"),
    ("representative_inputs", "inputs"),
    ("export_graph_id", "the identity of the exported graph"),
];

/// The contents of an ETRecord.
#[derive(Debug, Clone, Serialize)]
pub struct EtrecordReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The archive's size in bytes.
    pub bytes: u64,
    /// The entries, in the order of the archive, without the entry that identifies the archive as an ETRecord.
    pub entries: Vec<EtrecordEntry>,
}

#[derive(Debug, Clone, Serialize)]
pub struct EtrecordEntry {
    pub name: String,
    /// The entry's size in bytes.
    pub bytes: u64,
    /// A description of the contents; `None` for an unknown name.
    pub what: Option<&'static str>,
    /// The number of top-level keys, if the entry is a JSON map: methods, if the map is nested by method.
    pub keys: Option<usize>,
}

/// Reports an ETRecord; `None` if the archive is another one.
///
/// # Errors
/// If the file cannot be read as a zip archive, or a map in it is not JSON or larger than the limits allow.
pub(crate) fn report(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<Option<EtrecordReport>> {
    let wrong = |problem: String| Error::bad_file(loader.name(), problem);
    let Some(mut zip) = open(loader)? else { return Ok(None) };
    let mut entries = Vec::new();
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|e| wrong(one_line(&e)))?;
        let (name, bytes) = (entry.name().to_owned(), entry.size());
        if name == IDENTIFIER {
            continue;
        }
        let keys = match name.ends_with("_map") {
            true => Some(count_keys(&mut entry, limits).map_err(|e| wrong(format!("`{name}`: {e}")))?),
            false => None,
        };
        let base = name.split('/').next().unwrap_or_default();
        let kind = KINDS.iter().find(|(start, _)| base.strip_prefix(start).is_some_and(is_kind_suffix));
        entries.push(EtrecordEntry { what: kind.map(|(_, what)| *what), name, bytes, keys });
    }
    let (file, bytes) = (loader.name().to_owned(), loader.size());
    Ok(Some(EtrecordReport { report: crate::inspect::REPORT_VERSION, file, bytes, entries }))
}

/// Whether `rest`, the end of an entry's name, is empty or names one of the parts in which a program is saved.
fn is_kind_suffix(rest: &str) -> bool {
    ["", "_state_dict", "_constants", "_example_inputs"].contains(&rest)
}

/// Opens the archive; `None` if it is no ETRecord.
fn open(loader: &Arc<dyn DataLoader>) -> Result<Option<ZipArchive<LoaderReader>>> {
    let zip = ZipArchive::new(LoaderReader::new(loader));
    let zip = zip.map_err(|e| Error::bad_file(loader.name(), one_line(&e)))?;
    Ok(zip.index_for_name(IDENTIFIER).is_some().then_some(zip))
}

/// The bytes of an entry. Fails if they are more than the limits allow.
fn read_entry(entry: &mut dyn Read, limits: &Limits) -> io::Result<Vec<u8>> {
    let most = limits.format.tensor_bytes;
    let mut bytes = Vec::new();
    entry.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("it is larger than the limit of {most} bytes"))),
        false => Ok(bytes),
    }
}

/// The number of keys of a JSON map.
fn count_keys(entry: &mut dyn Read, limits: &Limits) -> io::Result<usize> {
    match serde_json::from_slice(&read_entry(entry, limits)?)? {
        Value::Object(map) => Ok(map.len()),
        _ => Err(io::Error::other("it is no map")),
    }
}

impl EtrecordReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let entries = match self.entries.len() {
            1 => "1 entry".to_owned(),
            n => format!("{n} entries"),
        };
        let mut out = format!("{}: ETRecord, {}, {entries}\n", self.file, bytes(self.bytes));
        let rows = self.entries.iter().map(|entry| {
            let keys = entry.keys.map_or_else(String::new, |keys| format!(", {}", count(keys, "key")));
            vec![entry.name.clone(), bytes(entry.bytes), format!("{}{keys}", entry.what.unwrap_or("unknown"))]
        });
        let _ = write!(out, "{}", table(rows.collect(), "<><", 2));
        out
    }
}
