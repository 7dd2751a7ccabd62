//! Multi-head attention that reads its operands through strided views.

use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use crate::strided::View;
use pteron_operator::{Result, Unary};
use pteron_tensor::{ScalarType, TensorMeta};
use std::fmt;

/// `softmax(q k + mask) v` of several heads. Each operand is a view of an input: `q`, `k`, `v` and optionally the mask.
/// The output is `[items, queries, heads, values]`. A pass recognizes it, or it is built from [`AttentionParts`].
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// With `n = items * heads`: queries `[n, queries, width]`, keys `[n, width, keys]`, values `[n, keys, values]`.
    pub(crate) views: [View; 3],
    /// The mask that is added to the scores, `[items * heads, queries, keys]`.
    pub(crate) mask: Option<View>,
    /// The factor by which the product of queries and keys is multiplied, before the mask is added.
    pub(crate) factor: f32,
    /// Whether a query whose scores are all negative infinity yields zeros instead of NaN.
    pub(crate) safe: bool,
    /// The rounding of every intermediate result, if the program computes in half precision.
    pub(crate) rounding: Option<Unary>,
    pub(crate) items: usize,
    pub(crate) heads: usize,
}

/// The serializable parameters of an [`Attention`].
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionParts {
    /// The views of queries, keys, values, and optionally the mask.
    pub views: Vec<ViewParts>,
    /// The factor by which the product of queries and keys is multiplied, before the mask is added.
    pub factor: f32,
    /// Whether a query whose scores are all negative infinity yields zeros instead of NaN.
    pub safe: bool,
    /// The rounding of every intermediate result; `None` if the program computes in f32.
    pub rounding: Option<Unary>,
    /// The number of items in the batch.
    pub items: usize,
    /// The number of heads of an item.
    pub heads: usize,
}

/// A strided view of an input.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewParts {
    /// The offset of the first element.
    pub offset: usize,
    /// The factor by which every element is multiplied.
    pub factor: f32,
    /// The size and stride of each run of elements, for each of the three dimensions, slowest-varying first.
    pub dims: Vec<Vec<(usize, usize)>>,
}

/// The sizes of a head's output: queries by values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadSizes {
    pub(crate) queries: usize,
    pub(crate) values: usize,
}

impl Attention {
    /// The serializable parameters of the attention.
    pub fn parts(&self) -> AttentionParts {
        let parts = |view: &View| ViewParts { offset: view.offset, factor: view.factor, dims: view.dims() };
        AttentionParts {
            views: self.views.iter().chain(&self.mask).map(parts).collect(),
            factor: self.factor,
            safe: self.safe,
            rounding: self.rounding,
            items: self.items,
            heads: self.heads,
        }
    }

    /// The attention with these parameters, whose sizes, strides and offsets must be below 2^31. `None` unless there
    /// are three or four views of three dimensions each.
    pub fn from_parts(parts: &AttentionParts) -> Option<Self> {
        let view = |parts: &ViewParts| View::from_stored(parts.offset, parts.factor, &parts.dims);
        let mut views = parts.views.iter().map(view);
        let (q, k, v, mask) = (views.next()?, views.next()?, views.next()?, views.next());
        let is_whole = views.next().is_none() && parts.views.iter().all(|view| view.dims.len() == 3);
        is_whole.then_some(Self {
            views: [q, k, v],
            mask,
            factor: parts.factor,
            safe: parts.safe,
            rounding: parts.rounding,
            items: parts.items,
            heads: parts.heads,
        })
    }

    /// The sizes of a head's output, if the views match each other and rows and columns have single strides.
    pub(crate) fn head_sizes(&self) -> Option<HeadSizes> {
        let heads = self.items.checked_mul(self.heads)?;
        let matrix = |view: &View| {
            let size = |dim| view.single_part(dim).map(|(size, _)| size);
            Some((size(1)?, size(2)?)).filter(|_| view.sizes()[0] == heads)
        };
        let [q, k, v] = &self.views;
        let ((queries, width), (rows, keys), (terms, values)) = (matrix(q)?, matrix(k)?, matrix(v)?);
        let mask_fits = match &self.mask {
            Some(mask) => matrix(mask)? == (queries, keys) && mask.factor == 1.0,
            None => true,
        };
        (width == rows && keys == terms && mask_fits).then_some(HeadSizes { queries, values })
    }

    /// Whether a node with these operands can run: the views are in bounds of f32 inputs and match each other and the
    /// output.
    pub fn fits(&self, inputs: &[&TensorMeta], output: &TensorMeta) -> bool {
        let views: Vec<&View> = self.views.iter().chain(&self.mask).collect();
        // Bounds the number of heads by that of elements before anything is allocated for each head.
        let heads = self.items.checked_mul(self.heads).filter(|heads| *heads <= output.numel());
        let within = |(view, meta): (&&View, &&TensorMeta)| {
            let is_plain = meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous();
            is_plain && view.is_in_bounds(meta.numel()) && heads == Some(view.sizes()[0])
        };
        let elements = |head: HeadSizes| {
            let sizes = [self.items, self.heads, head.queries, head.values];
            sizes.iter().try_fold(1usize, |n, &m| n.checked_mul(m))
        };
        views.len() == inputs.len()
            && output.dtype() == ScalarType::Float
            && output.numel() > 0
            && views.iter().zip(inputs).all(within)
            && self.head_sizes().and_then(elements) == Some(output.numel())
    }
}

impl Operation for Attention {
    fn name(&self) -> &str {
        "attention"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "items: {}, heads: {}, factor: {}", self.items, self.heads, self.factor)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let inputs = operands.inputs();
        operands.check_counts(inputs.len(), 1)?;
        match self.fits(&inputs, operands.output(0)?) {
            true => Ok(()),
            false => refuse("the views of attention do not match their operands, each other or the result"),
        }
    }
}
