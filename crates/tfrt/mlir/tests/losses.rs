//! What text cannot hold is refused with the names of the function and kernel; everything else is read again.

use pteron_bef::{
    Attribute, CustomSection, Function, FunctionBuilder, FunctionId, FunctionKind, Location, Module,
};

/// A module with one function `g`, whose only kernel `my.k` is made by `build`.
fn module(
    build: impl FnOnce(pteron_bef::KernelBuilder<'_, '_, 'static>) -> pteron_bef::Register,
) -> Module<'static> {
    let mut module = Module::new(true);
    add(&mut module, "g", build);
    module
}

fn add(
    module: &mut Module<'static>,
    name: &'static str,
    build: impl FnOnce(pteron_bef::KernelBuilder<'_, '_, 'static>) -> pteron_bef::Register,
) -> FunctionId {
    let mut f = FunctionBuilder::new(module, name, &[]);
    let result = build(f.kernel("my.k"));
    f.finish(&[result]).unwrap()
}

fn located(location: Location<'static>) -> Module<'static> {
    module(|k| k.location(location).result("i32"))
}

/// The text of a module, or the reason for refusing it.
fn text(module: &Module<'_>, options: pteron_mlir::FromBefOptions) -> Result<String, String> {
    let print = pteron_mlir::PrintOptions { locations: !options.without_locations, generic: false };
    match pteron_mlir::from_bef(module, options) {
        Ok(found) => Ok(pteron_mlir::print(&found, print)),
        Err(error) => Err(error.to_string()),
    }
}

/// Translates to text and back, and compares the bytes.
fn comes_back(module: &Module<'_>) {
    let shown = text(module, pteron_mlir::FromBefOptions::default()).unwrap();
    let read = pteron_mlir::parse(&shown, "t.mlir").unwrap_or_else(|error| panic!("{error}\n{shown}"));
    let back = pteron_mlir::to_bef(&read, pteron_mlir::Options::default())
        .unwrap_or_else(|e| panic!("{e}\n{shown}"));
    assert!(back == module.to_bytes().unwrap(), "{shown}");
}

#[test]
fn what_text_cannot_hold_is_refused_by_name() {
    let refused = |module: &Module<'_>, expected: &str| {
        let reason = text(module, pteron_mlir::FromBefOptions::default()).expect_err(expected);
        assert!(reason.contains("@g") && reason.contains(expected), "{reason}");
    };
    refused(&located(Location::file("a.py", 1 << 40, 1)), "kernel `my.k`: line 1099511627776");
    refused(&located(Location::file("a.py", 1, 1 << 32)), "kernel `my.k`: column 4294967296");
    refused(&located(Location::file("", 1, 1)), "kernel `my.k`: the file of its location has no name");
    refused(&located(Location::Fused(Vec::new())), "kernel `my.k`: its location is a list without locations");
    let nested = Location::CallSite {
        callee: Box::new(Location::Fused(Vec::new())),
        caller: Box::new(Location::Unknown),
    };
    refused(&located(nested), "list without locations");
    for name in ["_tfrt_cost", "_bef_streams", ""] {
        refused(&module(|k| k.attribute(name, Attribute::from(1)).result("i32")), "is no attribute");
    }
    for name in ["tfrt.return", "func.func", "builtin.module", ""] {
        let mut module = Module::new(true);
        let mut f = FunctionBuilder::new(&mut module, "g", &[]);
        let result = f.kernel(name).result("i32");
        f.finish(&[result]).unwrap();
        refused(&module, "in text this is no kernel");
    }
    // A registered operation with the wrong number of operands.
    let mut module = Module::new(true);
    let mut f = FunctionBuilder::new(&mut module, "g", &[]);
    let result = f.kernel("tfrt.add.i32").result("i32");
    f.finish(&[result]).unwrap();
    refused(&module, "'tfrt.add.i32' op expected 2 operands");
}

#[test]
fn regions_that_text_cannot_hold_are_refused_by_name() {
    let mut own = Module::new(true);
    add(&mut own, "", |k| k.function(FunctionId(0)).result("i32"));
    add(&mut own, "g", |k| k.function(FunctionId(0)).result("i32"));
    let reason = text(&own, pteron_mlir::FromBefOptions::default()).unwrap_err();
    assert!(
        reason.contains("@g: kernel `my.k`: kernel `my.k`: its region, function 0, contains itself"),
        "{reason}"
    );
    let mut shared = Module::new(true);
    let region = add(&mut shared, "", |k| k.result("i32"));
    add(&mut shared, "f", |k| k.function(region).result("i32"));
    add(&mut shared, "g", |k| k.function(region).result("i32"));
    let reason = text(&shared, pteron_mlir::FromBefOptions::default()).unwrap_err();
    assert!(reason.contains("@g: kernel `my.k`: its region, function 0"), "{reason}");
}

#[test]
fn deep_nesting_is_refused_by_name_or_read_again() {
    for depth in 100..140 {
        for lists in [0, 1, 5, 40] {
            let value = (0..lists).fold(Attribute::from("x"), |a, _| Attribute::Aggregate(vec![a]));
            let mut module = Module::new(true);
            let mut region = add(&mut module, "", |k| k.attribute("value", value).result("i32"));
            for _ in 0..depth {
                region = add(&mut module, "", |k| k.function(region).result("i32"));
            }
            add(&mut module, "g", |k| k.function(region).result("i32"));
            match text(&module, pteron_mlir::FromBefOptions::default()) {
                Ok(shown) => {
                    drop(pteron_mlir::parse(&shown, "t.mlir").unwrap_or_else(|e| panic!("{depth}: {e}")))
                }
                Err(reason) => assert!(depth > 80 && reason.contains("@g"), "{depth}: {reason}"),
            }
        }
    }
    for depth in [10, 100, 126, 128, 200, 254] {
        let name = |l| Location::Name { name: "n".into(), child: Box::new(l) };
        let module = located((0..depth).fold(Location::file("a.py", 1, 2), |l, _| name(l)));
        match text(&module, pteron_mlir::FromBefOptions::default()) {
            Ok(shown) => {
                drop(pteron_mlir::parse(&shown, "t.mlir").unwrap_or_else(|e| panic!("{depth}: {e}")))
            }
            Err(reason) => panic!("{depth}: {reason}"),
        }
    }
}

#[test]
fn without_locations_only_their_problems_disappear() {
    let module = located(Location::Fused(Vec::new()));
    let options = pteron_mlir::FromBefOptions { without_locations: true, ..Default::default() };
    assert!(text(&module, options).unwrap().contains("my.k"));
}

#[test]
fn functions_of_one_name_come_back() {
    let mut module = Module::new(true);
    for (name, called) in [("g", None), ("g_1", Some(0)), ("g", Some(0)), ("g", Some(2)), ("h", Some(3))] {
        let mut f = FunctionBuilder::new(&mut module, name, &[]).location(Location::Unknown);
        let kernel = f.kernel("my.k").location(Location::Unknown);
        let kernel = match called {
            Some(id) => kernel.function(FunctionId(id)),
            None => kernel,
        };
        let result = kernel.result("i32");
        f.finish(&[result]).unwrap();
    }
    comes_back(&module);
}

#[test]
fn custom_sections_and_newer_types_come_back() {
    let mut module = Module::new(true);
    module.custom_sections =
        vec![CustomSection { id: 77, alignment: 8, data: (0..=255).collect::<Vec<u8>>().into() }];
    let mut f = FunctionBuilder::new(&mut module, "g", &[]).location(Location::Unknown);
    let chain = f.kernel("tfrt.new.chain").location(Location::file("a.py", 1, 1)).result("!tfrt.chain");
    let shape = Attribute::Array(pteron_bef::Array::from_i64s(&[3]));
    let kernel = f.kernel("tfrt_dht.create_uninitialized_tensor.i32.1").attribute("shape", shape);
    let tensor = kernel.location(Location::Unknown).result("!tfrt_tensor.tensor");
    let print = f.kernel("tfrt_dht.print_tensor").arguments(&[tensor, chain]).location(Location::Unknown);
    let chain = print.result("!tfrt.chain");
    f.finish(&[chain]).unwrap();
    comes_back(&module);
}

#[test]
fn custom_forms_are_read_with_the_newer_name_of_the_tensor_type() {
    let source = "func.func @f(%t: !tfrt_tensor.tensor, %c: !tfrt.chain) -> !tfrt_tensor.tensor {\n  \
        %0 = tfrt_dht.create_uninitialized_tensor.i32.1 [3 : i64]\n  \
        %1 = tfrt_dht.print_tensor %t, %c\n  tfrt.return %0 : !tfrt_tensor.tensor\n}\n";
    let module = pteron_mlir::parse(source, "t.mlir").unwrap();
    let program = pteron_mlir::to_bef_module(&module, pteron_mlir::Options::default()).unwrap();
    assert!(program.type_names().all(|name| name != "!t.tensor"));
    comes_back(&program);
    let older = source.replace("!tfrt_tensor.tensor", "!t.tensor");
    comes_back(
        &pteron_mlir::to_bef_module(&pteron_mlir::parse(older, "t.mlir").unwrap(), Default::default())
            .unwrap(),
    );
}

#[test]
fn a_native_function_and_a_region_do_not_count_as_names() {
    let mut module = Module::new(true);
    let region = add(&mut module, "", |k| k.location(Location::Unknown).result("i32"));
    let native = module.push_native_function("n", &[], &["i32"]);
    add(&mut module, "g", |k| k.function(native).function(region).location(Location::Unknown).result("i32"));
    assert!(text(&module, pteron_mlir::FromBefOptions::default()).is_ok());
    let again: &Function<'_> = &module.functions[1];
    assert_eq!(again.kind, FunctionKind::Native);
}
