//! A program in memory, for converters, editors and the writer.
//!
//! A [`Module`] holds tables in the order in which they are written (kernel names, types, attributes, functions), and
//! functions that refer to them by index. The writer computes derived data: use counts, used-by lists, byte offsets,
//! the order of strings. A module that is filled in the order in which the reference converter walks a program is
//! written to the same bytes as the reference's; see [`Module`].

mod attributes;
mod builder;
mod check;
mod read;
mod write;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

pub use attributes::{AttributeTable, UntypedAttributes};
pub use builder::{FunctionBuilder, KernelBuilder};

use crate::attribute::{Attribute, AttributeType, DType, ElementType};
use crate::function_kind::FunctionKind;
use crate::ids::{AttributeId, FunctionId, KernelCode, Register, TypeId};
use crate::location::Location;

/// A whole program.
///
/// # Order of the reference converter
///
/// The reference converter walks operations in post-order: operations inside a region come before the region's
/// operation. At each operation it
///
/// 1. interns the types of the results,
/// 2. interns the kernel's name,
/// 3. for each attribute in ascending order of names (except `_tfrt_cost` and symbols of functions): with optional
///    sections, adds the name ([`add_string`](Module::add_string)) and interns the types of scalars, also of those in
///    lists; then, unless it is a list of symbols, interns the value,
/// 4. adds the operation's regions as functions named `""`, interning the types of their arguments.
///
/// A `func.func` is added when it is visited, interning the types of its arguments; a native one interns the types
/// of its results too. `tfrt.return` is skipped.
#[derive(Clone, Debug, Default)]
pub struct Module<'a> {
    kernels: Table<Cow<'a, str>>,
    types: Table<Cow<'a, str>>,
    strings: BTreeSet<Cow<'a, str>>,
    /// The attributes of all kernels.
    pub attributes: AttributeTable<'a>,
    /// The functions, in index order.
    pub functions: Vec<Function<'a>>,
    /// Whether to write sections 8 to 10, which are needed only to translate the program back to MLIR text.
    pub optional_sections: bool,
    /// Sections that the format does not define, written last. Readers that do not know them skip them.
    pub custom_sections: Vec<CustomSection<'a>>,
}

/// A section of a kind that the format does not define.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomSection<'a> {
    /// The section's id, which must not be one of [`SectionId`](crate::SectionId).
    pub id: u8,
    /// The alignment of the section's contents in the file: a power of two.
    pub alignment: u8,
    /// The section's contents.
    pub data: Cow<'a, [u8]>,
}

/// Values with their index. Values are distinct if they are added by `intern`, and may repeat if added by `push`.
#[derive(Clone, Debug)]
struct Table<T> {
    values: Vec<T>,
    index: HashMap<T, u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { values: Vec::new(), index: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    fn intern(&mut self, value: T) -> u32 {
        let next = self.values.len() as u32;
        *self.index.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            next
        })
    }

    /// Appends a value even if an equal one exists; `intern` returns the index of the first of equal values.
    fn push(&mut self, value: T) {
        let next = self.values.len() as u32;
        self.index.entry(value.clone()).or_insert(next);
        self.values.push(value);
    }
}

/// A function or a region of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// The function's name; empty for regions.
    pub name: Cow<'a, str>,
    /// How the function runs.
    pub kind: FunctionKind,
    /// Types of the function's arguments.
    pub arguments: Vec<TypeId>,
    /// Types of the function's results.
    pub results: Vec<TypeId>,
    /// The function's body; `None` only for native functions.
    pub body: Option<Body<'a>>,
}

/// The body of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body<'a> {
    /// The function's source location; `None` is written as an offset that means "no location".
    pub location: Option<Location<'a>>,
    /// Types of the registers: arguments first, then the results of kernels. A type may be missing only in a module
    /// without optional sections.
    pub registers: Vec<Option<TypeId>>,
    /// Stream of kernel 0, the pseudo kernel with which every function starts.
    pub root_stream: u64,
    /// Kernels in program order, without the pseudo kernel; a register must be defined before it is used.
    pub kernels: Vec<Kernel<'a>>,
    /// Registers that are returned.
    pub results: Vec<Register>,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel<'a> {
    /// The code of the kernel's name, from [`Module::intern_kernel`].
    pub code: KernelCode,
    /// The kernel's source location.
    pub location: Option<Location<'a>>,
    /// The kernel's stream; see [`crate::stream_analysis`].
    pub stream: u64,
    /// Registers that the kernel reads.
    pub arguments: Vec<Register>,
    /// The kernel's attributes, sorted by name, functions not included.
    pub attributes: Vec<NamedAttribute<'a>>,
    /// Functions that the kernel is given: those of symbol attributes, sorted by attribute name, then its regions.
    pub functions: Vec<FunctionId>,
    /// Registers that the kernel defines.
    pub results: Vec<Register>,
}

/// An attribute of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAttribute<'a> {
    /// The attribute's name; may be missing only in a module without optional sections.
    pub name: Option<Cow<'a, str>>,
    /// The attribute's value, as its index in `Module::attributes`.
    pub value: AttributeId,
}

impl<'a> Module<'a> {
    /// A module without functions; `optional_sections` selects whether sections 8 to 10 are written.
    pub fn new(optional_sections: bool) -> Self {
        Module { optional_sections, ..Module::default() }
    }

    /// The code of the kernel called `name`, which is added if it is new.
    pub fn intern_kernel(&mut self, name: impl Into<Cow<'a, str>>) -> KernelCode {
        KernelCode(self.kernels.intern(name.into()))
    }

    /// The index of the type called `name`, which is added if it is new.
    pub fn intern_type(&mut self, name: impl Into<Cow<'a, str>>) -> TypeId {
        TypeId(self.types.intern(name.into()))
    }

    /// The attribute with this value, which is added if it is new.
    pub fn intern_attribute(&mut self, value: Attribute<'a>) -> AttributeId {
        self.attributes.intern(value)
    }

    /// Appends an attribute, even if an equal one exists; see [`AttributeTable::push`].
    pub fn push_attribute(&mut self, value: Attribute<'a>) -> AttributeId {
        self.attributes.push(value)
    }

    /// Interns the type of a scalar, or the types of the scalars in a list, as the reference converter does for files
    /// with optional sections.
    pub fn intern_attribute_types(&mut self, value: &Attribute<'a>) {
        match value {
            Attribute::Aggregate(elements) => {
                elements.iter().for_each(|element| self.intern_attribute_types(element));
            }
            Attribute::Array(array) if array.is_empty() => {}
            other => {
                if let Some(name) = mlir_type_name(other.attribute_type()) {
                    self.intern_type(name);
                }
            }
        }
    }

    /// Adds a string to the Strings section that nothing refers to, such as the name of an attribute that lists
    /// functions.
    pub fn add_string(&mut self, string: impl Into<Cow<'a, str>>) {
        self.strings.insert(string.into());
    }

    /// Adds a function and returns its index.
    pub fn push_function(&mut self, function: Function<'a>) -> FunctionId {
        self.functions.push(function);
        FunctionId(self.functions.len() as u32 - 1)
    }

    /// Adds a native function, which the executor looks up by name in its registry.
    pub fn push_native_function(
        &mut self,
        name: impl Into<Cow<'a, str>>,
        arguments: &[&'a str],
        results: &[&'a str],
    ) -> FunctionId {
        let [arguments, results] =
            [arguments, results].map(|types| types.iter().map(|&name| self.intern_type(name)).collect());
        self.push_function(Function {
            name: name.into(),
            kind: FunctionKind::Native,
            arguments,
            results,
            body: None,
        })
    }

    /// Kernel names by code.
    pub fn kernel_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.kernels.values.iter().map(|name| &**name)
    }

    /// Type names by index.
    pub fn type_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.types.values.iter().map(|name| &**name)
    }

    /// The name of a kernel.
    pub fn kernel_name(&self, code: KernelCode) -> Option<&str> {
        self.kernels.values.get(code.index()).map(|name| &**name)
    }

    /// The name of a type.
    pub fn type_name(&self, id: TypeId) -> Option<&str> {
        self.types.values.get(id.index()).map(|name| &**name)
    }

    /// The value of an attribute, if its type is known.
    pub fn attribute(&self, id: AttributeId) -> Option<&Attribute<'a>> {
        self.attributes.get(id)
    }

    /// Strings that were added with [`add_string`](Self::add_string), or to which nothing in the file refers that the
    /// module was read from; in bytewise order.
    pub fn extra_strings(&self) -> impl Iterator<Item = &str> {
        self.strings.iter().map(|string| &**string)
    }

    /// The functions that have bodies, with their positions.
    pub fn bodies(&self) -> impl Iterator<Item = (usize, &Body<'a>)> {
        let functions = self.functions.iter().enumerate();
        functions.filter_map(|(index, function)| Some((index, function.body.as_ref()?)))
    }

    /// The first function called `name`; `None` for the empty name, which all regions have.
    pub fn find_function(&self, name: &str) -> Option<FunctionId> {
        let named = |function: &Function<'_>| !name.is_empty() && function.name == name;
        self.functions.iter().position(named).map(|index| FunctionId(index as u32))
    }
}

impl PartialEq for Module<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.kernels.values == other.kernels.values
            && self.types.values == other.types.values
            && self.strings == other.strings
            && self.attributes == other.attributes
            && self.functions == other.functions
            && self.optional_sections == other.optional_sections
            && self.custom_sections == other.custom_sections
    }
}

impl Eq for Module<'_> {}

/// MLIR's name for the type of a scalar or of an array's elements; `None` for complex, quantized and other types.
fn mlir_type_name(kind: AttributeType) -> Option<&'static str> {
    let (AttributeType::Scalar(dtype) | AttributeType::Array(ElementType::Data(dtype))) = kind else {
        return None;
    };
    Some(match dtype {
        DType::UI8 => "ui8",
        DType::UI16 => "ui16",
        DType::UI32 => "ui32",
        DType::UI64 => "ui64",
        DType::I1 => "i1",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        _ => return None,
    })
}
