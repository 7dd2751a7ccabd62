use super::{Class, Notes};
use crate::Result;
use crate::show::{items, layout, quoted};
use pteron_format::ptd::NamedData;
use pteron_runtime::PtdDataMap;

pub(super) fn diff(a: &PtdDataMap, b: &PtdDataMap, notes: &mut Notes) -> Result<()> {
    let what = |data: &PtdDataMap, entry: &NamedData| {
        let range = data.tables().data_range(entry);
        let kind = entry.tensor_layout.as_ref().map_or_else(|| "blob".to_owned(), layout);
        format!("{kind}, {} bytes", range.end - range.start)
    };
    let header = |data: &PtdDataMap| {
        let header = data.header();
        let starts = data.tables().segments.iter().filter(|s| s.size > 0).map(|s| s.offset);
        let alignment =
            super::alignment_of(starts.fold(header.segment_base_offset, |all, start| all | start));
        format!("header of {} bytes, segments aligned to {alignment}", header.length)
    };
    notes.compare(Class::Form, || "header".to_owned(), &header(a), &header(b));
    let unknown = |data: &PtdDataMap| items(data.tables().unknown_fields().iter());
    notes.compare(Class::Form, || "fields of a newer schema".to_owned(), &unknown(a), &unknown(b));
    for entry in &a.tables().named_data {
        let place = || format!("entry {}", quoted(&entry.key));
        let Some(other) = b.tables().get(&entry.key) else {
            notes.note(Class::Meaning, place(), Some(what(a, entry)), None);
            continue;
        };
        if entry.tensor_layout != other.tensor_layout {
            notes.compare(Class::Meaning, place, &what(a, entry), &what(b, other));
            continue;
        }
        let (range_a, range_b) = (a.tables().data_range(entry), b.tables().data_range(other));
        notes.compare_bytes(place, (a.loader(), range_a), (b.loader(), range_b))?;
    }
    for entry in b.tables().named_data.iter().filter(|entry| a.tables().get(&entry.key).is_none()) {
        notes.note(Class::Meaning, format!("entry {}", quoted(&entry.key)), None, Some(what(b, entry)));
    }
    Ok(())
}
