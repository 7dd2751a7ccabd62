//! Stub of the `.safetensors` conversion for builds without the feature `safetensors`: both directions fail.

use super::Contents;
use crate::edit::Output;
use crate::file::Progress;
use crate::{Error, Result};
use pteron_runtime::DataLoader;
use std::sync::Arc;

pub(super) fn write(_: Contents, file: &str, _: &Progress) -> Result<Output> {
    Err(no_feature_error(file))
}

pub(super) fn read(loader: &Arc<dyn DataLoader>, _: &Progress) -> Result<Contents> {
    Err(no_feature_error(loader.name()))
}

fn no_feature_error(file: &str) -> Error {
    Error::bad_file(file, "this build has no .safetensors: it leaves out the feature `safetensors`")
}
