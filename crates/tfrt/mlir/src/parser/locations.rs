//! Parses `loc(...)`.

use std::sync::Arc;

use super::{Parse, Parser};
use crate::ir::{Attribute, Location, LocationId, Text};
use crate::lexer::{Kind, unescape};

impl<'a> Parser<'a> {
    /// The location of a byte offset in the source text.
    pub(crate) fn location_at(&mut self, offset: u32) -> LocationId {
        let (line, column) = self.source.line_col(offset);
        // All such locations share the module's file name.
        let file = match &self.module.locations[0] {
            Location::FileLineCol { file, .. } => file.clone(),
            _ => self.source.name.into(),
        };
        self.module.add_location(Location::FileLineCol { file, line, column })
    }

    /// Parses `loc(...)` after an operation or argument, if present. If it is an alias, the alias may be defined later.
    pub(crate) fn trailing_location(&mut self) -> Parse<Option<LocationId>> {
        if !self.at_keyword("loc") {
            return Ok(None);
        }
        self.advance();
        self.expect(Kind::LParen, "expected '(' in location")?;
        let id = if self.at_token(Kind::HashId) && !self.spelling().contains(&b'.') {
            let (name, at) = (&self.spelling()[1..], self.current_offset());
            self.advance();
            match self.aliased_location(name, at)? {
                Some(location) => self.module.add_location(location),
                None => {
                    let id = self.module.add_location(Location::Unknown);
                    self.deferred_locations.push((id, name, at));
                    id
                }
            }
        } else {
            let location = self.location_instance()?;
            self.module.add_location(location)
        };
        self.expect(Kind::RParen, "expected ')' in location")?;
        Ok(Some(id))
    }

    /// The location that an alias stands for, if it is already defined.
    fn aliased_location(&mut self, name: &'a [u8], at: u32) -> Parse<Option<Location>> {
        let Some(alias) = self.attribute_aliases.get(name).cloned() else { return Ok(None) };
        match self.expand_attribute(at, &alias)? {
            Attribute::Location(location) => Ok(Some((*location).clone())),
            other => self.error(at, format!("expected location, but found '{other}'")),
        }
    }

    /// Fills in the locations whose aliases were defined after their use.
    pub(super) fn resolve_deferred_locations(&mut self) -> Parse {
        for (id, name, at) in std::mem::take(&mut self.deferred_locations) {
            match self.aliased_location(name, at)? {
                Some(location) => self.module.locations[id.0 as usize] = location,
                None => return self.error(at, "operation location alias was never defined"),
            }
        }
        Ok(())
    }

    /// Parses the location between the parentheses of `loc(...)`.
    pub(super) fn location_instance(&mut self) -> Parse<Location> {
        self.parse_nested(|parser| {
            if parser.at_token(Kind::HashId) {
                let at = parser.current_offset();
                return match parser.extended_attribute(None)? {
                    Attribute::Location(location) => Ok((*location).clone()),
                    _ => parser.error(at, "expected location attribute"),
                };
            }
            if parser.at_token(Kind::String) {
                return parser.name_or_file_location();
            }
            if !parser.at_token(Kind::BareId) {
                return parser.error_expected("expected location instance");
            }
            match parser.spelling() {
                b"unknown" => {
                    parser.advance();
                    Ok(Location::Unknown)
                }
                b"callsite" => parser.call_site_location(),
                b"fused" => parser.fused_location(),
                _ => parser.error_expected("expected location instance"),
            }
        })
    }

    fn name_or_file_location(&mut self) -> Parse<Location> {
        let text = Text::from(unescape(self.spelling()));
        self.advance();
        if self.consume(Kind::Colon) {
            if !self.at_token(Kind::Integer) {
                return self.error_expected("expected integer line number in FileLineColLoc");
            }
            let line = self.location_number("expected integer line number in FileLineColLoc")?;
            self.expect(Kind::Colon, "expected ':' in FileLineColLoc")?;
            if !self.at_token(Kind::Integer) {
                return self.error_expected("expected integer column number in FileLineColLoc");
            }
            let column = self.location_number("expected integer column number in FileLineColLoc")?;
            // MLIR replaces an empty file name.
            let file = if text.is_empty() { Text::from("-") } else { text };
            return Ok(Location::FileLineCol { file, line, column });
        }
        let mut child = Location::Unknown;
        if self.consume(Kind::LParen) {
            child = self.location_instance()?;
            self.expect(Kind::RParen, "expected ')' after child location of NameLoc")?;
        }
        Ok(Location::Name { name: text, child: Arc::new(child) })
    }

    fn location_number(&mut self, message: &str) -> Parse<u32> {
        let Ok(number) = self.spelling_str().parse() else {
            return self.error_here(message);
        };
        self.advance();
        Ok(number)
    }

    fn call_site_location(&mut self) -> Parse<Location> {
        self.advance();
        self.expect(Kind::LParen, "expected '(' in callsite location")?;
        let callee = self.location_instance()?;
        if !self.at_keyword("at") {
            return self.error_expected("expected 'at' in callsite location");
        }
        self.advance();
        let caller = self.location_instance()?;
        self.expect(Kind::RParen, "expected ')' in callsite location")?;
        Ok(Location::CallSite { callee: Arc::new(callee), caller: Arc::new(caller) })
    }

    fn fused_location(&mut self) -> Parse<Location> {
        self.advance();
        let mut metadata = None;
        if self.consume(Kind::Less) {
            metadata = Some(self.parse_attribute(None)?);
            self.expect(Kind::Greater, "expected '>' after fused location metadata")?;
        }
        self.expect(Kind::LSquare, "expected '[' in fused location")?;
        let mut locations = Vec::new();
        loop {
            locations.push(self.location_instance()?);
            if !self.consume(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RSquare, "expected ']' in fused location")?;
        Ok(Location::fused(locations, metadata))
    }
}
