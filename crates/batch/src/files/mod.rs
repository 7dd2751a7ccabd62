//! Executes a program over Parquet and Arrow files, in bounded memory.
//!
//! Each file is read, executed and written in parts. An output appears when it is complete, under the name of its input, and
//! says in its metadata what it was made of, so that a further run makes only those that are not there.

mod arrow;
mod columns;
mod identity;
mod job;
mod lane;
mod mapper;
mod origin;
mod outputs;
mod pictures;
mod reader;
#[cfg(test)]
mod tests;
mod workers;
mod writer;

pub use columns::Inputs;
pub use identity::Identity;
pub use job::Job;
pub use mapper::{Mapping, OnError};
pub use outputs::{MappedFile, SUFFIXES};
