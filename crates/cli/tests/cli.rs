//! Runs the tests under `tests/cli`: each is a file whose first comment lines are directives that say what to run. The
//! format is described in CONTRIBUTING.md, and by the test `tests/cli/format.cli`.
//!
//! `BLESS=1` writes the output of the command to the expected files beside the test instead of comparing.

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long one command may take.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    let args = Arguments::from_args();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let mut files = Vec::new();
    collect(&dir, &mut files);
    files.sort();
    let mut trials = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let Some(test) = Test::parse(&text) else { continue };
        // A verb behind a feature.
        if !cfg!(feature = "batch") && file.starts_with(dir.join("batch")) {
            continue;
        }
        let name = file.strip_prefix(&dir).unwrap_or(&file).display().to_string();
        trials.push(Trial::test(name, move || test.check(&file)));
    }
    libtest_mimic::run(&args, trials).exit();
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.extension().and_then(|e| e.to_str()) {
            _ if path.is_dir() => collect(&path, files),
            Some("stdout" | "stderr") => {}
            _ => files.push(path),
        }
    }
}

/// The directives in the first comment lines of a file.
struct Test {
    /// The commands of the pipe, each a list of arguments of `pteron`.
    pipe: Vec<Vec<String>>,
    /// The exit status of the last command.
    status: i32,
    /// Whether durations in the output vary, and are replaced before comparing.
    times: bool,
    /// Files to create before any command runs.
    make: Vec<Make>,
    /// Commands to run before those of the pipe; all of them must succeed.
    first: Vec<Vec<String>>,
}

/// A file derived from another by truncating it or overwriting parts.
struct Make {
    name: String,
    source: String,
    edits: Vec<Edit>,
}

enum Edit {
    Cut(usize),
    Put(usize, Vec<u8>),
    Sub(String, String),
}

impl Test {
    fn parse(text: &str) -> Option<Self> {
        let mut test =
            Self { pipe: Vec::new(), status: -1, times: false, make: Vec::new(), first: Vec::new() };
        for line in text.lines() {
            let Some(line) = line.strip_prefix('#').or_else(|| line.strip_prefix("//")) else { break };
            let Some((word, rest)) = line.split_once(':') else { continue };
            match word.trim_start_matches(' ') {
                _ if line.starts_with("  ") => {}
                "RUN" => test.command(rest, 0),
                "FAIL" => test.command(rest, 1),
                "USAGE" => test.command(rest, 2),
                "FIRST" => test.first.push(words(rest)),
                "TIMES" => test.times = true,
                "MAKE" => test.make.push(Make::parse(rest)),
                _ => {}
            }
        }
        (!test.pipe.is_empty()).then_some(test)
    }

    fn command(&mut self, text: &str, status: i32) {
        self.status = status;
        self.pipe = text.split(" | ").map(words).collect();
    }

    fn check(&self, file: &Path) -> Result<(), Failed> {
        let here = file.parent().ok_or("no folder")?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tmp = std::env::temp_dir().join(format!("pteron-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&tmp)?;

        let places = [("%root", &*root), ("%dir", here), ("%tmp", &*tmp), ("%", file)];
        let fill = |text: &str| {
            places.iter().fold(text.to_owned(), |t, (mark, path)| t.replace(mark, &path.to_string_lossy()))
        };
        for make in &self.make {
            make.write(Path::new(&fill(&make.source)), &tmp)?;
        }

        for command in &self.first {
            let args: Vec<String> = command.iter().map(|a| fill(a)).collect();
            let output = run(&args, &[])?;
            if !output.status.success() {
                let stderr = String::from_utf8_lossy(&output.stderr);
                return Err(format!("FIRST: pteron {} failed: {stderr}", args.join(" ")).into());
            }
        }

        let mut input = Vec::new();
        let mut stderr = Vec::new();
        let mut status = None;
        for command in &self.pipe {
            let args: Vec<String> = command.iter().map(|a| fill(a)).collect();
            let output = run(&args, &input)?;
            input = output.stdout;
            stderr.extend(output.stderr);
            status = output.status.code();
        }
        let _ = fs::remove_dir_all(&tmp);

        let plain = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let text = [&places[3], &places[2], &places[1], &places[0]]
                .iter()
                .fold(text, |t, (mark, path)| t.replace(&*path.to_string_lossy(), mark));
            if self.times { without_times(&text) } else { text }
        };
        let (stdout, stderr) = (plain(&input), plain(&stderr));
        if status != Some(self.status) {
            return Err(format!(
                "exit status {status:?}, expected {}\n--- stdout\n{stdout}--- stderr\n{stderr}",
                self.status
            )
            .into());
        }
        compare(&with_suffix(file, "stdout"), &stdout)?;
        compare(&with_suffix(file, "stderr"), &stderr)
    }
}

impl Make {
    /// `NAME = SOURCE [cut N] [put OFFSET HEX] [sub OLD NEW]…`
    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let mut next = || words.next().unwrap_or_default().to_owned();
        let (name, _, source) = (next(), next(), next());
        let number = |t: String| t.parse().unwrap_or_else(|_| panic!("MAKE: `{t}` is no number"));
        let mut edits = Vec::new();
        loop {
            match next().as_str() {
                "" => break,
                "cut" => edits.push(Edit::Cut(number(next()))),
                "put" => {
                    let at = number(next());
                    let hex = next();
                    let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("MAKE: hex digits");
                    edits.push(Edit::Put(at, (0..hex.len()).step_by(2).map(digit).collect()));
                }
                "sub" => {
                    let (old, new) = (next(), next());
                    assert_eq!(old.len(), new.len(), "MAKE: sub replaces text by text of its length");
                    edits.push(Edit::Sub(old, new));
                }
                other => panic!("MAKE: unknown edit `{other}`"),
            }
        }
        Self { name, source, edits }
    }

    fn write(&self, source: &Path, tmp: &Path) -> Result<(), Failed> {
        let mut bytes = fs::read(source).map_err(|e| format!("MAKE: {}: {e}", source.display()))?;
        for edit in &self.edits {
            match edit {
                Edit::Cut(n) => bytes.truncate(*n),
                Edit::Put(at, new) => bytes
                    .get_mut(*at..*at + new.len())
                    .ok_or("MAKE: put is past the end")?
                    .copy_from_slice(new),
                Edit::Sub(old, new) => {
                    let places = bytes.windows(old.len()).enumerate().filter(|(_, w)| *w == old.as_bytes());
                    let places: Vec<usize> = places.map(|(i, _)| i).collect();
                    if places.is_empty() {
                        return Err(format!("MAKE: `{old}` is not in {}", source.display()).into());
                    }
                    places.iter().for_each(|&i| bytes[i..i + new.len()].copy_from_slice(new.as_bytes()));
                }
            }
        }
        Ok(fs::write(tmp.join(&self.name), bytes)?)
    }
}

/// Splits text at spaces, except within 'single quotes'.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in text.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    if words.first().is_some_and(|w| w == "pteron") {
        words.remove(0);
    }
    words
}

fn run(args: &[String], input: &[u8]) -> Result<std::process::Output, Failed> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pteron"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE")
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let input = input.to_owned();
    let feed = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let id = child.id();
    let wait = std::thread::spawn(move || child.wait_with_output());
    let start = Instant::now();
    while !wait.is_finished() {
        if start.elapsed() > TIMEOUT {
            let _ = Command::new("kill").arg("-9").arg(id.to_string()).status();
            return Err(format!("ran past {TIMEOUT:?}: pteron {}", args.join(" ")).into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = feed.join();
    Ok(wait.join().map_err(|_| "the waiting thread panicked")??)
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Compares the output with the file, or writes the file under `BLESS`. A missing file stands for empty output.
fn compare(file: &Path, found: &str) -> Result<(), Failed> {
    if std::env::var_os("BLESS").is_some() {
        if found.is_empty() {
            let _ = fs::remove_file(file);
            return Ok(());
        }
        return Ok(fs::write(file, found)?);
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    if expected.replace("\r\n", "\n") == found.replace("\r\n", "\n") {
        return Ok(());
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let line = expected.lines().zip(found.lines()).take_while(|(a, b)| a == b).count() + 1;
    Err(format!(
        "{name} differs from line {line} on; run with BLESS=1 if the new output is right\n\
         --- expected\n{expected}--- found\n{found}"
    )
    .into())
}

/// Replaces durations such as `1.25 ms`, and percentages, by `N T`.
fn without_times(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        for i in 1..words.len() {
            let unit = words[i].trim_end_matches(|c: char| !c.is_alphanumeric());
            if (matches!(unit, "ns" | "µs" | "ms" | "s") || words[i].trim_end() == "%")
                && words[i - 1].parse::<f64>().is_ok()
            {
                let end = words[i][unit.len()..].to_owned();
                words[i] = format!("T{end}");
                words[i - 1] = "N".to_owned();
            }
        }
        // The width of a column depends on its values: collapse the padding.
        let indent = words.iter().take_while(|w| w.is_empty()).count();
        let mut at = 0..;
        words.retain(|w| at.next().is_some_and(|i| i < indent) || !w.is_empty());
        out.push_str(&words.join(" "));
    }
    by_name(&out)
}

/// Sorts the rows of tables that are ordered by time by their names instead.
fn by_name(text: &str) -> String {
    let (mut out, mut rows, mut in_table) = (String::new(), Vec::new(), false);
    for line in text.split_inclusive('\n') {
        let is_row = in_table && !line.trim().is_empty() && !line.starts_with('(');
        if is_row {
            rows.push(line);
            continue;
        }
        rows.sort_unstable();
        out.extend(rows.drain(..));
        out.push_str(line);
        in_table = line.starts_with("operator calls ") || line.starts_with("kernel calls ");
    }
    rows.sort_unstable();
    out.extend(rows);
    out
}
