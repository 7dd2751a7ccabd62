//! Table lookup: a function of one 8-bit value.

use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_operator::Result;
use pteron_tensor::ScalarType;
use std::fmt;
use std::sync::Arc;

/// Maps each element of a `Char` or `Byte` tensor through a table; the element's bits are the index, 0 to 255.
#[derive(Clone, PartialEq, Eq)]
pub struct Lookup(pub Arc<[u8; 256]>);

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup")
    }
}

impl Operation for Lookup {
    fn name(&self) -> &str {
        "lookup"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = &self.0;
        write!(f, "0: {}, 1: {}, .., 254: {}, 255: {}", table[0], table[1], table[254], table[255])
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_same_sizes()?;
        let metas = [operands.input(0)?, operands.output(0)?];
        match metas.iter().all(|meta| matches!(meta.dtype(), ScalarType::Char | ScalarType::Byte)) {
            true => Ok(()),
            false => {
                refuse(format!("a table lookup from {} to {}, expected 8-bit integers", metas[0], metas[1]))
            }
        }
    }
}
