//! Names of a method's inputs.

use runtime::MethodMeta;
use serde::Deserialize;

/// The name of each input of a method, where the exporter kept one: that of the tensor, or of the keyword argument that it was
/// when the model was exported. A part of such an argument has the name of the whole and its place in it: `mask.0`, `cache.key`.
pub fn input_names(meta: &MethodMeta<'_>) -> Vec<Option<String>> {
    let inputs = meta.inputs();
    let structure = meta.plan().container_meta_type.as_ref().and_then(|meta| meta.encoded_inp_str.as_deref());
    let mut keywords = structure.map(keywords).unwrap_or_default();
    // One that does not describe the inputs says nothing of them.
    if keywords.len() != inputs.len() {
        keywords = vec![None; inputs.len()];
    }
    let own = inputs.into_iter().map(|input| input.tensor.and_then(|tensor| tensor.name));
    own.zip(keywords).map(|(own, keyword)| own.or(keyword)).collect()
}

/// A structure of arguments, as PyTorch writes it.
#[derive(Deserialize)]
struct Tree {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Of a dictionary its keys, as JSON.
    #[serde(default)]
    context: Option<String>,
    #[serde(default, rename = "children_spec")]
    parts: Vec<Tree>,
}

/// The name of each leaf of `[1, tree]`, a tuple of the positional arguments and those by keyword; nothing if it is something else.
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
    /// The keys of a dictionary of texts.
    fn keys(&self) -> Option<Vec<String>> {
        self.kind.as_ref().filter(|kind| kind.ends_with("dict") || kind.ends_with("Dict"))?;
        let keys: Vec<String> = serde_json::from_str(self.context.as_deref()?).ok()?;
        (keys.len() == self.parts.len()).then_some(keys)
    }
}

/// Adds the names of the leaves of a part that has this name. A tree that was read is not deep.
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
    fn what_is_no_structure_names_nothing() {
        for text in ["", "T1#1($)", "[2, {}]", "[1, {\"type\": null}]", "[1, 2]", &"[1,".repeat(10_000)] {
            assert_eq!(keywords(text), []);
        }
        // Fewer keys than values, keys that are no texts: places are names then.
        assert_eq!(named(&tuple(&[LEAF]), &dict(r#"["a"]"#, &[LEAF, LEAF])), []);
        assert_eq!(named(&tuple(&[]), &dict(r#"["a"]"#, &[&dict("[3]", &[LEAF])])), [some("a.0")]);
    }
}
