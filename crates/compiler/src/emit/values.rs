//! The values of a plan, and the lifetimes of their memory.

use super::memory::{Lifetime, assign_offsets};
use crate::{Error, Result};
use pteron_exported::{Argument, ConstantTensor, ExportedProgram, IntArgument, TensorSpec, VarId, VarType};
use pteron_format::container::Blob;
use pteron_format::pte::{
    AllocationDetails, Builder, EValue, ExtraTensorInfo, Tensor, TensorDataLocation, TensorShapeDynamism,
};
use pteron_operator::SchemaArg;
use std::collections::HashMap;

/// Where a tensor's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// In the constant with this buffer index.
    Constant(u32),
    /// In the `.ptd`, under the tensor's name.
    External,
    /// In the planned block with this index.
    Planned(usize),
}

/// A block of planned memory.
struct Block {
    bytes: u64,
    first: usize,
    last: usize,
    /// The plan's indices of the tensors stored in the block.
    tensors: Vec<i32>,
    /// Whether the block is live-in: it holds an input or state when an execution starts.
    live_in: bool,
    /// Whether the block stays live between executions.
    persistent: bool,
    /// The block's byte offset in the memory that methods share; `None` if the block is elsewhere.
    shared: Option<u64>,
}

pub(super) struct Values<'p> {
    program: &'p ExportedProgram,
    external: bool,
    list: Vec<EValue>,
    of: HashMap<VarId, i32>,
    storages: HashMap<VarId, Storage>,
    blocks: Vec<Block>,
    /// The first and last instruction of each loop: what is live at the start of a loop is live to its end.
    loops: Vec<(usize, usize)>,
    ints: HashMap<i64, i32>,
    null: Option<i32>,
    names: Vec<(String, VarId)>,
    copies: Vec<usize>,
}

impl<'p> Values<'p> {
    pub(super) fn new(program: &'p ExportedProgram, external: bool) -> Self {
        Self {
            program,
            external,
            list: Vec::new(),
            of: HashMap::new(),
            storages: HashMap::new(),
            blocks: Vec::new(),
            loops: Vec::new(),
            ints: HashMap::new(),
            null: None,
            names: Vec::new(),
            copies: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, value: EValue) -> i32 {
        self.list.push(value);
        (self.list.len() - 1) as i32
    }

    /// The index in the plan of a value that has been defined.
    pub(super) fn index_of(&self, var: VarId) -> i32 {
        self.of.get(&var).copied().unwrap_or(-1)
    }

    pub(super) fn add_constant(
        &mut self,
        var: VarId,
        data: &ConstantTensor,
        blob: Blob<'static>,
        builder: &mut Builder<'static>,
    ) -> Result<()> {
        let program = self.program;
        let Some(spec) = program.spec(var) else { return Ok(()) };
        let place = |problem: String| Error::archive(format!("%{}", program.var(var).name), problem);
        let mut tensor = plan_tensor(program, spec).map_err(place)?;
        let name = data.name.as_ref().map(|n| n.to_string());
        if blob.is_empty() && !program.is_mutated(var) {
            // The reference runtime finds no data for constants without elements.
            let index = self.push(EValue::Tensor(tensor));
            let block = self.add_block(spec, index, 0).map_err(place)?;
            self.record_index(var, index, Storage::Planned(block));
            return Ok(());
        }
        if program.is_mutated(var) {
            let shared = program.shared.get(&var).copied();
            // Shared memory starts with zeros. A method that is loaded later must not write them again.
            if shared.is_none() || data.reopened().data().iter().any(|&byte| byte != 0) {
                tensor.data_buffer_idx = builder.add_initial_data(blob);
            }
            tensor.extra_tensor_info = name.map(|name| ExtraTensorInfo {
                fully_qualified_name: Some(name),
                ..ExtraTensorInfo::default()
            });
            let index = self.push(EValue::Tensor(tensor));
            let block = self.add_block(spec, index, 0).map_err(place)?;
            (self.blocks[block].live_in, self.blocks[block].persistent) = (true, true);
            self.blocks[block].shared = shared;
            self.record_index(var, index, Storage::Planned(block));
            return Ok(());
        }
        let storage = match name.filter(|_| self.external) {
            Some(name) => {
                self.names.push((name.clone(), var));
                tensor.extra_tensor_info = Some(ExtraTensorInfo {
                    fully_qualified_name: Some(name),
                    location: TensorDataLocation::External,
                    ..ExtraTensorInfo::default()
                });
                Storage::External
            }
            None => {
                tensor.data_buffer_idx = builder.add_constant(blob);
                tensor.extra_tensor_info = data.name.as_ref().map(|name| ExtraTensorInfo {
                    fully_qualified_name: Some(name.to_string()),
                    ..ExtraTensorInfo::default()
                });
                Storage::Constant(tensor.data_buffer_idx)
            }
        };
        let index = self.push(EValue::Tensor(tensor));
        self.record_index(var, index, storage);
        Ok(())
    }

    fn record_index(&mut self, var: VarId, index: i32, storage: Storage) {
        self.of.insert(var, index);
        self.storages.insert(var, storage);
    }

    pub(super) fn add_input(&mut self, var: VarId) -> Result<i32> {
        let index = self
            .define(var, 0)
            .map_err(|p| Error::archive(format!("input {}", self.program.var(var).name), p))?;
        if let Some(Storage::Planned(block)) = self.storages.get(&var) {
            self.blocks[*block].live_in = true;
            self.blocks[*block].persistent = self.program.is_mutated(var);
        }
        Ok(index)
    }

    /// Defines a value that the instruction at `at` writes, and returns its index in the plan.
    pub(super) fn define(&mut self, var: VarId, at: usize) -> Result<i32, String> {
        if let Some(&index) = self.of.get(&var) {
            self.record_use(var, at);
            return Ok(index);
        }
        let value = match &self.program.var(var).ty {
            VarType::Tensor(spec) => {
                let tensor = plan_tensor(self.program, spec)?;
                let index = self.push(EValue::Tensor(tensor));
                let block = self.add_block(spec, index, at)?;
                self.record_index(var, index, Storage::Planned(block));
                return Ok(index);
            }
            VarType::Int(_) => EValue::Int(0),
            VarType::Float => EValue::Double(0.0),
            VarType::Bool => EValue::Bool(false),
            VarType::Str => EValue::String(String::new()),
            VarType::Opaque => EValue::Null,
        };
        let index = self.push(value);
        self.of.insert(var, index);
        Ok(index)
    }

    /// Lets a tensor be resized up to its declared sizes.
    pub(super) fn make_resizable(&mut self, var: VarId) {
        let index = self.index_of(var);
        if let Some(EValue::Tensor(tensor)) = usize::try_from(index).ok().and_then(|i| self.list.get_mut(i)) {
            tensor.shape_dynamism = TensorShapeDynamism::DynamicBound;
        }
    }

    /// Adds a temporary tensor, which is no value of the program, first used at instruction `at`. Returns its index in
    /// the plan.
    pub(super) fn add_temporary(&mut self, spec: &TensorSpec, at: usize) -> Result<i32, String> {
        let tensor = plan_tensor(self.program, spec)?;
        let index = self.push(EValue::Tensor(tensor));
        let block = self.add_block(spec, index, at)?;
        self.copies.push(block);
        Ok(index)
    }

    /// Keeps all temporary copies live up to the instruction `end`.
    pub(super) fn keep_copies(&mut self, end: usize) {
        for &block in &self.copies {
            self.blocks[block].last = end;
        }
    }

    fn add_block(&mut self, spec: &TensorSpec, tensor: i32, at: usize) -> Result<usize, String> {
        let bytes = max_nbytes(self.program, spec)?;
        let (live_in, persistent, shared) = (false, false, None);
        self.blocks.push(Block {
            bytes,
            first: at,
            last: at,
            tensors: vec![tensor],
            live_in,
            persistent,
            shared,
        });
        Ok(self.blocks.len() - 1)
    }

    /// Records that the instruction at `at` uses a value.
    pub(super) fn record_use(&mut self, var: VarId, at: usize) {
        if let Some(Storage::Planned(block)) = self.storages.get(&var) {
            let block = &mut self.blocks[*block];
            block.last = block.last.max(at);
        }
    }

    /// Records a loop whose instructions have all been emitted.
    pub(super) fn add_loop(&mut self, first: usize, last: usize) {
        self.loops.push((first, last));
    }

    /// Whether a tensor is in planned memory that holds no input or state.
    pub(super) fn is_intermediate(&self, var: VarId) -> bool {
        matches!(self.storages.get(&var), Some(Storage::Planned(block)) if !self.blocks[*block].live_in)
    }

    /// Whether another tensor may share the tensor's bytes.
    pub(super) fn can_alias(&self, var: VarId) -> bool {
        self.storages.get(&var).is_some_and(|s| *s != Storage::External)
    }

    /// Makes `var` an alias of `of`: a tensor with the same bytes.
    pub(super) fn add_alias(&mut self, var: VarId, of: VarId, at: usize) -> Result<i32, String> {
        let Some(spec) = self.program.spec(var) else { return Err("it is no tensor".into()) };
        let mut new = plan_tensor(self.program, spec)?;
        let Some(&storage) = self.storages.get(&of) else {
            return Err("a view of what is not defined".into());
        };
        let index = self.list.len() as i32;
        match storage {
            Storage::Constant(data) => new.data_buffer_idx = data,
            Storage::External => {
                let base = self.list.get(self.index_of(of) as usize).and_then(EValue::as_tensor);
                new.extra_tensor_info = base.and_then(|b| b.extra_tensor_info.clone());
            }
            Storage::Planned(block) => {
                self.blocks[block].tensors.push(index);
                self.blocks[block].last = self.blocks[block].last.max(at);
            }
        }
        let index = self.push(EValue::Tensor(new));
        self.record_index(var, index, storage);
        Ok(index)
    }

    /// Makes `var` the same value as `as_var`: the same scalar, or an alias, which shares its sizes if they are
    /// dynamic.
    pub(super) fn make_same_value(&mut self, var: VarId, as_var: VarId, at: usize) -> Result<(), String> {
        if let Some(spec) = self.program.spec(var) {
            if spec.known_sizes().is_some() {
                return self.add_alias(var, as_var, at).map(|_| ());
            }
            self.record_use(as_var, at);
            if let Some(&storage) = self.storages.get(&as_var) {
                self.storages.insert(var, storage);
            }
        }
        let Some(&index) = self.of.get(&as_var) else { return Err("what it carries is not defined".into()) };
        self.of.insert(var, index);
        Ok(())
    }

    /// Whether two tensors share their memory.
    pub(super) fn shares_memory(&self, a: VarId, b: VarId) -> bool {
        matches!((self.storages.get(&a), self.storages.get(&b)), (Some(a), Some(b)) if a == b)
    }

    /// Keeps a tensor's memory live up to the instruction `as_long_as`.
    pub(super) fn keep_live(&mut self, var: VarId, as_long_as: usize) {
        self.record_use(var, as_long_as);
    }

    pub(super) fn add_int(&mut self, value: i64) -> i32 {
        if let Some(&index) = self.ints.get(&value) {
            return index;
        }
        let index = self.push(EValue::Int(value));
        self.ints.insert(value, index);
        index
    }

    pub(super) fn add_ints(&mut self, values: &[i64]) -> i32 {
        let items = values.iter().map(|&v| i64::from(self.add_int(v))).collect();
        self.push(EValue::IntList(items))
    }

    fn add_null(&mut self) -> i32 {
        match self.null {
            Some(index) => index,
            None => {
                let index = self.push(EValue::Null);
                self.null = Some(index);
                index
            }
        }
    }

    /// The plan's index of an argument's value; `None` if that is undefined. With `list`, an integer is a list of one.
    pub(super) fn add_argument(&mut self, arg: &Argument, list: bool) -> Option<i32> {
        Some(match arg {
            Argument::None | Argument::Ignored | Argument::MemoryFormat(_) => self.add_null(),
            Argument::Var(v) => *self.of.get(v)?,
            Argument::Int(v) if list => self.add_ints(&[*v]),
            Argument::Int(v) => self.add_int(*v),
            Argument::Float(v) => self.push(EValue::Double(*v)),
            Argument::Bool(v) => self.push(EValue::Bool(*v)),
            Argument::Str(v) => self.push(EValue::String(v.clone())),
            Argument::Ints(items) => {
                let mut indices = Vec::with_capacity(items.len());
                for item in items {
                    indices.push(match item {
                        IntArgument::Int(v) => i64::from(self.add_int(*v)),
                        IntArgument::Var(v) => i64::from(*self.of.get(v)?),
                    });
                }
                self.push(EValue::IntList(indices))
            }
            Argument::Floats(v) => self.push(EValue::DoubleList(v.clone())),
            Argument::Bools(v) => self.push(EValue::BoolList(v.clone())),
            Argument::Vars(list) => {
                let items = list.iter().map(|v| self.of.get(v).copied()).collect::<Option<_>>()?;
                self.push(EValue::TensorList(items))
            }
            Argument::OptionalVars(list) => {
                let item = |v: &Option<VarId>| v.map_or(Some(-1), |v| self.of.get(&v).copied());
                let items = list.iter().map(item).collect::<Option<_>>()?;
                self.push(EValue::OptionalTensorList(items))
            }
            Argument::Dtype(dtype) => self.add_int(*dtype as i64),
            Argument::Strs(_) | Argument::Complex(..) | Argument::Graph(_) => return None,
        })
    }

    /// The plan's index of a value for a default in a schema.
    pub(super) fn add_default(&mut self, text: Option<&str>, declared: &SchemaArg) -> i32 {
        let default = Argument::from_default(text, declared);
        // A default refers to no variables, so it always has a value.
        self.add_argument(&default, declared.list).unwrap_or(-1)
    }

    /// Plans the memory. Returns all values, the sizes of the arenas in bytes (the second is that of shared state, and
    /// is 0 without any), and the names of external constants.
    pub(super) fn finish(
        mut self,
        end: usize,
        alignment: u64,
    ) -> (Vec<EValue>, [u64; 2], Vec<(String, VarId)>) {
        for &(first, last) in &self.loops {
            for block in &mut self.blocks {
                if block.first < first && block.last >= first {
                    block.last = block.last.max(last);
                }
            }
        }
        let lifetimes: Vec<Lifetime> = self
            .blocks
            .iter()
            .map(|b| Lifetime {
                bytes: if b.shared.is_some() { 0 } else { b.bytes },
                first: if b.persistent { 0 } else { b.first },
                last: if b.persistent { end } else { b.last },
            })
            .collect();
        let (offsets, total) = assign_offsets(&lifetimes, alignment);
        let mut shared = self.program.shared_bytes;
        for (block, offset) in self.blocks.iter().zip(offsets) {
            let (memory_id, offset) = block.shared.map_or((1, offset), |offset| (2, offset));
            if memory_id == 2 {
                shared = shared.max(offset.saturating_add(block.bytes).next_multiple_of(alignment.max(1)));
            }
            for &index in &block.tensors {
                if let Some(EValue::Tensor(tensor)) = self.list.get_mut(index as usize) {
                    tensor.allocation_info = Some(AllocationDetails::new(memory_id, offset));
                }
            }
        }
        (self.list, [total, shared], self.names)
    }
}

/// The upper bounds of a tensor's sizes.
fn upper_bounds(program: &ExportedProgram, spec: &TensorSpec) -> Result<Vec<i32>, String> {
    spec.sizes
        .iter()
        .map(|size| {
            let max = size.bounds(&program.ranges).max;
            i32::try_from(max).map_err(|_| {
                format!(
                    "the size `{size}` has no upper bound below 2^31: export it with \
                     `dynamic_shapes={{...: Dim(name, max=...)}}` or `torch._check({size} <= ...)`"
                )
            })
        })
        .collect()
}

fn max_nbytes(program: &ExportedProgram, spec: &TensorSpec) -> Result<u64, String> {
    let sizes = upper_bounds(program, spec)?;
    let bytes =
        sizes.iter().try_fold(spec.dtype.size() as u64, |n, &s| n.checked_mul(u64::try_from(s).ok()?));
    bytes.filter(|&n| n < 1 << 62).ok_or_else(|| format!("the sizes {sizes:?} overflow"))
}

fn plan_tensor(program: &ExportedProgram, spec: &TensorSpec) -> Result<Tensor, String> {
    let dynamic = spec.known_sizes().is_none();
    Ok(Tensor {
        scalar_type: spec.dtype as i8,
        sizes: upper_bounds(program, spec)?,
        dim_order: spec.dim_order.to_vec(),
        shape_dynamism: if dynamic { TensorShapeDynamism::DynamicBound } else { TensorShapeDynamism::Static },
        ..Tensor::default()
    })
}
