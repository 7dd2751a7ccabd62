use super::Draft;
use super::draft::segment_alignment;
use crate::container::{Blob, Segment, Sharing, cache_blobs, pack};
use crate::pte::{
    BackendDelegate, DataLocation, EValue, ExecutionPlan, NamedData, Program, SubsegmentOffsets, Tensor,
    TensorData, VerifiedProgram,
};
use crate::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::ops::Range;

/// The default alignment of constants in their segment in bytes, that of the reference implementation.
pub const DEFAULT_CONSTANT_ALIGNMENT: u64 = 16;

/// Builds a program from execution plans and the bytes that they use, or breaks one down to be edited.
///
/// Plans refer to bytes by index into the vectors here: a tensor's `data_buffer_idx` into `constants` or, if it is
/// planned, `initial_data`; a delegate's `processed.index` into `delegate_data`, whatever its location.
/// [`finish`](Self::finish) drops bytes that nothing refers to, writes equal bytes once, and renumbers everything.
#[derive(Debug, Clone)]
pub struct Builder<'d> {
    /// The methods.
    pub execution_plan: Vec<ExecutionPlan>,
    /// Bytes of constant tensors; entry 0 is a placeholder.
    pub constants: Vec<Blob<'d>>,
    /// Initial bytes of mutable tensors; entry 0 is a placeholder.
    pub initial_data: Vec<Blob<'d>>,
    /// Payloads of delegates.
    pub delegate_data: Vec<Blob<'d>>,
    /// Named blobs for delegates.
    pub named_data: Vec<NamedBlob<'d>>,
    /// Whether constants are written inline into the tables, for runtimes from before release 0.4.
    pub inline_constants: bool,
    /// Alignment of segments, in bytes.
    pub segment_alignment: u64,
    /// Alignment of constants in their segment, in bytes.
    pub constant_alignment: u64,
    /// Alignment of inline data, in bytes.
    pub inline_alignment: usize,
    /// Additional alignment of the segments of delegates, in bytes.
    pub delegate_alignment: u64,
    /// Whether equal bytes are written only once. To find equal blobs, those of equal length are read once more.
    pub share: bool,
}

/// A named blob.
#[derive(Debug, Clone, Default)]
pub struct NamedBlob<'d> {
    /// The blob's name.
    pub key: String,
    /// The blob's bytes.
    pub blob: Blob<'d>,
    /// Alignment in bytes in addition to the file's segment alignment; 1 for none.
    pub alignment: u64,
}

impl Default for Builder<'_> {
    fn default() -> Self {
        Self {
            execution_plan: Vec::new(),
            constants: vec![Blob::default()],
            initial_data: vec![Blob::default()],
            delegate_data: Vec::new(),
            named_data: Vec::new(),
            inline_constants: false,
            segment_alignment: super::DEFAULT_SEGMENT_ALIGNMENT,
            constant_alignment: DEFAULT_CONSTANT_ALIGNMENT,
            inline_alignment: 16,
            delegate_alignment: 1,
            share: true,
        }
    }
}

impl<'d> Builder<'d> {
    /// A program without methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the bytes of a constant tensor and returns its `data_buffer_idx`.
    pub fn add_constant(&mut self, blob: Blob<'d>) -> u32 {
        push_with_index(&mut self.constants, blob)
    }

    /// Adds the initial bytes of a planned tensor and returns its `data_buffer_idx`.
    pub fn add_initial_data(&mut self, blob: Blob<'d>) -> u32 {
        push_with_index(&mut self.initial_data, blob)
    }

    /// Adds a delegate's payload and returns its `processed.index`.
    pub fn add_delegate_data(&mut self, blob: Blob<'d>) -> u32 {
        push_with_index(&mut self.delegate_data, blob)
    }

    /// Breaks a program down. `source` returns the bytes of a range of the file that it was read from. Methods that are
    /// not valid are left out.
    ///
    /// Segments stay page-aligned if they were. Constants keep their indices; the length of a constant is that of the
    /// largest tensor that uses it.
    pub fn from_program(program: &VerifiedProgram, source: impl Fn(Range<u64>) -> Blob<'d>) -> Self {
        let mut source = cache_blobs(source);
        let mut builder = Self {
            inline_constants: stores_inline_constants(program),
            segment_alignment: segment_alignment(program),
            ..Self::default()
        };
        let mut plans = program.execution_plan.clone();
        let mut constants: Vec<Range<u64>> = vec![0..0; program.constant_count().max(1)];
        let mut initial: HashMap<(u64, u32), u32> = HashMap::new();
        for tensor in plans.iter_mut().flat_map(|plan| &mut plan.values).filter_map(as_tensor_mut) {
            match program.tensor_data(tensor) {
                TensorData::Constant(range) => {
                    let longest = &mut constants[tensor.data_buffer_idx as usize];
                    if range.end - range.start >= longest.end - longest.start {
                        *longest = range;
                    }
                }
                TensorData::Initial(range) => {
                    let info = tensor.extra_tensor_info.as_mut();
                    let which = info.map_or(0, |info| std::mem::take(&mut info.mutable_data_segments_idx));
                    // Tensors may share initial bytes; the blob covers the largest of them.
                    let index = initial
                        .entry((which, tensor.data_buffer_idx))
                        .or_insert_with(|| builder.add_initial_data(source(range.clone())));
                    if builder.initial_data[*index as usize].len() < range.end - range.start {
                        builder.initial_data[*index as usize] = source(range);
                    }
                    tensor.data_buffer_idx = *index;
                }
                _ => {}
            }
        }
        builder.constants = constants.into_iter().map(&mut source).collect();
        for delegate in plans.iter_mut().flat_map(|plan| &mut plan.delegates) {
            let range = program.delegate_data(delegate);
            delegate.processed.index = builder.add_delegate_data(source(range));
        }
        for entry in &program.named_data {
            let range = program.segment(entry.segment_index).unwrap_or_default();
            let blob = source(range);
            builder.named_data.push(NamedBlob { key: entry.key.clone(), blob, alignment: 1 });
        }
        builder.execution_plan = plans;
        builder
    }

    /// Lays out all bytes, and builds the tables that refer to them.
    pub fn finish(mut self) -> Result<Draft<'d>> {
        let mut draft = Draft {
            segment_alignment: self.segment_alignment,
            inline_alignment: self.inline_alignment,
            ..Draft::default()
        };
        let mut program = Program::default();

        let constants = gather_blobs(
            &mut self.execution_plan,
            &self.constants,
            self.share,
            "constants",
            Tensor::constant_idx,
        )?;
        if self.inline_constants {
            draft.inline_constants = constants;
        } else {
            let offsets = pack(&constants, self.constant_alignment)?;
            program.constant_segment = Some(SubsegmentOffsets { segment_index: 0, offsets: offsets.clone() });
            draft.segments.push(Segment::new(Blob::parts(offsets.into_iter().zip(constants).collect())));
        }

        let get = Tensor::initial_data_idx;
        let initial =
            gather_blobs(&mut self.execution_plan, &self.initial_data, self.share, "initial_data", get)?;
        if initial.len() > 1 {
            let offsets = pack(&initial, 1)?;
            let segment_index = draft.segments.len() as u32;
            program.mutable_data_segments =
                vec![SubsegmentOffsets { segment_index, offsets: offsets.clone() }];
            draft.segments.push(Segment::new(Blob::parts(offsets.into_iter().zip(initial).collect())));
        }

        let mut sharing = [Sharing::new(self.share), Sharing::new(self.share)];
        for delegate in self.execution_plan.iter_mut().flat_map(|plan| &mut plan.delegates) {
            let BackendDelegate { processed, id, .. } = delegate;
            let Some(blob) = self.delegate_data.get(processed.index as usize) else {
                let expected =
                    format!("an index into the {} payloads of the builder", self.delegate_data.len());
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("delegate `{id}`"),
                    expected,
                    processed.index,
                ));
            };
            let inline = processed.location == DataLocation::Inline;
            processed.index = sharing[usize::from(inline)].index(blob, 1, |blob| match inline {
                true => push_with_index(&mut draft.inline_delegates, blob),
                false => {
                    push_with_index(&mut draft.segments, Segment::aligned(blob, self.delegate_alignment))
                }
            })?;
        }

        let mut sharing = Sharing::new(self.share);
        for NamedBlob { key, blob, alignment } in self.named_data {
            let alignment = alignment.max(1);
            let add = |blob| push_with_index(&mut draft.segments, Segment::aligned(blob, alignment));
            let segment_index = sharing.index(&blob, alignment, add)?;
            program.named_data.push(NamedData { key, segment_index });
        }
        program.execution_plan = self.execution_plan;
        draft.program = program;
        Ok(draft)
    }
}

fn stores_inline_constants(program: &VerifiedProgram) -> bool {
    program.has_inline_constants() && !program.constant_buffer.is_empty()
}

fn push_with_index<T>(all: &mut Vec<T>, new: T) -> u32 {
    all.push(new);
    (all.len() - 1) as u32
}

fn as_tensor_mut(value: &mut EValue) -> Option<&mut Tensor> {
    match value {
        EValue::Tensor(tensor) => Some(tensor),
        _ => None,
    }
}

/// The distinct blobs that tensors use, in order, after a placeholder. Renumbers the tensors' indices accordingly.
fn gather_blobs<'d>(
    plans: &mut [ExecutionPlan],
    blobs: &[Blob<'d>],
    share: bool,
    what: &'static str,
    index_of: fn(&Tensor) -> Option<u32>,
) -> Result<Vec<Blob<'d>>> {
    let mut used = vec![false; blobs.len()];
    for (p, plan) in plans.iter().enumerate() {
        for (v, tensor) in
            plan.values.iter().enumerate().filter_map(|(v, value)| Some((v, value.as_tensor()?)))
        {
            let Some(index) = index_of(tensor) else { continue };
            let Some(used) = used.get_mut(index as usize) else {
                let path = format!("execution_plan[{p}].values[{v}].data_buffer_idx");
                let expected = format!("an index into the {} {what} of the builder", blobs.len());
                return Err(Error::new(ErrorKind::Invalid, path, expected, index));
            };
            *used = true;
        }
    }
    let mut distinct = vec![Blob::default()];
    let mut sharing = Sharing::new(share);
    let mut renumbered = vec![0; blobs.len()];
    for (index, blob) in blobs.iter().enumerate().filter(|&(index, _)| used[index]) {
        renumbered[index] = sharing.index(blob, 1, |blob| push_with_index(&mut distinct, blob))?;
    }
    for tensor in plans.iter_mut().flat_map(|plan| &mut plan.values).filter_map(as_tensor_mut) {
        if let Some(index) = index_of(tensor) {
            tensor.data_buffer_idx = renumbered[index as usize];
        }
    }
    Ok(distinct)
}
