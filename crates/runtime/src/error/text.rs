//! Texts of errors.

use pteron_operator::shown;

/// An error and its chain of causes, on one line.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(e) = next {
        for (i, line) in e.to_string().lines().enumerate() {
            text.push_str(match (text.chars().last(), i) {
                (None, _) => "",
                (Some(':'), _) => " ",
                (Some(_), 0) => ": ",
                (Some(_), _) => "; ",
            });
            text.push_str(line.trim());
        }
        next = e.source();
    }
    text
}

/// Maximum number of names that a message lists.
const MAX_LISTED: usize = 50;

pub(super) fn list_names(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => {
            let more = names.len().saturating_sub(MAX_LISTED);
            let listed = names.iter().take(MAX_LISTED).map(|name| format!("`{}`", shown(name)));
            let more = (more > 0).then(|| format!("{more} more"));
            listed.chain(more).collect::<Vec<_>>().join(", ")
        }
    }
}
