//! A program that is open, called from several threads.

use crate::errors::{Failure, Result};
use crate::settings::{Settings, Source};
use pteron::{DataLoader, Method, MethodMeta, Module, Program, ValueMeta};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use toolbox::bundle::{self, Bundle};
use toolbox::profile::Recorder;

/// How often this process, or one that it comes from, was forked since it began: threads do not come along.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// This process is a fork.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Locks, whatever has become of who held the lock before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a method takes.
pub(crate) struct Signature {
    pub(crate) name: String,
    pub(crate) inputs: Vec<ValueMeta>,
    /// The names of the inputs, where there are some.
    pub(crate) names: Vec<Option<String>>,
    pub(crate) outputs: usize,
    /// Whether an execution leaves something for the next; known once the method was loaded.
    has_state: OnceLock<bool>,
}

impl Signature {
    /// What a program says that a method takes.
    pub(crate) fn of(meta: &MethodMeta<'_>) -> Self {
        Self {
            name: meta.name().to_owned(),
            inputs: meta.inputs(),
            names: toolbox::input_names(meta),
            outputs: meta.outputs().len(),
            has_state: OnceLock::new(),
        }
    }
}

/// An open program.
pub(crate) struct Opened {
    pub(crate) program: Program,
    /// The test cases, if it came bundled with some.
    pub(crate) bundle: Option<Bundle>,
    /// What is executed, if it is recorded.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Methods, their state among them.
    first: Mutex<Module>,
    /// Modules for threads that found the first busy.
    idle: Mutex<Vec<Module>>,
    signatures: Mutex<HashMap<String, Arc<Signature>>>,
    default: OnceLock<Arc<Signature>>,
    forks: u64,
}

impl Opened {
    /// Opens a program. A torch.export archive is compiled.
    pub(crate) fn new(source: &Source, settings: &Settings) -> Result<Self> {
        Self::of_loader(settings.loader(source)?, settings)
    }

    /// Opens the program that a loader serves.
    fn of_loader(loader: Arc<dyn DataLoader>, settings: &Settings) -> Result<Self> {
        let mut options = settings.load_options()?;
        let recorder = settings.record.map(|values| Arc::new(Recorder::new(values)));
        options.tracer = recorder.clone().map(|recorder| recorder as _);
        let loader = pteron::compile::program(loader, &options.kernels)?;
        let bundle = match bundle::is_one(&*loader)? {
            true => Some(Bundle::open(&*loader, &options.limits)?),
            false => None,
        };
        let loader = bundle.as_ref().map_or(loader, Bundle::program);
        toolbox::run::expect_program(&*loader)?;
        let program = Program::load(loader, &options.limits)?;
        Ok(Self {
            bundle,
            recorder,
            first: Mutex::new(Module::new(program.clone(), options)),
            program,
            idle: Mutex::default(),
            signatures: Mutex::default(),
            default: OnceLock::new(),
            forks: FORKS.load(Ordering::Relaxed),
        })
    }

    /// Whether the process was forked since this was opened, so that its threads are gone, or another thread may have held
    /// its locks.
    pub(crate) fn is_stale(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// The same in a process that was forked: with threads of its own, and the state of the methods.
    pub(crate) fn reopened(&self, source: &Source, settings: &Settings) -> Result<Self> {
        let new = Self::new(source, settings)?;
        if let Ok(old) = self.first.try_lock() {
            let mut first = lock(&new.first);
            for method in old.loaded_methods() {
                let state = crate::state::State::of(method)?;
                first.method(method.name())?.restore(&state)?;
            }
        }
        Ok(new)
    }

    /// What a method takes.
    pub(crate) fn signature(&self, name: &str) -> Result<Arc<Signature>> {
        if let Some(known) = lock(&self.signatures).get(name) {
            return Ok(Arc::clone(known));
        }
        let signature = Arc::new(Signature::of(&self.program.method_meta(name)?));
        lock(&self.signatures).insert(name.to_owned(), Arc::clone(&signature));
        Ok(signature)
    }

    /// What the method takes that is meant where none is named.
    pub(crate) fn default_signature(&self) -> Result<Arc<Signature>> {
        if let Some(known) = self.default.get() {
            return Ok(Arc::clone(known));
        }
        let signature = self.signature(&self.default_method()?)?;
        Ok(Arc::clone(self.default.get_or_init(|| signature)))
    }

    /// Does something with a method. Threads take turns, but at methods without state that can be forked.
    pub(crate) fn with<T>(
        &self,
        signature: &Signature,
        act: impl FnOnce(&mut Method) -> Result<T>,
    ) -> Result<T> {
        let name = &signature.name;
        match self.first.try_lock() {
            Ok(mut first) => act(known(&mut first, signature)?),
            Err(TryLockError::Poisoned(first)) => act(known(&mut first.into_inner(), signature)?),
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
            Err(TryLockError::WouldBlock) => act(known(&mut lock(&self.first), signature)?),
        }
    }

    /// Does something with the module that holds the methods' state, after which others are made anew.
    pub(crate) fn with_module<T>(&self, act: impl FnOnce(&mut Module) -> Result<T>) -> Result<T> {
        let result = act(&mut lock(&self.first));
        lock(&self.idle).clear();
        result
    }

    /// Ends the record of an execution.
    pub(crate) fn end_record(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.block("Execute");
        }
    }

    /// The method that is meant where none is named.
    pub(crate) fn default_method(&self) -> Result<String> {
        let names: Vec<&str> = self.program.method_names().collect();
        match names[..] {
            [only] => Ok(only.to_owned()),
            _ if names.contains(&"forward") => Ok("forward".to_owned()),
            _ => Err(Failure::Input(format!(
                "the program has no method `forward`; name one with `method(…)`: {}",
                names.join(", ")
            ))),
        }
    }
}

/// A method, of which it is known then whether it has state.
fn known<'m>(module: &'m mut Module, signature: &Signature) -> Result<&'m mut Method> {
    let method = module.method(&signature.name)?;
    signature.has_state.get_or_init(|| method.state().next().is_some());
    Ok(method)
}
