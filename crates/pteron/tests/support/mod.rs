//! Builds programs for tests.

use pteron::format::container::Blob;
use pteron::format::pte::{
    AllocationDetails, BackendDelegate, BackendDelegateDataReference, Builder, Chain, EValue as Value,
    ExecutionPlan, Instruction, Operator, Tensor as Planned,
};
use pteron::{EValue, Tensor};

/// The operator table of the programs.
pub(crate) const OPERATORS: [(&str, &str); 5] = [
    ("aten::relu", "out"),
    ("aten::neg", "out"),
    ("aten::add", "out"),
    ("aten::sub", "out"),
    ("executorch_prim::gt", "Scalar"),
];

/// Builds a program with one method of one chain.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) values: Vec<Value>,
    pub(crate) instructions: Vec<Instruction>,
    end: u64,
    /// The backend id and payload of each delegate.
    pub(crate) delegates: Vec<(&'static str, &'static [u8])>,
}

impl Plan {
    pub(crate) fn value(&mut self, value: Value) -> i32 {
        self.values.push(value);
        self.values.len() as i32 - 1
    }

    /// Adds a float32 tensor of `len` elements at a byte offset of the arena.
    pub(crate) fn tensor(&mut self, len: usize, offset: u64) -> i32 {
        self.end = self.end.max(offset + 4 * len as u64);
        let allocation_info = Some(AllocationDetails::new(1, offset));
        let (scalar_type, sizes, dim_order) = (6, vec![len as i32], vec![0]);
        self.value(Value::Tensor(Planned {
            scalar_type,
            sizes,
            dim_order,
            allocation_info,
            ..Planned::default()
        }))
    }

    pub(crate) fn call(&mut self, op_index: i32, args: &[i32]) {
        self.instructions.push(Instruction::KernelCall { op_index, args: args.to_vec() });
    }

    pub(crate) fn file(self, inputs: &[i32], outputs: &[i32]) -> Vec<u8> {
        let operators = OPERATORS
            .map(|(name, overload)| Operator { name: name.to_owned(), overload: overload.to_owned() });
        let mut builder = Builder::new();
        let delegates = self.delegates.into_iter().map(|(id, payload)| {
            let index = builder.add_delegate_data(Blob::bytes(payload));
            let processed = BackendDelegateDataReference { index, ..Default::default() };
            BackendDelegate { id: id.to_owned(), processed, compile_specs: Vec::new() }
        });
        let delegates = delegates.collect();
        builder.execution_plan.push(ExecutionPlan {
            name: "forward".to_owned(),
            values: self.values,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            chains: vec![Chain { instructions: self.instructions, ..Chain::default() }],
            operators: operators.to_vec(),
            delegates,
            non_const_buffer_sizes: vec![0, self.end as i64],
            ..ExecutionPlan::default()
        });
        let mut file = Vec::new();
        builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
        file
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    pub(crate) fn tensor(&mut self, len: usize) -> EValue {
        let elements: Vec<f32> = (0..len).map(|_| self.below(201) as f32 - 100.0).collect();
        Tensor::from_slice(&[len], &elements).unwrap().into()
    }
}
