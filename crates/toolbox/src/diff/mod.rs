//! Semantic comparison of two files: contents and dataflow, independent of offsets and value ids.

mod align;
mod dataflow;
mod flat_tensor;
mod payload;
mod program;

use crate::bundle::{self, Bundle};
use crate::file::{File, Progress, blob_source};
use crate::show::line;
use crate::{Error, Result};
use pteron_format::bpte::{BundledMethodTestCase, BundledMethodTestSuite};
use pteron_format::container::Digest;
use pteron_operator::KernelRegistry;
use pteron_runtime::{BackendRegistry, DataLoader, Limits};
use pteron_trace::Place;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

/// The differences between two files.
#[derive(Debug, Serialize)]
pub struct DiffReport {
    /// The name of the first file.
    pub a: String,
    /// The name of the second file.
    pub b: String,
    /// The differences, in the order of the first file.
    pub differences: Vec<Difference>,
}

/// One difference between two files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Whether the difference can change what is computed.
    pub class: Class,
    /// The place of the difference: `forward, instruction 3`.
    pub place: String,
    /// The text of the first file; `None` if only the second file has the item.
    pub a: Option<String>,
    /// The text of the second file; `None` if only the first file has the item.
    pub b: Option<String>,
    /// The method and place of the instruction of the first file that differs, if the difference is in an instruction.
    #[serde(skip)]
    pub instruction: Option<(String, Place)>,
}

/// The class of a difference: whether it can change results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The difference can change the results, or the requirements to compute them.
    Meaning,
    /// The difference cannot change results: headers, alignments, memory plans, names, source frames.
    Form,
}

/// The registries that a comparison of programs needs.
#[derive(Debug, Clone, Copy)]
pub struct Registries<'a> {
    /// The kernels, whose schemas say which arguments an operator writes.
    pub kernels: &'a KernelRegistry,
    /// The backends that read the payloads of delegates.
    pub backends: &'a BackendRegistry,
}

/// Compares two programs or two files of named data. Weights are compared by their bytes; values and instructions by
/// type, operator and the definitions that they read, so that different value ids or memory offsets do not count.
/// Delegate payloads are compared by their nodes and tensors if the backend can read them, otherwise by their bytes.
pub fn diff(a: &File, b: &File, registries: Registries<'_>, progress: &Progress) -> Result<DiffReport> {
    let mut notes = Notes { differences: Vec::new(), digests: HashMap::new(), progress: progress.clone() };
    let (name_a, name_b) = match (a, b) {
        (File::Program(a), File::Program(b)) => {
            progress.begin("comparing", a.loader().size() + b.loader().size());
            program::diff(a, b, registries, &mut notes)?;
            (a.loader().name(), b.loader().name())
        }
        (File::Data(a), File::Data(b)) => {
            progress.begin("comparing", a.loader().size() + b.loader().size());
            flat_tensor::diff(a, b, &mut notes)?;
            (a.loader().name(), b.loader().name())
        }
        _ => return Err(Error::input("a program and named data have nothing to compare")),
    };
    Ok(DiffReport { a: name_a.to_owned(), b: name_b.to_owned(), differences: notes.differences })
}

/// Compares the test cases of two bundled programs. A file of another kind has none.
///
/// # Errors
/// If a file cannot be read, or is not valid.
pub fn diff_test_cases(a: &dyn DataLoader, b: &dyn DataLoader, limits: &Limits) -> Result<Vec<Difference>> {
    let suites = |file: &dyn DataLoader| -> Result<Vec<BundledMethodTestSuite>> {
        Ok(Bundle::open_if_bundled(file, limits)?.map_or_else(Vec::new, |bundle| bundle.suites))
    };
    let (a, b) = (suites(a)?, suites(b)?);
    let methods: BTreeSet<&str> = a.iter().chain(&b).map(|suite| suite.method_name.as_str()).collect();
    let mut differences = Vec::new();
    for method in methods {
        let cases = |suites: &[BundledMethodTestSuite]| -> Vec<BundledMethodTestCase> {
            let suite = suites.iter().find(|suite| suite.method_name == method);
            suite.map_or_else(Vec::new, |suite| suite.test_cases.clone())
        };
        let (a, b) = (cases(&a), cases(&b));
        for case in (0..a.len().max(b.len())).filter(|&case| a.get(case) != b.get(case)) {
            let text = |case: Option<&BundledMethodTestCase>| {
                case.map(|case| {
                    let texts = bundle::case_report(case);
                    format!("{} -> {}", texts.inputs.join(", "), texts.outputs.join(", "))
                })
            };
            let (a, mut b) = (text(a.get(case)), text(b.get(case)));
            if a == b {
                b = b.map(|b| format!("{b}, with other values"));
            }
            let place = format!("{method}, test case {case}");
            differences.push(Difference { class: Class::Form, place, a, b, instruction: None });
        }
    }
    Ok(differences)
}

impl DiffReport {
    /// Drops the differences that cannot change results.
    #[must_use]
    pub fn only_meaning(mut self) -> Self {
        self.differences.retain(|difference| difference.class == Class::Meaning);
        self
    }

    /// The report as text: for each difference its place, then the text of the first file (`-`) and of the second (`+`).
    pub fn text(&self) -> String {
        if self.differences.is_empty() {
            return format!("{} and {} say the same\n", self.a, self.b);
        }
        let mut text = format!("- {}\n+ {}\n", self.a, self.b);
        for difference in &self.differences {
            let _ = writeln!(text, "{}", line(&difference.place));
            for (sign, what) in [('-', &difference.a), ('+', &difference.b)] {
                if let Some(what) = what {
                    let _ = writeln!(text, "  {sign} {}", line(what));
                }
            }
        }
        text
    }
}

/// The alignment of a set of offsets, given their bitwise OR: the largest power of two up to 128 (the reference's default) or page size of
/// 4, 16 or 64 KiB that divides all of them. A multiple of any other power of two counts as chance.
fn alignment_of(offsets: u64) -> u64 {
    let steps = [1 << 16, 1 << 14, 1 << 12, 128, 64, 32, 16, 8, 4, 2];
    steps.into_iter().find(|&step| offsets.is_multiple_of(step)).unwrap_or(1)
}

/// The differences found so far, and the digests of byte ranges computed so far.
struct Notes {
    differences: Vec<Difference>,
    /// Digests by file (0 or 1) and byte range.
    digests: HashMap<(usize, Range<u64>), Digest>,
    progress: Progress,
}

impl Notes {
    /// Records a difference if the two texts differ.
    fn compare(&mut self, class: Class, place: impl FnOnce() -> String, a: &str, b: &str) {
        if a != b {
            self.note(class, place(), Some(a.to_owned()), Some(b.to_owned()));
        }
    }

    /// Records a difference.
    fn note(&mut self, class: Class, place: String, a: Option<String>, b: Option<String>) {
        self.differences.push(Difference { class, place, a, b, instruction: None });
    }

    /// Sets the instruction of all differences from index `since` on.
    fn set_instruction(&mut self, since: usize, method: &str, place: Place) {
        for difference in &mut self.differences[since..] {
            difference.instruction = Some((method.to_owned(), place));
        }
    }

    /// Whether two ranges of two files hold the same bytes.
    fn same_bytes(
        &mut self,
        a: (&Arc<dyn DataLoader>, Range<u64>),
        b: (&Arc<dyn DataLoader>, Range<u64>),
    ) -> Result<bool> {
        if a.1.end - a.1.start != b.1.end - b.1.start {
            return Ok(false);
        }
        Ok(self.digest(0, a)? == self.digest(1, b)?)
    }

    fn digest(&mut self, file: usize, (loader, range): (&Arc<dyn DataLoader>, Range<u64>)) -> Result<Digest> {
        use crate::file::InFile;
        if let Some(digest) = self.digests.get(&(file, range.clone())) {
            return Ok(*digest);
        }
        let digest = blob_source(loader, &self.progress)(range.clone()).digest().in_file(loader.name())?;
        self.digests.insert((file, range), digest);
        Ok(digest)
    }

    /// Records a difference if the bytes of two ranges differ.
    fn compare_bytes(
        &mut self,
        place: impl FnOnce() -> String,
        a: (&Arc<dyn DataLoader>, Range<u64>),
        b: (&Arc<dyn DataLoader>, Range<u64>),
    ) -> Result<()> {
        let len = |range: &Range<u64>| range.end - range.start;
        let (len_a, len_b) = (len(&a.1), len(&b.1));
        if !self.same_bytes(a, b)? {
            let other =
                if len_a == len_b { format!("{len_b} other bytes") } else { format!("{len_b} bytes") };
            self.note(Class::Meaning, place(), Some(format!("{len_a} bytes")), Some(other));
        }
        Ok(())
    }
}
