//! Runs [`Expression`]s on blocks of elements that stay in the L1 cache, one instruction over a whole block at a time.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::pointwise::Pointwise;
use pteron_kernels::compute::{Isa, binary, clamp, unary};
use pteron_operator::{Expression, Instr, KernelContext, Result};
use pteron_pool::Pool;
use pteron_tensor::{MAX_RANK, TensorMeta, TensorView};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// The maximum number of elements of a block.
const BLOCK: usize = 512;

/// A block, aligned so that no vector crosses a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block([f32; BLOCK]);

impl Deref for Block {
    type Target = [f32; BLOCK];
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

thread_local! {
    /// The scratch blocks of a thread, reused from pass to pass.
    static BLOCKS: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// The grain size in elements; one thread computes all elements if there are fewer than twice as many.
const PART: usize = 1 << 13;

impl Lower for Pointwise {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let metas = (0..node.num_inputs()).map(|i| node.input(i)).collect::<Result<Vec<_>>>()?;
        let pass = Pass::new(&self.0, &metas, node.output(0)?, node.isa());
        Ok(Lowered::step(pass, 0..node.num_inputs()))
    }
}

/// Maps the index `i` of an output element to that of an input element, both in storage order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputIndex {
    /// The index of the input element is that of the output element.
    Same,
    /// The input is the output's previous contents, at the same index: the pass is in place.
    Own,
    /// The index is `(i / inner) % count`: broadcast scalars, rows, columns and channels.
    Cyclic { inner: usize, count: usize },
    /// Any other broadcast, or a view: the output's sizes in storage order, outermost first, the input's strides, and
    /// the index of its first element.
    Strided { offset: usize, sizes: Vec<usize>, strides: Vec<usize> },
}

impl InputIndex {
    /// The access to an input of shape `from` for an output of shape `to`, by PyTorch's broadcasting rules.
    pub(crate) fn of(from: &TensorMeta, to: &TensorMeta) -> Self {
        let rank = to.rank();
        let lead = rank - from.rank();
        let mut dims: Vec<(usize, usize)> = Vec::with_capacity(rank);
        for &d in to.dim_order().iter() {
            let d = d as usize;
            let size = to.sizes()[d];
            let stride = match d.checked_sub(lead) {
                Some(f) if from.sizes()[f] != 1 => from.strides()[f],
                _ => 0,
            };
            if size == 1 {
                continue;
            }
            match dims.last_mut() {
                // Merges dimensions with compatible strides.
                Some((s, st)) if *st == stride * size => (*s, *st) = (*s * size, stride),
                _ => dims.push((size, stride)),
            }
        }
        match dims.as_slice() {
            [] => Self::Cyclic { inner: 1, count: 1 },
            [(_, 0)] => Self::Cyclic { inner: 1, count: 1 },
            [(_, 1)] => Self::Same,
            [(_, 0), (n, 1)] => Self::Cyclic { inner: 1, count: *n },
            [(n, 1), (m, 0)] => Self::Cyclic { inner: *m, count: *n },
            [(_, 0), (n, 1), (m, 0)] => Self::Cyclic { inner: *m, count: *n },
            _ => Self::Strided {
                offset: 0,
                sizes: dims.iter().map(|d| d.0).collect(),
                strides: dims.iter().map(|d| d.1).collect(),
            },
        }
    }

    /// Whether consecutive blocks of `len` output elements read the same input elements.
    fn is_periodic(&self, len: usize) -> bool {
        matches!(self, Self::Cyclic { inner, count } if *count == 1 || *inner == 1 && len.is_multiple_of(*count))
    }

    /// The length of a repeated row; `None` if the input has none or the row does not fit a block.
    fn period(&self) -> Option<usize> {
        match self {
            Self::Cyclic { inner: 1, count } => (1..=BLOCK).contains(count).then_some(*count),
            _ => None,
        }
    }

    /// Fills `block` with the input elements for the outputs from `start` on.
    fn load(&self, input: &[f32], start: usize, block: &mut [f32]) {
        match self {
            // The elements are already in the output.
            Self::Own => {}
            Self::Same => block.copy_from_slice(&input[start..start + block.len()]),
            Self::Cyclic { count: 1, .. } => block.fill(input[0]),
            Self::Cyclic { inner: 1, count } => {
                // Copies one period, beginning anywhere in it, then doubles what is filled.
                let (at, period) = (start % count, block.len().min(*count));
                let head = period.min(count - at);
                block[..head].copy_from_slice(&input[at..at + head]);
                block[head..period].copy_from_slice(&input[..period - head]);
                let mut done = period;
                while done < block.len() {
                    let n = done.min(block.len() - done);
                    block.copy_within(..n, done);
                    done += n;
                }
            }
            Self::Cyclic { inner, count } => {
                let (mut at, mut left) = ((start / inner) % count, inner - start % inner);
                let mut rest = block;
                while !rest.is_empty() {
                    let (head, tail) = rest.split_at_mut(left.min(rest.len()));
                    head.fill(input[at]);
                    rest = tail;
                    at = (at + 1) % count;
                    left = *inner;
                }
            }
            Self::Strided { offset, sizes, strides } => {
                load_strided(&input[*offset..], sizes, strides, start, block);
            }
        }
    }
}

/// Fills `block` with the elements of a view from the `start`th on, row by row along the innermost dimension.
fn load_strided(input: &[f32], sizes: &[usize], strides: &[usize], start: usize, block: &mut [f32]) {
    let mut index = [0usize; MAX_RANK];
    let (mut rest, mut at) = (start, 0);
    for d in (0..sizes.len()).rev() {
        index[d] = rest % sizes[d];
        rest /= sizes[d];
        at += index[d] * strides[d];
    }
    let last = sizes.len() - 1;
    let mut rest = block;
    while !rest.is_empty() {
        // The rest of a row, or as many whole rows as the next dimension has left.
        let n = rest.len().min(sizes[last] - index[last]);
        let is_full_rows = n == sizes[last] && strides[last] == 1 && last > 0;
        let mut moved = last;
        if is_full_rows {
            moved = last - 1;
            let rows = (rest.len() / n).min(sizes[moved] - index[moved]);
            let (head, tail) = rest.split_at_mut(rows * n);
            rest = tail;
            copy_rows(&input[at..], strides[moved], head, n);
            index[moved] += rows;
            at += rows * strides[moved];
        } else {
            let (head, tail) = rest.split_at_mut(n);
            rest = tail;
            match strides[last] {
                0 => head.fill(input[at]),
                1 => head.copy_from_slice(&input[at..at + n]),
                step => head.iter_mut().zip(input[at..].iter().step_by(step)).for_each(|(x, i)| *x = *i),
            }
            index[last] += n;
            at += n * strides[last];
        }
        // Carries into the outer indices.
        for d in (1..=moved).rev() {
            if index[d] < sizes[d] {
                break;
            }
            at -= strides[d] * sizes[d];
            index[d] = 0;
            index[d - 1] += 1;
            at += strides[d - 1];
        }
    }
}

/// Copies rows of `n` elements, which begin `step` elements apart in the input. Rows of usual short lengths are
/// copied in registers.
fn copy_rows(input: &[f32], step: usize, out: &mut [f32], n: usize) {
    fn copy_short_rows<const N: usize>(input: &[f32], step: usize, out: &mut [f32]) {
        let mut at = 0;
        for row in out.chunks_exact_mut(N) {
            row.copy_from_slice(&input[at..at + N]);
            at += step;
        }
    }
    match n {
        2 => copy_short_rows::<2>(input, step, out),
        4 => copy_short_rows::<4>(input, step, out),
        8 => copy_short_rows::<8>(input, step, out),
        16 => copy_short_rows::<16>(input, step, out),
        32 => copy_short_rows::<32>(input, step, out),
        _ => out.chunks_exact_mut(n).enumerate().for_each(|(i, row)| {
            row.copy_from_slice(&input[i * step..i * step + n]);
        }),
    }
}

/// Where the elements of a register are stored while a block is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// In the input with this index, at the same element indices as in the output.
    Input(usize),
    /// In the scratch block with this index.
    Block(usize),
    /// In the output.
    Out,
    /// In the output's previous contents.
    Own,
}

/// An expression compiled for the shapes of its operands: where registers are, and how inputs are accessed.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    instrs: Vec<Instr>,
    access: Vec<InputIndex>,
    places: Vec<Location>,
    num_blocks: usize,
    /// The number of elements of a block: a multiple of the longest repeated row.
    block: usize,
    isa: Isa,
}

impl Pass {
    pub(crate) fn new(
        expression: &Expression,
        inputs: &[&TensorMeta],
        output: &TensorMeta,
        isa: Isa,
    ) -> Self {
        Self::with_access(expression, inputs.iter().map(|m| InputIndex::of(m, output)).collect(), isa)
    }

    /// Compiles an in-place pass: its first input is the output's previous contents, and `inputs` are the others.
    pub(crate) fn new_in_place(
        expression: &Expression,
        inputs: &[&TensorMeta],
        output: &TensorMeta,
        isa: Isa,
    ) -> Self {
        let others = inputs.iter().map(|m| InputIndex::of(m, output));
        Self::with_access(expression, [InputIndex::Own].into_iter().chain(others).collect(), isa)
    }

    pub(crate) fn with_access(expression: &Expression, access: Vec<InputIndex>, isa: Isa) -> Self {
        let instrs = expression.instrs.clone();
        let period = access.iter().filter_map(InputIndex::period).max().unwrap_or(1);
        let block = BLOCK / period * period;
        let mut last_use: Vec<usize> = (0..instrs.len()).collect();
        for (i, instr) in instrs.iter().enumerate() {
            match *instr {
                Instr::Unary(_, a) | Instr::Clamp { of: a, .. } => last_use[a] = i,
                Instr::Binary(_, a, b) => (last_use[a], last_use[b]) = (i, i),
                Instr::Input(_) | Instr::Const(_) => {}
            }
        }
        // A value that is the same for every block is computed once, into its own scratch block.
        let is_invariant = |instr: &Instr| match instr {
            Instr::Const(_) => true,
            Instr::Input(n) => access[*n].is_periodic(block),
            _ => false,
        };
        let (mut places, mut free, mut num_blocks) = (Vec::new(), Vec::<usize>::new(), 0);
        for (i, instr) in instrs.iter().enumerate() {
            let mut fresh = || {
                num_blocks += 1;
                num_blocks - 1
            };
            places.push(match instr {
                Instr::Input(n) if access[*n] == InputIndex::Same => Location::Input(*n),
                // The output's previous contents are valid until the last instruction writes the output.
                Instr::Input(n) if access[*n] == InputIndex::Own && last_use[i] + 1 < instrs.len() => {
                    Location::Own
                }
                _ if is_invariant(instr) => Location::Block(fresh()),
                _ if i + 1 == instrs.len() => Location::Out,
                _ => Location::Block(free.pop().unwrap_or_else(fresh)),
            });
            // Frees the blocks of values that are used for the last time. This instruction itself cannot reuse them: it
            // reads them while it writes.
            let done = (0..i).filter(|&r| last_use[r] == i && !is_invariant(&instrs[r]));
            free.extend(done.filter_map(|r| if let Location::Block(b) = places[r] { Some(b) } else { None }));
        }
        Self { instrs, access, places, num_blocks, block, isa }
    }

    /// Computes elements `start..start + out.len()` of the output.
    pub(crate) fn compute_range(&self, inputs: &[&[f32]], start: usize, out: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        BLOCKS.with_borrow_mut(|blocks| {
            blocks.resize(blocks.len().max(self.num_blocks), Block([0.0; BLOCK]));
            self.compute_blocks(inputs, start, out, blocks);
        });
    }

    /// Like [`Self::compute_range`], with the scratch blocks of this thread.
    fn compute_blocks(&self, inputs: &[&[f32]], start: usize, out: &mut [f32], blocks: &mut [Block]) {
        let widest = self.block.min(out.len());
        for (instr, place) in self.instrs.iter().zip(&self.places) {
            match (instr, place) {
                (Instr::Const(c), Location::Block(to)) => blocks[*to][..widest].fill(*c),
                (Instr::Input(n), Location::Block(to)) if self.access[*n].is_periodic(self.block) => {
                    self.access[*n].load(inputs[*n], start, &mut blocks[*to][..widest]);
                }
                _ => {}
            }
        }
        for (b, block) in out.chunks_mut(self.block).enumerate() {
            let at = start + b * self.block;
            for i in 0..self.instrs.len() {
                self.run_instruction(i, inputs, at, blocks, block);
            }
            // If the last instruction is only a load, the result is still in an input or a block.
            match self.places[self.instrs.len() - 1] {
                Location::Input(n) => block.copy_from_slice(&inputs[n][at..at + block.len()]),
                Location::Block(from) => block.copy_from_slice(&blocks[from][..block.len()]),
                Location::Out | Location::Own => {}
            }
        }
    }

    /// Runs instruction `i` for the block of output elements that starts at `at`.
    fn run_instruction(&self, i: usize, inputs: &[&[f32]], at: usize, blocks: &mut [Block], out: &mut [f32]) {
        let len = out.len();
        if let Instr::Input(n) = self.instrs[i]
            && self.access[n] == InputIndex::Own
        {
            if let Location::Block(to) = self.places[i] {
                blocks[to][..len].copy_from_slice(out);
            }
            return;
        }
        // The block to write, and the blocks before and after it to read.
        let (to, before, after, split, own): (&mut [f32], &[_], &[_], _, &[f32]) = match self.places[i] {
            Location::Input(_) | Location::Own => return,
            Location::Out => {
                let split = blocks.len();
                (out, blocks, &[], split, &[])
            }
            Location::Block(to) => {
                let (before, rest) = blocks.split_at_mut(to);
                let Some((block, after)) = rest.split_first_mut() else { return };
                (&mut block[..len], before, after, to, out)
            }
        };
        let read = |register: usize| -> &[f32] {
            match self.places[register] {
                Location::Input(n) => &inputs[n][at..at + len],
                Location::Block(b) if b < split => &before[b][..len],
                Location::Block(b) => &after[b - split - 1][..len],
                Location::Own => own,
                // Only the last instruction is in the output, and no instruction reads its result.
                Location::Out => &[],
            }
        };
        match self.instrs[i] {
            Instr::Const(_) => {}
            Instr::Input(n) if self.access[n].is_periodic(self.block) => {}
            Instr::Input(n) => self.access[n].load(inputs[n], at, to),
            // A block is too small to split across threads.
            Instr::Unary(f, a) => unary(Pool::alone(), self.isa, f, read(a), to),
            Instr::Clamp { of, low, high } => clamp(self.isa, (low, high), read(of), to),
            Instr::Binary(f, a, b) => binary(Pool::alone(), self.isa, f, read(a), read(b), to),
        }
    }
}

impl Step for Pass {
    /// Runs the pass over whole tensors, divided among the threads if they are large enough.
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let inputs =
            reads.iter().map(|r| r.storage::<f32>()).collect::<Result<SmallVec<[&[f32]; 4]>, _>>()?;
        let out = only_output(&mut writes)?.storage_mut::<f32>()?;
        if ctx.pool().threads() == 1 || out.len() < 2 * PART {
            self.compute_range(&inputs, 0, out);
            return Ok(());
        }
        let inputs = &inputs;
        ctx.pool().parallel_chunks_mut(out, PART, 1, &|i, part| self.compute_range(inputs, i * PART, part));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cyclic_access_works_from_any_start() {
        let input: Vec<f32> = (0..700).map(|i| i as f32).collect();
        for (inner, count) in [(1, 1), (1, 3), (1, 8), (1, 96), (1, 512), (1, 700), (5, 3), (600, 2)] {
            let access = InputIndex::Cyclic { inner, count };
            for (start, len) in [(0, BLOCK), (7, BLOCK), (4095, 100), (1, 1)] {
                let mut block = vec![-1.0; len];
                access.load(&input[..count], start, &mut block);
                let want: Vec<f32> = (start..start + len).map(|i| input[i / inner % count]).collect();
                assert_eq!(block, want, "{access:?} from {start}");
            }
        }
    }
}
