//! Task metadata of a program: how pictures are preprocessed, the labels of its classes, the digest of its tokenizer, its
//! licence and provenance. A program keeps it as JSON in named data under [`TASK_KEY`], which runtimes ignore.
//! `docs/task.md` describes the fields.

mod preprocessing;
mod text;

pub use preprocessing::{Layout, Preprocessing};
pub use text::summary;
pub(crate) use text::{differences, write_text};

use crate::{Context, Error, Result, stream};
use pteron_format::pte::{MAX_OWN_BYTES, TASK_KEY};
use pteron_runtime::Program;
use pteron_tensor::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// The version of the schema.
const VERSION: u32 = 1;

/// What a caller must know about a program's task to use it. Fields that this version does not know are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskMetadata {
    #[serde(default = "version")]
    version: u32,
    /// What the model does, in a word: `image-classification`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// How a picture becomes an input; empty if pictures are stretched to the input, with values from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocessing: Option<Preprocessing>,
    /// The names of the classes, by their positions along the last dimension of the first output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The tokenizer that makes the inputs of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Tokenizer>,
    /// The licence of the model: an SPDX expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Where the model comes from: a text, or an object with details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Value>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenizer {
    /// The SHA-256 of the tokenizer's file, in hexadecimal.
    pub sha256: String,
    /// Other fields, such as the name of the file.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn version() -> u32 {
    VERSION
}

impl Default for TaskMetadata {
    fn default() -> Self {
        Self {
            version: VERSION,
            task: None,
            preprocessing: None,
            labels: Vec::new(),
            tokenizer: None,
            license: None,
            provenance: None,
            other: Map::new(),
        }
    }
}

impl Tokenizer {
    /// The name and the SHA-256 of a tokenizer file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(path: &Path) -> Result<Self> {
        let sha256 = pteron_format::Digest::hex_digest(&stream::read(path)?);
        let name = path.file_name().map(|name| Value::from(name.to_string_lossy()));
        let other = name.into_iter().map(|name| ("file".to_owned(), name)).collect();
        Ok(Self { sha256, other })
    }
}

impl TaskMetadata {
    /// Reads the JSON of a sidecar file.
    ///
    /// # Errors
    /// The file cannot be read, or as for [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        let text = stream::read_text(path)?;
        Self::parse(&text).map_err(|problem| Error::bad_file(path, problem))
    }

    /// Parses and checks the JSON form.
    ///
    /// # Errors
    /// What is wrong, in words: it is no JSON, larger than [`MAX_OWN_BYTES`], of another version, or a field has a value that
    /// nothing can use.
    pub fn parse(text: &str) -> Result<Self, String> {
        check_size(text)?;
        #[derive(Deserialize)]
        struct VersionOnly {
            #[serde(default = "version")]
            version: u32,
        }
        // An unsupported version is reported as such whatever else has changed.
        let wrong = |error: serde_json::Error| format!("task metadata: {error}");
        let VersionOnly { version } = serde_json::from_str(text).map_err(wrong)?;
        if version != VERSION {
            return Err(format!("task metadata of version {version}; version {VERSION} is known here"));
        }
        let task: Self = serde_json::from_str(text).map_err(wrong)?;
        task.check()?;
        Ok(task)
    }

    /// The JSON form that a program stores.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string(self).context(|| "task metadata".to_owned())?;
        check_size(&text).and_then(|()| self.check()).map_err(Error::Input)?;
        Ok(text)
    }

    fn check(&self) -> Result<(), String> {
        self.preprocessing.as_ref().map_or(Ok(()), Preprocessing::check)?;
        let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match &self.tokenizer {
            Some(tokenizer) if !is_digest(&tokenizer.sha256) => {
                Err("`tokenizer.sha256` is no SHA-256 of 64 hexadecimal digits".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The labels for the elements along a tensor's last dimension; empty if their number is not the dimension's size.
    pub fn labels_of(&self, tensor: &Tensor) -> &[String] {
        match tensor.sizes().last() {
            Some(&width) if width == self.labels.len() => &self.labels,
            _ => &[],
        }
    }

    /// Whether no field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn check_size(text: &str) -> Result<(), String> {
    match text.len() as u64 {
        0..=MAX_OWN_BYTES => Ok(()),
        len => Err(format!("task metadata takes {len} bytes, at most {MAX_OWN_BYTES} can be stored")),
    }
}

/// The task metadata that a program stores; `None` if it stores none.
///
/// # Errors
/// It cannot be read, or is not valid.
pub fn of(program: &Program) -> Result<Option<TaskMetadata>> {
    let wrong = |problem: String| {
        Error::bad_file(program.loader().name(), format!("named data `{TASK_KEY}`: {problem}"))
    };
    let text = program.own_text(TASK_KEY)?;
    text.map(|text| text.and_then(|text| TaskMetadata::parse(&text)).map_err(wrong)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Preparation, Resize};

    #[test]
    fn metadata_is_written_and_read() {
        let text = r#"{"version":1,"task":"image-classification",
            "preprocessing":{"resize":256,"crop":224,"mean":[0.5],"std":[0.25],"layout":"NHWC","antialias":true},
            "labels":["cat","dog"],"license":"MIT","provenance":{"run":7},"threshold":0.5}"#;
        let task = TaskMetadata::parse(text).unwrap();
        assert_eq!(TaskMetadata::parse(&task.to_json().unwrap()).as_ref(), Ok(&task));
        assert_eq!(task.other["threshold"], 0.5);
        let preprocessing = task.preprocessing.unwrap();
        assert_eq!(preprocessing.other["antialias"], true);
        let expected = Preparation {
            resize: Some(Resize::Shorter(256)),
            crop: Some((224, 224)),
            mean: vec![0.5],
            std: vec![0.25],
            channels_last: true,
            ..Preparation::default()
        };
        assert_eq!(preprocessing.preparation(), expected);
        let sizes = TaskMetadata::parse(r#"{"preprocessing":{"resize":[8,9],"crop":[3,4]}}"#).unwrap();
        let prepared = sizes.preprocessing.unwrap().preparation();
        assert_eq!((prepared.resize, prepared.crop), (Some(Resize::To(8, 9)), Some((3, 4))));
    }

    #[test]
    fn what_nothing_can_use_is_refused() {
        for (text, problem) in [
            ("", "EOF"),
            ("[]", "invalid"),
            (r#"{"version":2,"labels":5}"#, "version 2"),
            (r#"{"labels":[1]}"#, "expected a string"),
            (r#"{"preprocessing":{"std":[0]}}"#, "`preprocessing.std`"),
            (r#"{"preprocessing":{"mean":[1e39]}}"#, "`preprocessing.mean`"),
            (r#"{"preprocessing":{"mean":[]}}"#, "`preprocessing.mean`"),
            (r#"{"preprocessing":{"crop":0}}"#, "`preprocessing.crop`"),
            (r#"{"preprocessing":{"resize":[4,0]}}"#, "`preprocessing.resize`"),
            (r#"{"preprocessing":{"layout":"CHWN"}}"#, "NCHW"),
            (r#"{"tokenizer":{"sha256":"abc"}}"#, "`tokenizer.sha256`"),
        ] {
            let found = TaskMetadata::parse(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
        let long = format!(r#"{{"license":"{}"}}"#, "x".repeat(MAX_OWN_BYTES as usize));
        assert!(TaskMetadata::parse(&long).unwrap_err().contains("at most 1048576"));
    }
}
