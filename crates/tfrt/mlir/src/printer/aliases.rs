//! Location aliases: collects and numbers them, and determines which must be defined before their use.

use std::collections::HashMap;
use std::fmt;

use crate::dialects::{self, Syntax};
use crate::ir::{Location, Module, Operation, Region};

/// The alias of a location.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alias {
    /// The alias's number; alias 0 has no number in its name.
    pub(super) index: usize,
    /// Whether the alias may be defined after its uses, at the end of the text.
    pub(super) deferred: bool,
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => f.write_str("#loc"),
            index => write!(f, "#loc{index}"),
        }
    }
}

struct Seen {
    depth: usize,
    deferred: bool,
}

struct Collector<'a> {
    module: &'a Module,
    generic: bool,
    order: Vec<&'a Location>,
    seen: HashMap<&'a Location, Seen>,
}

/// An alias for each location that is printed together with the operation `top`.
pub(super) fn collect_aliases<'a>(
    module: &'a Module,
    top: &'a Operation,
    generic: bool,
) -> HashMap<&'a Location, Alias> {
    let mut collector = Collector { module, generic, order: Vec::new(), seen: HashMap::new() };
    collector.visit_operation(top);
    let Collector { mut order, seen, .. } = collector;
    order.sort_by_key(|location| seen[location].depth);
    let alias = |(index, location): (usize, &'a Location)| {
        (location, Alias { index, deferred: seen[location].deferred })
    };
    order.into_iter().enumerate().map(alias).collect()
}

impl<'a> Collector<'a> {
    fn visit_operation(&mut self, op: &'a Operation) {
        self.visit_location(self.module.location(op.location), true);
        let custom = !self.generic
            && dialects::lookup_op(&op.name).is_some_and(|d| !matches!(d.syntax, Syntax::Generic));
        let function = custom && op.is("func.func");
        for region in &op.regions {
            self.visit_region(region, !custom || function);
        }
    }

    fn visit_region(&mut self, region: &'a Region, entry_arguments: bool) {
        for (position, block) in region.blocks.iter().enumerate() {
            if position > 0 || entry_arguments {
                for argument in &block.arguments {
                    let location = self.module.values[argument.0 as usize].location;
                    self.visit_location(self.module.location(location), false);
                }
            }
            for op in &block.operations {
                self.visit_operation(op);
            }
        }
    }

    /// Visits a location and its children, and returns the nesting depth of the location, from 1.
    fn visit_location(&mut self, location: &'a Location, deferred: bool) -> usize {
        if let Some(seen) = self.seen.get(location) {
            let (depth, was_deferred) = (seen.depth, seen.deferred);
            if was_deferred && !deferred {
                self.define_early(location);
            }
            return depth;
        }
        self.order.push(location);
        self.seen.insert(location, Seen { depth: 1, deferred });
        let mut deepest = 0;
        children(location, |child| deepest = deepest.max(self.visit_location(child, deferred)));
        if let Some(seen) = self.seen.get_mut(location) {
            seen.depth = deepest + 1;
        }
        deepest + 1
    }

    /// Marks the alias of a location, and those of its children, to be defined at the beginning of the text.
    fn define_early(&mut self, location: &'a Location) {
        if let Some(seen) = self.seen.get_mut(location)
            && seen.deferred
        {
            seen.deferred = false;
            children(location, |child| self.define_early(child));
        }
    }
}

fn children<'a>(location: &'a Location, mut each: impl FnMut(&'a Location)) {
    match location {
        Location::Unknown | Location::FileLineCol { .. } => {}
        Location::Name { child, .. } => {
            if **child != Location::Unknown {
                each(child);
            }
        }
        Location::CallSite { callee, caller } => {
            each(callee);
            each(caller);
        }
        Location::Fused { locations, .. } => locations.iter().for_each(each),
    }
}
