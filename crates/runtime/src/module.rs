use crate::{
    DataLoader, LoadOptions, Method, MethodMeta, NamedDataMap, Program, Result, ValueMeta, arrange_inputs,
    load,
};
use pteron_operator::EValue;
use pteron_tensor::{AlignedBuffer, Unchanged};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of memory ids, counted from 1, that methods can share: the first holds activations, the second the
/// mutable buffers that the exporter's `share_mutable_buffers` places together.
const SHARED_ARENAS: usize = 2;

/// The simple interface: a program whose methods are loaded when they are first called.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pteron_runtime::{LoadOptions, Module};
/// use pteron_tensor::Tensor;
///
/// let mut module = Module::open("model.pte", LoadOptions::default())?;
/// let outputs = module.forward(&[Tensor::from_slice(&[1, 2], &[0.5f32, 2.0])?.into()])?;
/// let pair = Tensor::from_slice(&[1, 2], &[0.5f32, 2.0])?;
/// let outputs = module.execute_named("forward", [("pair", pair.into())])?;
/// # Ok(()) }
/// ```
pub struct Module {
    program: Program,
    options: LoadOptions,
    methods: BTreeMap<String, Method>,
    /// The arenas that all methods use in turn; `None` if each method has arenas of its own.
    shared: Option<Vec<AlignedBuffer>>,
    /// The data that replaces the `data` of `options`. It is shared with other modules.
    swapped: Arc<Swapped>,
    /// The version of the swapped data that the loaded methods use.
    version: u64,
}

/// External data of a program that can be exchanged while methods run.
#[derive(Default)]
struct Swapped {
    /// The number of exchanges so far. An execution takes the lock on `data` only if this number has changed.
    version: AtomicU64,
    data: Mutex<Option<Arc<dyn NamedDataMap>>>,
}

impl Module {
    /// Opens a program file and reads ranges of it on demand. This is the safe choice, and as fast as [`Self::map`] if
    /// weights are packed at load time (`docs/loading.md` has figures).
    pub fn open(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::open_with(path, &options.limits)?, options))
    }

    /// Memory-maps a program file, which must not change while the module lives. Use it for weights that processes
    /// share, or that are accessed sparsely, such as large embedding tables.
    pub fn map(path: impl AsRef<Path>, options: LoadOptions, unchanged: Unchanged) -> Result<Self> {
        Ok(Self::new(Program::map_with(path, &options.limits, unchanged)?, options))
    }

    /// Opens a program through a loader.
    pub fn load(loader: Arc<dyn DataLoader>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::load(loader, &options.limits)?, options))
    }

    /// A module for an open program.
    pub fn new(program: Program, options: LoadOptions) -> Self {
        Self { program, options, methods: BTreeMap::new(), shared: None, swapped: Arc::default(), version: 0 }
    }

    /// Another module with the same program and options, for another thread. It has its own methods and state;
    /// [`Self::swap_data`] on either module exchanges the data of both.
    pub fn share(&self) -> Self {
        Self {
            swapped: Arc::clone(&self.swapped),
            version: self.version,
            ..Self::new(self.program.clone(), self.options.clone())
        }
    }

    /// As [`Self::share`], but the new module starts with forks of the loaded methods: they share weights and start
    /// with a copy of the current state (see [`Method::fork`]).
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

    /// Exchanges the data that is stored outside the program, for this module and all modules that were
    /// [shared](Self::share) from it, even while they run. An execution that has begun finishes with the old data;
    /// an execution that begins after this call returns uses the new data. No execution sees both.
    ///
    /// The program is not read again, and mutable state is kept, except for tensors whose initial values come from the
    /// data: they are reset. Each module rebuilds its delegates and whatever was prepared from the old data, such as
    /// packed weights, at its next execution; call [`Self::apply_swapped_data`] to do so earlier.
    ///
    /// Data that does not fit the program (a tensor is missing, or has another type or shape) is refused, and the old
    /// data stays in use.
    pub fn swap_data(&self, data: Arc<dyn NamedDataMap>) -> Result<()> {
        for plan in 0..self.program.tables().execution_plan.len() {
            load::check_data(&self.program, plan, &*data)?;
        }
        // Only a backend can tell whether it can use the data of its delegates, so methods with delegates are loaded
        // as a test, except those that cannot be loaded for want of kernels or backends.
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

    /// Makes the loaded methods use the data that was last [swapped](Self::swap_data) in, and returns whether the data
    /// has changed. Execution does this automatically. If loading a method on the new data fails, all methods keep the
    /// old data.
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
        // All are checked before the first is replaced. Their state is in their arenas, which the module may hold.
        for (method, new) in self.methods.values_mut().zip(&renewed) {
            with_arenas(&mut self.shared, method, |method| method.check_replaceable_by(new))?;
        }
        for (method, new) in self.methods.values_mut().zip(renewed) {
            with_arenas(&mut self.shared, method, |method| method.replace_by(new))?;
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

    /// The program's description of a method. The method need not be loaded.
    pub fn method_meta(&self, name: &str) -> Result<MethodMeta<'_>> {
        self.program.method_meta(name)
    }

    /// Makes all methods use the same memory for the memory ids 1 and 2, as the reference's `Module` does with the option
    /// `share_memory_arenas`. Methods of a program that was exported with `MemoryPlanningPass(share_mutable_buffers=True)`
    /// then share their state; methods of other programs overwrite each other's.
    ///
    /// Must be called before any method is loaded. Loads all methods, except those that need kernels or backends that are
    /// missing. The memory starts with the initial values of all of them.
    pub fn share_memory_arenas(&mut self) -> Result<()> {
        if !self.methods.is_empty() {
            return Err(crate::Error::Unsupported(
                "share_memory_arenas must come before the first method is loaded".to_owned(),
            ));
        }
        let mut sizes = [0u64; SHARED_ARENAS];
        for meta in self.program.methods() {
            for (size, arena) in sizes.iter_mut().zip(meta.memory_arenas()) {
                *size = (*size).max(arena);
            }
        }
        let mut shared = Vec::new();
        for size in sizes {
            shared.push(AlignedBuffer::zeroed(self.options.limits.check_arena(size)?)?);
        }
        let mut methods = BTreeMap::new();
        for name in self.program.method_names() {
            let missing = self.program.missing_in(name, &self.options.kernels, &self.options.backends)?;
            if missing.is_empty() {
                let mut method = self.program.load_method(name, self.options.clone())?;
                method.move_memory(&mut shared)?;
                methods.insert(name.to_owned(), method);
            }
        }
        (self.methods, self.shared) = (methods, Some(shared));
        Ok(())
    }

    /// Whether the methods [share their memory](Self::share_memory_arenas).
    pub fn shares_memory_arenas(&self) -> bool {
        self.shared.is_some()
    }

    /// Loads a method now instead of at its first call.
    pub fn load_method(&mut self, name: &str) -> Result<()> {
        self.apply_swapped_data()?;
        self.up_to_date_method(name).map(|_| ())
    }

    /// The loaded methods, ordered by name.
    pub fn loaded_methods(&self) -> impl Iterator<Item = &Method> {
        self.methods.values()
    }

    /// Drops a loaded method with its state and memory. Returns whether it was loaded.
    pub fn unload_method(&mut self, name: &str) -> bool {
        self.methods.remove(name).is_some()
    }

    /// A method, loaded first if necessary. If methods share memory arenas, the method has none: see [`Self::with_method`].
    pub fn method(&mut self, name: &str) -> Result<&mut Method> {
        self.apply_swapped_data()?;
        self.up_to_date_method(name)
    }

    /// A method that uses the module's current data. It is loaded first if necessary.
    fn up_to_date_method(&mut self, name: &str) -> Result<&mut Method> {
        if !self.methods.contains_key(name) {
            let method = self.program.load_method(name, self.options.clone())?;
            self.methods.insert(name.to_owned(), method);
        }
        match self.methods.get_mut(name) {
            Some(method) => Ok(method),
            None => Err(self.program.no_such_method(name)),
        }
    }

    /// Executes a method, loading it if necessary. The outputs are copies.
    pub fn execute(&mut self, name: &str, inputs: &[EValue]) -> Result<Vec<EValue>> {
        self.with_method(name, |method| method.execute(inputs))
    }

    /// Executes a method with its inputs by name, loading it if necessary. Inputs that the exporter fixed may be omitted. The
    /// outputs are copies, in the order of [`MethodMeta::value_names`].
    ///
    /// # Errors
    /// A name is not that of an input, or an input is given twice or is missing.
    pub fn execute_named<'n>(
        &mut self,
        name: &str,
        inputs: impl IntoIterator<Item = (&'n str, EValue)>,
    ) -> Result<Vec<EValue>> {
        let meta = self.program.method_meta(name)?;
        let (declared, names) = (meta.inputs(), meta.value_names()?);
        let inputs = inputs.into_iter().map(|(name, value)| (name.to_owned(), value));
        let inputs = arrange_inputs(name, &declared, &names.inputs, std::iter::empty(), inputs)?;
        let fixed = |declared: &ValueMeta| declared.traced.clone().unwrap_or(EValue::None);
        let inputs = inputs.into_iter().zip(&declared);
        let inputs: Vec<EValue> =
            inputs.map(|(value, declared)| value.unwrap_or_else(|| fixed(declared))).collect();
        self.execute(name, &inputs)
    }

    /// Writes the persistent tensors of a method to a `.ptd` file, atomically: see [`Method::save_checkpoint`].
    pub fn save_checkpoint(&mut self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        self.with_method(name, |method| method.save_checkpoint(path))
    }

    /// Restores the persistent tensors of a method from a `.ptd` file: see [`Method::load_checkpoint`].
    pub fn load_checkpoint(&mut self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        self.with_method(name, |method| method.load_checkpoint(path))
    }

    /// Calls `act` with a method that has its memory arenas, even if methods share them. Loads the method if necessary.
    pub fn with_method<T, E: From<crate::Error>>(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut Method) -> Result<T, E>,
    ) -> Result<T, E> {
        self.apply_swapped_data()?;
        let mut shared = self.shared.take();
        let result = match self.up_to_date_method(name) {
            Ok(method) => with_arenas(&mut shared, method, act),
            Err(error) => Err(error.into()),
        };
        self.shared = shared;
        result
    }

    /// Executes the method `forward`.
    pub fn forward(&mut self, inputs: &[EValue]) -> Result<Vec<EValue>> {
        self.execute("forward", inputs)
    }
}

/// Calls `act` with a method. If methods share arenas, the method has them during the call.
fn with_arenas<T>(
    shared: &mut Option<Vec<AlignedBuffer>>,
    method: &mut Method,
    act: impl FnOnce(&mut Method) -> T,
) -> T {
    shared.iter_mut().for_each(|shared| method.swap_memory(shared));
    let result = act(method);
    shared.iter_mut().for_each(|shared| method.swap_memory(shared));
    result
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("methods", &self.method_names()).finish_non_exhaustive()
    }
}
