//! Programs whose methods share their state, which persists from request to request.

use crate::refusal::{Refusal, Result};
use crate::repository::{Files, Source, Stamp};
use pteron::{LoadOptions, Module, Program};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The open modules with shared state, so that the models of a program's methods use the same one. A module is dropped
/// with the last generation that uses it.
#[derive(Debug, Default)]
pub(crate) struct StatefulModules(Mutex<Vec<ProbedModule>>);

#[derive(Debug)]
struct ProbedModule {
    program: Source,
    stamps: Vec<Stamp>,
    module: Weak<Mutex<Module>>,
}

impl StatefulModules {
    /// The module of these files, opened if no model uses it yet. If the files were replaced, it is a new one, with the
    /// initial state.
    pub(crate) fn open(
        &self,
        files: &Files,
        program: &Program,
        load: LoadOptions,
    ) -> Result<Arc<Mutex<Module>>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.module.strong_count() > 0);
        let same = |known: &&ProbedModule| known.program == files.program && known.stamps == files.stamps;
        if let Some(module) = known.iter().find(same).and_then(|known| known.module.upgrade()) {
            return Ok(module);
        }
        let mut module = Module::new(program.clone(), load);
        module.share_memory_arenas().map_err(Refusal::from_load_error)?;
        let module = Arc::new(Mutex::new(module));
        known.push(ProbedModule {
            program: files.program.clone(),
            stamps: files.stamps.clone(),
            module: Arc::downgrade(&module),
        });
        Ok(module)
    }
}
