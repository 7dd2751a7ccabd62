//! The bytes of a payload's constants: named data of the program or of a `.ptd`, used where they lie.

use crate::error::{Error, Result, fail};
use crate::payload::{Constant, Payload};
use runtime::{FreeableBuffer, NamedDataMap};
use std::collections::HashMap;
use std::sync::Arc;

/// To what constants are aligned where they are used in place; others are copied.
pub(crate) const ALIGNMENT: usize = 16;

/// The bytes of a payload's constants, by key.
#[derive(Default)]
pub(crate) struct Data {
    found: HashMap<String, Arc<FreeableBuffer>>,
    none: Arc<FreeableBuffer>,
}

impl Data {
    /// Finds the bytes of all constants.
    ///
    /// # Errors
    /// Bytes that are not there, or are fewer than the payload says.
    pub(crate) fn load(payload: &Payload, named: Option<&dyn NamedDataMap>) -> Result<Self> {
        let mut data = Self::default();
        for (index, value) in payload.values.iter().enumerate() {
            if let Some(constant) = &value.constant {
                data.need(constant, named).map_err(|e| Error::new(format!("constant %{index}: {e}")))?;
            }
        }
        Ok(data)
    }

    /// A table of bytes that are there already.
    #[cfg(feature = "compile")]
    pub(crate) fn of(found: HashMap<String, Arc<FreeableBuffer>>) -> Self {
        Self { found, none: Arc::default() }
    }

    fn need(&mut self, constant: &Constant, named: Option<&dyn NamedDataMap>) -> Result<()> {
        let Some(key) = &constant.key else { return Ok(()) };
        if !self.found.contains_key(key) {
            let map = named.ok_or_else(|| {
                Error::new(format!("its bytes are the named data `{key}`, and there is no named data"))
            })?;
            let found = map.data(key);
            let found =
                found.map_err(|e| Error::new(format!("its bytes are the named data `{key}`: {e}")))?;
            let is_aligned = found.as_ptr().addr().is_multiple_of(ALIGNMENT);
            let found = match is_aligned {
                true => found,
                false => FreeableBuffer::from_bytes(&found).map_err(|e| Error::new(e.to_string()))?,
            };
            self.found.insert(key.clone(), Arc::new(found));
        }
        let len = self.found[key].len() as u64;
        if len < constant.bytes {
            return fail(format!("it needs {} bytes of `{key}`, which has {len}", constant.bytes));
        }
        Ok(())
    }

    /// The bytes of a constant.
    pub(crate) fn bytes(&self, constant: &Constant) -> Result<&Arc<FreeableBuffer>> {
        match &constant.key {
            None => Ok(&self.none),
            Some(key) => self.found.get(key).ok_or_else(|| Error::new(format!("no bytes `{key}`"))),
        }
    }
}
