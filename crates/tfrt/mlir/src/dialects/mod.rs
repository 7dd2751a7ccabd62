//! Definitions of the registered operations, one file per dialect.
//!
//! A dialect is a table of [`Row`]s. A row declares the operands, attributes and results of an operation and its custom
//! form, which is enough to parse, print and verify it. To add an operation, add a row. Operations whose custom form
//! cannot be declared have a pair of hooks instead ([`Row::hooks`]), and a function can check constraints between
//! operands and attributes ([`Row::check`]).
//!
//! Names, signatures and syntax are those of TFRT's dialects, and of the few MLIR dialects that compiled modules use.

mod arith;
mod builtin;
mod cf;
mod check;
mod coo;
mod corert;
mod dense_host;
mod format;
mod func;
mod memref;
mod tensor_shape;
mod tfrt;
mod tfrt_test;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

pub(crate) use check::Problem;
pub(crate) use format::{Format, parse_format, print_format};

use crate::ir::{Attribute, DialectSymbol, FloatKind, Operation, Type};
use crate::parser::{OpState, Parse, Parser};
use crate::printer::Printer;
use crate::verify::Verifier;

/// Parses the part of an operation's custom form that follows the name.
pub(crate) type ParseHook = for<'p, 'a> fn(&'p mut Parser<'a>, &'p mut OpState) -> Parse;
/// Prints the part of an operation's custom form that follows the name.
pub(crate) type PrintHook = for<'p, 'a> fn(&'p mut Printer<'a>, &'p Operation);
/// Checks constraints of an operation that a row cannot declare. The error may name another operation.
pub(crate) type CheckHook = for<'v, 'a> fn(&'v Verifier<'a>, &'v Operation) -> Result<(), check::Problem>;

/// A row of a dialect's table: an operation, or a family of operations whose names differ only in suffixes.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// The operation's name without dialect and suffixes.
    stem: &'static str,
    /// Lists of suffixes, `.`-joined to the stem in every combination; the first suffix replaces `T` in the other
    /// fields.
    suffixes: &'static [&'static [&'static str]],
    /// Operands: `type name`, separated by commas; `type*` is variadic, and `any` allows any type.
    operands: &'static str,
    /// Results, in the notation of `operands`.
    results: &'static str,
    /// Attributes: `kind name`, separated by commas; `kind?` is optional.
    attributes: &'static str,
    /// The custom form in the notation of MLIR's op definitions; empty if there are hooks or no custom form.
    format: &'static str,
    hooks: Option<(ParseHook, PrintHook)>,
    check: Option<CheckHook>,
    regions: usize,
    terminator: bool,
    isolated: bool,
    /// Whether any operands, results and regions are allowed, so that the row's lists of them are not checked.
    unchecked: bool,
}

/// A row for operations with this stem; the builder methods below set the other fields.
const fn op(stem: &'static str) -> Row {
    Row {
        stem,
        suffixes: &[],
        operands: "",
        results: "",
        attributes: "",
        format: "",
        hooks: None,
        check: None,
        regions: 0,
        terminator: false,
        isolated: false,
        unchecked: false,
    }
}

impl Row {
    const fn suffixes(self, suffixes: &'static [&'static [&'static str]]) -> Row {
        Row { suffixes, ..self }
    }

    const fn operands(self, operands: &'static str) -> Row {
        Row { operands, ..self }
    }

    const fn results(self, results: &'static str) -> Row {
        Row { results, ..self }
    }

    const fn attributes(self, attributes: &'static str) -> Row {
        Row { attributes, ..self }
    }

    const fn format(self, format: &'static str) -> Row {
        Row { format, ..self }
    }

    const fn hooks(self, parse: ParseHook, print: PrintHook) -> Row {
        Row { hooks: Some((parse, print)), ..self }
    }

    const fn check(self, check: CheckHook) -> Row {
        Row { check: Some(check), ..self }
    }

    const fn regions(self, regions: usize) -> Row {
        Row { regions, ..self }
    }

    const fn terminator(self) -> Row {
        Row { terminator: true, ..self }
    }

    const fn isolated(self) -> Row {
        Row { isolated: true, ..self }
    }

    const fn unchecked(self) -> Row {
        Row { unchecked: true, ..self }
    }
}

/// A dialect: its name and its operations.
struct Dialect {
    name: &'static str,
    rows: &'static [Row],
    /// Whether the regions of all operations are isolated from above: they cannot use values defined outside.
    isolated: bool,
}

/// The declaration of an operand or result.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) name: &'static str,
    /// The required type; absent if any type is allowed.
    pub(crate) ty: Option<Type>,
    pub(crate) variadic: bool,
}

/// The declaration of an attribute.
#[derive(Clone, Debug)]
pub(crate) struct AttributeDef {
    pub(crate) name: &'static str,
    pub(crate) kind: AttributeKind,
    pub(crate) optional: bool,
}

/// What kind of value a declared attribute must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AttributeKind {
    /// An integer or floating-point attribute of this type.
    Number(Type),
    String,
    FlatSymbol,
    Array,
    /// An array of `i64` integers.
    I64Array,
    /// An array of strings.
    StringArray,
    /// A dense elements attribute, `dense<...>`.
    Elements,
    Any,
}

/// How an operation is parsed and printed.
pub(crate) enum Syntax {
    /// The operation has no custom form, only the generic one.
    Generic,
    Format(Format),
    Hooks {
        parse: ParseHook,
        print: PrintHook,
    },
}

/// The definition of a registered operation.
pub(crate) struct OpDef {
    pub(crate) name: String,
    pub(crate) operands: Vec<Slot>,
    pub(crate) results: Vec<Slot>,
    pub(crate) attributes: Vec<AttributeDef>,
    pub(crate) regions: usize,
    pub(crate) syntax: Syntax,
    pub(crate) check: Option<CheckHook>,
    pub(crate) terminator: bool,
    pub(crate) isolated: bool,
    pub(crate) unchecked: bool,
    /// The dialect whose prefix is omitted from the names of operations in this operation's regions; empty for none.
    pub(crate) default_dialect: &'static str,
}

const DIALECTS: &[&Dialect] = &[
    &builtin::DIALECT,
    &func::DIALECT,
    &arith::DIALECT,
    &cf::DIALECT,
    &arith::MATH_DIALECT,
    &memref::DIALECT,
    &tfrt::DIALECT,
    &tfrt_test::DIALECT,
    &corert::DIALECT,
    &corert::SYNC_DIALECT,
    &tensor_shape::DIALECT,
    &tensor_shape::SYNC_DIALECT,
    &dense_host::DIALECT,
    &dense_host::SYNC_DIALECT,
    &coo::DIALECT,
];

/// Dialects that are registered but define no operations here.
const OTHER_DIALECTS: &[&str] =
    &["t", "tfrt_tensor", "ht", "tfrt_test_sync", "affine", "async", "linalg", "scf", "vector"];

/// Whether the dialect of this name is registered.
pub(crate) fn is_registered(dialect: &str) -> bool {
    DIALECTS.iter().any(|d| d.name == dialect) || OTHER_DIALECTS.contains(&dialect)
}

/// The definition of the operation called `name`, if it is registered.
pub(crate) fn lookup_op(name: &[u8]) -> Option<&'static OpDef> {
    table().get(name)
}

/// The names of all registered operations.
pub(crate) fn op_names() -> impl Iterator<Item = &'static str> {
    table().values().map(|definition| definition.name.as_str())
}

fn table() -> &'static HashMap<Vec<u8>, OpDef> {
    static TABLE: OnceLock<HashMap<Vec<u8>, OpDef>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let rows = DIALECTS.iter().flat_map(|dialect| dialect.rows.iter().map(move |row| (*dialect, row)));
        let definitions = rows.flat_map(|(dialect, row)| expand(dialect, row));
        definitions.map(|definition| (definition.name.clone().into_bytes(), definition)).collect()
    })
}

fn expand(dialect: &Dialect, row: &Row) -> Vec<OpDef> {
    let mut names = vec![(format!("{}.{}", dialect.name, row.stem), "")];
    for (depth, suffixes) in row.suffixes.iter().enumerate() {
        names = names
            .iter()
            .flat_map(|(name, first)| {
                suffixes.iter().map(move |s| (format!("{name}.{s}"), if depth == 0 { *s } else { *first }))
            })
            .collect();
    }
    names.into_iter().map(|(name, first)| definition(dialect, row, name, first)).collect()
}

fn definition(dialect: &Dialect, row: &Row, name: String, first: &'static str) -> OpDef {
    let operands = slots(row.operands, first);
    let results = slots(row.results, first);
    let attributes = attribute_defs(row.attributes, first);
    let syntax = match row.hooks {
        Some((parse, print)) => Syntax::Hooks { parse, print },
        None if row.format.is_empty() => Syntax::Generic,
        None => Syntax::Format(Format::new(row.format, &operands, &results, &attributes)),
    };
    let default_dialect = match name.as_str() {
        "builtin.module" => "builtin",
        "func.func" => "func",
        _ => "",
    };
    OpDef {
        name,
        operands,
        results,
        attributes,
        regions: row.regions,
        syntax,
        check: row.check,
        terminator: row.terminator,
        isolated: row.isolated || dialect.isolated,
        unchecked: row.unchecked,
        default_dialect,
    }
}

fn list_entries(list: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    list.split(',').filter_map(|item| {
        let item = item.trim();
        (!item.is_empty()).then(|| item.split_once(' ').unwrap_or((item, "")))
    })
}

fn slots(list: &'static str, first: &'static str) -> Vec<Slot> {
    let slot = |(ty, name): (&'static str, &'static str)| {
        let variadic = ty.ends_with('*');
        Slot { name, ty: type_named(ty.trim_end_matches('*'), first), variadic }
    };
    list_entries(list).map(slot).collect()
}

fn attribute_defs(list: &'static str, first: &'static str) -> Vec<AttributeDef> {
    let attribute = |(kind, name): (&'static str, &'static str)| {
        let optional = kind.ends_with('?');
        let kind = match kind.trim_end_matches('?') {
            "string" => AttributeKind::String,
            "symbol" => AttributeKind::FlatSymbol,
            "array" => AttributeKind::Array,
            "i64s" => AttributeKind::I64Array,
            "strings" => AttributeKind::StringArray,
            "elements" => AttributeKind::Elements,
            other => type_named(other, first).map_or(AttributeKind::Any, AttributeKind::Number),
        };
        AttributeDef { name, kind, optional }
    };
    list_entries(list).map(attribute).collect()
}

/// The type that a table calls `word`, in which `first` replaces `T`; `None` if any type is allowed.
fn type_named(word: &'static str, first: &'static str) -> Option<Type> {
    let word = if word == "T" { first } else { word };
    if let Some(kind) = FloatKind::from_keyword(word) {
        return Some(Type::Float(kind));
    }
    Some(match word {
        "i1" => Type::int(1),
        "i32" => Type::int(32),
        "i64" => Type::int(64),
        "ui32" => Type::uint(32),
        "ui64" => Type::uint(64),
        "c64" => Type::complex(Type::Float(FloatKind::F32)),
        "c128" => Type::complex(Type::Float(FloatKind::F64)),
        _ => {
            let (dialect, body) = word.strip_prefix('!')?.split_once('.')?;
            // The operation's rank suffix is also a suffix of this type.
            Type::dialect(dialect, &body.replace("{T}", first))
        }
    })
}

/// The newer name of a type in the dialects' tables: since May 2024, TFRT calls `!t.tensor` `!tfrt_tensor.tensor`.
pub(crate) fn newer_type_name(ty: &Type) -> Option<Type> {
    ty.is_dialect("t", "tensor").then(|| Type::dialect("tfrt_tensor", "tensor"))
}

/// Whether a text uses the newer name of TFRT's tensor type and never the older one.
pub(crate) fn has_newer_names(text: &[u8]) -> bool {
    let has = |name: &[u8]| text.split(|&byte| byte == b'!').skip(1).any(|rest| rest.starts_with(name));
    has(b"tfrt_tensor.tensor") && !has(b"t.tensor")
}

/// Fails if a dialect type is unknown in a dialect all of whose types are known.
pub(crate) fn check_type(symbol: &DialectSymbol) -> Result<(), String> {
    let body = symbol.body.as_str();
    let (known, what) = match symbol.dialect.as_str() {
        "ts" => {
            let rank = body.strip_prefix("fixed_rank_shape.").is_some_and(|r| r.parse::<u8>().is_ok());
            (rank || matches!(body, "shape" | "partial_shape"), "unknown shape type")
        }
        "t" | "tfrt_tensor" => (body == "tensor", "unknown tensor type"),
        "ht" => (body == "host_buffer", "unknown type"),
        _ => (true, ""),
    };
    if known { Ok(()) } else { Err(format!("{what}: {body}")) }
}

/// Converts `#dialect.body` to an attribute; fails if the dialect is known to have no such attribute.
pub(crate) fn dialect_attribute(symbol: DialectSymbol) -> Result<Attribute, String> {
    match symbol.dialect.as_str() {
        "corert" => match symbol.body.strip_prefix("shape") {
            Some(_) => corert::parse_shape(&symbol.body)
                .ok_or_else(|| format!("unknown corert shape attribute: {}", symbol.body)),
            None => Err(format!("unknown corert attribute: {}", symbol.body)),
        },
        "builtin" | "func" | "tfrt" | "tfrt_test" | "ts" | "tfrt_dht" | "coo" | "t" | "tfrt_tensor"
        | "ht" | "corert_sync" | "tfrt_dht_sync" => {
            Err(format!("dialect '{}' provides no attribute parsing hook", symbol.dialect))
        }
        _ => Ok(Attribute::Dialect(Arc::new(symbol))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_suffixes_expand_to_all_operations() {
        let name = |n: &str| lookup_op(n.as_bytes()).map(|d| d.operands.len());
        assert_eq!(name("tfrt.add.f64"), Some(2));
        assert_eq!(name("tfrt.add"), None);
        assert_eq!(name("tfrt_dht.create_uninitialized_tensor.complex128.4"), Some(0));
        assert_eq!(name("coo.tensor_equal.f32.3"), Some(3));
        assert_eq!(name("ts.print_fixed_rank_shape.2"), Some(2));
        let shape = lookup_op(b"ts.as_fixed_rank_shape.3").and_then(|d| d.results[0].ty.clone());
        assert_eq!(shape, Some(Type::dialect("ts", "fixed_rank_shape.3")));
    }

    #[test]
    fn every_row_is_well_formed() {
        for dialect in DIALECTS {
            for row in dialect.rows {
                for definition in expand(dialect, row) {
                    let slots = definition.operands.iter().chain(&definition.results);
                    assert!(
                        slots.filter(|s| s.ty.is_none()).all(|s| s.name.len() < 32),
                        "{}",
                        definition.name
                    );
                    assert!(
                        definition.operands.iter().filter(|s| s.variadic).count() <= 1,
                        "{}",
                        definition.name
                    );
                    assert!(
                        definition.results.iter().filter(|s| s.variadic).count() <= 1,
                        "{}",
                        definition.name
                    );
                }
            }
        }
    }
}
