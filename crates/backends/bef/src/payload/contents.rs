//! The contents of a payload for listings.

use super::{Arg, Number, Op, Payload, Type};
use pteron_runtime::{PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadValue};

impl Payload {
    /// The value of each expression with all symbols at their maxima; 0 for an expression that cannot be evaluated.
    pub(crate) fn bounds(&self) -> Vec<i64> {
        let symbols: Vec<Option<i64>> = self.maxima.iter().map(|&max| Some(max)).collect();
        self.expressions
            .iter()
            .map(|e| e.evaluate(|s| symbols.get(s).copied().flatten()).unwrap_or(0))
            .collect()
    }

    /// The nodes and tensors, for listings.
    pub fn contents(&self) -> PayloadContents {
        let bounds = self.bounds();
        let size = |number: &Number| match *number {
            Number::Int(v) => usize::try_from(v).unwrap_or(0),
            Number::Expression(index) => {
                bounds.get(index).and_then(|&v| usize::try_from(v).ok()).unwrap_or(0)
            }
        };
        let values = self.values.iter().enumerate().map(|(index, value)| {
            let output = self.outputs.iter().position(|&v| v == index);
            let role = match (&value.constant, output) {
                (Some(constant), _) => PayloadRole::Constant(match &constant.key {
                    Some(key) => PayloadBytes::Named(key.clone(), constant.bytes),
                    None => PayloadBytes::Payload(0..0),
                }),
                (None, _) if index < self.inputs => PayloadRole::Input(index),
                (None, Some(output)) => PayloadRole::Output(self.inputs + output),
                (None, None) => PayloadRole::Internal,
            };
            let (dtype, scalar_type, sizes) = match &value.ty {
                Type::Tensor { dtype, sizes, .. } => {
                    (dtype.to_string(), Some(*dtype), sizes.iter().map(size).collect())
                }
                Type::Number => ("number".to_owned(), None, Vec::new()),
            };
            PayloadValue {
                name: format!("%{index}"),
                dtype,
                bits: scalar_type.map_or(64, |dtype| dtype.size() as u32 * 8),
                scalar_type,
                sizes,
                quantization: String::new(),
                scales: None,
                role,
            }
        });
        let nodes = self.nodes.iter().enumerate().map(|(index, node)| PayloadNode {
            kind: node.op.name().to_owned(),
            inputs: node.inputs.clone(),
            outputs: node.outputs.clone(),
            attributes: node.op.attributes_text(),
            debug_handle: u32::try_from(index).ok(),
        });
        PayloadContents {
            format: format!("BEF graph, version {}", super::VERSION),
            values: values.collect(),
            nodes: nodes.collect(),
        }
    }
}

impl Op {
    /// The attributes as text, for listings.
    fn attributes_text(&self) -> String {
        match self {
            Self::Node(kind) => Attributes(&**kind).to_string(),
            Self::Call { args, .. } => {
                let numbers = args.iter().filter_map(|arg| match arg {
                    Arg::Scalar(v) => Some(v.to_string()),
                    Arg::Str(v) => Some(format!("{v:?}")),
                    Arg::Ints(v) => {
                        Some(format!("[{}]", v.iter().map(Number::to_string).collect::<Vec<_>>().join(", ")))
                    }
                    Arg::Doubles(v) => Some(format!("{v:?}")),
                    Arg::Bools(v) => Some(format!("{v:?}")),
                    Arg::Expression(index) => Some(format!("?{index}")),
                    _ => None,
                });
                numbers.collect::<Vec<_>>().join(", ")
            }
        }
    }
}

struct Attributes<'k>(&'k dyn pteron_engine::Kind);

impl std::fmt::Display for Attributes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.attributes(f)
    }
}
