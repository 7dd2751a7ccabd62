//! Weights that a payload stores in another encoding than linear layers take them: each matrix is decoded when it is
//! packed, so that the decoded weights of a program never lie in memory together.

use super::Raise;
use crate::error::Result;
use crate::payload::Value;
use pteron_engine::{Bytes, Constant, Identity, SharedBytes, ValueId};
use pteron_operator::{Budget, CountedTensor};
use pteron_runtime::ConstantBytes;
use pteron_tensor::{ScalarType, TensorMeta};
use std::sync::{Arc, OnceLock};

/// What decoded weights are called in the error for an exhausted memory budget.
const DECODED: &str = "its decoded weights";

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Signed 4-bit values with 8 added, two in a byte, the first in the lower bits. Every row starts at a whole byte.
    Nibbles,
    /// Signed 8-bit values with 128 added.
    Offset,
}

impl Encoding {
    /// The name of the function that decodes the stored bytes, for [`Identity::transformed_by`].
    fn name(self) -> &'static str {
        match self {
            Self::Nibbles => "weights of nibbles",
            Self::Offset => "weights of bytes with an offset",
        }
    }

    /// Decodes `stored` to `weights`: rows of `columns` signed bytes.
    fn decode(self, stored: &[u8], columns: usize, weights: &mut [u8]) {
        match self {
            Self::Nibbles => unpack_nibbles(stored, columns, weights),
            Self::Offset => weights.iter_mut().zip(stored).for_each(|(to, &x)| *to = x ^ 0x80),
        }
    }
}

/// Unpacks 4-bit values, -8 to 7, into rows of `columns` signed bytes. Each packed byte holds two values, plus 8, low
/// nibble first; rows are padded to whole bytes.
pub(crate) fn unpack_nibbles(packed: &[u8], columns: usize, values: &mut [u8]) {
    let stride = columns.div_ceil(2);
    for (row, bytes) in values.chunks_exact_mut(columns.max(1)).zip(packed.chunks(stride.max(1))) {
        let (pairs, last) = row.as_chunks_mut::<2>();
        for (pair, &byte) in pairs.iter_mut().zip(bytes) {
            *pair = [(byte & 15).wrapping_sub(8), (byte >> 4).wrapping_sub(8)];
        }
        if let ([value], Some(&byte)) = (last, bytes.get(columns / 2)) {
            *value = (byte & 15).wrapping_sub(8);
        }
    }
}

impl Raise<'_> {
    /// Constant weights as signed values of a byte each, decoded when something reads them.
    pub(super) fn decoded_weights(&mut self, value: &Value, encoding: Encoding) -> Result<ValueId> {
        let meta = TensorMeta::contiguous(ScalarType::Char, &value.dims)?;
        let decoded = Decoded {
            stored: self.data.reopen_value(value)?,
            encoding,
            meta: meta.clone(),
            budget: self.emit.graph.budget().clone(),
            weights: OnceLock::new(),
        };
        Ok(self.emit.graph.constant(meta, Constant::Shared(Arc::new(decoded))))
    }
}

struct Decoded {
    stored: ConstantBytes,
    encoding: Encoding,
    meta: TensorMeta,
    budget: Budget,
    weights: OnceLock<Result<CountedTensor, String>>,
}

impl Decoded {
    fn weights(&self) -> &Result<CountedTensor, String> {
        self.weights.get_or_init(|| {
            let stored = self.stored.reopen();
            stored.read().map_err(|e| pteron_runtime::one_line(&e))?;
            let decoded = CountedTensor::zeros(self.meta.clone(), DECODED, &self.budget);
            let mut decoded = decoded.map_err(|e| e.to_string())?;
            let columns = self.meta.sizes().last().copied().unwrap_or(1);
            self.encoding.decode(&stored, columns, decoded.view_mut().bytes_mut());
            Ok(decoded)
        })
    }
}

impl Bytes for Decoded {
    fn bytes(&self) -> &[u8] {
        self.weights().as_ref().map_or(&[], |weights| weights.bytes())
    }

    fn len(&self) -> usize {
        self.meta.nbytes()
    }

    fn problem(&self) -> Option<String> {
        self.weights().as_ref().err().cloned()
    }

    fn identity(&self) -> Option<Identity> {
        self.stored.identity().map(|stored| stored.transformed_by(self.encoding.name()))
    }

    fn reopen(&self) -> Option<SharedBytes> {
        Some(Arc::new(Self {
            stored: self.stored.reopen(),
            encoding: self.encoding,
            meta: self.meta.clone(),
            budget: self.budget.clone(),
            weights: OnceLock::new(),
        }))
    }
}
