//! SSA names: scopes, definitions, uses and forward references.

use std::collections::{BTreeMap, HashMap};

use super::{Delimiter, OpState, Parse, Parser};
use crate::ir::{LocationId, Type, ValueId};
use crate::lexer::Kind;
use crate::limits::MAX_RESULTS;

/// A use of a value by name, `%name` or `%name#2`, before its type is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    /// The name with its `%`.
    pub(crate) name: &'a [u8],
    /// The number after `#`; 0 if there is none.
    pub(crate) number: u32,
    /// Byte offset of the name.
    pub(crate) at: u32,
}

/// An argument of a region's entry block.
#[derive(Clone, Debug)]
pub(crate) struct Argument<'a> {
    /// The argument's name; absent if only the type is given.
    pub(crate) name: Option<Operand<'a>>,
    /// The argument's type.
    pub(crate) ty: Type,
    /// The argument's own `loc(...)`, if it has one.
    pub(crate) location: Option<LocationId>,
}

#[derive(Clone, Copy)]
struct Slot {
    value: ValueId,
    at: u32,
}

/// Names visible in one region that is isolated from above, and in the regions nested in it.
#[derive(Default)]
pub(super) struct Scope<'a> {
    values: HashMap<&'a [u8], BTreeMap<u32, Slot>>,
    definitions: Vec<Vec<&'a [u8]>>,
}

impl<'a> Parser<'a> {
    pub(super) fn push_scope(&mut self, isolated: bool) {
        if isolated {
            self.scopes.push(Scope::default());
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.definitions.push(Vec::new());
        }
    }

    pub(super) fn pop_scope(&mut self) {
        let scopes = self.scopes.len();
        let Some(scope) = self.scopes.last_mut() else { return };
        if scope.definitions.len() <= 1 && scopes > 1 {
            self.scopes.pop();
            return;
        }
        for name in scope.definitions.pop().unwrap_or_default() {
            scope.values.remove(name);
        }
    }

    /// The values that a name stands for so far, defined or referred to, by result number.
    fn slots(&mut self, name: &'a [u8]) -> &mut BTreeMap<u32, Slot> {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        self.scopes[last].values.entry(name).or_default()
    }

    /// Byte offset of the first occurrence of result 0 of `name` in the current scope; `None` if there is none.
    pub(super) fn first_use_offset(&mut self, name: &'a [u8]) -> Option<u32> {
        self.slots(name).get(&0).map(|slot| slot.at)
    }

    /// Defines a name as a value of type `ty`: a new one, or the one that forward references have created.
    pub(super) fn define(&mut self, operand: Operand<'a>, ty: Type, location: LocationId) -> Parse<ValueId> {
        let number = operand.number;
        let shown = || String::from_utf8_lossy(operand.name).into_owned();
        let existing = self.slots(operand.name).get(&number).copied();
        let value = match existing {
            Some(slot) if !self.forward.contains_key(&slot.value) => {
                return self.error_with_note(
                    operand.at,
                    format!("redefinition of SSA value '{}'", shown()),
                    slot.at,
                    "previously defined here".into(),
                );
            }
            Some(slot) => {
                let used_as = self.module.type_of(slot.value).clone();
                if used_as != ty {
                    return self.error_with_note(
                        operand.at,
                        format!("definition of SSA value '{}#{number}' has type '{ty}'", shown()),
                        slot.at,
                        format!("previously used here with type '{used_as}'"),
                    );
                }
                self.forward.remove(&slot.value);
                self.module.values[slot.value.0 as usize].location = location;
                slot.value
            }
            None => self.module.add_value(ty, location),
        };
        self.slots(operand.name).insert(operand.number, Slot { value, at: operand.at });
        if let Some(scope) = self.scopes.last_mut()
            && let Some(names) = scope.definitions.last_mut()
        {
            names.push(operand.name);
        }
        Ok(value)
    }

    /// The value that `operand` refers to; if it is not defined yet, a new one of type `ty` that a later definition
    /// completes.
    pub(crate) fn resolve(&mut self, operand: Operand<'a>, ty: &Type) -> Parse<ValueId> {
        let slots = self.slots(operand.name);
        if let Some(slot) = slots.get(&operand.number).copied() {
            let have = self.module.type_of(slot.value).clone();
            if have == *ty {
                return Ok(slot.value);
            }
            let shown = String::from_utf8_lossy(operand.name).into_owned();
            return self.error_with_note(
                operand.at,
                format!("use of value '{shown}' expects different type than prior uses: '{ty}' vs '{have}'"),
                slot.at,
                "prior use here".into(),
            );
        }
        let first = slots.get(&0).copied();
        if u64::from(operand.number) > MAX_RESULTS
            || first.is_some_and(|slot| !self.forward.contains_key(&slot.value))
        {
            return self.error(operand.at, "reference to invalid result number");
        }
        let value = self.module.add_value(ty.clone(), LocationId(0));
        self.forward.insert(value, operand.at);
        self.slots(operand.name).insert(operand.number, Slot { value, at: operand.at });
        Ok(value)
    }

    /// Resolves operands with their types; stops with an error at `at` unless there are as many types as operands.
    pub(crate) fn resolve_all(
        &mut self,
        op: &OpState,
        operands: &[Operand<'a>],
        types: &[Type],
        at: u32,
    ) -> Parse<Vec<ValueId>> {
        if operands.len() != types.len() {
            let message = format!("{} operands present, but expected {}", operands.len(), types.len());
            return self.error_in_op(op, at, message);
        }
        operands.iter().zip(types).map(|(operand, ty)| self.resolve(*operand, ty)).collect()
    }

    /// Reports names that were used but never defined.
    pub(super) fn finish_ssa(&mut self) -> Parse {
        let mut places: Vec<u32> = self.forward.values().copied().collect();
        places.sort_unstable();
        for at in &places {
            let _ = self.error::<()>(*at, "use of undeclared SSA value name");
        }
        if places.is_empty() { Ok(()) } else { Err(super::Stop) }
    }

    /// Parses `%name` or `%name#N`.
    pub(crate) fn operand(&mut self) -> Parse<Operand<'a>> {
        let mut operand = Operand { name: self.spelling(), number: 0, at: self.current_offset() };
        self.expect(Kind::PercentId, "expected SSA operand")?;
        if self.at_token(Kind::HashId) {
            let digits = std::str::from_utf8(&self.spelling()[1..]).unwrap_or("");
            match digits.parse() {
                Ok(number) => operand.number = number,
                Err(_) => return self.error_here("invalid SSA value result number"),
            }
            self.advance();
        }
        Ok(operand)
    }

    /// Parses zero or more operands, separated by commas.
    pub(crate) fn operand_list(&mut self, delimiter: Delimiter) -> Parse<Vec<Operand<'a>>> {
        let mut operands = Vec::new();
        if delimiter == Delimiter::Paren {
            self.expect(Kind::LParen, "expected '(' in operand list")?;
            if self.consume(Kind::RParen) {
                return Ok(operands);
            }
        } else if !self.at_token(Kind::PercentId) {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand()?);
            if !self.consume(Kind::Comma) {
                break;
            }
        }
        if delimiter == Delimiter::Paren {
            self.expect(Kind::RParen, "expected ')' in operand list")?;
        }
        Ok(operands)
    }
}
