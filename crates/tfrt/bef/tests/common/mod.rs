//! Random programs for property tests.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use pteron_bef::model::{Body, Function, Kernel, NamedAttribute};
use pteron_bef::{
    Array, Attribute, AttributeId, Complex, DType, Dense, ElementType, FunctionId, FunctionKind, KernelCode,
    Location, Module, Register, Shape, SymbolRef, TypeId,
};

fn dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(&DType::ALL[..])
}

fn number() -> impl Strategy<Value = DType> {
    let numbers: Vec<DType> = DType::ALL.into_iter().filter(|dtype| dtype.element_size().is_some()).collect();
    prop::sample::select(numbers)
}

/// Bytes of `count` elements of `dtype`; bools are 0 or 1.
fn elements(dtype: DType, count: usize, seed: &[u8]) -> Vec<u8> {
    let size = dtype.element_size().unwrap() as usize * count;
    let bytes = seed.iter().copied().cycle().take(size);
    if dtype == DType::I1 { bytes.map(|byte| byte & 1).collect() } else { bytes.collect() }
}

fn array() -> impl Strategy<Value = Array<'static>> {
    let numbers = (number(), 0usize..6, vec(any::<u8>(), 1..40)).prop_map(|(dtype, count, seed)| {
        Array::from_bytes(ElementType::Data(dtype), elements(dtype, count, &seed)).unwrap()
    });
    prop_oneof![numbers, vec(dtype(), 0..4).prop_map(|types| Array::from_types(&types))]
}

fn dense() -> impl Strategy<Value = Dense<'static>> {
    (number(), vec(0i64..4, 0..4), vec(any::<u8>(), 1..40)).prop_map(|(dtype, dims, seed)| {
        let count = dims.iter().product::<i64>() as usize;
        Dense::new(dtype, dims, elements(dtype, count, &seed)).unwrap()
    })
}

fn symbol_ref() -> impl Strategy<Value = SymbolRef<'static>> {
    (any::<u64>(), "\\PC{0,5}", vec("\\PC{0,5}", 0..3), "\\PC{0,300}").prop_map(
        |(id, root, nested, module)| SymbolRef {
            id,
            root: root.into(),
            nested: nested.into_iter().map(Into::into).collect(),
            module: module.into(),
        },
    )
}

pub(crate) fn attribute() -> impl Strategy<Value = Attribute<'static>> {
    let integers = prop_oneof![
        any::<u8>().prop_map(Attribute::UI8),
        any::<u16>().prop_map(Attribute::UI16),
        any::<u32>().prop_map(Attribute::UI32),
        any::<u64>().prop_map(Attribute::UI64),
        any::<bool>().prop_map(Attribute::I1),
        any::<i8>().prop_map(Attribute::I8),
        any::<i16>().prop_map(Attribute::I16),
        any::<i32>().prop_map(Attribute::I32),
        any::<i64>().prop_map(Attribute::I64),
    ];
    let floats = prop_oneof![
        any::<u16>().prop_map(Attribute::F16),
        any::<u16>().prop_map(Attribute::BF16),
        any::<u32>().prop_map(Attribute::F32),
        any::<u64>().prop_map(Attribute::F64),
        any::<(u32, u32)>().prop_map(|(re, im)| Attribute::Complex64(Complex { re, im })),
        any::<(u64, u64)>().prop_map(|(re, im)| Attribute::Complex128(Complex { re, im })),
    ];
    let others = prop_oneof![
        vec(any::<u8>(), 0..20).prop_map(|bytes| Attribute::String(bytes.into())),
        "[a-z]{0,9}".prop_map(|name| Attribute::Func(name.into_bytes().into())),
        dtype().prop_map(Attribute::Type),
        Just(Attribute::Shape(Shape::Unranked)),
        vec(-1i64..100, 0..5).prop_map(|dims| Attribute::Shape(Shape::Ranked(dims))),
        dense().prop_map(Attribute::Dense),
        array().prop_map(Attribute::Array),
        symbol_ref().prop_map(|symbol| Attribute::SymbolRef(Box::new(symbol))),
    ];
    let leaf = prop_oneof![integers, floats, others];
    leaf.prop_recursive(4, 24, 5, |inner| vec(inner, 0..5).prop_map(Attribute::Aggregate))
}

fn location() -> impl Strategy<Value = Location<'static>> {
    let file = ("[a-z/.]{0,12}", any::<u64>(), 0u64..200)
        .prop_map(|(file, line, column)| Location::file(file, line, column));
    prop_oneof![Just(Location::Unknown), file].prop_recursive(4, 16, 4, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            ("[a-z]{0,8}", boxed.clone())
                .prop_map(|(name, child)| Location::Name { name: name.into(), child }),
            (boxed.clone(), boxed).prop_map(|(callee, caller)| Location::CallSite { callee, caller }),
            vec(inner, 0..4).prop_map(Location::Fused),
        ]
    })
}

/// A kernel to be built; its indices are scaled to the table sizes when the kernel is placed.
#[derive(Clone, Debug)]
struct Draft {
    code: Index,
    location: Option<Location<'static>>,
    stream: u64,
    arguments: Vec<Index>,
    attributes: Vec<(String, Index)>,
    functions: Vec<Index>,
    results: Vec<Index>,
}

fn draft() -> impl Strategy<Value = Draft> {
    let stream = prop_oneof![0u64..4, any::<u32>().prop_map(u64::from)];
    let attributes = vec(("[a-z]{0,6}", any::<Index>()), 0..3);
    let lists = (vec(any::<Index>(), 0..4), attributes, vec(any::<Index>(), 0..3), vec(any::<Index>(), 0..3));
    (any::<Index>(), prop::option::of(location()), stream, lists).prop_map(
        |(code, location, stream, (arguments, attributes, functions, results))| Draft {
            code,
            location,
            stream,
            arguments,
            attributes,
            functions,
            results,
        },
    )
}

type DraftFunction = (String, u8, Vec<Index>, Vec<Draft>, Vec<Index>, Option<Location<'static>>);

fn draft_function() -> impl Strategy<Value = DraftFunction> {
    let name = prop_oneof![Just(String::new()), "[a-zé]{1,8}"];
    let (arguments, results) = (vec(any::<Index>(), 0..4), vec(any::<Index>(), 0..3));
    (name, 0u8..3, arguments, vec(draft(), 0..7), results, prop::option::of(location()))
}

/// A consistent program with optional sections.
pub(crate) fn module() -> impl Strategy<Value = Module<'static>> {
    let names = prop::collection::hash_set("[a-z.0-9]{1,12}", 1..5);
    let types = prop::collection::hash_set("[!a-z.0-9]{1,12}", 1..5);
    let strings = vec("[a-z]{0,12}", 0..3);
    (names, types, vec(attribute(), 0..12), strings, vec(draft_function(), 0..5)).prop_map(
        |(names, types, attributes, strings, drafts)| {
            let mut module = Module::new(true);
            for name in names {
                module.intern_kernel(name);
            }
            for name in types {
                module.intern_type(name);
            }
            let count = drafts.len();
            module.attributes = attributes.into();
            for draft in drafts {
                let function = place(&module, draft, count);
                module.push_function(function);
            }
            // A string is extra only if nothing else uses it.
            let used: Vec<String> = used_strings(&module);
            strings.into_iter().filter(|s| !used.contains(s)).for_each(|string| module.add_string(string));
            module
        },
    )
}

fn used_strings(module: &Module<'_>) -> Vec<String> {
    let kernels = module.bodies().flat_map(|(_, body)| &body.kernels);
    let attributes = kernels.flat_map(|kernel| &kernel.attributes).filter_map(|a| a.name.as_deref());
    let functions = module.functions.iter().map(|function| &*function.name);
    module
        .kernel_names()
        .chain(module.type_names())
        .chain(attributes)
        .chain(functions)
        .map(Into::into)
        .collect()
}

fn place(module: &Module<'_>, draft: DraftFunction, functions: usize) -> Function<'static> {
    let (name, kind, arguments, drafts, results, location) = draft;
    let types = module.type_names().len();
    let kind = FunctionKind::new(kind).unwrap();
    let pick = |index: &Index| TypeId(index.index(types) as u32);
    let arguments: Vec<TypeId> = arguments.iter().map(pick).collect();
    if kind == FunctionKind::Native {
        return Function {
            name: name.into(),
            kind,
            arguments,
            results: results.iter().map(pick).collect(),
            body: None,
        };
    }
    let mut registers: Vec<Option<TypeId>> = arguments.iter().copied().map(Some).collect();
    let mut kernels = Vec::new();
    for draft in drafts {
        let known = registers.len();
        let register = |index: &Index| Register(index.index(known) as u32);
        let attributes = module.attributes.len();
        let first = registers.len() as u32;
        registers.extend(draft.results.iter().map(|index| Some(pick(index))));
        kernels.push(Kernel {
            code: KernelCode(draft.code.index(module.kernel_names().len()) as u32),
            location: draft.location,
            stream: draft.stream,
            arguments: if known == 0 { vec![] } else { draft.arguments.iter().map(register).collect() },
            attributes: draft
                .attributes
                .into_iter()
                .filter(|_| attributes > 0)
                .map(|(name, index)| NamedAttribute {
                    name: Some(name.into()),
                    value: AttributeId(index.index(attributes) as u32),
                })
                .collect(),
            functions: draft
                .functions
                .iter()
                .map(|index| FunctionId(index.index(functions) as u32))
                .collect(),
            results: (first..registers.len() as u32).map(Register).collect(),
        });
    }
    let mut returned: Vec<Register> = Vec::new();
    // A sync function returns only registers that kernels define, each at most once.
    let lowest = if kind == FunctionKind::Sync { arguments.len() } else { 0 };
    for index in results {
        if registers.len() > lowest {
            let register = Register((lowest + index.index(registers.len() - lowest)) as u32);
            if kind == FunctionKind::Async || !returned.contains(&register) {
                returned.push(register);
            }
        }
    }
    let results = returned.iter().map(|register| registers[register.index()].unwrap()).collect();
    let root_stream = kernels.len() as u64;
    let body = Body { location, registers, root_stream, kernels, results: returned };
    Function { name: name.into(), kind, arguments, results, body: Some(body) }
}
