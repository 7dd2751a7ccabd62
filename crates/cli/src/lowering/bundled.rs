//! Bundles a compiled program with a test case for each method.

use crate::general::GeneralOpts;
use crate::registries;
use pteron::compile::{self, Compiled};
use pteron::{DataLoader, Program};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::random;
use pteron_toolbox::run::Request;
use std::sync::Arc;

/// Bundles the program compiled from `file`. The inputs of the test cases are the example inputs of the archive, or random;
/// the expected outputs are those that the program computes here, as written.
pub(super) fn bundle_compiled(
    general: &GeneralOpts,
    file: &Arc<dyn DataLoader>,
    compiled: &Compiled,
) -> pteron_toolbox::Result<Bundle> {
    let loader = compile::in_memory(Arc::clone(file), compiled);
    let program = Program::load(loader, general.limits())?;
    let mut bundle = Bundle::new(&**program.loader())?;
    for method in &compiled.methods {
        let inputs = match compile::example_inputs(file, &program, &method.name, general.limits())? {
            Some(inputs) => inputs,
            None => random::random_inputs(&program, &method.name, 0)?,
        };
        let mut options = registries::load_options();
        options.limits = general.limits().clone();
        options.interrupt = general.bounds().interrupt();
        options.data = Some(compile::named_data(&**file, compiled)?);
        let request =
            Request { method: Some(method.name.clone()), values: Some(inputs), ..Request::default() };
        bundle.add(&request, options)?;
    }
    Ok(bundle)
}

/// Replaces the program of `bundle` by the one compiled from it, keeping its test cases. `file` is the old program.
pub(super) fn rebundle(
    bundle: Bundle,
    file: &Arc<dyn DataLoader>,
    compiled: &Compiled,
) -> pteron_toolbox::Result<Bundle> {
    let program = compile::in_memory(Arc::clone(file), compiled);
    bundle.with_program(&*program, |name| compiled.methods.iter().any(|method| method.name == name))
}
