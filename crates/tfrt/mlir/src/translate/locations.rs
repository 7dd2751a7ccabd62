//! Translates locations to and from BEF.

use std::borrow::Cow;
use std::sync::Arc;

use pteron_bef::Location as Bef;

use crate::ir::{Location, Text};
use crate::limits::MAX_LOCATION_DEPTH;

/// Translates a location to BEF. Invalid UTF-8 in names is replaced.
pub(super) fn to_bef(location: &Location) -> Bef<'static> {
    let text = |text: &Text| Cow::Owned(text.to_string_lossy());
    match location {
        Location::Unknown => Bef::Unknown,
        Location::FileLineCol { file, line, column } => {
            Bef::FileLineCol { file: text(file), line: (*line).into(), column: (*column).into() }
        }
        Location::Name { name, child } => Bef::Name { name: text(name), child: Box::new(to_bef(child)) },
        Location::CallSite { callee, caller } => {
            Bef::CallSite { callee: Box::new(to_bef(callee)), caller: Box::new(to_bef(caller)) }
        }
        Location::Fused { locations, .. } => Bef::Fused(locations.iter().map(to_bef).collect()),
    }
}

/// Translates a location from BEF. With `as_reference`, what text cannot represent is replaced.
///
/// # Errors
/// What text cannot represent: lines and columns above 32 bits, a list without locations, a file without a name, deep
/// nesting.
pub(super) fn from_bef(location: &Bef<'_>, as_reference: bool, depth: usize) -> Result<Location, String> {
    if depth > MAX_LOCATION_DEPTH && !as_reference {
        return Err(format!("its location is nested deeper than {MAX_LOCATION_DEPTH} levels"));
    }
    let child = |location: &Bef<'_>| from_bef(location, as_reference, depth + 1).map(Arc::new);
    let number = |what: &str, number: u64| match u32::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) if as_reference => Ok(u32::MAX),
        Err(_) => Err(format!("{what} {number} of its location is above {}", u32::MAX)),
    };
    Ok(match location {
        Bef::Unknown => Location::Unknown,
        Bef::FileLineCol { file, .. } if file.is_empty() && !as_reference => {
            return Err("the file of its location has no name".into());
        }
        Bef::FileLineCol { file, line, column } => Location::FileLineCol {
            file: Text::from(&**file),
            line: number("line", *line)?,
            column: number("column", *column)?,
        },
        Bef::Name { name, child: inner } => {
            Location::Name { name: Text::from(&**name), child: child(inner)? }
        }
        Bef::CallSite { callee, caller } => {
            Location::CallSite { callee: child(callee)?, caller: child(caller)? }
        }
        Bef::Fused(parts) if parts.is_empty() && !as_reference => {
            return Err("its location is a list without locations".into());
        }
        Bef::Fused(parts) => {
            let parts = parts.iter().map(|part| from_bef(part, as_reference, depth + 1));
            let parts = parts.collect::<Result<Vec<Location>, String>>()?;
            let collapsed = Location::fused(parts.clone(), None);
            let unchanged = matches!(&collapsed, Location::Fused { locations, .. } if **locations == *parts);
            if unchanged || as_reference {
                return Ok(collapsed);
            }
            // Metadata, which BEF does not store, keeps MLIR from simplifying the list.
            let metadata = Some(Arc::new(crate::ir::Attribute::Unit));
            Location::Fused { locations: parts.into(), metadata }
        }
    })
}
