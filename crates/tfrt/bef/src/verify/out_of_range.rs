use crate::error::{Error, ErrorKind};

#[cold]
pub(super) fn out_of_range_error(at: u64, what: &str, index: u32, count: usize) -> Error {
    Error::new(ErrorKind::OutOfRange, at, format!("{what} {index}"), format!("one below {count}"))
}
