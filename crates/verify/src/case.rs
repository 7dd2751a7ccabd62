//! Conformance cases: `case.json` has one program with its runs, `cases.json` many small cases.

use crate::{Scope, Tolerance};
use pteron_operator::EValue;
use pteron_runtime::{FileLoader, Limits, Program};
use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};
use pteron_toolbox::bundle::{self, Bundle};
use pteron_toolbox::{Context, Error, Result, file_kind, wrong_format};
use serde::Deserialize;
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The names of files that contain cases.
const NAMES: [&str; 2] = ["case.json", "cases.json"];

/// The accepted files, for the error about a file of another format.
const EXPECTED: &str = "recorded cases (case.json, cases.json, .bpte, or folders of them); `pteron validate` checks a file, and `pteron compare` \
                        two programs";

/// A program, or a file of named data, with its expected results.
#[derive(Debug, Clone)]
pub struct Case {
    /// The name in reports: the folder; for a case of a `cases.json`, also the program file.
    pub name: String,
    /// The program; `None` for a case of named data alone.
    pub program: Option<PathBuf>,
    /// The `.ptd` files given to the runtime.
    pub data: Vec<PathBuf>,
    /// The expected entries by key, for a case of named data without a program.
    pub entries: BTreeMap<String, Entry>,
    /// The runs, executed in order on one loaded instance.
    pub runs: Vec<Run>,
    /// Whether only shapes and types are compared, because the values are random.
    pub random: bool,
    /// Whether any outcome but a crash passes: the case says `"expect": "no_crash"`, or the reference could
    /// not load the program or crashed on it.
    pub no_crash: bool,
    /// The tolerance of the comparison.
    pub tolerance: Tolerance,
    /// Whether the methods share their memory: see [`pteron_runtime::Module::share_memory_arenas`].
    pub share_memory_arenas: bool,
    /// The folder with the files that hold tensors.
    folder: PathBuf,
}

/// One execution of a method.
#[derive(Debug, Clone)]
pub struct Run {
    pub method: String,
    pub inputs: Vec<Recorded>,
    /// Alternative sets of expected outputs, any of which passes; the reference's first. If empty, none are recorded, and
    /// the case fails unless the run is set aside.
    pub outputs: Vec<Vec<Recorded>>,
    /// The largest absolute difference between the reference and PyTorch; 0 if unknown or not finite.
    pub rounding: f64,
    /// Why a failure of the run is not counted; `None` if it is counted.
    pub set_aside: Option<SetAside>,
}

/// Why a run whose outcome differs from the record does not count as a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetAside {
    /// The outputs of the reference runtime differ from PyTorch's.
    Departs,
    /// The reference runtime refused the program or failed, with this error message.
    Refused(String),
    /// The run is a test case of a bundled program that has no expected outputs.
    NotRecorded,
    /// The declared layout of the file's constants does not match their bytes, and no release of the reference
    /// runs the file; the recorded outputs are those that PyTorch computed before the export.
    LayoutMismatch,
}

/// An entry of named data.
#[derive(Debug, Clone)]
pub enum Entry {
    Tensor(Recorded),
    /// A blob with these bytes, in UTF-8.
    Bytes(String),
    /// An entry that the record lists without its contents. The check is only that the entry exists.
    Described,
}

/// A value as recorded in a case.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Recorded {
    /// A tensor, whose bytes are in a file in row-major order.
    Tensor {
        /// PyTorch's name of the scalar type.
        dtype: String,
        /// The sizes.
        shape: Vec<usize>,
        /// The dim order to which the tensor is converted after it was read.
        dim_order: Vec<u8>,
        file: String,
        /// The byte offset of the tensor in the file.
        offset: u64,
        /// The tensor's size in bytes.
        nbytes: u64,
    },
    /// An integer.
    Int {
        value: i64,
    },
    /// A boolean.
    Bool {
        value: bool,
    },
    /// A floating-point number.
    Double {
        value: Number,
    },
    String {
        value: String,
    },
    /// No value.
    None,
    /// A value that a bundled program contains.
    #[serde(skip)]
    Given(Box<EValue>),
}

/// A floating-point number; NaN and infinities are strings.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// A finite number.
    Finite(f64),
    /// `inf`, `-inf`, `nan`.
    Text(String),
}

#[derive(Deserialize)]
struct CaseFile {
    model: Option<String>,
    #[serde(default)]
    data_files: Vec<DataFile>,
    #[serde(default)]
    entries: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    runs: Vec<RunFile>,
    tolerance: Option<ExpectedCalls>,
    program: Option<Facts>,
    channels_last_constant_bytes: Option<String>,
    #[serde(default)]
    nondeterministic: bool,
    #[serde(default)]
    share_memory_arenas: bool,
    expect: Option<Expect>,
    load_error: Option<serde_json::Value>,
    runtime_crash_signal: Option<serde_json::Value>,
}

/// An expectation that replaces recorded outputs.
#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Expect {
    /// Loading and executing must end, with a result or an error.
    NoCrash,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum DataFile {
    Name(String),
    Described { file: String },
}

#[derive(Deserialize)]
struct CasesFile {
    op: String,
    #[serde(default)]
    nondeterministic: bool,
    cases: Vec<SmallCase>,
}

#[derive(Deserialize)]
struct SmallCase {
    pte: String,
    #[serde(default)]
    nondeterministic: bool,
    expect: Option<Expect>,
    tolerance: Option<ExpectedCalls>,
    #[serde(default)]
    runs: Vec<RunFile>,
}

#[derive(Deserialize)]
struct RunFile {
    method: Option<String>,
    #[serde(default)]
    inputs: Vec<Recorded>,
    outputs: Option<Vec<Recorded>>,
    eager_outputs: Option<Vec<Recorded>>,
    #[serde(rename = "outputs_1.5.1")]
    newest_outputs: Option<Vec<Recorded>>,
    eager_max_abs_diff: Option<f64>,
    expected_from: Option<String>,
    runtime_error: Option<String>,
    #[serde(default)]
    reference_departs: bool,
}

#[derive(Deserialize, Clone, Copy)]
struct ExpectedCalls {
    #[serde(default)]
    atol: f64,
    #[serde(default)]
    rtol: f64,
}

#[derive(Deserialize, Default)]
struct Facts {
    #[serde(default)]
    methods: BTreeMap<String, MethodFacts>,
}

#[derive(Deserialize)]
struct MethodFacts {
    #[serde(default)]
    ops: BTreeMap<String, u64>,
    #[serde(default)]
    delegates: BTreeMap<String, u64>,
}

impl fmt::Display for SetAside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Departs => f.write_str("the reference departs from PyTorch there"),
            Self::Refused(error) => write!(f, "the reference failed there: {error}"),
            Self::NotRecorded => f.write_str("the bundled program has no expected outputs for it"),
            Self::LayoutMismatch => f.write_str("its constants lie in another order than the file says"),
        }
    }
}

/// Reads the cases of a folder, recursively and in the order of their paths, of a `case.json` or `cases.json` file, or
/// of a bundled program.
pub fn find(path: &Path) -> Result<Vec<Case>> {
    if path.is_file() {
        let loader = FileLoader::open(path)?;
        if let Some(bundle) = Bundle::open_if_bundled(&loader, &Limits::default())? {
            return bundled_cases(path, &bundle);
        }
        if let Some(kind) = file_kind(&loader)? {
            return Err(wrong_format(&loader, Some(kind), "verify", EXPECTED));
        }
    }
    if !path.is_dir() || NAMES.iter().any(|n| path.join(n).is_file()) {
        return read(path);
    }
    let mut folders = vec![path.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(Error::read(&folder))? {
            let entry = entry.map_err(Error::read(&folder))?;
            let kind = entry.file_type().map_err(Error::read(&folder))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if NAMES.iter().any(|n| entry.file_name() == *n) {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    if files.is_empty() {
        return read(path);
    }
    Ok(files.iter().map(|f| read(f)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

impl Case {
    /// One case for each archive (`.pt2`) of the same model in the program's folder, with the archive instead of the program.
    /// The archives contain the weights, so that the cases have no data files.
    pub fn archive_cases(&self) -> Vec<Case> {
        let Some(program) = &self.program else { return Vec::new() };
        let stem = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let archive = |suffix: &str| program.with_file_name(format!("{stem}{suffix}.pt2"));
        let there = ["", "_core"].into_iter().map(archive).filter(|path| path.is_file());
        let case = |path: PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = format!("{}/{file}", self.name);
            Case { name, program: Some(path), data: Vec::new(), ..self.clone() }
        };
        there.map(case).collect()
    }
}

/// The cases of the archives (`.pt2`) beside the programs of `cases`.
///
/// # Errors
/// There is none.
pub fn archive_cases(cases: &[Case]) -> Result<Vec<Case>> {
    let archives: Vec<Case> = cases.iter().flat_map(Case::archive_cases).collect();
    match archives.is_empty() {
        true => Err(Error::input("there is no archive (.pt2) beside the programs of the cases")),
        false => Ok(archives),
    }
}

/// Reads the cases of a folder, or of a `case.json` or `cases.json` file.
pub fn read(path: &Path) -> Result<Vec<Case>> {
    let file = if path.is_dir() {
        let case_file = NAMES.map(|n| path.join(n)).into_iter().find(|p| p.is_file());
        case_file.ok_or_else(|| {
            Error::bad_file(path, "the folder has neither a case.json nor a cases.json, so it is no case")
        })?
    } else {
        path.to_owned()
    };
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    let name = match folder.as_os_str().is_empty() {
        true => ".".to_owned(),
        false => folder.display().to_string(),
    };
    let text = strict_json(&std::fs::read_to_string(&file).map_err(Error::read(&file))?);
    let what = || format!("{} is no case", file.display());
    if file.file_name().is_some_and(|n| n == "cases.json") {
        let cases: CasesFile = serde_json::from_str(&text).context(what)?;
        Ok(cases.into_cases(&name, &folder))
    } else {
        let case: CaseFile = serde_json::from_str(&text).context(what)?;
        Ok(vec![case.into_case(name, folder)?])
    }
}

/// The test cases of a bundled program; each is a case of its own, with its own instance.
fn bundled_cases(path: &Path, bundle: &Bundle) -> Result<Vec<Case>> {
    let program = Program::load(bundle.program(), &Limits::default())?;
    let recorded = |values: &[pteron_format::bpte::Value]| -> Result<Vec<Recorded>> {
        Ok(bundle::values(values)?.into_iter().map(|v| Recorded::Given(Box::new(v))).collect())
    };
    let mut cases = Vec::new();
    for suite in &bundle.suites {
        let method = suite.method_name.clone();
        let meta = program.method_meta(&method).context(|| format!("{} has test cases", path.display()))?;
        let quantized = meta.operators().iter().any(|op| op.name.starts_with("quantized_decomposed::"));
        let scope = if meta.num_instructions() > 1 { Scope::Network } else { Scope::Operator };
        for (i, case) in suite.test_cases.iter().enumerate() {
            let outputs = recorded(&case.expected_outputs)?;
            let run = Run {
                method: method.clone(),
                inputs: recorded(&case.inputs)?,
                set_aside: outputs.is_empty().then_some(SetAside::NotRecorded),
                outputs: if outputs.is_empty() { Vec::new() } else { vec![outputs] },
                rounding: 0.0,
            };
            cases.push(Case {
                name: format!("{}: {method}, case {i}", path.display()),
                program: Some(path.to_owned()),
                data: Vec::new(),
                entries: BTreeMap::new(),
                runs: vec![run],
                random: false,
                no_crash: false,
                tolerance: Tolerance { scope, quantized, ..Tolerance::default() },
                share_memory_arenas: false,
                folder: PathBuf::new(),
            });
        }
    }
    if cases.is_empty() {
        return Err(Error::bad_file(path, "the bundled program has no test cases"));
    }
    Ok(cases)
}

/// Replaces `NaN` and `Infinity`, which Python writes but JSON does not allow, by null. They occur only in informational
/// fields.
fn strict_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_string = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if !in_string
            && let Some(word) = ["NaN", "Infinity", "-Infinity"].iter().find(|w| rest.starts_with(**w))
        {
            out.push_str("null");
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = in_string && c == '\\';
        let take =
            c.len_utf8() + if escaped { rest[1..].chars().next().map_or(0, char::len_utf8) } else { 0 };
        in_string ^= c == '"';
        out.push_str(&rest[..take]);
        rest = &rest[take..];
    }
    out
}

impl CaseFile {
    fn into_case(self, name: String, folder: PathBuf) -> Result<Case> {
        let facts = self.program.unwrap_or_default();
        let counts = |f: &MethodFacts| f.ops.values().chain(f.delegates.values()).sum::<u64>();
        let network = facts.methods.values().any(|m| counts(m) > 1);
        let names = || facts.methods.values().flat_map(|m| m.ops.keys());
        let tolerance = Tolerance {
            scope: if network { Scope::Network } else { Scope::Operator },
            quantized: names().any(|n| n.starts_with("quantized_decomposed::")),
            explicit: self.tolerance.map(|t| (t.atol, t.rtol)),
            ..Tolerance::default()
        };
        let no_crash =
            self.expect.is_some() || self.load_error.is_some() || self.runtime_crash_signal.is_some();
        let layout_mismatch = self.channels_last_constant_bytes.as_deref() == Some("NCHW");
        let entry = |(key, value): (String, serde_json::Value)| match Entry::read(value) {
            Ok(entry) => Ok((key, entry)),
            Err(e) => Err(Error::bad_file(&folder, format!("the entry `{key}`: {e}"))),
        };
        let entries = self.entries.into_iter().map(entry).collect::<Result<_>>()?;
        let data = self.data_files.into_iter().map(|d| match d {
            DataFile::Name(file) | DataFile::Described { file } => folder.join(file),
        });
        Ok(Case {
            name,
            program: self.model.map(|m| folder.join(m)),
            data: data.collect(),
            entries,
            runs: self.runs.into_iter().map(|r| r.into_run(layout_mismatch)).collect(),
            random: self.nondeterministic,
            no_crash,
            tolerance,
            share_memory_arenas: self.share_memory_arenas,
            folder,
        })
    }
}

impl CasesFile {
    fn into_cases(self, name: &str, folder: &Path) -> Vec<Case> {
        let tolerance =
            Tolerance { quantized: self.op.starts_with("quantized_decomposed::"), ..Tolerance::default() };
        let of_case = |c: SmallCase| Case {
            name: format!("{name}/{}", c.pte),
            program: Some(folder.join(&c.pte)),
            data: Vec::new(),
            entries: BTreeMap::new(),
            runs: c.runs.into_iter().map(|r| r.into_run(false)).collect(),
            random: self.nondeterministic || c.nondeterministic,
            no_crash: c.expect.is_some(),
            tolerance: Tolerance { explicit: c.tolerance.map(|t| (t.atol, t.rtol)), ..tolerance },
            share_memory_arenas: false,
            folder: folder.to_owned(),
        };
        self.cases.into_iter().map(of_case).collect()
    }
}

impl RunFile {
    /// `layout_mismatch` marks a program of an old release whose channels-last constants are stored as NCHW
    /// bytes: the expected outputs are those of the newest reference or, if there are none, of the program's own release.
    fn into_run(self, layout_mismatch: bool) -> Run {
        let from_eager = self.expected_from.as_deref() == Some("eager");
        let set_aside = match self.runtime_error {
            Some(error) => Some(SetAside::Refused(error)),
            None if layout_mismatch && from_eager && self.newest_outputs.is_none() => {
                Some(SetAside::LayoutMismatch)
            }
            None => self.reference_departs.then_some(SetAside::Departs),
        };
        let outputs = match (layout_mismatch, self.newest_outputs) {
            (true, Some(outputs)) => vec![outputs],
            (true, None) => self.outputs.into_iter().collect(),
            (false, other) => [self.outputs, other, self.eager_outputs].into_iter().flatten().collect(),
        };
        Run {
            method: self.method.unwrap_or_else(|| "forward".to_owned()),
            inputs: self.inputs,
            outputs,
            rounding: self.eager_max_abs_diff.filter(|d| d.is_finite()).unwrap_or(0.0),
            set_aside,
        }
    }
}

impl Entry {
    /// Fails if the value names a file with the contents of the entry, but is no recorded tensor.
    fn read(value: serde_json::Value) -> Result<Self, serde_json::Error> {
        if value["kind"] == "bytes" {
            return Ok(Self::Bytes(value["text"].as_str().unwrap_or_default().to_owned()));
        }
        let has_contents = !value["file"].is_null();
        match serde_json::from_value(value) {
            Ok(recorded) => Ok(Self::Tensor(recorded)),
            Err(e) if has_contents => Err(e),
            Err(_) => Ok(Self::Described),
        }
    }
}

/// Reads the values of a case.
pub struct Values<'a> {
    case: &'a Case,
    files: HashMap<String, File>,
}

impl<'a> Values<'a> {
    /// A reader of the values of a case.
    pub fn new(case: &'a Case) -> Self {
        Self { case, files: HashMap::new() }
    }

    /// Converts a recorded value. A tensor, whose elements are stored in row-major order, gets the recorded dim order.
    pub fn value(&mut self, recorded: &Recorded) -> Result<EValue> {
        Ok(match recorded {
            Recorded::Int { value } => EValue::Int(*value),
            Recorded::Bool { value } => EValue::Bool(*value),
            Recorded::String { value } => EValue::String(value.clone()),
            Recorded::None => EValue::None,
            Recorded::Given(value) => value.try_clone()?,
            Recorded::Double { value: Number::Finite(v) } => EValue::Double(*v),
            Recorded::Double { value: Number::Text(v) } => {
                let wrong = || Error::bad_file(&self.case.folder, format!("`{v}` is no number"));
                EValue::Double(v.parse().map_err(|_| wrong())?)
            }
            Recorded::Tensor { dtype, shape, dim_order, file, offset, nbytes } => {
                let path = self.case.folder.join(file);
                let wrong = || Error::bad_file(&path, format!("`{dtype}` is no scalar type"));
                let dtype = ScalarType::parse(dtype).ok_or_else(wrong)?;
                let mut bytes = self.bytes(file, *offset, *nbytes).map_err(Error::read(&path))?;
                if cfg!(target_endian = "big") {
                    bytes.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
                }
                let tensor = Tensor::from_bytes(TensorMeta::contiguous(dtype, shape)?, &bytes)?;
                EValue::Tensor(tensor.to_dim_order(DimOrder::new(dim_order)?)?)
            }
        })
    }

    /// Reads a byte range of a file of the case.
    fn bytes(&mut self, name: &str, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let file = match self.files.entry(name.to_owned()) {
            Slot::Occupied(file) => file.into_mut(),
            Slot::Vacant(slot) => slot.insert(File::open(self.case.folder.join(name))?),
        };
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.by_ref().take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != len {
            let missing = format!("it has no bytes {offset}..{}", offset.saturating_add(len));
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, missing));
        }
        Ok(bytes)
    }

    /// Converts several recorded values.
    pub fn values(&mut self, recorded: &[Recorded]) -> Result<Vec<EValue>> {
        recorded.iter().map(|r| self.value(r)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_outputs_and_set_aside_reasons_are_read_from_the_record() {
        let run = |json: &str, layout_mismatch| {
            serde_json::from_str::<RunFile>(json).unwrap().into_run(layout_mismatch)
        };
        let values = r#"[{"kind": "int", "value": 1}]"#;
        let plain = run(&format!(r#"{{"outputs": {values}, "eager_outputs": {values}}}"#), false);
        assert_eq!((plain.method.as_str(), plain.outputs.len(), plain.set_aside), ("forward", 2, None));
        let departs = run(&format!(r#"{{"outputs": {values}, "reference_departs": true}}"#), false);
        assert_eq!(departs.set_aside, Some(SetAside::Departs));
        let refused = run(r#"{"runtime_error": "0x12"}"#, false);
        assert_eq!((refused.outputs.len(), refused.set_aside), (0, Some(SetAside::Refused("0x12".into()))));
        let eager = format!(r#"{{"outputs": {values}, "expected_from": "eager"}}"#);
        assert_eq!(run(&eager, false).set_aside, None);
        assert_eq!(run(&eager, true).set_aside, Some(SetAside::LayoutMismatch));
        let newest = format!(r#"{{"outputs": {values}, "outputs_1.5.1": [], "expected_from": "eager"}}"#);
        let newest = run(&newest, true);
        assert_eq!((newest.outputs[0].len(), newest.set_aside), (0, None));
    }

    #[test]
    fn an_entry_with_contents_must_be_readable() {
        let entry = |json: &str| Entry::read(serde_json::from_str(json).unwrap());
        let tensor =
            r#"{"kind": "tensor", "dtype": "float32", "shape": [1], "dim_order": [0], "file": "io.bin","#;
        assert!(matches!(entry(&format!(r#"{tensor} "offset": 0, "nbytes": 4}}"#)), Ok(Entry::Tensor(_))));
        assert!(entry(&format!(r#"{tensor} "nbytes": 4}}"#)).unwrap_err().to_string().contains("offset"));
        assert!(matches!(entry(r#"{"kind": "tensor", "shape": [1]}"#), Ok(Entry::Described)));
    }

    #[test]
    fn nan_and_infinity_become_null_outside_strings() {
        assert_eq!(strict_json(r#"{"NaN\"": [NaN, -Infinity, 1]}"#), r#"{"NaN\"": [null, null, 1]}"#);
        assert_eq!(strict_json(r#"["\\", Infinity, "é"]"#), r#"["\\", null, "é"]"#);
    }
}
