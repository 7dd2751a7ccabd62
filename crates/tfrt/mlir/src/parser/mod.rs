//! The parser: reads source text into a [`Module`].

mod attributes;
mod dense;
mod locations;
mod numbers;
mod operations;
mod regions;
mod ssa;
mod symbols;
mod types;

pub(crate) use operations::OpState;
pub(crate) use ssa::{Argument, Operand};

use std::collections::HashMap;

use crate::diagnostics::{Diagnostic, Error, Severity};
use crate::dialects;
use crate::ir::{Attribute, Location, LocationId, Module, Operation, Region, Text, Type, ValueId};
use crate::lexer::{Kind, Lexer, Token};
use crate::limits::{
    MAX_DEPTH, MAX_DIAGNOSTICS, MAX_EXPANDED, MAX_EXPANSION, MAX_IMPLIED_RESULTS, MAX_LOCATION_DEPTH,
    MAX_SOURCE_BYTES,
};
use crate::source::Source;

/// An error has stopped the parser; the error is among the parser's diagnostics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop;

/// Result of a step of the parser.
pub(crate) type Parse<T = ()> = Result<T, Stop>;

/// Brackets around a comma-separated list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delimiter {
    /// No brackets; the list is empty unless the next token can start an element.
    None,
    /// `( )`.
    Paren,
}

/// The value of an alias, with its nesting depth and its number of attributes, types and locations.
#[derive(Clone)]
struct Alias<T> {
    value: T,
    depth: usize,
    nodes: u64,
}

/// The state of a parse.
pub(crate) struct Parser<'a> {
    source: Source<'a>,
    lexer: Lexer<'a>,
    token: Token,
    module: Module,
    diagnostics: Vec<Diagnostic>,
    attribute_aliases: HashMap<&'a [u8], Alias<Attribute>>,
    type_aliases: HashMap<&'a [u8], Alias<Type>>,
    deferred_locations: Vec<(LocationId, &'a [u8], u32)>,
    scopes: Vec<ssa::Scope<'a>>,
    forward: HashMap<ValueId, u32>,
    blocks: Vec<regions::Blocks<'a>>,
    default_dialects: Vec<&'static str>,
    depth: usize,
    /// Maximum nesting depth since the definition of the current alias began, with the aliases used in it expanded.
    deepest: usize,
    /// Number of attributes, types and locations parsed so far, with aliases expanded.
    nodes: u64,
    /// Number of attributes, types and locations that uses of aliases have expanded to.
    expanded: u64,
    implied_results: i128,
    /// Whether the text uses the newer name of TFRT's tensor type: see [`dialects::has_newer_names`].
    newer_types: bool,
}

/// Parses MLIR text into a verified module.
///
/// `name` is the file name in locations and messages. A text without a `module` is wrapped in one.
///
/// # Errors
/// The errors in the text, with positions, quoted lines and carets.
pub fn parse(source: impl AsRef<[u8]>, name: &str) -> Result<Module, Error> {
    let text = source.as_ref();
    if text.len() > MAX_SOURCE_BYTES {
        let place = Location::FileLineCol { file: name.into(), line: 1, column: 1 };
        return Err(Error(vec![Diagnostic::error_at(&place, "source text is longer than 4 GiB")]));
    }
    let mut parser = Parser::new(name, text);
    let outcome = parser.top_level();
    let Parser { module, mut diagnostics, .. } = parser;
    if outcome.is_ok() && diagnostics.iter().all(|d| d.severity != Severity::Error) {
        let wrong = crate::verify::verify(&module);
        if wrong.is_empty() {
            return Ok(module);
        }
        diagnostics.extend(wrong.into_iter().map(|d| d.quoted_from(name, text)));
    }
    Err(Error(diagnostics))
}

/// Parses a type, which must be all of `text`.
///
/// # Errors
/// The errors in the text.
pub fn parse_type(text: &str) -> Result<Type, Error> {
    parse_all(text, |parser| parser.parse_type())
}

/// Parses an attribute, which must be all of `text`.
///
/// # Errors
/// The errors in the text.
pub fn parse_attribute(text: &str) -> Result<Attribute, Error> {
    parse_all(text, |parser| parser.parse_attribute(None))
}

fn parse_all<'a, T>(text: &'a str, parse: impl FnOnce(&mut Parser<'a>) -> Parse<T>) -> Result<T, Error> {
    let mut parser = Parser::new("<text>", text.as_bytes());
    match parse(&mut parser) {
        Ok(value) if parser.token.kind == Kind::Eof && parser.diagnostics.is_empty() => Ok(value),
        outcome => {
            if outcome.is_ok() {
                let _ = parser.error_here::<()>("found trailing characters");
            }
            Err(Error(parser.diagnostics))
        }
    }
}

impl<'a> Parser<'a> {
    fn new(name: &'a str, text: &'a [u8]) -> Parser<'a> {
        let mut parser = Parser {
            source: Source::new(name, text),
            lexer: Lexer::new(text),
            token: Token { kind: Kind::Eof, start: 0, end: 0 },
            module: Module::new(Location::FileLineCol { file: name.into(), line: 0, column: 0 }),
            diagnostics: Vec::new(),
            attribute_aliases: HashMap::new(),
            type_aliases: HashMap::new(),
            deferred_locations: Vec::new(),
            scopes: vec![ssa::Scope::default()],
            forward: HashMap::new(),
            blocks: vec![regions::Blocks::default()],
            default_dialects: vec!["builtin"],
            depth: 0,
            deepest: 0,
            nodes: 0,
            expanded: 0,
            implied_results: 0,
            newer_types: dialects::has_newer_names(text),
        };
        parser.advance();
        parser
    }

    /// Parses `(alias-definition | operation)* EOF`.
    fn top_level(&mut self) -> Parse {
        let mut operations: Vec<Operation> = Vec::new();
        loop {
            match self.token.kind {
                Kind::Eof => break,
                Kind::Error => return Err(Stop),
                Kind::HashId => self.attribute_alias_definition()?,
                Kind::BangId => self.type_alias_definition()?,
                Kind::MetadataBegin => self.skip_metadata()?,
                _ => {
                    let operation = self.parse_operation()?;
                    operations.push(operation);
                }
            }
        }
        self.finish_ssa()?;
        self.resolve_deferred_locations()?;
        if operations.len() == 1 && operations[0].is("builtin.module") {
            if let Some(only) = operations.pop() {
                self.module.op = only;
            }
            if self.module.op.regions.is_empty() {
                self.module.op.regions.push(Region::default());
            }
            if self.module.op.regions[0].blocks.is_empty() {
                self.module.op.regions[0].blocks.push(Default::default());
            }
        } else {
            self.module.body_mut().operations = operations;
        }
        Ok(())
    }

    /// Parses `#name = attribute`.
    fn attribute_alias_definition(&mut self) -> Parse {
        let name = &self.spelling()[1..];
        if self.attribute_aliases.contains_key(name) {
            let shown = String::from_utf8_lossy(name).into_owned();
            return self.error_here(format!("redefinition of attribute alias id '{shown}'"));
        }
        if name.contains(&b'.') {
            return self.error_here("attribute names with a '.' are reserved for dialect-defined names");
        }
        self.advance();
        self.expect(Kind::Equal, "expected '=' in attribute alias definition")?;
        let alias = self.parse_alias_value(|parser| parser.parse_attribute(None))?;
        self.attribute_aliases.insert(name, alias);
        Ok(())
    }

    /// Parses `!name = type`.
    fn type_alias_definition(&mut self) -> Parse {
        let name = &self.spelling()[1..];
        if self.type_aliases.contains_key(name) {
            let shown = String::from_utf8_lossy(name).into_owned();
            return self.error_here(format!("redefinition of type alias id '{shown}'"));
        }
        if name.contains(&b'.') {
            return self.error_here("type names with a '.' are reserved for dialect-defined names");
        }
        self.advance();
        self.expect(Kind::Equal, "expected '=' in type alias definition")?;
        // The older syntax is `!name = type T`.
        if self.at_keyword("type") {
            self.advance();
        }
        let alias = self.parse_alias_value(Self::parse_type)?;
        self.type_aliases.insert(name, alias);
        Ok(())
    }

    /// Skips `{-# ... #-}`: file metadata contains resources, which host programs do not use.
    fn skip_metadata(&mut self) -> Parse {
        while self.token.kind != Kind::MetadataEnd {
            if matches!(self.token.kind, Kind::Eof | Kind::Error) {
                return self.error_expected("expected '#-}' after file metadata");
            }
            self.advance();
        }
        self.advance();
        Ok(())
    }

    /// Parses the value of an alias, and measures its nesting depth and its number of attributes, types and locations.
    fn parse_alias_value<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<Alias<T>> {
        let nodes = self.nodes;
        self.deepest = self.depth;
        let value = parse(self)?;
        Ok(Alias { value, depth: self.deepest - self.depth, nodes: self.nodes - nodes })
    }

    /// The value of an alias used at offset `at`; stops with an error if it nests deeper than `max_depth`, or if all
    /// aliases together expand to too much.
    fn expand_alias<T: Clone>(&mut self, at: u32, alias: &Alias<T>, max_depth: usize) -> Parse<T> {
        let depth = self.depth + alias.depth;
        if depth > max_depth {
            return self.error(at, format!("nesting is deeper than {max_depth} levels"));
        }
        self.deepest = self.deepest.max(depth);
        self.nodes = self.nodes.saturating_add(alias.nodes);
        self.expanded = self.expanded.saturating_add(alias.nodes);
        if self.expanded > MAX_EXPANDED + MAX_EXPANSION * self.source.text.len() as u64 {
            return self.error(at, "aliases expand to too many attributes, types and locations");
        }
        Ok(alias.value.clone())
    }

    /// The value of an attribute alias used at offset `at`: see [`Self::expand_alias`].
    fn expand_attribute(&mut self, at: u32, alias: &Alias<Attribute>) -> Parse<Attribute> {
        let is_location = matches!(alias.value, Attribute::Location(_));
        self.expand_alias(at, alias, if is_location { MAX_LOCATION_DEPTH } else { MAX_DEPTH })
    }

    /// Runs `parse` one nesting level deeper.
    fn parse_nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
        if self.depth >= MAX_DEPTH {
            return self.error_here(format!("nesting is deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        self.nodes += 1;
        let outcome = parse(self);
        self.depth -= 1;
        outcome
    }

    /// Moves to the next token, and reports an error if the new token is malformed.
    fn advance(&mut self) {
        self.token = self.lexer.next();
        if let Some((at, message)) = self.lexer.error.take() {
            self.report(Severity::Error, at, message);
        }
    }

    /// Continues with the token at this byte offset.
    fn jump_to(&mut self, offset: u32) {
        self.lexer.reset(offset);
        self.advance();
    }

    fn token_bytes(&self, token: Token) -> &'a [u8] {
        &self.source.text[token.start as usize..token.end as usize]
    }

    /// The current token's text.
    fn spelling(&self) -> &'a [u8] {
        self.token_bytes(self.token)
    }

    fn spelling_str(&self) -> &'a str {
        std::str::from_utf8(self.spelling()).unwrap_or("")
    }

    fn at_token(&self, kind: Kind) -> bool {
        self.token.kind == kind
    }

    fn at_keyword(&self, keyword: &str) -> bool {
        self.token.kind == Kind::BareId && self.spelling() == keyword.as_bytes()
    }

    /// Offset of the current token.
    pub(crate) fn current_offset(&self) -> u32 {
        self.token.start
    }

    /// Moves past the current token if it is of this kind. Returns whether it was.
    fn consume(&mut self, kind: Kind) -> bool {
        let fits = self.token.kind == kind;
        if fits {
            self.advance();
        }
        fits
    }

    fn report(&mut self, severity: Severity, at: u32, message: impl Into<String>) {
        if self.diagnostics.len() < MAX_DIAGNOSTICS {
            let at = at.min(self.source.text.len() as u32);
            let diagnostic = self.source.diagnostic(severity, at, message);
            self.diagnostics.push(diagnostic);
        }
    }

    /// Stops with an error at offset `at`. If the current token is malformed, its error has been reported already, and this one is not
    /// reported.
    pub(crate) fn error<T>(&mut self, at: u32, message: impl Into<String>) -> Parse<T> {
        if self.token.kind != Kind::Error {
            self.report(Severity::Error, at, message);
        }
        Err(Stop)
    }

    /// As [`Self::error`], with a note at offset `note_at`.
    fn error_with_note<T>(&mut self, at: u32, message: String, note_at: u32, note: String) -> Parse<T> {
        let before = self.diagnostics.len();
        let stop = self.error(at, message);
        let note = self.source.diagnostic(Severity::Note, note_at, note);
        if let Some(diagnostic) = self.diagnostics.get_mut(before) {
            diagnostic.notes.push(note);
        }
        stop
    }

    /// Stops with an error at the current token.
    fn error_here<T>(&mut self, message: impl Into<String>) -> Parse<T> {
        let back = u32::from(self.at_token(Kind::Eof) && self.token.start > 0);
        self.error(self.token.start - back, message)
    }

    /// Stops with an error about a missing token, at the end of the previous token; white space and comments are
    /// skipped.
    fn error_expected<T>(&mut self, message: impl Into<String>) -> Parse<T> {
        let back = u32::from(self.at_token(Kind::Eof) && self.token.start > 0);
        let original = self.token.start - back;
        let mut before = &self.source.text[..original as usize];
        let place = loop {
            while let [rest @ .., b' ' | b'\t'] = before {
                before = rest;
            }
            match before {
                [] => break original,
                [rest @ .., b'\n' | b'\r'] => before = rest,
                _ => break before.len() as u32,
            }
            let line_start = before.iter().rposition(|&b| b == b'\n' || b == b'\r').unwrap_or(0);
            let line = &before[line_start..];
            if let Some(comment) = line.windows(2).position(|w| w == b"//") {
                before = &before[..line_start + comment];
            }
        };
        self.error(place, message)
    }

    /// Moves past a token of this kind, or stops with `message`.
    fn expect(&mut self, kind: Kind, message: &str) -> Parse {
        if self.consume(kind) { Ok(()) } else { self.error_expected(message) }
    }

    /// Stops with an error at offset `at` of the operation `op`, whose custom form is being parsed.
    pub(crate) fn error_in_op<T>(
        &mut self,
        op: &OpState,
        at: u32,
        message: impl std::fmt::Display,
    ) -> Parse<T> {
        self.error(at, format!("custom op '{}' {message}", op.name))
    }

    /// Parses elements separated by commas, and the bracket `close`. The opening bracket has been consumed already.
    fn list_until(&mut self, close: Kind, shown: &str, mut element: impl FnMut(&mut Self) -> Parse) -> Parse {
        if self.consume(close) {
            return Ok(());
        }
        loop {
            element(self)?;
            if !self.consume(Kind::Comma) {
                break;
            }
        }
        self.expect(close, shown)
    }

    /// Counts results that the source gives only as a number. Returns false if the text has too many of them.
    pub(crate) fn add_implied_results(&mut self, count: i128) -> bool {
        self.implied_results = self.implied_results.saturating_add(count);
        self.implied_results <= i128::from(MAX_IMPLIED_RESULTS)
    }

    /// Whether a type comes next.
    pub(crate) fn at_type(&self) -> bool {
        matches!(self.token.kind, Kind::LParen | Kind::IntType | Kind::BangId | Kind::BareId)
    }

    /// Whether `{` comes next.
    pub(crate) fn at_brace(&self) -> bool {
        self.at_token(Kind::LBrace)
    }

    /// Whether `@name` comes next.
    pub(crate) fn at_symbol(&self) -> bool {
        self.at_token(Kind::AtId)
    }

    /// Whether `%name` comes next.
    pub(crate) fn at_operand(&self) -> bool {
        self.at_token(Kind::PercentId)
    }

    /// Whether the current token can be a keyword of an operation's syntax.
    fn at_any_keyword(&self) -> bool {
        matches!(self.token.kind, Kind::BareId | Kind::IntType)
    }

    /// Consumes this keyword if it comes next. Returns whether it did.
    pub(crate) fn optional_keyword(&mut self, keyword: &str) -> bool {
        let fits = self.at_any_keyword() && self.spelling() == keyword.as_bytes();
        if fits {
            self.advance();
        }
        fits
    }

    /// Consumes this keyword; reports an error and stops parsing if another token comes next.
    pub(crate) fn keyword(&mut self, op: &OpState, keyword: &str) -> Parse {
        if self.optional_keyword(keyword) {
            return Ok(());
        }
        self.error_in_op(op, self.current_offset(), format_args!("expected '{keyword}'"))
    }

    /// Consumes any keyword and returns it, or stops with an error.
    pub(crate) fn any_keyword(&mut self, op: &OpState) -> Parse<Text> {
        if !self.at_any_keyword() {
            return self.error_in_op(op, self.current_offset(), "expected valid keyword");
        }
        let text = Text::from(self.spelling());
        self.advance();
        Ok(text)
    }

    /// Consumes a punctuation mark or literal of an operation's syntax, or stops with an error.
    pub(crate) fn literal(&mut self, op: &OpState, literal: &str) -> Parse {
        match punctuation(literal) {
            Some(kind) => self.expect(kind, &format!("expected '{literal}'")),
            None => self.keyword(op, literal),
        }
    }

    /// Consumes a punctuation mark or literal if it comes next. Returns whether it did.
    pub(crate) fn optional_literal(&mut self, literal: &str) -> bool {
        match punctuation(literal) {
            Some(kind) => self.consume(kind),
            None => self.optional_keyword(literal),
        }
    }
}

fn punctuation(literal: &str) -> Option<Kind> {
    Some(match literal {
        "(" => Kind::LParen,
        ")" => Kind::RParen,
        "{" => Kind::LBrace,
        "}" => Kind::RBrace,
        "[" => Kind::LSquare,
        "]" => Kind::RSquare,
        "<" => Kind::Less,
        ">" => Kind::Greater,
        "," => Kind::Comma,
        ":" => Kind::Colon,
        "=" => Kind::Equal,
        "->" => Kind::Arrow,
        _ => return None,
    })
}
