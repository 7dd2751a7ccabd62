//! What differs between two files, by meaning: not where bytes lie, but what they say.

mod align;
mod dataflow;
mod flat_tensor;
mod payload;
mod program;

use crate::file::{File, Progress, source};
use crate::{Error, Result};
use format::container::Digest;
use operator::KernelRegistry;
use runtime::{BackendRegistry, DataLoader};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use trace::Place;

/// What differs between two files.
#[derive(Debug, Serialize)]
pub struct DiffReport {
    /// The first file.
    pub a: String,
    /// The second.
    pub b: String,
    /// What differs, in the order of the first file.
    pub differences: Vec<Difference>,
}

/// One thing that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Whether it can change what is computed.
    pub class: Class,
    /// Where: `forward, instruction 3`.
    pub place: String,
    /// What the first file has there; absent if it has nothing.
    pub a: Option<String>,
    /// What the second file has there; absent if it has nothing.
    pub b: Option<String>,
    /// The instruction of the first file that it is about: its method and where it stands.
    #[serde(skip)]
    pub instruction: Option<(String, Place)>,
}

/// What kind of difference one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// It can change what is computed, or what is needed for that.
    Meaning,
    /// It cannot: headers, alignments, memory plans, names, source frames.
    Form,
}

/// What is known of programs beside their files.
#[derive(Debug, Clone, Copy)]
pub struct Registries<'a> {
    /// They tell which arguments an operator writes.
    pub kernels: &'a KernelRegistry,
    /// They tell what is in payloads.
    pub backends: &'a BackendRegistry,
}

/// Compares two programs or two files of named data. Weights are compared by their bytes, values and
/// instructions by what they are and by whose results they read: that they have other numbers, or other places in memory,
/// does not count.
/// Payloads of delegates are compared by their nodes and tensors where their backend shows them.
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

impl DiffReport {
    /// The same without what cannot change what is computed.
    #[must_use]
    pub fn of_meaning(mut self) -> Self {
        self.differences.retain(|difference| difference.class == Class::Meaning);
        self
    }

    /// The report as a person reads it: a place, what the first file has (`-`), what the second has (`+`).
    pub fn text(&self) -> String {
        if self.differences.is_empty() {
            return format!("{} and {} say the same\n", self.a, self.b);
        }
        let mut text = format!("- {}\n+ {}\n", self.a, self.b);
        for difference in &self.differences {
            let _ = writeln!(text, "{}", difference.place);
            for (sign, what) in [('-', &difference.a), ('+', &difference.b)] {
                if let Some(what) = what {
                    let _ = writeln!(text, "  {sign} {what}");
                }
            }
        }
        text
    }
}

/// To what places are aligned whose bits are these: a page, what the reference does, or less.
fn alignment_of(places: u64) -> u64 {
    [4096, 128, 16].into_iter().find(|&step| places.is_multiple_of(step)).unwrap_or(1)
}

/// The differences found so far, and what is known of bytes.
struct Notes {
    differences: Vec<Difference>,
    /// By file and range.
    digests: HashMap<(usize, Range<u64>), Digest>,
    progress: Progress,
}

impl Notes {
    /// Notes what differs, if it does.
    fn compare(&mut self, class: Class, place: impl FnOnce() -> String, a: &str, b: &str) {
        if a != b {
            self.note(class, place(), Some(a.to_owned()), Some(b.to_owned()));
        }
    }

    /// Notes a difference.
    fn note(&mut self, class: Class, place: String, a: Option<String>, b: Option<String>) {
        self.differences.push(Difference { class, place, a, b, instruction: None });
    }

    /// Says of which instruction of the first file the differences are that were noted since there were so many.
    fn about(&mut self, since: usize, method: &str, place: Place) {
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
        let digest = source(loader, &self.progress)(range.clone()).digest().in_file(loader.name())?;
        self.digests.insert((file, range), digest);
        Ok(digest)
    }

    /// Notes bytes that differ.
    fn bytes(
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
