//! Passes in isolation: graphs given as text run through the passes that a case names, and the result is compared as
//! text.
//!
//! A file contains cases. Each consists of a line `== what is tested`, a line `passes: one, another`, a graph of calls,
//! a line `--`, and the expected graph. `PTERON_BLESS=1` rewrites the expected graphs in the files.

use pteron_engine::passes::PASSES;
use pteron_engine::{Derivation, Graph, Isa};
use pteron_operator::{Generator, KernelContext, Scratch};
use pteron_pool::Pool;
use std::fmt::Write;
use std::path::Path;

#[test]
fn passes_give_the_expected_graphs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "txt")).collect();
    files.sort();
    assert!(files.len() > 5);
    let mut wrong = String::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let actual = ran(&text);
        if std::env::var_os("PTERON_BLESS").is_some() {
            std::fs::write(&path, &actual).unwrap();
        } else if actual != text {
            let differs = text.lines().zip(actual.lines()).position(|(a, b)| a != b).unwrap_or(0);
            writeln!(wrong, "{}, line {}:\n{actual}", path.display(), differs + 1).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn derivations_of_folded_constants_are_short() {
    const CALLS: usize = 11;
    let mut text = "graph(%x: float32[64, 64]) {\n%v0: float32[64, 64] = constant 1 2 3 4 5\n".to_owned();
    for i in 0..CALLS {
        let call = format!("aten::permute_copy.out(%v{i}) {{dims: [1, 0]}}");
        writeln!(text, "%v{}: float32[64, 64] = {call}", i + 1).unwrap();
    }
    writeln!(text, "%y: float32[64, 64] = aten::mul.out(%x, %v{CALLS})\nreturn %y\n}}").unwrap();
    let mut graph = Graph::parse(&text, &pteron_kernels::registry()).unwrap();
    let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(0));
    let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::default());
    PASSES.iter().find(|pass| pass.name == "normalize").unwrap().run(&mut graph, &ctx);
    let &[node] = &graph.order()[..] else { panic!("{graph}") };
    let folded = graph.node(node).inputs()[1];
    let elements = graph.floats(folded).unwrap();
    assert!((0..64 * 64).all(|i| elements[i] == ((i % 64 * 64 + i / 64) % 5 + 1) as f32));
    let mut depth = 0;
    let mut derivation = graph.value(folded).constant().unwrap().derivation();
    while let Some(of) = derivation {
        depth += 1;
        derivation = of.inputs()[0].1.derivation();
    }
    assert!((1..=Derivation::MAX_DEPTH).contains(&depth), "{depth}");
}

/// The text of a file with the expected graphs replaced by the actual results.
fn ran(text: &str) -> String {
    let kernels = pteron_kernels::registry();
    let (head, cases) = text.split_once("== ").expect("a case");
    let mut out = head.to_owned();
    for case in cases.split("\n== ") {
        let (name, rest) = case.split_once('\n').expect("a name");
        let (passes, rest) = rest.split_once('\n').expect("passes");
        let names = passes.strip_prefix("passes: ").unwrap_or_else(|| panic!("{name}: no passes"));
        let (input, _) = rest.split_once("--\n").unwrap_or_else(|| panic!("{name}: no result"));
        let mut graph = Graph::parse(input, &kernels).unwrap_or_else(|e| panic!("{name}: {e}"));
        graph.verify().unwrap();
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::default());
        for pass in names.split(", ") {
            let pass = PASSES.iter().find(|p| p.name == pass).unwrap_or_else(|| panic!("no pass {pass}"));
            pass.run(&mut graph, &ctx);
        }
        writeln!(out, "== {name}\n{passes}\n{input}--\n{graph}").unwrap();
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}
