//! The header of a packed tensor.

use pteron_operator::{Error, Result, ensure};

/// The number of bytes of a header.
pub(super) const HEADER_BYTES: usize = 64;
const MAGIC: i32 = 6712;

/// The kinds of packed tensors, with the numbers that headers have for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Strips of eight rows, for products with activations of eight bits.
    Linear,
    /// Rows of a table of embeddings.
    Embedding,
    /// As `Linear`, but the elements are indices into a table of values that each strip begins with.
    LinearWithTables,
    /// Strips of four rows of indices into tables of float32.
    Groupwise,
}

/// The kind and the parameters of a packed tensor, and its payload.
pub(super) struct Header<'a> {
    pub(super) kind: Kind,
    pub(super) params: [i32; 14],
    pub(super) payload: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads the header of the packed tensor that is the argument `name`.
    pub(super) fn read(name: &str, bytes: &'a [u8]) -> Result<Self> {
        let Some((header, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
            let actual = bytes.len();
            return Err(Error::invalid(format!("{name}: {actual} bytes are no header of {HEADER_BYTES}")));
        };
        let mut words = header.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let magic = words.next().unwrap_or_default();
        ensure!(magic == MAGIC, "{name}: not packed by torchao: it starts with {magic}, expected {MAGIC}");
        let kind = match words.next().unwrap_or_default() {
            1 => Kind::Linear,
            2 => Kind::Embedding,
            3 => {
                let message =
                    "weights in KleidiAI's layout cannot be read: pack them with the target `universal`";
                return Err(Error::invalid(format!("{name}: {message}")));
            }
            4 => Kind::LinearWithTables,
            5 => Kind::Groupwise,
            other => return Err(Error::invalid(format!("{name}: packed in the unknown layout {other}"))),
        };
        let mut params = [0; 14];
        params.iter_mut().zip(words).for_each(|(param, word)| *param = word);
        Ok(Self { kind, params, payload })
    }

    /// Fails unless the parameters from `first` on are `expected`.
    pub(super) fn expect_params(&self, name: &str, first: usize, expected: &[i32]) -> Result<()> {
        let actual = &self.params[first..first + expected.len()];
        ensure!(actual == expected, "{name}: packed with the parameters {actual:?}, expected {expected:?}");
        Ok(())
    }
}
