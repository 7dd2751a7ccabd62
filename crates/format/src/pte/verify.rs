use super::{Header, Program, read_program_with};
use crate::{Limits, Result};

/// A program whose every index, range and size was checked.
#[derive(Debug)]
pub struct VerifiedProgram(Program);

impl VerifiedProgram {
    /// Decodes and verifies the tables of a program.
    pub fn read(program_bytes: &[u8], _header: &Header, limits: &Limits) -> Result<Self> {
        Ok(Self(read_program_with(program_bytes, limits)?))
    }
}

impl std::ops::Deref for VerifiedProgram {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.0
    }
}
