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

/// Adds the byte offset of the field an error is about, or of the nearest field that holds it.
pub(crate) fn place_error(error: Error, locate: impl Fn(&str) -> Option<u64>) -> Error {
    if error.offset().is_some() {
        return error;
    }
    let mut path = error.path();
    loop {
        if let Some(offset) = locate(path) {
            return error.at(offset);
        }
        match path.rfind(['.', '[']) {
            Some(end) => path = &path[..end],
            None => return error,
        }
    }
}
