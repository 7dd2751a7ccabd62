//! Random types, attributes and modules round-trip through text.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use pteron_mlir::{
    Attribute, Block, DenseElements, FloatKind, Location, LocationId, Module, Operation, PrintOptions,
    Region, ShapedKind, ShapedType, Signedness, Text, Type, ValueId,
};

fn float_kind() -> impl Strategy<Value = FloatKind> {
    prop::sample::select(vec![
        FloatKind::F8E5M2,
        FloatKind::F8E4M3FN,
        FloatKind::BF16,
        FloatKind::F16,
        FloatKind::F32,
        FloatKind::F64,
        FloatKind::F80,
        FloatKind::F128,
    ])
}

fn number_type() -> impl Strategy<Value = Type> {
    let signedness =
        prop::sample::select(vec![Signedness::Signless, Signedness::Signed, Signedness::Unsigned]);
    prop_oneof![
        (prop::sample::select(vec![1u32, 2, 7, 8, 16, 32, 33, 64]), signedness)
            .prop_map(|(width, signedness)| Type::Integer { width, signedness }),
        float_kind().prop_map(Type::Float),
        Just(Type::Index),
    ]
}

fn ty() -> impl Strategy<Value = Type> {
    let dialect = prop::sample::select(vec![
        Type::dialect("tfrt", "chain"),
        Type::dialect("test", "atomic.i32"),
        Type::dialect("x", "box<2x[a], \"s>\">"),
        Type::dialect("x", "not pretty"),
        Type::None,
    ]);
    let leaf = prop_oneof![number_type(), dialect];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let shape = prop::option::of(prop::collection::vec(-1i64..5, 0..4));
        let element = prop_oneof![number_type(), Just(Type::dialect("x", "e"))];
        let vector = (prop::collection::vec(1i64..5, 0..3), number_type()).prop_map(|(dims, element)| {
            let scalable = dims.iter().map(|d| d % 2 == 0).collect::<Vec<_>>();
            let scalable = if scalable.contains(&true) { scalable } else { Vec::new() };
            let kind = ShapedKind::Vector;
            Type::Shaped(Arc::new(ShapedType {
                kind,
                shape: Some(dims),
                scalable,
                element,
                extra: Vec::new(),
            }))
        });
        let kind = prop::sample::select(vec![ShapedKind::Tensor, ShapedKind::MemRef]);
        prop_oneof![
            (kind, shape, element).prop_map(|(kind, shape, element)| {
                let (scalable, extra) = (Vec::new(), Vec::new());
                Type::Shaped(Arc::new(ShapedType { kind, shape, scalable, element, extra }))
            }),
            vector,
            prop::collection::vec(inner.clone(), 0..3).prop_map(|types| Type::Tuple(types.into())),
            (prop::collection::vec(inner.clone(), 0..3), prop::collection::vec(inner, 0..3))
                .prop_map(|(inputs, results)| Type::function(inputs, results)),
        ]
    })
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![
        "[a-z_][a-z0-9_.$]{0,8}".prop_map(Text::from),
        "\\PC{0,8}".prop_map(Text::from),
        prop::collection::vec(any::<u8>(), 0..8).prop_map(Text::from),
    ]
}

fn name() -> impl Strategy<Value = Text> {
    text().prop_filter("names are not empty", |text| !text.is_empty())
}

fn integer() -> impl Strategy<Value = Attribute> {
    (number_type(), any::<i64>()).prop_map(|(ty, seed)| {
        let range = match &ty {
            Type::Integer { width, signedness } => {
                let (width, seed) = (*width, i128::from(seed));
                let unsigned = *signedness == Signedness::Unsigned
                    || (width == 1 && *signedness == Signedness::Signless);
                let bits = seed & ((1i128 << width) - 1);
                if unsigned || bits < 1 << (width - 1) { bits } else { bits - (1 << width) }
            }
            _ => i128::from(seed),
        };
        match ty {
            Type::Float(kind) => float_of(kind, seed as u64 as u128),
            ty => Attribute::Integer { ty, value: range },
        }
    })
}

fn float_of(kind: FloatKind, bits: u128) -> Attribute {
    let bits = bits.rotate_left(kind.width() / 2) & (u128::MAX >> (128 - kind.width()));
    Attribute::Float { kind, bits }
}

fn dense() -> impl Strategy<Value = Attribute> {
    let width = prop::sample::select(vec![1u32, 8, 16, 32, 64]);
    (width, prop::collection::vec(0i64..4, 0..3), any::<u64>(), any::<bool>()).prop_map(
        |(width, shape, seed, long)| {
            let shape = if long { vec![101] } else { shape };
            let count: i64 = shape.iter().product();
            let size = (width as usize).div_ceil(8);
            let mut bytes = Vec::new();
            for at in 0..count as u64 {
                let value = seed.wrapping_mul(at.wrapping_add(7)).rotate_left(at as u32 % 64);
                let value = if width == 1 { value & 1 } else { value };
                bytes.extend(&value.to_le_bytes()[..size]);
            }
            Attribute::Dense(DenseElements::from_bytes(Type::tensor(shape, Type::int(width)), bytes).into())
        },
    )
}

fn attribute() -> impl Strategy<Value = Attribute> {
    let leaf = prop_oneof![
        integer(),
        (float_kind(), any::<u128>()).prop_map(|(kind, bits)| float_of(kind, bits)),
        text().prop_map(Attribute::string),
        ty().prop_map(Attribute::Type),
        dense(),
        Just(Attribute::Unit),
        prop::option::of(prop::collection::vec(-3i64..9, 0..4))
            .prop_map(|dims| Attribute::Shape(dims.map(Into::into))),
        (name(), prop::collection::vec(name(), 0..3))
            .prop_map(|(root, nested)| Attribute::SymbolRef { root, nested: nested.into() }),
        location().prop_map(|location| Attribute::Location(Arc::new(location))),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Attribute::array),
            prop::collection::btree_map(name(), inner, 0..4)
                .prop_map(|entries| Attribute::Dictionary(entries.into_iter().collect())),
        ]
    })
}

fn location() -> impl Strategy<Value = Location> {
    let leaf = prop_oneof![
        Just(Location::Unknown),
        (name(), any::<u32>(), any::<u32>()).prop_map(|(file, line, column)| Location::FileLineCol {
            file,
            line,
            column
        }),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            (text(), inner.clone()).prop_map(|(name, child)| Location::Name { name, child: Arc::new(child) }),
            (inner.clone(), inner.clone()).prop_map(|(callee, caller)| Location::CallSite {
                callee: Arc::new(callee),
                caller: Arc::new(caller),
            }),
            prop::collection::vec(inner, 1..3).prop_map(|members| Location::fused(members, None)),
        ]
    })
}

/// A plan of an operation: name, attributes, number of operands, result types, location, regions.
#[derive(Clone, Debug)]
struct Plan {
    name: Text,
    attributes: Vec<(Text, Attribute)>,
    operands: Vec<prop::sample::Index>,
    results: Vec<Type>,
    location: Location,
    regions: Vec<(Vec<Type>, Vec<Plan>)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let shell = || {
        (
            prop::sample::select(vec!["x.op", "x.other", "y.a b", "z"]).prop_map(Text::from),
            prop::collection::btree_map(name(), attribute(), 0..3),
            prop::collection::vec(any::<prop::sample::Index>(), 0..3),
            prop::collection::vec(ty(), 0..3),
            location(),
        )
    };
    let build = |(name, attributes, operands, results, location): (
        Text,
        std::collections::BTreeMap<_, _>,
        _,
        _,
        _,
    ),
                 regions| Plan {
        name,
        attributes: attributes.into_iter().collect(),
        operands,
        results,
        location,
        regions,
    };
    let leaf = shell().prop_map(move |shell| build(shell, Vec::new()));
    leaf.prop_recursive(3, 12, 3, move |inner| {
        let region = (prop::collection::vec(ty(), 0..2), prop::collection::vec(inner, 0..3));
        (shell(), prop::collection::vec(region, 0..2)).prop_map(move |(shell, regions)| build(shell, regions))
    })
}

fn build(module: &mut Module, plans: &[Plan], visible: &mut Vec<ValueId>) -> Vec<Operation> {
    let mut operations = Vec::new();
    for plan in plans {
        let location = module.add_location(plan.location.clone());
        let mut op = Operation::new(plan.name.clone(), location);
        op.attributes = plan.attributes.clone();
        if !visible.is_empty() {
            op.operands = plan.operands.iter().map(|index| *index.get(visible)).collect();
        }
        for (arguments, inner) in &plan.regions {
            let mut block = Block::default();
            let mut inside = visible.clone();
            for ty in arguments {
                block.arguments.push(module.add_value(ty.clone(), location));
            }
            inside.extend(&block.arguments);
            block.operations = build(module, inner, &mut inside);
            let empty = block.arguments.is_empty() && block.operations.is_empty();
            op.regions.push(Region { blocks: if empty { Vec::new() } else { vec![block] } });
        }
        op.results = plan.results.iter().map(|ty| module.add_value(ty.clone(), location)).collect();
        visible.extend(&op.results);
        operations.push(op);
    }
    operations
}

/// Compares two modules up to the numbering of values and locations.
struct Same<'a> {
    a: &'a Module,
    b: &'a Module,
    values: HashMap<ValueId, ValueId>,
}

impl Same<'_> {
    fn define(&mut self, a: &[ValueId], b: &[ValueId]) {
        assert_eq!(self.a.types_of(a), self.b.types_of(b));
        self.values.extend(a.iter().copied().zip(b.iter().copied()));
    }

    fn location(&self, a: LocationId, b: LocationId) {
        assert_eq!(self.a.location(a), self.b.location(b));
    }

    fn operation(&mut self, a: &Operation, b: &Operation) {
        assert_eq!((&a.name, &a.attributes), (&b.name, &b.attributes));
        let operands: Vec<ValueId> = a.operands.iter().map(|value| self.values[value]).collect();
        assert_eq!(operands, b.operands);
        assert_eq!(a.regions.len(), b.regions.len());
        self.location(a.location, b.location);
        for (a, b) in a.regions.iter().zip(&b.regions) {
            assert_eq!(a.blocks.len(), b.blocks.len());
            for (a, b) in a.blocks.iter().zip(&b.blocks) {
                self.define(&a.arguments, &b.arguments);
                assert_eq!(a.operations.len(), b.operations.len());
                a.operations.iter().zip(&b.operations).for_each(|(a, b)| self.operation(a, b));
            }
        }
        self.define(&a.results, &b.results);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn types_round_trip(ty in ty()) {
        let shown = ty.to_string();
        prop_assert_eq!(pteron_mlir::parse_type(&shown), Ok(ty), "{}", shown);
    }

    #[test]
    fn attributes_round_trip(attribute in attribute()) {
        let shown = attribute.to_string();
        prop_assert_eq!(pteron_mlir::parse_attribute(&shown), Ok(attribute), "{}", shown);
    }

    #[test]
    fn modules_round_trip(plans in prop::collection::vec(plan(), 0..4), generic in any::<bool>()) {
        let mut module = Module::new(Location::Unknown);
        let operations = build(&mut module, &plans, &mut Vec::new());
        module.body_mut().operations = operations;
        let shown = pteron_mlir::print(&module, PrintOptions { locations: true, generic });
        let back = pteron_mlir::parse(&shown, "shown").map_err(|d| TestCaseError::fail(format!("{}\n{shown}", d[0])))?;
        let mut same = Same { a: &module, b: &back, values: HashMap::new() };
        same.operation(&module.op, &back.op);
    }
}
