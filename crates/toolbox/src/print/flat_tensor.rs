use crate::show::{bytes, count, items, layout, quoted, write_table};
use pteron_runtime::PtdDataMap;
use std::fmt::{self, Write};

pub(super) fn print(out: &mut dyn Write, data: &PtdDataMap) -> fmt::Result {
    let (tables, header) = (data.tables(), data.header());
    writeln!(out, "named data, schema version {}, {}", tables.version, bytes(header.file_len))?;
    writeln!(
        out,
        "header of {} bytes: flatbuffer of {} bytes pushed back by {}; segments from byte {}, {} bytes",
        header.length,
        header.flatbuffer_size,
        header.flatbuffer_offset,
        header.segment_base_offset,
        header.segment_data_size
    )?;
    if !tables.unknown_fields().is_empty() {
        writeln!(out, "fields of a newer schema: {}", items(tables.unknown_fields().iter()))?;
    }
    writeln!(out, "\n{}", count(tables.segments.len(), "segment"))?;
    let rows = tables
        .segments
        .iter()
        .enumerate()
        .map(|(i, s)| vec![i.to_string(), format!("+{}", s.offset), format!("{} bytes", s.size)]);
    write_table(out, rows, ">>>", 2)?;
    writeln!(out, "\nentries: {}", tables.named_data.len())?;
    let rows = tables.named_data.iter().map(|entry| {
        let range = tables.data_range(entry);
        vec![
            quoted(&entry.key).to_string(),
            entry.tensor_layout.as_ref().map_or_else(|| "blob".to_owned(), layout),
            format!("{} bytes", range.end - range.start),
            match entry.segment_offset {
                0 => format!("segment {}", entry.segment_index),
                at => format!("segment {} +{at}", entry.segment_index),
            },
        ]
    });
    write_table(out, rows, "<<><", 2)
}
