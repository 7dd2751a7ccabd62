//! Binary arithmetic.

use crate::support::dtype::float_type;
use crate::support::map::{Fns, Input, elementwise, map, map_as, map_float, promote, round_to_type};
use crate::support::meaning::{binary_meaning, unary_meaning};
use pteron_operator::{
    Arg, Args, Binary, DtypeSet, Error, Expression, KernelContext, Meaning, Operator, Outs, Result, Rounding,
    Unary, ensure,
};
use pteron_tensor::{Scalar, ScalarType, bf16, f16};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        add,
    )
    .in_place(&["self", "other"])
    .rounding(Rounding::OnceWithNumbers)
    .means(|args| meaning_if_alpha_is_one(args, binary_meaning(Binary::Add))),
    Operator::new(
        "aten::add.Scalar_out(Tensor self, Scalar other, Scalar alpha=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        add,
    )
    .in_place(&["self"])
    .rounding(Rounding::OnceWithNumbers)
    .means(|args| meaning_if_alpha_is_one(args, scalar_operand_meaning(args, Binary::Add))),
    Operator::new(
        "aten::sub.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        sub,
    )
    .in_place(&["self", "other"])
    .rounding(Rounding::OnceWithNumbers)
    .means(|args| meaning_if_alpha_is_one(args, binary_meaning(Binary::Sub))),
    Operator::new(
        "aten::sub.Scalar_out(Tensor self, Scalar other, Scalar alpha=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        sub,
    )
    .in_place(&["self"])
    .rounding(Rounding::OnceWithNumbers)
    .means(|args| meaning_if_alpha_is_one(args, scalar_operand_meaning(args, Binary::Sub))),
    Operator::new(
        "aten::rsub.Tensor_out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        rsub,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::rsub.Scalar_out(Tensor self, Scalar other, Scalar alpha=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        rsub,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        mul,
    )
    .in_place(&["self", "other"])
    .rounding(Rounding::Once)
    .means(|_| binary_meaning(Binary::Mul)),
    Operator::new(
        "aten::mul.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        mul,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|args| scalar_operand_meaning(args, Binary::Mul)),
    Operator::new(
        "aten::div.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        div,
    )
    .in_place(&["self", "other"])
    .rounding(Rounding::Once)
    .means(|_| binary_meaning(Binary::Div)),
    Operator::new(
        "aten::div.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        div,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|args| scalar_operand_meaning(args, Binary::Div)),
    Operator::new(
        "aten::div.out_mode(Tensor self, Tensor other, *, str? rounding_mode, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        div_mode,
    )
    .in_place(&["self", "other"])
    .means(|args| not_rounded(args).then(|| binary_meaning(Binary::Div))?),
    Operator::new(
        "aten::div.Scalar_mode_out(Tensor self, Scalar other, *, str? rounding_mode, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        div_mode,
    )
    .in_place(&["self"])
    .means(|args| not_rounded(args).then(|| scalar_operand_meaning(args, Binary::Div))?),
    Operator::new(
        "aten::floor_divide.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        floor_divide,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::floor_divide.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        floor_divide,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::remainder.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        remainder,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::remainder.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        remainder,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::remainder.Scalar_Tensor_out(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        remainder,
    )
    .in_place(&["other"]),
    Operator::new(
        "aten::fmod.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        fmod,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::fmod.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        fmod,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::pow.Tensor_Tensor_out(Tensor self, Tensor exponent, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        pow,
    )
    .in_place(&["self", "exponent"]),
    Operator::new(
        "aten::pow.Tensor_Scalar_out(Tensor self, Scalar exponent, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        pow,
    )
    .in_place(&["self"])
    .rounding(Rounding::OnceWithNumbers)
    .means(pow_meaning),
    Operator::new(
        "aten::pow.Scalar_out(Scalar self, Tensor exponent, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        pow,
    )
    .in_place(&["exponent"]),
    Operator::new(
        "aten::atan2.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        atan2,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::hypot.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        hypot,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::maximum.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        maximum,
    )
    .in_place(&["self", "other"])
    .rounding(Rounding::Exact)
    .means(|_| binary_meaning(Binary::Maximum)),
    Operator::new(
        "aten::minimum.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        minimum,
    )
    .in_place(&["self", "other"])
    .rounding(Rounding::Exact)
    .means(|_| binary_meaning(Binary::Minimum)),
    Operator::new(
        "aten::fmax.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        fmax,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::fmin.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        fmin,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::copysign.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        copysign,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::copysign.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        copysign,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::heaviside.out(Tensor self, Tensor values, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        heaviside,
    )
    .in_place(&["self", "values"]),
    Operator::new(
        "aten::logaddexp.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        logaddexp,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::logaddexp2.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        logaddexp2,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::xlogy.OutTensor(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        xlogy,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::xlogy.OutScalar_Other(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        xlogy,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::xlogy.OutScalar_Self(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        xlogy,
    )
    .in_place(&["other"]),
];

/// `meaning` if the argument `alpha` is one; otherwise `None`.
fn meaning_if_alpha_is_one(args: &Args<'_>, meaning: Option<Meaning>) -> Option<Meaning> {
    let one = args.is_none("alpha") || args.scalar("alpha").is_ok_and(|s| s.to_f64() == 1.0);
    meaning.filter(|_| one)
}

fn scalar_operand_meaning(args: &Args<'_>, f: Binary) -> Option<Meaning> {
    let number = args.scalar("other").ok()?.to_f64() as f32;
    Some(Meaning::Elementwise(Expression::with_const(f, number)))
}

/// Whether a division has a `rounding_mode` that keeps its quotients as they are.
fn not_rounded(args: &Args<'_>) -> bool {
    args.is_none("rounding_mode")
}

fn pow_meaning(args: &Args<'_>) -> Option<Meaning> {
    unary_meaning(Unary::Square).filter(|_| args.scalar("exponent").is_ok_and(|s| s.to_f64() == 2.0))
}

/// Arguments 0 and 1, tensors or scalars.
fn operands(args: &Args<'_>) -> Result<[Input; 2]> {
    Ok([Input::of_arg(args, 0)?, Input::of_arg(args, 1)?])
}

/// The argument `alpha`, rounded to the result's type. A floating-point `alpha` is refused if the result is an integer
/// or bool.
fn checked_alpha(args: &Args<'_>, dtype: ScalarType) -> Result<Scalar> {
    let alpha = args.scalar("alpha")?;
    ensure!(
        !alpha.is_floating() || dtype.is_floating() || dtype.is_complex(),
        "alpha: {alpha} is not an integer, but the result is of {dtype}"
    );
    Ok(if alpha.is_floating() { Scalar::Double(round_to_type(alpha.to_f64(), dtype)) } else { alpha })
}

/// `self + alpha * other`
fn add(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    let alpha = checked_alpha(args, promote(args, &inputs)?)?;
    if alpha.to_f64() == 1.0 {
        let fns = elementwise! {
            float(a, b) => a + b;
            int(a, b) => a.wrapping_add(b);
            complex(a, b) => a + b;
        };
        return map(ctx, args, outs, inputs, &fns);
    }
    let (k, n) = (alpha.to_f64(), alpha.to_i64());
    let fns = elementwise! {
        float(a, b) => a + k as F * b;
        int(a, b) => a.wrapping_add(n.wrapping_mul(b));
        complex(a, b) => a + b * k;
    };
    map(ctx, args, outs, inputs, &fns)
}

/// `self - alpha * other`
fn sub(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    let dtype = promote(args, &inputs)?;
    ensure!(dtype != ScalarType::Bool, "self: bool tensors cannot be subtracted; use logical_xor");
    let alpha = checked_alpha(args, dtype)?;
    let (k, n) = (alpha.to_f64(), alpha.to_i64());
    let fns = elementwise! {
        float(a, b) => a - k as F * b;
        int(a, b) => a.wrapping_sub(n.wrapping_mul(b));
        complex(a, b) => a - b * k;
    };
    map(ctx, args, outs, inputs, &fns)
}

/// `other - alpha * self`
fn rsub(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    let dtype = promote(args, &inputs)?;
    ensure!(dtype != ScalarType::Bool, "self: bool tensors cannot be subtracted; use logical_xor");
    let alpha = checked_alpha(args, dtype)?;
    let (k, n) = (alpha.to_f64(), alpha.to_i64());
    let fns = elementwise! {
        float(a, b) => b - k as F * a;
        int(a, b) => b.wrapping_sub(n.wrapping_mul(a));
        complex(a, b) => b - a * k;
    };
    map(ctx, args, outs, inputs, &fns)
}

fn mul(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(a, b) => a * b; int(a, b) => a.wrapping_mul(b); complex(a, b) => a * b };
    map(ctx, args, outs, operands(args)?, &Fns { exact_number: true, ..fns })
}

/// True division: integers are divided as float32.
fn div(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    let dtype = float_type(promote(args, &inputs)?);
    let fns = elementwise! { float(a, b) => a / b; complex(a, b) => a / b };
    map_as(ctx, args, outs, inputs, dtype, dtype, &Fns { exact_number: true, ..fns })
}

/// Division without rounding (`None`), toward zero (`trunc`) or down (`floor`). Rounded division of integers gives
/// integers.
fn div_mode(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    match args.optional_str("rounding_mode")? {
        None => div(ctx, args, outs),
        Some("floor") => floor_divide(ctx, args, outs),
        Some("trunc") => {
            let inputs = operands(args)?;
            check_divisor(args, outs, &inputs)?;
            let fns = elementwise! { float(a, b) => (a / b).trunc(); int(a, b) => integer_quotient(a, b) };
            let fns = Fns { exact_number: true, ..fns };
            let Some(round) = step_rounding(args, &inputs)? else {
                return map(ctx, args, outs, inputs, &fns);
            };
            let each = |[a, b]: [&[f32]; 2], out: &mut [f32]| {
                out.iter_mut().zip(a).zip(b).for_each(|((o, a), b)| *o = round(a / b).trunc());
            };
            map(ctx, args, outs, inputs, &Fns { f32: Some(&each), ..fns })
        }
        Some(other) => Err(Error::invalid(format!("rounding_mode: {other:?} is not `floor` or `trunc`"))),
    }
}

/// The rounding of intermediate results in a rounded division of half-precision tensors: PyTorch rounds each step to
/// the tensors' type, but divides by a single-element divisor in f32.
fn step_rounding(args: &Args<'_>, inputs: &[Input; 2]) -> Result<Option<fn(f32) -> f32>> {
    let single = match inputs[1] {
        Input::Scalar(_) => true,
        Input::Arg(i) | Input::View(i, _) => args.meta(i)?.numel() == 1,
    };
    Ok(match promote(args, inputs)? {
        ScalarType::Half if !single => Some(|x| f16::from_f32(x).to_f32()),
        ScalarType::BFloat16 if !single => Some(|x| bf16::from_f32(x).to_f32()),
        _ => None,
    })
}

/// Fails for an integer division with a zero in the divisor, as PyTorch does.
fn check_divisor(args: &Args<'_>, outs: &Outs<'_>, inputs: &[Input; 2]) -> Result<()> {
    let dtype = promote(args, inputs)?;
    if dtype.is_floating() || dtype.is_complex() {
        return Ok(());
    }
    let zero = match inputs[1] {
        Input::Scalar(s) => s.to_i64() == 0,
        Input::Arg(i) | Input::View(i, _) => {
            let size = args.meta(i)?.dtype().size();
            let any = |bytes: &[u8]| bytes.chunks_exact(size).any(|e| e.iter().all(|&b| b == 0));
            match args.get(i) {
                Arg::InPlace { out, .. } => any(outs.read(*out)?.bytes()),
                _ => any(args.tensor(i)?.bytes()),
            }
        }
    };
    ensure!(!zero, "other: division of integers by zero");
    Ok(())
}

/// The quotient of integers, after [`check_divisor`]; zero divisors remain possible where a scalar wraps to zero.
fn integer_quotient(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { a.wrapping_div(b) }
}

/// The remainder of the division that [`integer_quotient`] does.
fn integer_remainder(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { a.wrapping_rem(b) }
}

/// Floating-point floor division as in PyTorch: computed from the remainder, so that it is consistent with
/// `remainder` where the quotient rounds.
macro_rules! floor_div {
    ($a:ident, $b:ident, $F:ty, $round:expr) => {
        if $b == 0.0 {
            $a / $b
        } else {
            let rem = $a % $b;
            let mut q = $round($round($a - rem) / $b);
            if rem != 0.0 && ($b < 0.0) != (rem < 0.0) {
                q = $round(q - 1.0);
            }
            if q == 0.0 {
                (0.0 as $F).copysign($a / $b)
            } else {
                let down = q.floor();
                if $round(q - down) > 0.5 { down + 1.0 } else { down }
            }
        }
    };
}

/// The quotient rounded down, like Python's `//`.
fn floor_divide(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    check_divisor(args, outs, &inputs)?;
    let fns = elementwise! {
        float(a, b) => floor_div!(a, b, F, F::from);
        int(a, b) => {
            let q = integer_quotient(a, b);
            if integer_remainder(a, b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
        };
    };
    let fns = Fns { exact_number: true, ..fns };
    let Some(round) = step_rounding(args, &inputs)? else { return map(ctx, args, outs, inputs, &fns) };
    let each = |[a, b]: [&[f32]; 2], out: &mut [f32]| {
        out.iter_mut().zip(a).zip(b).for_each(|((o, &a), &b)| *o = floor_div!(a, b, f32, round));
    };
    map(ctx, args, outs, inputs, &Fns { f32: Some(&each), ..fns })
}

/// The remainder with the sign of the divisor, like Python's `%`.
fn remainder(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    check_divisor(args, outs, &inputs)?;
    let fns = elementwise! {
        float(a, b) => {
            let r = a % b;
            if r != 0.0 && (b < 0.0) != (r < 0.0) { r + b } else { r }
        };
        int(a, b) => {
            let r = integer_remainder(a, b);
            if r != 0 && (b < 0) != (r < 0) { r + b } else { r }
        };
    };
    map(ctx, args, outs, inputs, &fns)
}

/// The remainder with the sign of the dividend, like C's `fmod`.
fn fmod(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    check_divisor(args, outs, &inputs)?;
    map(ctx, args, outs, inputs, &elementwise! { float(a, b) => a % b; int(a, b) => integer_remainder(a, b) })
}

/// Powers. For integer types, a negative exponent in a tensor gives 0 (1 or -1 for the bases 1 and -1), and a
/// negative exponent that is a scalar is refused.
fn pow(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    if let (Input::Arg(_), Input::Scalar(Scalar::Int(e))) = (inputs[0], inputs[1]) {
        let dtype = promote(args, &inputs)?;
        ensure!(
            e >= 0 || dtype.is_floating() || dtype.is_complex(),
            "exponent: integers cannot be raised to the negative power {e}"
        );
    }
    if let Input::Scalar(Scalar::Double(2.0) | Scalar::Int(2)) = inputs[1] {
        let fns =
            elementwise! { float(a, _b) => a * a; int(a, _b) => a.wrapping_mul(a); complex(a, _b) => a * a };
        return map(ctx, args, outs, inputs, &fns);
    }
    // PyTorch computes the power 0.5 as a square root, whose value at negative infinity is NaN, in every type but
    // float16.
    if let Input::Scalar(Scalar::Double(e @ (0.5 | -0.5))) = inputs[1] {
        let is_positive = e > 0.0;
        let root = elementwise! {
            float(a, _b) => if is_positive { a.sqrt() } else { 1.0 / a.sqrt() };
            int(a, b) => int_pow(a, b);
            complex(a, b) => a.powc(b);
        };
        return map(ctx, args, outs, inputs, &root);
    }
    let fns = elementwise! {
        float(a, b) => a.powf(b);
        int(a, b) => int_pow(a, b);
        complex(a, b) => a.powc(b);
    };
    map(ctx, args, outs, inputs, &fns)
}

fn int_pow(mut base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut e, mut result) = (exponent as u64, 1i64);
    while e > 0 {
        if e & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        e >>= 1;
    }
    result
}

/// The angle, in radians, of the point with coordinates `(other, self)`.
fn atan2(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    let dtype = float_type(promote(args, &inputs)?);
    map_as(ctx, args, outs, inputs, dtype, dtype, &elementwise! { float(a, b) => a.atan2(b) })
}

fn hypot(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(ctx, args, outs, operands(args)?, &elementwise! { float(a, b) => a.hypot(b) })
}

/// The larger operand; NaN if either is NaN.
fn maximum(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(a, b) => if a > b || a.is_nan() { a } else { b }; int(a, b) => a.max(b) };
    map(ctx, args, outs, operands(args)?, &fns)
}

/// The smaller operand; NaN if either is NaN.
fn minimum(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(a, b) => if a < b || a.is_nan() { a } else { b }; int(a, b) => a.min(b) };
    map(ctx, args, outs, operands(args)?, &fns)
}

/// The larger operand; NaN only if both are NaN.
fn fmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(ctx, args, outs, operands(args)?, &elementwise! { real(a, b) => a.max(b) })
}

/// The smaller operand; NaN only if both are NaN.
fn fmin(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(ctx, args, outs, operands(args)?, &elementwise! { real(a, b) => a.min(b) })
}

/// The magnitude of the first operand with the sign of the second; integers become float32.
fn copysign(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map_float(ctx, args, outs, operands(args)?, &elementwise! { float(a, b) => a.copysign(b) })
}

/// 0 for negative elements, 1 for positive ones, and the element of `values` where `self` is zero.
fn heaviside(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(a, b) => if a == 0.0 { b } else { (a > 0.0) as u8 as F };
        int(a, b) => if a == 0 { b } else { (a > 0) as i64 };
    };
    map(ctx, args, outs, operands(args)?, &fns)
}

/// `log(exp(a) + exp(b))`
fn logaddexp(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(a, b) => if a == b && a.is_infinite() { a } else { a.max(b) + (-(a - b).abs()).exp().ln_1p() };
    };
    map(ctx, args, outs, operands(args)?, &fns)
}

/// `log2(2^a + 2^b)`
fn logaddexp2(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(a, b) => if a == b && a.is_infinite() {
            a
        } else {
            a.max(b) + (-(a - b).abs()).exp2().ln_1p() * std::f64::consts::LOG2_E as F
        };
    };
    map(ctx, args, outs, operands(args)?, &fns)
}

/// `a log(b)`; 0 where `a` is zero, unless `b` is NaN.
fn xlogy(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(a, b) => if a == 0.0 && !b.is_nan() { 0.0 } else { a * b.ln() } };
    map_float(ctx, args, outs, operands(args)?, &fns)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Byte, Double, Float, Half, Int, Long, Short};
    use pteron_tensor::{DimOrder, Tensor, f16};

    #[test]
    fn logaddexp_xlogy_heaviside_and_copysign() {
        let inf = f32::INFINITY;
        let (x, y) = (t(&[4], &[0f32, -inf, 1000.0, -0.0]), t(&[4], &[0f32, -inf, 999.0, -1.0]));
        let go = |name: &str| {
            call(name, &[a(&x), a(&y)], out(Float, &[4])).unwrap().storage::<f32>().unwrap().to_vec()
        };
        let r = go("aten::logaddexp.out");
        assert!(r[0] == std::f32::consts::LN_2 && r[1] == -inf && (r[2] - 1_000.313_2).abs() < 1e-3);
        assert_eq!(go("aten::logaddexp2.out")[..2], [1.0, -inf]);
        assert_eq!(go("aten::heaviside.out"), [0.0, 0.0, 1.0, -1.0]);
        assert_eq!(go("aten::xlogy.OutTensor")[0], 0.0);
        assert!(go("aten::copysign.out")[2] == 1000.0 && go("aten::copysign.out")[3].is_sign_negative());
        let n = t(&[1], &[3i32]);
        let r = call("aten::copysign.Scalar_out", &[a(&n), Arg::Double(-1.0)], out(Float, &[1])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[-3.0]);
    }

    /// For the float16 nearest to 0.3, 3 / 0.3 is a little less than 10 in f32 but exactly 10 in half precision.
    #[test]
    fn half_precision_quotients_are_rounded_before_they_are_truncated() {
        let half = |x: f32| f16::from_f32(x);
        let (x, y) = (t(&[2], &[half(3.0), half(-3.0)]), t(&[2], &[half(0.3), half(0.3)]));
        let go = |name: &str, by: &Tensor| {
            let r = call(
                name,
                &[a(&x), a(by), Arg::Str("trunc")][..if name.contains("mode") { 3 } else { 2 }],
                out(Half, &[2]),
            )
            .unwrap();
            r.storage::<f16>().unwrap().iter().map(|x| x.to_f32()).collect::<Vec<_>>()
        };
        assert_eq!(go("aten::div.out_mode", &y), [10.0, -10.0]);
        assert_eq!(go("aten::floor_divide.out", &y), [9.0, -10.0]);
        let single = t(&[1], &[half(0.3)]);
        assert_eq!(go("aten::div.out_mode", &single), [9.0, -9.0]);
        // A scalar divisor is not rounded: 0.1 is greater than the nearest float16.
        let tenth = t(&[1], &[half(0.1)]);
        let args = [a(&tenth), Arg::Double(0.1)];
        let r = call("aten::floor_divide.Scalar_out", &args, out(Half, &[1])).unwrap();
        assert_eq!(r.storage::<f16>().unwrap()[0].to_f32(), 0.0);
    }

    #[test]
    fn subtracted_scalars_are_rounded_to_the_type() {
        let x = t(&[1], &[f16::from_f32(0.1)]);
        let go = |name: &str| {
            let args = [a(&x), Arg::Double(0.1), Arg::Int(1)];
            call(name, &args, out(Half, &[1])).unwrap().storage::<f16>().unwrap()[0].to_f32()
        };
        assert_eq!(go("aten::rsub.Scalar_out"), 0.0);
        assert_eq!(go("aten::sub.Scalar_out"), 0.0);
    }

    /// In half precision, scalars and tensors of other types are rounded to the promoted type first, except for a
    /// single-element factor or divisor.
    #[test]
    fn operands_are_rounded_to_the_promoted_type() {
        let x = t(&[2], &[1.0f32, 2.0].map(f16::from_f32));
        let (tenth, many) = (t(&[], &[0.1f32]), t(&[2], &[2049i32, -4099]));
        let go = |name: &str, other: &Tensor| {
            let r = call(name, &[a(&x), a(other)], out(Half, &[2])).unwrap();
            r.storage::<f16>().unwrap().iter().map(|x| x.to_f32()).collect::<Vec<_>>()
        };
        let half = |x: f32| f16::from_f32(x).to_f32();
        let near = half(0.1);
        assert_eq!(go("aten::add.out", &tenth), [half(1.0 + near), half(2.0 + near)]);
        assert_eq!(go("aten::pow.Tensor_Tensor_out", &tenth), [1.0, half(2f32.powf(near))]);
        assert_eq!(go("aten::mul.out", &tenth), [half(0.1), half(0.2)]);
        assert_eq!(go("aten::div.out", &tenth), [half(1.0 / 0.1), half(2.0 / 0.1)]);
        assert_eq!(go("aten::mul.out", &many), [2048.0, -8200.0]);
        assert_eq!(go("aten::maximum.out", &many), [2048.0, 2.0]);
        let by = [a(&x), Arg::Double(0.3), Arg::Double(0.1)];
        let r = call("aten::add.Scalar_out", &by, out(Half, &[2])).unwrap();
        assert_eq!(r.storage::<f16>().unwrap()[0].to_f32(), half(1.0 + near * half(0.3)));
    }

    #[test]
    fn operands_promote_and_broadcast() {
        let (x, y) = (t(&[2, 1], &[200u8, 100]), t(&[3], &[100u8, 1, 2]));
        let sum = call("aten::add.out", &[a(&x), a(&y)], out(Byte, &[2, 3])).unwrap();
        assert_eq!(sum.storage::<u8>().unwrap(), &[44, 201, 202, 200, 101, 102]);
        // The sum wraps in the promoted type before it is stored in a wider one.
        let sum = call("aten::add.out", &[a(&x), a(&y)], out(Float, &[2, 3])).unwrap();
        assert_eq!(sum.storage::<f32>().unwrap()[0], 44.0);
        let mixed = t(&[2, 1], &[-1i8, 5]);
        let sum = call("aten::add.out", &[a(&mixed), a(&y)], out(Short, &[2, 3])).unwrap();
        assert_eq!(sum.storage::<i16>().unwrap(), &[99, 0, 1, 105, 6, 7]);
        let h = t(&[1], &[f16::from_f32(1.0)]);
        let sum = call("aten::add.Scalar_out", &[a(&h), Arg::Double(0.5)], out(Half, &[1])).unwrap();
        assert_eq!(sum.storage::<f16>().unwrap()[0].to_f32(), 1.5);
        assert!(call("aten::add.Scalar_out", &[a(&y), Arg::Double(0.5)], out(Byte, &[3])).is_err());
        let sum = call("aten::add.Scalar_out", &[a(&y), Arg::Double(0.5)], out(Float, &[3])).unwrap();
        assert_eq!(sum.storage::<f32>().unwrap(), &[100.5, 1.5, 2.5]);
    }

    #[test]
    fn operands_and_out_may_have_any_layout() {
        let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let rows = t(&[1, 2, 3, 4], &x);
        let last = rows.to_dim_order(DimOrder::channels_last(4)).unwrap();
        let bias = t(&[2, 1, 1], &[100f32, 200.0]);
        let want = call("aten::add.out", &[a(&rows), a(&bias)], out(Float, &[1, 2, 3, 4])).unwrap();
        let into = want.to_dim_order(DimOrder::channels_last(4)).unwrap();
        for (x, o) in [(&last, &want), (&rows, &into), (&last, &into)] {
            let sum = call("aten::add.out", &[a(x), a(&bias)], o.clone()).unwrap();
            assert_eq!(sum.to_dim_order(DimOrder::contiguous(4)).unwrap().bytes(), want.bytes());
        }
        let sum = call("aten::add.out", &[a(&rows), a(&last)], want.clone()).unwrap();
        assert_eq!(sum.storage::<f32>().unwrap(), x.iter().map(|v| v * 2.0).collect::<Vec<_>>());
    }

    #[test]
    fn zero_dim_operands_and_alpha() {
        let (x, y) = (s(2.0f64), t(&[2], &[1f32, 2.0]));
        let r = call("aten::add.out", &[a(&x), a(&y), Arg::Int(3)], out(Float, &[2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[5.0, 8.0]);
        let r = call("aten::sub.out", &[a(&x), a(&x)], out(Double, &[])).unwrap();
        assert_eq!(r.storage::<f64>().unwrap(), &[0.0]);
        let n = t(&[2], &[1i32, 2]);
        assert!(call("aten::add.out", &[a(&n), a(&n), Arg::Double(0.5)], out(Int, &[2])).is_err());
        let b = t(&[1], &[pteron_tensor::Bool::from(true)]);
        assert!(call("aten::sub.out", &[a(&b), a(&b)], out(Bool, &[1])).is_err());
        let empty = call("aten::mul.out", &[a(&t::<f32>(&[0, 2], &[])), a(&y)], out(Float, &[0, 2])).unwrap();
        assert_eq!(empty.numel(), 0);
    }

    fn ints(name: &str, x: &[i64], y: &[i64], mode: Option<&str>) -> Vec<i64> {
        let (x, y) = (t(&[x.len()], x), t(&[y.len()], y));
        let mut args = vec![a(&x), a(&y)];
        args.extend(mode.map(Arg::Str));
        call(name, &args, out(Long, &[x.numel()])).unwrap().storage::<i64>().unwrap().to_vec()
    }

    #[test]
    fn integer_division_rounds_as_asked() {
        let (x, y) = (&[7, -7, 7, -7, i64::MIN], &[2, 2, -2, -2, -1]);
        assert_eq!(ints("aten::div.out_mode", x, y, Some("trunc")), [3, -3, -3, 3, i64::MIN]);
        assert_eq!(ints("aten::div.out_mode", x, y, Some("floor")), [3, -4, -4, 3, i64::MIN]);
        assert_eq!(ints("aten::remainder.Tensor_out", x, y, None), [1, 1, -1, -1, 0]);
        assert_eq!(ints("aten::fmod.Tensor_out", x, y, None), [1, -1, 1, -1, 0]);
        assert_eq!(
            ints("aten::pow.Tensor_Tensor_out", &[2, -1, 3, 2], &[62, -3, -1, 64], None),
            [1 << 62, -1, 0, 0]
        );
        let zero = t(&[1], &[0i32]);
        let e = call("aten::floor_divide.out", &[a(&zero), a(&zero)], out(Int, &[1])).unwrap_err();
        assert!(e.to_string().contains("other"), "{e}");
    }

    #[test]
    fn float_division_and_extremes() {
        let x = t(&[4], &[5.5f32, -5.5, f32::NAN, 1.0]);
        let y = t(&[4], &[2f32, 2.0, 1.0, 0.0]);
        let go = |name: &str| -> Tensor { call(name, &[a(&x), a(&y)], out(Float, &[4])).unwrap() };
        let is = |t: Tensor, want: [f32; 4]| {
            let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
            assert!(t.storage::<f32>().unwrap().iter().zip(&want).all(same), "{t:?} {want:?}");
        };
        let far = t(&[2], &[f32::NEG_INFINITY, 4.0]);
        let root =
            call("aten::pow.Tensor_Scalar_out", &[a(&far), Arg::Double(0.5)], out(Float, &[2])).unwrap();
        let root = root.storage::<f32>().unwrap();
        assert!(root[0].is_nan() && root[1] == 2.0, "{root:?}");
        let half = t(&[1], &[f16::from_f32(0.1)]);
        let equal = call("aten::eq.Scalar_out", &[a(&half), Arg::Double(0.1)], out(Bool, &[1])).unwrap();
        assert_eq!(equal.bytes(), [1], "the scalar is rounded to the type");
        let rest = call("aten::fmod.Scalar_out", &[a(&half), Arg::Double(0.1)], out(Half, &[1])).unwrap();
        assert_eq!(rest.storage::<f16>().unwrap()[0].to_f32(), 0.0);
        is(go("aten::floor_divide.out"), [2.0, -3.0, f32::NAN, f32::INFINITY]);
        is(go("aten::remainder.Tensor_out"), [1.5, 0.5, f32::NAN, f32::NAN]);
        is(go("aten::maximum.out"), [5.5, 2.0, f32::NAN, 1.0]);
        is(go("aten::fmax.out"), [5.5, 2.0, 1.0, 1.0]);
        is(go("aten::div.out"), [2.75, -2.75, f32::NAN, f32::INFINITY]);
    }
}
