//! `builtin`: modules.

use super::{Dialect, Row, op};
use crate::ir::{Attribute, Block, Operation};
use crate::parser::{OpState, Parse, Parser};
use crate::printer::Printer;

pub(super) const DIALECT: Dialect = Dialect { name: "builtin", rows: ROWS, isolated: true };

const ROWS: &[Row] = &[op("module").regions(1).unchecked().hooks(parse_module, print_module)];

/// Parses `@name attributes {...} {operations}`.
fn parse_module(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    if parser.at_symbol() {
        let name = parser.symbol_name(state)?;
        state.add_attribute("sym_name", Attribute::string(name));
    }
    parser.optional_attributes_keyword(state)?;
    let mut body = parser.region(&[], false)?;
    if body.blocks.is_empty() {
        body.blocks.push(Block::default());
    }
    state.regions.push(body);
    Ok(())
}

fn print_module(printer: &mut Printer<'_>, op: &Operation) {
    if let Some(name) = op.symbol_name() {
        printer.push(" ");
        printer.symbol_name(name);
    }
    printer.optional_attributes_keyword(&op.attributes, &["sym_name"]);
    printer.push(" ");
    for region in &op.regions {
        printer.region(op, region, true);
    }
}
