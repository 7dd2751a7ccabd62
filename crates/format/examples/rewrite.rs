//! Reads files and writes them again, to test the writers against other readers.
//!
//! Each line of the standard input is `MODE IN OUT`, separated by tabs. `MODE` is `copy` (the same tables, with every
//! segment at its offset) or `build` (rebuilt with a new layout).

use pteron_format::container::Blob;
use pteron_format::{FileKind, Limits, bpte, etdump, ptd, pte, sniff};
use std::io::BufRead;
use std::ops::Range;

fn rewrite(mode: &str, file: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let head = &file[..file.len().min(64)];
    let (limits, mut out) = (Limits::default(), Vec::new());
    let source = |range: Range<u64>| Blob::bytes(&file[range.start as usize..range.end as usize]);
    match sniff(head) {
        Some(FileKind::Pte) => {
            let header = pte::Header::parse(head, file.len() as u64)?;
            let tables = &file[..usize::try_from(header.program_size)?];
            let program = pte::VerifiedProgram::read(tables, &header, &limits)?;
            let draft = match mode {
                "copy" => pte::Draft::rewrite(&program, source),
                _ => pte::Builder::from_program(&program, source).finish()?,
            };
            draft.write(&mut out)?;
        }
        Some(FileKind::Ptd) => {
            let header = ptd::Header::parse(head, file.len() as u64)?;
            let tables = &file[..usize::try_from(header.tables_size)?];
            let data = ptd::VerifiedFlatTensor::read(tables, &header, &limits)?;
            ptd::Builder::from_flat_tensor(&data, source).write(&mut out)?;
        }
        Some(FileKind::Bpte) => {
            let bundle = bpte::read(file, &limits)?;
            let program = &file[bundle.program.start as usize..bundle.program.end as usize];
            bpte::write(&bundle.method_test_suites, program, &mut out)?;
        }
        Some(FileKind::Etdump) => etdump::write(&etdump::read(file, &limits)?, &mut out)?,
        other => return Err(format!("not a format that is written: {other:?}").into()),
    }
    Ok(out)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [mode, from, to] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("not `MODE IN OUT`: {line}").into());
        };
        let written = rewrite(mode, &std::fs::read(from)?).map_err(|error| format!("{from}: {error}"))?;
        std::fs::write(to, written)?;
    }
    Ok(())
}
