use super::FlatTensor;
use crate::{Error, ErrorKind, Limits, Result};

/// Where the parts of a `.ptd` file lie.
#[derive(Debug, Clone)]
pub struct Header {
    /// Where segments start.
    pub segment_base_offset: u64,
    /// Bytes of the tables from the start of the file.
    pub tables_size: u64,
}

impl Header {
    /// Reads the header.
    pub fn parse(_head: &[u8], _file_len: u64) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "", "a reader of .ptd files", "none yet"))
    }

    /// Where the tables lie.
    pub fn tables_range(&self) -> std::ops::Range<u64> {
        0..self.tables_size
    }
}

/// The tables of a `.ptd` file, every index, range and size of which was checked.
#[derive(Debug)]
pub struct VerifiedFlatTensor(FlatTensor);

impl VerifiedFlatTensor {
    /// Decodes and verifies the tables of a file.
    pub fn read(_tables: &[u8], _header: &Header, _limits: &Limits) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "", "a reader of .ptd files", "none yet"))
    }
}

impl std::ops::Deref for VerifiedFlatTensor {
    type Target = FlatTensor;
    fn deref(&self) -> &FlatTensor {
        &self.0
    }
}
