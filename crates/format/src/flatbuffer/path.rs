use std::fmt;

/// The path of a field in a file, as a linked list from the field up to the root.
///
/// It is only formatted when an error displays it: `execution_plan[0].values[17].sizes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path<'p> {
    up: Option<&'p Path<'p>>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Root,
    Field(&'static str),
    Index(usize),
}

impl<'p> Path<'p> {
    /// The root of a file; displays as the empty string.
    pub const ROOT: Path<'static> = Path { up: None, step: Step::Root };

    /// The path of the field `name` of this table.
    pub fn field(&'p self, name: &'static str) -> Path<'p> {
        Path { up: Some(self), step: Step::Field(name) }
    }

    /// The path of the entry `index` of this vector.
    pub fn index(&'p self, index: usize) -> Path<'p> {
        Path { up: Some(self), step: Step::Index(index) }
    }

    /// How many bytes of `text` remain after this path, if this is the path `text` or an enclosing one.
    pub(crate) fn remaining_len(&self, text: &str) -> Option<usize> {
        let rest = self.strip_self(text)?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest.len())
    }

    /// The rest of `text` after this path, if `text` starts with it.
    fn strip_self<'t>(&self, text: &'t str) -> Option<&'t str> {
        let rest = match self.up {
            Some(up) => up.strip_self(text)?,
            None => text,
        };
        match self.step {
            Step::Root => Some(rest),
            Step::Field(name) => rest.strip_prefix('.').unwrap_or(rest).strip_prefix(name),
            Step::Index(index) => {
                let (digits, rest) = rest.strip_prefix('[')?.split_once(']')?;
                (digits.parse() == Ok(index)).then_some(rest)
            }
        }
    }

    /// The index that follows this path in `text`, and how many bytes remain after it: 3 and 6 for `values[3].sizes` at
    /// `values`.
    pub(crate) fn parse_index(&self, text: &str) -> Option<(usize, usize)> {
        let (digits, rest) = self.strip_self(text)?.strip_prefix('[')?.split_once(']')?;
        Some((digits.parse().ok()?, rest.len()))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(up) = self.up {
            up.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) if self.up.is_none_or(|up| up.step == Step::Root) => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_matches_the_text_that_it_displays_as() {
        let root = Path::ROOT;
        let plans = root.field("execution_plan");
        let plan = plans.index(0);
        let values = plan.field("values");
        let value = values.index(17);
        let sizes = value.field("sizes");
        assert_eq!(sizes.to_string(), "execution_plan[0].values[17].sizes");
        assert_eq!(sizes.remaining_len("execution_plan[0].values[17].sizes"), Some(0));
        assert_eq!(sizes.remaining_len("execution_plan[0].values[17].sizes[1]"), Some(3));
        assert_eq!(sizes.remaining_len("execution_plan[0].values[17].sizes_too"), None);
        assert_eq!(sizes.remaining_len("execution_plan[0].values[1].sizes"), None);
        assert_eq!(value.remaining_len("execution_plan[0].values[17].sizes"), Some(6));
        assert_eq!(values.parse_index("execution_plan[0].values[17].sizes"), Some((17, 6)));
    }
}
