//! The modules of a crate: the items that each defines, the names that it imports, and the paths that it uses.

use crate::source::{Kind, Token, attribute, close, is_test, skip_item, tokens};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Names = Vec<String>;

/// Index of a module in [`Modules`].
type Id = usize;

struct Module {
    file: PathBuf,
    parent: Option<Id>,
    children: BTreeMap<String, Id>,
    items: BTreeSet<String>,
    /// What `use` imports, by the name that it has here.
    imports: BTreeMap<String, Names>,
    globs: Vec<Names>,
    /// The paths that lead to other files: those of a private `use`, and those that begin with `crate`, `super` or
    /// `self`. A path through the name of a child is no edge: a parent knows its children.
    paths: Vec<Names>,
    /// Names without a path, which a glob may import.
    names: BTreeSet<String>,
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(Id),
    /// An item of this module.
    Item(Id),
}

/// The modules of a crate.
#[derive(Default)]
pub(crate) struct Modules(Vec<Module>);

impl Modules {
    /// Reads a crate, from its root file. What exists in tests only is left out.
    pub(crate) fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        let id = modules.add(root.to_owned(), None);
        modules.load(id, &root.with_file_name(""));
        modules
    }

    /// The edges between files: from the file that uses an item to the file that defines it.
    pub(crate) fn edges(&self) -> BTreeSet<(&Path, &Path)> {
        let mut edges = BTreeSet::new();
        let items: BTreeSet<&String> =
            self.0.iter().flat_map(|m| m.items.iter().chain(m.imports.keys())).collect();
        for (id, module) in self.0.iter().enumerate() {
            let paths = module.paths.iter().filter_map(|path| self.resolve(id, path, &mut BTreeSet::new()));
            let own = |name: &String| {
                module.items.contains(name)
                    || module.imports.contains_key(name)
                    || module.children.contains_key(name)
            };
            let by_globs =
                module.names.iter().filter(|name| items.contains(name) && !own(name)).filter_map(|name| {
                    let target = self.in_globs(id, name, &mut BTreeSet::new());
                    target.filter(|target| matches!(target, Target::Item(_)))
                });
            for target in paths.chain(by_globs) {
                let (Target::Module(target) | Target::Item(target)) = target;
                edges.insert((&*module.file, &*self.0[target].file));
            }
        }
        edges.retain(|(from, to)| from != to);
        edges
    }

    fn add(&mut self, file: PathBuf, parent: Option<Id>) -> Id {
        self.0.push(Module {
            file,
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            paths: Vec::new(),
            names: BTreeSet::new(),
        });
        self.0.len() - 1
    }

    /// Reads the file of a module; `folder` is where the files of its children are.
    fn load(&mut self, id: Id, folder: &Path) {
        let text = fs::read_to_string(&self.0[id].file).expect("a source file");
        self.scan(id, &tokens(&text), folder);
    }

    fn scan(&mut self, id: Id, tokens: &[Token<'_>], folder: &Path) {
        let text = |i: usize| tokens.get(i).map_or("", |token| token.text);
        let (mut i, mut depth, mut attributes) = (0, 0usize, Vec::new());
        while i < tokens.len() {
            if let Some((end, attribute_tokens)) = attribute(tokens, i) {
                i = end;
                if is_test(&attribute_tokens) {
                    while let Some((end, _)) = attribute(tokens, i) {
                        i = end;
                    }
                    i = skip_item(tokens, i);
                    attributes.clear();
                } else {
                    attributes.push(attribute_tokens);
                }
                continue;
            }
            match text(i) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                "mod" if depth == 0 && text(i + 2) == ";" => {
                    let path = attributes.iter().find_map(|a| a.strip_prefix("path="));
                    self.file_module(id, text(i + 1), path.map(|path| path.trim_matches('"')), folder);
                }
                "mod" if depth == 0 && text(i + 2) == "{" => {
                    let end = close(tokens, i + 2);
                    let child = self.add(self.0[id].file.clone(), Some(id));
                    self.0[id].children.entry(text(i + 1).to_owned()).or_insert(child);
                    self.scan(child, &tokens[i + 3..end - 1], &folder.join(text(i + 1)));
                    i = end;
                    continue;
                }
                // `use<'a>` in a type captures a lifetime.
                "use" if text(i + 1) != "<" => {
                    let is_public = is_public(&tokens[..i]);
                    self.import(id, tokens, i + 1, &[], is_public);
                    while text(i) != ";" && i < tokens.len() {
                        i += 1;
                    }
                }
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
                    if depth == 0 && tokens.get(i + 1).is_some_and(|next| next.kind == Kind::Name) =>
                {
                    self.0[id].items.insert(text(i + 1).to_owned());
                }
                "macro_rules" if depth == 0 => _ = self.0[id].items.insert(text(i + 2).to_owned()),
                name if tokens[i].kind == Kind::Name && (i == 0 || !matches!(text(i - 1), "." | "::")) => {
                    let mut path = vec![name.to_owned()];
                    while text(i + 1) == "::" && tokens.get(i + 2).is_some_and(|t| t.kind == Kind::Name) {
                        path.push(text(i + 2).to_owned());
                        i += 2;
                    }
                    match (path.len(), name) {
                        (1, _) if text(i + 1) != "::" => _ = self.0[id].names.insert(name.to_owned()),
                        (_, "crate" | "super" | "self") => self.0[id].paths.push(path),
                        _ => {}
                    }
                }
                _ => {}
            }
            if depth == 0 && matches!(text(i), ";" | "}") {
                attributes.clear();
            }
            i += 1;
        }
    }

    /// Reads a module in a file of its own, if there is one.
    fn file_module(&mut self, parent: Id, name: &str, path: Option<&str>, folder: &Path) {
        let choices = match path {
            Some(path) => vec![self.0[parent].file.with_file_name(path)],
            None => vec![folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")],
        };
        let Some(file) = choices.into_iter().find(|file| file.exists()) else { return };
        let beside = file.with_file_name("");
        let is_folder = path.is_some() || file.ends_with("mod.rs");
        let id = self.add(file, Some(parent));
        // Of two files for one module, by target, the second is read, but no path leads to it.
        self.0[parent].children.entry(name.to_owned()).or_insert(id);
        self.load(id, &if is_folder { beside } else { beside.join(name) });
    }

    /// Reads one tree of a `use` at `i` and returns the index after it.
    fn import(
        &mut self,
        id: Id,
        tokens: &[Token<'_>],
        mut i: usize,
        prefix: &[String],
        is_public: bool,
    ) -> usize {
        let mut path = prefix.to_vec();
        let mut name = None;
        while let Some(token) = tokens.get(i) {
            match token.text {
                "{" => {
                    let end = close(tokens, i);
                    i += 1;
                    while i < end - 1 {
                        i = self.import(id, tokens, i, &path, is_public);
                        i += usize::from(tokens[i].text == ",");
                    }
                    return end;
                }
                "*" => {
                    self.0[id].globs.push(path);
                    return i + 1;
                }
                "::" => {}
                "," | ";" | "}" => break,
                "as" => {
                    name = tokens.get(i + 1).map(|token| token.text.to_owned());
                    i += 1;
                }
                part => path.push(part.to_owned()),
            }
            i += 1;
        }
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            // A re-export is no edge: those who use it depend on the file that defines the item.
            if !is_public {
                self.0[id].paths.push(path.clone());
            }
            if name != "_" {
                self.0[id].imports.entry(name).or_insert(path);
            }
        }
        i
    }

    /// What a name of a module stands for. `None` if that is not of this crate. `asked` ends circles of re-exports.
    fn lookup<'s>(&'s self, id: Id, name: &'s str, asked: &mut BTreeSet<(Id, &'s str)>) -> Option<Target> {
        if !asked.insert((id, name)) {
            return None;
        }
        let module = &self.0[id];
        let target = if let Some(&child) = module.children.get(name) {
            Some(Target::Module(child))
        } else if module.items.contains(name) {
            Some(Target::Item(id))
        } else if let Some(path) = module.imports.get(name) {
            self.resolve(id, path, asked)
        } else {
            self.in_globs(id, name, asked)
        };
        // What was not found is not asked again.
        if target.is_some() {
            asked.remove(&(id, name));
        }
        target
    }

    fn in_globs<'s>(&'s self, id: Id, name: &'s str, asked: &mut BTreeSet<(Id, &'s str)>) -> Option<Target> {
        self.0[id].globs.iter().find_map(|path| match self.resolve(id, path, asked)? {
            Target::Module(target) if target != id => self.lookup(target, name, asked),
            _ => None,
        })
    }

    fn resolve<'s>(
        &'s self,
        id: Id,
        path: &'s [String],
        asked: &mut BTreeSet<(Id, &'s str)>,
    ) -> Option<Target> {
        let mut at = id;
        for (i, name) in path.iter().enumerate() {
            at = match name.as_str() {
                "crate" => self.root(at),
                "self" => at,
                "super" => self.0[at].parent.unwrap_or(at),
                name => match self.lookup(at, name, asked) {
                    Some(Target::Module(child)) => child,
                    Some(item) => return Some(item),
                    None => return (i > 0).then_some(Target::Item(at)),
                },
            };
        }
        Some(Target::Module(at))
    }

    fn root(&self, mut id: Id) -> Id {
        while let Some(parent) = self.0[id].parent {
            id = parent;
        }
        id
    }
}

/// Whether the tokens before an item end with `pub` or `pub(…)`.
fn is_public(before: &[Token<'_>]) -> bool {
    let is_pub = |tokens: &[Token<'_>]| tokens.last().is_some_and(|token| token.text == "pub");
    let open = before.iter().rposition(|token| token.text == "(");
    is_pub(before)
        || before.last().is_some_and(|token| token.text == ")")
            && open.is_some_and(|open| is_pub(&before[..open]))
}
