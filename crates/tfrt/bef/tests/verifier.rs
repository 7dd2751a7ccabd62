//! One damaged file for each rule of the verifier, with the expected kind, path and offset of the error.

use pteron_bef::{
    Attribute, DType, Dense, ErrorKind, File, FunctionBuilder, FunctionId, KernelRecord, Limits, Location,
    Module, Register, SectionId, Verified,
};

/// A program that uses most features: functions 0 (a region), 1 (`main`) and 2 (`sync`, a sync function).
///
/// `main` has one argument, in register 0. Kernel 1 has no arguments and defines register 1, kernel 2 uses 0 and 1 and
/// defines 2, kernel 3 uses 2 twice, defines 3 and 4 and has a region. `main` returns 3 and 0.
fn program() -> Vec<u8> {
    let mut module = Module::new(true);
    let file = |line| Location::file("program.mlir", line, 1);
    let mut region = FunctionBuilder::new(&mut module, "", &["i32"]).location(file(1));
    let inner = region.argument(0);
    let inner = region.kernel("negate").location(file(2)).arguments(&[inner]).result("i32");
    let region = region.finish(&[inner]).unwrap();

    let mut main = FunctionBuilder::new(&mut module, "main", &["i32"]).location(file(3));
    let argument = main.argument(0);
    let list = Attribute::Aggregate(vec![Attribute::I1(true), Attribute::string("text")]);
    let tensor = Dense::new(DType::I1, vec![2, 2], vec![0, 1, 1, 0]).unwrap();
    let one = main
        .kernel("constant")
        .location(file(4))
        .attribute("list", list)
        .attribute("value", Attribute::I32(1))
        .result("i32");
    let sum = main
        .kernel("add")
        .location(Location::Name { name: "sum".into(), child: Box::new(file(5)) })
        .arguments(&[argument, one])
        .attribute("tensor", Attribute::Dense(tensor))
        .result("i32");
    let twice = main
        .kernel("twice")
        .location(file(6))
        .arguments(&[sum, sum])
        .function(region)
        .results(&["i32", "i64"]);
    main.finish(&[twice[0], argument]).unwrap();

    let mut sync = FunctionBuilder::new(&mut module, "sync", &["i64"]).sync().location(file(7));
    let x = sync.argument(0);
    let y = sync.kernel("negate").location(file(8)).arguments(&[x]).result("i64");
    let z = sync.kernel("negate").location(file(9)).arguments(&[y]).result("i64");
    sync.finish(&[y, z]).unwrap();
    module.to_bytes().unwrap()
}

const MAIN: FunctionId = FunctionId(1);
const SYNC: FunctionId = FunctionId(2);

/// The undamaged program, with methods that locate its parts.
struct Program {
    bytes: Vec<u8>,
}

impl Program {
    fn verified(&self) -> Verified<'_> {
        File::open(&self.bytes).unwrap().verify().unwrap()
    }

    fn kernel(&self, function: FunctionId, index: usize) -> KernelRecord<'_> {
        self.verified().function(function).unwrap().unwrap().kernel(index).unwrap()
    }

    /// File offset of a word of a kernel's body: `word` counts from the end of its used-by counts.
    fn body(&self, index: usize, word: usize) -> usize {
        let kernel = self.kernel(MAIN, index);
        kernel.start() as usize + 4 * (6 + kernel.results().len() + word)
    }

    fn header(&self, index: usize, word: usize) -> usize {
        self.kernel(MAIN, index).start() as usize + 4 * word
    }

    fn section(&self, id: SectionId) -> usize {
        self.verified().file().section(id).unwrap().start() as usize
    }

    fn record(&self, function: FunctionId) -> usize {
        self.verified().function(function).unwrap().unwrap().start() as usize
    }

    /// File offset of attribute number `index`, in the order of the AttributeTypes section.
    fn attribute(&self, index: usize) -> usize {
        let verified = self.verified();
        let (offset, _) = verified.attribute_types().unwrap().iter().nth(index).unwrap();
        self.section(SectionId::Attributes) + offset as usize
    }
}

/// The expected error of a damaged file: kind, path and, if checked, file offset.
type Expected = (ErrorKind, &'static str, Option<usize>);

fn expect(program: &Program, what: &str, change: impl FnOnce(&mut Vec<u8>), (kind, path, offset): Expected) {
    let mut bytes = program.bytes.clone();
    change(&mut bytes);
    let error = File::open(&bytes).and_then(|file| file.verify().map(drop)).expect_err(what);
    assert_eq!((error.kind, &*error.path), (kind, path), "{what}: {error}");
    if let Some(offset) = offset {
        assert_eq!(error.offset, Some(offset as u64), "{what}: {error}");
    }
}

fn word(at: usize, value: u32) -> impl FnOnce(&mut Vec<u8>) {
    move |bytes| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes())
}

fn byte(at: usize, value: u8) -> impl FnOnce(&mut Vec<u8>) {
    move |bytes| bytes[at] = value
}

#[test]
fn the_undamaged_program_verifies() {
    let program = Program { bytes: program() };
    let verified = program.verified();
    let main = verified.function(MAIN).unwrap().unwrap();
    assert_eq!(main.register_uses(), [2, 1, 2, 1, 0]);
    assert_eq!(main.results(), [Register(3), Register(0)]);
    let used_bys: Vec<Vec<u32>> =
        main.kernel(2).unwrap().used_bys().map(|users| users.iter().collect()).collect();
    assert_eq!(used_bys, [[3, 3]]);
    let pseudo: Vec<Vec<u32>> =
        main.kernel(0).unwrap().used_bys().map(|users| users.iter().collect()).collect();
    assert_eq!(pseudo, [[1], [2]]);
    let place = verified.location(main.kernel(2).unwrap().location()).unwrap().unwrap();
    assert_eq!(place.to_string(), "program.mlir;5;1(sum)");
}

#[test]
fn used_by_lists_may_be_in_any_order() {
    let mut module = Module::new(false);
    let mut function = FunctionBuilder::new(&mut module, "f", &[]);
    let [x, y] = [0, 1].map(|_| function.kernel("constant").result("i32"));
    let sums = [x, x, y].map(|other| function.kernel("add").arguments(&[x, other]).result("i32"));
    function.finish(&sums).unwrap();
    let bytes = module.to_bytes().unwrap();
    let start = |index| {
        let verified = File::open(&bytes).unwrap().verify().unwrap();
        let record = verified.function(FunctionId(0)).unwrap().unwrap();
        record.kernel(index).unwrap().start() as usize
    };
    // After the header, the used-by counts and the results come the kernels without arguments and the users of `x`.
    for (list, usual) in [(start(0) + 32, vec![1, 2]), (start(1) + 32, vec![5, 4, 4, 3, 3])] {
        let words = |users: &[u32]| users.iter().flat_map(|user| user.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(bytes[list..][..4 * usual.len()], words(&usual));
        let verify = |users: &[u32]| {
            let mut bytes = bytes.clone();
            bytes[list..][..4 * users.len()].copy_from_slice(&words(users));
            File::open(&bytes).and_then(|file| file.verify().map(drop)).map_err(|error| error.kind)
        };
        let reversed: Vec<u32> = usual.iter().rev().copied().collect();
        let turned = [&usual[1..], &usual[..1]].concat();
        let twice = [&usual[1..], &usual[1..2]].concat();
        assert_eq!(verify(&reversed), Ok(()));
        assert_eq!(verify(&turned), Ok(()));
        assert_eq!(verify(&twice), Err(ErrorKind::Mismatch));
    }
}

#[test]
fn kernels() {
    use ErrorKind::{Definition, Mismatch, NotAStart, OutOfRange, Truncated};
    let p = Program { bytes: program() };
    let cases: Vec<(&str, usize, u32, Expected)> = vec![
        ("code", p.header(2, 0), 99, (OutOfRange, "functions[1].kernels[2].code", None)),
        (
            "location",
            p.header(2, 1),
            1,
            (NotAStart, "functions[1].kernels[2].location", Some(p.header(2, 1))),
        ),
        ("argument count", p.header(2, 2), 1 << 30, (Truncated, "functions[1].kernels[2].body", None)),
        ("result count", p.header(2, 5), 1 << 30, (Truncated, "functions[1].kernels[2].num_used_bys", None)),
        ("used-by count", p.header(2, 6), 1 << 31, (Truncated, "functions[1].kernels[2].body", None)),
        ("register", p.body(2, 1), 5, (OutOfRange, "functions[1].kernels[2].args[1]", Some(p.body(2, 1)))),
        (
            "later register",
            p.body(2, 1),
            3,
            (Definition, "functions[1].kernels[2].args[1]", Some(p.body(2, 1))),
        ),
        (
            "own register",
            p.body(2, 0),
            2,
            (Definition, "functions[1].kernels[2].args[0]", Some(p.body(2, 0))),
        ),
        ("attribute", p.body(1, 1), 5, (OutOfRange, "functions[1].kernels[1].attrs[1]", Some(p.body(1, 1)))),
        ("function", p.body(3, 2), 3, (OutOfRange, "functions[1].kernels[3].funcs[0]", Some(p.body(3, 2)))),
        ("result", p.body(3, 4), 5, (OutOfRange, "functions[1].kernels[3].results[1]", Some(p.body(3, 4)))),
        (
            "second definition",
            p.body(3, 4),
            1,
            (Definition, "functions[1].kernels[3].results[1]", Some(p.body(3, 4))),
        ),
        ("another argument", p.body(3, 1), 1, (Mismatch, "functions[1].registers[1]", None)),
        ("user out of range", p.body(2, 4), 4, (OutOfRange, "functions[1].kernels[2].used_bys[0]", None)),
        ("wrong user", p.body(2, 4), 2, (Mismatch, "functions[1].kernels[2].used_bys[0]", None)),
        ("user of nothing", p.body(0, 2), 2, (Mismatch, "functions[1].kernels[0].used_bys[0]", None)),
        ("pseudo code", p.header(0, 0), 1, (Mismatch, "functions[1].kernels[0]", None)),
        (
            "pseudo result",
            p.body(0, 0),
            4,
            (Mismatch, "functions[1].kernels[0].results[0]", Some(p.body(0, 0))),
        ),
        (
            "pseudo argument",
            p.body(0, 1),
            1,
            (Mismatch, "functions[1].kernels[0].results[1]", Some(p.body(0, 1))),
        ),
    ];
    for (what, at, value, expected) in cases {
        expect(&p, what, word(at, value), expected);
    }
    // An offset that means "no location" is valid.
    let mut bytes = p.bytes.clone();
    word(p.header(2, 1), u32::MAX - 1)(&mut bytes);
    File::open(&bytes).unwrap().verify().unwrap();
}

#[test]
fn function_records() {
    use ErrorKind::{Limit, Misaligned, Mismatch, NotAStart, OutOfRange, Padding, TrailingBytes};
    let p = Program { bytes: program() };
    // `location nregs uses[5] nkernels (offset operands stream)[4] results[2]`, all of one byte except the location
    // and the last offsets.
    let main = p.record(MAIN);
    let cases: Vec<(&str, usize, u8, Expected)> = vec![
        ("location", main, 1, (NotAStart, "functions[1].location", Some(main))),
        ("registers", main + 1, 4, (Padding, "functions[1].kernels", None)),
        ("use count", main + 2, 9, (Mismatch, "functions[1].registers[0]", None)),
        ("kernel offset", main + 11, 2, (Misaligned, "functions[1].kernels[1]", Some(main + 11))),
        ("kernel offset of another", main + 11, 4, (Mismatch, "functions[1].kernels[1]", None)),
        ("operands", main + 12, 1, (Mismatch, "functions[1].kernels[1]", None)),
    ];
    for (what, at, value, expected) in cases {
        expect(&p, what, byte(at, value), expected);
    }
    let function = p.verified().function(MAIN).unwrap().unwrap();
    let list = function.kernels_start() as usize;
    assert_eq!(p.bytes[list - 1], 0xCC);
    expect(&p, "padding", byte(list - 1, 0), (Padding, "functions[1].kernels", Some(list - 1)));
    let result = p.bytes[..list].iter().rposition(|&byte| byte != 0xCC).unwrap();
    expect(&p, "result register", byte(result, 77), (OutOfRange, "functions[1].results[1]", None));

    let sync = p.verified().function(SYNC).unwrap().unwrap();
    let list = sync.kernels_start() as usize;
    let result = p.bytes[..list].iter().rposition(|&byte| byte != 0xCC).unwrap();
    expect(&p, "sync argument", byte(result, 0), (Mismatch, "functions[2].results[1]", None));
    expect(&p, "sync twice", byte(result, 1), (Mismatch, "functions[2].results[1]", None));

    // FunctionIndex: `count`, then `kind offset name nargs arg nresults results` each.
    let index = p.section(SectionId::FunctionIndex);
    let region = index + 1;
    assert_eq!(p.bytes[region..region + 2], [0, 0]);
    expect(&p, "kind", byte(region, 3), (ErrorKind::UnknownTag, "function_index[0]", Some(region)));
    expect(
        &p,
        "argument type",
        byte(region + 4, 9),
        (OutOfRange, "function_index[0].arguments[0]", Some(region)),
    );
    expect(
        &p,
        "result type",
        byte(region + 6, 9),
        (OutOfRange, "function_index[0].results[0]", Some(region)),
    );
    expect(&p, "other type", byte(region + 6, 1), (Mismatch, "functions[0].register_types[1]", None));
    expect(&p, "gap at the start", byte(region + 1, 1), (TrailingBytes, "functions", None));
    expect(&p, "native without a record", byte(region, 1), (TrailingBytes, "functions", None));
    expect(&p, "name", byte(region + 2, 2), (NotAStart, "function_index[0].name.strings[2]", None));

    let few = Limits { max_kernels: 3, ..Limits::default() };
    let error = File::open_with(&p.bytes, few).unwrap().verify().unwrap_err();
    assert_eq!((error.kind, &*error.path), (Limit, "functions[1].kernels"));
}

#[test]
fn attributes() {
    use ErrorKind::{Misaligned, Mismatch, OutOfRange, Overlap, Truncated, UnknownTag, Value};
    let p = Program { bytes: program() };
    // In order of first use: the list, the scalar, the tensor.
    let (list, tensor) = (p.attribute(0), p.attribute(2));
    let types = p.section(SectionId::AttributeTypes);
    assert_eq!(p.bytes[types], 3);
    let first = list + 20 + 1;
    assert_eq!(p.bytes[first - 1..=first], [DType::I1.number(), 1]);
    let bytes: Vec<(&str, usize, u8, Expected)> = vec![
        ("bool", first, 2, (Value, "attributes[0].elements[0]", Some(first))),
        ("element type", first - 1, 0, (UnknownTag, "attributes[0].elements[0]", Some(first - 1))),
        ("alignment", list, 3, (Value, "attributes[0]", Some(list))),
        ("larger alignment", list, 16, (Value, "attributes[0]", Some(list))),
        ("prefix size", list + 2, 0, (Mismatch, "attributes[0]", Some(list + 2))),
        ("smaller byte size", list + 4, 28, (Truncated, "attributes[0].elements[1]", None)),
        ("larger byte size", list + 4, 33, (Mismatch, "attributes[0]", Some(list + 4))),
        ("element in the table", list + 12, 19, (OutOfRange, "attributes[0].elements[0]", Some(list + 12))),
        ("element past the end", list + 16, 90, (OutOfRange, "attributes[0].elements[1]", Some(list + 16))),
        ("element twice", list + 16, 21, (Overlap, "attributes[0].elements[1]", None)),
        ("tensor of strings", tensor + 1, 16, (Value, "attributes[2]", None)),
        ("tensor of nothing", tensor + 1, 0, (UnknownTag, "attributes[2].element_type", Some(tensor + 1))),
        ("byte size", tensor + 4, 39, (Mismatch, "attributes[2]", Some(tensor + 4))),
        ("element offset", tensor + 8, 37, (Mismatch, "attributes[2]", Some(tensor + 8))),
        ("element count", tensor + 12, 5, (Mismatch, "attributes[2]", Some(tensor + 12))),
        ("negative size", tensor + 27, 0x80, (Value, "attributes[2]", None)),
        ("tensor of wrong bools", tensor + 37, 3, (Value, "attributes[2]", Some(tensor + 37))),
        ("offset", types + 1, 1, (Misaligned, "attributes[0]", Some(list + 1))),
        ("offset of the one before", types + 3, 0, (Overlap, "attribute_types[1]", Some(types + 3))),
        ("unknown type", types + 2, 24, (UnknownTag, "attribute_types[0]", Some(types + 2))),
    ];
    for (what, at, value, expected) in bytes {
        expect(&p, what, byte(at, value), expected);
    }
}

#[test]
fn tables() {
    use ErrorKind::{Mismatch, NotAStart, OutOfRange, String, TrailingBytes, Truncated, UnknownTag};
    let p = Program { bytes: program() };
    let at = |id| p.section(id);
    let [kernels, types, strings] = [SectionId::Kernels, SectionId::Types, SectionId::Strings].map(at);
    let [names, registers] = [SectionId::AttributeNames, SectionId::RegisterTypes].map(at);
    let [locations, location_strings] = [SectionId::Locations, SectionId::LocationStrings].map(at);
    let file_name = location_strings + "program.mlir".len();
    let cases: Vec<(&str, usize, u8, Expected)> = vec![
        ("kernel name", kernels + 1, 0x7F, (OutOfRange, "kernels[0].strings[127]", None)),
        ("kernel count", kernels, 90, (Truncated, "kernels", Some(kernels))),
        ("fewer kernels", kernels, 3, (TrailingBytes, "kernels", Some(kernels + 4))),
        ("type name", types + 1, 2, (NotAStart, "types[0].strings[2]", None)),
        ("string", strings + 1, 0xFF, (String, "Strings.strings[1]", Some(strings + 1))),
        ("location string", file_name, b'x', (NotAStart, "locations[16].name.strings[13]", None)),
        ("location kind", locations, 5, (UnknownTag, "locations[0]", Some(locations))),
        ("location name", locations + 1, 1, (NotAStart, "locations[0].file.strings[1]", None)),
        ("functions of names", names, 2, (Mismatch, "attribute_names", Some(names))),
        ("kernels of names", names + 1, 3, (Mismatch, "functions[0].attribute_names", Some(names + 1))),
        (
            "attribute name",
            names + 3,
            2,
            (NotAStart, "functions[1].kernels[1].attribute_names.strings[2]", None),
        ),
        ("functions of types", registers, 9, (Mismatch, "register_types", Some(registers))),
        (
            "registers of types",
            registers + 1,
            1,
            (Mismatch, "functions[0].register_types", Some(registers + 1)),
        ),
        ("register type", registers + 2, 9, (OutOfRange, "functions[0].register_types[0]", None)),
        ("other register type", registers + 2, 1, (Mismatch, "functions[0].register_types[0]", None)),
    ];
    for (what, at, value, expected) in cases {
        expect(&p, what, byte(at, value), expected);
    }
}

#[test]
fn the_error_message_names_path_offset_found_and_expected() {
    let p = Program { bytes: program() };
    let mut bytes = p.bytes.clone();
    let at = p.body(2, 1);
    word(at, 127)(&mut bytes);
    let error = File::open(&bytes).unwrap().verify().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "functions[1].kernels[2].args[1]: out of range at byte {at} ({at:#x}): found register 127, expected one below 5"
        )
    );
}
