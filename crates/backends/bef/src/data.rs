//! The bytes of a payload's constants: named data of the program or of a `.ptd`, read on access. Packed weights for
//! this machine's instruction set are used in place.

use crate::error::{Error, Result, fail};
use crate::payload::{Constant, Payload};
use pteron_engine::{Bytes, Identity, SharedBytes};
use pteron_kernels::compute::{Isa, WeightType, weight_layout};
use pteron_operator::Budget;
use pteron_runtime::{FreeableBuffer, NamedDataMap};
use std::collections::HashMap;
use std::sync::Arc;

/// The alignment in bytes that a constant must have to be used in place; a misaligned one is copied.
pub(crate) const ALIGNMENT: usize = 16;

/// The bytes of a payload's constants, by key.
#[derive(Default)]
pub(crate) struct Data {
    by_key: HashMap<String, SharedBytes>,
}

/// The bytes of a constant, and its packed forms for this machine by layout name.
struct Stored {
    plain: SharedBytes,
    laid_out: Arc<[(String, SharedBytes)]>,
}

impl Bytes for Stored {
    fn bytes(&self) -> &[u8] {
        self.plain.bytes()
    }

    fn len(&self) -> usize {
        self.plain.len()
    }

    fn problem(&self) -> Option<String> {
        self.plain.problem()
    }

    fn identity(&self) -> Option<Identity> {
        self.plain.identity()
    }

    fn reopen(&self) -> Option<SharedBytes> {
        let laid_out = Arc::clone(&self.laid_out);
        Some(Arc::new(Self { plain: self.plain.reopen()?, laid_out }))
    }

    fn laid_out(&self, layout: &str) -> Option<SharedBytes> {
        let packed = self.laid_out.iter().find(|(name, _)| name == layout);
        packed.map(|(_, bytes)| Arc::clone(bytes))
    }
}

/// A constant whose bytes are not loaded, with its length in bytes.
struct Absent(usize);

impl Bytes for Absent {
    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn len(&self) -> usize {
        self.0
    }

    fn problem(&self) -> Option<String> {
        Some("the weights are not loaded".to_owned())
    }
}

impl Data {
    /// Looks up the bytes of all constants. Misaligned ones are copied, counted against the budget `memory`.
    ///
    /// # Errors
    /// Bytes are missing, or fewer than the payload declares; the budget is exhausted.
    pub(crate) fn load(
        payload: &Payload,
        named: Option<&dyn NamedDataMap>,
        isa: Isa,
        memory: &Budget,
    ) -> Result<Self> {
        let (mut data, machine) = (Self::default(), weight_layout(isa, WeightType::F32));
        for (index, value) in payload.values.iter().enumerate() {
            if let Some(constant) = &value.constant {
                data.load_constant(constant, named, &machine, memory)
                    .map_err(|e| Error::new(format!("constant %{index}: {e}")))?;
            }
        }
        Ok(data)
    }

    /// Constants whose bytes are known already, by key.
    #[cfg(feature = "compile")]
    pub(crate) fn from_bytes_by_key(by_key: HashMap<String, SharedBytes>) -> Self {
        Self { by_key }
    }

    /// Constants of a payload that is checked without its named data: they have sizes, but no bytes.
    pub(crate) fn without_bytes(payload: &Payload) -> Self {
        let mut by_key: HashMap<String, SharedBytes> = HashMap::new();
        for constant in payload.values.iter().filter_map(|value| value.constant.as_ref()) {
            if let Some(key) = &constant.key {
                let len = usize::try_from(constant.bytes).unwrap_or(usize::MAX);
                by_key.insert(key.clone(), Arc::new(Absent(len)));
            }
        }
        Self { by_key }
    }

    fn load_constant(
        &mut self,
        constant: &Constant,
        named: Option<&dyn NamedDataMap>,
        machine: &str,
        memory: &Budget,
    ) -> Result<()> {
        let Some(key) = &constant.key else { return Ok(()) };
        if !self.by_key.contains_key(key) {
            let map = named.ok_or_else(|| {
                Error::new(format!("its bytes are the named data `{key}`, and there is no named data"))
            })?;
            let plain = map.constant(key).map_err(|e| unreadable_data_error(key, &e))?;
            let plain = plain
                .aligned(ALIGNMENT, "its constants", memory)
                .map_err(|e| out_of_memory_error(&e))?
                .shared();
            // Packed forms that are missing or for other machines are skipped; those weights are packed again.
            let fits = |layout: &str| layout.strip_prefix(machine).is_some_and(|rest| rest.starts_with(' '));
            let fitting =
                constant.laid_out.iter().filter(|laid| fits(&laid.layout) && map.contains(&laid.key));
            let laid_out = fitting.map(|laid| {
                let bytes = map.data(&laid.key).map_err(|e| unreadable_data_error(&laid.key, &e))?;
                let bytes =
                    bytes.aligned(ALIGNMENT, "its constants", memory).map_err(|e| out_of_memory_error(&e))?;
                Ok((laid.layout.clone(), Arc::new(bytes) as SharedBytes))
            });
            let laid_out = laid_out.collect::<Result<_>>()?;
            self.by_key.insert(key.clone(), Arc::new(Stored { plain, laid_out }));
        }
        let len = self.by_key[key].len() as u64;
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
                // A separate handle, so that the bytes it loads live as long as the graph needs them, not as long as
                // the delegate.
                let bytes =
                    self.by_key.get(key).map(|bytes| bytes.reopen().unwrap_or_else(|| Arc::clone(bytes)));
                bytes.ok_or_else(|| Error::new(format!("no bytes `{key}`")))
            }
        }
    }
}

fn unreadable_data_error(key: &str, e: &pteron_runtime::Error) -> Error {
    Error::new(format!("its bytes are the named data `{key}`: {e}"))
}

fn out_of_memory_error(e: &pteron_operator::Error) -> Error {
    Error::new(e.to_string())
}
