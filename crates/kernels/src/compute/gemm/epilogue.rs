use super::super::mat::MatRef;
use super::super::math::{Function, Unary, clamp_to_bounds, unary_scalar};

/// A function applied to each element of a result before it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `x`
    #[default]
    Identity,
    /// `max(x, 0)`; NaN stays.
    Relu,
    /// `min(max(x, low), high)`; NaN stays; `high` wins if `low > high`.
    Clamp {
        /// Least result.
        low: f32,
        /// Greatest result.
        high: f32,
    },
    /// A function of one element, applied while the result is in the L1 cache.
    Unary(Unary),
    /// A function of one element within bounds: `min(max(f(x), low), high)`; NaN stays; `high` wins if `low > high`.
    Bounded {
        /// The function.
        function: Unary,
        /// Least result.
        low: f32,
        /// Greatest result.
        high: f32,
    },
}

impl Activation {
    /// This activation followed by `next`, if this one is the identity, or is an unbounded function and `next` only
    /// clamps; `None` otherwise.
    pub fn then(self, next: Self) -> Option<Self> {
        match (self, next) {
            (Activation::Identity, next) => Some(next),
            (Activation::Unary(function), next) => {
                let (low, high) = next.bounds()?;
                Some(Activation::Bounded { function, low, high })
            }
            _ => None,
        }
    }

    /// The bounds of this activation, if it only clamps.
    pub(crate) fn bounds(self) -> Option<(f32, f32)> {
        match self {
            Activation::Identity | Activation::Unary(_) | Activation::Bounded { .. } => None,
            Activation::Relu => Some((0.0, f32::INFINITY)),
            Activation::Clamp { low, high } => Some((low, high)),
        }
    }

    /// [`Self::bounds`] with an infinity in place of a bound that is NaN, which limits nothing.
    pub(crate) fn number_bounds(self) -> Option<(f32, f32)> {
        let or = |bound: f32, infinity| if bound.is_nan() { infinity } else { bound };
        self.bounds().map(|(low, high)| (or(low, f32::NEG_INFINITY), or(high, f32::INFINITY)))
    }

    /// The function that the activation applies to each element; `None` if it only clamps.
    pub(crate) fn function(self) -> Option<Function> {
        match self {
            Activation::Identity | Activation::Relu | Activation::Clamp { .. } => None,
            Activation::Unary(op) => Some(Function { op, bounds: None }),
            Activation::Bounded { function: op, low, high } => {
                Some(Function { op, bounds: Some((low, high)) })
            }
        }
    }

    /// Whether the activation does no more than clamp.
    pub fn is_simple(self) -> bool {
        self.function().is_none()
    }
}

/// A vector added to a product.
#[derive(Clone, Copy, Debug, Default)]
pub enum Bias<'a> {
    /// No bias.
    #[default]
    None,
    /// One value for each column, added to every row.
    PerCol(&'a [f32]),
    /// One value for each row, added to every column.
    PerRow(&'a [f32]),
}

impl<'a> Bias<'a> {
    /// A bias with one value for each column; no bias if `bias` is `None`.
    pub fn per_col(bias: Option<&'a [f32]>) -> Self {
        bias.map_or(Bias::None, Bias::PerCol)
    }
}

/// What is applied to a product `p = a b` before it is stored:
/// `activation(alpha * p + bias + beta * residual)`.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// The factor by which the product is multiplied.
    pub alpha: f32,
    /// The bias that is added to the product.
    pub bias: Bias<'a>,
    /// The residual: a matrix of the result's shape, and the factor it is multiplied by before it is added.
    pub residual: Option<(f32, MatRef<'a>)>,
    /// The function that is applied to each result.
    pub activation: Activation,
    /// Whether the sum of the product starts from the previous value of the result rather than from zero.
    pub accumulate: bool,
}

impl Epilogue<'_> {
    /// An epilogue that leaves the product unchanged.
    pub const NONE: Epilogue<'static> = Epilogue {
        alpha: 1.0,
        bias: Bias::None,
        residual: None,
        activation: Activation::Identity,
        accumulate: false,
    };
}

impl<'a> Epilogue<'a> {
    /// This epilogue with a bias.
    pub fn with_bias(self, bias: Bias<'a>) -> Self {
        Self { bias, ..self }
    }

    /// This epilogue with an activation.
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// This epilogue with `beta * residual` added.
    pub fn with_residual(self, beta: f32, residual: MatRef<'a>) -> Self {
        Self { residual: Some((beta, residual)), ..self }
    }

    /// The epilogue of the transposed result.
    pub(crate) fn t(self) -> Self {
        let bias = match self.bias {
            Bias::None => Bias::None,
            Bias::PerCol(b) => Bias::PerRow(b),
            Bias::PerRow(b) => Bias::PerCol(b),
        };
        Self { bias, residual: self.residual.map(|(beta, r)| (beta, r.t())), ..self }
    }

    /// Panics unless every operand has the shape that an `m x n` result needs.
    pub(crate) fn check(&self, m: usize, n: usize) {
        match self.bias {
            Bias::None => {}
            Bias::PerCol(b) => assert_eq!(b.len(), n, "bias per column of {n} columns"),
            Bias::PerRow(b) => assert_eq!(b.len(), m, "bias per row of {m} rows"),
        }
        if let Some((_, r)) = self.residual {
            assert_eq!((r.rows(), r.cols()), (m, n), "residual of an {m}x{n} result");
        }
    }

    /// The result at `(i, j)` if the product there is `p`.
    #[inline]
    pub(crate) fn scalar(&self, p: f32, i: usize, j: usize) -> f32 {
        let bias = match self.bias {
            Bias::None => 0.0,
            Bias::PerCol(b) => b[j],
            Bias::PerRow(b) => b[i],
        };
        let mut x = self.alpha * p + bias;
        if let Some((beta, r)) = self.residual {
            x += beta * r.at(i, j);
        }
        self.activation.scalar(x)
    }
}

impl Activation {
    /// The result of the activation for one element.
    #[inline]
    pub(crate) fn scalar(self, x: f32) -> f32 {
        match self.function() {
            Some(Function { op, bounds }) => clamp_to_bounds(unary_scalar(op, x), bounds),
            None => clamp_to_bounds(x, self.bounds()),
        }
    }
}
