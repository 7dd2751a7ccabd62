//! The bytes of a payload's constants: named data of the program or of a `.ptd`, used where they lie.

use crate::error::{Error, Result, fail};
use crate::payload::{Constant, Payload};
use graph::{Bytes, SharedBytes};
use kernels::compute::{Isa, weight_layout};
use runtime::{FreeableBuffer, NamedDataMap};
use std::collections::HashMap;
use std::sync::Arc;

/// To what constants are aligned where they are used in place; others are copied.
pub(crate) const ALIGNMENT: usize = 16;

/// The bytes of a payload's constants, by key.
#[derive(Default)]
pub(crate) struct Data {
    found: HashMap<String, SharedBytes>,
}

/// The bytes of a constant, and the same elements laid out for this machine.
struct Stored {
    bytes: FreeableBuffer,
    laid_out: Vec<(String, SharedBytes)>,
}

impl Bytes for Stored {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn laid_out(&self, layout: &str) -> Option<SharedBytes> {
        let found = self.laid_out.iter().find(|(name, _)| name == layout);
        found.map(|(_, bytes)| Arc::clone(bytes))
    }
}

impl Data {
    /// Finds the bytes of all constants.
    ///
    /// # Errors
    /// Bytes that are not there, or are fewer than the payload says.
    pub(crate) fn load(payload: &Payload, named: Option<&dyn NamedDataMap>, isa: Isa) -> Result<Self> {
        let (mut data, machine) = (Self::default(), weight_layout(isa));
        for (index, value) in payload.values.iter().enumerate() {
            if let Some(constant) = &value.constant {
                data.need(constant, named, &machine)
                    .map_err(|e| Error::new(format!("constant %{index}: {e}")))?;
            }
        }
        Ok(data)
    }

    /// Bytes that are there already.
    #[cfg(feature = "compile")]
    pub(crate) fn of(found: HashMap<String, SharedBytes>) -> Self {
        Self { found }
    }

    fn need(&mut self, constant: &Constant, named: Option<&dyn NamedDataMap>, machine: &str) -> Result<()> {
        let Some(key) = &constant.key else { return Ok(()) };
        if !self.found.contains_key(key) {
            let map = named.ok_or_else(|| {
                Error::new(format!("its bytes are the named data `{key}`, and there is no named data"))
            })?;
            let bytes = aligned(map, key)?;
            // What is not there, or is laid out for other machines, is laid out anew.
            let fits = |layout: &str| layout.strip_prefix(machine).is_some_and(|rest| rest.starts_with(' '));
            let fitting =
                constant.laid_out.iter().filter(|laid| fits(&laid.layout) && map.contains(&laid.key));
            let laid_out = fitting.map(|laid| {
                let bytes: SharedBytes = Arc::new(aligned(map, &laid.key)?);
                Ok((laid.layout.clone(), bytes))
            });
            let laid_out = laid_out.collect::<Result<_>>()?;
            self.found.insert(key.clone(), Arc::new(Stored { bytes, laid_out }));
        }
        let len = self.found[key].len() as u64;
        if len < constant.bytes {
            return fail(format!("it needs {} bytes of `{key}`, which has {len}", constant.bytes));
        }
        Ok(())
    }

    /// The bytes of a constant.
    pub(crate) fn bytes(&self, constant: &Constant) -> Result<SharedBytes> {
        match &constant.key {
            None => Ok(Arc::new(FreeableBuffer::default())),
            Some(key) => {
                let found = self.found.get(key).map(Arc::clone);
                found.ok_or_else(|| Error::new(format!("no bytes `{key}`")))
            }
        }
    }
}

/// Named data, aligned.
fn aligned(map: &dyn NamedDataMap, key: &str) -> Result<FreeableBuffer> {
    let found = map.data(key);
    let found = found.map_err(|e| Error::new(format!("its bytes are the named data `{key}`: {e}")))?;
    match found.as_ptr().addr().is_multiple_of(ALIGNMENT) {
        true => Ok(found),
        false => FreeableBuffer::from_bytes(&found).map_err(|e| Error::new(e.to_string())),
    }
}
