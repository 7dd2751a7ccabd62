use crate::{Error, ErrorKind, Limits, Result};

/// Checks that `tables` has the length that the header promises, and is within the limits.
pub(crate) fn check_tables(tables: &[u8], promised: u64, limits: &Limits) -> Result<()> {
    let actual = tables.len() as u64;
    if promised != actual {
        let expected = format!("the {promised} bytes of the file's tables");
        return Err(Error::new(ErrorKind::Truncated, "", expected, actual).at(actual));
    }
    if promised > limits.program_bytes {
        let most = format!("at most {} bytes of tables", limits.program_bytes);
        return Err(Error::new(ErrorKind::Limit, "", most, promised).at(0));
    }
    Ok(())
}

/// How many bytes of tables may be decoded again to find the offsets of errors.
const LOCATE_BYTES: u64 = 256 << 20;

/// Adds byte offsets to errors: that of the field in question, or of the nearest enclosing field.
///
/// An offset is found by decoding the tables again, so in large files with many errors only the first ones get an
/// offset.
pub(crate) fn add_offsets_to_errors(
    errors: &mut [Error],
    tables: &[u8],
    locate: impl Fn(&str) -> Option<u64>,
) {
    let affordable = (LOCATE_BYTES / (tables.len() as u64).max(1)).max(1);
    let unplaced = errors.iter_mut().filter(|error| error.offset().is_none());
    for error in unplaced.take(usize::try_from(affordable).unwrap_or(usize::MAX)) {
        if let Some(offset) = locate(error.path()) {
            *error = error.clone().at(offset);
        }
    }
}
