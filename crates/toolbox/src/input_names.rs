//! The names of a method's inputs.

use pteron_runtime::MethodMeta;
use serde::Deserialize;

/// The name of each input of a method, if the exporter kept one: the name of the tensor, or of the keyword argument that it
/// was passed as when the model was exported. A leaf of a nested argument has the argument's name and its path: `mask.0`,
/// `cache.key`.
pub fn input_names(meta: &MethodMeta<'_>) -> Vec<Option<String>> {
    let inputs = meta.inputs();
    let structure = meta.plan().container_meta_type.as_ref().and_then(|meta| meta.encoded_inp_str.as_deref());
    let mut keywords = structure.map(keywords).unwrap_or_default();
    // A structure with another number of leaves does not describe these inputs.
    if keywords.len() != inputs.len() {
        keywords = vec![None; inputs.len()];
    }
    let own = inputs.into_iter().map(|input| input.tensor.and_then(|tensor| tensor.name));
    own.zip(keywords).map(|(own, keyword)| own.or(keyword)).collect()
}

/// A node of a PyTorch `TreeSpec`, as PyTorch serializes it to JSON.
#[derive(Deserialize)]
struct Tree {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// For a dictionary, its keys as JSON.
    #[serde(default)]
    context: Option<String>,
    #[serde(default, rename = "children_spec")]
    parts: Vec<Tree>,
}

/// The name of each leaf of `[1, tree]`, where the tree is a tuple of the positional arguments and the keyword arguments;
/// empty if the structure is anything else.
fn keywords(structure: &str) -> Vec<Option<String>> {
    let Ok((1, tree)) = serde_json::from_str::<(u32, Tree)>(structure) else { return Vec::new() };
    let mut names = Vec::new();
    match &tree.parts[..] {
        [positional, by_keyword] if by_keyword.keys().is_some() => {
            add(positional, None, &mut names);
            add(by_keyword, Some(String::new()), &mut names);
        }
        _ => {}
    }
    names
}

impl Tree {
    /// The keys of a dictionary whose keys are strings.
    fn keys(&self) -> Option<Vec<String>> {
        self.kind.as_ref().filter(|kind| kind.ends_with("dict") || kind.ends_with("Dict"))?;
        let keys: Vec<String> = serde_json::from_str(self.context.as_deref()?).ok()?;
        (keys.len() == self.parts.len()).then_some(keys)
    }
}

/// Adds the names of the leaves of a subtree of this name. Recursion is bounded, because the JSON parser limits nesting.
fn add(tree: &Tree, name: Option<String>, names: &mut Vec<Option<String>>) {
    if tree.kind.is_none() {
        return names.push(name.filter(|name| !name.is_empty()));
    }
    let keys = tree.keys();
    for (i, part) in tree.parts.iter().enumerate() {
        let name = name.as_ref().map(|name| {
            let key = keys.as_ref().map_or_else(|| i.to_string(), |keys| keys[i].clone());
            if name.is_empty() { key } else { format!("{name}.{key}") }
        });
        add(part, name, names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn tuple(parts: &[&str]) -> String {
        let parts = parts.join(", ");
        format!(r#"{{"type": "builtins.tuple", "context": "null", "children_spec": [{parts}]}}"#)
    }

    fn dict(keys: &str, parts: &[&str]) -> String {
        let (keys, parts) = (keys.replace('"', "\\\""), parts.join(", "));
        format!(r#"{{"type": "builtins.dict", "context": "{keys}", "children_spec": [{parts}]}}"#)
    }

    fn named(positional: &str, by_keyword: &str) -> Vec<Option<String>> {
        keywords(&format!("[1, {}]", tuple(&[positional, by_keyword])))
    }

    fn some(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn keyword_arguments_have_names() {
        let by_keyword = dict(r#"["scale", "mask"]"#, &[LEAF, &tuple(&[LEAF, LEAF])]);
        let names = named(&tuple(&[LEAF, &dict(r#"["a"]"#, &[LEAF])]), &by_keyword);
        assert_eq!(names, [None, None, some("scale"), some("mask.0"), some("mask.1")]);
        assert_eq!(named(&tuple(&[LEAF]), &dict("[]", &[])), [None]);
    }

    #[test]
    fn invalid_structures_give_no_names() {
        for text in ["", "T1#1($)", "[2, {}]", "[1, {\"type\": null}]", "[1, 2]", &"[1,".repeat(10_000)] {
            assert_eq!(keywords(text), []);
        }
        // Fewer keys than values; keys that are not strings, so that positions are used as names.
        assert_eq!(named(&tuple(&[LEAF]), &dict(r#"["a"]"#, &[LEAF, LEAF])), []);
        assert_eq!(named(&tuple(&[]), &dict(r#"["a"]"#, &[&dict("[3]", &[LEAF])])), [some("a.0")]);
    }
}
