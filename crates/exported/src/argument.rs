use super::{ExportedGraph, VarId};
use pteron_tensor::ScalarType;

/// An argument of a node.
#[derive(Debug, Clone)]
pub enum Argument {
    /// `None`.
    None,
    /// A value of the program.
    Var(VarId),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Str(String),
    /// A complex number.
    Complex(f64, f64),
    /// A list of integers, some of which may be computed.
    Ints(Vec<IntArgument>),
    /// A list of floating-point numbers.
    Floats(Vec<f64>),
    /// A list of booleans.
    Bools(Vec<bool>),
    /// A list of strings.
    Strs(Vec<String>),
    /// A list of values.
    Vars(Vec<VarId>),
    /// A list of values, some of which may be absent.
    OptionalVars(Vec<Option<VarId>>),
    /// An element type.
    Dtype(ScalarType),
    /// A requested layout.
    MemoryFormat(MemoryFormat),
    /// An argument that is ignored: a device, a storage layout.
    Ignored,
    /// A graph that the node runs.
    Graph(Box<ExportedGraph>),
}

/// The layout that an operator's result is requested in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFormat {
    /// Row-major.
    Contiguous,
    /// Channels-last (NHWC), rank 4.
    ChannelsLast,
    /// Channels-last (NDHWC), rank 5.
    ChannelsLast3d,
    /// The layout of the operand.
    Preserve,
}

/// An element of a list of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntArgument {
    /// A known integer.
    Int(i64),
    /// A computed integer.
    Var(VarId),
}

impl Argument {
    /// A list of known integers.
    pub fn ints(values: &[i64]) -> Self {
        Self::Ints(values.iter().map(|&v| IntArgument::Int(v)).collect())
    }

    /// The value that the argument refers to; `None` for other kinds of arguments.
    pub fn var(&self) -> Option<VarId> {
        if let Self::Var(v) = self { Some(*v) } else { None }
    }

    /// The integers of a list, if all are known.
    pub fn known_ints(&self) -> Option<Vec<i64>> {
        let known = |i: &IntArgument| if let IntArgument::Int(v) = i { Some(*v) } else { None };
        match self {
            Self::Ints(list) => list.iter().map(known).collect(),
            _ => None,
        }
    }

    /// The values that the argument refers to, without those that a nested graph uses.
    pub fn vars(&self) -> Vec<VarId> {
        match self {
            Self::Var(v) => vec![*v],
            Self::Vars(list) => list.clone(),
            Self::OptionalVars(list) => list.iter().copied().flatten().collect(),
            Self::Ints(list) => {
                let computed = |i: &IntArgument| if let IntArgument::Var(v) = i { Some(*v) } else { None };
                list.iter().filter_map(computed).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Replaces the values that the argument refers to. Nested graphs stay unchanged.
    pub fn map_vars(&mut self, map: &mut impl FnMut(VarId) -> VarId) {
        match self {
            Self::Var(v) => *v = map(*v),
            Self::Vars(list) => list.iter_mut().for_each(|v| *v = map(*v)),
            Self::OptionalVars(list) => list.iter_mut().flatten().for_each(|v| *v = map(*v)),
            Self::Ints(list) => {
                for int in list {
                    if let IntArgument::Var(v) = int {
                        *v = map(*v);
                    }
                }
            }
            _ => {}
        }
    }
}

impl From<VarId> for Argument {
    fn from(var: VarId) -> Self {
        Self::Var(var)
    }
}

impl PartialEq for Argument {
    /// Structural equality, with floats compared by bits; nested graphs are never equal.
    fn eq(&self, other: &Self) -> bool {
        use Argument::*;
        match (self, other) {
            (None, None) | (Ignored, Ignored) => true,
            (Var(a), Var(b)) => a == b,
            (Int(a), Int(b)) => a == b,
            (Float(a), Float(b)) => a.to_bits() == b.to_bits(),
            (Bool(a), Bool(b)) => a == b,
            (Str(a), Str(b)) => a == b,
            (Complex(a, b), Complex(c, d)) => (a.to_bits(), b.to_bits()) == (c.to_bits(), d.to_bits()),
            (Ints(a), Ints(b)) => a == b,
            (Floats(a), Floats(b)) => a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits())),
            (Bools(a), Bools(b)) => a == b,
            (Strs(a), Strs(b)) => a == b,
            (Vars(a), Vars(b)) => a == b,
            (OptionalVars(a), OptionalVars(b)) => a == b,
            (Dtype(a), Dtype(b)) => a == b,
            (MemoryFormat(a), MemoryFormat(b)) => a == b,
            _ => false,
        }
    }
}
