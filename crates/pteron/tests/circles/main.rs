//! Circles of imports between the files of a crate: files each of which needs the others, so that none can be read,
//! moved or tested alone. An edge leads from a file that uses an item to the file that defines it, through re-exports:
//! see [`modules`]. Calls of methods leave no path and do not count.

mod modules;
mod source;

use modules::Modules;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A circle of so many files that are one recursion, which no order of files can undo, and why.
#[derive(Clone, Copy)]
struct Recursion(usize, &'static str);

/// The circles of each crate, largest first. A crate that is not listed has none.
const CIRCLES: &[(&str, &[Recursion])] = &[
    (
        "ir",
        &[Recursion(
            2,
            "A constant can be derived from other constants, which its derivation keeps for passes.",
        )],
    ),
    ("pool", &[Recursion(5, "A pool makes workers, which run tasks, which run loops on the pool.")]),
    (
        "tfrt/host",
        &[
            Recursion(
                4,
                "A kernel is called with a frame, which names the calling function, whose body is a list of kernels.",
            ),
            Recursion(
                2,
                "A value can be asynchronous, and an asynchronous value becomes available as a value.",
            ),
        ],
    ),
    (
        "tfrt/mlir",
        &[
            Recursion(
                9,
                "A dialect parses its own operations, and calls the parser for the regions in them.",
            ),
            Recursion(
                4,
                "Attributes have types, and a tensor type has attributes: its encoding. Elements and locations have both.",
            ),
        ],
    ),
];

#[test]
fn circles_of_imports_do_not_grow() {
    let mut wrong = Vec::new();
    let crates = crates(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    for (name, folder) in &crates {
        let circles = circles(folder);
        let sizes: Vec<usize> = circles.iter().map(Vec::len).collect();
        let expected: Vec<usize> = listed(name).iter().map(|recursion| recursion.0).collect();
        if sizes != expected {
            wrong.push(format!("{name} has circles of {sizes:?} files, and {expected:?} in the table:"));
            wrong.extend(circles.iter().map(|files| format!("  {}", files.join(" "))));
        }
    }
    let unknown = CIRCLES.iter().filter(|(name, _)| !crates.contains_key(*name));
    wrong.extend(unknown.map(|(name, _)| format!("there is no crate {name}")));
    assert!(
        wrong.is_empty(),
        "cut the circles that are new, and update the table where they are fewer:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_recursion_says_why() {
    let recursions = CIRCLES.iter().flat_map(|(_, circles)| *circles);
    recursions
        .for_each(|Recursion(_, why)| assert!(why.ends_with('.') && why.len() > 40, "{why:?} is no reason"));
}

fn listed(name: &str) -> &'static [Recursion] {
    CIRCLES.iter().find(|(listed, _)| *listed == name).map_or(&[], |(_, circles)| circles)
}

/// The folders of the crates in a folder and its subfolders, by their path there.
fn crates(root: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.join("src").is_dir() && path.join("Cargo.toml").exists() {
                let name = path.strip_prefix(root).expect("within the root").display().to_string();
                files.insert(name.replace('\\', "/"), path);
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    files
}

/// The circles of a crate, largest first: the paths of their files in its `src` folder.
fn circles(folder: &Path) -> Vec<Vec<String>> {
    let src = folder.join("src");
    let roots = ["lib.rs", "main.rs"].map(|root| src.join(root));
    let read: Vec<Modules> =
        roots.iter().filter(|root| root.exists()).map(|root| Modules::read(root)).collect();
    let edges: BTreeSet<(&Path, &Path)> = read.iter().flat_map(Modules::edges).collect();
    let mut circles = components(&edges);
    circles.sort_by_key(|files| std::cmp::Reverse(files.len()));
    let name = |file: &Path| file.strip_prefix(&src).expect("in `src`").display().to_string();
    circles.iter().map(|files| files.iter().map(|file| name(file)).collect()).collect()
}

/// The strongly connected components of more than one node.
fn components<'f>(edges: &BTreeSet<(&'f Path, &'f Path)>) -> Vec<BTreeSet<&'f Path>> {
    let mut to = BTreeMap::<&Path, Vec<&Path>>::new();
    edges.iter().for_each(|(from, target)| to.entry(*from).or_default().push(target));
    let reached = |start: &'f Path| {
        let (mut reached, mut left) = (BTreeSet::new(), vec![start]);
        while let Some(file) = left.pop() {
            left.extend(to.get(file).into_iter().flatten().filter(|next| reached.insert(**next)));
        }
        reached
    };
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = to.keys().map(|&file| (file, reached(file))).collect();
    let meet = |a: &Path, b: &Path| reached.get(b).is_some_and(|reached| reached.contains(a));
    let circle = |(file, reached): (&&'f Path, &BTreeSet<&'f Path>)| -> BTreeSet<&'f Path> {
        reached.iter().copied().filter(|other| meet(file, other)).collect()
    };
    // A circle is found from each of its files.
    let circles: BTreeSet<BTreeSet<&Path>> = reached.iter().map(circle).collect();
    circles.into_iter().filter(|files| files.len() > 1).collect()
}

#[test]
fn sources_are_read_as_rust_reads_them() {
    let text = |source| source::tokens(source).iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
    assert_eq!(text("/* a /* b */ */ fn f<'a>(x: &'a u8) // c"), "fn f < 'a > ( x : & 'a u8 )");
    assert_eq!(
        text(r##"'\'' b'"' "}\"" r#"{"# 1.5 0..2 r#use"##),
        r##"'\'' b'"' "}\"" r#"{"# 1.5 0 .. 2 r#use"##
    );
    for test in ["test", "tokio::test", "cfg(test)", "cfg(all(test,not(loom)))"] {
        assert!(source::is_test(test), "{test}");
    }
    for other in ["cfg(not(test))", "cfg(any(test,unix))", "cfg(all(unix,not(test)))", "inline"] {
        assert!(!source::is_test(other), "{other}");
    }
}
