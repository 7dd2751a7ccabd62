//! The bytes that the writer produces, and the modules that it rejects.

use pteron_bef::model::{AttributeTable, Body, Function, Kernel, NamedAttribute, UntypedAttributes};
use pteron_bef::{
    Array, Attribute, AttributeId, AttributeType, CustomSection, DType, Dense, ErrorKind, File,
    FunctionBuilder, FunctionId, FunctionKind, KernelCode, Location, Module, Register, SectionId, Shape,
    SymbolRef, TypeId,
};

/// The Attributes section of a module with these attributes.
fn attributes(values: &[Attribute<'static>]) -> Vec<u8> {
    let mut module = Module::new(true);
    for value in values {
        module.push_attribute(value.clone());
    }
    let bytes = module.to_bytes().unwrap();
    File::open(&bytes).unwrap().verify().unwrap();
    File::open(&bytes).unwrap().section(SectionId::Attributes).unwrap().bytes().to_vec()
}

const CC: u8 = 0xCC;

#[test]
fn scalars_are_naturally_aligned() {
    let values = [Attribute::I1(true), Attribute::I16(-2), Attribute::f32(1.5), Attribute::Type(DType::QI32)];
    assert_eq!(attributes(&values), [1, CC, 0xFE, 0xFF, 0, 0, 0xC0, 0x3F, 23]);
    let values = [Attribute::UI8(7), Attribute::I64(1)];
    assert_eq!(attributes(&values), [7, CC, CC, CC, CC, CC, CC, CC, 1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn strings_and_arrays_have_32_bit_lengths() {
    assert_eq!(attributes(&[Attribute::string("ab")]), [2, 0, 0, 0, b'a', b'b']);
    assert_eq!(attributes(&[Attribute::string("")]), [0; 4]);
    assert_eq!(attributes(&[Attribute::Array(Array::empty())]), [0; 4]);
    let types = Array::from_types(&[DType::I1, DType::F64]);
    assert_eq!(attributes(&[Attribute::Array(types)]), [2, 0, 0, 0, 5, 11]);
    // Elements of eight bytes are aligned to 8, directly after the count.
    let wide = Array::from_i64s(&[-1]);
    assert_eq!(attributes(&[Attribute::Array(wide)])[..8], [CC, CC, CC, CC, 1, 0, 0, 0]);
}

#[test]
fn shapes_and_tensors_have_a_base() {
    assert_eq!(attributes(&[Attribute::Shape(Shape::Unranked)]), [0; 4]);
    let ranked = attributes(&[Attribute::Shape(Shape::Ranked(vec![-1]))]);
    let expected = [[CC, CC, CC, CC], [8, 0, 12, 0], [20, 0, 0, 0], [1, 0, 0, 0], [0xFF; 4], [0xFF; 4]];
    assert_eq!(ranked, expected.concat());
    let tensor = Dense::new(DType::UI16, vec![2], vec![1, 2, 3, 4]).unwrap();
    let expected = [
        [CC, CC, CC, CC],
        [8, 2, 28, 0],
        [32, 0, 0, 0],
        [28, 0, 0, 0],
        [2, 0, 0, 0],
        [1, 0, 0, 0],
        [2, 0, 0, 0],
        [0, 0, 0, 0],
        [1, 2, 3, 4],
    ];
    assert_eq!(attributes(&[Attribute::Dense(tensor)]), expected.concat());
}

#[test]
fn elements_of_aggregates_follow_their_type_byte() {
    let list = Attribute::Aggregate(vec![Attribute::I1(true), Attribute::string("x"), Attribute::I32(3)]);
    let expected = [
        [4, 0, 24, 0],
        [40, 0, 0, 0],
        [3, 0, 0, 0],
        [25, 0, 0, 0],
        [28, 0, 0, 0],
        [36, 0, 0, 0],
        [5, 1, CC, 16],
        [1, 0, 0, 0],
        [b'x', CC, CC, 8],
        [3, 0, 0, 0],
    ];
    assert_eq!(attributes(&[list]), expected.concat());
}

#[test]
fn symbols_carry_their_module() {
    let symbol = SymbolRef { id: 1, root: "kernels".into(), nested: vec!["f".into()], module: "text".into() };
    assert_eq!(attributes(&[Attribute::SymbolRef(Box::new(symbol))]), b"\x01\x07\x01\x01\x04kernelsftext\0");
}

#[test]
fn aggregates_whose_prefix_exceeds_16_bits_round_trip() {
    let elements: Vec<_> = (0..20_000).map(Attribute::I32).chain([Attribute::I1(true)]).collect();
    let mut module = Module::new(true);
    let id = module.push_attribute(Attribute::Aggregate(elements.clone()));
    let bytes = module.to_bytes().unwrap();
    let module = File::open(&bytes).unwrap().verify().unwrap().to_module().unwrap();
    assert_eq!(module.attribute(id), Some(&Attribute::Aggregate(elements)));
}

#[test]
fn attributes_are_read_as_what_a_kernel_expects() {
    let mut module = Module::new(true);
    let list =
        Attribute::Aggregate(vec![Attribute::f64(0.5), Attribute::Array(Array::from_bools(&[true, false]))]);
    module.push_attribute(Attribute::I64(-5));
    module.push_attribute(list);
    module.push_attribute(Attribute::string("café"));
    let bytes = module.to_bytes().unwrap();
    let verified = File::open(&bytes).unwrap().verify().unwrap();
    let offsets: Vec<u32> =
        verified.attribute_types().unwrap().iter().map(|(offset, _)| offset as u32).collect();
    let number = verified.attribute(offsets[0]);
    assert_eq!((number.i64(), number.u8()), (Ok(-5), Ok(251)));
    assert_eq!(number.bool().unwrap_err().kind, ErrorKind::Value);
    let list = verified.attribute(offsets[1]).aggregate().unwrap();
    assert_eq!(list.len(), 2);
    let (kind, element) = list.get(0).unwrap();
    assert_eq!((kind, element.f64()), (AttributeType::Scalar(DType::F64), Ok(0.5)));
    let (kind, element) = list.get(1).unwrap();
    let AttributeType::Array(element_type) = kind else { panic!("{kind}") };
    assert_eq!(element.array(element_type).unwrap().bools().unwrap().collect::<Vec<_>>(), [true, false]);
    assert_eq!(list.get(2).unwrap_err().kind, ErrorKind::OutOfRange);
    assert_eq!(verified.attribute(offsets[2]).string(), Ok("café"));
    assert_eq!(verified.attribute(u32::MAX).i32().unwrap_err().kind, ErrorKind::Truncated);
}

#[test]
fn constructors_reject_invalid_values() {
    use pteron_bef::ElementType::Data;
    let kind = |error: pteron_bef::Error| error.kind;
    assert_eq!(Dense::new(DType::F32, vec![-1], vec![]).map_err(kind), Err(ErrorKind::Value));
    assert_eq!(Dense::new(DType::String, vec![0], vec![]).map_err(kind), Err(ErrorKind::Value));
    assert_eq!(Dense::new(DType::F32, vec![2], vec![0; 4]).map_err(kind), Err(ErrorKind::Mismatch));
    assert_eq!(Dense::new(DType::I1, vec![1], vec![2]).map_err(kind), Err(ErrorKind::Value));
    assert_eq!(Dense::new(DType::I8, vec![1 << 62, 1 << 62], vec![]).map_err(kind), Err(ErrorKind::Value));
    let empty = Dense::new(DType::I8, vec![1 << 62, 1 << 62, 0], vec![]).unwrap();
    assert_eq!(empty.element_count(), 0);
    assert_eq!(Array::from_bytes(Data(DType::I32), vec![0; 5]).map_err(kind), Err(ErrorKind::Mismatch));
    assert_eq!(Array::from_bytes(Data(DType::Variant), vec![]).map_err(kind), Err(ErrorKind::Value));
    assert_eq!(
        Array::from_bytes(pteron_bef::ElementType::Type, vec![0]).map_err(kind),
        Err(ErrorKind::UnknownTag)
    );
}

fn kernel() -> Kernel<'static> {
    Kernel {
        code: KernelCode(0),
        location: None,
        stream: 0,
        arguments: vec![],
        attributes: vec![],
        functions: vec![],
        results: vec![],
    }
}

/// The writer's error for a module with one kernel and one register, after a change.
fn refusal(
    change: impl FnOnce(&mut Module<'static>, &mut Kernel<'static>, &mut Body<'static>),
) -> (ErrorKind, String) {
    let mut module = Module::new(true);
    module.intern_kernel("kernel");
    let kind = module.intern_type("i32");
    let mut body = Body { registers: vec![Some(kind)], ..Body::default() };
    let mut kernel = Kernel { results: vec![Register(0)], ..kernel() };
    change(&mut module, &mut kernel, &mut body);
    body.kernels.push(kernel);
    let (name, arguments, results) = ("main".into(), vec![], vec![]);
    module.push_function(Function { name, kind: FunctionKind::Async, arguments, results, body: Some(body) });
    let error = module.to_bytes().unwrap_err();
    assert_eq!(error.offset, None);
    (error.kind, error.path.clone())
}

#[test]
fn inconsistent_modules_are_rejected_with_the_path_of_the_field() {
    use ErrorKind::{Mismatch, OutOfRange, String};
    let place = |kind, path: &str| (kind, path.to_string());
    assert_eq!(
        refusal(|_, kernel, _| kernel.arguments.push(Register(1))),
        place(OutOfRange, "functions[0].kernels[1]")
    );
    assert_eq!(
        refusal(|_, kernel, _| kernel.functions.push(FunctionId(1))),
        place(OutOfRange, "functions[0].kernels[1].functions[0]")
    );
    let attribute =
        |name: Option<&'static str>| NamedAttribute { name: name.map(Into::into), value: AttributeId(0) };
    assert_eq!(
        refusal(|_, kernel, _| kernel.attributes.push(attribute(Some("value")))),
        place(OutOfRange, "functions[0].kernels[1].attributes[0]")
    );
    assert_eq!(
        refusal(|module, kernel, _| {
            module.intern_attribute(Attribute::I1(true));
            kernel.attributes.push(attribute(None));
        }),
        place(Mismatch, "functions[0].kernels[1].attributes[0]")
    );
    assert_eq!(refusal(|_, _, body| body.registers[0] = None), place(Mismatch, "functions[0].registers[0]"));
    assert_eq!(refusal(|_, _, body| body.results.push(Register(0))), place(Mismatch, "functions[0]"));
    assert_eq!(refusal(|module, _, _| module.add_string("a\0b")).0, String);
    assert_eq!(
        refusal(|module, _, _| {
            let bytes = [1][..].into();
            module.attributes =
                AttributeTable::with_untyped(UntypedAttributes { bytes, alignment: 1, offsets: vec![] });
        })
        .0,
        Mismatch
    );
}

#[test]
fn a_module_without_functions_is_written_and_verifies() {
    let bytes = Module::new(true).to_bytes().unwrap();
    let file = File::open(&bytes).unwrap();
    // No function, no location: sections 6 and 7 are left out.
    let ids: Vec<u8> = file.sections().map(|section| section.id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 8, 9, 10]);
    assert_eq!(file.verify().unwrap().to_module().unwrap(), Module::new(true));
}

#[test]
fn the_builder_interns_as_the_reference_does() {
    let mut module = Module::new(true);
    let mut function = FunctionBuilder::new(&mut module, "f", &["!tfrt.chain"]);
    let chain = function.argument(0);
    let one = function
        .kernel("tfrt.constant.i64")
        .attribute("value", Attribute::I64(1))
        .attribute("also", Attribute::f32(1.0))
        .result("i64");
    function.kernel("tfrt.print.i64").arguments(&[one, chain]).result("!tfrt.chain");
    let id = function.finish(&[one]).unwrap();
    // Types: those of results, then of attributes sorted by name, then of arguments.
    assert_eq!(module.type_names().collect::<Vec<_>>(), ["i64", "f32", "!tfrt.chain"]);
    assert_eq!(module.kernel_names().collect::<Vec<_>>(), ["tfrt.constant.i64", "tfrt.print.i64"]);
    assert_eq!(module.attribute(AttributeId(0)), Some(&Attribute::f32(1.0)));
    let function = &module.functions[id.index()];
    assert_eq!((&function.arguments, &function.results), (&vec![TypeId(2)], &vec![TypeId(0)]));
    let again = module.intern_attribute(Attribute::I64(1));
    assert_eq!(again, AttributeId(1));
    let missing = FunctionBuilder::new(&mut module, "g", &[]).finish(&[Register(3)]).unwrap_err();
    assert_eq!((missing.kind, &*missing.path), (ErrorKind::OutOfRange, "function \"g\".results[0]"));
}

/// The writer's error for a module with one kernel that has this attribute and this location.
fn written(attribute: Attribute<'static>, location: Location<'static>) -> Result<Vec<u8>, pteron_bef::Error> {
    let mut module = Module::new(true);
    let mut function = FunctionBuilder::new(&mut module, "g", &[]);
    let x = function.kernel("k").attribute("value", attribute).location(location).result("i32");
    function.finish(&[x]).unwrap();
    module.to_bytes()
}

/// What is written is read, and what the reader would refuse is not written.
#[test]
fn the_writer_refuses_what_the_reader_would() {
    let reads = |bytes: Vec<u8>| File::open(&bytes).and_then(|file| file.verify()).map(|_| ());
    let nested = |depth| (0..depth).fold(Attribute::from(1), |a, _| Attribute::Aggregate(vec![a]));
    let name = |l| Location::Name { name: "n".into(), child: Box::new(l) };
    let named = |depth| (1..depth).fold(Location::Unknown, |l, _| name(l));
    for (depth, is_written) in [(1, true), (64, true), (65, false), (500, false)] {
        let outcome = written(nested(depth), Location::Unknown).map(reads).map_err(|error| error.kind);
        assert_eq!(outcome, if is_written { Ok(Ok(())) } else { Err(ErrorKind::Limit) }, "{depth}");
    }
    for (depth, is_written) in [(1, true), (256, true), (257, false), (5000, false)] {
        let outcome = written(Attribute::from(1), named(depth)).map(reads).map_err(|error| error.kind);
        assert_eq!(outcome, if is_written { Ok(Ok(())) } else { Err(ErrorKind::Limit) }, "{depth}");
    }
    use ErrorKind::{Definition, Mismatch, OutOfRange};
    assert_eq!(refusal(|_, kernel, _| kernel.stream = 1 << 32).0, OutOfRange);
    assert_eq!(refusal(|_, _, body| body.root_stream = u64::MAX).0, OutOfRange);
    assert_eq!(refusal(|_, kernel, _| kernel.code = KernelCode(7)).0, OutOfRange);
    assert_eq!(refusal(|_, _, body| body.registers[0] = Some(TypeId(9))).0, OutOfRange);
    assert_eq!(refusal(|_, kernel, _| kernel.results.clear()).0, Definition);
    assert_eq!(refusal(|_, kernel, _| kernel.results.push(Register(0))).0, Definition);
    assert_eq!(refusal(|_, kernel, _| kernel.arguments.push(Register(0))).0, Definition);
    let mut module = Module::new(true);
    module.push_native_function("n", &[], &[]);
    module.functions[0].kind = FunctionKind::Async;
    assert_eq!(module.to_bytes().unwrap_err().kind, Mismatch);
}

#[test]
fn names_that_are_used_too_often_for_the_size_of_the_file_are_refused() {
    let mut module = Module::new(true);
    let name: &'static str = Box::leak("n".repeat(100_000).into_boxed_str());
    let mut function = FunctionBuilder::new(&mut module, "g", &[]);
    for _ in 0..100 {
        function.kernel("k").attribute(name, Attribute::from(1)).no_results();
    }
    function.finish(&[]).unwrap();
    let error = module.to_bytes().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.to_string().contains("Limits::expansion"), "{error}");
}

#[test]
fn custom_sections_round_trip() {
    let mut module = Module::new(true);
    let section = |id, alignment, data: &'static [u8]| CustomSection { id, alignment, data: data.into() };
    module.custom_sections = vec![section(11, 1, b"text"), section(200, 64, &[7; 65]), section(11, 8, b"")];
    let bytes = module.to_bytes().unwrap();
    let file = File::open(&bytes).unwrap();
    let again = file.verify().unwrap().to_module().unwrap();
    let contents = |module: &Module<'_>| -> Vec<(u8, Vec<u8>)> {
        module.custom_sections.iter().map(|s| (s.id, s.data.to_vec())).collect()
    };
    assert_eq!(contents(&again), contents(&module));
    assert!(file.sections().all(|s| s.id != 200 || s.data.start().is_multiple_of(64)));
    assert_eq!(again.to_bytes().unwrap(), bytes);
    module.custom_sections[0].id = 5;
    let error = module.to_bytes().unwrap_err();
    assert_eq!((error.kind, &*error.path), (ErrorKind::DuplicateSection, "custom_sections[0]"));
}

/// The variants of the published grammar that the reference's writer does not use.
#[test]
fn functions_may_end_with_a_zero_word_and_start_with_a_kernel_of_code_0() {
    let mut module = Module::new(false);
    let mut function = FunctionBuilder::new(&mut module, "g", &[]);
    let x = function.kernel("k").result("i32");
    function.finish(&[x]).unwrap();
    let bytes = module.to_bytes().unwrap();
    let pseudo = bytes.windows(4).position(|word| word == [0xAB; 4]).unwrap();
    let mut zeros = bytes.clone();
    zeros[pseudo..pseudo + 8].fill(0);
    let read = |bytes: &[u8]| {
        let program = File::open(bytes).and_then(|file| file.verify());
        program.and_then(|p| p.to_module()).and_then(|m| m.to_bytes()).map_err(|e| e.kind)
    };
    assert_eq!(read(&zeros), Ok(bytes.clone()));
    zeros[pseudo] = 1;
    assert_eq!(read(&zeros), Err(ErrorKind::Mismatch));
    // The Functions section is the last one: four more bytes, and a length that is larger by four.
    let section =
        File::open(&bytes).unwrap().sections().find(|s| s.id == SectionId::Functions as u8).unwrap();
    let end = (section.data.start() + section.data.len()) as usize;
    for (word, outcome) in [([0; 4], Ok(bytes.clone())), ([0, 1, 0, 0], Err(ErrorKind::TrailingBytes))] {
        let mut longer = bytes.clone();
        longer.splice(end..end, word);
        let flag = u64::from(section.alignment.is_some());
        let header = section.header_start as usize + 1;
        let (old, new) = (section.data.len() << 1 | flag, (section.data.len() + 4) << 1 | flag);
        let vbr = |v: u64| vec![0x80 | (v >> 7) as u8, v as u8 & 0x7F];
        assert_eq!(&longer[header..header + 2], vbr(old));
        longer.splice(header..header + 2, vbr(new));
        assert_eq!(read(&longer), outcome);
    }
}
