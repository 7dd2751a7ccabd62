//! Compiled modules: custom forms of the operations in them, and their round trip through BEF.

const SOURCE: &str = include_str!("data/compiled_ops.mlir");

#[test]
fn custom_forms_round_trip() {
    let module = pteron_mlir::parse(SOURCE, "compiled_ops.mlir").expect("well-formed");
    let shown = pteron_mlir::print(&module, pteron_mlir::PrintOptions::default());
    let again = pteron_mlir::parse(&shown, "shown").expect("reads back");
    assert_eq!(pteron_mlir::print(&again, pteron_mlir::PrintOptions::default()), shown);
    for line in [
        "memref.dim %arg0, %c0 : memref<?xf32>",
        "memref.load %arg0[",
        "math.sqrt",
        "arith.cmpi sgt, ",
        "cf.cond_br ",
        "call @other(",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
}

#[test]
fn bef_stores_the_text_in_generic_form() {
    let module = pteron_mlir::parse(SOURCE, "compiled_ops.mlir").expect("well-formed");
    let program = pteron_mlir::to_bef_module(&module, pteron_mlir::Options::default()).expect("translates");
    let [pteron_bef::Attribute::SymbolRef(symbol)] = program.attributes.values() else {
        panic!("one symbol")
    };
    assert!(
        symbol
            .module
            .starts_with("\"builtin.module\"() ({\n  \"func.func\"() ({\n  ^bb0(%arg0: memref<?xf32>")
    );
    assert!(symbol.module.contains("{predicate = 4 : i64} : (index, index) -> i1"));
    assert!(symbol.module.contains("[^bb1, ^bb2] {operand_segment_sizes = array<i32: 1, 1, 0>}"));
    let back = pteron_mlir::from_bef(&program, pteron_mlir::FromBefOptions::default()).expect("has a text");
    let again = pteron_mlir::to_bef_module(&back, pteron_mlir::Options::default()).expect("translates");
    assert_eq!(again.attributes.values(), program.attributes.values());
}
