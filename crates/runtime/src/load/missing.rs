//! What a method needs and the registries lack.

use crate::error::{Missing, MissingBackend, MissingDevice, MissingOperator};
use crate::{BackendRegistry, MethodMeta, Program, Result};
use pteron_format::pte;
use pteron_operator::KernelRegistry;

/// Maximum number of missing operators for which similar names are suggested.
const MAX_EXPLAINED: usize = 20;

impl Program {
    /// The operators and backends that a method needs and the registries lack.
    pub fn missing_in(
        &self,
        method: &str,
        kernels: &KernelRegistry,
        backends: &BackendRegistry,
    ) -> Result<Missing> {
        Ok(self.missing_in_plan(self.plan_index(method)?, kernels, backends))
    }

    pub(crate) fn missing_in_plan(
        &self,
        plan: usize,
        kernels: &KernelRegistry,
        backends: &BackendRegistry,
    ) -> Missing {
        let meta = MethodMeta::new(self, plan);
        let mut missing = Missing { method: meta.name().to_owned(), ..Missing::default() };
        for op in meta.operators() {
            if !kernels.contains(&op.name) {
                // A file may name any number of operators, and searching for similar names is slow.
                let similar = match missing.operators.len() {
                    0..MAX_EXPLAINED => kernels.similar(&op.name).into_iter().map(str::to_owned).collect(),
                    _ => Vec::new(),
                };
                missing.operators.push(MissingOperator { name: op.name, calls: op.calls, similar });
            }
        }
        for backend in meta.backends() {
            let registered = backends.get(&backend.id);
            if !registered.is_some_and(|b| b.is_available()) {
                missing.backends.push(MissingBackend {
                    id: backend.id,
                    delegates: backend.delegates,
                    payload_bytes: backend.payload_bytes,
                    unavailable: registered.is_some(),
                });
            }
        }
        let devices = self.tables().execution_plan[plan].non_const_buffer_device.iter();
        missing.arenas.extend(devices.filter(|entry| entry.device_type != pte::DeviceType::Cpu).map(
            |entry| MissingDevice {
                method: meta.name().to_owned(),
                memory_id: usize::try_from(entry.buffer_idx).unwrap_or(0),
                device: entry.name(),
            },
        ));
        missing
    }
}
