//! What a page shows, as it is written into it.

use serde::{Serialize, Serializer};
use std::collections::HashMap;

/// A text, as its index among [`ReportData::strings`]; 0 is the empty one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Text(u32);

impl Text {
    fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

/// Texts, each of which is kept once.
#[derive(Debug, Clone)]
pub struct Strings {
    all: Vec<String>,
    ids: HashMap<String, Text>,
}

impl Default for Strings {
    fn default() -> Self {
        Self { all: vec![String::new()], ids: HashMap::from([(String::new(), Text(0))]) }
    }
}

impl Serialize for Strings {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(to)
    }
}

impl Strings {
    /// The text, which is added if it is new.
    pub fn add(&mut self, text: impl Into<String>) -> Text {
        let text = text.into();
        if let Some(&id) = self.ids.get(&text) {
            return id;
        }
        let id = Text(self.all.len() as u32);
        self.all.push(text.clone());
        self.ids.insert(text, id);
        id
    }

    /// A text that was added.
    pub fn get(&self, text: Text) -> &str {
        self.all.get(text.0 as usize).map_or("", String::as_str)
    }
}

/// Everything that a page shows.
#[derive(Debug, Clone, Serialize)]
pub struct ReportData {
    /// The version of the shape of this data.
    pub report: u32,
    /// The file.
    pub file: String,
    /// What the file is, in words.
    pub format: String,
    /// What is to be known first: pairs of name and value.
    pub facts: Vec<(Text, Text)>,
    /// What is missing to run the program here, and what could not be shown.
    pub notes: Vec<Text>,
    /// The unit of the times of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_unit: Option<&'static str>,
    /// The graphs: methods first.
    pub graphs: Vec<Graph>,
    /// Memory that is planned, over time.
    pub arenas: Vec<Arena>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Source frames: file, line, function, the line's text.
    pub frames: Vec<(Text, i32, Text, Text)>,
    /// The texts.
    pub strings: Strings,
}

/// What a graph shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphKind {
    /// A method as it is written.
    Method,
    /// What a run of a method's instructions becomes when it is prepared.
    Run,
    /// The payload of a delegate.
    Payload,
    /// A function of a BEF program.
    Function,
}

/// A graph and its drawing. Coordinates are pixels.
#[derive(Debug, Clone, Serialize)]
pub struct Graph {
    /// Its name.
    pub name: Text,
    /// What it shows.
    pub kind: GraphKind,
    /// The graph in which a node opens it, or that it is another form of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Width and height of the drawing.
    pub size: (i64, i64),
    /// The nodes, in the order in which they run.
    pub nodes: Vec<Node>,
    /// The edges.
    pub edges: Vec<Edge>,
}

/// A node.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Node {
    /// What stands on it.
    pub label: Text,
    /// A second line: what it computes.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub detail: Text,
    /// Its family, which decides its colour: an index into [`super::FAMILIES`].
    pub family: u8,
    /// Centre and width.
    pub at: (i64, i64, u32),
    /// Whether it is drawn as an input, output or state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pill: bool,
    /// What it reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operands: Vec<Operand>,
    /// What else is known: pairs of name and value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub about: Vec<(Text, Text)>,
    /// Source frames, outermost first: indices into [`ReportData::frames`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<u32>,
    /// The graph that it opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens: Option<u32>,
    /// Related nodes: how, graph, node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<(Text, u32, u32)>,
    /// The time of one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// The largest difference of its results in two runs; infinite ones are text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// What is to be noticed: how it differs in another file or run.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub alert: Text,
}

/// What a node reads.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Operand {
    /// The name of the argument.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub name: Text,
    /// The value: type and sizes of a tensor, or what it is.
    pub text: Text,
    /// Bytes of a constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The node that computes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u32>,
}

/// An edge.
#[derive(Debug, Clone, Serialize)]
pub struct Edge {
    /// The nodes.
    pub ends: (u32, u32),
    /// What runs along it.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub text: Text,
    /// Whether what is read is more than this result, or no data: it is drawn broken.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Its points, x and y in turn; none if it is too long to be drawn.
    pub route: Vec<i64>,
}

/// Memory that is planned.
#[derive(Debug, Clone, Serialize)]
pub struct Arena {
    /// Whose it is.
    pub name: Text,
    /// Its bytes.
    pub bytes: u64,
    /// The most bytes that are needed at a time.
    pub peak: u64,
    /// When they are.
    pub peak_at: Text,
    /// The number of instructions.
    pub instructions: u64,
    /// The graph of the instructions.
    pub graph: Option<u32>,
    /// Blocks: first byte, bytes, first and last instruction, what lies there, why it lives longer than instructions
    /// use it.
    pub blocks: Vec<(u64, u64, i64, i64, Text, Text)>,
}

/// What the cells of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    /// Text.
    Text,
    /// A number.
    Number,
    /// A number of bytes.
    Bytes,
    /// A time, in the report's unit.
    Time,
    /// Per cent.
    Share,
}

/// A table.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// What it is of.
    pub title: Text,
    /// What is to be known to read it.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub note: Text,
    /// Headings and what stands below.
    pub columns: Vec<(Text, Column)>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The cells: texts and numbers, as the columns say.
    pub cells: Vec<Cell>,
    /// A graph and a node of it that the row is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<(u32, u32)>,
}

/// A cell of a table.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A text.
    Text(Text),
    /// A number.
    Number(f64),
    /// Nothing.
    Empty,
}
