use crate::{Error, ErrorKind, Limits, Result};

/// Checks that `tables` are the bytes that the header promised, and not too many.
pub(crate) fn check_tables(tables: &[u8], promised: u64, limits: &Limits) -> Result<()> {
    let found = tables.len() as u64;
    if promised != found {
        let expected = format!("the {promised} bytes of the file's tables");
        return Err(Error::new(ErrorKind::Truncated, "", expected, found).at(found));
    }
    if promised > limits.program_bytes {
        let most = format!("at most {} bytes of tables", limits.program_bytes);
        return Err(Error::new(ErrorKind::Limit, "", most, promised).at(0));
    }
    Ok(())
}

/// Bytes of tables that are read again, over all errors, to find their offsets.
const LOCATE_BYTES: u64 = 256 << 20;

/// Adds to errors the byte offsets of the fields they are about, or of the nearest that hold them.
///
/// An offset is found by reading the tables again, so in large files with many errors only the first
/// ones get one.
pub(crate) fn place_errors(errors: &mut [Error], tables: &[u8], locate: impl Fn(&str) -> Option<u64>) {
    let affordable = (LOCATE_BYTES / (tables.len() as u64).max(1)).max(1);
    let unplaced = errors.iter_mut().filter(|error| error.offset().is_none());
    for error in unplaced.take(usize::try_from(affordable).unwrap_or(usize::MAX)) {
        if let Some(offset) = locate(error.path()) {
            *error = error.clone().at(offset);
        }
    }
}
