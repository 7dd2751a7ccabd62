use std::borrow::Cow;
use std::fmt;

/// A source location, as in MLIR.
///
/// Displays like the reference executor's: `file:line:col` for a whole location of that kind, `file;line;col` for
/// one inside others, `child(name)`, `callee<-caller`, `a,b`, `(unknown)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location<'a> {
    /// The location is unknown.
    Unknown,
    /// A position in a file.
    FileLineCol {
        /// The file's path, as it was passed to the compiler.
        file: Cow<'a, str>,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
    },
    /// A named location.
    Name {
        /// The name of the location.
        name: Cow<'a, str>,
        /// The location that has this name, or [`Location::Unknown`].
        child: Box<Location<'a>>,
    },
    /// A call that was inlined.
    CallSite {
        /// The location inside the callee.
        callee: Box<Location<'a>>,
        /// The location of the call.
        caller: Box<Location<'a>>,
    },
    /// The locations of several operations that were merged.
    Fused(Vec<Location<'a>>),
}

impl<'a> Location<'a> {
    /// A position in a file.
    pub fn file(file: impl Into<Cow<'a, str>>, line: u64, column: u64) -> Self {
        Location::FileLineCol { file: file.into(), line, column }
    }

    /// The location with its texts owned: copied if they are borrowed from a file.
    pub fn into_owned(self) -> Location<'static> {
        let owned = |text: Cow<'a, str>| Cow::Owned(text.into_owned());
        match self {
            Location::Unknown => Location::Unknown,
            Location::FileLineCol { file, line, column } => {
                Location::FileLineCol { file: owned(file), line, column }
            }
            Location::Name { name, child } => {
                Location::Name { name: owned(name), child: Box::new(child.into_owned()) }
            }
            Location::CallSite { callee, caller } => Location::CallSite {
                callee: Box::new(callee.into_owned()),
                caller: Box::new(caller.into_owned()),
            },
            Location::Fused(parts) => Location::Fused(parts.into_iter().map(Location::into_owned).collect()),
        }
    }

    fn write_with_separator(&self, separator: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Unknown => f.write_str("(unknown)"),
            Location::FileLineCol { file, line, column } => {
                write!(f, "{file}{separator}{line}{separator}{column}")
            }
            Location::Name { name, child } if **child == Location::Unknown => f.write_str(name),
            Location::Name { name, child } => {
                child.write_with_separator(';', f)?;
                write!(f, "({name})")
            }
            Location::CallSite { callee, caller } => {
                callee.write_with_separator(';', f)?;
                f.write_str("<-")?;
                caller.write_with_separator(';', f)
            }
            Location::Fused(parts) => parts.iter().enumerate().try_for_each(|(index, part)| {
                f.write_str(if index == 0 { "" } else { "," })?;
                part.write_with_separator(';', f)
            }),
        }
    }
}

impl fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_with_separator(':', f)
    }
}
