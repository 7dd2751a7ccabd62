use crate::{DataLoader, LoadOptions, Method, MethodMeta, NamedDataMap, Program, Result, load};
use operator::EValue;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tensor::{AlignedBuffer, Unchanged};

/// How many memory ids, from the first on, methods share when asked to: activations, and the mutable
/// buffers that the exporter's `share_mutable_buffers` puts together.
const SHARED_ARENAS: usize = 2;

/// The simple face: a program, and its methods loaded when they are first called.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pteron_runtime::{LoadOptions, Module};
/// use tensor::Tensor;
///
/// let mut module = Module::open("model.pte", LoadOptions::default())?;
/// let outputs = module.forward(&[Tensor::from_slice(&[1, 2], &[0.5f32, 2.0])?.into()])?;
/// # Ok(()) }
/// ```
pub struct Module {
    program: Program,
    options: LoadOptions,
    methods: BTreeMap<String, Method>,
    /// The arenas that all methods use in turn, if they share any.
    shared: Option<Vec<AlignedBuffer>>,
    /// The data that stands in the place of that in `options`, for all modules that share it.
    swapped: Arc<Swapped>,
    /// The version of it that the loaded methods use.
    version: u64,
}

/// The data outside a program, which can be exchanged while methods run.
#[derive(Default)]
struct Swapped {
    /// How often it was exchanged; read at each execution, and the data only if it is another.
    version: AtomicU64,
    data: Mutex<Option<Arc<dyn NamedDataMap>>>,
}

impl Module {
    /// Opens a program file, of which ranges are read when they are needed. The safe choice, and as fast as
    /// [`Self::map`] where weights are packed when they are loaded (`docs/loading.md` has figures).
    pub fn open(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::open_with(path, &options.limits)?, options))
    }

    /// Maps a program file, which stays as it is while the module lives: for weights that are shared among
    /// processes, or of which little is looked at, such as large embeddings.
    pub fn map(path: impl AsRef<Path>, options: LoadOptions, unchanged: Unchanged) -> Result<Self> {
        Ok(Self::new(Program::map_with(path, &options.limits, unchanged)?, options))
    }

    /// Opens a program that a loader serves.
    pub fn load(loader: Arc<dyn DataLoader>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::load(loader, &options.limits)?, options))
    }

    /// A module of an open program.
    pub fn new(program: Program, options: LoadOptions) -> Self {
        Self { program, options, methods: BTreeMap::new(), shared: None, swapped: Arc::default(), version: 0 }
    }

    /// Another module of the same program and options, for another thread: with methods and state of
    /// its own, and with data that [`Self::swap_data`] exchanges for both.
    pub fn share(&self) -> Self {
        Self {
            swapped: Arc::clone(&self.swapped),
            version: self.version,
            ..Self::new(self.program.clone(), self.options.clone())
        }
    }

    /// Another module for another thread, as [`Self::share`] gives, that has forks of the methods that are loaded: weights
    /// are there once, and state is what it is now (see [`Method::fork`]).
    ///
    /// Fails if a method cannot be forked, or if the methods share memory.
    pub fn fork(&self) -> Result<Self> {
        if self.shared.is_some() {
            let message = "a module whose methods share their memory cannot be forked";
            return Err(crate::Error::Unsupported(message.to_owned()));
        }
        let fork = |(name, method): (&String, &Method)| Ok((name.clone(), method.fork()?));
        let methods = self.methods.iter().map(fork).collect::<Result<_>>()?;
        Ok(Self { methods, ..self.share() })
    }

    /// Exchanges the data that is stored outside the program, for this module and all that were
    /// [shared](Self::share) from it, while they run: an execution that has begun ends with the old
    /// data, and each that begins after this call has returned uses the new. None uses both.
    ///
    /// The program is not read again, and mutable state stays as it is, but for tensors whose initial
    /// values come from the data: these start anew. What was prepared from the old data, such as packed
    /// weights, and delegates are made again by each module when it next executes, or when
    /// [`Self::apply_swapped_data`] is called, which moves the cost there.
    ///
    /// Data that does not fit the program (a tensor is missing, or is of another type or shape) is
    /// refused, and the old data stays.
    pub fn swap_data(&self, data: Arc<dyn NamedDataMap>) -> Result<()> {
        for plan in 0..self.program.tables().execution_plan.len() {
            load::check_data(&self.program, plan, &*data)?;
        }
        // Only a backend can say whether it can use the data that its delegates ask for. Methods that cannot be loaded
        // anyway have no say.
        let (kernels, backends) = (&self.options.kernels, &self.options.backends);
        let is_delegated = |name: &&str| {
            let delegated = self.program.method_meta(name).is_ok_and(|meta| !meta.backends().is_empty());
            delegated
                && self.program.missing_in(name, kernels, backends).is_ok_and(|missing| missing.is_empty())
        };
        for name in self.program.method_names().filter(is_delegated) {
            let options = LoadOptions { data: Some(Arc::clone(&data)), tracer: None, ..self.options.clone() };
            self.program.load_method(name, options)?;
        }
        let mut current = self.swapped.data.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(data);
        self.swapped.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Makes the loaded methods use the data that was last [swapped](Self::swap_data) in, and says
    /// whether that is other data than before. Executing does so by itself. After an error all methods
    /// are as they were.
    pub fn apply_swapped_data(&mut self) -> Result<bool> {
        if self.swapped.version.load(Ordering::Acquire) == self.version {
            return Ok(false);
        }
        let (data, version) = {
            let data = self.swapped.data.lock().unwrap_or_else(PoisonError::into_inner);
            (data.clone(), self.swapped.version.load(Ordering::Acquire))
        };
        let options = LoadOptions { data, ..self.options.clone() };
        let mut renewed = Vec::with_capacity(self.methods.len());
        for name in self.methods.keys() {
            renewed.push(self.program.load_method(name, options.clone())?);
        }
        for (method, new) in self.methods.values_mut().zip(renewed) {
            // A method's state is in its memory, and that may be with the module.
            let mut shared = self.shared.take();
            shared.iter_mut().for_each(|s| method.take_memory(s));
            let result = method.renew(new);
            shared.iter_mut().for_each(|s| method.take_memory(s));
            self.shared = shared;
            result?;
        }
        (self.options, self.version) = (options, version);
        Ok(true)
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The names of the program's methods.
    pub fn method_names(&self) -> Vec<&str> {
        self.program.method_names().collect()
    }

    /// What the program says about a method, which need not be loaded for it.
    pub fn method_meta(&self, name: &str) -> Result<MethodMeta<'_>> {
        self.program.method_meta(name)
    }

    /// Lets all methods use the same memory for the ids 1 and 2, so that one finds the mutable
    /// buffers as another left them. To be said before any method is loaded; loads them all.
    pub fn share_memory_arenas(&mut self) -> Result<()> {
        if !self.methods.is_empty() {
            return Err(crate::Error::Unsupported(
                "share_memory_arenas must come before the first method is loaded".to_owned(),
            ));
        }
        let names: Vec<String> = self.program.method_names().map(str::to_owned).collect();
        let mut sizes = [0u64; SHARED_ARENAS];
        for name in &names {
            let meta = self.program.method_meta(name)?;
            for (size, arena) in sizes.iter_mut().zip(meta.memory_arenas()) {
                *size = (*size).max(arena);
            }
        }
        let mut shared = Vec::new();
        for size in sizes {
            shared.push(AlignedBuffer::zeroed(self.options.limits.arena(size)?)?);
        }
        for name in names {
            let count = self.program.method_meta(&name)?.memory_arenas().count().min(SHARED_ARENAS);
            let mut options = self.options.clone();
            options.memory = shared.drain(..count).collect();
            let mut method = self.program.load_method(&name, options)?;
            let mut lent = vec![AlignedBuffer::default(); count];
            method.take_memory(&mut lent);
            lent.append(&mut shared);
            shared = lent;
            self.methods.insert(name, method);
        }
        self.shared = Some(shared);
        Ok(())
    }

    /// Loads a method now rather than at its first call.
    pub fn load_method(&mut self, name: &str) -> Result<()> {
        self.apply_swapped_data()?;
        if !self.methods.contains_key(name) {
            let method = self.program.load_method(name, self.options.clone())?;
            self.methods.insert(name.to_owned(), method);
        }
        Ok(())
    }

    /// The methods that are loaded, by name.
    pub fn loaded_methods(&self) -> impl Iterator<Item = &Method> {
        self.methods.values()
    }

    /// Lets go of a method, its state and its memory.
    pub fn unload_method(&mut self, name: &str) -> bool {
        self.methods.remove(name).is_some()
    }

    /// A loaded method.
    pub fn method(&mut self, name: &str) -> Result<&mut Method> {
        self.load_method(name)?;
        match self.methods.get_mut(name) {
            Some(method) => Ok(method),
            None => Err(self.program.no_such_method(name)),
        }
    }

    /// Executes a method, loading it if need be. The outputs are copies.
    pub fn execute(&mut self, name: &str, inputs: &[EValue]) -> Result<Vec<EValue>> {
        self.with_memory(name, |method| method.execute(inputs))
    }

    /// Writes the tensors of a method that outlive an execution to a `.ptd` file, as a whole: see
    /// [`Method::save_checkpoint`].
    pub fn save_checkpoint(&mut self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        self.with_memory(name, |method| method.save_checkpoint(path))
    }

    /// Reads the tensors of a method that outlive an execution from a `.ptd` file: see
    /// [`Method::load_checkpoint`].
    pub fn load_checkpoint(&mut self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        self.with_memory(name, |method| method.load_checkpoint(path))
    }

    /// Does something with a method while it has its memory.
    fn with_memory<T>(&mut self, name: &str, act: impl FnOnce(&mut Method) -> Result<T>) -> Result<T> {
        self.apply_swapped_data()?;
        let Some(mut shared) = self.shared.take() else {
            return act(self.method(name)?);
        };
        let result = self.method(name).and_then(|method| {
            method.take_memory(&mut shared);
            let result = act(method);
            method.take_memory(&mut shared);
            result
        });
        self.shared = Some(shared);
        result
    }

    /// Executes the method `forward`.
    pub fn forward(&mut self, inputs: &[EValue]) -> Result<Vec<EValue>> {
        self.execute("forward", inputs)
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("methods", &self.method_names()).finish_non_exhaustive()
    }
}
