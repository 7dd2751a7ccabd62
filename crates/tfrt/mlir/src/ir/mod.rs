//! The program in memory: a module of operations with regions, and tables of its values and locations.

mod attribute;
mod dense;
mod float;
mod location;
mod text;
mod types;

pub use attribute::{Attribute, NamedAttribute};
pub use dense::{DenseData, DenseElements};
pub(crate) use dense::{element_size, read_bits, read_int};
pub use float::FloatKind;
pub(crate) use float::format_float;
pub use location::Location;
pub use text::Text;
pub(crate) use types::canonical_int;
pub use types::{DialectSymbol, FunctionType, ShapedKind, ShapedType, Signedness, Type};

/// Index of a value in [`Module::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a location in [`Module::locations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationId(pub u32);

/// A result of an operation or an argument of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value's type.
    pub ty: Type,
    /// The location of a block argument; for a result, the location of its operation.
    pub location: LocationId,
}

/// A module: the top operation, always `builtin.module` with one region of one block.
#[derive(Clone, Debug)]
pub struct Module {
    /// The `builtin.module` operation.
    pub op: Operation,
    /// Every value of the program; operations and blocks refer to them by index.
    pub values: Vec<Value>,
    /// Every location of the program.
    pub locations: Vec<Location>,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Full name, `dialect.name`.
    pub name: Text,
    /// The values that the operation uses, in order.
    pub operands: Vec<ValueId>,
    /// The values that the operation defines, in order.
    pub results: Vec<ValueId>,
    /// Attributes, sorted by name, each name once.
    pub attributes: Vec<NamedAttribute>,
    /// The regions nested in the operation.
    pub regions: Vec<Region>,
    /// Successor blocks, as indices into the blocks of the enclosing region.
    pub successors: Vec<u32>,
    /// The operation's source location.
    pub location: LocationId,
}

/// A list of blocks.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// The blocks; the first is the entry.
    pub blocks: Vec<Block>,
}

/// A block: arguments and a list of operations.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The block's arguments.
    pub arguments: Vec<ValueId>,
    /// The operations, in order.
    pub operations: Vec<Operation>,
}

impl Module {
    /// An empty module at `location`.
    pub fn new(location: Location) -> Module {
        let mut op = Operation::new("builtin.module", LocationId(0));
        op.regions.push(Region { blocks: vec![Block::default()] });
        Module { op, values: Vec::new(), locations: vec![location] }
    }

    /// The operations directly in the module.
    pub fn operations(&self) -> &[Operation] {
        self.op.body().map_or(&[], |block| &block.operations)
    }

    /// The module's block, to add operations to.
    pub fn body_mut(&mut self) -> &mut Block {
        if self.op.regions.is_empty() {
            self.op.regions.push(Region::default());
        }
        let region = &mut self.op.regions[0];
        if region.blocks.is_empty() {
            region.blocks.push(Block::default());
        }
        &mut region.blocks[0]
    }

    /// Adds a value of type `ty` to the table.
    pub fn add_value(&mut self, ty: Type, location: LocationId) -> ValueId {
        self.values.push(Value { ty, location });
        ValueId((self.values.len() - 1) as u32)
    }

    /// Adds a location to the table.
    pub fn add_location(&mut self, location: Location) -> LocationId {
        self.locations.push(location);
        LocationId((self.locations.len() - 1) as u32)
    }

    /// The type of a value.
    ///
    /// # Panics
    /// If `value` does not belong to this module.
    pub fn type_of(&self, value: ValueId) -> &Type {
        &self.values[value.0 as usize].ty
    }

    /// A location of the table.
    ///
    /// # Panics
    /// If `id` does not belong to this module.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.0 as usize]
    }

    /// The types of several values.
    pub fn types_of(&self, values: &[ValueId]) -> Vec<Type> {
        values.iter().map(|&v| self.type_of(v).clone()).collect()
    }
}

impl Operation {
    /// An operation with only a name and a location.
    pub fn new(name: impl Into<Text>, location: LocationId) -> Operation {
        Operation {
            name: name.into(),
            operands: Vec::new(),
            results: Vec::new(),
            attributes: Vec::new(),
            regions: Vec::new(),
            successors: Vec::new(),
            location,
        }
    }

    /// The operation's attribute of this name.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        let at = self.attributes.binary_search_by(|(n, _)| n.as_bytes().cmp(name.as_bytes())).ok()?;
        Some(&self.attributes[at].1)
    }

    /// Sets an attribute of the operation, replacing one of the same name.
    pub fn set_attribute(&mut self, name: impl Into<Text>, value: Attribute) {
        let name = name.into();
        match self.attributes.binary_search_by(|(n, _)| n.cmp(&name)) {
            Ok(at) => self.attributes[at].1 = value,
            Err(at) => self.attributes.insert(at, (name, value)),
        }
    }

    /// The first block of the operation's first region.
    pub fn body(&self) -> Option<&Block> {
        self.regions.first()?.blocks.first()
    }

    /// The `sym_name` attribute: the name of a function or module.
    pub fn symbol_name(&self) -> Option<&Text> {
        self.attribute("sym_name")?.as_text()
    }

    /// Whether the operation has this name.
    pub fn is(&self, name: &str) -> bool {
        self.name == name
    }
}
