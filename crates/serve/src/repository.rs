use crate::refusal::{Reason, Refusal, Result};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The maximum number of entries in a folder; a folder with more of them is an error.
const MAX_ENTRIES: usize = 10_000;
/// The maximum size in bytes of a model's `pteron.json`.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A folder of models.
///
/// A model is a file `NAME.pte` or `NAME.pt2`, with external weights in `NAME.ptd`; or a folder `NAME` that contains
/// one program and its `.ptd` files; or a folder `NAME` with such a folder for each version, whose names are the
/// version numbers. A folder with a program may have a `pteron.json`: see [`Config`].
///
/// Names in requests are never used as paths: they are looked up among the results of a scan. Links that lead out of
/// the folder are refused. The path of the folder itself, which may be a link, is resolved by each scan. Messages name
/// files relative to the folder.
#[derive(Debug, Clone)]
pub struct Repository {
    path: PathBuf,
}

/// A scan of the folder, at the location to which its path resolved when the scan began.
struct Scan {
    root: PathBuf,
}

/// The contents of a model's `pteron.json`. All fields are optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The method that is served; by default the only method of the program, or `forward`.
    pub method: Option<String>,
    /// Names for the tensor inputs, in the order of the method's inputs.
    #[serde(deserialize_with = "or_default")]
    pub inputs: Vec<String>,
    /// Names for the outputs, in the order of the method's outputs.
    #[serde(deserialize_with = "or_default")]
    pub outputs: Vec<String>,
    /// The maximum number of rows of a batch, instead of the server's; 1 disables batching.
    pub max_batch: Option<usize>,
    /// Methods that are also served, each as a model `NAME.METHOD`, to which `inputs` and `outputs` do not apply.
    #[serde(deserialize_with = "or_default")]
    pub methods: Vec<String>,
    /// Whether the methods use the same memory for their state, which then persists from request to request: for
    /// programs that were exported with `share_mutable_buffers`. Their requests are executed one at a time.
    #[serde(deserialize_with = "or_default")]
    pub share_memory_arenas: bool,
}

impl Config {
    /// The configuration of the model `NAME.METHOD` for one of [`Self::methods`].
    fn for_method(&self, method: &str) -> Self {
        let (max_batch, share_memory_arenas) = (self.max_batch, self.share_memory_arenas);
        Self { method: Some(method.to_owned()), max_batch, share_memory_arenas, ..Self::default() }
    }
}

/// Deserializes an optional JSON field; `null` gives the default value.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> std::result::Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The canonical path, without symbolic links.
    pub path: PathBuf,
    /// The path relative to the folder of models, for messages.
    pub name: String,
}

/// The files of a version of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The program or archive.
    pub program: Source,
    /// The version's files of external weights (`.ptd`), sorted by name.
    pub data: Vec<Source>,
    /// The contents of the model's `pteron.json`.
    pub config: Config,
    /// The stamps of all files of the version, which show whether one of them was replaced.
    pub stamps: Vec<Stamp>,
}

/// The size, modification time, inode and device of a file, to detect that it was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
    /// The inode and device numbers; zeros on systems other than Unix.
    file: (u64, u64),
}

impl Stamp {
    fn from_metadata(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let file = {
            use std::os::unix::fs::MetadataExt;
            (metadata.ino(), metadata.dev())
        };
        #[cfg(not(unix))]
        let file = (0, 0);
        Self { bytes: metadata.len(), modified: metadata.modified().ok(), file }
    }
}

/// The versions of a model, by number.
pub type Versions = BTreeMap<u64, Files>;

impl Repository {
    /// Opens a folder, which must exist.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let repository = Self { path: path.to_owned() };
        let root = repository.root()?;
        fs::read_dir(&root).map_err(|e| unreadable_error("the folder of models", &e))?;
        Ok(repository)
    }

    /// Every model with its versions, or the error for a model that cannot be loaded, such as two models of one name.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn scan(&self) -> Result<BTreeMap<String, Result<Versions>>> {
        Scan { root: self.root()? }.read_models()
    }

    fn root(&self) -> Result<PathBuf> {
        self.path.canonicalize().map_err(|e| unreadable_error("the folder of models", &e))
    }
}

/// The kind of a folder entry.
enum Kind {
    Folder,
    File,
    /// Neither a file nor a folder, such as a pipe.
    Other,
    /// An entry whose metadata cannot be read, for this reason, such as a dangling link.
    Unknown(io::Error),
}

impl Kind {
    /// The kind of the entry at `path`, following links; `None` if the entry is gone.
    fn from_path(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Some(Self::Folder),
            Ok(metadata) if metadata.is_file() => Some(Self::File),
            Ok(_) => Some(Self::Other),
            Err(_) if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) => None,
            Err(error) => Some(Self::Unknown(error)),
        }
    }
}

impl Scan {
    fn read_models(&self) -> Result<BTreeMap<String, Result<Versions>>> {
        let mut models = BTreeMap::new();
        for path in self.sorted_entries(&self.root)? {
            let Some((name, kind)) = model_of_entry(&path) else { continue };
            let versions = match kind {
                Kind::Unknown(error) => Err(unreadable_error(&self.relative_name(&path), &error)),
                Kind::Folder => self.read_versions(&path, &name),
                _ => self.read_file_model(&path).map(|files| BTreeMap::from([(1, files)])),
            };
            for (name, versions) in add_method_models(name, versions) {
                if models.insert(name.clone(), versions).is_some() {
                    let twice = format!("two models have the name `{name}`");
                    models.insert(name, Err(Refusal::invalid(twice)));
                }
            }
        }
        Ok(models)
    }

    /// The path of a file relative to the folder of models.
    fn relative_name(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// Reads a model that is a single program file.
    fn read_file_model(&self, path: &Path) -> Result<Files> {
        let data = path.with_extension("ptd");
        let data = exists_as_file(&data).then_some(data);
        self.collect_files(path, data.as_slice(), Config::default(), None)
    }

    fn read_versions(&self, path: &Path, name: &str) -> Result<Versions> {
        self.resolve_inside(path)?;
        let mut numbered = Vec::new();
        for inside in self.sorted_entries(path)? {
            let Some(name) = inside.file_name().and_then(|name| name.to_str()) else { continue };
            // `01` is not version 1: there may be another folder `1`.
            let number = name.parse().ok().filter(|number: &u64| number.to_string() == name);
            match (number, Kind::from_path(&inside)) {
                (Some(number), Some(Kind::Folder)) => numbered.push((number, inside)),
                (Some(_), Some(Kind::Unknown(error))) => {
                    return Err(unreadable_error(&self.relative_name(&inside), &error));
                }
                _ => {}
            }
        }
        if numbered.is_empty() {
            return Ok(BTreeMap::from([(1, self.read_folder(path, name)?)]));
        }
        numbered.into_iter().map(|(number, path)| Ok((number, self.read_folder(&path, name)?))).collect()
    }

    /// Reads a model folder with one program.
    fn read_folder(&self, path: &Path, name: &str) -> Result<Files> {
        self.resolve_inside(path)?;
        let inside = self.sorted_entries(path)?;
        let programs: Vec<_> = inside.iter().filter(|path| is_program(path)).collect();
        let [program] = programs[..] else {
            return Err(Refusal::invalid(format!(
                "model `{name}`: {} holds {} programs (.pte, .pt2), it should be one",
                self.relative_name(path),
                programs.len()
            )));
        };
        let data: Vec<_> = inside.iter().filter(|path| has_extension(path, "ptd")).cloned().collect();
        let config = path.join("pteron.json");
        let config = exists_as_file(&config).then_some(config);
        let parsed = config.as_deref().map(|path| self.read_config(path)).transpose()?.unwrap_or_default();
        self.collect_files(program, &data, parsed, config.as_deref())
    }

    fn read_config(&self, path: &Path) -> Result<Config> {
        let (source, stamp) = self.open_source(path)?;
        let invalid = |problem: String| Refusal::invalid(format!("{}: {problem}", source.name));
        if stamp.bytes > MAX_CONFIG_BYTES {
            return Err(invalid(format!("{} bytes, at most {MAX_CONFIG_BYTES} are read", stamp.bytes)));
        }
        let mut text = Vec::new();
        let read =
            File::open(&source.path).and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_end(&mut text));
        read.map_err(|e| unreadable_error(&source.name, &e))?;
        serde_json::from_slice(&text).map_err(|e| invalid(e.to_string()))
    }

    fn collect_files(
        &self,
        program: &Path,
        data: &[PathBuf],
        config: Config,
        config_file: Option<&Path>,
    ) -> Result<Files> {
        let (program, stamp) = self.open_source(program)?;
        let (data, mut stamps): (Vec<_>, Vec<_>) =
            data.iter().map(|path| self.open_source(path)).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        stamps.push(stamp);
        if let Some(path) = config_file {
            stamps.push(self.open_source(path)?.1);
        }
        Ok(Files { program, data, config, stamps })
    }

    /// Resolves the path of a regular file, which must be inside the folder of models; also returns its stamp.
    fn open_source(&self, path: &Path) -> Result<(Source, Stamp)> {
        let (place, name) = (self.resolve_inside(path)?, self.relative_name(path));
        let metadata = fs::metadata(&place).map_err(|e| unreadable_error(&name, &e))?;
        match metadata.is_file() {
            true => Ok((Source { path: place, name }, Stamp::from_metadata(&metadata))),
            false => Err(Refusal::invalid(format!("{name} is no regular file"))),
        }
    }

    /// The canonical form of a path; fails if it leads outside of the folder of models.
    fn resolve_inside(&self, path: &Path) -> Result<PathBuf> {
        let place = path.canonicalize().map_err(|e| unreadable_error(&self.relative_name(path), &e))?;
        match place.starts_with(&self.root) {
            true => Ok(place),
            false => Err(Refusal::invalid(format!(
                "{} is a link that leads out of the folder of models",
                self.relative_name(path)
            ))),
        }
    }

    /// The entries of a folder, sorted by name.
    fn sorted_entries(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let name = || match self.relative_name(folder) {
            name if name.is_empty() => "the folder of models".to_owned(),
            name => name,
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| unreadable_error(&name(), &e))? {
            if paths.len() == MAX_ENTRIES {
                return Err(Refusal::invalid(format!("{} holds more than {MAX_ENTRIES} entries", name())));
            }
            paths.push(entry.map_err(|e| unreadable_error(&name(), &e))?.path());
        }
        paths.sort();
        Ok(paths)
    }
}

/// The name of the model in a folder entry, and the entry's kind; `None` if it is no model.
fn model_of_entry(path: &Path) -> Option<(String, Kind)> {
    let kind = Kind::from_path(path)?;
    let name = match kind {
        Kind::Folder => path.file_name(),
        Kind::Unknown(_) if !is_program(path) => path.file_name(),
        _ if is_program(path) => path.file_stem(),
        _ => return None,
    };
    let name = name.and_then(|name| name.to_str()).filter(|name| is_model_name(name))?.to_owned();
    Some((name, kind))
}

/// The model `name` and the models for the [methods](Config::methods) that its configuration lists.
fn add_method_models(name: String, versions: Result<Versions>) -> BTreeMap<String, Result<Versions>> {
    let mut all: BTreeMap<String, Result<Versions>> = BTreeMap::new();
    for (&number, files) in versions.iter().flatten() {
        for method in &files.config.methods {
            let own = format!("{name}.{method}");
            if !is_model_name(&own) {
                let message =
                    format!("model `{name}`: the method `{method}` cannot be part of a model's name");
                return BTreeMap::from([(name, Err(Refusal::invalid(message)))]);
            }
            let files = Files { config: files.config.for_method(method), ..files.clone() };
            if let Ok(versions) = all.entry(own).or_insert_with(|| Ok(Versions::new())) {
                versions.insert(number, files);
            }
        }
    }
    all.insert(name, versions);
    all
}

/// Whether a model can be called `name`: 1 to 128 ASCII letters, digits, `_`, `-` and `.`, not starting with `.`.
pub fn is_model_name(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"_-.".contains(&c);
    (1..=128).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.')
}

/// Whether the path exists and is no folder.
fn exists_as_file(path: &Path) -> bool {
    Kind::from_path(path).is_some_and(|kind| !matches!(kind, Kind::Folder))
}

/// Whether a path has the extension of a program, and is neither a folder nor a link to one.
fn is_program(path: &Path) -> bool {
    has_extension(path, "pte") || has_extension(path, "pt2")
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension) && !path.is_dir()
}

fn unreadable_error(name: &str, error: &io::Error) -> Refusal {
    Refusal::new(Reason::Unavailable, format!("cannot read {name}: {error}"))
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
            program: Source { path: PathBuf::from("cache.pte"), name: "cache.pte".to_owned() },
            data: Vec::new(),
            config: config(methods),
            stamps: Vec::new(),
        };
        let versions = BTreeMap::from([(1, files(&["get"])), (2, files(&["get", "set"]))]);
        let all = add_method_models("cache".to_owned(), Ok(versions));
        assert_eq!(all.keys().collect::<Vec<_>>(), ["cache", "cache.get", "cache.set"]);
        let get = all["cache.get"].as_ref().unwrap();
        assert_eq!(get.keys().collect::<Vec<_>>(), [&1, &2]);
        let expected =
            Config { method: Some("get".to_owned()), share_memory_arenas: true, ..Config::default() };
        assert_eq!(get[&2].config, expected);
        let bad = add_method_models("cache".to_owned(), Ok(BTreeMap::from([(1, files(&["a/b"]))])));
        assert!(bad["cache"].is_err() && bad.len() == 1);
    }

    #[test]
    fn model_names_cannot_be_paths() {
        for name in ["a", "mobilenet_v2.1", "A-b_c"] {
            assert!(is_model_name(name), "{name}");
        }
        for name in ["", ".", "..", ".git", "a/b", "..\\a", "a b", "a\0", "ä", &"x".repeat(129)] {
            assert!(!is_model_name(name), "{name}");
        }
    }
}
