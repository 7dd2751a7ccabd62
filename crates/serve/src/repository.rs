use crate::refusal::{Reason, Refusal, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The maximum number of entries of a folder; more are an error.
const MAX_ENTRIES: usize = 10_000;
/// The maximum size of a model's `pteron.json`.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A folder of models.
///
/// A model is a file `NAME.pte` or `NAME.pt2`, with external weights in `NAME.ptd`; or a folder `NAME` that contains one
/// program and its `.ptd` files; or a folder `NAME` with such a folder for each version, whose names are the version
/// numbers. A folder with a program may have a `pteron.json`: see [`Config`].
///
/// Names in requests are never used as paths: they are looked up among the results of a scan. Links that lead out of the
/// folder are refused.
#[derive(Debug, Clone)]
pub struct Repository {
    root: PathBuf,
}

/// The contents of a model's `pteron.json`. All fields are optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The method that is served; by default the only one, or `forward`.
    pub method: Option<String>,
    /// Names of the tensor inputs, in order.
    pub inputs: Vec<String>,
    /// Names of the outputs, in order.
    pub outputs: Vec<String>,
    /// The maximum number of rows of a batch, instead of the server's; 1 disables batching.
    pub max_batch: Option<usize>,
    /// Methods that are also served as models of their own, `NAME.METHOD`. `inputs` and `outputs` do not apply to them.
    pub methods: Vec<String>,
    /// Whether the methods use the same memory for their state, which then persists from request to request: for programs
    /// that were exported with `share_mutable_buffers`. Their requests are executed one at a time.
    pub share_memory_arenas: bool,
}

impl Config {
    /// The configuration of one of [`Self::methods`].
    fn of_method(&self, method: &str) -> Self {
        let (max_batch, share_memory_arenas) = (self.max_batch, self.share_memory_arenas);
        Self { method: Some(method.to_owned()), max_batch, share_memory_arenas, ..Self::default() }
    }
}

/// The files of a version of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The program or archive.
    pub program: PathBuf,
    /// Its files of external weights, sorted by name.
    pub data: Vec<PathBuf>,
    /// Its `pteron.json`.
    pub config: Config,
    /// The stamps of all files, which show whether any of them was replaced.
    pub stamps: Vec<Stamp>,
}

/// The size, modification time and inode of a file, to detect that it was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
    inode: u64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Self { bytes: metadata.len(), modified: metadata.modified().ok(), inode }
    }
}

/// The versions of a model, by number.
pub type Versions = BTreeMap<u64, Files>;

impl Repository {
    /// Opens a folder, which must exist.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn open(root: &Path) -> Result<Self> {
        let root = root.canonicalize().map_err(|e| unreadable(root, &e))?;
        fs::read_dir(&root).map_err(|e| unreadable(&root, &e))?;
        Ok(Self { root })
    }

    /// Every model with its versions, or the error for a model that cannot be loaded, such as two models of one name.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn scan(&self) -> Result<BTreeMap<String, Result<Versions>>> {
        let mut found = BTreeMap::new();
        for path in entries(&self.root)? {
            let Some(name) = self.model_name(&path) else { continue };
            let versions = self.versions(&path, &name);
            for (name, versions) in with_methods(name, versions) {
                if found.insert(name.clone(), versions).is_some() {
                    let twice = format!("two models in {} have the name `{name}`", self.root.display());
                    found.insert(name, Err(Refusal::invalid(twice)));
                }
            }
        }
        Ok(found)
    }

    /// The model name of an entry of the folder, if the entry is a model.
    fn model_name(&self, path: &Path) -> Option<String> {
        let is_model = path.is_dir() || is_program(path);
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name.and_then(|name| name.to_str()).filter(|name| is_name(name))?;
        is_model.then(|| name.to_owned())
    }

    fn versions(&self, path: &Path, name: &str) -> Result<Versions> {
        self.inside(path)?;
        if path.is_file() {
            let data = path.with_extension("ptd");
            let data = data.is_file().then_some(data).into_iter().collect();
            return Ok(BTreeMap::from([(1, self.files(path.to_owned(), data, Config::default(), None)?)]));
        }
        let numbered = |path: PathBuf| {
            let name = path.file_name()?.to_str()?;
            // `01` is not version 1: there may be another folder `1`.
            let number: u64 = name.parse().ok().filter(|number: &u64| number.to_string() == name)?;
            path.is_dir().then_some((number, path))
        };
        let inside = entries(path)?;
        let numbered: Vec<_> = inside.into_iter().filter_map(numbered).collect();
        if numbered.is_empty() {
            return Ok(BTreeMap::from([(1, self.folder(path, name)?)]));
        }
        numbered.into_iter().map(|(number, path)| Ok((number, self.folder(&path, name)?))).collect()
    }

    /// A folder with one program.
    fn folder(&self, path: &Path, name: &str) -> Result<Files> {
        self.inside(path)?;
        let inside = entries(path)?;
        let programs: Vec<_> = inside.iter().filter(|path| is_program(path)).collect();
        let [program] = programs[..] else {
            return Err(Refusal::invalid(format!(
                "model `{name}`: {} holds {} programs (.pte, .pt2), it should be one",
                path.display(),
                programs.len()
            )));
        };
        let data = inside.iter().filter(|path| has_extension(path, "ptd")).cloned().collect();
        let config = path.join("pteron.json");
        let config = config.is_file().then_some(config);
        let parsed = config.as_deref().map(|path| self.config(path)).transpose()?.unwrap_or_default();
        self.files(program.clone(), data, parsed, config)
    }

    fn config(&self, path: &Path) -> Result<Config> {
        self.inside(path)?;
        let bytes = fs::metadata(path).map_err(|e| unreadable(path, &e))?.len();
        if bytes > MAX_CONFIG_BYTES {
            return Err(Refusal::invalid(format!(
                "{}: {bytes} bytes, at most {MAX_CONFIG_BYTES} are read",
                path.display()
            )));
        }
        let text = fs::read(path).map_err(|e| unreadable(path, &e))?;
        serde_json::from_slice(&text).map_err(|e| Refusal::invalid(format!("{}: {e}", path.display())))
    }

    fn files(
        &self,
        program: PathBuf,
        data: Vec<PathBuf>,
        config: Config,
        config_file: Option<PathBuf>,
    ) -> Result<Files> {
        let mut stamps = Vec::new();
        for path in [&program].into_iter().chain(&data).chain(&config_file) {
            let place = self.inside(path)?;
            stamps.push(Stamp::of(&fs::metadata(&place).map_err(|e| unreadable(path, &e))?));
        }
        Ok(Files { program, data, config, stamps })
    }

    /// The canonical form of a path; fails if it is outside of the folder.
    fn inside(&self, path: &Path) -> Result<PathBuf> {
        let place = path.canonicalize().map_err(|e| unreadable(path, &e))?;
        match place.starts_with(&self.root) {
            true => Ok(place),
            false => Err(Refusal::invalid(format!(
                "{} is a link to {}, outside of {}",
                path.display(),
                place.display(),
                self.root.display()
            ))),
        }
    }
}

/// A model, and the models of its [methods](Config::methods).
fn with_methods(name: String, versions: Result<Versions>) -> BTreeMap<String, Result<Versions>> {
    let mut all: BTreeMap<String, Result<Versions>> = BTreeMap::new();
    for (&number, files) in versions.iter().flatten() {
        for method in &files.config.methods {
            let own = format!("{name}.{method}");
            if !is_name(&own) {
                let message =
                    format!("model `{name}`: the method `{method}` cannot be part of a model's name");
                return BTreeMap::from([(name, Err(Refusal::invalid(message)))]);
            }
            let files = Files { config: files.config.of_method(method), ..files.clone() };
            if let Ok(versions) = all.entry(own).or_insert_with(|| Ok(Versions::new())) {
                versions.insert(number, files);
            }
        }
    }
    all.insert(name, versions);
    all
}

/// Whether a model can have this name: letters, digits, `_`, `-` and `.`, not starting with `.`.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"_-.".contains(&c);
    (1..=128).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.')
}

fn is_program(path: &Path) -> bool {
    has_extension(path, "pte") || has_extension(path, "pt2")
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension) && path.is_file()
}

/// The entries of a folder, sorted by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| unreadable(folder, &e))? {
        if found.len() == MAX_ENTRIES {
            return Err(Refusal::invalid(format!(
                "{} holds more than {MAX_ENTRIES} entries",
                folder.display()
            )));
        }
        found.push(entry.map_err(|e| unreadable(folder, &e))?.path());
    }
    found.sort();
    Ok(found)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::new(Reason::Unavailable, format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_models_of_their_own() {
        let config = |methods: &[&str]| Config {
            inputs: vec!["x".to_owned()],
            methods: methods.iter().map(|&method| method.to_owned()).collect(),
            share_memory_arenas: true,
            ..Config::default()
        };
        let files = |methods: &[&str]| Files {
            program: PathBuf::from("cache.pte"),
            data: Vec::new(),
            config: config(methods),
            stamps: Vec::new(),
        };
        let versions = BTreeMap::from([(1, files(&["get"])), (2, files(&["get", "set"]))]);
        let all = with_methods("cache".to_owned(), Ok(versions));
        assert_eq!(all.keys().collect::<Vec<_>>(), ["cache", "cache.get", "cache.set"]);
        let get = all["cache.get"].as_ref().unwrap();
        assert_eq!(get.keys().collect::<Vec<_>>(), [&1, &2]);
        let expected =
            Config { method: Some("get".to_owned()), share_memory_arenas: true, ..Config::default() };
        assert_eq!(get[&2].config, expected);
        let bad = with_methods("cache".to_owned(), Ok(BTreeMap::from([(1, files(&["a/b"]))])));
        assert!(bad["cache"].is_err() && bad.len() == 1);
    }

    #[test]
    fn model_names_cannot_be_paths() {
        for name in ["a", "mobilenet_v2.1", "A-b_c"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".git", "a/b", "..\\a", "a b", "a\0", "ä", &"x".repeat(129)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
