//! Whether what stands in one method at a place works on the same data as in another.

use runtime::{Found, RaisedInstruction, RaisedMethod};
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use trace::Place;

/// Two raised methods, and which results of the one are those of the other. Where their plans put values and what
/// numbers they give them does not matter; only what reads find there does.
pub(super) struct Dataflow {
    a: RaisedMethod,
    b: RaisedMethod,
    /// What instructions have written, or the caller.
    results: Pairing<Definition>,
    instructions: Pairing<usize>,
    /// Values whose contents are not known to come from one instruction: state, or what another block has left. They
    /// correspond if they do wherever they are read.
    others: Pairing<usize>,
    pairs: BTreeSet<(usize, usize)>,
}

/// Which item of one method is which of another.
pub(super) struct Pairing<T> {
    a_to_b: HashMap<T, T>,
    b_to_a: HashMap<T, T>,
}

impl<T> Default for Pairing<T> {
    fn default() -> Self {
        Self { a_to_b: HashMap::new(), b_to_a: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Pairing<T> {
    /// Takes two items to be the same; false if one of them is another's already.
    pub(super) fn connect(&mut self, a: T, b: T) -> bool {
        *self.a_to_b.entry(a).or_insert(b) == b && *self.b_to_a.entry(b).or_insert(a) == a
    }
}

/// The instruction, none for an input, and the value that it wrote.
type Definition = (Option<usize>, usize);

impl Dataflow {
    pub(super) fn new(a: RaisedMethod, b: RaisedMethod) -> Self {
        let (results, instructions, others) = Default::default();
        Self { a, b, results, instructions, others, pairs: BTreeSet::new() }
    }

    /// Two inputs correspond.
    pub(super) fn input(&mut self, a: i32, b: i32) {
        for (x, y) in self.tensors(a, b) {
            self.results.connect((None, x), (None, y));
            self.pairs.insert((x, y));
        }
    }

    /// Two instructions correspond, of the values in turn that they name. False if they read other data.
    pub(super) fn instruction(
        &mut self,
        a: Place,
        b: Place,
        values: impl Iterator<Item = (i32, i32)>,
    ) -> bool {
        let (Some(at_a), Some(at_b)) = (self.a.index_of(a), self.b.index_of(b)) else { return false };
        let (Some(in_a), Some(in_b)) = (self.a.instruction(at_a), self.b.instruction(at_b)) else {
            return false;
        };
        let mut is_same = self.instructions.connect(at_a, at_b);
        let mut written = Vec::new();
        let values: Vec<_> = values.flat_map(|(x, y)| self.tensors(x, y)).collect();
        for (x, y) in values {
            self.pairs.insert((x, y));
            let defined = (defines(&in_a, x), defines(&in_b, y));
            is_same &= match (found(&in_a, x), found(&in_b, y)) {
                (Some(a), Some(b)) => self.agree((x, a), (y, b)),
                (None, None) if defined == (false, false) => self.others.connect(x, y),
                (None, None) => defined == (true, true),
                _ => false,
            };
            if defined == (true, true) {
                written.push(((Some(at_a), x), (Some(at_b), y)));
            }
        }
        // Not before: what an instruction reads is older, although it may be of the same value.
        written.into_iter().for_each(|(a, b)| _ = self.results.connect(a, b));
        is_same
    }

    /// Whether two outputs find the same when an execution ends.
    pub(super) fn output(&mut self, a: i32, b: i32) -> bool {
        self.tensors(a, b).into_iter().all(|(x, y)| {
            self.pairs.insert((x, y));
            self.agree((x, self.a.result(x)), (y, self.b.result(y)))
        })
    }

    /// The tensors that have stood in the same places, sorted.
    pub(super) fn into_pairs(self) -> impl Iterator<Item = (usize, usize)> {
        self.pairs.into_iter()
    }

    fn agree(&mut self, (x, a): (usize, Found), (y, b): (usize, Found)) -> bool {
        match (a, b) {
            // Their bytes are compared.
            (Found::Constant, Found::Constant) => true,
            // Those of instructions that only one method has correspond if they do wherever they are read: that such
            // an instruction stands for another is told of itself.
            (Found::Whole { instruction: i, value: v }, Found::Whole { instruction: j, value: w }) => {
                self.results.connect((i, v), (j, w))
            }
            (Found::Parts { latest: Some(i) }, Found::Parts { latest: Some(j) }) => {
                self.instructions.connect(i, j)
            }
            (Found::Parts { latest: None }, Found::Parts { latest: None })
            | (Found::Unknown, Found::Unknown) => self.others.connect(x, y),
            _ => false,
        }
    }

    /// The tensors that two values are or list, in turn.
    fn tensors(&self, a: i32, b: i32) -> Vec<(usize, usize)> {
        self.a.tensors(a).into_iter().zip(self.b.tensors(b)).collect()
    }
}

/// What an instruction finds in a value, if it reads it.
fn found(instruction: &RaisedInstruction, value: usize) -> Option<Found> {
    instruction.reads.iter().find(|read| read.value == value).map(|read| read.found)
}

fn defines(instruction: &RaisedInstruction, value: usize) -> bool {
    instruction.writes.contains(&value) || instruction.views.iter().any(|view| view.value == value)
}

#[cfg(test)]
mod tests {
    use crate::diff::{Registries, diff};
    use crate::file::{File, Progress};
    use format::pte::{
        AllocationDetails, Builder, Chain, EValue, ExecutionPlan, Instruction, Operator, Tensor,
    };
    use runtime::{BackendRegistry, BytesLoader, Limits, Program};
    use std::sync::Arc;

    /// `b = relu(x)`, `c = relu(x)`, `out = relu(read)`, of tensors of 16 bytes at these places: x, b, c, out, read.
    fn program(places: [u64; 5], read: i32) -> File {
        let tensor = |offset| {
            let allocation_info = Some(AllocationDetails::new(1, offset));
            let (scalar_type, sizes, dim_order) = (6, vec![4], vec![0]);
            EValue::Tensor(Tensor { scalar_type, sizes, dim_order, allocation_info, ..Tensor::default() })
        };
        let relu = |from, to| Instruction::KernelCall { op_index: 0, args: vec![from, to, to] };
        let mut builder = Builder::new();
        builder.execution_plan.push(ExecutionPlan {
            name: "forward".to_owned(),
            values: places.into_iter().map(tensor).collect(),
            inputs: vec![0],
            outputs: vec![3],
            chains: vec![Chain {
                instructions: vec![relu(0, 1), relu(0, 2), relu(read, 3)],
                ..Chain::default()
            }],
            operators: vec![Operator { name: "aten::relu".to_owned(), overload: "out".to_owned() }],
            non_const_buffer_sizes: vec![0, 128],
            ..ExecutionPlan::default()
        });
        let mut file = Vec::new();
        builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
        let loader = Arc::new(BytesLoader::new(file));
        File::Program(Program::load(loader, &Limits::default()).expect("it is sound"))
    }

    fn places_of_differences(a: &File, b: &File) -> Vec<String> {
        let (kernels, backends) = (kernels::registry(), BackendRegistry::new());
        let registries = Registries { kernels: &kernels, backends: &backends };
        let report = diff(a, b, registries, &Progress::default()).expect("both are read");
        report.of_meaning().differences.into_iter().map(|difference| difference.place).collect()
    }

    #[test]
    fn what_reads_find_counts_and_not_where() {
        let first = program([0, 16, 32, 48, 64], 1);
        assert!(places_of_differences(&first, &program([64, 48, 32, 0, 16], 1)).is_empty());
        // An elided view of what the first call wrote.
        assert!(places_of_differences(&first, &program([0, 16, 32, 48, 16], 4)).is_empty());
        let other = ["forward, instruction 2 works on other values"];
        assert_eq!(places_of_differences(&first, &program([0, 16, 32, 48, 32], 4)), other);
        // The same listing, but the second call writes over what the first has left.
        assert_eq!(places_of_differences(&first, &program([0, 16, 16, 48, 64], 1)), other);
    }
}
