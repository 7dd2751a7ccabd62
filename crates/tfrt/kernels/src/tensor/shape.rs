use super::comma_separated;
use crate::kernels::{RegistryExt, object_value, out};
use pteron_host::{Chain, Fault, Frame, KernelRegistry};
use std::fmt;

/// A shape: sizes from the outermost to the innermost dimension, none of them negative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorShape(Vec<i64>);

impl TensorShape {
    /// # Errors
    /// For negative sizes.
    pub(crate) fn new(dims: Vec<i64>) -> Result<Self, Fault> {
        if dims.iter().any(|&d| d < 0) {
            return Err(Fault::invalid(format!("no tensor has the shape [{}]", comma_separated(&dims))));
        }
        Ok(Self(dims))
    }

    pub(crate) fn dims(&self) -> &[i64] {
        &self.0
    }

    pub(crate) fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements, saturating at `u64::MAX`.
    pub(crate) fn element_count(&self) -> u64 {
        if self.0.contains(&0) {
            return 0;
        }
        self.0.iter().fold(1, |n: u64, &d| n.saturating_mul(d as u64))
    }
}

impl fmt::Display for TensorShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", comma_separated(&self.0))
    }
}

/// A shape with unknown parts: a negative size is unknown, and the rank may be unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PartialShape(Option<Vec<i64>>);

impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(dims) => write!(f, "[{}]", comma_separated(dims)),
            None => f.write_str("Unknown rank"),
        }
    }
}

/// A shape whose rank is part of its type in programs.
struct FixedRankShape(TensorShape);

fn to_shape(shape: &PartialShape) -> Result<TensorShape, Fault> {
    let Some(dims) = &shape.0 else { return Err("Unknown rank".into()) };
    let unknown: Vec<usize> = (0..dims.len()).filter(|&i| dims[i] < 0).collect();
    if !unknown.is_empty() {
        let list = comma_separated(unknown);
        return Err(format!("Unknown dimensions at following indices = [{list}]").into());
    }
    TensorShape::new(dims.clone())
}

fn dimension(frame: &mut Frame<'_>) -> Result<i64, Fault> {
    let (shape, index) = (frame.object::<TensorShape>(0)?, frame.get::<i32>(1)?);
    let dim = usize::try_from(index).ok().and_then(|i| shape.dims().get(i).copied());
    dim.ok_or_else(|| Fault::invalid(format!("dimension {index} of a shape of rank {}", shape.rank())))
}

fn register_fixed_rank(registry: &mut KernelRegistry, rank: usize) {
    registry.add_fallible(&format!("ts.as_fixed_rank_shape.{rank}"), move |frame: &mut Frame<'_>| {
        let shape = frame.object::<TensorShape>(0)?;
        if shape.rank() != rank {
            return Err(Fault::invalid(format!("the shape {shape} is not of rank {rank}")));
        }
        Ok(object_value(FixedRankShape(shape.clone())))
    });
    registry.add_fallible(&format!("ts.print_fixed_rank_shape.{rank}"), |frame: &mut Frame<'_>| {
        let FixedRankShape(shape) = frame.object(0)?;
        let text = if shape.element_count() > 0 { shape.to_string() } else { "[]".to_owned() };
        out!(frame, "fixed_rank_shape = {text}\n");
        Ok(Chain)
    });
}

pub(super) fn register(registry: &mut KernelRegistry) {
    for name in ["ts.build_shape", "ts_sync.build_shape"] {
        registry.add_fallible(name, |frame: &mut Frame<'_>| {
            Ok(object_value(TensorShape::new(frame.attribute(0)?)?))
        });
    }
    for name in ["ts.build_partial_shape", "ts_sync.build_partial_shape"] {
        registry.add_fallible(name, |frame: &mut Frame<'_>| {
            Ok(object_value(PartialShape(Some(frame.attribute(0)?))))
        });
    }
    for name in ["ts.to_partial_shape", "ts_sync.to_partial_shape"] {
        registry.add_fallible(name, |frame: &mut Frame<'_>| {
            Ok(object_value(PartialShape(Some(frame.object::<TensorShape>(0)?.dims().to_vec()))))
        });
    }
    registry.add_typed("ts.build_unranked_partial_shape", || object_value(PartialShape(None)));
    registry
        .add_fallible("ts.to_shape", |frame: &mut Frame<'_>| Ok(object_value(to_shape(frame.object(0)?)?)));
    registry.add_fallible("ts.print_shape", |frame: &mut Frame<'_>| {
        out!(frame, "shape = {}\n", frame.object::<TensorShape>(0)?);
        Ok(Chain)
    });
    registry.add_fallible("ts.print_partial_shape", |frame: &mut Frame<'_>| {
        out!(frame, "partial_tensor_shape = {}\n", frame.object::<PartialShape>(0)?);
        Ok(Chain)
    });
    registry.add_fallible("ts.equal_shape", |frame: &mut Frame<'_>| {
        Ok(frame.object::<TensorShape>(0)? == frame.object::<TensorShape>(1)?)
    });
    registry.add_fallible("ts.get_dimension", dimension);
    registry.add_fallible("ts.get_num_elements", |frame: &mut Frame<'_>| {
        let dims = frame.object::<TensorShape>(0)?.dims();
        Ok(dims.iter().fold(1i64, |n, &d| n.wrapping_mul(d)))
    });
    (1..=3).for_each(|rank| register_fixed_rank(registry, rank));
}
