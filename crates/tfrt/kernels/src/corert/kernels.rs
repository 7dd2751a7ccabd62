use super::{OpAttrs, OpHandler, handle_value, ops, tensor_argument};
use crate::kernels::{RegistryExt, Text, object_value, out, text_value};
use crate::tensor::string::{Strings, aggregate_attribute, element_text};
use crate::tensor::{Dense, Element, Kind, Tensor, TensorShape};
use half::{bf16, f16};
use pteron_host::{
    AttributeValue, Bf16Bits, Chain, ErrorCode, ErrorValue, F16Bits, Fault, Frame, Function, KernelRegistry,
    Results, Value,
};

/// Runs an operator whose operands are the kernel's arguments from index `from` on.
fn dispatch(
    frame: &Frame<'_>,
    handler: &OpHandler,
    from: usize,
    name: usize,
    results: usize,
) -> Result<Vec<Value>, Fault> {
    let name: String = frame.attribute(name)?;
    let attrs = OpAttrs::from_pairs(aggregate_attribute(frame, 0)?)?;
    let arguments =
        (from..frame.arguments()).map(|i| tensor_argument(frame, i)).collect::<Result<Vec<_>, _>>()?;
    let tensors = handler.execute(&name, frame, &arguments, &attrs, results)?;
    if tensors.len() != results {
        return Err(Fault::invalid(format!("{name} gives {} results, expected {results}", tensors.len())));
    }
    let values = tensors.into_iter().map(handle_value);
    if name.starts_with("tfrt_test.async.") {
        return Ok(values.map(|value| frame.context().enqueue(move || value)).collect());
    }
    Ok(values.collect())
}

/// Runs an operator. The kernel's attributes: operator attributes, function attributes, operator name.
fn execute(frame: &mut Frame<'_>) -> Result<Vec<Value>, Fault> {
    dispatch(frame, frame.object(0)?, 1, 2, frame.results())
}

/// Runs an operator after the argument chain, with the attributes of [`execute`]. The first result is a chain.
fn execute_seq(frame: &mut Frame<'_>) -> Result<Vec<Value>, Fault> {
    let results = dispatch(frame, frame.object(0)?, 2, 2, frame.results().saturating_sub(1))?;
    Ok(std::iter::once(Value::Chain).chain(results).collect())
}

/// Runs an operator synchronously. The kernel's attributes: operator attributes, operator name.
fn execute_sync(frame: &mut Frame<'_>) -> Result<Vec<Value>, Fault> {
    dispatch(frame, frame.object(0)?, 1, 1, frame.results())
}

/// An operator implemented by a function, which takes a chain and tensors and returns a chain and tensors.
struct CompositeOp(Function);

fn make_composite(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    const HANDLE: &str = "!corert.tensorhandle";
    let function = frame.function(0)?.to_function();
    for i in 1..function.arguments() {
        if let Some(kind) = function.argument_type(i).filter(|k| *k != HANDLE) {
            return Err(format!(
                "The function should only takes type [{HANDLE}] as input. But the {}-th argument is type [{kind}].",
                i - 1
            )
            .into());
        }
    }
    for i in 1..function.results() {
        if let Some(kind) = function.result_type(i).filter(|k| *k != HANDLE) {
            return Err(format!(
                "The function should only returns type [{HANDLE}]. But the {}-th results is type [{kind}].",
                i - 1
            )
            .into());
        }
    }
    Ok(object_value(CompositeOp(function)))
}

fn execute_composite(frame: &mut Frame<'_>) -> Result<Results, Fault> {
    let CompositeOp(function) = frame.object(0)?;
    if (function.arguments(), function.results()) != (frame.arguments(), frame.results() + 1) {
        return Err(Fault::invalid("the operator has other arguments or results than the call"));
    }
    let mut arguments = frame.arguments_from(0);
    arguments[0] = Value::Chain;
    let mut results = function.execute(frame.context(), &arguments);
    results.remove(0);
    Ok(results)
}

fn const_strings(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let shape = TensorShape::new(frame.attribute(0)?)?;
    let values = aggregate_attribute(frame, 1)?;
    if let [one] = values {
        return Ok(handle_value(Tensor::Strings(Strings::repeat(frame, shape, &element_text(one)?)?)));
    }
    if values.len() as u64 != shape.element_count() {
        return Err("Shape mismatch".into());
    }
    Ok(handle_value(Tensor::Strings(Strings::new(frame, shape, values)?)))
}

fn const_dense(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let attribute: &pteron_bef::Dense<'_> = frame.attribute(0)?;
    Ok(handle_value(Tensor::Dense(Dense::from_attribute(frame, attribute)?)))
}

/// Creates a dense tensor. The kernel's attributes: shape, elements.
fn register_create_dense_tensor<T, A>(registry: &mut KernelRegistry, name: &str, element: fn(A) -> T)
where
    T: Element,
    A: 'static,
    Vec<A>: for<'f> AttributeValue<'f>,
{
    for dialect in ["corert", "corert_sync"] {
        registry.add_fallible(
            &format!("{dialect}.create_dense_tensor.{name}"),
            move |frame: &mut Frame<'_>| {
                let shape = TensorShape::new(frame.attribute(0)?)?;
                let values = frame.attribute::<Vec<A>>(1)?.into_iter().map(element);
                Ok(handle_value(Tensor::Dense(Dense::from_elements(frame, shape, values)?)))
            },
        );
    }
}

fn to_int(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let error = |m: &str| Ok(Value::Error(ErrorValue::new(ErrorCode::InvalidArgument, m)));
    let dense = ops::to_dense(frame, tensor_argument(frame, 0)?)?;
    let Ok(elements) = dense.elements::<i32>() else {
        return error("Expecting a DenseHostTensor of int32 as branch index.");
    };
    match elements.len() {
        1 if dense.shape.rank() <= 1 => Ok(elements.at(0).into()),
        _ => error("The tensor should have only one element, which is the index."),
    }
}

fn tensor_shape(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    Ok(object_value(match tensor_argument(frame, 0)? {
        Tensor::Dense(t) => t.shape.clone(),
        Tensor::Scalar(_, shape, _) => shape.clone(),
        Tensor::Strings(t) => t.shape.clone(),
        Tensor::Coo(t) => t.shape().clone(),
    }))
}

/// Takes `(tensor, device, tensor type)`: converts the tensor to this type. There is only one device.
fn transfer(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let (from, to) = (tensor_argument(frame, 0)?, frame.object::<Text>(2)?);
    let kind = from.kind();
    if kind.name() == &**to {
        return Ok(handle_value(from.clone()));
    }
    match (kind, &**to) {
        (Kind::Scalar | Kind::Coo, "DenseHost") => {
            Ok(handle_value(Tensor::Dense(ops::to_dense(frame, from)?)))
        }
        (Kind::Coo, "ScalarHost") => match from {
            Tensor::Coo(from) => Ok(handle_value(from.to_scalar()?)),
            _ => Err("failed to convert coo tensor to scalar host tensor".into()),
        },
        (_, to) => Err(format!("cannot find conversion function for [{}]->[{to}]", kind.name()).into()),
    }
}

fn print(frame: &mut Frame<'_>) -> Result<Chain, Fault> {
    out!(frame, "{}\n", tensor_argument(frame, 0)?);
    Ok(Chain)
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("corert.executeop", execute);
    registry.add_fallible("corert.executeop.seq", execute_seq);
    registry.add_fallible("corert_sync.executeop", execute_sync);
    registry.add_fallible("corert.make_composite_op", make_composite);
    registry.add_fallible("corert.execute_crt_op", execute_composite);
    registry.add_fallible("corert.const_string_tensor", const_strings);
    registry.add_fallible("corert.const_dense_tensor", const_dense);
    registry.add_fallible("corert.tensorhandle_to_shape", tensor_shape);
    registry.add_fallible("corert.tensorhandle_to_int32", to_int);
    registry.add_fallible("corert.tensorhandle_to_ht", |f: &mut Frame<'_>| {
        Ok(object_value(tensor_argument(f, 0)?.clone()))
    });
    registry.add_fallible("corert.ht_to_tensorhandle", |f: &mut Frame<'_>| {
        Ok(handle_value(f.object::<Tensor>(0)?.clone()))
    });
    registry.add_fallible("corert.print_tensorhandle", print);
    registry.add_fallible("corert_sync.print_tensorhandle", |f: &mut Frame<'_>| print(f).map(drop));
    registry.add_fallible("corert.transfer", transfer);
    // There is only one device, so the transfer returns the tensor unchanged.
    registry.add_fallible("corert.transfer_inferred_tensortype", |f: &mut Frame<'_>| {
        Ok(handle_value(tensor_argument(f, 0)?.clone()))
    });
    registry.add_fallible("corert.get_dst_tensor_type", |frame: &mut Frame<'_>| {
        text_value(frame, &[Kind::Dense.name()])
    });
    registry.add_fallible("tfrt_test.error_tensorhandle", |_: &mut Frame<'_>| {
        Err::<(), _>(Fault::from("invalid tensorhandle"))
    });
    register_create_dense_tensor(registry, "ui8", |v: u8| v);
    register_create_dense_tensor(registry, "ui16", |v: u16| v);
    register_create_dense_tensor(registry, "ui32", |v: u32| v);
    register_create_dense_tensor(registry, "ui64", |v: u64| v);
    register_create_dense_tensor(registry, "i1", |v: bool| v);
    register_create_dense_tensor(registry, "i8", |v: i8| v);
    register_create_dense_tensor(registry, "i16", |v: i16| v);
    register_create_dense_tensor(registry, "i32", |v: i32| v);
    register_create_dense_tensor(registry, "i64", |v: i64| v);
    register_create_dense_tensor(registry, "f16", |v: F16Bits| f16::from_bits(v.0));
    register_create_dense_tensor(registry, "bf16", |v: Bf16Bits| bf16::from_bits(v.0));
    register_create_dense_tensor(registry, "f32", |v: f32| v);
    register_create_dense_tensor(registry, "f64", |v: f64| v);
}
