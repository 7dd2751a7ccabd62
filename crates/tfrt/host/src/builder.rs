use crate::attributes::SiteAttribute;
use crate::body::{Body, BodyParts, NodeParts};
use crate::error::{Error, Result, SourceLocation};
use crate::frame::{Location, Site};
use crate::function::{Entry, Function, FunctionKind, Module};
use crate::kernel::{Effect, Kernel, NativeFunction};
use pteron_bef::attribute::Attribute;
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// A register of the function being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Register(u32);

/// A kernel of the function being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelId(u32);

/// A function of the module being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionId(u32);

/// Builds a function, kernel by kernel, in program order.
///
/// ```
/// use pteron_host::{ExecutionContext, FunctionBuilder, HostContext, typed};
/// let mut b = FunctionBuilder::new("twice_plus", 2);
/// let add = typed(|a: i32, b: i32| a.wrapping_add(b));
/// let twice = b.kernel(&add, &[b.argument(0), b.argument(0)]);
/// let sum = b.kernel(&add, &[twice, b.argument(1)]);
/// b.returns(&[sum]);
/// let function = b.build()?;
/// let host = HostContext::single_threaded();
/// let results = function.call(&ExecutionContext::new(&host), &[20.into(), 2.into()])?;
/// assert!(matches!(results[0], pteron_host::Value::I32(42)));
/// # Ok::<(), pteron_host::Error>(())
/// ```
pub struct FunctionBuilder {
    name: String,
    parts: BodyParts,
    kind: FunctionKind,
}

impl FunctionBuilder {
    /// Starts a function with this number of arguments.
    pub fn new(name: &str, arguments: usize) -> Self {
        let arguments = u32::try_from(arguments).unwrap_or(u32::MAX);
        let parts = BodyParts { arguments, registers: arguments, ..BodyParts::default() };
        Self { name: name.to_owned(), parts, kind: FunctionKind::Async }
    }

    /// Makes the function synchronous: its kernels always run one after another, in program order.
    pub fn in_order(mut self) -> Self {
        self.kind = FunctionKind::Sync;
        self
    }

    /// The register of an argument.
    pub fn argument(&self, index: usize) -> Register {
        Register(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Adds a kernel with one result and returns the result's register.
    pub fn kernel(&mut self, kernel: &Arc<dyn Kernel>, arguments: &[Register]) -> Register {
        self.call(kernel, arguments, 1).0[0]
    }

    /// Adds a kernel with `results` results. Returns their registers, and the kernel's id for [`Self::edit`].
    pub fn call(
        &mut self,
        kernel: &Arc<dyn Kernel>,
        arguments: &[Register],
        results: usize,
    ) -> (Vec<Register>, KernelId) {
        let first = self.parts.registers;
        self.parts.registers = first.saturating_add(u32::try_from(results).unwrap_or(u32::MAX));
        let results: Vec<u32> = (first..self.parts.registers).collect();
        let id = KernelId(self.parts.nodes.len() as u32);
        self.parts.nodes.push(NodeParts {
            kernel: Arc::clone(kernel),
            site: Site {
                name: "".into(),
                attributes: Box::default(),
                functions: Box::default(),
                location: Location::None,
            },
            arguments: arguments.iter().map(|r| r.0).collect(),
            results: results.clone(),
            after: Vec::new(),
            stream: 0,
            effect: Effect::Any,
        });
        (results.into_iter().map(Register).collect(), id)
    }

    /// Sets further properties of a kernel.
    ///
    /// # Panics
    /// If the id comes from another builder and this one has no kernel of that number.
    pub fn edit(&mut self, kernel: KernelId) -> KernelEditor<'_> {
        KernelEditor(&mut self.parts.nodes[kernel.0 as usize])
    }

    /// Sets the registers that the function returns.
    pub fn returns(&mut self, results: &[Register]) {
        self.parts.results = results.iter().map(|r| r.0).collect();
    }

    /// Sets the stream in which the function starts; the default is 0.
    pub fn root_stream(&mut self, stream: u32) {
        self.parts.root_stream = stream;
    }

    /// Builds the function, in a module of its own.
    ///
    /// # Errors
    /// [`Error::Malformed`] when registers of another builder are used.
    pub fn build(self) -> Result<Function> {
        let mut module = ModuleBuilder::new();
        let id = module.declare(&self.name, self.parts.arguments as usize, self.parts.results.len());
        module.define(id, self)?;
        let module = module.build()?;
        match Function::new(&module, 0) {
            Some(function) => Ok(function),
            None => Err(Error::NoFunction(String::new())),
        }
    }
}

/// Sets the properties of a kernel other than its arguments and results.
pub struct KernelEditor<'a>(&'a mut NodeParts);

impl KernelEditor<'_> {
    /// Sets the kernel's name, for traces and error messages.
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        self.0.site.name = name.into();
        self
    }

    /// Adds a control dependence: this kernel runs only after `kernel`, though it uses none of that kernel's results.
    pub fn after(self, kernel: KernelId) -> Self {
        if !self.0.after.contains(&kernel.0) {
            self.0.after.push(kernel.0);
        }
        self
    }

    /// Sets the kernel's stream: kernels of one stream run one after another on one thread, kernels of other streams
    /// may become tasks.
    pub fn stream(self, stream: u32) -> Self {
        self.0.stream = stream;
        self
    }

    /// Declares the kernel's observable side effects.
    pub fn effect(self, effect: Effect) -> Self {
        self.0.effect = effect;
        self
    }

    /// Sets the kernel's attributes, in ascending order of their names.
    pub fn attributes(self, attributes: impl IntoIterator<Item = Attribute<'static>>) -> Self {
        self.0.site.attributes = attributes.into_iter().map(SiteAttribute::from_value).collect();
        self
    }

    /// Sets the functions that the kernel is given, such as callees and regions.
    pub fn functions(self, functions: &[FunctionId]) -> Self {
        self.0.site.functions = functions.iter().map(|f| f.0).collect();
        self
    }

    /// Sets the kernel's source location.
    pub fn location(self, location: SourceLocation) -> Self {
        self.0.site.location = Location::Given(location);
        self
    }
}

/// Builds a module of functions that can call one another.
#[derive(Default)]
pub struct ModuleBuilder(Module);

impl ModuleBuilder {
    /// A module without functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a function; [`Self::define`] gives its body.
    pub fn declare(&mut self, name: &str, arguments: usize, results: usize) -> FunctionId {
        let id = FunctionId(self.0.functions.len() as u32);
        self.0.functions.push(Entry {
            name: name.to_owned(),
            kind: FunctionKind::Async,
            arguments: arguments as u32,
            results: results as u32,
            types: SmallVec::new(),
            native: None,
            body: OnceLock::new(),
            ordered: OnceLock::new(),
        });
        id
    }

    /// Adds a native function, written in Rust.
    pub fn native(
        &mut self,
        name: &str,
        arguments: usize,
        results: usize,
        native: NativeFunction,
    ) -> FunctionId {
        let id = self.declare(name, arguments, results);
        let entry = &mut self.0.functions[id.0 as usize];
        entry.kind = FunctionKind::Native;
        entry.native = Some(native);
        id
    }

    /// Defines a declared function.
    ///
    /// # Errors
    /// [`Error::Malformed`] if its numbers of arguments and results are not those declared, if it is already defined,
    /// or if it uses registers of another builder.
    pub fn define(&mut self, id: FunctionId, function: FunctionBuilder) -> Result<()> {
        let malformed = |problem: String| Error::Malformed { function: function.name.clone(), problem };
        let Some(entry) = self.0.functions.get_mut(id.0 as usize) else {
            return Err(malformed("it was declared by another builder".into()));
        };
        if (entry.arguments, entry.results) != (function.parts.arguments, function.parts.results.len() as u32)
        {
            return Err(malformed("its arguments and results are not those declared".into()));
        }
        let body = Body::new(function.parts).map_err(malformed)?;
        entry.kind = function.kind;
        if entry.body.set(Ok(body)).is_err() {
            return Err(Error::Malformed { function: function.name, problem: "it is defined twice".into() });
        }
        Ok(())
    }

    /// Builds the module.
    ///
    /// # Errors
    /// [`Error::Malformed`] if a function is declared but not defined, or a kernel is given a function that is not
    /// declared.
    pub fn build(self) -> Result<Arc<Module>> {
        let count = self.0.functions.len() as u32;
        for entry in &self.0.functions {
            let malformed =
                |problem: &str| Error::Malformed { function: entry.name.clone(), problem: problem.into() };
            match entry.body.get() {
                Some(Ok(body)) => {
                    if body.sites.iter().any(|s| s.functions.iter().any(|&f| f >= count)) {
                        return Err(malformed("a kernel is given a function of another builder"));
                    }
                }
                _ if entry.native.is_some() => {}
                _ => return Err(malformed("it is declared but not defined")),
            }
        }
        Ok(Arc::new(self.0))
    }
}
