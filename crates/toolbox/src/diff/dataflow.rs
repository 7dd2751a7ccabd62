//! Compares the dataflow of two methods: whether aligned instructions read the same data.

use pteron_runtime::{RaisedInstruction, RaisedMethod, ReachingDef};
use pteron_trace::Place;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

/// Two raised methods, and the correspondence between their results. Memory offsets and value ids are irrelevant; only
/// the definitions that each read observes count.
pub(super) struct Dataflow {
    a: RaisedMethod,
    b: RaisedMethod,
    /// The pairing of definitions: values written by instructions, and inputs.
    results: Pairing<Definition>,
    instructions: Pairing<usize>,
    /// Values whose contents do not come from one known instruction: state, or results of another block. They
    /// correspond if all their reads agree.
    others: Pairing<usize>,
    pairs: BTreeSet<(usize, usize)>,
}

/// A one-to-one correspondence between the items of two methods.
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
    /// Pairs two items; returns `false` if one of them is already paired with a third item.
    pub(super) fn pair(&mut self, a: T, b: T) -> bool {
        *self.a_to_b.entry(a).or_insert(b) == b && *self.b_to_a.entry(b).or_insert(a) == a
    }
}

/// A definition: the instruction (`None` for an input), and the value that it wrote.
type Definition = (Option<usize>, usize);

impl Dataflow {
    pub(super) fn new(a: RaisedMethod, b: RaisedMethod) -> Self {
        let (results, instructions, others) = Default::default();
        Self { a, b, results, instructions, others, pairs: BTreeSet::new() }
    }

    /// Pairs the values of two method inputs.
    pub(super) fn pair_inputs(&mut self, a: i32, b: i32) {
        for (x, y) in self.tensor_pairs(a, b) {
            self.results.pair((None, x), (None, y));
            self.pairs.insert((x, y));
        }
    }

    /// Pairs two instructions; `values` are the pairs of their operands. Returns `false` if they read different data.
    pub(super) fn pair_instructions(
        &mut self,
        a: Place,
        b: Place,
        values: impl Iterator<Item = (i32, i32)>,
    ) -> bool {
        let (Some(at_a), Some(at_b)) = (self.a.index_of(a), self.b.index_of(b)) else { return false };
        let (Some(in_a), Some(in_b)) = (self.a.instruction(at_a), self.b.instruction(at_b)) else {
            return false;
        };
        let mut is_same = self.instructions.pair(at_a, at_b);
        let mut written = Vec::new();
        let values: Vec<_> = values.flat_map(|(x, y)| self.tensor_pairs(x, y)).collect();
        let (read_a, read_b) = (reaching_definitions(&in_a), reaching_definitions(&in_b));
        let (defined_a, defined_b) = (defined_values(&in_a), defined_values(&in_b));
        for (x, y) in values {
            self.pairs.insert((x, y));
            let defined = (defined_a.contains(&x), defined_b.contains(&y));
            is_same &= match (read_a.get(&x).copied(), read_b.get(&y).copied()) {
                (Some(a), Some(b)) => self.definitions_match((x, a), (y, b)),
                (None, None) if defined == (false, false) => self.others.pair(x, y),
                (None, None) => defined == (true, true),
                _ => false,
            };
            if defined == (true, true) {
                written.push(((Some(at_a), x), (Some(at_b), y)));
            }
        }
        // Only now: an instruction that reads a value it also writes reads the older definition.
        written.into_iter().for_each(|(a, b)| _ = self.results.pair(a, b));
        is_same
    }

    /// Whether two outputs hold the same data when an execution ends.
    pub(super) fn outputs_match(&mut self, a: i32, b: i32) -> bool {
        self.tensor_pairs(a, b).into_iter().all(|(x, y)| {
            self.pairs.insert((x, y));
            self.definitions_match((x, self.a.result(x)), (y, self.b.result(y)))
        })
    }

    /// The pairs of tensors that were used in corresponding positions, sorted.
    pub(super) fn into_pairs(self) -> impl Iterator<Item = (usize, usize)> {
        self.pairs.into_iter()
    }

    fn definitions_match(&mut self, (x, a): (usize, ReachingDef), (y, b): (usize, ReachingDef)) -> bool {
        match (a, b) {
            // The bytes of constants are compared separately.
            (ReachingDef::Constant, ReachingDef::Constant) => true,
            // Results of unaligned instructions correspond if all their reads agree: the instructions themselves are
            // reported as differences already.
            (
                ReachingDef::Whole { instruction: i, value: v },
                ReachingDef::Whole { instruction: j, value: w },
            ) => self.results.pair((i, v), (j, w)),
            (ReachingDef::Parts { latest: Some(i) }, ReachingDef::Parts { latest: Some(j) }) => {
                self.instructions.pair(i, j)
            }
            (ReachingDef::Parts { latest: None }, ReachingDef::Parts { latest: None })
            | (ReachingDef::Unknown, ReachingDef::Unknown) => self.others.pair(x, y),
            _ => false,
        }
    }

    /// Pairs of the tensors in two values (tensors or lists of tensors), by position.
    fn tensor_pairs(&self, a: i32, b: i32) -> Vec<(usize, usize)> {
        self.a.tensors(a).into_iter().zip(self.b.tensors(b)).collect()
    }
}

/// For each value that an instruction reads, the definition that reaches the read.
fn reaching_definitions(instruction: &RaisedInstruction) -> HashMap<usize, ReachingDef> {
    instruction.reads.iter().map(|read| (read.value, read.def)).collect()
}

/// The values that an instruction writes or turns into views.
fn defined_values(instruction: &RaisedInstruction) -> HashSet<usize> {
    let views = instruction.views.iter().map(|view| view.value);
    instruction.writes.iter().copied().chain(views).collect()
}

#[cfg(test)]
mod tests {
    use crate::diff::{Registries, diff};
    use crate::file::{File, Progress};
    use pteron_format::pte::{
        AllocationDetails, Builder, Chain, EValue, ExecutionPlan, Instruction, Operator, Tensor,
    };
    use pteron_runtime::{BackendRegistry, BytesLoader, Limits, Program};
    use std::sync::Arc;

    /// `b = relu(x)`, `c = relu(x)`, `out = relu(read)` on tensors of 16 bytes; `offsets` are those of x, b, c, out, and of
    /// another value 4. `read` is the value that the last instruction reads.
    fn program(offsets: [u64; 5], read: i32) -> File {
        let tensor = |offset| {
            let allocation_info = Some(AllocationDetails::new(1, offset));
            let (scalar_type, sizes, dim_order) = (6, vec![4], vec![0]);
            EValue::Tensor(Tensor { scalar_type, sizes, dim_order, allocation_info, ..Tensor::default() })
        };
        let relu = |from, to| Instruction::KernelCall { op_index: 0, args: vec![from, to, to] };
        let mut builder = Builder::new();
        builder.execution_plan.push(ExecutionPlan {
            name: "forward".to_owned(),
            values: offsets.into_iter().map(tensor).collect(),
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
        let (kernels, backends) = (pteron_kernels::registry(), BackendRegistry::new());
        let registries = Registries { kernels: &kernels, backends: &backends };
        let report = diff(a, b, registries, &Progress::default()).expect("both are read");
        report.only_meaning().differences.into_iter().map(|difference| difference.place).collect()
    }

    #[test]
    fn definitions_are_compared_and_not_offsets() {
        let first = program([0, 16, 32, 48, 64], 1);
        assert!(places_of_differences(&first, &program([64, 48, 32, 0, 16], 1)).is_empty());
        // Value 4 is an elided view of the result of the first call.
        assert!(places_of_differences(&first, &program([0, 16, 32, 48, 16], 4)).is_empty());
        let other = ["forward, instruction 2 works on other values"];
        assert_eq!(places_of_differences(&first, &program([0, 16, 32, 48, 32], 4)), other);
        // The same listing, but the second call overwrites the result of the first.
        assert_eq!(places_of_differences(&first, &program([0, 16, 16, 48, 64], 1)), other);
    }
}
