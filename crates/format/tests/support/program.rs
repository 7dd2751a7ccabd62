//! A small program with one of everything.

use pteron_format::container::Blob;
use pteron_format::pte::{
    AllocationDetails, BackendDelegate, BackendDelegateDataReference, Builder, Chain, CompileSpec,
    ContainerMetadata, DataLocation, Draft, EValue, ExecutionPlan, ExtraTensorInfo, Frame, FrameList,
    Instruction, NamedBlob, Operator, Tensor, TensorDataLocation,
};

/// A contiguous float tensor of these sizes, without storage.
pub fn tensor(sizes: &[i32]) -> Tensor {
    Tensor {
        scalar_type: 6,
        sizes: sizes.to_vec(),
        dim_order: (0..sizes.len() as u8).collect(),
        ..Tensor::default()
    }
}

/// A tensor of eight bytes at byte `offset` of arena 1.
pub fn planned(offset: u64) -> Tensor {
    Tensor { allocation_info: Some(AllocationDetails::new(1, offset)), ..tensor(&[2]) }
}

/// Values by index: 0 input and 1 output (planned), 2 constant, 3 mutable with initial data, 4 external, 5 Int, 6
/// IntList, 7 Bool, 8 TensorList, 9 OptionalTensorList, 10 Double, 11 None, 12 String, 13 DoubleList, 14 BoolList.
pub fn plan(builder: &mut Builder<'static>) -> ExecutionPlan {
    let constant = Tensor { data_buffer_idx: builder.add_constant(Blob::bytes(vec![1; 8])), ..tensor(&[2]) };
    let initial = builder.add_initial_data(Blob::bytes(vec![2; 8]));
    let external = ExtraTensorInfo {
        fully_qualified_name: Some("linear.weight".to_owned()),
        location: TensorDataLocation::External,
        ..ExtraTensorInfo::default()
    };
    let payload = builder.add_delegate_data(Blob::bytes(&b"payload"[..]));
    ExecutionPlan {
        name: "forward".to_owned(),
        container_meta_type: Some(ContainerMetadata {
            encoded_inp_str: Some("in".to_owned()),
            encoded_out_str: None,
        }),
        values: vec![
            EValue::Tensor(planned(0)),
            EValue::Tensor(planned(16)),
            EValue::Tensor(constant),
            EValue::Tensor(Tensor { data_buffer_idx: initial, ..planned(32) }),
            EValue::Tensor(Tensor { extra_tensor_info: Some(external), ..tensor(&[2]) }),
            EValue::Int(-7),
            EValue::IntList(vec![5, 5]),
            EValue::Bool(false),
            EValue::TensorList(vec![0, 1]),
            EValue::OptionalTensorList(vec![-1, 2]),
            EValue::Double(-0.0),
            EValue::Null,
            EValue::String("sum".to_owned()),
            EValue::DoubleList(vec![0.5]),
            EValue::BoolList(vec![true, false]),
        ],
        inputs: vec![0],
        outputs: vec![1],
        chains: vec![Chain {
            instructions: vec![
                Instruction::KernelCall { op_index: 0, args: vec![0, 2, 5, 1, 1] },
                Instruction::JumpFalseCall { cond_value_index: 7, destination_instruction: 5 },
                Instruction::DelegateCall { delegate_index: 0, args: vec![0, 1] },
                Instruction::MoveCall { move_from: 0, move_to: 1 },
                Instruction::FreeCall { value_index: 0 },
            ],
            stacktrace: vec![FrameList {
                items: vec![Frame { filename: Some("model.py".to_owned()), lineno: 3, ..Frame::default() }],
            }],
            ..Chain::default()
        }],
        operators: vec![Operator { name: "aten::add".to_owned(), overload: "out".to_owned() }],
        delegates: vec![BackendDelegate {
            id: "DemoBackend".to_owned(),
            processed: BackendDelegateDataReference { location: DataLocation::Segment, index: payload },
            compile_specs: vec![CompileSpec { key: "level".to_owned(), value: vec![3] }],
        }],
        non_const_buffer_sizes: vec![0, 48],
        non_const_buffer_device: Vec::new(),
    }
}

/// The program. Segments by index: 0 constants, 1 initial data, 2 the delegate's payload, 3 named data.
pub fn draft() -> Draft<'static> {
    let mut builder = Builder::new();
    let plan = plan(&mut builder);
    builder.execution_plan.push(plan);
    builder.named_data.push(NamedBlob {
        key: "scales".to_owned(),
        blob: Blob::bytes(vec![4; 20]),
        alignment: 1,
    });
    builder.finish().unwrap()
}
