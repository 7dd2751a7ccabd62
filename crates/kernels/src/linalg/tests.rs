use crate::support::call::{a, call, call_many, out, run, t};
use crate::support::dtype::C64;
use pteron_operator::{Arg, Generator, Out};
use pteron_tensor::ScalarType::{ComplexDouble, Double, Float, Int};
use pteron_tensor::{ScalarType, Tensor};

/// A row-major complex matrix; the imaginary parts of a real one are zero.
#[derive(Clone, Debug)]
struct M(usize, usize, Vec<C64>);

impl M {
    fn of(rows: usize, cols: usize, f: impl Fn(usize, usize) -> C64) -> Self {
        Self(rows, cols, (0..rows * cols).map(|i| f(i / cols, i % cols)).collect())
    }

    fn noise(rows: usize, cols: usize, dtype: ScalarType) -> Self {
        let generator = Generator::new((rows * 100 + cols) as u64);
        let im = if dtype.is_complex() { 1.0 } else { 0.0 };
        let values: Vec<C64> =
            (0..rows * cols).map(|_| C64::new(generator.normal(), im * generator.normal())).collect();
        Self(rows, cols, values)
    }

    fn read(x: &Tensor) -> Self {
        let sizes = x.view().sizes().to_vec();
        let (rows, cols) = match sizes.as_slice() {
            [n] => (1, *n),
            [m, n] => (*m, *n),
            other => panic!("{other:?}"),
        };
        let values = match x.view().dtype() {
            Double => x.storage::<f64>().unwrap().iter().map(|&x| C64::new(x, 0.0)).collect(),
            ComplexDouble => x.storage::<C64>().unwrap().to_vec(),
            other => panic!("{other}"),
        };
        Self(rows, cols, values)
    }

    fn tensor(&self, dtype: ScalarType) -> Tensor {
        match dtype {
            Double => t(&[self.0, self.1], &self.2.iter().map(|x| x.re).collect::<Vec<_>>()),
            _ => t(&[self.0, self.1], &self.2),
        }
    }

    fn at(&self, i: usize, j: usize) -> C64 {
        self.2[i * self.1 + j]
    }

    fn adjoint(&self) -> Self {
        Self::of(self.1, self.0, |i, j| self.at(j, i).conj())
    }

    fn times(&self, other: &Self) -> Self {
        assert_eq!(self.1, other.0);
        Self::of(self.0, other.1, |i, j| (0..self.1).map(|k| self.at(i, k) * other.at(k, j)).sum())
    }

    /// This matrix with each column multiplied by the element of `by`, a row.
    fn scaled(&self, by: &Self) -> Self {
        Self::of(self.0, by.1, |i, j| self.at(i, j) * by.at(0, j))
    }

    fn assert_near(&self, other: &Self, what: &str) {
        assert_eq!((self.0, self.1), (other.0, other.1), "{what}");
        for (x, y) in self.2.iter().zip(&other.2) {
            assert!((x - y).norm() < 1e-12 * (self.0 + self.1) as f64, "{what}: {x} and {y}");
        }
    }

    fn assert_orthonormal_columns(&self, what: &str) {
        let one = Self::of(self.1, self.1, |i, j| C64::new(f64::from(i == j), 0.0));
        self.adjoint().times(self).assert_near(&one, what);
    }
}

/// Shapes of matrices: square, tall, wide, of one row or column, empty.
const SHAPES: [(usize, usize); 9] =
    [(1, 1), (2, 2), (5, 5), (7, 3), (3, 7), (4, 1), (1, 4), (20, 20), (3, 0)];

#[test]
fn eigenvectors_of_hermitian_matrices_diagonalize_them() {
    for dtype in [Double, ComplexDouble] {
        for n in [0, 1, 2, 3, 6, 25] {
            let x = M::noise(n, n, dtype);
            let hermitian = x.times(&x.adjoint());
            let input = hermitian.tensor(dtype);
            let outs = [out(Double, &[n]), out(dtype, &[n, n])];
            let [values, vectors] = call_many("aten::linalg_eigh.eigvals", &[a(&input)], outs).unwrap();
            let (values, vectors) = (M::read(&values), M::read(&vectors));
            vectors.assert_orthonormal_columns("eigenvectors");
            vectors.scaled(&values).times(&vectors.adjoint()).assert_near(&hermitian, "V L V^H");
            assert!(values.2.is_sorted_by(|a, b| a.re <= b.re));
            // Only one triangle counts.
            let other = M::of(n, n, |i, j| if i < j { C64::new(9.0, 0.0) } else { hermitian.at(i, j) });
            let other = other.tensor(dtype);
            let lower = call("aten::linalg_eigvalsh.out", &[a(&other)], out(Double, &[n])).unwrap();
            M::read(&lower).assert_near(&values, "eigenvalues of the lower triangle");
        }
    }
}

#[test]
fn singular_vectors_are_orthonormal_and_reproduce_the_matrix() {
    for dtype in [Double, ComplexDouble] {
        for (m, n) in SHAPES {
            let k = m.min(n);
            let full = M::noise(m, n, dtype);
            // A matrix of rank 1, and one of zeros.
            let low = M::noise(m, 1, dtype).times(&M::noise(1, n, dtype));
            let zero = M::of(m, n, |_, _| C64::default());
            for x in [full, low, zero] {
                for square in [false, true] {
                    let (w, h) = if square { (m, n) } else { (k, k) };
                    let outs = [out(dtype, &[m, w]), out(Double, &[k]), out(dtype, &[h, n])];
                    let input = x.tensor(dtype);
                    let args = [a(&input), Arg::Bool(square)];
                    let [u, s, v] = call_many("aten::linalg_svd.U", &args, outs).unwrap();
                    let (u, s, v) = (M::read(&u), M::read(&s), M::read(&v));
                    u.assert_orthonormal_columns("U");
                    v.adjoint().assert_orthonormal_columns("V");
                    let first = M::of(k, n, |i, j| v.at(i, j));
                    u.scaled(&s).times(&first).assert_near(&x, "U S V^H");
                    assert!(s.2.is_sorted_by(|a, b| a.re >= b.re && b.re >= 0.0));
                }
            }
        }
    }
}

#[test]
fn triangular_factors_reproduce_the_matrix() {
    for dtype in [Double, ComplexDouble] {
        for (m, n) in SHAPES {
            let k = m.min(n);
            let x = M::noise(m, n, dtype);
            let input = x.tensor(dtype);
            for (mode, inner) in [("reduced", k), ("complete", m)] {
                let outs = [out(dtype, &[m, inner]), out(dtype, &[inner, n])];
                let [q, r] = call_many("aten::linalg_qr.out", &[a(&input), Arg::Str(mode)], outs).unwrap();
                let (q, r) = (M::read(&q), M::read(&r));
                q.assert_orthonormal_columns("Q");
                q.times(&r).assert_near(&x, "Q R");
            }
            let outs = [out(dtype, &[m, m]), out(dtype, &[m, k]), out(dtype, &[k, n])];
            let [p, l, u] = call_many("aten::linalg_lu.out", &[a(&input)], outs).unwrap();
            M::read(&p).times(&M::read(&l)).times(&M::read(&u)).assert_near(&x, "P L U");
            assert!(M::read(&l).2.iter().all(|x| x.norm() < 1.5), "pivots are the largest of their columns");
        }
    }
}

#[test]
fn systems_are_solved_from_both_sides() {
    for dtype in [Double, ComplexDouble] {
        let (x, b) = (M::noise(4, 4, dtype), M::noise(4, 3, dtype));
        let input = x.tensor(dtype);
        let outs = [out(dtype, &[4, 4]), out(Int, &[4])];
        let [lu, pivots] = call_many("aten::linalg_lu_factor.out", &[a(&input)], outs).unwrap();
        for (left, adjoint) in [(true, false), (true, true), (false, false), (false, true)] {
            let right = if left { b.clone() } else { b.adjoint() };
            let right_tensor = right.tensor(dtype);
            let args = [a(&lu), a(&pivots), a(&right_tensor), Arg::Bool(left), Arg::Bool(adjoint)];
            let actual = call("aten::linalg_lu_solve.out", &args, out(dtype, &[right.0, right.1])).unwrap();
            let actual = M::read(&actual);
            let matrix = if adjoint { x.adjoint() } else { x.clone() };
            let back = if left { matrix.times(&actual) } else { actual.times(&matrix) };
            back.assert_near(&right, "A X");
        }
        let bad = t(&[4], &[1i32, 2, 5, 4]);
        let right = b.tensor(dtype);
        let refused = call("aten::linalg_lu_solve.out", &[a(&lu), a(&bad), a(&right)], out(dtype, &[4, 3]));
        assert!(refused.unwrap_err().to_string().contains("pivots"));
    }
}

#[test]
fn eigenvectors_of_general_matrices_are_scaled_by_them() {
    let rotation = M(2, 2, [0.0, -1.0, 1.0, 0.0].map(|x| C64::new(x, 0.0)).to_vec());
    let defective = M(2, 2, [1.0, 1.0, 0.0, 1.0].map(|x| C64::new(x, 0.0)).to_vec());
    for dtype in [Double, ComplexDouble] {
        let random = [1, 2, 3, 8, 30].map(|n| M::noise(n, n, dtype));
        for x in random.into_iter().chain([rotation.clone(), defective.clone()]) {
            let (n, input) = (x.0, x.tensor(dtype));
            let outs = [out(ComplexDouble, &[n]), out(ComplexDouble, &[n, n])];
            let [values, vectors] = call_many("aten::linalg_eig.out", &[a(&input)], outs).unwrap();
            let (values, vectors) = (M::read(&values), M::read(&vectors));
            x.times(&vectors).assert_near(&vectors.scaled(&values), "A V = V L");
            for j in 0..n {
                let length: f64 = (0..n).map(|i| vectors.at(i, j).norm_sqr()).sum();
                assert!((length - 1.0).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn matrices_with_nan_give_nan() {
    let x = t(&[2, 2], &[1.0, f64::NAN, f64::NAN, 2.0]);
    let s = call("aten::linalg_svdvals.out", &[a(&x)], out(Double, &[2])).unwrap();
    let e = call("aten::linalg_eigvalsh.out", &[a(&x)], out(Double, &[2])).unwrap();
    let g = call("aten::linalg_eigvals.out", &[a(&x)], out(ComplexDouble, &[2])).unwrap();
    assert!(s.storage::<f64>().unwrap().iter().chain(e.storage::<f64>().unwrap()).all(|x| x.is_nan()));
    assert!(g.storage::<C64>().unwrap().iter().all(|x| x.re.is_nan()));
}

#[test]
fn large_and_small_elements_do_not_overflow() {
    for size in [1e300, 1e-300] {
        let x = t(&[2, 2], &[3.0 * size, 0.0, 0.0, 4.0 * size]);
        for (name, want) in
            [("aten::linalg_svdvals.out", [4.0, 3.0]), ("aten::linalg_eigvalsh.out", [3.0, 4.0])]
        {
            let actual = call(name, &[a(&x)], out(Double, &[2])).unwrap();
            for (x, y) in actual.storage::<f64>().unwrap().iter().zip(want) {
                assert!((x / size - y).abs() < 1e-12, "{name}");
            }
        }
    }
}

#[test]
fn tensors_that_are_no_square_matrices_are_refused() {
    let (wide, vector) = (t(&[2, 3], &[0f32; 6]), t(&[3], &[0f32; 3]));
    for x in [&wide, &vector] {
        let mut values = out(Float, &[3]);
        let outs = smallvec::smallvec![Out::Tensor(values.view_mut())];
        assert!(run("aten::linalg_eigvalsh.out", &[a(x)], outs).is_err());
    }
}
