//! Reconstructs the names of attributes that hold functions, which BEF does not store.

use std::collections::BTreeSet;

use crate::dialects::{self, AttributeKind};
use crate::ir::{Attribute, Text};

/// Names the function attributes of kernels.
///
/// A registered operation's definition has the names. For other operations, a single function is called `callee`, and
/// several are called `callee0`, `callee1`, ..., which sort in the order of the functions. Strings in the file that
/// nothing refers to must be names of lists of functions, and are used for lists.
pub(super) struct Namer {
    /// Candidate names for attributes that are lists of functions: strings of the file that no attribute has taken yet.
    lists: BTreeSet<String>,
}

impl Namer {
    /// A namer that gives the names in `extra`, the file's strings that nothing refers to, to lists of functions.
    pub(super) fn new<'s>(extra: impl Iterator<Item = &'s str>) -> Namer {
        Namer { lists: extra.map(String::from).collect() }
    }

    /// Takes a registered operation's name for its list of functions out of the candidates, so that no other operation gets it.
    pub(super) fn reserve_list_name(&mut self, operation: &str) {
        if let Some(list) = list_attribute(operation) {
            self.lists.remove(list);
        }
    }

    /// Attributes, with names, for the `functions` of a kernel called `operation` that also has `other_attributes`.
    pub(super) fn function_attributes(
        &mut self,
        operation: &str,
        functions: &[Text],
        other_attributes: &[(Text, Attribute)],
    ) -> Vec<(Text, Attribute)> {
        if functions.is_empty() {
            return Vec::new();
        }
        let symbol = |name: &Text| Attribute::symbol(name.clone());
        let list = |functions: &[Text]| Attribute::array(functions.iter().map(symbol).collect());
        if let Some(definition) = dialects::lookup_op(operation.as_bytes()) {
            let flat = definition.attributes.iter().filter(|a| a.kind == AttributeKind::FlatSymbol);
            let mut names: Vec<&str> = flat.map(|a| a.name).collect();
            names.sort_unstable();
            if names.len() == functions.len() {
                return names.iter().zip(functions).map(|(name, f)| (Text::from(*name), symbol(f))).collect();
            }
            if let Some(name) = list_attribute(operation) {
                return vec![(name.into(), list(functions))];
            }
        }
        let free = |name: &String| !other_attributes.iter().any(|(t, _)| *t == name.as_str());
        // Use one list name per kernel as long as names are left.
        if let Some(name) = self.lists.iter().find(|name| free(name)).cloned() {
            self.lists.remove(&name);
            return vec![(name.into(), list(functions))];
        }
        let stem = ["callee", "function", "symbol"].into_iter().find(|stem| {
            !other_attributes.iter().any(|(name, _)| name.as_bytes().starts_with(stem.as_bytes()))
        });
        let stem = stem.unwrap_or("_callee");
        if let [only] = functions {
            return vec![(stem.into(), symbol(only))];
        }
        let digits = (functions.len() - 1).to_string().len();
        let numbered = functions.iter().enumerate();
        numbered.map(|(at, f)| (format!("{stem}{at:0digits$}").into(), symbol(f))).collect()
    }
}

/// The name of the attribute of a registered operation that is a list of functions, if it has one.
fn list_attribute(operation: &str) -> Option<&'static str> {
    (operation == "tfrt.case").then_some("branches")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(namer: &mut Namer, operation: &str, functions: &[&str]) -> Vec<String> {
        let functions: Vec<Text> = functions.iter().map(|f| Text::from(*f)).collect();
        let attributes =
            namer.function_attributes(operation, &functions, &[("other".into(), Attribute::Unit)]);
        attributes.into_iter().map(|(name, value)| format!("{name} = {value}")).collect()
    }

    #[test]
    fn names_of_registered_operations_come_from_their_definitions() {
        let mut namer = Namer::new(std::iter::empty());
        assert_eq!(names(&mut namer, "tfrt.cond", &["f", "g"]), ["a_true_fn = @f", "b_false_fn = @g"]);
        assert_eq!(names(&mut namer, "tfrt.case", &["f", "g", "f"]), ["branches = [@f, @g, @f]"]);
        assert_eq!(names(&mut namer, "x.y", &["f"]), ["callee = @f"]);
        assert_eq!(names(&mut namer, "x.y", &["f", "g"]), ["callee0 = @f", "callee1 = @g"]);
        assert_eq!(names(&mut namer, "x.y", &[]), Vec::<String>::new());
    }

    #[test]
    fn unused_strings_are_names_of_lists() {
        let mut namer = Namer::new(["branches", "many"].into_iter());
        namer.reserve_list_name("tfrt.case");
        assert_eq!(names(&mut namer, "x.y", &["f", "g"]), ["many = [@f, @g]"]);
        assert_eq!(names(&mut namer, "x.y", &["f"]), ["callee = @f"]);
    }
}
