//! Tensors for all other crates: scalar types, shapes, dim orders, views over bytes,
//! owned aligned buffers, and arenas that lend disjoint views.
//!
//! This crate knows no file format and no operator. Bytes are little-endian in files and native-endian in
//! memory; on a big-endian host, data is converted before a view of it is created.

mod arena;
mod buffer;
mod dim_order;
mod element;
mod error;
mod mapped;
pub mod memory;
mod meta;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(all(target_os = "linux", not(miri)))]
mod pages;
mod scalar;
mod scalar_type;
mod scalar_type_number;
mod shape;
mod view;

pub use arena::{Arenas, Extent, Loan};
pub use buffer::{ALIGNMENT, AlignedBuffer};
pub use dim_order::DimOrder;
pub use element::{Bool, Element, cast, cast_mut};
pub use error::{Error, Result};
pub use half::{bf16, f16};
pub use mapped::{MappedFile, Unchanged};
pub use meta::{ShapeDynamism, TensorMeta};
pub use num_complex::Complex;
pub use scalar::Scalar;
pub use scalar_type::ScalarType;
pub use shape::{MAX_RANK, Shape};
pub use view::{Tensor, TensorView, TensorViewMut};
