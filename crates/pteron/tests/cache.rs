//! The cache of compiled programs.
#![cfg(all(feature = "compile", feature = "bef-backend"))]

use pteron::compile::Cache;
use pteron::{EValue, Isa, Module, Tensor};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// A new empty folder for a test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cache-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn kept_in(cache: &Cache, file: &Path, data: &[PathBuf]) -> PathBuf {
    cache.program(file, data, &pteron::load_options().kernels).unwrap()
}

/// The program files in a folder.
fn programs(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|kind| kind == "pte")).collect()
}

fn scores(program: &Path) -> Vec<f32> {
    let mut module = pteron::open(program).unwrap();
    let inputs: Vec<EValue> =
        module.method_meta("forward").unwrap().inputs().into_iter().map(sines).collect();
    module.forward(&inputs).unwrap()[0].as_tensor().unwrap().to_vec().unwrap()
}

fn sines(value: pteron::ValueMeta) -> EValue {
    let meta = value.tensor.unwrap().meta;
    let elements: Vec<f32> = (0..meta.numel()).map(|i| (i as f32 * 0.7).sin()).collect();
    Tensor::from_slice(meta.sizes(), &elements).unwrap().into()
}

fn assert_close(left: &[f32], right: &[f32]) {
    assert_eq!(left.len(), right.len());
    for (l, r) in left.iter().zip(right) {
        assert!((l - r).abs() <= 1e-5 * (1.0 + r.abs()), "{l} is not {r}");
    }
}

#[test]
fn a_cached_program_computes_the_same_and_is_compiled_once() {
    let folder = folder("once");
    let cache = Cache::new(folder.join("made"), Isa::detect());
    for file in
        ["corpus/models/cnn_small/model.pte", "corpus/tiny/xnn_mlp/model.pte", "archives/attention/model.pt2"]
    {
        let file = testdata(file);
        let cached = kept_in(&cache, &file, &[]);
        let written = fs::metadata(&cached).unwrap().modified().unwrap();
        assert_close(&scores(&cached), &scores(&file));
        assert_eq!(kept_in(&cache, &file, &[]), cached);
        assert_eq!(fs::metadata(&cached).unwrap().modified().unwrap(), written);
        let backends =
            Module::open(&cached, pteron::load_options()).unwrap().method_meta("forward").unwrap().backends();
        assert_eq!(backends.len(), 1, "{backends:?}");
    }
}

#[test]
fn a_changed_file_is_recompiled_and_its_old_version_removed() {
    let folder = folder("changes");
    let cache = Cache::new(&folder, Isa::detect());
    let file = folder.join("model.bin");
    fs::copy(testdata("corpus/tiny/xnn_mlp/model.pte"), &file).unwrap();
    let first = kept_in(&cache, &file, &[]);
    let later = SystemTime::now() + Duration::from_secs(5);
    File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
    let second = kept_in(&cache, &file, &[]);
    assert_ne!(first, second);
    assert_eq!(programs(&folder), std::slice::from_ref(&second));
    // Another instruction set has another cached program.
    let portable = kept_in(&Cache::new(&folder, Isa::portable()), &file, &[]);
    assert!(Isa::detect() == Isa::portable() || portable != second);
    assert!(second.is_file());
}

/// What is damaged on the disk is noticed, whatever part of the file it is.
#[test]
fn a_damaged_file_is_compiled_again() {
    let folder = folder("damaged");
    let cache = Cache::new(&folder, Isa::detect());
    let file = testdata("corpus/tiny/xnn_mlp/model.pte");
    let cached = kept_in(&cache, &file, &[]);
    let good = fs::read(&cached).unwrap();
    let mut damages = vec![Vec::new(), good[..good.len() / 2].to_vec(), [&good[..], b"x"].concat()];
    for place in [0, good.len() / 3, good.len() - 1] {
        let mut changed = good.clone();
        changed[place] ^= 0x40;
        damages.push(changed);
    }
    for damaged in damages {
        fs::write(&cached, damaged).unwrap();
        assert_eq!(kept_in(&cache, &file, &[]), cached);
        assert!(fs::read(&cached).unwrap() == good);
        assert_eq!(programs(&folder), std::slice::from_ref(&cached));
    }
}

/// Another file at the same path, of the same size and time.
#[test]
fn a_replaced_file_is_compiled_again() {
    let folder = folder("replaced");
    let cache = Cache::new(folder.join("made"), Isa::detect());
    let file = folder.join("model.bin");
    let time = SystemTime::now();
    let put = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        kept_in(&cache, &file, &[])
    };
    let bytes = fs::read(testdata("corpus/tiny/xnn_mlp/model.pte")).unwrap();
    let first = put(&bytes);
    assert_eq!(put(&bytes), first);
    let mut other = bytes;
    let last = other.len() - 1;
    other[last] ^= 1;
    assert_ne!(put(&other), first);
}

#[cfg(unix)]
#[test]
fn links_in_the_folder_are_not_followed() {
    let folder = folder("links");
    let file = testdata("corpus/tiny/xnn_mlp/model.pte");
    let cache_folder = folder.join("made");
    let cache = Cache::new(&cache_folder, Isa::detect());
    kept_in(&cache, &file, &[]);
    let names: Vec<_> =
        fs::read_dir(&cache_folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    for name in names {
        for target in ["precious", "none"] {
            fs::remove_dir_all(&cache_folder).unwrap();
            fs::create_dir(&cache_folder).unwrap();
            fs::write(folder.join("precious"), "precious").unwrap();
            std::os::unix::fs::symlink(Path::new("..").join(target), cache_folder.join(&name)).unwrap();
            let cached = kept_in(&cache, &file, &[]);
            assert!(fs::symlink_metadata(&cached).unwrap().is_file());
            assert_eq!(fs::read(folder.join("precious")).unwrap(), b"precious");
            assert!(!folder.join("none").exists());
        }
    }
}

#[test]
fn external_weights_are_embedded_in_the_cached_program() {
    let cache = Cache::new(folder("outside"), Isa::detect());
    let file = testdata("corpus/tiny/xnn_mlp_weights_ptd/model.pte");
    let data = [testdata("corpus/tiny/xnn_mlp_weights_ptd/xnn_weights.ptd")];
    let cached = kept_in(&cache, &file, &data);
    assert_close(&scores(&cached), &scores(&testdata("corpus/tiny/xnn_mlp/model.pte")));
}

#[test]
fn concurrent_requests_compile_once() {
    let folder = folder("at-once");
    let file = testdata("corpus/models/cnn_small/model.pte");
    let cached: Vec<PathBuf> = std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| kept_in(&Cache::new(&folder, Isa::detect()), &file, &[])))
            .collect();
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    assert!(cached.iter().all(|path| *path == cached[0]));
    assert_eq!(programs(&folder), &cached[..1]);
}

#[test]
fn a_failed_compilation_gives_a_reason_and_caches_nothing() {
    let folder = folder("refused");
    let cache = Cache::new(&folder, Isa::detect());
    let kernels = pteron::load_options().kernels;
    let missing = cache.program(testdata("no/such.pte"), &[], &kernels).unwrap_err();
    assert!(missing.to_string().contains("such.pte"), "{missing}");
    let opaque = testdata("corpus/wild/demo_backend/model.pte");
    let opaque = cache.program(opaque, &[], &kernels).unwrap_err();
    assert!(opaque.to_string().contains("cannot compile"), "{opaque}");
    assert!(programs(&folder).is_empty());
}
