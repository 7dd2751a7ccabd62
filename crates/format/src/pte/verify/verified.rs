use super::{MethodError, Verifier, verify};
use crate::container::{add_offsets_to_errors, check_tables};
use crate::pte::read::{Broken, Decoded, decode, locate};
use crate::pte::{BackendDelegate, ExecutionPlan, Header, Program, SubsegmentOffsets, Tensor};
use crate::{Error, Limits, Result};
use std::collections::HashMap;
use std::ops::{Deref, Range};

/// A program for which everything that [`verify`] checks holds.
///
/// Derefs to [`Program`], without mutable access. It has the valid methods only: a method that is not valid is not in
/// [`Program::execution_plan`], but in [`invalid_methods`](Self::invalid_methods), and does not affect the others.
#[derive(Debug, Clone)]
pub struct VerifiedProgram {
    program: Program,
    header: Header,
    invalid: Vec<InvalidMethod>,
    unknown_fields: Vec<String>,
    /// The indices of the named data, sorted by key; keys are unique.
    by_key: Vec<u32>,
    /// The indices of the methods, sorted by name; names are unique.
    by_name: Vec<u32>,
}

/// A method of a program that is not valid.
#[derive(Debug, Clone)]
pub struct InvalidMethod {
    /// The method's index among the methods of the file.
    pub index: usize,
    /// The method's name, if that can be read.
    pub name: Option<String>,
    /// The first problem that was found in the method.
    pub error: Error,
    /// Its tables as they were read, if they could be, for tools that show what is there. Nothing in them is verified:
    /// any index may be out of bounds. A value of an unknown kind is [`EValue::Null`](crate::pte::EValue::Null) here,
    /// an instruction of an unknown kind a kernel call without operator, and an unknown member of an enum is its
    /// default: see [`unknown`](Self::unknown).
    pub plan: Option<Box<ExecutionPlan>>,
    /// The members of enums and unions that this reader does not know, each as an error of kind
    /// [`Newer`](crate::ErrorKind::Newer) with its path.
    pub unknown: Vec<Error>,
}

/// Where a tensor's bytes come from. Ranges are byte ranges of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorData<'p> {
    /// Constant bytes in the file.
    Constant(Range<u64>),
    /// Planned memory, initialized with these bytes of the file when the method is loaded.
    Initial(Range<u64>),
    /// Constant bytes outside the program, looked up by this key.
    External(&'p str),
    /// Planned memory, initialized with bytes outside the program that are looked up by this key.
    ExternalInitial(&'p str),
    /// Planned memory that starts as zeros.
    Planned,
    /// Memory that the caller supplies.
    Unplanned,
}

impl VerifiedProgram {
    /// Decodes and verifies a program. `program_bytes` are the bytes of
    /// [`Header::program_range`]. Errors name the byte of the file and the field.
    ///
    /// Fails if something is wrong with the program as a whole, or with every method.
    pub fn read(program_bytes: &[u8], header: &Header, limits: &Limits) -> Result<Self> {
        let program = Self::read_readable(program_bytes, header, limits)?;
        match program.invalid.first() {
            Some(first) if program.execution_plan.is_empty() => Err(first.error.clone()),
            _ => Ok(program),
        }
    }

    /// Like [`read`](Self::read), but does not fail if every method is invalid, for tools that show what can be read.
    pub fn read_readable(program_bytes: &[u8], header: &Header, limits: &Limits) -> Result<Self> {
        check_tables(program_bytes, header.program_size, limits)?;
        let Decoded { mut program, plans, unknown_fields } = decode(program_bytes, limits)?;
        let views: Vec<_> = plans.iter().map(Result::as_ref).collect();
        let errors_by_method = Verifier::run_by_method(&program, &views, header, limits);
        let (methods, mut errors): (Vec<_>, Vec<_>) =
            errors_by_method.into_iter().map(|MethodError { method, error }| (method, error)).unzip();
        let placed = errors.len().min(limits.errors);
        add_offsets_to_errors(&mut errors[..placed], program_bytes, |path| {
            locate(program_bytes, limits, path)
        });
        let mut first: HashMap<usize, Error> = HashMap::new();
        for (method, error) in methods.into_iter().zip(errors) {
            match method {
                None => return Err(error),
                Some(index) => _ = first.entry(index).or_insert(error),
            }
        }
        let mut invalid = Vec::new();
        for (index, plan) in plans.into_iter().enumerate() {
            match (plan, first.remove(&index)) {
                (Ok(plan), None) => program.execution_plan.push(plan),
                (Ok(plan), Some(error)) => invalid.push(InvalidMethod {
                    index,
                    name: Some(plan.name.clone()),
                    error,
                    plan: Some(Box::new(plan)),
                    unknown: Vec::new(),
                }),
                (Err(Broken { name, error, plan, unknown }), placed) => invalid.push(InvalidMethod {
                    index,
                    name,
                    error: placed.unwrap_or(error),
                    plan: plan.map(Box::new),
                    unknown,
                }),
            }
        }
        Ok(Self { unknown_fields, ..Self::from_checked_parts(program, header.clone(), invalid) })
    }

    /// All errors of the program and its methods, up to [`Limits::errors`]. An error in the structure of the flatbuffer
    /// hides all later ones, or those of its method.
    pub fn errors(program_bytes: &[u8], header: &Header, limits: &Limits) -> Vec<Error> {
        let decoded = check_tables(program_bytes, header.program_size, limits)
            .and_then(|()| decode(program_bytes, limits));
        let mut errors = match decoded {
            Ok(Decoded { program, plans, .. }) => {
                let plans: Vec<_> = plans.iter().map(Result::as_ref).collect();
                let errors = Verifier::run(&program, &plans, header, limits, limits.errors);
                errors.into_iter().map(|error| error.error).collect()
            }
            Err(error) => vec![error],
        };
        add_offsets_to_errors(&mut errors, program_bytes, |path| locate(program_bytes, limits, path));
        errors
    }

    /// Verifies a program that is already decoded, with all of its methods. Errors name the field.
    pub fn new(program: Program, header: Header, limits: &Limits) -> Result<Self> {
        verify(&program, &header, limits)?;
        Ok(Self::from_checked_parts(program, header, Vec::new()))
    }

    fn from_checked_parts(program: Program, header: Header, invalid: Vec<InvalidMethod>) -> Self {
        let mut by_key: Vec<u32> = (0..program.named_data.len() as u32).collect();
        by_key.sort_unstable_by_key(|&i| program.named_data[i as usize].key.as_str());
        let mut by_name: Vec<u32> = (0..program.execution_plan.len() as u32).collect();
        by_name.sort_unstable_by_key(|&i| program.execution_plan[i as usize].name.as_str());
        Self { program, header, invalid, unknown_fields: Vec::new(), by_key, by_name }
    }

    /// The methods that are not valid, in the order of the file.
    pub fn invalid_methods(&self) -> &[InvalidMethod] {
        &self.invalid
    }

    /// The paths of fields that this reader does not know; if there are any, the file has a newer schema. At most a thousand.
    pub fn unknown_fields(&self) -> &[String] {
        &self.unknown_fields
    }

    /// The verified tables of the file, with only the valid methods.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The tables, with the valid methods, and the header, to be modified.
    pub fn into_parts(self) -> (Program, Header) {
        (self.program, self.header)
    }

    /// The method with this name.
    pub fn plan(&self, name: &str) -> Option<&ExecutionPlan> {
        let plan = |i: u32| &self.program.execution_plan[i as usize];
        let position = self.by_name.binary_search_by_key(&name, |&i| plan(i).name.as_str()).ok()?;
        Some(plan(self.by_name[position]))
    }

    /// The byte range of segment `index` in the file. `0..0` for an empty segment, whatever its offset; `None` if there
    /// is no such segment.
    pub fn segment(&self, index: u32) -> Option<Range<u64>> {
        let segment = self.program.segments.get(index as usize)?;
        if segment.size == 0 {
            return Some(0..0);
        }
        self.program.segment_range(&self.header, index)
    }

    /// The byte range of all constants in the file, if they are in a segment.
    pub fn constant_segment(&self) -> Option<Range<u64>> {
        self.program
            .constant_segment
            .as_ref()
            .filter(|constants| constants.offsets.len() > 1)
            .and_then(|SubsegmentOffsets { segment_index, .. }| self.segment(*segment_index))
    }

    /// Where the bytes of a tensor of this program come from.
    pub fn tensor_data<'p>(&self, tensor: &'p Tensor) -> TensorData<'p> {
        let planned = tensor.allocation_info.is_some();
        if tensor.is_external() {
            let key = tensor.fully_qualified_name().unwrap_or_default();
            return if planned { TensorData::ExternalInitial(key) } else { TensorData::External(key) };
        }
        let nbytes = tensor.nbytes().unwrap_or(0);
        if let Some(index) = tensor.constant_idx()
            && let Ok(range) = self.program.constant_range(&self.header, index, nbytes)
        {
            return TensorData::Constant(range);
        }
        let which = tensor.extra_tensor_info.as_ref().map_or(0, |info| info.mutable_data_segments_idx);
        if let Some(index) = tensor.initial_data_idx()
            && let Ok(range) = self.program.initial_data_range(&self.header, which, index, nbytes)
        {
            return TensorData::Initial(range);
        }
        if planned { TensorData::Planned } else { TensorData::Unplanned }
    }

    /// The byte range in the file of the payload of a delegate of this program. An empty payload may lie anywhere, and
    /// has the range 0..0.
    pub fn delegate_data(&self, delegate: &BackendDelegate) -> Range<u64> {
        let range = self.program.delegate_range(&self.header, &delegate.processed);
        range.filter(|range| !range.is_empty()).unwrap_or_default()
    }

    /// The byte range in the file of the named data with this key.
    pub fn named_data(&self, key: &str) -> Option<Range<u64>> {
        let entry = |i: u32| &self.program.named_data[i as usize];
        let position = self.by_key.binary_search_by_key(&key, |&i| entry(i).key.as_str()).ok()?;
        self.segment(entry(self.by_key[position]).segment_index)
    }
}

impl Deref for VerifiedProgram {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}
