//! Programs that must be rejected, with the expected errors as comments.

/// Programs separated by `// -----`; every `expected-error` must be reported, and no other error.
const PROGRAMS: &str = include_str!("rejections.mlir");

fn diagnostics(source: &str) -> pteron_mlir::Error {
    match pteron_mlir::parse(source, "rejections.mlir") {
        Ok(module) => pteron_mlir::to_bef(&module, pteron_mlir::Options::default()).err().unwrap_or_default(),
        Err(diagnostics) => diagnostics,
    }
}

#[test]
fn each_program_is_rejected_with_the_expected_errors() {
    let mut wrong = Vec::new();
    for (at, program) in PROGRAMS.split("// -----\n").enumerate() {
        let expected =
            pteron_mlir::expectations(program.as_bytes(), "rejections.mlir").expect("well-formed comments");
        assert!(!expected.is_empty(), "program {at} expects nothing");
        let left =
            pteron_mlir::check_diagnostics(program.as_bytes(), "rejections.mlir", &diagnostics(program));
        wrong.extend(left.iter().map(|problem| format!("program {at}: {problem}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn errors_have_the_expected_line_and_column() {
    let cases = [
        ("func.func @f() {\n  %a = tfrt.constant.i32 3000000000000\n}", "m:2:26: "),
        ("func.func @f(%x: f32) {\n  %a = tfrt.add.i32 %x, %x\n}", "m:2:21: "),
        ("func.func @f() {\n  %a = tfrt.constant.f32 1\n}", "m:2:26: "),
        ("func.func @f() {\n  tfrt.minus.i32 %x\n}", "m:2:3: "),
        ("func.func @f() {\n  tfrt.return %x : i32\n}", "m:2:15: "),
        ("func.func @f() {\n  tfrt.return\n", "m:2:14: "),
        ("func.func @f( {\n}", "m:1:14: "),
        ("\"x.y\"() {a = \"open\n} : () -> ()", "m:1:19: "),
        ("\"x.y\"() {a = [1, 2} : () -> ()", "m:1:19: "),
        ("\"x.y\"() {a = 1, a = 2} : () -> ()", "m:1:17: "),
        ("\"x.y\"() : () -> () loc(#nowhere)", "m:1:24: "),
    ];
    for (source, place) in cases {
        let shown = pteron_mlir::parse(source, "m").expect_err("refused")[0].to_string();
        assert!(shown.starts_with(place), "want {place}\n got {shown}");
    }
}
