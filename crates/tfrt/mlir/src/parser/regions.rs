//! Parses regions and blocks.

use std::collections::HashMap;

use super::{Argument, Operand, Parse, Parser};
use crate::ir::{Block, LocationId, Operation, Region, Type};
use crate::lexer::Kind;

/// The names of the blocks of one region, each with a provisional number.
#[derive(Default)]
pub(super) struct Blocks<'a> {
    ids: HashMap<&'a [u8], u32>,
    /// For each provisional number: the offset of the name's first use, and the block's position once it is defined.
    entries: Vec<(u32, Option<u32>)>,
}

impl<'a> Parser<'a> {
    /// The provisional number of a block name of the current region; the next free number if the name is new.
    fn block_id(&mut self, name: &'a [u8], at: u32) -> u32 {
        if self.blocks.is_empty() {
            self.blocks.push(Blocks::default());
        }
        let last = self.blocks.len() - 1;
        let blocks = &mut self.blocks[last];
        let next = blocks.entries.len() as u32;
        *blocks.ids.entry(name).or_insert_with(|| {
            blocks.entries.push((at, None));
            next
        })
    }

    /// Parses `^name`, a successor block, and returns the block's provisional number.
    pub(crate) fn successor(&mut self) -> Parse<u32> {
        if !self.at_token(Kind::CaretId) {
            return self.error_expected("expected block name");
        }
        let id = self.block_id(self.spelling(), self.current_offset());
        self.advance();
        Ok(id)
    }

    /// Parses `{ block* }` with the given entry arguments. If `isolated`, names defined outside can be defined anew
    /// inside.
    pub(crate) fn region(&mut self, arguments: &[Argument<'a>], isolated: bool) -> Parse<Region> {
        self.expect(Kind::LBrace, "expected '{' to begin a region")?;
        let mut region = Region::default();
        if arguments.is_empty() && self.consume(Kind::RBrace) {
            return Ok(region);
        }
        self.parse_nested(|parser| parser.region_body(&mut region, arguments, isolated))?;
        self.expect(Kind::RBrace, "expected '}' to end a region")?;
        Ok(region)
    }

    /// A region whose only operation is a `tfrt.return` without operands, with entry arguments of these types.
    pub(crate) fn returning_region(&mut self, types: &[Type], location: LocationId) -> Region {
        let arguments = types.iter().map(|ty| self.module.add_value(ty.clone(), location)).collect();
        let operations = vec![Operation::new("tfrt.return", location)];
        Region { blocks: vec![Block { arguments, operations }] }
    }

    fn region_body(&mut self, region: &mut Region, arguments: &[Argument<'a>], isolated: bool) -> Parse {
        self.push_scope(isolated);
        self.blocks.push(Blocks::default());
        let mut entry = Block::default();
        if arguments.iter().any(|a| a.name.is_some()) {
            if self.at_token(Kind::CaretId) {
                return self.error_here("invalid block name in region with named arguments");
            }
            for argument in arguments {
                let Some(name) = argument.name else { continue };
                if let Some(first) = self.first_use_offset(name.name) {
                    let shown = String::from_utf8_lossy(name.name).into_owned();
                    return self.error_with_note(
                        name.at,
                        format!("region entry argument '{shown}' is already in use"),
                        first,
                        "previously referenced here".into(),
                    );
                }
                let location = argument.location.unwrap_or_else(|| self.location_at(name.at));
                let value = self.define(name, argument.ty.clone(), location)?;
                entry.arguments.push(value);
            }
        }
        let named = self.at_token(Kind::CaretId);
        self.block(&mut entry, named, 0)?;
        if !arguments.is_empty() && entry.arguments.len() > arguments.len() {
            return self.error_here("entry block arguments were already defined");
        }
        region.blocks.push(entry);
        while !self.at_token(Kind::RBrace) {
            let mut block = Block::default();
            let position = region.blocks.len() as u32;
            self.block(&mut block, true, position)?;
            region.blocks.push(block);
        }
        let blocks = self.blocks.pop().unwrap_or_default();
        let mut undefined: Vec<u32> =
            blocks.entries.iter().filter(|(_, position)| position.is_none()).map(|(at, _)| *at).collect();
        undefined.sort_unstable();
        for at in &undefined {
            let _ = self.error::<()>(*at, "reference to an undefined block");
        }
        if !undefined.is_empty() {
            return Err(super::Stop);
        }
        for operation in region.blocks.iter_mut().flat_map(|block| &mut block.operations) {
            for successor in &mut operation.successors {
                *successor = blocks.entries[*successor as usize].1.unwrap_or(0);
            }
        }
        self.pop_scope();
        Ok(())
    }

    fn block(&mut self, block: &mut Block, named: bool, position: u32) -> Parse {
        if named {
            let (name, at) = (self.spelling(), self.current_offset());
            self.expect(Kind::CaretId, "expected block name")?;
            let id = self.block_id(name, at);
            let last = self.blocks.len() - 1;
            let entry = &mut self.blocks[last].entries[id as usize];
            if entry.1.is_some() {
                let shown = String::from_utf8_lossy(name).into_owned();
                return self.error(at, format!("redefinition of block '{shown}'"));
            }
            entry.1 = Some(position);
            if self.consume(Kind::LParen) {
                self.list_until(Kind::RParen, "expected ')' in argument list", |parser| {
                    let argument = parser.block_argument()?;
                    block.arguments.push(argument);
                    Ok(())
                })?;
            }
            self.expect(Kind::Colon, "expected ':' after block name")?;
        }
        while !matches!(self.token.kind, Kind::CaretId | Kind::RBrace) {
            let operation = self.parse_operation()?;
            block.operations.push(operation);
        }
        Ok(())
    }

    fn block_argument(&mut self) -> Parse<crate::ir::ValueId> {
        let name: Operand<'a> = self.operand()?;
        self.expect(Kind::Colon, "expected ':' and type for SSA operand")?;
        let ty = self.parse_type()?;
        let location = self.location_at(name.at);
        let location = self.trailing_location()?.unwrap_or(location);
        self.define(name, ty, location)
    }
}
