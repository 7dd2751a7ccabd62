//! The Python containers around the inputs and outputs of a program, and the names that they give to the tensors in them.
//!
//! An exporter flattens the arguments and results of `forward` to lists, and saves their containers as JSON: a `TreeSpec` of
//! `torch.utils._pytree`, `[1, TREE]`, where a tree has a `type` (`null` for a leaf), a `context` (for a dictionary, its keys
//! as JSON) and `children_spec`.

use serde_json::Value;

/// The only known version of pytree JSON.
const VERSION: u64 = 1;

/// The name of each input: the name of its argument and the path within it, such as `mask`, `cache.0`, `options.scale`.
/// `arguments` are the names of `forward`'s arguments, keyword arguments last; inputs within a positional argument
/// without a name have none. `None` if the JSON does not describe a call.
pub fn input_names(containers: &str, arguments: &[String]) -> Option<Vec<Option<String>>> {
    let tree = parse_tree(containers)?;
    let [positional, keywords] = children(&tree) else { return None };
    let keys = keys(keywords)?;
    let mut names = Vec::new();
    for (i, argument) in children(positional).iter().enumerate() {
        add_leaf_names(
            argument,
            arguments.get(i).map(|name| Path { text: name.clone(), is_named: true }),
            &mut names,
        );
    }
    for (key, argument) in keys.into_iter().zip(children(keywords)) {
        add_leaf_names(argument, Some(Path { text: key, is_named: true }), &mut names);
    }
    Some(names)
}

/// The name of each output: its path in the result, such as `logits` or `hidden.0`; an output whose path has only
/// indices has none. `None` if the JSON does not describe a value.
pub fn output_names(containers: &str) -> Option<Vec<Option<String>>> {
    let mut names = Vec::new();
    add_leaf_names(&parse_tree(containers)?, Some(Path::default()), &mut names);
    Some(names)
}

/// The path from the root of a pytree to a subtree.
#[derive(Clone, Default)]
struct Path {
    text: String,
    /// Whether the path contains a name, and not only indices.
    is_named: bool,
}

impl Path {
    fn child(&self, part: &str, is_named: bool) -> Self {
        let dot = if self.text.is_empty() { "" } else { "." };
        Self { text: format!("{}{dot}{part}", self.text), is_named: self.is_named || is_named }
    }
}

/// Adds the names of the leaves of a tree. Recursion is bounded, because the JSON parser limits nesting.
fn add_leaf_names(tree: &Value, path: Option<Path>, names: &mut Vec<Option<String>>) {
    if tree["type"].is_null() {
        return names.push(path.filter(|path| path.is_named).map(|path| path.text));
    }
    let keys = keys(tree);
    for (i, part) in children(tree).iter().enumerate() {
        let path = path.as_ref().map(|path| match &keys {
            Some(keys) => path.child(&keys[i], true),
            None => path.child(&i.to_string(), false),
        });
        add_leaf_names(part, path, names);
    }
}

fn parse_tree(containers: &str) -> Option<Value> {
    let mut spec: Value = serde_json::from_str(containers).ok()?;
    (spec.as_array()?.len() == 2 && spec[0].as_u64() == Some(VERSION)).then(|| spec[1].take())
}

fn children(tree: &Value) -> &[Value] {
    tree["children_spec"].as_array().map_or(&[], Vec::as_slice)
}

/// The keys of a dictionary or the fields of a class, if all are strings. The context of a class that is registered as
/// a dataclass has two lists: the fields, and those that are `None`.
fn keys(tree: &Value) -> Option<Vec<String>> {
    if matches!(tree["type"].as_str()?, "builtins.tuple" | "builtins.list") {
        return None;
    }
    let context: Value = serde_json::from_str(tree["context"].as_str()?).ok()?;
    let strings = |list: &Value| -> Option<Vec<String>> {
        list.as_array()?.iter().map(|key| key.as_str().map(str::to_owned)).collect()
    };
    let keys = strings(&context).or_else(|| strings(&context[0]))?;
    (keys.len() == children(tree).len()).then_some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn tuple(parts: &[&str]) -> String {
        let parts = parts.join(", ");
        format!(r#"{{"type": "builtins.tuple", "context": "null", "children_spec": [{parts}]}}"#)
    }

    fn class(name: &str, context: &str, parts: &[&str]) -> String {
        let (context, parts) = (context.replace('"', "\\\""), parts.join(", "));
        format!(r#"{{"type": "{name}", "context": "{context}", "children_spec": [{parts}]}}"#)
    }

    fn dict(keys: &str, parts: &[&str]) -> String {
        class("builtins.dict", keys, parts)
    }

    fn inputs(positional: &str, keywords: &str, arguments: &[&str]) -> Option<Vec<Option<String>>> {
        let arguments: Vec<String> = arguments.iter().map(|&name| name.to_owned()).collect();
        input_names(&format!("[1, {}]", tuple(&[positional, keywords])), &arguments)
    }

    fn outputs(tree: &str) -> Vec<Option<String>> {
        output_names(&format!("[1, {tree}]")).unwrap()
    }

    fn some(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn inputs_are_named_by_argument_and_path() {
        let keywords = dict(r#"["scale", "mask"]"#, &[LEAF, &tuple(&[LEAF, LEAF])]);
        let positional = tuple(&[LEAF, &dict(r#"["a"]"#, &[LEAF])]);
        let by_keyword = [some("scale"), some("mask.0"), some("mask.1")];
        let names = inputs(&positional, &keywords, &["x", "cache", "scale", "mask"]).unwrap();
        assert_eq!(names, [&[some("x"), some("cache.a")], &by_keyword[..]].concat());
        let names = inputs(&positional, &keywords, &[]).unwrap();
        assert_eq!(names, [&[None, None], &by_keyword[..]].concat());
        assert_eq!(inputs(&tuple(&[LEAF]), &dict("[]", &[]), &[]), Some(vec![None]));
    }

    #[test]
    fn outputs_are_named_by_keys_and_fields() {
        assert_eq!(outputs(LEAF), [None]);
        assert_eq!(outputs(&tuple(&[LEAF, LEAF])), [None, None]);
        let hidden = tuple(&[LEAF, LEAF]);
        let output = class("transformers.BaseModelOutput", r#"["logits", "hidden"]"#, &[LEAF, &hidden]);
        assert_eq!(outputs(&output), [some("logits"), some("hidden.0"), some("hidden.1")]);
        let dataclass = class("app.Pair", r#"[["a", "b"], ["c"]]"#, &[LEAF, LEAF]);
        assert_eq!(outputs(&tuple(&[LEAF, &dataclass])), [None, some("1.a"), some("1.b")]);
    }

    #[test]
    fn invalid_containers_give_no_names() {
        for text in ["", "T1#1($)", "[2, {}]", "[1, {\"type\": null}]", "[1, 2]", &"[1,".repeat(10_000)] {
            assert_eq!(input_names(text, &[]), None, "{text}");
        }
        // Fewer keys than values; keys that are not strings, so that positions are used as names.
        assert_eq!(inputs(&tuple(&[LEAF]), &dict(r#"["a"]"#, &[LEAF, LEAF]), &[]), None);
        assert_eq!(
            inputs(&tuple(&[]), &dict(r#"["a"]"#, &[&dict("[3]", &[LEAF])]), &[]),
            Some(vec![some("a.0")])
        );
    }
}
