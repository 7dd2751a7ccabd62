//! Bundled programs (`.bpte`): a program with test inputs for its methods and the expected outputs.

use crate::edit::Output;
use crate::file::Progress;
use crate::input::type_text;
use crate::inspect::{ProgramReport, REPORT_VERSION};
use crate::run::{DefaultInputs, Request, ResolvedCall};
use crate::{Context, Error, Result};
use pteron_format::bpte::{self, BundledMethodTestCase, BundledMethodTestSuite, Value};
use pteron_operator::EValue;
use pteron_runtime::{BytesLoader, DataLoader, FreeableBuffer, Limits, LoadOptions, Program, Purpose};
use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

/// An open bundled program.
#[derive(Debug)]
pub struct Bundle {
    /// The version of the bundle's schema.
    pub version: u32,
    /// The test cases of each method.
    pub suites: Vec<BundledMethodTestSuite>,
    name: String,
    /// The byte offset of the program in the file; 0 for a new bundle, not yet written.
    start: u64,
    program: FreeableBuffer,
}

/// The contents of a bundled program.
#[derive(Debug, Clone, Serialize)]
pub struct BundleReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The bundle's size in bytes.
    pub bytes: u64,
    /// The version of the bundle's schema.
    pub version: u32,
    /// The test cases of each method.
    pub suites: Vec<SuiteReport>,
    /// The bundled program.
    pub program: ProgramReport,
}

/// The report of `pteron bundle`: the test cases, and the size of the file.
#[derive(Debug, Clone, Serialize)]
pub struct Bundled {
    /// The test cases of each method.
    pub suites: Vec<SuiteReport>,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// The test cases of a method.
#[derive(Debug, Clone, Serialize)]
pub struct SuiteReport {
    pub method: String,
    pub cases: Vec<CaseReport>,
}

/// A test case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// The inputs: types such as `2x2xf32`, or the values of scalars.
    pub inputs: Vec<String>,
    /// The expected outputs, in the notation of `inputs`.
    pub outputs: Vec<String>,
}

/// Whether a file is a bundled program.
pub fn is_bundled(loader: &dyn DataLoader) -> Result<bool> {
    Ok(crate::kind::file_kind(loader)? == Some(pteron_format::FileKind::Bpte))
}

impl Bundle {
    /// The bundle in a file; `None` if the file is of another kind.
    ///
    /// # Errors
    /// If the file cannot be read, or is a bundle that is not valid.
    pub fn open_if_bundled(loader: &dyn DataLoader, limits: &Limits) -> Result<Option<Self>> {
        is_bundled(loader)?.then(|| Self::open(loader, limits)).transpose()
    }

    /// Reads and verifies a bundle, except for the program in it, which is verified when it is loaded.
    pub fn open(loader: &dyn DataLoader, limits: &Limits) -> Result<Self> {
        let file = loader.load(0, loader.size(), Purpose::Program)?;
        let read = bpte::read(&file, &limits.format).context(|| format!("{} is not valid", loader.name()))?;
        let index = |n: u64| usize::try_from(n).ok();
        let range = index(read.program.start).zip(index(read.program.end));
        let program = range.and_then(|(start, end)| file.slice(start..end)).ok_or_else(|| {
            Error::bad_file(loader.name(), "the program is not within the file, which must have changed")
        })?;
        let name = format!("the program of {}", loader.name());
        let start = read.program.start;
        Ok(Self { version: read.version, suites: read.method_test_suites, name, start, program })
    }

    /// A loader of the program in the bundle.
    pub fn program(&self) -> Arc<dyn DataLoader> {
        Arc::new(BytesLoader::named(self.name.clone(), self.program.clone()))
    }

    /// The byte offset of the program in the file.
    pub(crate) fn program_start(&self) -> u64 {
        self.start
    }

    /// The bundle with another program, and the test cases of the methods that this one has.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_program(self, program: &dyn DataLoader, has_method: impl Fn(&str) -> bool) -> Result<Self> {
        let Self { mut suites, name, .. } = self;
        suites.retain(|suite| has_method(&suite.method_name));
        Ok(Self { suites, name, ..Self::new(program)? })
    }

    /// The inputs of a test case of a method.
    pub fn inputs(&self, method: &str, case: usize) -> Result<Vec<EValue>> {
        let cases = self.suites.iter().find(|s| s.method_name == method).map_or(&[][..], |s| &s.test_cases);
        let case = cases.get(case).ok_or_else(|| {
            let has = crate::show::count(cases.len(), "test case");
            Error::input(format!("{} has {has} of method `{method}`, counted from 0", self.name))
        })?;
        values(&case.inputs)
    }

    /// Adds a test case: the requested inputs, and the outputs that the method computes from them without preparation
    /// (`no_prepare`). If the request has no inputs, returns those that were used.
    pub fn add(&mut self, request: &Request, mut options: LoadOptions) -> Result<Option<DefaultInputs>> {
        let program = Program::load(self.program(), &options.limits)?;
        let ResolvedCall { method, inputs, default_inputs } = request.resolve(&program)?;
        options.no_prepare = true;
        let outputs = program.load_method(&method, options)?.execute(&inputs)?;
        let bundled = |values: &[EValue]| values.iter().map(to_bundled).collect::<Result<Vec<_>>>();
        let case = BundledMethodTestCase { inputs: bundled(&inputs)?, expected_outputs: bundled(&outputs)? };
        match self.suites.iter_mut().find(|s| s.method_name == method) {
            Some(suite) => suite.test_cases.push(case),
            None => self.suites.push(BundledMethodTestSuite { method_name: method, test_cases: vec![case] }),
        }
        Ok(default_inputs)
    }

    /// A bundle of a program without test cases.
    pub fn new(program: &dyn DataLoader) -> Result<Self> {
        let bytes = program.load(0, program.size(), Purpose::Program)?;
        let name = program.name().to_owned();
        Ok(Self { version: bpte::SCHEMA_VERSION, suites: Vec::new(), name, start: 0, program: bytes })
    }

    /// The report on the bundle; `bytes` is the size of its file.
    pub fn bundled_report(&self, bytes: u64) -> Bundled {
        Bundled { suites: self.suites.iter().map(suite_report).collect(), bytes }
    }

    /// Writes the bundle.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        bpte::write(&self.suites, &self.program, out).context(|| "cannot write the bundle".to_owned())
    }
}

/// The program in a bundled program; any other file as it is.
///
/// # Errors
/// If the file cannot be read, or is not valid.
pub fn unbundle(file: Arc<dyn DataLoader>, limits: &Limits) -> Result<Arc<dyn DataLoader>> {
    Ok(Bundle::open_if_bundled(&*file, limits)?.map_or(file, |bundle| bundle.program()))
}

/// What an edit made of the program in the bundled program `file`, with the test cases of `file`; `None` if `file` is not
/// bundled. All of a bundled program is in memory.
///
/// # Errors
/// If a file cannot be read, or is not valid.
pub fn rebundle(
    file: &Arc<dyn DataLoader>,
    edited: &Output,
    limits: &Limits,
    progress: &Progress,
) -> Result<Option<Output>> {
    let Some(bundle) = Bundle::open_if_bundled(&**file, limits)? else { return Ok(None) };
    let program = edited.to_vec()?;
    if program == *bundle.program {
        return Ok(Some(Output::copy_of(file, progress)));
    }
    let mut bytes = Vec::new();
    bpte::write(&bundle.suites, &program, &mut bytes).context(|| "cannot write the bundle".to_owned())?;
    let len = bytes.len() as u64;
    Ok(Some(Output::stream(len, progress, move |out| Ok(out.write_all(&bytes)?))))
}

/// Converts the values of a test case to the values that a method takes and returns.
pub fn values(bundled: &[Value]) -> Result<Vec<EValue>> {
    bundled.iter().map(to_value).collect()
}

fn to_value(bundled: &Value) -> Result<EValue> {
    Ok(match bundled {
        Value::Int(v) => EValue::Int(*v),
        Value::Bool(v) => EValue::Bool(*v),
        Value::Double(v) => EValue::Double(*v),
        Value::Tensor(t) => {
            let dtype = ScalarType::from_i8(t.scalar_type)?;
            let sizes: Vec<usize> =
                t.sizes.iter().map(|&s| usize::try_from(s).unwrap_or(usize::MAX)).collect();
            let meta = TensorMeta::new(dtype, &sizes, DimOrder::new(&t.dim_order)?)?;
            EValue::Tensor(Tensor::from_bytes(meta, &swap_on_big_endian(dtype, &t.data)?)?)
        }
    })
}

fn to_bundled(value: &EValue) -> Result<Value> {
    Ok(match value {
        EValue::Int(v) => Value::Int(*v),
        EValue::Bool(v) => Value::Bool(*v),
        EValue::Double(v) => Value::Double(*v),
        EValue::Tensor(t) => Value::Tensor(bpte::Tensor {
            scalar_type: t.dtype() as i8,
            sizes: t.sizes().iter().map(|&s| i32::try_from(s).unwrap_or(i32::MAX)).collect(),
            data: swap_on_big_endian(t.dtype(), t.bytes())?,
            dim_order: t.dim_order().to_vec(),
        }),
        other => {
            let tag = other.tag();
            return Err(Error::input(format!("a bundled program cannot hold a value of kind {tag}")));
        }
    })
}

/// Converts elements from native to little-endian byte order or back.
fn swap_on_big_endian(dtype: ScalarType, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = pteron_tensor::memory::copied(bytes)?;
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
    }
    Ok(bytes)
}

/// The report on a bundle; `program` is the report on its program.
pub(crate) fn report(loader: &dyn DataLoader, bundle: &Bundle, program: ProgramReport) -> BundleReport {
    BundleReport {
        report: REPORT_VERSION,
        file: loader.name().to_owned(),
        bytes: loader.size(),
        version: bundle.version,
        suites: bundle.suites.iter().map(suite_report).collect(),
        program,
    }
}

fn suite_report(suite: &BundledMethodTestSuite) -> SuiteReport {
    let cases = suite.test_cases.iter().map(case_report).collect();
    SuiteReport { method: suite.method_name.clone(), cases }
}

/// The report on a test case.
pub(crate) fn case_report(case: &BundledMethodTestCase) -> CaseReport {
    let text = |value: &Value| match value {
        Value::Tensor(t) => {
            let sizes: Vec<usize> = t.sizes.iter().map(|&s| usize::try_from(s).unwrap_or(0)).collect();
            t.dtype().map_or_else(String::new, |dtype| type_text(dtype, &sizes))
        }
        Value::Int(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::Double(v) => format!("{v:?}"),
    };
    let texts = |values: &[Value]| values.iter().map(text).collect();
    CaseReport { inputs: texts(&case.inputs), outputs: texts(&case.expected_outputs) }
}
