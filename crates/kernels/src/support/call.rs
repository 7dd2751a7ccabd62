//! Calls of operators from tests.

use pteron_operator::{Arg, Args, Generator, Kernel, KernelContext, Out, Outs, Result, Schema, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{Element, ScalarType, Shape, ShapeDynamism, Tensor, TensorMeta};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

static KERNELS: LazyLock<HashMap<String, Arc<dyn Kernel>>> = LazyLock::new(|| {
    let registry = crate::registry();
    registry.names().into_iter().filter_map(|n| Some((n.to_owned(), registry.get(n)?))).collect()
});

/// A row-major tensor.
pub(crate) fn t<T: Element>(sizes: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(sizes, elements).unwrap()
}

/// A zero-dim tensor.
pub(crate) fn s<T: Element>(value: T) -> Tensor {
    Tensor::scalar(value).unwrap()
}

/// A zeroed tensor for an out, which may be resized up to these sizes.
pub(crate) fn out(dtype: ScalarType, sizes: &[usize]) -> Tensor {
    let meta = TensorMeta::contiguous(dtype, sizes).unwrap().with_dynamism(ShapeDynamism::DynamicBound);
    Tensor::zeros(meta).unwrap()
}

/// A tensor as an argument.
pub(crate) fn a(tensor: &Tensor) -> Arg<'_> {
    Arg::Tensor(tensor.view())
}

/// Tensors as an argument.
pub(crate) fn list<'a>(tensors: &[&'a Tensor]) -> Arg<'a> {
    Arg::Tensors(tensors.iter().map(|t| t.view()).collect())
}

/// An integer as an argument.
pub(crate) fn int<'a>(value: i64) -> Arg<'a> {
    Arg::Int(value)
}

/// Integers as an argument.
pub(crate) fn ints<'a>(list: &[i64]) -> Arg<'a> {
    Arg::Ints(list.into())
}

/// Runs an operator. `args` are the arguments before the outs; missing arguments take their defaults.
pub(crate) fn run(name: &str, args: &[Arg<'_>], outs: SmallVec<[Out<'_>; 3]>) -> Result<Outs<'static>> {
    let mut outs = Outs::new(outs);
    run_outs(name, args, &mut outs)?;
    let scalars_and_views = outs.into_inner().into_iter().map(|o| match o {
        Out::Scalar(s) => Out::Scalar(s),
        Out::View(v) => Out::View(v),
        _ => Out::Scalar(None),
    });
    Ok(Outs::new(scalars_and_views.collect()))
}

fn run_outs(name: &str, args: &[Arg<'_>], outs: &mut Outs<'_>) -> Result<()> {
    let kernel = KERNELS.get(name).unwrap_or_else(|| panic!("no operator {name}"));
    let schema = kernel.schema();
    let mut remaining_args = args.iter();
    let mut out = 0;
    let list = schema
        .args
        .iter()
        .map(|arg| {
            if arg.written {
                out += 1;
                return Arg::Out(out - 1);
            }
            remaining_args.next().cloned().unwrap_or_else(|| parse_default(schema, arg.default.as_deref()))
        })
        .collect();
    assert!(remaining_args.next().is_none(), "too many arguments for {schema}");
    perform(name, list, outs)
}

/// Runs an operator with a full argument list, on two threads with at most 16 MiB of temporary memory.
pub(crate) fn perform<'a>(name: &str, list: SmallVec<[Arg<'a>; 12]>, outs: &mut Outs<'_>) -> Result<()> {
    let kernel = KERNELS.get(name).unwrap_or_else(|| panic!("no operator {name}"));
    thread_local! {
        static POOL: Pool = Pool::new(2);
    }
    let (scratch, generator) = (Scratch::new(1 << 24), Generator::new(1));
    let args = Args::new(kernel.schema(), list);
    POOL.with(|pool| kernel.execute(&KernelContext::new(pool, &scratch, &generator), &args, outs))
}

fn parse_default<'a>(schema: &Schema, text: Option<&str>) -> Arg<'a> {
    let text = text.unwrap_or_else(|| panic!("an argument without default is missing in a call of {schema}"));
    match text {
        "None" => Arg::None,
        "True" => Arg::Bool(true),
        "False" => Arg::Bool(false),
        "[]" => Arg::Ints(SmallVec::new()),
        "\"L\"" => Arg::Str("L"),
        "'none'" => Arg::Str("none"),
        "'mean'" => Arg::Str("mean"),
        "'reduced'" => Arg::Str("reduced"),
        text => match text.parse::<i64>() {
            Ok(v) => Arg::Int(v),
            Err(_) => Arg::Double(text.parse().unwrap()),
        },
    }
}

/// Runs an operator with one tensor out, and returns that out.
pub(crate) fn call(name: &str, args: &[Arg<'_>], mut out: Tensor) -> Result<Tensor> {
    run(name, args, smallvec::smallvec![Out::Tensor(out.view_mut())])?;
    Ok(out.view().to_tensor()?)
}

/// Runs an operator with several tensor outs, and returns those outs.
pub(crate) fn call_many<const N: usize>(
    name: &str,
    args: &[Arg<'_>],
    mut outs: [Tensor; N],
) -> Result<[Tensor; N]> {
    run(name, args, outs.iter_mut().map(|o| Out::Tensor(o.view_mut())).collect())?;
    Ok(outs)
}

/// Runs an operator whose out is a list of tensors, and returns the list.
pub(crate) fn call_list(name: &str, args: &[Arg<'_>], mut outs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let list = outs.iter_mut().map(|o| o.view_mut()).collect();
    run(name, args, smallvec::smallvec![Out::Tensors(list)])?;
    Ok(outs)
}

/// Runs an operator that returns a scalar.
pub(crate) fn scalar(name: &str, args: &[Arg<'_>]) -> Result<pteron_tensor::Scalar> {
    match run(name, args, smallvec::smallvec![Out::Scalar(None)])?.into_inner().pop() {
        Some(Out::Scalar(Some(value))) => Ok(value),
        other => panic!("{name} set {other:?}"),
    }
}

/// Runs an operator that returns a view, and returns the sizes of the view.
pub(crate) fn view(name: &str, args: &[Arg<'_>]) -> Result<Shape> {
    match run(name, args, smallvec::smallvec![Out::View(None)])?.into_inner().pop() {
        Some(Out::View(Some(sizes))) => Ok(sizes),
        other => panic!("{name} set {other:?}"),
    }
}
