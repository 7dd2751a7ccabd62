//! Runs a case and determines whether it passes.

use super::case::{Case, Entry, Recorded, Run, SetAside, Values};
use crate::{Tolerance, compare};
use pteron_format::Digest;
use pteron_operator::EValue;
use pteron_runtime::{DataLoader, LoadOptions, Module, NamedDataMap, Program, PtdDataMap};
use pteron_tensor::Tensor;
use pteron_toolbox::bundle;
use pteron_toolbox::run::{LoadMode, open_data};
use pteron_toolbox::{Error, Result, one_line};
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A file and its named data.
pub type WithData = (Arc<dyn DataLoader>, Option<Arc<dyn NamedDataMap>>);

/// Converts a file and its named data to a program and the named data that the program needs.
pub type Convert = Arc<dyn Fn(WithData) -> Result<WithData> + Send + Sync>;

/// Options for running cases.
#[derive(Clone, Default)]
pub struct Options {
    /// Options for loading methods: kernels, backends, threads, limits, and whether to prepare.
    pub load: LoadOptions,
    /// Skips cases whose program has delegates.
    pub undelegated: bool,
    /// The absolute tolerance for all cases, instead of their own. If only `rtol` is given, it is 0.
    pub atol: Option<f64>,
    /// The relative tolerance for all cases, instead of their own. If only `atol` is given, it is 0.
    pub rtol: Option<f64>,
    /// Converts each file before it is loaded: an archive to a program, or a program to another one.
    pub convert: Option<Convert>,
    /// Receives the outputs of each run that succeeds, and the number of the run in its case.
    pub observe: Option<Observe>,
}

/// A callback that receives a case, the number of a run in the case, and the outputs of that run.
pub type Observe = Arc<dyn Fn(&Case, usize, &[EValue]) + Send + Sync>;

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum Outcome {
    /// Every run produced the recorded outputs, or failed cleanly where the record has no outputs.
    Passed,
    /// A run failed, or produced outputs other than the recorded ones. The text says how.
    Failed(String),
    /// No run failed, but for some run the record does not say what is right. The text says why.
    SetAside(String),
    /// The case was skipped.
    Skipped,
}

/// Runs a case on one instance of its program. A panic is a failure.
pub fn check(case: &Case, options: &Options) -> Outcome {
    let checked = catch_unwind(AssertUnwindSafe(|| match &case.program {
        Some(_) => check_program(case, options),
        None if case.data.is_empty() || case.entries.is_empty() => Outcome::Failed(
            "the case names no `model`, and no `data_files` with `entries`: there is nothing to check"
                .to_owned(),
        ),
        None => check_entries(case).unwrap_or_else(|e| Outcome::Failed(one_line(&e))),
    }));
    checked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Outcome::Failed(format!("panicked: {text}"))
    })
}

/// The reason that is reported for the failure of a case that compares nothing.
const NO_RUNS: &str =
    "the case has no `runs`; if it only checks that nothing crashes, let it say `\"expect\": \"no_crash\"`";

fn check_program(case: &Case, options: &Options) -> Outcome {
    let mut module = match open_module(case, options) {
        Ok(module) => module,
        // An I/O error says nothing about the program: it always fails the case.
        Err(e @ Error::Runtime(pteron_runtime::Error::Io { .. })) => {
            return Outcome::Failed(one_line(&e));
        }
        Err(e) => return outcome_of_unopened(case, &one_line(&e)),
    };
    if options.undelegated && module.program().methods().any(|m| !m.backends().is_empty()) {
        return Outcome::Skipped;
    }
    if case.runs.is_empty() {
        return match case.no_crash {
            true => try_all_methods(&mut module),
            false => Outcome::Failed(NO_RUNS.to_owned()),
        };
    }
    let tolerance = with_overrides(case.tolerance, options);
    let mut values = Values::new(case);
    let mut aside = None;
    for (i, run) in case.runs.iter().enumerate() {
        let place = |problem: String| format!("run {i} ({}): {problem}", run.method);
        let tolerance = Tolerance { rounding: run.rounding, ..tolerance };
        let observe = |outputs: &[EValue]| options.observe.iter().for_each(|to| to(case, i, outputs));
        match check_run(&mut module, case, run, &tolerance, &mut values, &observe) {
            Ok(Verdict::Right) => {}
            Ok(Verdict::Unjudged(why)) => {
                aside.get_or_insert(place(why));
            }
            Err(_) if case.no_crash => {}
            Err(problem) => match &run.set_aside {
                Some(reason) => {
                    aside.get_or_insert(place(format!("{problem}; set aside because {reason}")));
                }
                None => return Outcome::Failed(place(problem)),
            },
        }
    }
    aside.map_or(Outcome::Passed, Outcome::SetAside)
}

enum Verdict {
    /// The run behaved as recorded.
    Right,
    /// The record does not say what the outcome should be. The text says why.
    Unjudged(String),
}

fn check_run(
    module: &mut Module,
    case: &Case,
    run: &Run,
    tolerance: &Tolerance,
    values: &mut Values<'_>,
    observe: &dyn Fn(&[EValue]),
) -> Result<Verdict, String> {
    let inputs = values.values(&run.inputs).map_err(|e| one_line(&e))?;
    let outputs = match module.execute(&run.method, &inputs) {
        Ok(outputs) => outputs,
        // The reference could not run the program either.
        Err(pteron_runtime::Error::Missing(missing))
            if matches!(run.set_aside, Some(SetAside::Refused(_))) =>
        {
            let _ = missing;
            return Ok(Verdict::Right);
        }
        Err(e) => return Err(one_line(&e)),
    };
    observe(&outputs);
    let mut first_difference = None;
    for expected in &run.outputs {
        match check_outputs(&outputs, expected, case.random, tolerance, values)? {
            None => return Ok(Verdict::Right),
            Some(Difference::Random) => first_difference = Some(Difference::Random),
            Some(difference) => {
                first_difference.get_or_insert(difference);
            }
        }
    }
    match first_difference {
        None if case.no_crash => Ok(Verdict::Right),
        None => match &run.set_aside {
            Some(reason) => Ok(Verdict::Unjudged(format!("it ran; set aside because {reason}"))),
            None => Err("the record has no `outputs`".to_owned()),
        },
        Some(Difference::Random) => Ok(Verdict::Unjudged("random values".to_owned())),
        Some(Difference::Found(text)) => Err(text),
    }
}

enum Difference {
    /// Types and sizes are as recorded, and elements differ only because they are random.
    Random,
    Found(String),
}

/// The first difference, if there is one.
///
/// # Errors
/// If the record cannot be read.
fn check_outputs(
    outputs: &[EValue],
    expected: &[Recorded],
    random: bool,
    tolerance: &Tolerance,
    values: &mut Values<'_>,
) -> Result<Option<Difference>, String> {
    if outputs.len() != expected.len() {
        let text = format!("{} outputs, expected {}", outputs.len(), expected.len());
        return Ok(Some(Difference::Found(text)));
    }
    let mut seen = None;
    for (i, (output, expected)) in outputs.iter().zip(expected).enumerate() {
        let expected = values.value(expected).map_err(|e| one_line(&e))?;
        if let Err(difference) = compare(output, &expected, tolerance) {
            let alike = |a: &Tensor, b: &Tensor| a.dtype() == b.dtype() && a.sizes() == b.sizes();
            match (output, &expected) {
                (EValue::Tensor(a), EValue::Tensor(b)) if random && alike(a, b) => {
                    seen = Some(Difference::Random);
                }
                _ => return Ok(Some(Difference::Found(format!("output {i}: {difference}")))),
            }
        }
    }
    Ok(seen)
}

/// The SHA-256 of a value, in hexadecimal. That of a tensor covers its type, sizes, dim order, and elements as they lie in
/// memory.
pub fn digest(value: &EValue) -> String {
    let mut digest = Digest::default();
    match value {
        EValue::Tensor(tensor) => {
            let head = format!("{:?} {:?} {:?}\n", tensor.dtype(), tensor.sizes(), tensor.dim_order());
            digest.update(head.as_bytes());
            digest.update(tensor.bytes());
        }
        other => digest.update(format!("{other:?}").as_bytes()),
    }
    digest.into_hex()
}

/// The outcome for a program that could not be opened.
fn outcome_of_unopened(case: &Case, problem: &str) -> Outcome {
    let refused = |r: &Run| matches!(r.set_aside, Some(SetAside::Refused(_)));
    match !case.runs.is_empty() && case.runs.iter().all(refused) {
        _ if case.no_crash => Outcome::Passed,
        true => Outcome::SetAside(format!("{problem}; the reference refused it too")),
        false => Outcome::Failed(problem.to_owned()),
    }
}

/// Executes every method on zeros. Any outcome but a panic passes.
fn try_all_methods(module: &mut Module) -> Outcome {
    let names: Vec<String> = module.program().method_names().map(str::to_owned).collect();
    for name in names {
        let Ok(meta) = module.method_meta(&name) else { continue };
        let inputs = meta.inputs().into_iter().map(|v| match (v.tensor, v.traced) {
            (Some(t), _) => Tensor::zeros(t.meta).map_or(EValue::None, EValue::Tensor),
            (None, fixed) => fixed.unwrap_or_default(),
        });
        let inputs: Vec<EValue> = inputs.collect();
        let _ = module.execute(&name, &inputs);
    }
    Outcome::Passed
}

fn open_module(case: &Case, options: &Options) -> Result<Module> {
    let path = case.program.as_deref().unwrap_or(std::path::Path::new(""));
    let mut load = options.load.clone();
    load.data = open_data(&case.data, LoadMode::File, &load.limits)?;
    let loader = pteron_toolbox::run::open(path, LoadMode::File)?;
    let program = bundle::unbundle(loader, &load.limits)?;
    let (program, data) = match &options.convert {
        Some(convert) => convert((program, load.data))?,
        None => (program, load.data),
    };
    load.data = data;
    let mut module = Module::new(Program::load(program, &load.limits)?, load);
    if case.share_memory_arenas {
        module.share_memory_arenas()?;
    }
    Ok(module)
}

fn with_overrides(tolerance: Tolerance, options: &Options) -> Tolerance {
    match (options.atol, options.rtol) {
        (None, None) => tolerance,
        (atol, rtol) => Tolerance { explicit: Some((atol.unwrap_or(0.0), rtol.unwrap_or(0.0))), ..tolerance },
    }
}

/// Compares the entries of named data with the record.
fn check_entries(case: &Case) -> Result<Outcome> {
    let mut values = Values::new(case);
    for file in &case.data {
        let map = PtdDataMap::open(file)?;
        for (key, entry) in &case.entries {
            let problem = match entry {
                Entry::Described => (!map.contains(key)).then(|| "the file has no such entry".to_owned()),
                Entry::Bytes(text) => (&*map.data(key)? != text.as_bytes()).then(|| "other bytes".to_owned()),
                Entry::Tensor(recorded) => match map.tensor_layout(key)? {
                    None => Some("a blob, expected a tensor".to_owned()),
                    Some(meta) => {
                        let actual = EValue::Tensor(Tensor::from_bytes(meta, &map.data(key)?)?);
                        let expected = values.value(recorded)?;
                        compare(
                            &actual,
                            &expected,
                            &Tolerance { explicit: Some((0.0, 0.0)), ..Tolerance::default() },
                        )
                        .err()
                        .map(|d| d.to_string())
                    }
                },
            };
            if let Some(problem) = problem {
                return Ok(Outcome::Failed(format!("entry `{key}`: {problem}")));
            }
        }
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::{DimOrder, ScalarType, TensorMeta};

    #[test]
    fn digests_tell_type_layout_and_bytes() {
        let tensor = |dtype, order: &[u8], byte| {
            let meta = TensorMeta::new(dtype, &[2, 2], DimOrder::new(order).unwrap()).unwrap();
            EValue::Tensor(Tensor::from_bytes(meta, &[byte; 16]).unwrap())
        };
        let values = [
            tensor(ScalarType::Float, &[0, 1], 0),
            tensor(ScalarType::Float, &[1, 0], 0),
            tensor(ScalarType::Int, &[0, 1], 0),
            tensor(ScalarType::Float, &[0, 1], 1),
            EValue::Int(0),
            EValue::Double(0.0),
        ];
        let digests: Vec<String> = values.iter().map(digest).collect();
        let distinct: std::collections::HashSet<&String> = digests.iter().collect();
        assert_eq!(distinct.len(), values.len());
        assert_eq!(digests, values.iter().map(digest).collect::<Vec<_>>());
    }
}
