use std::fmt;

/// Why a request failed; both protocols have a status code for each reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The request is malformed or does not fit the model, or the files of a model are not as they should be.
    Invalid,
    /// The bearer token is missing or wrong.
    Unauthenticated,
    /// The server's options do not allow this.
    Forbidden,
    /// There is no such model, version or path.
    NotFound,
    /// The request, or a part of it, exceeds a size limit.
    TooLarge,
    /// A queue or the memory budget is full: the request may succeed later.
    Busy,
    /// The request uses a feature of the protocol that the server does not support.
    Unsupported,
    /// The model is not loaded, a file cannot be read, or the server is stopping.
    Unavailable,
    /// The deadline of the request has passed.
    Deadline,
    /// The client has disconnected or cancelled the request.
    Cancelled,
    /// The model cannot be loaded, its execution failed, or its results cannot be represented.
    Failed,
}

impl Reason {
    /// All reasons, in the order of the enum.
    pub const ALL: [Self; 11] = [
        Self::Invalid,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::TooLarge,
        Self::Busy,
        Self::Unsupported,
        Self::Unavailable,
        Self::Deadline,
        Self::Cancelled,
        Self::Failed,
    ];

    /// The name of the reason in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::TooLarge => "too_large",
            Self::Busy => "busy",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::TooLarge => 413,
            Self::Busy => 429,
            Self::Cancelled => 499,
            Self::Failed => 500,
            Self::Unsupported => 501,
            Self::Unavailable => 503,
            Self::Deadline => 504,
        }
    }

    /// The gRPC status code for the reason.
    pub fn grpc_code(self) -> i32 {
        match self {
            Self::Cancelled => 1,
            Self::Invalid => 3,
            Self::Deadline => 4,
            Self::NotFound => 5,
            Self::Forbidden => 7,
            Self::TooLarge | Self::Busy => 8,
            Self::Unsupported => 12,
            Self::Failed => 13,
            Self::Unavailable => 14,
            Self::Unauthenticated => 16,
        }
    }
}

/// The failure of a request: a reason and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of failure.
    pub reason: Reason,
    /// What the problem is: what was found, and what was expected.
    pub message: String,
}

impl Refusal {
    /// A model that cannot be loaded. A file that cannot be read may be readable the next time; what is wrong with its
    /// contents stays wrong.
    pub(crate) fn from_load_error(error: pteron::Error) -> Self {
        let reason =
            if matches!(error, pteron::Error::Io { .. }) { Reason::Unavailable } else { Reason::Failed };
        Self::from_error(reason, &error)
    }

    /// A refusal for this reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Reason::NotFound, message)
    }

    /// A refusal with the messages of an error and its causes in one line, without the folders of absolute paths:
    /// clients may read it.
    pub(crate) fn from_error(reason: Reason, error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(e) = cause {
            message.push_str(&format!(": {e}"));
            cause = e.source();
        }
        Self { reason, message: strip_folders(&message) }
    }

    /// Whether the failure is permanent: the same files would fail to load again.
    pub(crate) fn is_permanent(&self) -> bool {
        !matches!(self.reason, Reason::Busy | Reason::Unavailable)
    }

    /// The message for a response, cut to [`MAX_SHOWN`] characters.
    #[cfg(feature = "net")]
    pub(crate) fn shown_message(&self) -> std::borrow::Cow<'_, str> {
        match self.message.char_indices().nth(MAX_SHOWN) {
            Some((end, _)) => format!("{}…", &self.message[..end]).into(),
            None => self.message.as_str().into(),
        }
    }
}

/// The maximum length of a message in a response, in characters. Names from files may be longer.
#[cfg(feature = "net")]
const MAX_SHOWN: usize = 1000;

/// Replaces absolute paths in a text, such as those of source lines, by their file names.
fn strip_folders(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || "\"'`<>()[]{},;".contains(c);
    let mut out = String::with_capacity(text.len());
    for token in text.split_inclusive(is_end) {
        let body = token.trim_end_matches(is_end);
        let drive =
            body.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && body[1..].starts_with(":\\");
        let is_path = drive || (body.len() > 1 && body.starts_with('/'));
        let last = body.rfind(['/', '\\']).filter(|_| is_path).map_or(0, |slash| slash + 1);
        out.push_str(&token[last..]);
    }
    out
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// The result of a request.
pub type Result<T, E = Refusal> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::strip_folders;

    #[test]
    fn messages_name_no_folders() {
        for (text, shown) in [
            ("cannot read /srv/models/a.pte: gone", "cannot read a.pte: gone"),
            (
                "at \"/home/u/net.py\", line 3; 1/2 of a/b, `//x` 3 / 4",
                "at \"net.py\", line 3; 1/2 of a/b, `x` 3 / 4",
            ),
            ("C:\\models\\a.pte: [/a/b/c] é/ö", "a.pte: [c] é/ö"),
            ("aten::add.out, conv/1, /", "aten::add.out, conv/1, /"),
        ] {
            assert_eq!(strip_folders(text), shown);
        }
    }
}
