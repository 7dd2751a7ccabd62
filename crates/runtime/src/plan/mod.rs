//! The plan of a method as it is loaded: its values, where they are in memory, and its resolved instructions.

mod instr;
pub(crate) mod resolve;
pub(crate) mod tables;
mod value;

pub(crate) use crate::execute::call::State;
pub(crate) use instr::{ArgStep, Chain, DelegateEntry, DelegateStep, KernelStep, OutStep, RegionStep, Step};
pub(crate) use value::{Id, Storage, TensorValue, Value};
