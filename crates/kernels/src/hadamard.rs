//! Hadamard transforms.

use crate::support::dtype::{compute_type, dispatch};
use crate::support::lanes::map_lanes;
use crate::support::rows::expect_type;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};

pub(crate) const OPERATORS: &[Operator] = &[Operator::new(
    "llama::fast_hadamard_transform.out(Tensor mat, *, Tensor(a!) out) -> Tensor(a!)",
    DtypeSet::FLOATING,
    hadamard_transform,
)];

/// The circulant blocks of Williamson's Hadamard matrix of order 28, given by their first rows: bit
/// `i` is set if element `i` is -1.
const CIRCULANTS: [u8; 4] = [0b111_1110, 0b011_1100, 0b101_1010, 0b110_0110];

/// The sign of an element of Williamson's matrix `[[A, B, C, D], [-B, A, -D, C], [-C, D, A, -B], [-D, -C, B, A]]`.
fn williamson_sign(row: usize, column: usize) -> f64 {
    let (i, j) = (row / 7, column / 7);
    // Block (i, j) is circulant `i ^ j`, possibly negated.
    let negated = matches!((i, j), (1, 0) | (1, 2) | (2, 0) | (2, 3) | (3, 0) | (3, 1));
    let bit = CIRCULANTS[i ^ j] >> ((column % 7 + 7 - row % 7) % 7) & 1;
    if (bit == 1) != negated { -1.0 } else { 1.0 }
}

/// Multiplies each row (the last dimension) by a Hadamard matrix: for 2^n elements the normalized Sylvester matrix; for
/// 28 * 2^n elements its Kronecker product with Williamson's matrix of order 28, which is not normalized.
fn hadamard_transform(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("mat")?;
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(x.sizes())?;
    let n = x.sizes().last().copied().unwrap_or(1);
    if x.numel() == 0 {
        return Ok(());
    }
    let parts = if n.is_multiple_of(28) { 28 } else { 1 };
    ensure!((n / parts).is_power_of_two(), "mat: rows of {n} elements, neither 2^n nor 28 * 2^n");
    let scale = 1.0 / ((n / parts) as f64).sqrt();
    dispatch!("mat", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        map_lanes::<C, C>(ctx, &x, x.rank().saturating_sub(1), out, &|x, out| {
            out.copy_from_slice(x);
            out.chunks_exact_mut(n / parts).for_each(|part| butterflies(part, |a, b| (a + b, a - b)));
            if parts == 28 {
                for first in 0..n / parts {
                    let column: [C; 28] = std::array::from_fn(|i| out[first + i * (n / parts)]);
                    for i in 0..28 {
                        let sum = (0..28).map(|j| williamson_sign(i, j) as C * column[j]).sum();
                        out[first + i * (n / parts)] = sum;
                    }
                }
            }
            out.iter_mut().for_each(|x| *x *= scale as C);
        })
    })
}

/// Butterflies over elements 1, 2, 4, ... apart.
fn butterflies<C: Copy>(all: &mut [C], f: impl Fn(C, C) -> (C, C)) {
    let mut step = 1;
    while step < all.len() {
        for pair in all.chunks_exact_mut(2 * step) {
            let (a, b) = pair.split_at_mut(step);
            a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = f(*a, *b));
        }
        step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::williamson_sign;
    use crate::support::call::{a, call, out, t};
    use pteron_tensor::ScalarType::{Double, Float};

    #[test]
    fn the_matrix_of_order_28_is_orthogonal() {
        for i in 0..28 {
            for j in 0..28 {
                let product: f64 = (0..28).map(|k| williamson_sign(i, k) * williamson_sign(j, k)).sum();
                assert_eq!(product, if i == j { 28.0 } else { 0.0 }, "rows {i} and {j}");
            }
        }
    }

    #[test]
    fn rows_are_transformed() {
        let x = t(&[2, 4], &[1f32, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0, 0.0]);
        let r = call("llama::fast_hadamard_transform.out", &[a(&x)], out(Float, &[2, 4])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[5.0, -1.0, -2.0, 0.0, 0.5, 0.5, 0.5, 0.5]);
        // The squared norm grows by the order of the matrix that is not normalized.
        let data: Vec<f64> = (0..56).map(|i| (i * 7 % 11) as f64).collect();
        let r =
            call("llama::fast_hadamard_transform.out", &[a(&t(&[56], &data))], out(Double, &[56])).unwrap();
        let square = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>();
        assert!((square(r.as_slice().unwrap()) - 28.0 * square(&data)).abs() < 1e-8);
        for n in [3, 12, 84] {
            let x = t(&[n], &vec![0f32; n]);
            assert!(call("llama::fast_hadamard_transform.out", &[a(&x)], out(Float, &[n])).is_err());
        }
    }
}
