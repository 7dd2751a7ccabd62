//! PyTorch's type promotion.

use pteron_exported::{Argument, ExportedProgram, TensorSpec, VarId, VarType};
use pteron_tensor::ScalarType;

/// The category of a type, in promotion order: booleans, integers, floats, complex numbers.
fn promotion_category(dtype: ScalarType) -> u8 {
    match dtype {
        ScalarType::Bool => 0,
        d if d.is_complex() => 3,
        d if d.is_floating() => 2,
        _ => 1,
    }
}

/// The promoted type of two tensors that are either both 0-d or both not 0-d.
pub(crate) fn promote(a: ScalarType, b: ScalarType) -> ScalarType {
    use ScalarType::*;
    if a == b {
        return a;
    }
    let (a, b) = if promotion_category(a) >= promotion_category(b) { (a, b) } else { (b, a) };
    if promotion_category(a) > promotion_category(b) {
        return match (a, b) {
            (ComplexHalf | ComplexFloat, Double) => ComplexDouble,
            (ComplexHalf, Float | BFloat16) => ComplexFloat,
            _ => a,
        };
    }
    match promotion_category(a) {
        1 => match (a, b) {
            (Byte, Char) | (Char, Byte) => Short,
            (Byte, other) | (other, Byte) => other,
            _ if a.size() >= b.size() => a,
            _ => b,
        },
        2 => match (a, b) {
            (Half, BFloat16) | (BFloat16, Half) => Float,
            _ if a.size() >= b.size() => a,
            _ => b,
        },
        _ if a.size() >= b.size() => a,
        _ => b,
    }
}

/// The promoted type of an elementwise operator's operands. Tensors with dimensions come before 0-d tensors, and these
/// before scalars: an operand that comes later counts only if its type has a higher category than those before.
pub(crate) fn result_type<'a>(
    program: &ExportedProgram,
    args: impl IntoIterator<Item = &'a Argument>,
) -> Option<ScalarType> {
    let mut by_level: [Option<ScalarType>; 3] = [None; 3];
    for arg in args {
        let (level, dtype) = match arg {
            Argument::Int(_) => (2, ScalarType::Long),
            Argument::Float(_) => (2, ScalarType::Float),
            Argument::Bool(_) => (2, ScalarType::Bool),
            Argument::Var(v) => match &program.var(*v).ty {
                VarType::Tensor(TensorSpec { dtype, sizes, .. }) => (usize::from(sizes.is_empty()), *dtype),
                VarType::Int(_) => (2, ScalarType::Long),
                VarType::Float => (2, ScalarType::Float),
                VarType::Bool => (2, ScalarType::Bool),
                _ => continue,
            },
            _ => continue,
        };
        by_level[level] = Some(by_level[level].map_or(dtype, |d| promote(d, dtype)));
    }
    let [with_dims, without, numbers] = by_level;
    let join = |high: Option<ScalarType>, low: Option<ScalarType>| match (high, low) {
        (Some(h), Some(l)) if promotion_category(l) > promotion_category(h) => {
            // A complex operand takes the width of the floating-point type that it meets.
            Some(if promotion_category(l) == 3 && h.is_floating() { promote(h, l) } else { l })
        }
        (Some(h), _) => Some(h),
        (None, l) => l,
    };
    join(with_dims, join(without, numbers))
}

/// The type of a tensor value.
pub(crate) fn dtype_of(program: &ExportedProgram, var: VarId) -> Option<ScalarType> {
    program.spec(var).map(|s| s.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarType::*;

    #[test]
    fn types_promote_as_in_pytorch() {
        for (a, b, joined) in [
            (Byte, Char, Short),
            (Byte, Long, Long),
            (Bool, Byte, Byte),
            (Long, Half, Half),
            (Half, BFloat16, Float),
            (Half, Double, Double),
            (Float, ComplexHalf, ComplexFloat),
        ] {
            assert_eq!((promote(a, b), promote(b, a)), (joined, joined), "{a} {b}");
        }
    }

    #[test]
    fn scalars_count_only_with_a_higher_category() {
        let mut program = ExportedProgram::default();
        let spec = |d, n: usize| VarType::Tensor(TensorSpec::contiguous(d, vec![2.into(); n]));
        let ints = Argument::Var(program.add_var("i", spec(Int, 2)));
        let half = Argument::Var(program.add_var("h", spec(Half, 1)));
        let zero_dim = Argument::Var(program.add_var("z", spec(Double, 0)));
        let of = |args: &[Argument]| result_type(&program, args).unwrap();
        assert_eq!(of(&[ints.clone(), Argument::Float(1.5)]), Float);
        assert_eq!(of(&[half.clone(), Argument::Float(1.5)]), Half);
        assert_eq!(of(&[half, zero_dim.clone()]), Half);
        assert_eq!(of(&[ints, zero_dim]), Double);
    }
}
