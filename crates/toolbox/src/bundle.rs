//! Bundled programs (`.bpte`): a program with test inputs for its methods and the expected outputs.

use crate::input::type_text;
use crate::inspect::{self, REPORT_VERSION};
use crate::run::{Called, Request};
use crate::{Context, Error, Result};
use format::bpte::{self, BundledMethodTestCase, BundledMethodTestSuite, Value};
use operator::EValue;
use runtime::{BytesLoader, DataLoader, FreeableBuffer, Limits, LoadOptions, Program, Purpose};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use tensor::{DimOrder, ScalarType, Tensor, TensorMeta};

/// An open bundled program.
#[derive(Debug)]
pub struct Bundle {
    /// The version of the bundle's schema.
    pub version: u32,
    /// The test cases of each method.
    pub suites: Vec<BundledMethodTestSuite>,
    name: String,
    program: FreeableBuffer,
}

/// The contents of a bundled program.
#[derive(Debug, Clone, Serialize)]
pub struct BundleReport {
    /// The version of the report's schema.
    pub report: u32,
    /// The file.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The version of the bundle's schema.
    pub version: u32,
    /// The test cases of each method.
    pub suites: Vec<SuiteReport>,
    /// The program inside.
    pub program: inspect::ProgramReport,
}

/// The test cases of a method.
#[derive(Debug, Clone, Serialize)]
pub struct SuiteReport {
    /// The method.
    pub method: String,
    /// The cases.
    pub cases: Vec<CaseReport>,
}

/// A test case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// The inputs: types such as `2x2xf32`, or the values of scalars.
    pub inputs: Vec<String>,
    /// The expected outputs, likewise.
    pub outputs: Vec<String>,
}

/// Whether a file is a bundled program.
pub fn is_one(loader: &dyn DataLoader) -> Result<bool> {
    Ok(crate::kind::of(loader)? == Some(format::FileKind::Bpte))
}

impl Bundle {
    /// Reads and verifies a bundle. The program inside is verified when it is loaded.
    pub fn open(loader: &dyn DataLoader, limits: &Limits) -> Result<Self> {
        let file = loader.load(0, loader.size(), Purpose::Program)?;
        let read = bpte::read(&file, &limits.format).context(|| format!("{} is not valid", loader.name()))?;
        let index = |n: u64| usize::try_from(n).ok();
        let range = index(read.program.start).zip(index(read.program.end));
        let program = range.and_then(|(start, end)| file.slice(start..end)).ok_or_else(|| {
            Error::bad_file(loader.name(), "the program is not within the file, which must have changed")
        })?;
        let name = format!("the program of {}", loader.name());
        Ok(Self { version: read.version, suites: read.method_test_suites, name, program })
    }

    /// A loader for the program inside.
    pub fn program(&self) -> Arc<dyn DataLoader> {
        Arc::new(BytesLoader::named(self.name.clone(), self.program.clone()))
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
    /// (`no_prepare`). If the request has no inputs, zeros and the values fixed by the exporter are used, and described in
    /// the result.
    pub fn add(&mut self, request: &Request, mut options: LoadOptions) -> Result<Option<Vec<String>>> {
        let program = Program::load(self.program(), &options.limits)?;
        let Called { method, inputs, zeros } = request.resolve(&program)?;
        options.no_prepare = true;
        let outputs = program.load_method(&method, options)?.execute(&inputs)?;
        let bundled = |values: &[EValue]| values.iter().map(to_bundled).collect::<Result<Vec<_>>>();
        let case = BundledMethodTestCase { inputs: bundled(&inputs)?, expected_outputs: bundled(&outputs)? };
        match self.suites.iter_mut().find(|s| s.method_name == method) {
            Some(suite) => suite.test_cases.push(case),
            None => self.suites.push(BundledMethodTestSuite { method_name: method, test_cases: vec![case] }),
        }
        Ok(zeros)
    }

    /// A bundle of a program without test cases.
    pub fn new(program: &dyn DataLoader) -> Result<Self> {
        let bytes = program.load(0, program.size(), Purpose::Program)?;
        let name = program.name().to_owned();
        Ok(Self { version: bpte::SCHEMA_VERSION, suites: Vec::new(), name, program: bytes })
    }

    /// Writes the bundle.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        bpte::write(&self.suites, &self.program, out).context(|| "cannot write the bundle".to_owned())
    }
}

/// Converts the values of a test case to the values that a method takes and returns.
pub fn values(bundled: &[Value]) -> Result<Vec<EValue>> {
    bundled.iter().map(value).collect()
}

fn value(bundled: &Value) -> Result<EValue> {
    Ok(match bundled {
        Value::Int(v) => EValue::Int(*v),
        Value::Bool(v) => EValue::Bool(*v),
        Value::Double(v) => EValue::Double(*v),
        Value::Tensor(t) => {
            let dtype = ScalarType::from_i8(t.scalar_type)?;
            let sizes: Vec<usize> =
                t.sizes.iter().map(|&s| usize::try_from(s).unwrap_or(usize::MAX)).collect();
            let meta = TensorMeta::new(dtype, &sizes, DimOrder::new(&t.dim_order)?)?;
            EValue::Tensor(Tensor::from_bytes(meta, &little_endian(dtype, &t.data)?)?)
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
            data: little_endian(t.dtype(), t.bytes())?,
            dim_order: t.dim_order().to_vec(),
        }),
        other => {
            let tag = other.tag();
            return Err(Error::input(format!("a bundled program cannot hold a value of kind {tag}")));
        }
    })
}

/// Converts elements from native to little-endian byte order or back.
fn little_endian(dtype: ScalarType, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = tensor::memory::copied(bytes)?;
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
    }
    Ok(bytes)
}

/// The report on a bundle; `program` is the report on the program inside.
pub(crate) fn report(
    loader: &dyn DataLoader,
    bundle: &Bundle,
    program: inspect::ProgramReport,
) -> BundleReport {
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
    let suites = bundle.suites.iter().map(|s| SuiteReport {
        method: s.method_name.clone(),
        cases: s
            .test_cases
            .iter()
            .map(|c| CaseReport { inputs: texts(&c.inputs), outputs: texts(&c.expected_outputs) })
            .collect(),
    });
    BundleReport {
        report: REPORT_VERSION,
        file: loader.name().to_owned(),
        bytes: loader.size(),
        version: bundle.version,
        suites: suites.collect(),
        program,
    }
}
