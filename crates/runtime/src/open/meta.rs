use super::input_sizes;
use crate::convert::usize_of;
use crate::{InputProblem, Program, Result};
use pteron_exported::InputSizes;
use pteron_exported::delegate::DelegateSources;
use pteron_format::pte;
use pteron_operator::{EValue, Tag};
use pteron_tensor::{DimOrder, Extent, ScalarType, ShapeDynamism, TensorMeta};
use std::collections::BTreeMap;

/// The program's description of one of its methods. The method need not be loaded.
#[derive(Clone, Copy)]
pub struct MethodMeta<'p> {
    program: &'p Program,
    plan: usize,
}

/// An input or output of a method.
#[derive(Debug, Clone)]
pub struct ValueMeta {
    /// The kind of the value.
    pub tag: Tag,
    /// The description of the tensor, if the value is a tensor.
    pub tensor: Option<TensorInfo>,
    /// The value that was fixed at export, if the value is not a tensor.
    pub traced: Option<EValue>,
}

/// A tensor of a method.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Type, sizes and layout. The sizes of a dynamic tensor are upper bounds.
    pub meta: TensorMeta,
    /// Whether the memory plan places the tensor, or the tensor is a constant. The runtime allocates a separate buffer
    /// for a tensor that is not planned.
    pub planned: bool,
    /// The tensor's name, if the exporter kept it.
    pub name: Option<String>,
}

/// An operator that a method calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorUse {
    /// The operator's full name.
    pub name: String,
    /// The number of instructions of the method that call the operator.
    pub calls: usize,
}

/// A backend to which parts of a method are delegated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendUse {
    /// The backend's id.
    pub id: String,
    /// The number of delegates of this backend in the method.
    pub delegates: usize,
    /// Total bytes of the payloads of this backend's delegates in the method.
    pub payload_bytes: u64,
}

impl Program {
    /// The program's description of a valid method. The method need not be loaded.
    pub fn method_meta(&self, name: &str) -> Result<MethodMeta<'_>> {
        Ok(MethodMeta::new(self, self.plan_index(name)?))
    }

    /// Every valid method's description, in the order of the file.
    pub fn methods(&self) -> impl Iterator<Item = MethodMeta<'_>> {
        (0..self.tables().execution_plan.len()).map(|i| MethodMeta::new(self, i))
    }
}

impl<'p> MethodMeta<'p> {
    pub(crate) fn new(program: &'p Program, plan: usize) -> Self {
        Self { program, plan }
    }

    pub(crate) fn program(&self) -> &'p Program {
        self.program
    }

    /// Index of the method in the program's execution plans.
    pub(crate) fn plan_index(&self) -> usize {
        self.plan
    }

    /// The tables of the method.
    pub fn plan(&self) -> &'p pte::ExecutionPlan {
        &self.program.tables().execution_plan[self.plan]
    }

    /// The method's name.
    pub fn name(&self) -> &'p str {
        &self.plan().name
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> Vec<ValueMeta> {
        self.values(&self.plan().inputs)
    }

    /// The sizes that the export allows for the inputs, read from the file. `None` if the program does not record them:
    /// the upper bounds say it all, or another exporter wrote it.
    ///
    /// # Errors
    /// They cannot be read, or are not those of this method.
    pub fn input_sizes(&self) -> Result<Option<InputSizes>> {
        input_sizes::of(self.program, self.plan())
    }

    /// What the delegates compute: nodes, source lines, debug handles. `None` if the program does not say it: it was
    /// compiled elsewhere, or without source frames.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn delegate_sources(&self) -> Result<Option<DelegateSources>> {
        input_sizes::delegate_sources(self.program, self.plan())
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> Vec<ValueMeta> {
        self.values(&self.plan().outputs)
    }

    /// The tensors that the exporter named: mutable buffers, parameters, external constants.
    pub fn attributes(&self) -> Vec<TensorInfo> {
        let tensors = self.plan().values.iter().filter_map(pte::EValue::as_tensor);
        tensors.filter(|t| t.attribute_name().is_some()).filter_map(tensor_info).collect()
    }

    /// Size in bytes of each memory arena, in the order of the memory ids, which start at 1.
    pub fn memory_arenas(&self) -> impl Iterator<Item = u64> + 'p {
        self.plan().non_const_buffer_sizes.iter().skip(1).map(|&n| u64::try_from(n).unwrap_or(0))
    }

    /// The operators that the method calls, sorted by name, with the number of calls of each.
    pub fn operators(&self) -> Vec<OperatorUse> {
        let plan = self.plan();
        let mut calls = BTreeMap::<String, usize>::new();
        for instruction in plan.chains.iter().flat_map(|c| &c.instructions) {
            if let pte::Instruction::KernelCall { op_index, .. } = instruction
                && let Some(op) = plan.operators.get(*op_index as usize)
            {
                *calls.entry(op.full_name()).or_default() += 1;
            }
        }
        calls.into_iter().map(|(name, calls)| OperatorUse { name, calls }).collect()
    }

    /// The backends that the method needs, sorted by id.
    pub fn backends(&self) -> Vec<BackendUse> {
        let mut uses = BTreeMap::<&str, (usize, u64)>::new();
        for delegate in &self.plan().delegates {
            let entry = uses.entry(&delegate.id).or_default();
            entry.0 += 1;
            let range = self.payload_range(delegate);
            entry.1 = entry.1.saturating_add(range.end - range.start);
        }
        uses.into_iter()
            .map(|(id, (delegates, payload_bytes))| BackendUse {
                id: id.to_owned(),
                delegates,
                payload_bytes,
            })
            .collect()
    }

    /// The byte range in the program file of the payload of one of the method's delegates.
    pub fn payload_range(&self, delegate: &pte::BackendDelegate) -> std::ops::Range<u64> {
        self.program.tables().delegate_data(delegate)
    }

    /// Whether any part of the method is delegated to this backend.
    pub fn uses_backend(&self, id: &str) -> bool {
        self.plan().delegates.iter().any(|d| d.id == id)
    }

    /// The number of instructions.
    pub fn num_instructions(&self) -> usize {
        self.plan().chains.iter().map(|c| c.instructions.len()).sum()
    }

    fn values(&self, ids: &[i32]) -> Vec<ValueMeta> {
        ids.iter().filter_map(|&id| self.plan().values.get(id as usize)).map(value_meta).collect()
    }
}

/// Checks that a tensor of this type and shape can be input `index`, whose type, size bounds and dynamism are those of
/// `declared`, and whose sizes the export limits to `allowed`. Fails with the same errors as
/// [`Method::set_input`](crate::Method::set_input).
pub fn check_tensor(
    index: usize,
    declared: &TensorMeta,
    allowed: Option<&InputSizes>,
    dtype: ScalarType,
    sizes: &[usize],
) -> Result<(), InputProblem> {
    let expected = (declared.dtype(), declared.dynamism(), &**declared.sizes());
    check_type_and_shape(index, expected, allowed, dtype, sizes)
}

/// Checks a tensor as [`check_tensor`] does. Type, dynamism and bounds are given as separate values.
pub(crate) fn check_type_and_shape(
    index: usize,
    (expected, dynamism, bound): (ScalarType, ShapeDynamism, &[usize]),
    allowed: Option<&InputSizes>,
    dtype: ScalarType,
    sizes: &[usize],
) -> Result<(), InputProblem> {
    if expected != dtype {
        return Err(InputProblem::Dtype { index, expected, found: dtype });
    }
    check_shape(index, dynamism, bound, allowed, sizes)
}

/// Checks that a shape is within the bounds of an input and is one that the export allows.
pub(crate) fn check_shape(
    index: usize,
    dynamism: ShapeDynamism,
    bound: &[usize],
    allowed: Option<&InputSizes>,
    sizes: &[usize],
) -> Result<(), InputProblem> {
    if let Some(allowed) = allowed.filter(|_| bound.len() == sizes.len()) {
        allowed.check_input(index, sizes).map_err(InputProblem::Size)?;
    }
    shape_problem(index, dynamism, bound, sizes).map_or(Ok(()), Err)
}

/// The problem with a shape, if it is outside the bounds of an input.
fn shape_problem(
    index: usize,
    dynamism: ShapeDynamism,
    bound: &[usize],
    actual: &[usize],
) -> Option<InputProblem> {
    let problem = |hint| {
        let dims: Vec<String> = bound
            .iter()
            .map(|d| if dynamism == ShapeDynamism::Static { d.to_string() } else { format!("<={d}") })
            .collect();
        Some(InputProblem::Shape {
            index,
            expected: format!("[{}]", dims.join(", ")),
            found: format!("{actual:?}"),
            hint,
        })
    };
    if bound.len() != actual.len() {
        return problem("; the rank of an input is fixed when the model is exported");
    }
    match dynamism {
        ShapeDynamism::Static if bound != actual => problem(
            "; the shape was fixed when the model was exported: export with dynamic shapes to vary it",
        ),
        ShapeDynamism::DynamicBound if actual.iter().zip(bound).any(|(f, b)| f > b) => {
            problem("; export with a larger upper bound to allow more")
        }
        _ => None,
    }
}

fn value_meta(value: &pte::EValue) -> ValueMeta {
    let (tag, traced) = match value {
        pte::EValue::Null => (Tag::None, None),
        pte::EValue::Int(v) => (Tag::Int, Some(EValue::Int(*v))),
        pte::EValue::Bool(v) => (Tag::Bool, Some(EValue::Bool(*v))),
        pte::EValue::Double(v) => (Tag::Double, Some(EValue::Double(*v))),
        pte::EValue::String(v) => (Tag::String, Some(EValue::String(v.clone()))),
        pte::EValue::Tensor(_) => (Tag::Tensor, None),
        pte::EValue::IntList(_) => (Tag::ListInt, None),
        pte::EValue::DoubleList(v) => (Tag::ListDouble, Some(EValue::ListDouble(v.clone()))),
        pte::EValue::BoolList(v) => (Tag::ListBool, Some(EValue::ListBool(v.clone()))),
        pte::EValue::TensorList(_) => (Tag::ListTensor, None),
        pte::EValue::OptionalTensorList(_) => (Tag::ListOptionalTensor, None),
    };
    ValueMeta { tag, tensor: value.as_tensor().and_then(tensor_info), traced }
}

fn tensor_info(t: &pte::Tensor) -> Option<TensorInfo> {
    Some(TensorInfo {
        meta: tensor_meta(t).ok()?,
        planned: t.allocation_info.is_some() || t.data_buffer_idx != 0 || t.is_external(),
        name: t.fully_qualified_name().map(str::to_owned),
    })
}

/// The meta of a tensor in the file: its type, its maximum sizes and its layout.
pub(crate) fn tensor_meta(t: &pte::Tensor) -> pteron_tensor::Result<TensorMeta> {
    let dtype = ScalarType::from_i8(t.scalar_type)?;
    let sizes: Vec<usize> = t.sizes.iter().map(|&s| usize::try_from(s).unwrap_or(usize::MAX)).collect();
    let dynamism = match t.shape_dynamism {
        pte::TensorShapeDynamism::Static => ShapeDynamism::Static,
        _ => ShapeDynamism::DynamicBound,
    };
    Ok(TensorMeta::new(dtype, &sizes, DimOrder::new(&t.dim_order)?)?.with_dynamism(dynamism))
}

/// The arena extent that the memory plan assigns to a tensor.
pub(crate) fn planned_extent(t: &pte::Tensor, meta: &TensorMeta) -> Result<Extent> {
    let at = t.allocation_info.unwrap_or_default();
    Ok(Extent {
        arena: at.memory_id.saturating_sub(1) as usize,
        offset: usize_of(at.offset())?,
        len: meta.nbytes(),
    })
}
