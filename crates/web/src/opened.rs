//! An open file: a program, or any other file that a report can show.

use crate::failure::{Failure, Result};
use pteron::bef::mlir;
use pteron::tensor::{AlignedBuffer, ShapeDynamism};
use pteron::{
    BytesLoader, DataLoader, EValue, FreeableBuffer, LoadOptions, MergedDataMap, MethodMeta, Module,
    NamedDataMap, Pool, PtdDataMap, Registries, TensorInfo, ValueMeta,
};
use pteron_clock::Instant;
use pteron_report::{Measured, gather, page};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::delegates::NodeKinds;
use pteron_toolbox::picture::Preparation;
use pteron_toolbox::run::{Request, default_method, is_program};
use pteron_toolbox::task::{self, Preprocessing};
use pteron_toolbox::{bef, inspect, profile};
use serde_json::{Value, json};
use std::sync::Arc;

/// An open file.
pub(crate) struct OpenFile {
    /// The file; for an archive, the compiled program.
    file: Arc<dyn DataLoader>,
    options: LoadOptions,
    /// The program's methods, if the file is a program.
    module: Option<Module>,
}

impl OpenFile {
    /// Opens a program, a bundled program, an archive (which is compiled), a BEF program, MLIR text (which is translated to
    /// one), or any other file that a report can show.
    pub(crate) fn new(
        name: String,
        bytes: AlignedBuffer,
        data: Vec<(String, AlignedBuffer)>,
        registries: &Registries,
        pool: &Pool,
    ) -> Result<Self> {
        let mut options = registries.load_options().pool(pool.clone());
        let mut maps: Vec<Arc<dyn NamedDataMap>> = Vec::new();
        for (name, bytes) in data {
            maps.push(Arc::new(PtdDataMap::load(loader(name, bytes), &options.limits)?));
        }
        options.data = match maps.len() {
            0 | 1 => maps.pop(),
            _ => Some(Arc::new(MergedDataMap::new(maps)?)),
        };
        let file = pteron::compile::program(loader(name, bytes), &options.kernels, &options.limits)?;
        let file = translated(file)?;
        let program = match Bundle::open_if_bundled(&*file, &options.limits)? {
            Some(bundle) => Some(bundle.program()),
            None => is_program(&*file).unwrap_or(false).then(|| Arc::clone(&file)),
        };
        let module = match program {
            Some(program) => Some(Module::load(program, options.clone())?),
            None => {
                // Fails with a description if the file is of no known format.
                inspect::inspect(&file, &options.kernels, &options.backends, &options.limits)?;
                None
            }
        };
        Ok(Self { file, options, module })
    }

    /// The program's methods. Fails if the file is not a program.
    pub(crate) fn module(&mut self) -> Result<&mut Module> {
        let name = self.file.name();
        self.module
            .as_mut()
            .ok_or_else(|| Failure::invalid_input(format!("{name} has no methods: only programs run")))
    }

    /// `name`, or the name of the default method if it is `None`.
    pub(crate) fn method_or_default(&mut self, name: Option<String>) -> Result<String> {
        match name {
            Some(name) => Ok(name),
            None => Ok(default_method(self.module()?.program())?),
        }
    }

    /// The name and size of the file, and its methods with their inputs and outputs, as JSON.
    pub(crate) fn describe(&mut self) -> Result<Value> {
        let (name, bytes) = (self.file.name(), self.file.size());
        let Some(module) = &self.module else {
            let functions = self.functions()?;
            return Ok(json!({ "name": name, "bytes": bytes, "methods": [], "functions": functions }));
        };
        let names = module.method_names();
        let methods = names
            .iter()
            .map(|name| describe_method(&module.method_meta(name)?))
            .collect::<Result<Vec<_>>>()?;
        let main = default_method(module.program()).ok();
        let task = task::of(module.program())?;
        Ok(json!({ "name": name, "bytes": bytes, "main": main, "methods": methods, "task": task }))
    }

    /// The functions of a BEF program that can be run by name, each with the types of its arguments and results; `None` for any
    /// other file.
    fn functions(&self) -> Result<Option<Vec<Value>>> {
        let Some(bef::Program::Bef(program)) = bef::open(&*self.file)? else { return Ok(None) };
        let functions = bef::report(&program, self.file.name())?.functions;
        let named = functions.into_iter().filter(|function| !function.name.is_empty());
        Ok(Some(
            named
                .map(|f| json!({ "name": f.name, "arguments": f.arguments, "results": f.results }))
                .collect(),
        ))
    }

    /// Runs functions of a BEF program, or all without arguments, and returns what they print, as JSON.
    pub(crate) fn run_functions(&self, functions: Vec<String>) -> Result<Value> {
        let Some(bef::Program::Bef(program)) = bef::open(&*self.file)? else {
            return Err(bef::wrong_format(&*self.file, "runFunctions", "BEF programs (.bef, .mlir)").into());
        };
        let start = Instant::now();
        let run = bef::run_captured(program, &bef::RunOptions { functions, ..bef::RunOptions::default() });
        let ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(json!({ "exitCode": run.exit_code, "output": run.output, "errors": run.errors, "ms": ms }))
    }

    /// The preprocessing that the program stores; the default, if it stores none.
    pub(crate) fn preparation(&mut self) -> Result<Preparation> {
        let task = task::of(self.module()?.program())?.unwrap_or_default();
        Ok(task.preprocessing.as_ref().map(Preprocessing::preparation).unwrap_or_default())
    }

    /// The contents of the file, as JSON.
    pub(crate) fn inspect(&self) -> Result<Value> {
        let LoadOptions { kernels, backends, limits, .. } = &self.options;
        Ok(serde_json::to_value(inspect::inspect(&self.file, kernels, backends, limits)?)?)
    }

    /// The HTML report on the file. With `run` (method, inputs, number of runs), it has a profile of these runs.
    pub(crate) fn report(&mut self, run: Option<(String, Vec<EValue>, usize)>) -> Result<String> {
        let times = match run {
            None => None,
            Some((method, values, repeat)) => {
                let options = self.options.clone();
                let program = self.module()?.program();
                let request =
                    Request { method: Some(method), values: Some(values), repeat, ..Request::default() };
                let profile = profile::profile(program, &request, false, options.clone())?;
                let nodes = NodeKinds::read(program, &profile.method, &options.backends)?;
                Some(profile.report(program, &options.kernels, &nodes))
            }
        };
        let measured = Measured { profile: times.as_ref(), ..Measured::default() };
        Ok(page(&gather(&self.file, &self.options, &measured)?)?)
    }
}

/// The BEF program that MLIR text is translated to; any other file as it is.
fn translated(file: Arc<dyn DataLoader>) -> Result<Arc<dyn DataLoader>> {
    let Some(bef::Program::Mlir(text)) = bef::open(&*file)? else { return Ok(file) };
    match bef::to_bef(&text, file.name(), mlir::Options::default()) {
        bef::Translation::Done(bytes) => Ok(Arc::new(BytesLoader::named(file.name(), bytes))),
        bef::Translation::Refused(errors) => {
            Err(Failure::invalid_input(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))
        }
    }
}

/// A loader for a buffer taken from JavaScript. Weights are used in place.
fn loader(name: String, bytes: AlignedBuffer) -> Arc<dyn DataLoader> {
    Arc::new(BytesLoader::named(name, FreeableBuffer::owned(bytes)))
}

fn describe_method(meta: &MethodMeta<'_>) -> Result<Value> {
    let names = meta.value_names()?;
    let values = |values: Vec<ValueMeta>, names: Vec<Option<String>>| -> Vec<Value> {
        values.iter().zip(names).map(|(meta, name)| describe_value(meta, name)).collect()
    };
    Ok(json!({
        "name": meta.name(),
        "inputs": values(meta.inputs(), names.inputs),
        "outputs": values(meta.outputs(), names.outputs),
        "backends": meta.backends().into_iter().map(|backend| backend.id).collect::<Vec<_>>(),
        "instructions": meta.num_instructions(),
    }))
}

fn describe_value(meta: &ValueMeta, name: Option<String>) -> Value {
    let fixed = match &meta.traced {
        Some(EValue::Int(v)) => json!(v.to_string()),
        Some(EValue::Double(v)) => json!(v.to_string()),
        Some(EValue::Bool(v)) => json!(v.to_string()),
        Some(EValue::String(v)) => json!(v),
        _ => Value::Null,
    };
    let tensor = |TensorInfo { meta, .. }: &TensorInfo| {
        json!({
            "dtype": meta.dtype().name(),
            "sizes": meta.sizes().iter().collect::<Vec<_>>(),
            "dynamic": meta.dynamism() != ShapeDynamism::Static,
        })
    };
    json!({ "kind": meta.tag.to_string(), "name": name, "tensor": meta.tensor.as_ref().map(tensor), "fixed": fixed })
}
