use crate::{DataLoader, LoadOptions, Method, MethodMeta, Program, Result};
use operator::EValue;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tensor::AlignedBuffer;

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
}

impl Module {
    /// Opens a program file, of which ranges are read when they are needed.
    pub fn open(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::open_with(path, &options.limits)?, options))
    }

    /// Maps a program file.
    pub fn map(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::map_with(path, &options.limits)?, options))
    }

    /// Opens a program that a loader serves.
    pub fn load(loader: Arc<dyn DataLoader>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::load(loader, &options.limits)?, options))
    }

    /// A module of an open program.
    pub fn new(program: Program, options: LoadOptions) -> Self {
        Self { program, options, methods: BTreeMap::new(), shared: None }
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
        if !self.methods.contains_key(name) {
            let method = self.program.load_method(name, self.options.clone())?;
            self.methods.insert(name.to_owned(), method);
        }
        Ok(())
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
        let Some(mut shared) = self.shared.take() else {
            return self.method(name)?.execute(inputs);
        };
        let result = self.method(name).and_then(|method| {
            method.take_memory(&mut shared);
            let result = method.execute(inputs);
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
