//! The data of a report page, as it is serialized into the page.

use serde::{Serialize, Serializer};
use std::collections::HashMap;

/// An interned text: an index into [`ReportData::strings`]; 0 is the empty text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Text(u32);

impl Text {
    fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

/// Interned texts.
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
    /// Interns a text.
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

    /// The text with this index.
    pub fn get(&self, text: Text) -> &str {
        self.all.get(text.0 as usize).map_or("", String::as_str)
    }
}

/// All data of a page.
#[derive(Debug, Clone, Serialize)]
pub struct ReportData {
    /// The version of this data's schema.
    pub report: u32,
    pub file: String,
    /// The format of the file, in words.
    pub format: String,
    /// Key facts: pairs of name and value.
    pub facts: Vec<(Text, Text)>,
    /// Notes: what is missing to run the program, and what could not be shown.
    pub notes: Vec<Text>,
    /// The unit of [`Node::time`]; `None` if no times were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_unit: Option<&'static str>,
    /// The graphs, methods first.
    pub graphs: Vec<Graph>,
    /// The arenas of the memory plans.
    pub arenas: Vec<Arena>,
    pub tables: Vec<Table>,
    /// Source frames: file, line, function, the line's text.
    pub frames: Vec<(Text, i32, Text, Text)>,
    /// The interned texts.
    pub strings: Strings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphKind {
    /// A method as written in the file.
    Method,
    /// The prepared form of a region of a method's instructions.
    Run,
    /// The payload of a delegate.
    Payload,
    /// A function of a BEF program.
    Function,
}

/// A graph and its drawing. Coordinates are in pixels.
#[derive(Debug, Clone, Serialize)]
pub struct Graph {
    pub name: Text,
    pub kind: GraphKind,
    /// The index of the parent graph: one of its nodes opens this graph, or this graph is a prepared form of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Width and height of the drawing.
    pub size: (i64, i64),
    /// The nodes, in execution order.
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Node {
    /// The text on the node.
    pub label: Text,
    /// The second line of the node: the type and sizes of the node's result.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub detail: Text,
    /// The node's family, which determines its colour: an index into [`super::FAMILIES`].
    pub family: u8,
    /// The x and y of the node's centre, and its width.
    pub at: (i64, i64, u32),
    /// Whether the node is drawn as a pill: an input, output or state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pill: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operands: Vec<Operand>,
    /// Other properties of the node: pairs of name and value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub about: Vec<(Text, Text)>,
    /// Source frames, outermost first: indices into [`ReportData::frames`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<u32>,
    /// The index of the graph that the node opens, if it opens one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens: Option<u32>,
    /// Related nodes: name of the relation, index of the graph, index of the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<(Text, u32, u32)>,
    /// The node's time in one run, in the unit [`ReportData::time_unit`]; `None` if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// The largest absolute difference of the node's results between two runs. `None` if not compared, or if infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// A warning that says how the node differs in another file or run; empty if it does not.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub alert: Text,
}

/// An operand of a node.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Operand {
    /// The name of the argument as which the operand is passed.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub name: Text,
    /// The type and sizes of a tensor, or the value of anything else.
    pub text: Text,
    /// The operand's size in bytes, if the operand is a constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The index of the node that computes the operand; `None` if no node does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u32>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Edge {
    /// The indices of the edge's source node and target node.
    pub ends: (u32, u32),
    /// The value that the edge carries, as text.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub text: Text,
    /// Whether the edge is drawn dashed: the target reads more than the source's result, or no data flows (a jump).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The points of the edge's line, alternating x and y; empty if it is not drawn (see `Layout::routes`).
    pub route: Vec<i64>,
}

/// An arena of a memory plan.
#[derive(Debug, Clone, Serialize)]
pub struct Arena {
    /// The method and the arena's id, in words.
    pub name: Text,
    /// The arena's size in bytes.
    pub bytes: u64,
    /// The largest number of the arena's bytes that are live at the same time.
    pub peak: u64,
    /// The instruction at which the peak is reached, as text.
    pub peak_at: Text,
    /// The number of instructions of the method.
    pub instructions: u64,
    /// The index of the graph that contains the method's instructions.
    pub graph: Option<u32>,
    /// The blocks, one entry per range of a lifetime: offset, size in bytes, first and last instruction, description of the
    /// values, and the role (input, output or state) if it keeps the block live beyond its uses.
    pub blocks: Vec<(u64, u64, i64, i64, Text, Text)>,
}

/// The type of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    Text,
    Number,
    /// A size in bytes.
    Bytes,
    /// A time in the report's unit.
    Time,
    /// A percentage.
    Share,
}

#[derive(Debug, Clone, Serialize)]
pub struct Table {
    pub title: Text,
    /// An explanation of the table.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub note: Text,
    /// The headings and types of the columns.
    pub columns: Vec<(Text, Column)>,
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The row's cells, one for each column, of the column's type.
    pub cells: Vec<Cell>,
    /// The graph and node that the row is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<(u32, u32)>,
}

/// A cell of a table.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub enum Cell {
    Text(Text),
    Number(f64),
    /// An empty cell.
    Empty,
}
