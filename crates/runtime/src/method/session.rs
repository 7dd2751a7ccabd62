//! Executing one loaded method from several threads concurrently.

use crate::convert::usize_of;
use crate::limits::memory_limit_error;
use crate::method::Method;
use crate::plan::tables;
use crate::prepare::region::Region;
use crate::{Error, Result};
use pteron_operator::{EValue, Generator, Scratch};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

impl Method {
    /// Another instance of this method, for another thread. Both share constants, packed weights and prepared kernels.
    /// The new instance has its own arenas, a copy of this one's, and its own mutable state from then on.
    ///
    /// Fails if a delegate of the method cannot be forked (see [`Delegate::fork`](crate::Delegate::fork)):
    /// such a method is loaded again instead.
    pub fn fork(&self) -> Result<Method> {
        let delegates = self.delegates.iter().map(|entry| {
            let refuse = |why: String| {
                Error::Unsupported(format!(
                    "method `{}` has a delegate of `{}`, which cannot be forked{why}: load the method again",
                    self.name, entry.backend
                ))
            };
            let forked = entry.fork().map_err(|e| refuse(format!(" ({e})")))?;
            forked.ok_or_else(|| refuse(String::new()))
        });
        let arenas = &self.state.arenas;
        let arenas = (0..arenas.len()).filter_map(|i| arenas.arena(i)).map(|arena| arena.len()).sum();
        let tables = usize_of(tables::estimated_bytes(&self.program.tables().execution_plan[self.plan]))?;
        let take = |what, bytes| self.packs.budget().take(what, bytes).map_err(memory_limit_error);
        let reservations = vec![take("its arenas", arenas)?, take("its tables", tables)?];
        Ok(Method {
            program: self.program.clone(),
            plan: self.plan,
            name: Arc::clone(&self.name),
            state: self.state.fork()?,
            chains: self.chains.clone(),
            delegates: delegates.collect::<Result<_>>()?,
            regions: self.regions.iter().map(Region::fork).collect::<Result<_>>()?,
            as_written: self.as_written.clone(),
            packs: self.packs.clone(),
            _reservations: reservations,
            operators: self.operators.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            input_set: self.input_set.clone(),
            input_sizes: self.input_sizes.clone(),
            planned_arenas: self.planned_arenas,
            scratch: Scratch::new(self.limits.scratch_bytes),
            generator: Generator::new(self.generator.next_u64()),
            pool: self.pool.clone(),
            isa: self.isa,
            tracer: self.tracer.clone(),
            interrupt: self.interrupt.clone(),
            limits: self.limits.clone(),
        })
    }
}

/// A loaded method that several threads can execute concurrently through `&self`.
///
/// An execution takes an idle instance, or forks a new one (see [`Method::fork`]) if there is none. Instances of a
/// method without mutable state are kept for later executions. All instances share one copy of the weights.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pteron_runtime::{LoadOptions, Program, SharedMethod};
/// use pteron_tensor::Tensor;
///
/// let program = Program::open("model.pte")?;
/// let forward = SharedMethod::new(program.load_method("forward", LoadOptions::default())?)?;
/// std::thread::scope(|threads| {
///     for _ in 0..8 {
///         threads.spawn(|| forward.execute(&[Tensor::from_slice(&[1, 2], &[0.5f32, 2.0])?.into()]));
///     }
/// });
/// # Ok(()) }
/// ```
pub struct SharedMethod {
    /// The instance from which all other instances are forked. It is never executed.
    first: Mutex<Method>,
    idle: Mutex<Vec<Method>>,
    /// Whether the method has mutable state.
    has_state: bool,
}

impl SharedMethod {
    /// Shares a method. Fails if it cannot be forked.
    pub fn new(method: Method) -> Result<Self> {
        let idle = vec![method.fork()?];
        let has_state = method.state().next().is_some();
        Ok(Self { first: Mutex::new(method), idle: Mutex::new(idle), has_state })
    }

    /// Executes the method. Each execution starts with the state that the method had when it was shared. To keep state
    /// between executions, such as a cache, use a [`Self::session`].
    pub fn execute(&self, inputs: &[EValue]) -> Result<Vec<EValue>> {
        self.session()?.execute(inputs)
    }

    /// An instance for exclusive use, with the state that the method had when it was shared. When the session is
    /// dropped, the instance becomes idle if the method has no mutable state; otherwise it is dropped, too.
    pub fn session(&self) -> Result<Session<'_>> {
        let idle = lock(&self.idle).pop();
        let method = match idle {
            Some(method) => method,
            None => lock(&self.first).fork()?,
        };
        Ok(Session { owner: self, method: Some(method) })
    }

    /// The number of idle instances.
    pub fn idle(&self) -> usize {
        lock(&self.idle).len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An instance of a [`SharedMethod`] for exclusive use. It dereferences to [`Method`].
pub struct Session<'a> {
    owner: &'a SharedMethod,
    /// The instance of the method; `None` only while the session is dropped.
    method: Option<Method>,
}

impl Deref for Session<'_> {
    type Target = Method;
    fn deref(&self) -> &Method {
        self.method.as_ref().expect("the method is there until the session is dropped")
    }
}

impl DerefMut for Session<'_> {
    fn deref_mut(&mut self) -> &mut Method {
        self.method.as_mut().expect("the method is there until the session is dropped")
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // An instance is not reused if it has mutable state, or if it may have panicked in the middle of an execution.
        if let Some(method) = self.method.take()
            && !self.owner.has_state
            && !std::thread::panicking()
        {
            lock(&self.owner.idle).push(method);
        }
    }
}

impl std::fmt::Debug for SharedMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedMethod({:?}, {} idle)", lock(&self.first), self.idle())
    }
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", **self)
    }
}
