//! Names of results and of files, as in MLIR.

use pteron_mlir::{PrintOptions, parse, print};

const PROGRAM: &str = r#"
func.func @ops(%cpu: !corert.ophandler, %ch: !tfrt.chain, %t: !corert.tensorhandle) -> !tfrt.chain {
  %c0, %r:2 = corert.executeop.seq(%cpu, %ch) "tfrt_test.split"(%t) : 2
  %c1, %s = corert.executeop.seq(%cpu, %c0) "tfrt_test.join"(%r#0, %r#1) : 1
  %c2 = corert.executeop.seq(%cpu, %c1) "tfrt_test.print"(%s) loc("":5:5)
  tfrt.return %c2 : !tfrt.chain
}
"#;

#[test]
fn result_groups_have_the_names_of_the_definition() {
    let module = parse(PROGRAM.as_bytes(), "names.mlir").unwrap();
    let text = print(&module, PrintOptions::default());
    for line in [
        r#"%out_op_chain, %results:2 = corert.executeop.seq(%arg0, %arg1) "tfrt_test.split"(%arg2) : 2"#,
        r#"%out_op_chain_0, %results_1 = corert.executeop.seq(%arg0, %out_op_chain) "tfrt_test.join"(%results#0, %results#1) : 1"#,
        r#"%out_op_chain_2 = corert.executeop.seq(%arg0, %out_op_chain_0) "tfrt_test.print"(%results_1)"#,
        "tfrt.return %out_op_chain_2 : !tfrt.chain",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let again = parse(text.as_bytes(), "names.mlir").unwrap();
    assert_eq!(print(&again, PrintOptions::default()), text);
    let generic = print(&module, PrintOptions { generic: true, ..PrintOptions::default() });
    assert!(!generic.contains("out_op_chain"), "{generic}");
}

#[test]
fn an_empty_file_name_is_printed_as_a_dash() {
    let module = parse(PROGRAM.as_bytes(), "names.mlir").unwrap();
    let text = print(&module, PrintOptions { locations: true, ..PrintOptions::default() });
    assert!(text.contains(r#"loc("-":5:5)"#), "{text}");
}
