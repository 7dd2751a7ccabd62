//! Source locations of operations.

use std::sync::Arc;

use super::{Attribute, Text};

/// A source location: MLIR's kinds of locations except opaque ones, which text cannot express.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// `loc(unknown)`.
    Unknown,
    /// `loc("file":line:column)`.
    FileLineCol {
        /// The file name as it is written in the text.
        file: Text,
        /// Line, from 1; 0 if the location is the file as a whole.
        line: u32,
        /// Column in bytes, from 1.
        column: u32,
    },
    /// `loc("name")` or `loc("name"(child))`.
    Name {
        /// The name.
        name: Text,
        /// The location that has this name; `Unknown` if none is given.
        child: Arc<Location>,
    },
    /// `loc(callsite(callee at caller))`.
    CallSite {
        /// Location of the called code.
        callee: Arc<Location>,
        /// Location of the call.
        caller: Arc<Location>,
    },
    /// `loc(fused<metadata>[...])`.
    Fused {
        /// The locations that were fused.
        locations: Arc<[Location]>,
        /// The attribute in `<...>`, if present.
        metadata: Option<Arc<Attribute>>,
    },
}

impl Location {
    /// Fuses locations as MLIR does: duplicates and unknown members are dropped, and a single member without metadata
    /// is returned unchanged.
    pub fn fused(locations: Vec<Location>, metadata: Option<Attribute>) -> Location {
        let mut distinct: Vec<Location> = Vec::with_capacity(locations.len());
        let mut add = |location: &Location| {
            if *location != Location::Unknown && !distinct.contains(location) {
                distinct.push(location.clone());
            }
        };
        for location in &locations {
            match location {
                Location::Fused { locations: inner, metadata: inner_metadata }
                    if inner_metadata.as_deref() == metadata.as_ref() =>
                {
                    inner.iter().for_each(&mut add);
                }
                other => add(other),
            }
        }
        match (distinct.len(), &metadata) {
            (0, None) => Location::Unknown,
            (1, None) => distinct.swap_remove(0),
            _ => {
                if distinct.is_empty() {
                    distinct.push(Location::Unknown);
                }
                Location::Fused { locations: distinct.into(), metadata: metadata.map(Arc::new) }
            }
        }
    }

    /// The first file, line and column in this location, if it has any.
    pub fn file_line_col(&self) -> Option<(&Text, u32, u32)> {
        match self {
            Location::Unknown => None,
            Location::FileLineCol { file, line, column } => Some((file, *line, *column)),
            Location::Name { child, .. } => child.file_line_col(),
            Location::CallSite { callee, caller } => {
                callee.file_line_col().or_else(|| caller.file_line_col())
            }
            Location::Fused { locations, .. } => locations.iter().find_map(Location::file_line_col),
        }
    }
}
