//! Translates locations to and from BEF.

use std::borrow::Cow;
use std::sync::Arc;

use bef::Location as Bef;

use crate::ir::{Location, Text};

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

/// Translates a location from BEF. Lines and columns above 32 bits, which the text cannot represent, saturate.
pub(super) fn from_bef(location: &Bef<'_>, as_reference: bool) -> Location {
    let child = |location: &Bef<'_>| Arc::new(from_bef(location, as_reference));
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    match location {
        Bef::Unknown => Location::Unknown,
        Bef::FileLineCol { file, line, column } => {
            Location::FileLineCol { file: Text::from(&**file), line: number(*line), column: number(*column) }
        }
        Bef::Name { name, child: inner } => Location::Name { name: Text::from(&**name), child: child(inner) },
        Bef::CallSite { callee, caller } => {
            Location::CallSite { callee: child(callee), caller: child(caller) }
        }
        Bef::Fused(parts) => {
            let parts: Vec<Location> = parts.iter().map(|part| from_bef(part, as_reference)).collect();
            let collapsed = Location::fused(parts.clone(), None);
            let kept = matches!(&collapsed, Location::Fused { locations, .. } if **locations == *parts);
            if kept || as_reference {
                return collapsed;
            }
            // Metadata, which BEF does not store, keeps MLIR from simplifying the list.
            let metadata = Some(Arc::new(crate::ir::Attribute::Unit));
            Location::Fused { locations: parts.into(), metadata }
        }
    }
}
