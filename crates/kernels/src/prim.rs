//! Operators on scalars and sizes, with which programs compute shapes and control flow.
//!
//! Their schemas have no out: the result is fresh.

use crate::support::copy::copy_into;
use crate::support::dims::{infer_shape, wrap_dim};
use crate::support::dtype::{Compute, compute_type};
use crate::support::layout::Layout;
use crate::support::map::expect_aligned;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, Results, ensure};
use pteron_tensor::{Scalar, ScalarType, ShapeDynamism};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new("aten::sym_size.int(Tensor self, int dim) -> int", DtypeSet::ALL, sym_size)
        .results(Results::Shapes),
    Operator::new("aten::sym_stride.int(Tensor self, int dim) -> int", DtypeSet::ALL, sym_stride)
        .results(Results::Shapes),
    Operator::new("aten::sym_numel(Tensor self) -> int", DtypeSet::ALL, sym_numel).results(Results::Shapes),
    Operator::new("aten::sym_storage_offset(Tensor self) -> int", DtypeSet::ALL, sym_storage_offset)
        .results(Results::Shapes),
    Operator::new(
        "aten::_local_scalar_dense(Tensor self) -> Scalar",
        DtypeSet::REAL_BOOL,
        local_scalar_dense,
    ),
    Operator::new(
        "executorch_prim::et_view.default(Tensor(a) self, int[] size) -> Tensor(a)",
        DtypeSet::ALL,
        et_view,
    )
    .results(Results::Shapes),
    Operator::new(
        "executorch_prim::et_copy_index.tensor(Tensor(a!) copy_to, Tensor copy_from, int index) -> ()",
        DtypeSet::ALL,
        et_copy_index,
    ),
    Operator::new("executorch_prim::add.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, add)
        .results(Results::Shapes),
    Operator::new("executorch_prim::add.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, add)
        .results(Results::Shapes),
    Operator::new("executorch_prim::sub.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, sub)
        .results(Results::Shapes),
    Operator::new("executorch_prim::sub.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, sub)
        .results(Results::Shapes),
    Operator::new("executorch_prim::mul.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, mul)
        .results(Results::Shapes),
    Operator::new("executorch_prim::mul.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, mul)
        .results(Results::Shapes),
    Operator::new("executorch_prim::floordiv.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, floordiv)
        .results(Results::Shapes),
    Operator::new("executorch_prim::floordiv.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, div_int)
        .results(Results::Shapes),
    Operator::new("executorch_prim::truediv.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, truediv)
        .results(Results::Shapes),
    Operator::new("executorch_prim::truediv.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, truediv)
        .results(Results::Shapes),
    Operator::new("executorch_prim::mod.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, mod_int)
        .results(Results::Shapes),
    Operator::new("executorch_prim::mod.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, mod_int)
        .results(Results::Shapes),
    Operator::new("executorch_prim::eq.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, eq)
        .results(Results::Shapes),
    Operator::new("executorch_prim::eq.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, eq)
        .results(Results::Shapes),
    Operator::new("executorch_prim::ne.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, ne)
        .results(Results::Shapes),
    Operator::new("executorch_prim::ne.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, ne)
        .results(Results::Shapes),
    Operator::new("executorch_prim::gt.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, gt)
        .results(Results::Shapes),
    Operator::new("executorch_prim::gt.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, gt)
        .results(Results::Shapes),
    Operator::new("executorch_prim::lt.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, lt)
        .results(Results::Shapes),
    Operator::new("executorch_prim::lt.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, lt)
        .results(Results::Shapes),
    Operator::new("executorch_prim::ge.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, ge)
        .results(Results::Shapes),
    Operator::new("executorch_prim::ge.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, ge)
        .results(Results::Shapes),
    Operator::new("executorch_prim::le.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, le)
        .results(Results::Shapes),
    Operator::new("executorch_prim::le.int(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, le)
        .results(Results::Shapes),
    Operator::new("executorch_prim::sym_max.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, sym_max)
        .results(Results::Shapes),
    Operator::new("executorch_prim::sym_min.Scalar(Scalar a, Scalar b) -> Scalar", DtypeSet::NONE, sym_min)
        .results(Results::Shapes),
    Operator::new("executorch_prim::neg.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, neg)
        .results(Results::Shapes),
    Operator::new("executorch_prim::neg.int(Scalar a) -> Scalar", DtypeSet::NONE, neg)
        .results(Results::Shapes),
    Operator::new("executorch_prim::sym_float.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, sym_float)
        .results(Results::Shapes),
    Operator::new("executorch_prim::sym_int.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, sym_int)
        .results(Results::Shapes),
    Operator::new("executorch_prim::sym_not.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, sym_not)
        .results(Results::Shapes),
    Operator::new("executorch_prim::ceil.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, ceil)
        .results(Results::Shapes),
    Operator::new("executorch_prim::floor.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, floor)
        .results(Results::Shapes),
    Operator::new("executorch_prim::round.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, round)
        .results(Results::Shapes),
    Operator::new("executorch_prim::trunc.Scalar(Scalar a) -> Scalar", DtypeSet::NONE, trunc)
        .results(Results::Shapes),
    Operator::new(
        "executorch_prim::sym_ite.Scalar(Scalar b, Scalar t, Scalar f) -> Scalar",
        DtypeSet::NONE,
        sym_ite,
    )
    .results(Results::Shapes),
];

fn sym_size(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let meta = args.meta("self")?;
    ensure!(meta.rank() > 0, "self: a zero-dim tensor has no sizes");
    let dim = wrap_dim("dim", args.int("dim")?, meta.rank())?;
    outs.set(0, Scalar::Int(meta.sizes()[dim] as i64))
}

fn sym_stride(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let meta = args.meta("self")?;
    ensure!(meta.rank() > 0, "self: a zero-dim tensor has no strides");
    let dim = wrap_dim("dim", args.int("dim")?, meta.rank())?;
    outs.set(0, Scalar::Int(meta.strides()[dim] as i64))
}

fn sym_numel(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    outs.set(0, Scalar::Int(args.meta("self")?.numel() as i64))
}

/// Always 0: a tensor starts at the beginning of its own bytes.
fn sym_storage_offset(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    args.meta("self")?;
    outs.set(0, Scalar::Int(0))
}

/// The first element, as a scalar.
fn local_scalar_dense(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    ensure!(x.numel() > 0, "self: a tensor without elements has no value");
    expect_aligned(x.bytes(), x.dtype())?;
    let value = match (x.dtype(), compute_type(x.dtype())) {
        (ScalarType::Bool, _) => Scalar::Bool(first_element::<i64>(&x)? != 0),
        (_, ScalarType::Long) => Scalar::Int(first_element(&x)?),
        (dtype, _) if dtype.is_complex() => {
            return Err(crate::support::dtype::unsupported_type("self", dtype, DtypeSet::REAL_BOOL));
        }
        _ => Scalar::Double(first_element(&x)?),
    };
    outs.set(0, value)
}

fn first_element<C: Compute>(x: &pteron_tensor::TensorView<'_>) -> Result<C> {
    let mut value = [C::default()];
    C::loader(x.dtype())?(x.bytes(), 0, 0, &mut value);
    Ok(value[0])
}

/// A view of `self` with given sizes, one of which may be -1.
fn et_view(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let sizes = infer_shape("size", args.ints("size")?, args.meta("self")?.numel())?;
    outs.set_view(0, sizes)
}

/// Writes `copy_from` over row `index` of `copy_to`. If `copy_to` has a dynamic shape, it is first resized to `index
/// + 1` rows.
fn et_copy_index(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (row, index) = (args.tensor("copy_from")?, args.int("index")?);
    let out = outs.tensor(0)?;
    ensure!(out.rank() > 0, "copy_to: a zero-dim tensor has no rows");
    ensure!((0..i32::MAX as i64).contains(&index), "index: {index} is out of range");
    let index = index as usize;
    let mut sizes = *out.sizes();
    let rows = sizes.remove(0);
    ensure!(sizes == *row.sizes(), "copy_from: expected the shape {sizes} of a row, found {}", row.sizes());
    if out.meta().dynamism() == ShapeDynamism::DynamicBound {
        // The resize keeps the previous rows in place only if the row dimension is outermost in memory.
        ensure!(out.dim_order()[0] == 0, "copy_to: rows of dim order {} cannot be appended", out.dim_order());
        sizes.insert(0, index + 1)?;
        out.resize(&sizes)?;
    } else {
        ensure!(index < rows, "index: {index} is out of range for {rows} rows");
    }
    let into = Layout::of_tensor(out.meta()).select(0, index);
    copy_into(&row, &Layout::of_tensor(row.meta()), out, &into)
}

/// Both operands as integers if neither is a double, otherwise as doubles. Booleans count as integers.
enum Pair {
    Ints(i64, i64),
    Doubles(f64, f64),
}

fn operand_pair(args: &Args<'_>) -> Result<Pair> {
    let (a, b) = (args.scalar("a")?, args.scalar("b")?);
    Ok(if a.is_floating() || b.is_floating() {
        Pair::Doubles(a.to_f64(), b.to_f64())
    } else {
        Pair::Ints(a.to_i64(), b.to_i64())
    })
}

/// The two operands as integers; fails if one is a double.
fn integer_operands(args: &Args<'_>) -> Result<(i64, i64)> {
    let (a, b) = (args.scalar("a")?, args.scalar("b")?);
    ensure!(!a.is_floating() && !b.is_floating(), "expected integers, found {a} and {b}");
    Ok((a.to_i64(), b.to_i64()))
}

macro_rules! arithmetic {
    ($($name:ident: $int:expr, $double:expr;)*) => { $(
        fn $name(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            outs.set(0, match operand_pair(args)? {
                Pair::Ints(a, b) => Scalar::from($int(a, b)),
                Pair::Doubles(a, b) => Scalar::from($double(a, b)),
            })
        }
    )* };
}

arithmetic! {
    add: i64::wrapping_add, |a: f64, b: f64| a + b;
    sub: i64::wrapping_sub, |a: f64, b: f64| a - b;
    mul: i64::wrapping_mul, |a: f64, b: f64| a * b;
    eq: |a: i64, b: i64| a == b, |a: f64, b: f64| a == b;
    ne: |a: i64, b: i64| a != b, |a: f64, b: f64| a != b;
    gt: |a: i64, b: i64| a > b, |a: f64, b: f64| a > b;
    lt: |a: i64, b: i64| a < b, |a: f64, b: f64| a < b;
    ge: |a: i64, b: i64| a >= b, |a: f64, b: f64| a >= b;
    le: |a: i64, b: i64| a <= b, |a: f64, b: f64| a <= b;
    sym_max: i64::max, f64::max;
    sym_min: i64::min, f64::min;
}

/// Python's `//`. Division of doubles by zero gives an infinity with the sign of the dividend, as in ExecuTorch.
fn floordiv(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let value = match operand_pair(args)? {
        Pair::Ints(a, b) => {
            ensure!(b != 0, "b: integer division by zero");
            let q = a.wrapping_div(b);
            Scalar::Int(if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
        }
        Pair::Doubles(a, 0.0) => Scalar::Double(f64::INFINITY.copysign(a)),
        Pair::Doubles(a, b) => {
            let rem = a % b;
            let q = (a - rem) / b;
            Scalar::Double((if rem != 0.0 && (b < 0.0) != (rem < 0.0) { q - 1.0 } else { q }).round())
        }
    };
    outs.set(0, value)
}

/// Integer division that rounds toward zero: the old semantics of `floordiv.int`.
fn div_int(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = integer_operands(args)?;
    ensure!(b != 0, "b: integer division by zero");
    outs.set(0, Scalar::Int(a.wrapping_div(b)))
}

/// The remainder with the sign of the dividend, like C's `%`.
fn mod_int(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = integer_operands(args)?;
    ensure!(b != 0, "b: integer division by zero");
    outs.set(0, Scalar::Int(a.wrapping_rem(b)))
}

fn truediv(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    outs.set(0, Scalar::Double(args.scalar("a")?.to_f64() / args.scalar("b")?.to_f64()))
}

fn neg(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let value = match args.scalar("a")? {
        Scalar::Double(v) => Scalar::Double(-v),
        other => Scalar::Int(other.to_i64().wrapping_neg()),
    };
    outs.set(0, value)
}

fn sym_float(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    outs.set(0, Scalar::Double(args.scalar("a")?.to_f64()))
}

/// The argument as an integer; a double is truncated.
fn sym_int(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    outs.set(0, Scalar::Int(args.scalar("a")?.to_i64()))
}

fn sym_not(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    outs.set(0, Scalar::Bool(!args.scalar("a")?.to_bool()))
}

/// `t` if `b` is true, otherwise `f`.
fn sym_ite(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let value = args.scalar(if args.scalar("b")?.to_bool() { "t" } else { "f" })?;
    outs.set(0, value)
}

macro_rules! to_integer {
    ($($(#[$doc:meta])* $name:ident = $f:expr;)*) => { $(
        $(#[$doc])*
        fn $name(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let value = match args.scalar("a")? {
                Scalar::Double(v) => $f(v) as i64,
                other => other.to_i64(),
            };
            outs.set(0, Scalar::Int(value))
        }
    )* };
}

to_integer! {
    ceil = f64::ceil;
    floor = f64::floor;
    /// Rounds to the nearest integer, ties to even.
    round = f64::round_ties_even;
    trunc = f64::trunc;
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, ints, out, s, scalar, t, view};
    use pteron_operator::Arg;
    use pteron_tensor::Scalar::{Bool, Double, Int};
    use pteron_tensor::ScalarType::Float;

    #[test]
    fn scalar_arithmetic() {
        let of = |name: &str, args: &[Arg<'_>]| scalar(&format!("executorch_prim::{name}"), args).unwrap();
        let d = Arg::Double;
        assert_eq!(of("add.Scalar", &[int(i64::MAX), int(1)]), Int(i64::MIN));
        assert_eq!(of("mul.Scalar", &[int(2), d(1.5)]), Double(3.0));
        assert_eq!(of("floordiv.Scalar", &[int(-7), int(3)]), Int(-3));
        assert_eq!(of("floordiv.int", &[int(-7), int(3)]), Int(-2));
        assert_eq!(of("floordiv.Scalar", &[d(-7.5), d(2.0)]), Double(-4.0));
        assert_eq!(of("floordiv.Scalar", &[d(-1.0), d(0.0)]), Double(f64::NEG_INFINITY));
        assert_eq!(of("floordiv.Scalar", &[int(i64::MIN), int(-1)]), Int(i64::MIN));
        assert_eq!(of("mod.Scalar", &[int(-7), int(3)]), Int(-1));
        assert_eq!(of("truediv.Scalar", &[int(1), int(2)]), Double(0.5));
        assert_eq!(of("eq.int", &[int(3), int(3)]), Bool(true));
        assert_eq!(of("le.Scalar", &[Arg::Bool(true), int(0)]), Bool(false));
        assert_eq!(of("round.Scalar", &[d(2.5)]), Int(2));
        assert_eq!(of("sym_ite.Scalar", &[Arg::Bool(false), int(1), d(2.0)]), Double(2.0));
        assert_eq!(of("sym_not.Scalar", &[Arg::Bool(false)]), Bool(true));
        for name in ["floordiv.Scalar", "mod.Scalar", "mod.int", "floordiv.int"] {
            assert!(scalar(&format!("executorch_prim::{name}"), &[int(1), int(0)]).is_err());
        }
    }

    #[test]
    fn sizes_and_values() {
        let x = t(&[2, 3], &[1f32; 6]);
        assert_eq!(scalar("aten::sym_size.int", &[a(&x), int(-1)]), Ok(Int(3)));
        assert_eq!(scalar("aten::sym_numel", &[a(&x)]), Ok(Int(6)));
        assert_eq!(
            scalar("aten::_local_scalar_dense", &[a(&s(pteron_tensor::f16::from_f32(0.5)))]),
            Ok(Double(0.5))
        );
        assert_eq!(scalar("aten::_local_scalar_dense", &[a(&s(7u8))]), Ok(Int(7)));
        assert!(scalar("aten::_local_scalar_dense", &[a(&t::<f32>(&[0], &[]))]).is_err());
        assert_eq!(&*view("executorch_prim::et_view.default", &[a(&x), ints(&[-1, 2])]).unwrap(), &[3, 2]);
        assert!(view("executorch_prim::et_view.default", &[a(&x), ints(&[4])]).is_err());
    }

    #[test]
    fn rows_are_appended_or_replaced() {
        let name = "executorch_prim::et_copy_index.tensor";
        let row = t(&[2], &[1f32, 2.0]);
        let grown = out(Float, &[3, 2]);
        let r = call(name, &[a(&row), int(0)], grown).unwrap();
        assert_eq!(&**r.sizes(), &[1, 2]);
        let fixed = t(&[3, 2], &[0f32; 6]);
        let r = call(name, &[a(&row), int(1)], fixed.clone()).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
        assert!(call(name, &[a(&row), int(3)], fixed).is_err());
        assert!(call(name, &[a(&row), int(3)], out(Float, &[3, 2])).is_err());
    }
}
