//! What a method needs and the registries lack.

use super::text::list_names;
use pteron_operator::shown;
use std::fmt;

/// All operators and backends that a method needs and the registries lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// The method.
    pub method: String,
    /// Operators without a kernel.
    pub operators: Vec<MissingOperator>,
    /// Backends that are not registered or not available.
    pub backends: Vec<MissingBackend>,
    /// Arenas on devices that this runtime cannot allocate on: it has the CPU only.
    pub arenas: Vec<MissingDevice>,
}

/// An operator without a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingOperator {
    /// The operator's full name.
    pub name: String,
    /// The number of instructions that call the operator.
    pub calls: usize,
    /// Names of similar operators in the registry.
    pub similar: Vec<String>,
}

/// An arena that a memory plan places on a device that this runtime does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingDevice {
    /// The method.
    pub method: String,
    /// The arena, counted from 1.
    pub memory_id: usize,
    /// The device: `CUDA:1`.
    pub device: String,
}

/// A backend that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingBackend {
    /// The backend's id.
    pub id: String,
    /// The number of delegates that need the backend.
    pub delegates: usize,
    /// Total bytes of the payloads that need the backend.
    pub payload_bytes: u64,
    /// Whether the backend is registered, but reports that it is not available.
    pub unavailable: bool,
}

impl Missing {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.operators.is_empty() && self.backends.is_empty() && self.arenas.is_empty()
    }
}

impl Missing {
    /// Adds what another method of the program is missing.
    pub fn merge(&mut self, other: Missing) {
        self.arenas.extend(other.arenas);
        for op in other.operators {
            match self.operators.iter_mut().find(|o| o.name == op.name) {
                Some(known) => known.calls += op.calls,
                None => self.operators.push(op),
            }
        }
        for backend in other.backends {
            match self.backends.iter_mut().find(|b| b.id == backend.id) {
                Some(known) => {
                    known.delegates += backend.delegates;
                    known.payload_bytes = known.payload_bytes.saturating_add(backend.payload_bytes);
                }
                None => self.backends.push(backend),
            }
        }
    }

    /// One sentence for each missing operator, then one for each missing backend, then one for each arena on a missing device.
    pub fn sentences(&self) -> Vec<String> {
        let operators = self.operators.iter().map(MissingOperator::to_string);
        let backends = self.backends.iter().map(MissingBackend::to_string);
        operators.chain(backends).chain(self.arenas.iter().map(MissingDevice::to_string)).collect()
    }
}

impl fmt::Display for MissingOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no kernel for the operator `{}` ({})", shown(&self.name), count_text(self.calls, "call"))?;
        if !self.similar.is_empty() {
            write!(f, "; there is {}", list_names(&self.similar))?;
        }
        Ok(())
    }
}

impl fmt::Display for MissingBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.unavailable { "is not available on this machine" } else { "is not registered" };
        let delegates = count_text(self.delegates, "delegate");
        write!(
            f,
            "the backend `{}` {why} ({delegates}, {} bytes of payload)",
            shown(&self.id),
            self.payload_bytes
        )
    }
}

impl fmt::Display for MissingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, memory_id, device } = self;
        write!(
            f,
            "arena {memory_id} of `{}` is on the device {device}; there is only the CPU here",
            shown(method)
        )
    }
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "method `{}` cannot run here:", shown(&self.method))?;
        self.sentences().iter().try_for_each(|sentence| write!(f, "\n  {sentence}"))?;
        if !self.operators.is_empty() {
            f.write_str(
                "\n  export the model without these operators, or register kernels for them in the \
                 `KernelRegistry`",
            )?;
        }
        if !self.backends.is_empty() {
            f.write_str(
                "\n  export the model without lowering it to these backends, or register them in the \
                 `BackendRegistry`",
            )?;
        }
        if !self.arenas.is_empty() {
            f.write_str("\n  export the model with its memory planned on the CPU")?;
        }
        Ok(())
    }
}

fn count_text(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}
