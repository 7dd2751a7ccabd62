use crate::body::Body;
use crate::error::{Error, Result, SourceLocation};
use crate::kernel::NativeFunction;
use crate::source::ProgramSource;
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// How a function runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// Kernels run when their operands are available, on all threads of the work queue.
    Async,
    /// Kernels run one after another, in program order, on the calling thread.
    Sync,
    /// The function is written in Rust.
    Native,
}

/// A list of functions that can call one another.
#[derive(Default)]
pub struct Module {
    pub(crate) functions: Vec<Entry>,
    pub(crate) program: Option<Program>,
}

/// Where the bodies of a module's functions come from: its file, and the decoder that reads them on first use.
pub(crate) struct Program {
    pub(crate) source: ProgramSource,
    pub(crate) decoder: Box<dyn BodyDecoder>,
}

/// Decodes the bodies of a module's functions, each on first use.
pub(crate) trait BodyDecoder: Send + Sync {
    /// The body of function number `function` of `source`; the error says what is wrong with the function's record.
    fn decode(&self, source: &ProgramSource, function: u32, declared: &Entry) -> Result<Body, String>;
}

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: FunctionKind,
    pub(crate) arguments: u32,
    pub(crate) results: u32,
    /// Indices into the module's type names, of the arguments and then of the results; empty if the types are not
    /// known.
    pub(crate) types: SmallVec<[u32; 4]>,
    pub(crate) native: Option<NativeFunction>,
    /// The body, or the error for a malformed record; decoded from the file on first use.
    pub(crate) body: OnceLock<Result<Body, String>>,
    /// Whether the function's observable effects have the same order in every schedule; computed on first use.
    pub(crate) ordered: OnceLock<bool>,
}

impl Module {
    /// The functions, in order. Regions of kernels are included; their names are empty.
    pub fn functions(self: &Arc<Self>) -> impl ExactSizeIterator<Item = Function> {
        (0..self.functions.len()).map(|index| Function { module: Arc::clone(self), index: index as u32 })
    }

    /// The first function of this name.
    pub fn find(self: &Arc<Self>, name: &str) -> Option<Function> {
        let index = self.functions.iter().position(|f| f.name == name)?;
        Function::new(self, index)
    }

    /// The function of this name.
    ///
    /// # Errors
    /// [`Error::NoFunction`].
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        self.find(name).ok_or_else(|| Error::NoFunction(name.to_owned()))
    }

    /// The file that the functions come from.
    pub(crate) fn source(&self) -> Option<&ProgramSource> {
        self.program.as_ref().map(|program| &program.source)
    }

    pub(crate) fn location(&self, offset: u64) -> Option<SourceLocation> {
        self.source()?.location(offset)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.functions.iter().map(|e| &e.name)).finish()
    }
}

/// A function of a module. Kernels can be given functions and call them. Cloning shares the module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    index: u32,
}

/// A [`Function`] that borrows its module.
#[derive(Clone, Copy)]
pub struct FunctionRef<'a> {
    module: &'a Arc<Module>,
    index: u32,
}

impl Function {
    pub(crate) fn new(module: &Arc<Module>, index: usize) -> Option<Self> {
        FunctionRef::new(module, index).map(FunctionRef::to_function)
    }

    /// A reference to the same function that borrows its module.
    #[inline]
    pub fn by_ref(&self) -> FunctionRef<'_> {
        FunctionRef { module: &self.module, index: self.index }
    }

    /// The module that the function belongs to.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// The function's index in its module.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// The name; empty for a kernel's region.
    pub fn name(&self) -> &str {
        self.by_ref().name()
    }

    /// How the function runs.
    pub fn kind(&self) -> FunctionKind {
        self.by_ref().kind()
    }

    /// The number of arguments.
    pub fn arguments(&self) -> usize {
        self.by_ref().arguments()
    }

    /// The number of results.
    pub fn results(&self) -> usize {
        self.by_ref().results()
    }

    fn type_name(&self, index: usize) -> Option<&str> {
        let id = *self.by_ref().entry().types.get(index)?;
        self.module.source()?.type_name(id)
    }

    /// The name of an argument's type, if the program records it.
    pub fn argument_type(&self, index: usize) -> Option<&str> {
        (index < self.arguments()).then(|| self.type_name(index)).flatten()
    }

    /// The name of a result's type, if the program records it.
    pub fn result_type(&self, index: usize) -> Option<&str> {
        self.type_name(self.arguments() + index)
    }

    /// The number of kernels.
    ///
    /// # Errors
    /// If the function's record cannot be decoded, or the function is native.
    pub fn kernels(&self) -> Result<usize> {
        self.body().map(|b| b.nodes.len())
    }

    /// The body, decoded from the file on first use.
    #[inline]
    pub(crate) fn body(&self) -> Result<&Body> {
        self.by_ref().body()
    }
}

impl<'a> FunctionRef<'a> {
    #[inline]
    pub(crate) fn new(module: &'a Arc<Module>, index: usize) -> Option<Self> {
        (index < module.functions.len()).then_some(Self { module, index: index as u32 })
    }

    /// The function with shared ownership of its module.
    pub fn to_function(self) -> Function {
        Function { module: Arc::clone(self.module), index: self.index }
    }

    #[inline]
    pub(crate) fn entry(self) -> &'a Entry {
        &self.module.functions[self.index as usize]
    }

    /// The module that the function belongs to.
    #[inline]
    pub fn module(self) -> &'a Arc<Module> {
        self.module
    }

    /// The function's index in its module.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// The name; empty for a kernel's region.
    pub fn name(self) -> &'a str {
        &self.entry().name
    }

    /// How the function runs.
    pub fn kind(self) -> FunctionKind {
        self.entry().kind
    }

    /// The number of arguments.
    #[inline]
    pub fn arguments(self) -> usize {
        self.entry().arguments as usize
    }

    /// The number of results.
    #[inline]
    pub fn results(self) -> usize {
        self.entry().results as usize
    }

    /// The body, decoded from the file on first use.
    #[inline]
    pub(crate) fn body(self) -> Result<&'a Body> {
        match self.entry().body.get() {
            Some(Ok(body)) => Ok(body),
            _ => self.read_body(),
        }
    }

    #[cold]
    pub(crate) fn read_body(self) -> Result<&'a Body> {
        let entry = self.entry();
        let body = entry.body.get_or_init(|| match &self.module.program {
            Some(Program { source, decoder }) => decoder.decode(source, self.index, entry),
            None => Err("it is declared but not defined".into()),
        });
        body.as_ref()
            .map_err(|problem| Error::Malformed { function: entry.name.clone(), problem: problem.clone() })
    }

    /// The body, if it has been decoded already.
    #[inline]
    pub(crate) fn body_if_read(self) -> Option<&'a Body> {
        self.entry().body.get()?.as_ref().ok()
    }
}

impl fmt::Debug for FunctionRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_function().fmt(f)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({} `{}`: {} -> {})", self.index, self.name(), self.arguments(), self.results())
    }
}

impl PartialEq for Function {
    /// Compares identity: whether both are the same function of the same module.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.module, &other.module) && self.index == other.index
    }
}
