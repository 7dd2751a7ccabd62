//! The scalar function.

use crate::column::{Argument, array, arrow_type};
use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::DataType;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};
use pteron::tools::batch::{Column, Failure, Joining, Plan, Runner};
use pteron::{Module, SharedMethod};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The rows that have no result, by their indices in the batches that the engine passed.
#[derive(Clone, Debug, Default)]
pub struct Failures(Arc<Mutex<Vec<Failure>>>);

impl Failures {
    /// The failures since the last call.
    pub fn take(&self) -> Vec<Failure> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, failures: Vec<Failure>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(failures);
    }
}

/// A method of a program as a function of columns.
pub struct Pteron {
    name: String,
    method: SharedMethod,
    runner: Runner,
    signature: Signature,
    failures: Failures,
}

impl Pteron {
    /// The method `forward` of a program, otherwise its first one, under the name `pteron`. Partitions execute it concurrently
    /// and share its weights.
    ///
    /// # Errors
    /// If the program cannot be opened, has mutable state, or has inputs or outputs without a column type.
    pub fn open(program: impl AsRef<Path>) -> Result<Self> {
        let failed = |e: &dyn std::error::Error| DataFusionError::Execution(e.to_string());
        let module = pteron::open(program).map_err(|e| failed(&e))?;
        let runner = Self::runner(&module).map_err(|e| failed(&e))?;
        let method = Self::method_name(&module);
        let loaded = module.program().load_method(&method, pteron::load_options()).map_err(|e| failed(&e))?;
        arrow_type(&runner.plan.outputs[0])?;
        Ok(Self {
            name: "pteron".to_owned(),
            method: SharedMethod::new(loaded).map_err(|e| failed(&e))?,
            signature: Signature::any(runner.plan.inputs.len(), Volatility::Immutable),
            runner,
            failures: Failures::default(),
        })
    }

    fn method_name(module: &Module) -> String {
        let names = module.method_names();
        let forward = names.iter().find(|name| **name == "forward").or(names.first());
        forward.map_or_else(String::new, |name| (*name).to_owned())
    }

    fn runner(module: &Module) -> pteron::tools::Result<Runner> {
        let meta = module.method_meta(&Self::method_name(module))?;
        Ok(Runner::new(Plan::new(&meta, Joining::Automatic, None)?, true))
    }

    /// A handle to the failures of this function.
    pub fn failures(&self) -> Failures {
        self.failures.clone()
    }
}

impl std::fmt::Debug for Pteron {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pteron")
            .field("name", &self.name)
            .field("plan", &self.runner.plan)
            .finish_non_exhaustive()
    }
}

/// Functions are compared by identity.
impl PartialEq for Pteron {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Pteron {}

impl Hash for Pteron {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Pteron {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        arrow_type(&self.runner.plan.outputs[0])
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays: Vec<ArrayRef> = ColumnarValue::values_to_arrays(&args.args)?;
        let inputs = arrays.into_iter().zip(&self.runner.plan.inputs);
        let columns: Vec<Argument> =
            inputs.map(|(array, spec)| Argument::new(spec.label("input"), array)).collect::<Result<_>>()?;
        let columns: Vec<&dyn Column> = columns.iter().map(|column| column as &dyn Column).collect();
        let failed = |e: &dyn std::error::Error| DataFusionError::Execution(e.to_string());
        let mut method = self.method.session().map_err(|e| failed(&e))?;
        let outcome = self.runner.run(&mut method, &columns).map_err(|e| failed(&e))?;
        self.failures.add(outcome.failures);
        let Some(first) = outcome.outputs.into_iter().next() else {
            return Err(DataFusionError::Execution("the program gives nothing".to_owned()));
        };
        Ok(ColumnarValue::Array(array(first)?))
    }
}
