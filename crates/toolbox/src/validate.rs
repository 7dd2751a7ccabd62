//! Validates files: reports all structural errors, and whether this build can run the file.

use crate::bundle::Bundle;
use crate::ops::requirements;
use crate::{Error, Result, etdump, kind};
use pteron_format::pte::{TASK_KEY, input_sizes_key, value_names_key};
use pteron_format::{FileKind, ptd, pte};
use pteron_operator::KernelRegistry;
use pteron_runtime::{BackendRegistry, DataLoader, Limits, MethodMeta, Program, Purpose};
use serde::Serialize;
use std::sync::Arc;

/// The result of validating a file.
#[derive(Debug, Clone, Serialize)]
pub struct Validation {
    pub file: String,
    pub format: &'static str,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Whether there are no problems.
    pub valid: bool,
    /// The problems, at most [`pteron_format::Limits::errors`].
    pub problems: Vec<Problem>,
    /// Whether this build can run the file; `None` for invalid files, and for files that are not programs.
    pub can_run: Option<bool>,
    /// A sentence for each item that this build lacks to run the file.
    pub missing: Vec<String>,
}

/// A structural error of a file.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// The field, such as `execution_plan[0].values[17].sizes`; empty for the file as a whole.
    pub path: String,
    /// The byte offset of the field in the file, if it has one.
    pub offset: Option<u64>,
    /// The kind of error.
    pub kind: String,
    /// The value that the format requires.
    pub expected: String,
    /// The value in the file.
    pub found: String,
    /// The problem as a sentence.
    pub message: String,
}

impl From<&pteron_format::Error> for Problem {
    fn from(e: &pteron_format::Error) -> Self {
        Self {
            path: e.path().to_owned(),
            offset: e.offset(),
            kind: format!("{:?}", e.kind()),
            expected: e.expected().to_owned(),
            found: e.found().to_owned(),
            message: e.to_string(),
        }
    }
}

impl Problem {
    /// Converts a problem of a file embedded in another one, in `field` at byte `start`, to a problem of the outer file.
    fn in_field(mut self, field: &str, start: u64) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.path = format!("{field}{dot}{}", self.path);
        self.offset = self.offset.map(|offset| offset + start);
        self.message = format!("{field}, from byte {start:#x}: {}", self.message);
        self
    }
}

/// Validates a file and, if it is a valid program, checks whether this build can run it. Of programs and named data only the
/// header, the tables and the payloads of delegates are read for validation.
///
/// # Errors
/// If the file cannot be read or is of a format that cannot be validated. Structural errors are in
/// [`Validation::problems`].
pub fn validate(
    loader: &Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
    limits: &Limits,
) -> Result<Validation> {
    validate_as(kind::file_kind(&**loader)?, loader, kernels, backends, limits)
}

/// Validates a file as being of this kind.
fn validate_as(
    kind: Option<FileKind>,
    loader: &Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
    limits: &Limits,
) -> Result<Validation> {
    let mut validation = validate_structure(&**loader, kind, limits)?;
    if validation.valid && kind == Some(FileKind::Bpte) {
        let bundle = Bundle::open(&**loader, limits)?;
        // A bundle holds a program; another bundle inside it is an invalid program, so that the recursion ends here.
        let inside = validate_as(Some(FileKind::Pte), &bundle.program(), kernels, backends, limits)?;
        validation.problems =
            inside.problems.into_iter().map(|p| p.in_field("program", bundle.program_start())).collect();
        validation.valid = validation.problems.is_empty();
        (validation.can_run, validation.missing) = (inside.can_run, inside.missing);
        return Ok(validation);
    }
    if validation.valid && kind == Some(FileKind::Pte) {
        validation.problems = metadata_problems(loader, limits)?;
        validation.problems.extend(payload_problems(loader, backends, limits)?);
        validation.valid = validation.problems.is_empty();
    }
    if validation.valid && matches!(kind, Some(FileKind::Pte | FileKind::Bef)) {
        let needed = requirements(loader, kernels, backends, limits)?;
        (validation.can_run, validation.missing) = (Some(needed.can_run), needed.missing);
    }
    Ok(validation)
}

/// The problems of a program's payloads, each found by its backend.
fn payload_problems(
    loader: &Arc<dyn DataLoader>,
    backends: &BackendRegistry,
    limits: &Limits,
) -> Result<Vec<Problem>> {
    let program = Program::load(Arc::clone(loader), limits)?;
    let mut problems = Vec::new();
    for (m, method) in program.methods().enumerate() {
        for (d, delegate) in method.plan().delegates.iter().enumerate() {
            let Some(backend) = backends.get(&delegate.id) else { continue };
            let range = method.payload_range(delegate);
            let payload =
                loader.load(range.start, range.end - range.start, Purpose::Backend(&delegate.id))?;
            if let Err(error) = backend.check(&payload) {
                let path = format!("execution_plan[{m}].delegates[{d}]");
                problems.push(Problem {
                    message: format!("{path}, {}: {error}", crate::show::name(&delegate.id)),
                    path,
                    offset: Some(range.start),
                    kind: "Payload".to_owned(),
                    expected: "a payload that its backend can run".to_owned(),
                    found: error.to_string(),
                });
            }
        }
    }
    Ok(problems)
}

/// Validates the structure of a file against the format of this kind.
fn validate_structure(
    loader: &dyn DataLoader,
    kind: Option<FileKind>,
    limits: &Limits,
) -> Result<Validation> {
    let problems: Vec<Problem> = match kind {
        Some(FileKind::Pte) => program_errors(loader, limits)?.iter().map(Problem::from).collect(),
        Some(FileKind::Ptd) => flat_tensor_errors(loader, limits)?.iter().map(Problem::from).collect(),
        #[cfg(feature = "bef")]
        Some(FileKind::Bef) => bef_problems(loader)?,
        Some(FileKind::Bpte) => problems_of_reading(Bundle::open(loader, limits))?,
        Some(FileKind::Etdump) => problems_of_reading(etdump::read(loader, limits))?,
        other => {
            return Err(crate::kind::wrong_format(
                loader,
                other,
                "validate",
                "programs (.pte, .bpte, .bef), named data (.ptd) and ETDumps",
            ));
        }
    };
    Ok(Validation {
        file: loader.name().to_owned(),
        format: kind.map_or("", FileKind::name),
        bytes: loader.source_archive_bytes().unwrap_or(loader.size()),
        valid: problems.is_empty(),
        problems,
        can_run: None,
        missing: Vec::new(),
    })
}

/// Converts an error in the contents of a file to problems; other errors, such as I/O, stay errors.
fn problems_of_reading<T>(read: Result<T>) -> Result<Vec<Problem>> {
    match read {
        Ok(_) => Ok(Vec::new()),
        Err(Error::Context { context, source }) => match source.downcast::<pteron_format::Error>() {
            Ok(error) => Ok(vec![Problem::from(&*error)]),
            Err(source) => Err(Error::Context { context, source }),
        },
        Err(error) => Err(error),
    }
}

/// The problems of what Pteron stores in named data: the sizes that the inputs of methods may have, names, task metadata.
fn metadata_problems(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<Vec<Problem>> {
    let program = Program::load(Arc::clone(loader), limits)?;
    let problem = |key: String, expected: &str, error: &dyn std::error::Error| Problem {
        path: format!("named data `{key}`"),
        offset: None,
        kind: "Invalid".to_owned(),
        expected: expected.to_owned(),
        found: "other text".to_owned(),
        message: pteron_runtime::one_line(error),
    };
    let problems = |meta: MethodMeta<'_>| {
        let sizes = meta.input_sizes().err().map(|error| {
            problem(input_sizes_key(meta.name()), "the sizes of the inputs of the method", &error)
        });
        let names = meta.value_names().err().map(|error| {
            problem(value_names_key(meta.name()), "the names of the inputs and outputs of the method", &error)
        });
        [sizes, names]
    };
    let task = crate::task::of(&program).err();
    let task = task.map(|error| problem(TASK_KEY.to_owned(), "task metadata", &error));
    Ok(program.methods().flat_map(problems).flatten().chain(task).collect())
}

/// The first problem of a `.bef` file.
#[cfg(feature = "bef")]
fn bef_problems(loader: &dyn DataLoader) -> Result<Vec<Problem>> {
    let bytes = loader.load(0, loader.size(), Purpose::Program)?;
    let problem = pteron_bef::File::open(&bytes).and_then(|file| file.verify()).err().map(|e| Problem {
        path: e.path.clone(),
        offset: e.offset,
        kind: format!("{:?}", e.kind),
        expected: e.expected.clone(),
        found: e.found.clone(),
        message: e.to_string(),
    });
    Ok(problem.into_iter().collect())
}

/// The problems of a `.pte` file: the first one in the header or the flatbuffer's structure, otherwise all in its values.
fn program_errors(loader: &dyn DataLoader, limits: &Limits) -> Result<Vec<pteron_format::Error>> {
    let header = match pte::Header::parse(&read_head(loader)?, loader.size()) {
        Ok(header) => header,
        Err(e) => return Ok(vec![e]),
    };
    let tables = loader.load(0, header.program_size, Purpose::Program)?;
    Ok(pte::VerifiedProgram::errors(&tables, &header, &limits.format))
}

/// The first error in the format of a `.ptd` file, as a list of at most one; empty if the file is valid.
fn flat_tensor_errors(loader: &dyn DataLoader, limits: &Limits) -> Result<Vec<pteron_format::Error>> {
    let header = match ptd::Header::parse(&read_head(loader)?, loader.size()) {
        Ok(header) => header,
        Err(e) => return Ok(vec![e]),
    };
    let tables = loader.load(0, header.tables_range().end, Purpose::Program)?;
    Ok(ptd::VerifiedFlatTensor::read(&tables, &header, &limits.format).err().into_iter().collect())
}

fn read_head(loader: &dyn DataLoader) -> Result<pteron_runtime::FreeableBuffer> {
    let len = loader.size().min(pteron_format::container::HEAD_BYTES as u64);
    Ok(loader.load(0, len, Purpose::Program)?)
}
