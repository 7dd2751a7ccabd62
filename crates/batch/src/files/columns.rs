//! Which columns of a table are given to the program, and which are kept.

use pteron_toolbox::batch::Spec;
use pteron_toolbox::{Error, Result};

/// The columns for the inputs of a program. Several columns of numbers make one input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Inputs {
    /// The columns with the names of the inputs, or the only column.
    #[default]
    Unnamed,
    /// The columns for each input, in the order of the inputs.
    Ordered(Vec<Vec<String>>),
    /// Inputs, by their names or positions, each with its columns; the others take the columns of their names.
    Named(Vec<(String, Vec<String>)>),
}

/// The columns that a program takes, and those that are kept of a table.
#[derive(Debug)]
pub(super) struct Columns {
    /// The name of each input.
    inputs: Vec<Option<String>>,
    /// The columns for each input; `None` for the one that has the input's name.
    wanted: Option<Vec<Option<Vec<String>>>>,
    /// The columns to keep; `None` for all.
    keep: Option<Vec<String>>,
    /// The names of the columns that are made.
    made: Vec<String>,
}

/// The positions in a table of the columns that are given to the program and kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The columns for each input.
    pub(super) inputs: Vec<Vec<usize>>,
    /// The columns that are kept.
    pub(super) kept: Vec<usize>,
}

impl Columns {
    /// # Errors
    /// If `given` names another number of inputs than there are, an input that is not there, or no columns for one.
    pub(super) fn new(
        inputs: &[Spec],
        given: &Inputs,
        keep: Option<Vec<String>>,
        made: Vec<String>,
    ) -> Result<Self> {
        let names: Vec<Option<String>> = inputs.iter().map(|spec| spec.name.clone()).collect();
        let wanted = match given {
            Inputs::Unnamed => None,
            Inputs::Ordered(columns) if columns.len() == names.len() => {
                Some(columns.iter().cloned().map(Some).collect::<Vec<_>>())
            }
            Inputs::Ordered(columns) => {
                return Err(Error::Input(format!(
                    "the program has {} inputs, {} columns are named for them; for one input of several columns of numbers, \
                     name them together, separated by commas",
                    names.len(),
                    columns.len()
                )));
            }
            Inputs::Named(columns) => {
                let mut wanted = vec![None; names.len()];
                for (input, columns) in columns {
                    wanted[position(&names, input)?] = Some(columns.clone());
                }
                Some(wanted)
            }
        };
        if wanted.iter().flatten().flatten().any(|columns: &Vec<String>| columns.is_empty()) {
            return Err(Error::input("an input takes a column or more, and an empty list of them is given"));
        }
        if let Some(twice) = made.iter().enumerate().find(|(i, name)| made[..*i].contains(name)) {
            return Err(Error::Input(format!("two columns that are made are called `{}`", twice.1)));
        }
        Ok(Self { inputs: names, wanted, keep, made })
    }

    /// The positions of the columns in a table with columns of these names.
    ///
    /// # Errors
    /// If a column is not there, is there twice, or is both kept and made.
    pub(super) fn choose(&self, names: &[&str]) -> Result<Chosen> {
        Ok(Chosen { inputs: self.choose_inputs(names)?, kept: self.choose_kept(names)? })
    }

    fn choose_inputs(&self, names: &[&str]) -> Result<Vec<Vec<usize>>> {
        if self.wanted.is_none() && self.inputs.len() == 1 && names.len() == 1 {
            return Ok(vec![vec![0]]);
        }
        let mut chosen = Vec::new();
        for (i, input) in self.inputs.iter().enumerate() {
            let wanted = self.wanted.as_ref().and_then(|wanted| wanted[i].as_ref());
            let found = match (wanted, input) {
                (Some(wanted), _) => wanted.iter().map(|name| index(names, name)).collect::<Result<_>>()?,
                (None, Some(name)) if names.contains(&&**name) => vec![index(names, name)?],
                (None, name) => {
                    let called =
                        name.as_ref().map_or("without a name".to_owned(), |name| format!("`{name}`"));
                    return Err(Error::Input(format!(
                        "input {i} ({called}) is no column: say with --input which is; the file has {}",
                        listed(names)
                    )));
                }
            };
            chosen.push(found);
        }
        Ok(chosen)
    }

    fn choose_kept(&self, names: &[&str]) -> Result<Vec<usize>> {
        let kept: Vec<usize> = match &self.keep {
            None => (0..names.len()).collect(),
            Some(keep) => {
                if let Some(missing) = keep.iter().find(|name| !names.contains(&&***name)) {
                    return Err(Error::Input(format!(
                        "there is no column `{missing}` to keep; the file has {}",
                        listed(names)
                    )));
                }
                (0..names.len()).filter(|&i| keep.iter().any(|name| name == names[i])).collect()
            }
        };
        match kept.iter().find(|&&i| self.made.iter().any(|made| made == names[i])) {
            None => Ok(kept),
            Some(&twice) => Err(Error::Input(format!(
                "column `{}` is both kept and made: name outputs with --outputs, or keep others (--keep)",
                names[twice]
            ))),
        }
    }
}

/// The position of an input that is called by its name or its position.
fn position(names: &[Option<String>], input: &str) -> Result<usize> {
    let by_name = names.iter().position(|name| name.as_deref() == Some(input));
    let by_number = || input.parse().ok().filter(|&i| i < names.len());
    by_name.or_else(by_number).ok_or_else(|| {
        let known = names.iter().enumerate().map(|(i, name)| name.clone().unwrap_or_else(|| i.to_string()));
        Error::Input(format!("the program has no input `{input}`: {}", known.collect::<Vec<_>>().join(", ")))
    })
}

/// The position of a column.
pub(super) fn index(names: &[&str], name: &str) -> Result<usize> {
    let mut found = (0..names.len()).filter(|&i| names[i] == name);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => Err(Error::Input(format!("the file has several columns `{name}`"))),
        (None, _) => {
            Err(Error::Input(format!("there is no column `{name}`; the file has {}", listed(names))))
        }
    }
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "no columns".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::ScalarType;

    fn specs(names: &[Option<&str>]) -> Vec<Spec> {
        let spec = |(index, name): (usize, &Option<&str>)| Spec {
            index,
            name: name.map(str::to_owned),
            dtype: ScalarType::Float,
            row: vec![2],
            is_dynamic: false,
        };
        names.iter().enumerate().map(spec).collect()
    }

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn chosen(names: &[Option<&str>], given: &Inputs, table: &[&str]) -> Result<Vec<Vec<usize>>, String> {
        let columns = Columns::new(&specs(names), given, None, list(&["y"])).map_err(|e| e.to_string())?;
        columns.choose(table).map(|chosen| chosen.inputs).map_err(|e| e.to_string())
    }

    #[test]
    fn columns_are_chosen_by_names_of_inputs_or_by_what_is_given() {
        let two = [Some("a"), Some("b")];
        assert_eq!(chosen(&two, &Inputs::Unnamed, &["b", "id", "a"]), Ok(vec![vec![2], vec![0]]));
        assert_eq!(chosen(&[None], &Inputs::Unnamed, &["x"]), Ok(vec![vec![0]]));
        let ordered = Inputs::Ordered(vec![list(&["x", "z"])]);
        assert_eq!(chosen(&[None], &ordered, &["z", "x"]), Ok(vec![vec![1, 0]]));
        let named = Inputs::Named(vec![("1".to_owned(), list(&["z"]))]);
        assert_eq!(chosen(&two, &named, &["z", "a"]), Ok(vec![vec![1], vec![0]]));
    }

    #[test]
    fn what_is_wrong_with_columns_is_said() {
        let wrong = |names: &[Option<&str>], given: &Inputs, table: &[&str], text: &str| {
            let error = chosen(names, given, table).unwrap_err();
            assert!(error.contains(text), "{error}");
        };
        wrong(&[None], &Inputs::Unnamed, &["x", "id"], "input 0 (without a name) is no column");
        wrong(&[Some("a")], &Inputs::Ordered(vec![list(&["q"])]), &["x"], "no column `q`; the file has x");
        wrong(&[Some("a")], &Inputs::Unnamed, &["a", "a"], "several columns `a`");
        wrong(&[Some("a")], &Inputs::Unnamed, &["a", "y"], "`y` is both kept and made");
        wrong(&[Some("a")], &Inputs::Ordered(Vec::new()), &["a"], "has 1 inputs, 0 columns");
        wrong(&[Some("a")], &Inputs::Named(vec![("q".to_owned(), list(&["a"]))]), &["a"], "no input `q`: a");
    }
}
