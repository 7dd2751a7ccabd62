//! No text makes the parser, the translation or the printer panic, hang, overflow the stack or use unbounded memory.

use std::path::Path;

fn sources() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".mlir") {
            found.push((name, std::fs::read(path).expect("a readable file")));
        }
    }
    found.sort();
    found
}

/// A small deterministic random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

/// Runs a text through all stages until one fails: parse, print and parse again, translate to BEF, verify, translate
/// back.
fn exercise(source: &[u8]) -> Option<()> {
    let module = pteron_mlir::parse(source, "m").ok()?;
    let options = pteron_mlir::PrintOptions { locations: true, generic: false };
    let shown = pteron_mlir::print(&module, options);
    let again = pteron_mlir::parse(&shown, "m");
    assert!(again.is_ok(), "{}\n{shown}", again.map_or_else(|d| d[0].to_string(), |_| String::new()));
    let limits = pteron_mlir::Options { max_payload: 1 << 20, ..pteron_mlir::Options::default() };
    let bytes = pteron_mlir::to_bef(&module, limits).ok()?;
    let file =
        pteron_bef::File::open(&bytes).and_then(|file| file.verify()).expect("what is written verifies");
    let program = file.to_module().expect("what verifies can be read");
    let back = pteron_mlir::from_bef(&program, pteron_mlir::FromBefOptions::default())
        .expect("what is written has a text");
    let shown = pteron_mlir::print(&back, options);
    let module = pteron_mlir::parse(&shown, "m").unwrap_or_else(|d| panic!("{}\n{shown}", d[0]));
    let again = pteron_mlir::to_bef(&module, limits).unwrap_or_else(|d| panic!("{}\n{shown}", d[0]));
    assert!(again == bytes, "the text translates to other bytes:\n{shown}");
    Some(())
}

#[test]
fn mutated_texts_do_not_crash() {
    let sources = sources();
    let words: Vec<Vec<u8>> = sources
        .iter()
        .flat_map(|(_, text)| text.split(|b| b" \n".contains(b)).map(<[u8]>::to_vec))
        .filter(|word| !word.is_empty())
        .collect();
    let mut numbers = Random(0x9e37_79b9_7f4a_7c15);
    for (_, text) in sources.iter().filter(|(_, text)| text.len() < 6000) {
        for _ in 0..40 {
            let mut text = text.clone();
            for _ in 0..=numbers.next(3) {
                let at = numbers.next(text.len());
                match numbers.next(6) {
                    0 => drop(text.remove(at)),
                    1 => text[at] = b" ()[]{}<>%#@!^:,=\"-x0"[numbers.next(21)],
                    2 => text.truncate(at),
                    3 => {
                        let end = (at + numbers.next(40)).min(text.len());
                        text.drain(at..end);
                    }
                    _ => {
                        let word = &words[numbers.next(words.len())];
                        let end = at + text[at..].iter().position(|b| b" \n".contains(b)).unwrap_or(0);
                        text.splice(at..end, word.iter().copied());
                    }
                }
                if text.is_empty() {
                    break;
                }
            }
            exercise(&text);
        }
    }
}

fn refused(source: &str) -> String {
    let outcome = pteron_mlir::parse(source, "m").map_err(|diagnostics| diagnostics[0].to_string());
    outcome.err().unwrap_or_else(|| panic!("accepted: {}", &source[..source.len().min(80)]))
}

#[test]
fn nesting_is_bounded() {
    let deep = |open: &str, middle: &str, close: &str, count: usize| {
        format!("{}{middle}{}", open.repeat(count), close.repeat(count))
    };
    for count in [200, 100_000] {
        let sources = [
            format!("\"x.y\"() {{a = {}}} : () -> ()", deep("[", "", "]", count)),
            format!("\"x.y\"() {{a = {}}} : () -> ()", deep("{a = ", "1", "}", count)),
            format!("\"x.y\"() {{a = {}}} : () -> ()", deep("tuple<", "i32", ">", count)),
            format!("\"x.y\"() {{a = {}}} : () -> ()", deep("() -> (", "i32", ")", count)),
            format!("\"x.y\"() : () -> () loc({})", deep("\"a\"(", "unknown", ")", count)),
            format!("\"x.y\"() : () -> () loc({})", deep("callsite(", "unknown", " at unknown)", count)),
            format!("\"x.y\"() {{a = dense<{}> : tensor<1xi8>}} : () -> ()", deep("[", "1", "]", count)),
            deep("\"x.y\"() ({\n", "", "}) : () -> ()\n", count),
            deep("module {\n", "", "}\n", count),
            format!("func.func @f() {{\n{}\n}}", deep("tfrt.repeat.i32 %a {\n", "", "}\n", count)),
        ];
        for source in &sources {
            let message = refused(source);
            assert!(message.contains("nesting is deeper than"), "{message}");
        }
    }
    // Brackets in dialect symbols are scanned iteratively and may nest deeper.
    let source = format!("\"x.y\"() {{a = #x{}}} : () -> ()", deep("<", "", ">", 100_000));
    assert!(pteron_mlir::parse(source, "m").is_ok());
}

#[test]
fn alias_expansion_is_bounded() {
    let chain = |first: &str, next: &dyn Fn(usize) -> String, count: usize, tail: &str| {
        let mut source = format!("{first}\n");
        (1..count).for_each(|at| source.push_str(&next(at)));
        source + tail
    };
    let doubled = chain("#a0 = [1]", &|at| format!("#a{at} = [#a{0}, #a{0}]\n", at - 1), 100, "");
    assert!(refused(&doubled).contains("aliases expand to too many attributes, types and locations"));
    let types = chain("!a0 = i32", &|at| format!("!a{at} = tuple<!a{0}, !a{0}>\n", at - 1), 100, "");
    assert!(refused(&types).contains("aliases expand to too many attributes, types and locations"));
    let deep = chain("#a0 = [1]", &|at| format!("#a{at} = [#a{}]\n", at - 1), 5000, "");
    assert!(refused(&deep).contains("nesting is deeper than"));
    let locations = |count: usize| {
        let body = format!("  \"x.y\"() : () -> () loc(#a{})\n  tfrt.return\n", count - 1);
        let tail = format!("func.func @f() {{\n{body}}}\n");
        chain("#a0 = loc(\"f\":1:1)", &|at| format!("#a{at} = loc(\"n\"(#a{}))\n", at - 1), count, &tail)
    };
    assert!(exercise(locations(250).as_bytes()).is_some());
    assert!(refused(&locations(100_000)).contains("nesting is deeper than"));
}

#[test]
fn sizes_are_bounded() {
    let splat = |shape: &str| format!("\"x.y\"() {{a = dense<1> : tensor<{shape}xi8>}} : () -> ()");
    assert!(refused(&splat("1000000000000")).contains("m:1:"));
    assert!(refused(&splat("4294967296x4294967296x4294967296")).contains("m:1:"));
    let source = format!("func.func @f() {{\n  {}\n  tfrt.return\n}}", splat("1000000"));
    let module = pteron_mlir::parse(&source, "m").expect("a small attribute");
    let limits = pteron_mlir::Options { max_payload: 1000, ..pteron_mlir::Options::default() };
    let message = pteron_mlir::to_bef(&module, limits).expect_err("above the limit")[0].to_string();
    assert!(message.starts_with("m:2:3: error: dense attributes"), "{message}");

    let results =
        "func.func @f(%h: !corert.ophandler) {\n %a:9 = corert.executeop(%h) \"x\"() : 999999999999\n}";
    assert!(refused(results).contains("too many results"));
    assert!(refused("%a:99999999999999999999 = \"x.y\"() : () -> i32").contains("at least 1 result"));
    assert!(refused("\"x.y\"(%a#4000000000) : (i32) -> ()").contains("invalid result number"));
    assert!(refused("\"x.y\"() : () -> i99999999999").contains("bitwidth is limited"));
}

#[test]
fn unusual_texts_are_rejected_or_parsed() {
    for source in [
        "", "\n", "{", "}", "\u{feff}", "\0", "%", "%a =", "\"", "\"x", "#", "#a", "!a = ", "{-#", "loc(",
        "//",
    ] {
        let _ = pteron_mlir::parse(source, "m");
    }
    for spec in ["", "é", "1é", "-", "--1", "1x", "x", "?", "*", "99999999999999999999", "1>", "5x-"] {
        let _ = pteron_mlir::parse_attribute(&format!("#corert.shape<{spec}>"));
    }
    let _ =
        pteron_mlir::parse(b"\"x.y\"() {a = \"\xff\xfe\"} : () -> ()", "m").expect("strings hold any bytes");
}
