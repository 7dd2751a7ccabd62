//! Access to the arguments of a node by name.

use pteron_exported::{Argument, ExportedNode, ExportedProgram, TensorSpec, VarId};
use pteron_tensor::{DimOrder, ScalarType};

/// Why the backend does not support a node.
pub(super) type Reason = String;

/// A node, with the program that it is in.
#[derive(Clone, Copy)]
pub(super) struct Call<'p> {
    pub(super) program: &'p ExportedProgram,
    pub(super) node: &'p ExportedNode,
}

impl<'p> Call<'p> {
    fn argument(&self, name: &str) -> Option<&'p Argument> {
        self.node.arg(name).filter(|arg| !matches!(arg, Argument::None | Argument::Ignored))
    }

    /// The tensor argument `name`, which is required.
    pub(super) fn tensor(&self, name: &str) -> Result<VarId, Reason> {
        let var =
            self.argument(name).and_then(Argument::var).ok_or_else(|| format!("`{name}` is no tensor"))?;
        self.float_spec(var).map(|_| var)
    }

    /// The tensor argument `name`, if it is present.
    pub(super) fn optional_tensor(&self, name: &str) -> Result<Option<VarId>, Reason> {
        self.argument(name).map(|_| self.tensor(name)).transpose()
    }

    /// The tensor argument `name`, which must be a constant.
    pub(super) fn constant(&self, name: &str) -> Result<VarId, Reason> {
        let var = self.tensor(name)?;
        if is_constant(self.program, var) { Ok(var) } else { Err(format!("`{name}` is no constant")) }
    }

    /// The `N` integers of the argument `name`; a single one is repeated, and an empty list or none means `default`,
    /// the schema's default.
    pub(super) fn ints<const N: usize>(&self, name: &str, default: [i64; N]) -> Result<[i64; N], Reason> {
        let list = match self.argument(name) {
            None => return Ok(default),
            Some(Argument::Int(v)) => vec![*v],
            Some(arg) => arg.known_ints().ok_or_else(|| format!("`{name}` is computed"))?,
        };
        match list[..] {
            [] => Ok(default),
            [one] => Ok([one; N]),
            _ => list
                .try_into()
                .map_err(|list: Vec<i64>| format!("`{name}` has {} numbers, not {N}", list.len())),
        }
    }

    /// As [`Self::ints`], but fails if one is negative or above 2^20.
    pub(super) fn counts<const N: usize>(&self, name: &str, default: [i64; N]) -> Result<[usize; N], Reason> {
        let ints = self.ints(name, default)?;
        match ints.iter().find(|v| !(0..=1 << 20).contains(*v)) {
            Some(v) => Err(format!("`{name}` is {v}")),
            None => Ok(ints.map(|v| v as usize)),
        }
    }

    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64, Reason> {
        self.ints(name, [default]).map(|[v]| v)
    }

    /// The scalar argument `name`; `None` if it is absent.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, Reason> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Int(v)) => Ok(Some(*v as f64)),
            Some(Argument::Float(v)) => Ok(Some(*v)),
            Some(_) => Err(format!("`{name}` is no known number")),
        }
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, Reason> {
        match self.argument(name) {
            None => Ok(default),
            Some(Argument::Bool(v)) => Ok(*v),
            Some(_) => Err(format!("`{name}` is no known truth value")),
        }
    }

    /// Fails if an argument has another value than `value`, the only one that the backend supports.
    pub(super) fn expect_value(&self, name: &str, value: f64) -> Result<(), Reason> {
        match self.number(name)? {
            Some(actual) if actual != value => Err(format!("`{name}` is {actual}, not {value}")),
            _ => Ok(()),
        }
    }

    /// The first result, which must be a float tensor that payloads can hold.
    pub(super) fn output(&self) -> Result<VarId, Reason> {
        let var = *self.node.outputs.first().ok_or("it has no result")?;
        self.float_spec(var).map(|_| var)
    }

    /// The spec of a float tensor. Fails if a payload cannot hold the tensor.
    pub(super) fn float_spec(&self, var: VarId) -> Result<&'p TensorSpec, Reason> {
        float_spec(self.program, var)
    }

    /// Converts the dimension index `dim`, which counts from the end if negative, to an index from the start.
    pub(super) fn dim(&self, dim: i64, rank: usize) -> Result<usize, Reason> {
        let at = if dim < 0 { dim + rank as i64 } else { dim };
        let at = usize::try_from(at).ok().filter(|at| *at < rank);
        at.ok_or_else(|| format!("{dim} is no dimension of {rank}"))
    }
}

/// Whether a value is a constant of the program that is never mutated.
pub(super) fn is_constant(program: &ExportedProgram, var: VarId) -> bool {
    program.constants.contains_key(&var) && !program.is_mutated(var)
}

/// The elements of a float constant in row-major order.
pub(super) fn floats(program: &ExportedProgram, var: VarId) -> Vec<f32> {
    let Some(bytes) = program.row_major_bytes(var) else { return Vec::new() };
    bytes.bytes().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Whether a tensor is an image in NHWC, the layout of images in payloads. Runtimes take no other layouts than this and
/// the row-major one.
pub(super) fn is_channels_last(spec: &TensorSpec) -> bool {
    spec.rank() == 4 && spec.dim_order == DimOrder::channels_last(4)
}

/// The spec of a tensor. Fails unless it is a row-major or channels-last float32 tensor with at most six dimensions,
/// all of them bounded and not empty.
pub(super) fn float_spec(program: &ExportedProgram, var: VarId) -> Result<&TensorSpec, Reason> {
    let name = &program.var(var).name;
    let spec = program.spec(var).ok_or_else(|| format!("%{name} is no tensor"))?;
    if spec.dtype != ScalarType::Float {
        return Err(format!("%{name} is of {}", spec.dtype));
    }
    if !spec.dim_order.is_contiguous() && !is_channels_last(spec) {
        return Err(format!("%{name} is in dim order {}", spec.dim_order));
    }
    if spec.rank() > crate::payload::MAX_RANK {
        return Err(format!("%{name} has {} dimensions", spec.rank()));
    }
    let bounds = spec.sizes.iter().map(|size| size.bounds(&program.ranges).max);
    match bounds.into_iter().find(|max| !(1..=i64::from(i32::MAX)).contains(max)) {
        Some(0) => Err(format!("%{name} is empty")),
        Some(_) => Err(format!("%{name} has a size without a bound")),
        None => Ok(spec),
    }
}
