//! An open program, which several threads can call.

use crate::errors::{Failure, Result};
use crate::interrupt::LastTime;
use crate::settings::{Outputs, Settings, Source};
use pteron::{DataLoader, Interrupt, Method, MethodMeta, Module, Program, ValueMeta};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::profile::Recorder;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// The number of forks since the process that first loaded the module. A program's threads do not survive a fork.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Records that this process was forked.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Locks a mutex, and ignores poisoning.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inputs and the number of outputs of a method.
pub(crate) struct Signature {
    pub(crate) name: String,
    pub(crate) inputs: Vec<ValueMeta>,
    /// The name of each input in the exported signature; `None` where the program does not record it.
    pub(crate) names: Vec<Option<String>>,
    pub(crate) outputs: usize,
    /// Whether the method has state that persists between executions; set when the method is first loaded.
    has_state: OnceLock<bool>,
    pub(crate) last_time: LastTime,
}

impl Signature {
    /// Reads the signature from a method's metadata.
    pub(crate) fn new(meta: &MethodMeta<'_>) -> Result<Self> {
        Ok(Self {
            name: meta.name().to_owned(),
            inputs: meta.inputs(),
            names: meta.value_names()?.inputs,
            outputs: meta.outputs().len(),
            has_state: OnceLock::new(),
            last_time: LastTime::default(),
        })
    }
}

/// An open program.
pub(crate) struct OpenProgram {
    pub(crate) program: Program,
    /// The bundle that holds the program's test cases, if the program is bundled.
    pub(crate) bundle: Option<Bundle>,
    /// What outputs are converted to.
    pub(crate) outputs: Outputs,
    /// The recorder of executions, if the program was opened with `record`.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Whether the methods share the memory of their state, so that no two calls run at the same time.
    is_shared: bool,
    /// The module that holds the state of the methods.
    first: Mutex<Module>,
    /// Idle forks of `first`, for threads that find it busy.
    idle: Mutex<Vec<Module>>,
    signatures: Mutex<HashMap<String, Arc<Signature>>>,
    default: OnceLock<Arc<Signature>>,
    forks: u64,
}

impl OpenProgram {
    /// Opens a program. A torch.export archive is compiled.
    pub(crate) fn new(source: &Source, settings: &Settings) -> Result<Self> {
        Self::from_loader(settings.loader(source)?, settings)
    }

    /// Opens the program that a loader serves.
    fn from_loader(loader: Arc<dyn DataLoader>, settings: &Settings) -> Result<Self> {
        let mut options = settings.load_options()?;
        let recorder = settings.record.map(|values| Arc::new(Recorder::new(values)));
        options.tracer = recorder.clone().map(|recorder| recorder as _);
        let loader = pteron::compile::program(loader, &options.kernels, &options.limits)?;
        let bundle = Bundle::open_if_bundled(&*loader, &options.limits)?;
        let loader = bundle.as_ref().map_or(loader, Bundle::program);
        pteron_toolbox::run::expect_program(&*loader, "load", "programs (.pte, .bpte) and archives (.pt2)")?;
        let program = Program::load(loader, &options.limits)?;
        let mut first = Module::new(program.clone(), options);
        if settings.share_memory_arenas {
            first.share_memory_arenas()?;
        }
        Ok(Self {
            bundle,
            outputs: settings.outputs,
            recorder,
            is_shared: settings.share_memory_arenas,
            first: Mutex::new(first),
            program,
            idle: Mutex::default(),
            signatures: Mutex::default(),
            default: OnceLock::new(),
            forks: FORKS.load(Ordering::Relaxed),
        })
    }

    /// Whether the process was forked since this was opened: its threads are gone, and another thread may have held its
    /// locks at the fork.
    pub(crate) fn is_stale(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Opens the program again after a fork, with new threads. Keeps the methods' state, unless it was in use at the
    /// fork.
    pub(crate) fn reopen(&self, source: &Source, settings: &Settings) -> Result<Self> {
        let new = Self::new(source, settings)?;
        if let Ok(mut old) = self.first.try_lock() {
            let mut first = lock(&new.first);
            let names: Vec<String> = old.loaded_methods().map(|method| method.name().to_owned()).collect();
            for name in names {
                let state = old.with_method(&name, |method| crate::state::State::copy_of(method))?;
                first.with_method(&name, |method| method.restore(&state))?;
            }
        }
        Ok(new)
    }

    /// The signature of a method.
    pub(crate) fn signature(&self, name: &str) -> Result<Arc<Signature>> {
        if let Some(known) = lock(&self.signatures).get(name) {
            return Ok(Arc::clone(known));
        }
        let signature = Arc::new(Signature::new(&self.program.method_meta(name)?)?);
        lock(&self.signatures).insert(name.to_owned(), Arc::clone(&signature));
        Ok(signature)
    }

    /// The signature of the default method.
    pub(crate) fn default_signature(&self) -> Result<Arc<Signature>> {
        if let Some(known) = self.default.get() {
            return Ok(Arc::clone(known));
        }
        let signature = self.signature(&self.default_method()?)?;
        Ok(Arc::clone(self.default.get_or_init(|| signature)))
    }

    /// Calls `act` with a method. Threads run methods without state concurrently, on forks of the module, unless
    /// executions are recorded; others take turns.
    pub(crate) fn with_method<T>(
        &self,
        signature: &Signature,
        act: impl FnOnce(&mut Method) -> Result<T>,
    ) -> Result<T> {
        let name = &signature.name;
        if self.is_shared {
            return lock(&self.first).with_method(name, act);
        }
        match self.first.try_lock() {
            Ok(mut first) => act(load_and_note_state(&mut first, signature)?),
            Err(TryLockError::Poisoned(first)) => {
                act(load_and_note_state(&mut first.into_inner(), signature)?)
            }
            Err(TryLockError::WouldBlock)
                if self.recorder.is_none() && signature.has_state.get() == Some(&false) =>
            {
                let idle = lock(&self.idle).pop();
                let mut module = match idle {
                    Some(module) => module,
                    None => {
                        let mut first = lock(&self.first);
                        match first.fork() {
                            Ok(module) => module,
                            Err(_) => return act(first.method(name)?),
                        }
                    }
                };
                let result = act(module.method(name)?);
                if result.is_ok() {
                    lock(&self.idle).push(module);
                }
                result
            }
            Err(TryLockError::WouldBlock) => act(load_and_note_state(&mut lock(&self.first), signature)?),
        }
    }

    /// As [`Self::with_method`], in an execution that the handle cancels.
    pub(crate) fn with_interrupt<T>(
        &self,
        signature: &Signature,
        handle: Option<&Interrupt>,
        act: impl FnOnce(&mut Method) -> Result<T>,
    ) -> Result<T> {
        self.with_method(signature, |method| {
            let Some(handle) = handle else { return act(method) };
            method.set_interrupt(Some(handle.clone()));
            let result = act(method);
            method.set_interrupt(None);
            result
        })
    }

    /// Calls `act` with the module that holds the methods' state, and discards the idle forks.
    pub(crate) fn with_module<T>(&self, act: impl FnOnce(&mut Module) -> Result<T>) -> Result<T> {
        let result = act(&mut lock(&self.first));
        lock(&self.idle).clear();
        result
    }

    /// Ends the recording's event block, which holds one execution.
    pub(crate) fn end_event_block(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.end_block("Execute");
        }
    }

    /// The name of the default method: the only one, or `forward`.
    pub(crate) fn default_method(&self) -> Result<String> {
        let names: Vec<&str> = self.program.method_names().collect();
        match self.program.default_method()? {
            Some(name) => Ok(name.to_owned()),
            None => Err(Failure::Input(format!(
                "the program has no method `forward`; name one with `method(…)`: {}",
                names.join(", ")
            ))),
        }
    }
}

/// Loads a method, and records in its signature whether it has state.
fn load_and_note_state<'m>(module: &'m mut Module, signature: &Signature) -> Result<&'m mut Method> {
    let method = module.method(&signature.name)?;
    signature.has_state.get_or_init(|| method.state().next().is_some());
    Ok(method)
}
