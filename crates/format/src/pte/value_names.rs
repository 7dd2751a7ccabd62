use super::own_data::{escape, lines_after_head, unescape};
use std::fmt;
use std::str::FromStr;

/// The names of the inputs and outputs of a method, in the order of its tables, which have no place for them. An input
/// or output may have none.
///
/// ```text
/// names 1
/// input input_ids
/// input cache.0
/// input
/// output logits
/// ```
///
/// A name is written with `\n` for a line feed and `\\` for a backslash.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ValueNames {
    /// The names of the inputs, in order.
    pub inputs: Vec<Option<String>>,
    /// The names of the outputs, in order.
    pub outputs: Vec<Option<String>>,
}

const HEAD: &str = "names 1";

impl ValueNames {
    /// Whether no input or output has a name.
    pub fn is_empty(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).all(Option::is_none)
    }
}

impl fmt::Display for ValueNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        for (what, names) in [("input", &self.inputs), ("output", &self.outputs)] {
            for name in names {
                match name {
                    Some(name) => writeln!(f, "{what} {}", escape(name))?,
                    None => writeln!(f, "{what}")?,
                }
            }
        }
        Ok(())
    }
}

impl FromStr for ValueNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut names = Self::default();
        for line in lines_after_head(HEAD, text)? {
            let wrong = || format!("`{line}` names no input or output");
            let (what, name) = match line.split_once(' ') {
                Some((what, name)) => (what, Some(unescape(name).ok_or_else(wrong)?)),
                None => (line, None),
            };
            match what {
                "input" => names.inputs.push(name),
                "output" => names.outputs.push(name),
                _ => return Err(wrong()),
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_and_read() {
        let some = |name: &str| Some(name.to_owned());
        let inputs = vec![some("x"), None, some(""), some("a b\n\\"), some("input")];
        let names = ValueNames { inputs, outputs: vec![some("logits")] };
        assert_eq!(names.to_string().parse(), Ok(names));
        assert!("names 1\ninput\noutput\n".parse::<ValueNames>().unwrap().is_empty());
        for wrong in ["", "names 2\n", "input x", "names 1\ninputs x\n", "names 1\ninput \\x\n"] {
            assert!(wrong.parse::<ValueNames>().is_err(), "{wrong}");
        }
    }
}
