//! One pass over elements: what a chain of elementwise operators becomes.
//!
//! An [`Expression`] computes one f32 output element from one element of each input. It is run on blocks
//! of elements that stay in the nearest cache, each instruction over the whole block at once.

use super::{Step, Writes, only};
use crate::layouts::Lies;
use crate::operation::{Images, Lowered, Lowering, Operation};
use kernels::compute::{Isa, binary, clamp, unary};
use operator::{Expression, Instr, KernelContext, Result};
use pool::Pool;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use tensor::{MAX_RANK, TensorMeta, TensorView};

/// Elements of a block, at most.
const BLOCK: usize = 512;

/// A block, whose vectors do not lie across cache lines.
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
    /// Blocks that a thread keeps from pass to pass.
    static BLOCKS: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Elements that a thread takes at a time; of fewer than two such parts one thread takes all.
const PART: usize = 1 << 13;

/// One pass over elements: an expression of every element of the inputs, which are broadcast.
#[derive(Debug, Clone, PartialEq)]
pub struct Pointwise(pub Expression);

impl Operation for Pointwise {
    fn name(&self) -> &str {
        "pointwise"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }

    fn lies(&self, _: usize, _: usize) -> Lies {
        Lies::Anyhow
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let metas = (0..node.inputs()).map(|i| node.input(i)).collect::<Result<Vec<_>>>()?;
        let pass = Pass::new(&self.0, &metas, node.output(0)?, node.isa());
        Ok(Lowered::step(pass, 0..node.inputs()))
    }

    fn images(&self) -> Images {
        Images::Follows
    }
}

/// Which element of an input goes with an element of the output, both counted in storage order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// The same.
    Same,
    /// The same, of the output as it is before.
    Own,
    /// `(i / inner) % count`: scalars, rows, columns, channels.
    Cyclic { inner: usize, count: usize },
    /// Any broadcast: sizes of the output in storage order, outermost first, and the input's strides.
    Strided { sizes: Vec<usize>, strides: Vec<usize> },
}

impl Access {
    /// How an input of shape `from` is read for an output of shape `to`, by PyTorch's broadcasting.
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
                // Two dimensions that step alike are one.
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
                sizes: dims.iter().map(|d| d.0).collect(),
                strides: dims.iter().map(|d| d.1).collect(),
            },
        }
    }

    /// Whether blocks of `len` elements, one after another, have the same elements.
    fn is_periodic(&self, len: usize) -> bool {
        matches!(self, Self::Cyclic { inner, count } if *count == 1 || *inner == 1 && len.is_multiple_of(*count))
    }

    /// Elements after which a row repeats, if blocks can hold it.
    fn period(&self) -> Option<usize> {
        match self {
            Self::Cyclic { inner: 1, count } => (1..=BLOCK).contains(count).then_some(*count),
            _ => None,
        }
    }

    /// Fills `block` with the elements that go with outputs `start..`.
    fn load(&self, input: &[f32], start: usize, block: &mut [f32]) {
        match self {
            // There already.
            Self::Own => {}
            Self::Same => block.copy_from_slice(&input[start..start + block.len()]),
            Self::Cyclic { count: 1, .. } => block.fill(input[0]),
            Self::Cyclic { inner: 1, count } => {
                // One period, from wherever it begins, then copies of all that is there.
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
            Self::Strided { sizes, strides } => {
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
                    // The rest of a line along the innermost dimension, then the carry.
                    let n = rest.len().min(sizes[last] - index[last]);
                    let (head, tail) = rest.split_at_mut(n);
                    rest = tail;
                    match strides[last] {
                        0 => head.fill(input[at]),
                        1 => head.copy_from_slice(&input[at..at + n]),
                        step => {
                            head.iter_mut().zip(input[at..].iter().step_by(step)).for_each(|(x, i)| *x = *i)
                        }
                    }
                    index[last] += n;
                    at += n * strides[last];
                    for d in (1..=last).rev() {
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
        }
    }
}

/// Where a register's elements are while a block is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the input itself, which is read element by element as the output is written.
    Input(usize),
    /// In a block of scratch.
    Block(usize),
    /// In the output.
    Out,
    /// In the output, as it is before.
    Own,
}

/// A program with the ways in which its inputs are read, ready to run.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    instrs: Vec<Instr>,
    access: Vec<Access>,
    places: Vec<Place>,
    num_blocks: usize,
    /// Elements of a block: whole periods of the longest row that is repeated.
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
        Self::with_access(expression, inputs.iter().map(|m| Access::of(m, output)).collect(), isa)
    }

    /// A pass whose first input is what the output holds before: `inputs` are the others.
    pub(crate) fn in_place(
        expression: &Expression,
        inputs: &[&TensorMeta],
        output: &TensorMeta,
        isa: Isa,
    ) -> Self {
        let others = inputs.iter().map(|m| Access::of(m, output));
        Self::with_access(expression, [Access::Own].into_iter().chain(others).collect(), isa)
    }

    pub(crate) fn with_access(expression: &Expression, access: Vec<Access>, isa: Isa) -> Self {
        let instrs = expression.instrs.clone();
        let period = access.iter().filter_map(Access::period).max().unwrap_or(1);
        let block = BLOCK / period * period;
        let mut last_use: Vec<usize> = (0..instrs.len()).collect();
        for (i, instr) in instrs.iter().enumerate() {
            match *instr {
                Instr::Unary(_, a) | Instr::Clamp { of: a, .. } => last_use[a] = i,
                Instr::Binary(_, a, b) => (last_use[a], last_use[b]) = (i, i),
                Instr::Input(_) | Instr::Const(_) => {}
            }
        }
        // A value that is the same for every block is computed once, into a block of its own.
        let lasting = |instr: &Instr| match instr {
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
                Instr::Input(n) if access[*n] == Access::Same => Place::Input(*n),
                // Until the last instruction writes there.
                Instr::Input(n) if access[*n] == Access::Own && last_use[i] + 1 < instrs.len() => Place::Own,
                _ if lasting(instr) => Place::Block(fresh()),
                _ if i + 1 == instrs.len() => Place::Out,
                _ => Place::Block(free.pop().unwrap_or_else(fresh)),
            });
            // What is used for the last time gives its block away, but not to this instruction, which
            // reads it while it writes.
            let done = (0..i).filter(|&r| last_use[r] == i && !lasting(&instrs[r]));
            free.extend(done.filter_map(|r| if let Place::Block(b) = places[r] { Some(b) } else { None }));
        }
        Self { instrs, access, places, num_blocks, block, isa }
    }

    /// Computes outputs `start..start + out.len()`.
    pub(crate) fn part(&self, inputs: &[&[f32]], start: usize, out: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        BLOCKS.with_borrow_mut(|blocks| {
            blocks.resize(blocks.len().max(self.num_blocks), Block([0.0; BLOCK]));
            self.blocks(inputs, start, out, blocks);
        });
    }

    /// As [`Self::part`], with the blocks of this thread.
    fn blocks(&self, inputs: &[&[f32]], start: usize, out: &mut [f32], blocks: &mut [Block]) {
        let widest = self.block.min(out.len());
        for (instr, place) in self.instrs.iter().zip(&self.places) {
            match (instr, place) {
                (Instr::Const(c), Place::Block(to)) => blocks[*to][..widest].fill(*c),
                (Instr::Input(n), Place::Block(to)) if self.access[*n].is_periodic(self.block) => {
                    self.access[*n].load(inputs[*n], start, &mut blocks[*to][..widest]);
                }
                _ => {}
            }
        }
        for (b, block) in out.chunks_mut(self.block).enumerate() {
            let at = start + b * self.block;
            for i in 0..self.instrs.len() {
                self.instruction(i, inputs, at, blocks, block);
            }
            // A program that computes nothing has its result elsewhere.
            match self.places[self.instrs.len() - 1] {
                Place::Input(n) => block.copy_from_slice(&inputs[n][at..at + block.len()]),
                Place::Block(from) => block.copy_from_slice(&blocks[from][..block.len()]),
                Place::Out | Place::Own => {}
            }
        }
    }

    /// Runs one instruction for the outputs from `at` on.
    fn instruction(&self, i: usize, inputs: &[&[f32]], at: usize, blocks: &mut [Block], out: &mut [f32]) {
        let len = out.len();
        if let Instr::Input(n) = self.instrs[i]
            && self.access[n] == Access::Own
        {
            if let Place::Block(to) = self.places[i] {
                blocks[to][..len].copy_from_slice(out);
            }
            return;
        }
        // The block that is written, and those before and after it.
        let (to, before, after, split, own): (&mut [f32], &[_], &[_], _, &[f32]) = match self.places[i] {
            Place::Input(_) | Place::Own => return,
            Place::Out => {
                let split = blocks.len();
                (out, blocks, &[], split, &[])
            }
            Place::Block(to) => {
                let (before, rest) = blocks.split_at_mut(to);
                let Some((block, after)) = rest.split_first_mut() else { return };
                (&mut block[..len], before, after, to, out)
            }
        };
        let read = |register: usize| -> &[f32] {
            match self.places[register] {
                Place::Input(n) => &inputs[n][at..at + len],
                Place::Block(b) if b < split => &before[b][..len],
                Place::Block(b) => &after[b - split - 1][..len],
                Place::Own => own,
                // Only the last instruction writes there, and none reads it.
                Place::Out => &[],
            }
        };
        match self.instrs[i] {
            Instr::Const(_) => {}
            Instr::Input(n) if self.access[n].is_periodic(self.block) => {}
            Instr::Input(n) => self.access[n].load(inputs[n], at, to),
            // Blocks are too small to divide.
            Instr::Unary(f, a) => unary(Pool::alone(), self.isa, f, read(a), to),
            Instr::Clamp { of, low, high } => clamp(self.isa, (low, high), read(of), to),
            Instr::Binary(f, a, b) => binary(Pool::alone(), self.isa, f, read(a), read(b), to),
        }
    }
}

impl Step for Pass {
    /// Runs over whole tensors, divided among the threads if they are large enough.
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let inputs =
            reads.iter().map(|r| r.storage::<f32>()).collect::<Result<SmallVec<[&[f32]; 4]>, _>>()?;
        let out = only(&mut writes)?.storage_mut::<f32>()?;
        if ctx.pool().threads() == 1 || out.len() < 2 * PART {
            self.part(&inputs, 0, out);
            return Ok(());
        }
        let inputs = &inputs;
        ctx.pool().parallel_chunks_mut(out, PART, 1, &|i, part| self.part(inputs, i * PART, part));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_repeated_from_wherever_a_block_begins() {
        let input: Vec<f32> = (0..700).map(|i| i as f32).collect();
        for (inner, count) in [(1, 1), (1, 3), (1, 8), (1, 96), (1, 512), (1, 700), (5, 3), (600, 2)] {
            let access = Access::Cyclic { inner, count };
            for (start, len) in [(0, BLOCK), (7, BLOCK), (4095, 100), (1, 1)] {
                let mut block = vec![-1.0; len];
                access.load(&input[..count], start, &mut block);
                let want: Vec<f32> = (start..start + len).map(|i| input[i / inner % count]).collect();
                assert_eq!(block, want, "{access:?} from {start}");
            }
        }
    }
}
