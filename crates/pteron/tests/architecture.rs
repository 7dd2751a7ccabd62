//! Architecture rules: which crate may depend on which, and where `unsafe` is allowed. The table of
//! floors in ARCHITECTURE.md gives the reasons.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The floor of every crate of the workspace. A crate may depend on crates of lower floors only.
const FLOORS: &[(&str, i32)] = &[
    ("pteron-clock", -1),
    ("pteron-tensor", 0),
    ("pteron-text", 0),
    ("pteron-trace", 0),
    ("pteron-pool", 0),
    ("pteron-format", 1),
    ("pteron-bef", 1),
    ("pteron-operator", 1),
    ("pteron-ir", 2),
    ("pteron-exported", 3),
    ("pteron-kernels", 3),
    ("pteron-host", 3),
    ("pteron-engine", 4),
    ("pteron-mlir", 4),
    ("pteron-tfrt-kernels", 4),
    ("pteron-runtime", 5),
    ("pteron-compiler", 6),
    ("pteron-toolbox", 6),
    ("pteron-demo-backend", 6),
    ("pteron-backend-xnnpack", 6),
    ("pteron-backend-bef", 6),
    ("pteron-report", 7),
    ("pteron-batch", 7),
    ("pteron-verify", 7),
    ("pteron", 8),
    ("pteron-serve", 9),
    ("pteron-cli", 10),
    ("pteron-python", 9),
    ("pteron-accelerator", 11),
    ("pteron-classifier", 11),
    ("pteron-web", 9),
];

/// The crates that may contain `unsafe`, in small dedicated modules. In `pteron-python` these are `exchange`, which lends
/// memory to Python and borrows memory from it, and the two methods of the buffer protocol. In `pteron-web` it is `abi`, the
/// exported functions of the WebAssembly module (`no_mangle` is unsafe: the names could clash with others).
const MAY_USE_UNSAFE: &[&str] =
    &["pteron-tensor", "pteron-pool", "pteron-kernels", "pteron-host", "pteron-python", "pteron-web"];

fn floor(package: &str) -> Option<i32> {
    FLOORS.iter().find(|(name, _)| *name == package).map(|(_, floor)| *floor)
}

fn packages() -> Vec<Value> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
        .arg(manifest)
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

#[test]
fn a_crate_has_one_name() {
    let mut wrong = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if !dependency["path"].is_null() && !dependency["rename"].is_null() {
                wrong.push(format!("{name} renames {} to {}", dependency["name"], dependency["rename"]));
            }
        }
        // Python asks for the module by the name of its file.
        let targets = package["targets"].as_array().expect("targets").iter();
        let is_library =
            |target: &&Value| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"lib".into()));
        if let Some(library) = targets.clone().find(is_library)
            && name != "pteron-python"
            && library["name"].as_str() != Some(&name.replace('-', "_"))
        {
            wrong.push(format!("the library of {name} is called {}", library["name"]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn crates_depend_on_lower_floors_only() {
    let mut wrong = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        let Some(own) = floor(name) else {
            wrong.push(format!("{name} has no floor: give it one here and in ARCHITECTURE.md"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if dependency["path"].is_null() {
                continue;
            }
            let used = dependency["name"].as_str().expect("a name");
            match floor(used) {
                Some(other) if other < own => {}
                Some(other) => wrong.push(format!("{name} (floor {own}) uses {used} (floor {other})")),
                None => wrong.push(format!("{name} uses {used}, which has no floor")),
            }
        }
    }
    assert!(wrong.is_empty(), "dependencies against the order of floors:\n  {}", wrong.join("\n  "));
}

#[test]
fn other_crates_forbid_unsafe_code() {
    let mut wrong = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        if MAY_USE_UNSAFE.contains(&name) || name == "pteron-cli" {
            continue;
        }
        for target in package["targets"].as_array().expect("targets") {
            let kinds = target["kind"].as_array().expect("kinds");
            if !kinds.iter().any(|k| k == "lib" || k == "bin" || k == "cdylib") {
                continue;
            }
            let root = target["src_path"].as_str().expect("a path");
            let text = std::fs::read_to_string(root).expect("a source file");
            if !text.contains("#![forbid(unsafe_code)]") {
                wrong.push(format!("{root} lacks #![forbid(unsafe_code)]"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_command_has_one_unsafe_block_and_one_foreign_function() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/src");
    let sources = sources(&folder);
    let root = sources.iter().find(|(path, _)| path.ends_with("cli/src/lib.rs")).expect("the root");
    assert!(root.1.contains("#![deny(unsafe_code)]"));
    assert!(root.1.contains("#[allow(unsafe_code)]\nmod maps;"));
    assert!(root.1.contains("#[allow(unsafe_code)]\nmod allocator;"));
    let count = |file: &str, text: &str| {
        let files = sources.iter().filter(|(path, _)| path.ends_with(file));
        files.map(|(_, source)| source.matches(text).count()).sum::<usize>()
    };
    assert_eq!(count("", "allow(unsafe_code)"), 2);
    assert_eq!((count("maps.rs", "unsafe {"), count("", "unsafe {")), (1, 1));
    assert_eq!((count("allocator.rs", "unsafe extern"), count("", "unsafe extern")), (1, 1));
}

#[test]
fn unsafe_code_of_the_python_crate_is_in_one_module() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/src");
    let sources = sources(&folder);
    let root = sources.iter().find(|(path, _)| path.ends_with("lib.rs")).expect("the root");
    assert!(
        root.1.contains("#![deny(unsafe_code)]") && root.1.contains("#[allow(unsafe_code)]\nmod exchange;")
    );
    let others = sources.iter().filter(|(path, _)| !path.contains("exchange") && !path.ends_with("lib.rs"));
    let allowed: Vec<_> =
        others.filter(|(_, text)| text.contains("allow(unsafe_code)")).map(|(path, _)| path).collect();
    let is_tensor = |path: &str| Path::new(path).ends_with("tensor/methods.rs");
    assert!(matches!(allowed[..], [methods] if is_tensor(methods)), "{allowed:?}");
}

#[test]
fn unsafe_code_of_the_web_crate_is_in_one_file() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../web/src"));
    let root = sources.iter().find(|(path, _)| path.ends_with("lib.rs")).expect("the root");
    assert!(root.1.contains("#![deny(unsafe_code)]") && root.1.contains("#[allow(unsafe_code)]\nmod abi;"));
    let allowed: usize = sources.iter().map(|(_, text)| text.matches("allow(unsafe_code)").count()).sum();
    let blocks = sources.iter().map(|(_, text)| text.matches("unsafe {").count());
    assert_eq!((allowed, blocks.sum::<usize>()), (1, 0));
}

/// The paths and texts of the Rust sources in a folder and its subfolders.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push((path.display().to_string(), std::fs::read_to_string(&path).expect("a source file")));
        }
    }
    files
}

#[test]
fn ir_engine_and_runtime_name_no_operators() {
    let namespaces =
        ["aten", "dim_order_ops", "et_copy", "executorch_prim", "llama", "quantized_decomposed", "torchao"];
    let mut wrong = Vec::new();
    for name in ["ir", "engine", "runtime"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        for (path, text) in sources(&folder) {
            let names_one = |line: &str| namespaces.iter().any(|n| line.contains(&format!("\"{n}::")));
            let lines = text.lines().enumerate().filter(|(_, line)| names_one(line));
            // Tests build programs, which name operators.
            if path.ends_with("tests.rs") {
                continue;
            }
            wrong.extend(lines.map(|(i, line)| format!("{path}:{}: {}", i + 1, line.trim())));
        }
    }
    assert!(wrong.is_empty(), "operators are named outside of their table rows:\n  {}", wrong.join("\n  "));
}
