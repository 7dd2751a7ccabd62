//! Text for people: suggestions for misspelt names, and text from files made safe to show on a terminal.
#![forbid(unsafe_code)]

mod shown;
mod suggest;

pub use shown::{
    Escapes, MAX_COLUMNS, Screen, Shown, bytes, is_plain, line, message, quoted, text, text_within,
};
pub use suggest::{closest, did_you_mean};
