use super::*;
use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, RecordBatchReader, StringArray};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use pteron_runtime::{LoadOptions, Program};
use pteron_toolbox::Result;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A program with one input of [batch, 12] and one output of [batch, 3], whose batch is dynamic.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/dynamic/mlp/model.pte");

/// A folder of one test, which is removed with its files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pteron-batch-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn parquet(&self, name: &str, rows: usize) -> PathBuf {
        let path = self.0.join(name);
        let batch = table(rows);
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        path
    }

    fn out(&self) -> PathBuf {
        self.0.join("out")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A table of `rows` rows: row 3 is too short, row 4 is null, an element of row 5 is null, one of row 6 is NaN.
fn table(rows: usize) -> RecordBatch {
    let mut x = ListBuilder::new(Float32Builder::new());
    for row in 0..rows {
        for i in 0..if row == 3 { 5 } else { 12 } {
            match (row, i) {
                (5, 2) => x.values().append_null(),
                (6, 2) => x.values().append_value(f32::NAN),
                _ => x.values().append_value(((row * 12 + i) % 97) as f32 / 97.0),
            }
        }
        x.append(row != 4);
    }
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|id| id * 10)));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("row {row}"))));
    RecordBatch::try_from_iter([("id", ids), ("x", Arc::new(x.finish()) as ArrayRef), ("text", texts)])
        .unwrap()
}

fn options() -> LoadOptions {
    LoadOptions::new(pteron_kernels::registry())
}

fn mapping() -> Mapping {
    Mapping {
        inputs: Inputs::Ordered(vec![vec!["x".to_owned()]]),
        outputs: Some(vec!["y".to_owned()]),
        ..Mapping::default()
    }
}

fn run(
    program: &Path,
    files: &[PathBuf],
    folder: &Path,
    edit: impl FnOnce(&mut Job<'_>),
) -> Result<Vec<MappedFile>> {
    run_with_progress(program, files, folder, None, edit)
}

fn run_with_progress(
    program: &Path,
    files: &[PathBuf],
    folder: &Path,
    progress: Option<&(dyn Fn(usize) + Sync)>,
    edit: impl FnOnce(&mut Job<'_>),
) -> Result<Vec<MappedFile>> {
    let identity = Identity::of(vec![program.to_owned()])?;
    let mut job = Job {
        program: Program::open_with(program, &options().limits)?,
        options: options(),
        identity: &identity,
        mapping: mapping(),
        workers: 2,
        rows: Some(7),
        again: false,
        progress,
    };
    edit(&mut job);
    job.run(files, folder)
}

fn error(program: &Path, files: &[PathBuf], folder: &Path, edit: impl FnOnce(&mut Job<'_>)) -> String {
    pteron_toolbox::one_line(&run(program, files, folder, edit).unwrap_err())
}

/// The rows of a file: for each, the output and the reason.
fn rows_of(batches: impl RecordBatchReader) -> Vec<(Option<Vec<f32>>, Option<String>)> {
    let mut rows = Vec::new();
    for batch in batches {
        let batch = batch.unwrap();
        let (y, reasons) = (batch.column_by_name("y").unwrap(), batch.column_by_name("error").unwrap());
        let (y, reasons) = (y.as_list::<i32>(), reasons.as_string::<i32>());
        for row in 0..batch.num_rows() {
            let numbers = || y.value(row).as_primitive::<Float32Type>().values().to_vec();
            let reason = || reasons.value(row).to_owned();
            rows.push((y.is_valid(row).then(numbers), reasons.is_valid(row).then(reason)));
        }
    }
    rows
}

fn parquet_rows(path: &Path) -> Vec<(Option<Vec<f32>>, Option<String>)> {
    rows_of(ParquetRecordBatchReader::try_new(File::open(path).unwrap(), 1024).unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn rows_have_results_or_reasons() {
    let folder = Folder::new("rows");
    let path = folder.parquet("a.parquet", 40);
    let made = run(PROGRAM.as_ref(), std::slice::from_ref(&path), &folder.out(), |_| {}).unwrap();
    assert_eq!((made[0].rows, made[0].failed, made[0].is_old), (40, 4, false));
    let rows = parquet_rows(&folder.out().join("a.parquet"));
    let reasons = [
        "column `x`: it has 5 elements, a row of [12] takes 12",
        "column `x`: it is null",
        "column `x`: its element 2 is null",
        "column `x`: its element 2 is NaN, or was null, and must be finite",
    ];
    for (row, (y, reason)) in rows.iter().enumerate() {
        match row {
            3..=6 => {
                assert!(y.is_none() && reason.as_ref().unwrap().starts_with(reasons[row - 3]), "{reason:?}")
            }
            _ => assert!(y.as_ref().is_some_and(|y| y.len() == 3) && reason.is_none(), "{row}: {reason:?}"),
        }
    }
    // The number of rows that are read at a time changes nothing.
    let other = folder.0.join("other");
    run(PROGRAM.as_ref(), &[path], &other, |job| (job.rows, job.workers) = (None, 1)).unwrap();
    assert_eq!(parquet_rows(&other.join("a.parquet")), rows);
    assert_eq!(names(&other), ["a.parquet"]);
}

#[test]
fn arrow_files_and_streams_have_the_same_rows() {
    let folder = Folder::new("arrow");
    let (batch, path) = (table(30), folder.parquet("a.parquet", 30));
    let mut file =
        FileWriter::try_new(File::create(folder.0.join("a.arrow")).unwrap(), &batch.schema()).unwrap();
    let mut stream =
        StreamWriter::try_new(File::create(folder.0.join("a.arrows")).unwrap(), &batch.schema()).unwrap();
    for part in [batch.slice(0, 11), batch.slice(11, 0), batch.slice(11, 19)] {
        file.write(&part).unwrap();
        stream.write(&part).unwrap();
    }
    file.finish().unwrap();
    stream.finish().unwrap();
    let out = folder.out();
    let made = run(PROGRAM.as_ref(), std::slice::from_ref(&folder.0), &out, |_| {}).unwrap();
    assert_eq!(made.iter().map(|file| (file.rows, file.failed)).collect::<Vec<_>>(), [(30, 4); 3]);
    let expected = parquet_rows(&out.join(path.file_name().unwrap()));
    let open = |name| File::open(out.join(name)).unwrap();
    assert_eq!(rows_of(FileReader::try_new(open("a.arrow"), None).unwrap()), expected);
    assert_eq!(rows_of(StreamReader::try_new(open("a.arrows"), None).unwrap()), expected);
    let again = run(PROGRAM.as_ref(), std::slice::from_ref(&folder.0), &out, |_| {}).unwrap();
    assert_eq!(again.iter().map(|file| (file.failed, file.is_old)).collect::<Vec<_>>(), [(4, true); 3]);
}

#[test]
fn a_second_run_makes_what_is_not_there_and_refuses_what_differs() {
    let folder = Folder::new("second");
    let paths = [folder.parquet("a.parquet", 9), folder.parquet("b.parquet", 8)];
    let (program, out) = (Path::new(PROGRAM), folder.out());
    run(program, &paths[..1], &out, |_| {}).unwrap();
    let before = fs::metadata(out.join("a.parquet")).unwrap().modified().unwrap();
    let made = run(program, &paths, &out, |_| {}).unwrap();
    assert_eq!(made.iter().map(|file| file.is_old).collect::<Vec<_>>(), [true, false]);
    assert_eq!(fs::metadata(out.join("a.parquet")).unwrap().modified().unwrap(), before);
    let keep = |job: &mut Job<'_>| job.mapping.keep = Some(Vec::new());
    assert!(
        error(program, &paths, &out, keep).contains("a.parquet was made of another options: give another")
    );
    let other = folder.0.join("model.pte");
    fs::copy(program, &other).unwrap();
    assert!(
        run(&other, &paths, &out, |_| {}).unwrap().iter().all(|file| file.is_old),
        "the same bytes elsewhere"
    );
    fs::write(&paths[1], fs::read(&paths[0]).unwrap()).unwrap();
    assert!(error(program, &paths, &out, |_| {}).contains("b.parquet was made of another input"));
    let made = run(program, &paths, &out, |job| job.again = true).unwrap();
    assert!(made.iter().all(|file| !file.is_old));
    folder.parquet("out/a.parquet", 3);
    assert!(error(program, &paths, &out, |_| {}).contains("a.parquet is there, and not from this step"));
}

#[test]
fn a_program_that_is_replaced_is_an_error() {
    let folder = Folder::new("replaced");
    let (program, path) = (folder.0.join("model.pte"), folder.parquet("a.parquet", 40));
    fs::copy(PROGRAM, &program).unwrap();
    let replace = |_: usize| {
        let mut other = fs::read(PROGRAM).unwrap();
        other.push(0);
        // Another table may have been written meanwhile.
        let new = folder.0.join("new.pte");
        if fs::write(&new, other).is_ok() {
            let _ = fs::rename(new, &program);
        }
    };
    let failed = run_with_progress(&program, &[path], &folder.out(), Some(&replace), |_| {}).unwrap_err();
    let found = pteron_toolbox::one_line(&failed);
    assert!(found.contains("another file than the one with which the run began"), "{found}");
    assert!(names(&folder.out()).is_empty());
}

#[test]
fn a_row_that_fails_can_end_the_run() {
    let folder = Folder::new("raise");
    let path = folder.parquet("a.parquet", 40);
    let raise = |job: &mut Job<'_>| {
        (job.mapping.on_error, job.mapping.key) = (OnError::Raise, Some("id".to_owned()));
        job.rows = Some(2);
    };
    let found = error(PROGRAM.as_ref(), &[path], &folder.out(), raise);
    assert!(found.contains("row 3 (key 30): column `x`: it has 5 elements"), "{found}");
    assert!(names(&folder.out()).is_empty());
}

#[test]
fn columns_and_files_that_do_not_fit_are_errors_before_anything_is_executed() {
    let folder = Folder::new("unfit");
    let (program, path, out) = (Path::new(PROGRAM), folder.parquet("a.parquet", 9), folder.out());
    let text = folder.0.join("text.parquet");
    fs::write(&text, "no table").unwrap();
    let other = folder.0.join("deep");
    fs::create_dir_all(&other).unwrap();
    fs::copy(&path, other.join("a.parquet")).unwrap();
    let cases: [(&[PathBuf], &str); 6] = [
        (&[path.clone(), other.join("a.parquet")], "have the same name"),
        (&[text], "no Parquet or Arrow file"),
        (&[folder.0.join("a.csv")], "none of the suffixes .parquet, "),
        (&[folder.0.join("missing.parquet")], "missing.parquet"),
        (std::slice::from_ref(&out), "has no files with the suffixes"),
        (std::slice::from_ref(&path), "no column `q`; the file has id, x, text"),
    ];
    fs::create_dir_all(&out).unwrap();
    for (files, text) in cases {
        let wrong = |job: &mut Job<'_>| {
            if text.contains("column") {
                job.mapping.inputs = Inputs::Ordered(vec![vec!["q".to_owned()]]);
            }
        };
        let found = error(program, files, &folder.out(), wrong);
        assert!(found.contains(text), "{found}");
    }
    assert!(
        error(program, std::slice::from_ref(&path), &folder.0, |_| {})
            .contains("would be replaced by its output")
    );
    let text = |job: &mut Job<'_>| job.mapping.inputs = Inputs::Ordered(vec![vec!["text".to_owned()]]);
    assert!(error(program, &[path], &out, text).contains("column `text` is of the Arrow type `u`"));
    assert!(names(&out).is_empty());
}

#[test]
fn top_and_labels_are_of_the_only_output() {
    let folder = Folder::new("top");
    let path = folder.parquet("a.parquet", 9);
    let labels = |job: &mut Job<'_>| {
        (job.mapping.labels, job.mapping.keep) =
            (Some(["p", "q", "r"].map(str::to_owned).into()), Some(Vec::new()));
    };
    run(PROGRAM.as_ref(), std::slice::from_ref(&path), &folder.out(), labels).unwrap();
    let file = File::open(folder.out().join("a.parquet")).unwrap();
    let batch = ParquetRecordBatchReader::try_new(file, 100).unwrap().next().unwrap().unwrap();
    let schema = batch.schema();
    let fields: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(fields, ["y", "y_score", "error"]);
    let labels = batch.column(0).as_string::<i32>();
    assert!(labels.is_null(3) && ["p", "q", "r"].contains(&labels.value(0)));
    let four = |job: &mut Job<'_>| job.mapping.top = Some(4);
    assert!(error(PROGRAM.as_ref(), &[path], &folder.out(), four).contains("top is 1 to 3"));
}

#[test]
fn damaged_files_are_errors() {
    let folder = Folder::new("damaged");
    let batch = table(30);
    let path = folder.parquet("a.parquet", 30);
    let arrow = folder.0.join("a.arrow");
    let mut writer = FileWriter::try_new(File::create(&arrow).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    std::panic::set_hook(Box::new(|_| {}));
    for path in [path, arrow] {
        let whole = fs::read(&path).unwrap();
        for step in 0..60 {
            let mut bytes = whole.clone();
            match step {
                0..20 => bytes.truncate(bytes.len() * step / 20),
                _ => {
                    let at = 8 + step * 7919 % (bytes.len() - 8);
                    bytes[at] ^= 1 << (step % 8);
                }
            }
            fs::write(&path, bytes).unwrap();
            // An error or, if nothing of the structure was hit, a result.
            if let Err(error) =
                run(PROGRAM.as_ref(), std::slice::from_ref(&path), &folder.out(), |job| job.again = true)
            {
                assert!(!pteron_toolbox::one_line(&error).is_empty());
            }
        }
    }
    let _ = std::panic::take_hook();
}
