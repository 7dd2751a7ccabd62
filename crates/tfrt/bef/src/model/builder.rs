//! Builds functions from Rust; registers, use counts and streams are assigned automatically.

use std::borrow::Cow;

use super::{Body, Function, Kernel, Module, NamedAttribute};
use crate::attribute::Attribute;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::function_kind::FunctionKind;
use crate::ids::{FunctionId, Register};
use crate::location::Location;
use crate::stream_analysis::{self, Options};

/// The name of the chain type.
const CHAIN: &str = "!tfrt.chain";

/// Builds one function of a [`Module`].
///
/// ```
/// # fn main() -> Result<(), pteron_bef::Error> {
/// use pteron_bef::{Attribute, FunctionBuilder, Module};
///
/// let mut module = Module::new(true);
/// let mut function = FunctionBuilder::new(&mut module, "add_two", &["i32"]);
/// let x = function.argument(0);
/// let two = function.kernel("tfrt.constant.i32").attribute("value", Attribute::I32(2)).result("i32");
/// let sum = function.kernel("tfrt.add.i32").arguments(&[x, two]).result("i32");
/// function.finish(&[sum])?;
/// let bytes = module.to_bytes()?;
/// pteron_bef::File::open(&bytes)?.verify()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FunctionBuilder<'m, 'a> {
    module: &'m mut Module<'a>,
    name: Cow<'a, str>,
    kind: FunctionKind,
    arguments: Vec<Cow<'a, str>>,
    body: Body<'a>,
    options: Options,
    costs: Vec<Option<i64>>,
}

impl<'m, 'a> FunctionBuilder<'m, 'a> {
    /// Starts a function called `name` (a region, if the name is empty) with arguments of these types. It is added to
    /// the module when it is [finished](Self::finish).
    pub fn new(module: &'m mut Module<'a>, name: impl Into<Cow<'a, str>>, arguments: &[&'a str]) -> Self {
        let body = Body { registers: vec![None; arguments.len()], ..Body::default() };
        FunctionBuilder {
            module,
            name: name.into(),
            kind: FunctionKind::Async,
            arguments: arguments.iter().map(|&name| name.into()).collect(),
            body,
            options: Options::default(),
            costs: Vec::new(),
        }
    }

    /// Makes the function synchronous: its kernels run in program order.
    #[must_use]
    pub fn sync(mut self) -> Self {
        self.kind = FunctionKind::Sync;
        self
    }

    /// Sets the function's source location.
    #[must_use]
    pub fn location(mut self, location: Location<'a>) -> Self {
        self.body.location = Some(location);
        self
    }

    /// Sets the options of the stream analysis.
    #[must_use]
    pub fn stream_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The register of argument number `index`. An index out of range causes an error when the function is finished or
    /// the module is written.
    pub fn argument(&self, index: u32) -> Register {
        Register(index)
    }

    /// Starts a kernel. It is added when one of the returned builder's result methods is called.
    pub fn kernel(&mut self, name: impl Into<Cow<'a, str>>) -> KernelBuilder<'_, 'm, 'a> {
        KernelBuilder {
            function: self,
            name: name.into(),
            location: None,
            arguments: Vec::new(),
            attributes: Vec::new(),
            functions: Vec::new(),
            cost: None,
        }
    }

    /// Finishes the function, which returns `results`, and adds it to the module.
    ///
    /// # Errors
    /// If a result is not a register of the function.
    pub fn finish(mut self, results: &[Register]) -> Result<FunctionId> {
        let arguments: Vec<_> = self.arguments.drain(..).map(|name| self.module.intern_type(name)).collect();
        for (register, &kind) in self.body.registers.iter_mut().zip(&arguments) {
            *register = Some(kind);
        }
        let types = results.iter().enumerate().map(|(index, register)| {
            let kind = self.body.registers.get(register.index()).copied().flatten();
            let error = || {
                let registers = format!("one below {}", self.body.registers.len());
                Error::without_offset(ErrorKind::OutOfRange, format!("register {register}"), registers)
            };
            kind.ok_or_else(error).in_field(|| format!("results[{index}]"))
        });
        let types = types.collect::<Result<Vec<_>>>().in_field(|| format!("function {:?}", self.name))?;
        self.body.results = results.to_vec();
        let chain = self.module.type_names().position(|name| name == CHAIN);
        let kinds = self.body.registers.clone();
        let is_chain = |register: Register| {
            let kind = kinds.get(register.index()).copied().flatten();
            kind.is_some_and(|kind| Some(kind.index()) == chain)
        };
        stream_analysis::assign_streams(&mut self.body, &self.options, |kernel| self.costs[kernel], is_chain);
        Ok(self.module.push_function(Function {
            name: self.name,
            kind: self.kind,
            arguments,
            results: types,
            body: Some(self.body),
        }))
    }
}

/// Builds one kernel of a function; [`results`](Self::results), [`result`](Self::result) or
/// [`no_results`](Self::no_results) finishes it.
#[derive(Debug)]
#[must_use = "a kernel is only added when its results are declared"]
pub struct KernelBuilder<'f, 'm, 'a> {
    function: &'f mut FunctionBuilder<'m, 'a>,
    name: Cow<'a, str>,
    location: Option<Location<'a>>,
    arguments: Vec<Register>,
    attributes: Vec<(Cow<'a, str>, Attribute<'a>)>,
    functions: Vec<FunctionId>,
    cost: Option<i64>,
}

impl<'a> KernelBuilder<'_, '_, 'a> {
    /// Appends registers that the kernel reads.
    pub fn arguments(mut self, registers: &[Register]) -> Self {
        self.arguments.extend_from_slice(registers);
        self
    }

    /// Adds an attribute. Attributes are stored sorted by name, whatever the order of calls.
    pub fn attribute(mut self, name: impl Into<Cow<'a, str>>, value: Attribute<'a>) -> Self {
        self.attributes.push((name.into(), value));
        self
    }

    /// Appends a callee or region to the functions that the kernel can call.
    pub fn function(mut self, function: FunctionId) -> Self {
        self.functions.push(function);
        self
    }

    /// Sets the kernel's source location.
    pub fn location(mut self, location: Location<'a>) -> Self {
        self.location = Some(location);
        self
    }

    /// Sets the kernel's cost for the stream analysis: at least 1, by default [`Options::cost_threshold`].
    pub fn cost(mut self, cost: i64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Adds the kernel with results of these types.
    pub fn results(mut self, types: &[&'a str]) -> Vec<Register> {
        let module = &mut *self.function.module;
        let body = &mut self.function.body;
        let first = body.registers.len() as u32;
        body.registers.extend(types.iter().map(|&name| Some(module.intern_type(name))));
        let results: Vec<Register> = (first..body.registers.len() as u32).map(Register).collect();
        let code = module.intern_kernel(self.name);
        self.attributes.sort_by(|left, right| left.0.cmp(&right.0));
        let attributes = self.attributes.into_iter().map(|(name, value)| {
            if module.optional_sections {
                module.intern_attribute_types(&value);
            }
            NamedAttribute { name: Some(name), value: module.intern_attribute(value) }
        });
        let attributes = attributes.collect();
        body.kernels.push(Kernel {
            code,
            location: self.location,
            stream: 0,
            arguments: self.arguments,
            attributes,
            functions: self.functions,
            results: results.clone(),
        });
        self.function.costs.push(self.cost);
        results
    }

    /// Adds the kernel with one result of this type.
    pub fn result(self, kind: &'a str) -> Register {
        self.results(&[kind])[0]
    }

    /// Adds the kernel without results.
    pub fn no_results(self) {
        self.results(&[]);
    }
}
