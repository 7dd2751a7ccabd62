//! Checks the paths that a verb reads and writes for conflicts before any file is opened.
//!
//! Two paths are the same if they lead to the same file, be it by `./`, symbolic links or hard
//! links. A file that does not exist yet is identified by its folder and name.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

/// The path that means stdin for an input and stdout for an output.
pub const STANDARD_STREAM: &str = "-";

/// Whether an input path means stdin: it is `-`, or the name of stdin's device.
pub fn is_stdin(path: &Path) -> bool {
    is_stream(path, &["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
}

/// Whether an output path means stdout: it is `-`, or the name of stdout's device.
pub fn is_stdout(path: &Path) -> bool {
    is_stream(path, &["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
}

fn is_stream(path: &Path, devices: &[&str]) -> bool {
    path.as_os_str() == STANDARD_STREAM || cfg!(unix) && devices.iter().any(|d| path.as_os_str() == *d)
}

/// All paths that a verb reads and writes.
#[derive(Debug, Default)]
pub struct Paths {
    reads: Vec<Named>,
    writes: Vec<Write>,
    folders: Vec<Named>,
    /// Whether binary data is written to stdout.
    binary: bool,
}

/// A path and the command-line option that named it.
#[derive(Debug)]
struct Named {
    option: &'static str,
    path: PathBuf,
    place: Resolved,
}

#[derive(Debug)]
struct Write {
    named: Named,
    /// The inputs that this output may replace, as an edit in place does.
    over: Vec<Resolved>,
}

impl Paths {
    /// Adds a file, or stdin, that is read. `option` is the option before the path; empty for a positional argument.
    pub fn read(&mut self, option: &'static str, path: &Path) {
        self.reads.push(Named::new(option, path, Resolved::resolve_input(path)));
    }

    /// Adds a file that is written and must not be one of those that are read.
    pub fn write(&mut self, option: &'static str, path: &Path) {
        self.edit(option, path, &[]);
    }

    /// Adds a file that is written and may replace the inputs `over`: an edit in place.
    pub fn edit(&mut self, option: &'static str, path: &Path, over: &[&Path]) {
        let named = Named::new(option, path, Resolved::resolve(path));
        let over = over.iter().map(|path| Resolved::resolve_input(path)).collect();
        self.writes.push(Write { named, over });
    }

    /// Adds a folder whose files are read or written. Files to write are added separately, once they are known.
    pub fn folder(&mut self, option: &'static str, path: &Path) {
        self.folders.push(Named::new(option, path, Resolved::resolve(path)));
    }

    /// Declares that binary data is written to stdout.
    pub fn binary_stdout(&mut self) {
        self.binary = true;
    }

    /// The files that are edited in place, in an order that is the same in every process.
    pub fn edited_paths(&self) -> Vec<PathBuf> {
        let in_place = |write: &&Write| write.over.iter().any(|over| over.id == write.named.place.id);
        let mut edited: Vec<PathBuf> = self
            .writes
            .iter()
            .filter(in_place)
            .map(|write| pteron_runtime::replaced_path(&write.named.path))
            .collect();
        edited.sort();
        edited
    }

    /// All paths, with the options that named them.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.named_paths().map(|named| (named.option, &*named.path))
    }

    fn named_paths(&self) -> impl Iterator<Item = &Named> {
        self.reads.iter().chain(self.writes.iter().map(|write| &write.named)).chain(&self.folders)
    }

    /// Checks for conflicts.
    ///
    /// # Errors
    /// If two outputs are the same file, an output would replace an input that it is not an edit of, a stream is read
    /// twice, a file output is stdout, stdout is redirected to one of the files, or binary data would go to a terminal.
    /// The message says what to do.
    pub fn check(&self, stdout_is_terminal: bool) -> Result<(), String> {
        if self.binary && stdout_is_terminal {
            return Err(BINARY_TO_TERMINAL.to_owned());
        }
        for (i, read) in self.reads.iter().enumerate() {
            // The file that stdin is redirected from can still be opened by its name.
            let once = |r: &&Named| r.place.once && read.place.once && r.place.id == read.place.id;
            let again = self.reads[..i].iter().find(once);
            if let Some(first) = again {
                return Err(format!("{first} and {read} are one stream, which can be read only once"));
            }
        }
        let files = self.writes.iter().map(|write| &write.named);
        if let Some(named) = files.chain(&self.folders).find(|n| n.path.as_os_str() == STANDARD_STREAM) {
            return Err(format!("{named}: this cannot go to stdout; name a file or folder"));
        }
        for (i, write) in self.writes.iter().enumerate() {
            let named = &write.named;
            if named.place.endless {
                continue;
            }
            if let Some(first) = self.writes[..i].iter().find(|w| w.named.place.id == named.place.id) {
                return Err(format!(
                    "{} and {named} are one file, and each would be written over by the other: name two",
                    first.named
                ));
            }
            let allowed = write.over.iter().any(|over| over.id == named.place.id);
            let over = self.reads.iter().find(|read| read.place.id == named.place.id);
            if let Some(read) = over.filter(|_| !allowed) {
                return Err(format!("{named} would replace {read}, which is read: name another file"));
            }
        }
        let stdout = Resolved::resolve_stdout();
        let clash = |named: &&Named| stdout.as_ref().is_some_and(|stdout| stdout.id == named.place.id);
        match self.named_paths().find(clash) {
            Some(named) => Err(format!("stdout goes to the same file as {named}: send it to another")),
            None => Ok(()),
        }
    }
}

/// The error for binary output to a terminal.
pub const BINARY_TO_TERMINAL: &str =
    "the output is binary and stdout is a terminal: name a file with `-o FILE`, or pipe it on";

impl Named {
    fn new(option: &'static str, path: &Path, place: Resolved) -> Self {
        Self { option, path: path.to_owned(), place }
    }
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.option {
            "" => write!(f, "`{}`", self.path.display()),
            option => write!(f, "`{option} {}`", self.path.display()),
        }
    }
}

/// The file that a path resolves to.
#[derive(Debug)]
struct Resolved {
    id: Id,
    /// Whether the file can be read only once: a pipe or socket.
    once: bool,
    /// Whether the file is a character device, such as `/dev/null`, which may be read and written repeatedly.
    endless: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Id {
    /// An existing file, by device and inode.
    #[cfg(unix)]
    File { device: u64, inode: u64 },
    /// A file that does not exist, or whose inode is not known, by its path.
    Path(PathBuf),
}

impl Resolved {
    fn resolve_input(path: &Path) -> Self {
        if !is_stdin(path) {
            return Self::resolve(path);
        }
        // If stdin is redirected from a file, it is that file; otherwise it is a stream of its own.
        let file = fs::metadata("/dev/stdin").ok().filter(Metadata::is_file);
        let id = file
            .and_then(|meta| Id::from_metadata(&meta))
            .unwrap_or_else(|| Id::Path(STANDARD_STREAM.into()));
        Self { id, once: true, endless: false }
    }

    /// The file that stdout is redirected to, if it is redirected to one.
    fn resolve_stdout() -> Option<Self> {
        let id = fs::metadata("/dev/stdout")
            .ok()
            .filter(Metadata::is_file)
            .and_then(|meta| Id::from_metadata(&meta))?;
        Some(Self { id, once: false, endless: false })
    }

    fn resolve(path: &Path) -> Self {
        let Ok(meta) = fs::metadata(path) else {
            let id = Id::Path(fold_case(pteron_runtime::replaced_path(path)));
            return Self { id, once: false, endless: false };
        };
        let id = Id::from_metadata(&meta).unwrap_or_else(|| {
            Id::Path(fold_case(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())))
        });
        Self { id, once: is_pipe(&meta), endless: is_char_device(&meta) }
    }
}

impl Id {
    #[cfg(unix)]
    fn from_metadata(meta: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(Self::File { device: meta.dev(), inode: meta.ino() })
    }

    #[cfg(not(unix))]
    fn from_metadata(_: &Metadata) -> Option<Self> {
        None
    }
}

/// The path in lower case on systems whose file names are case-insensitive.
fn fold_case(path: PathBuf) -> PathBuf {
    match cfg!(any(windows, target_vendor = "apple")) {
        true => path.to_string_lossy().to_lowercase().into(),
        false => path,
    }
}

#[cfg(unix)]
fn is_pipe(meta: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    meta.file_type().is_fifo() || meta.file_type().is_socket()
}

#[cfg(unix)]
fn is_char_device(meta: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_char_device(&meta.file_type())
}

#[cfg(not(unix))]
fn is_pipe(_: &Metadata) -> bool {
    false
}

#[cfg(not(unix))]
fn is_char_device(_: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty folder of this test's own.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("pteron-paths-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("sub")).unwrap();
        folder
    }

    fn refused(fill: impl FnOnce(&mut Paths)) -> Option<String> {
        let mut paths = Paths::default();
        fill(&mut paths);
        paths.check(false).err()
    }

    #[test]
    fn two_outputs_must_be_different_files() {
        let folder = folder("outputs");
        let (one, other) = (folder.join("x"), folder.join("sub/../x"));
        let e = refused(|p| {
            p.write("-o", &one);
            p.write("--data", &other);
        });
        assert!(e.unwrap().contains("are one file"));
        let e = refused(|p| {
            p.write("-o", &one);
            p.write("--data", &folder.join("y"));
        });
        assert_eq!(e, None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_output_replaces_only_the_file_it_edits() {
        let folder = folder("inputs");
        let (one, other, link) = (folder.join("a"), folder.join("b"), folder.join("link"));
        fs::write(&one, "a").unwrap();
        fs::write(&other, "b").unwrap();
        fs::hard_link(&one, &link).unwrap();
        let check = |output: &Path, edit: bool| {
            refused(|p| {
                p.read("", &one);
                p.read("--data", &other);
                if edit { p.edit("-o", output, &[&one]) } else { p.write("-o", output) }
            })
        };
        assert!(check(&one, false).unwrap().contains("would replace"));
        assert!(check(&folder.join("./sub/../a"), false).is_some());
        assert_eq!(check(&one, true), None);
        assert!(check(&other, true).unwrap().contains("`--data"));
        assert_eq!(check(&folder.join("new"), false), None);
        if cfg!(unix) {
            assert!(check(&link, false).is_some());
            assert_eq!(check(&link, true), None);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn dangling_links_are_followed() {
        let folder = folder("dangling");
        std::os::unix::fs::symlink("x", folder.join("link")).unwrap();
        let e = refused(|p| {
            p.write("-o", &folder.join("link"));
            p.write("--data", &folder.join("x"));
        });
        assert!(e.is_some());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_stream_is_read_once_and_devices_are_shared() {
        let e = refused(|p| {
            p.read("", Path::new("-"));
            p.read("--data", Path::new("-"));
        });
        assert_eq!(e.unwrap(), "`-` and `--data -` are one stream, which can be read only once");
        if cfg!(unix) {
            let null = Path::new("/dev/null");
            let e = refused(|p| {
                p.read("", null);
                p.write("--trace", null);
                p.write("--etdump", null);
            });
            assert_eq!(e, None);
        }
        assert!(refused(|p| p.write("--trace", Path::new("-"))).is_some());
    }

    #[test]
    fn binary_output_to_a_terminal_is_refused() {
        let mut paths = Paths::default();
        paths.check(true).unwrap();
        paths.binary_stdout();
        paths.check(false).unwrap();
        assert_eq!(paths.check(true).unwrap_err(), BINARY_TO_TERMINAL);
    }
}
