//! The plan of a method as it is loaded: its values, where they are in memory, and its resolved instructions.

mod instr;
pub(crate) mod resolve;
pub(crate) mod state;
pub(crate) mod tables;
mod value;

pub(crate) use instr::{ArgRef, Chain, DelegateCall, Instr, KernelCall, OutRef, RegionCall};
pub(crate) use state::State;
pub(crate) use value::{Id, Storage, TensorValue, Value};
