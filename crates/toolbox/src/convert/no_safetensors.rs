//! Stub of the `.safetensors` conversion for builds without the feature `safetensors`: both directions fail.

use super::Contents;
use crate::edit::Output;
use crate::file::Progress;
use crate::{Error, Result};
use pteron_runtime::DataLoader;
use std::sync::Arc;

pub(super) fn write(_: Contents, file: &str, _: &Progress) -> Result<Output> {
    Err(left_out(file))
}

pub(super) fn read(loader: &Arc<dyn DataLoader>, _: &Progress) -> Result<Contents> {
    Err(left_out(loader.name()))
}

fn left_out(file: &str) -> Error {
    Error::bad_file(file, "this build has no .safetensors: it leaves out the feature `safetensors`")
}
