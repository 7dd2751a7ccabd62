//! A result of static sizes must have the sizes that its operator computes: a program that declares others fails alike,
//! prepared or as written.

use pteron::format::pte::{
    AllocationDetails, Builder, Chain, EValue as Value, ExecutionPlan, Instruction, Operator,
    Tensor as Planned,
};
use pteron::{BytesLoader, EValue, Limits, LoadOptions, Program, Tensor};
use std::sync::Arc;

/// An argument of a call.
enum Arg {
    /// An input of the program, a float32 tensor of these sizes.
    Input(&'static [i32]),
    Ints(&'static [i64]),
    Int(i64),
    Bool(bool),
    Null,
}

/// A plan whose values are added one by one.
#[derive(Default)]
struct Plan {
    values: Vec<Value>,
    inputs: Vec<i32>,
    end: u64,
}

impl Plan {
    fn value(&mut self, value: Value) -> i32 {
        self.values.push(value);
        self.values.len() as i32 - 1
    }

    fn tensor(&mut self, sizes: &[i32]) -> i32 {
        let at = self.end;
        self.end += 4 * sizes.iter().product::<i32>() as u64;
        self.value(Value::Tensor(Planned {
            scalar_type: 6,
            sizes: sizes.to_vec(),
            dim_order: (0..sizes.len() as u8).collect(),
            allocation_info: Some(AllocationDetails::new(1, at)),
            ..Planned::default()
        }))
    }

    fn argument(&mut self, arg: &Arg) -> i32 {
        match arg {
            Arg::Input(sizes) => {
                let input = self.tensor(sizes);
                self.inputs.push(input);
                input
            }
            Arg::Ints(list) => {
                let items = list.iter().map(|&v| i64::from(self.value(Value::Int(v)))).collect();
                self.value(Value::IntList(items))
            }
            Arg::Int(v) => self.value(Value::Int(*v)),
            Arg::Bool(v) => self.value(Value::Bool(*v)),
            Arg::Null => self.value(Value::Null),
        }
    }
}

/// A call into a tensor of these sizes, and a `relu` of that.
fn program(operator: (&str, &str), args: &[Arg], out: &[i32]) -> Vec<u8> {
    let mut plan = Plan::default();
    let mut call: Vec<i32> = args.iter().map(|arg| plan.argument(arg)).collect();
    let (first, second) = (plan.tensor(out), plan.tensor(out));
    call.extend([first, first]);
    let operators = [operator, ("aten::relu", "out")];
    let operators =
        operators.map(|(name, overload)| Operator { name: name.into(), overload: overload.into() });
    let calls = [(0, call), (1, vec![first, second, second])];
    let instructions = calls.map(|(op_index, args)| Instruction::KernelCall { op_index, args });
    let mut builder = Builder::new();
    builder.execution_plan.push(ExecutionPlan {
        name: "forward".to_owned(),
        values: plan.values,
        inputs: plan.inputs,
        outputs: vec![second],
        chains: vec![Chain { instructions: instructions.to_vec(), ..Chain::default() }],
        operators: operators.to_vec(),
        non_const_buffer_sizes: vec![0, plan.end as i64],
        ..ExecutionPlan::default()
    });
    let mut file = Vec::new();
    builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
    file
}

/// The sizes of the result, or the error.
fn run(file: &[u8], args: &[Arg], no_prepare: bool) -> Result<Vec<usize>, String> {
    let program =
        Program::load(Arc::new(BytesLoader::new(file.to_vec())), &Limits::default()).expect("a program");
    let options = LoadOptions { no_prepare, ..pteron::load_options() };
    let mut method = program.load_method("forward", options).map_err(|e| e.to_string())?;
    let inputs = args.iter().filter_map(|arg| match arg {
        Arg::Input(sizes) => {
            let sizes: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
            let elements = vec![1.0f32; sizes.iter().product()];
            Some(EValue::from(Tensor::from_slice(&sizes, &elements).expect("a tensor")))
        }
        _ => None,
    });
    let outputs = method.execute(&inputs.collect::<Vec<_>>()).map_err(|e| e.to_string())?;
    let EValue::Tensor(tensor) = &outputs[0] else { panic!("a tensor") };
    Ok(tensor.sizes().to_vec())
}

#[test]
fn results_of_other_sizes_are_refused_prepared_and_as_written() {
    use Arg::{Bool, Input, Int, Ints, Null};
    let cases: Vec<((&str, &str), Vec<Arg>, &[i32], &[i32])> = vec![
        (("aten::relu", "out"), vec![Input(&[1, 3])], &[1, 3], &[2, 3]),
        (("aten::mul", "out"), vec![Input(&[1, 3]), Input(&[2, 1])], &[2, 3], &[4, 2, 3]),
        (("aten::clone", "out"), vec![Input(&[2, 3]), Null], &[2, 3], &[3, 2]),
        (("aten::view_copy", "out"), vec![Input(&[2, 3]), Ints(&[3, -1])], &[3, 2], &[6, 1]),
        (("aten::expand_copy", "out"), vec![Input(&[1, 3]), Ints(&[2, 3]), Bool(false)], &[2, 3], &[4, 3]),
        (("aten::unsqueeze_copy", "out"), vec![Input(&[2, 3]), Int(1)], &[2, 1, 3], &[1, 2, 3]),
        (("aten::permute_copy", "out"), vec![Input(&[1, 3]), Ints(&[1, 0])], &[3, 1], &[1, 3]),
        (("aten::full", "out"), vec![Ints(&[2, 3]), Int(1)], &[2, 3], &[3, 2]),
        (("aten::mm", "out"), vec![Input(&[1, 3]), Input(&[3, 4])], &[1, 4], &[2, 4]),
        (("aten::bmm", "out"), vec![Input(&[1, 2, 3]), Input(&[1, 3, 4])], &[1, 2, 4], &[1, 4, 2]),
        (("aten::_softmax", "out"), vec![Input(&[1, 3]), Int(1), Bool(false)], &[1, 3], &[3, 1]),
        (
            ("aten::mean", "out"),
            vec![Input(&[1, 2, 3, 3]), Ints(&[2, 3]), Bool(false), Null],
            &[1, 2],
            &[2, 1],
        ),
        (("aten::amax", "out"), vec![Input(&[2, 3]), Ints(&[1]), Bool(true)], &[2, 1], &[1, 2]),
        (
            ("aten::avg_pool2d", "out"),
            vec![
                Input(&[1, 2, 5, 5]),
                Ints(&[2, 2]),
                Ints(&[2, 2]),
                Ints(&[0, 0]),
                Bool(true),
                Bool(false),
                Null,
            ],
            &[1, 2, 3, 3],
            &[1, 2, 9, 1],
        ),
    ];
    for (operator, args, right, wrong) in cases {
        let results = |out| {
            let file = program(operator, &args, out);
            [false, true].map(|no_prepare| run(&file, &args, no_prepare))
        };
        let right_sizes: Vec<usize> = right.iter().map(|&size| size as usize).collect();
        assert_eq!(results(right), [Ok(right_sizes.clone()), Ok(right_sizes)], "{}", operator.0);
        let [prepared, written] = results(wrong);
        assert!(written.is_err() && prepared.is_err(), "{}: {prepared:?}, {written:?}", operator.0);
    }
}
