//! Parses graphs of calls from the text format of listings.
//!
//! Values may have any names. The elements of a constant repeat the numbers after `constant`. Tensor arguments are
//! listed in parentheses, with `none` for an absent one; the others are in braces, by their schema names, and have the
//! schema's defaults if omitted.

use pteron_engine::{Call, CallArg, CallOut, Constant, Graph, ValueId};
use pteron_operator::{ArgType, KernelRegistry, SchemaArg};
use pteron_tensor::{DimOrder, Scalar, ScalarType, Tensor, TensorMeta};
use std::collections::HashMap;

type Result<T> = std::result::Result<T, String>;

pub(crate) fn graph(text: &str) -> Result<Graph> {
    let mut reader =
        Reader { registry: pteron_kernels::registry(), graph: Graph::new(), values: HashMap::new() };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "}") {
        reader.line(line).map_err(|e| format!("{line}: {e}"))?;
    }
    Ok(reader.graph)
}

struct Reader {
    registry: KernelRegistry,
    graph: Graph,
    values: HashMap<String, ValueId>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<()> {
        if let Some(inputs) = line.strip_prefix("graph(").and_then(|l| l.strip_suffix(") {")) {
            for (name, meta) in typed(inputs)? {
                let value = self.graph.input(meta);
                self.values.insert(name, value);
            }
            return Ok(());
        }
        if let Some(outputs) = line.strip_prefix("return ") {
            for name in outputs.split(", ") {
                let value = self.value(name)?;
                self.graph.output(value);
            }
            return Ok(());
        }
        let (results, computed) = line.split_once(" = ").ok_or("no definition")?;
        let results = typed(results)?;
        match computed.strip_prefix("constant ") {
            Some(numbers) => self.constant(&results, numbers),
            None => self.call(results, computed),
        }
    }

    fn value(&self, name: &str) -> Result<ValueId> {
        self.values.get(name).copied().ok_or_else(|| format!("{name} is not defined"))
    }

    fn constant(&mut self, results: &[(String, TensorMeta)], numbers: &str) -> Result<()> {
        let [(name, meta)] = results else { return Err("one result".into()) };
        let numbers: Vec<f64> = numbers.split(' ').map(number).collect::<Result<_>>()?;
        let elements = numbers.iter().cycle().take(meta.numel());
        let bytes: Vec<u8> = match meta.dtype() {
            ScalarType::Float => elements.flat_map(|&x| (x as f32).to_ne_bytes()).collect(),
            ScalarType::Double => elements.flat_map(|&x| x.to_ne_bytes()).collect(),
            ScalarType::Long => elements.flat_map(|&x| (x as i64).to_ne_bytes()).collect(),
            ScalarType::Char => elements.flat_map(|&x| (x as i8).to_ne_bytes()).collect(),
            other => return Err(format!("constants of {other}")),
        };
        let tensor = Tensor::from_bytes(meta.clone(), &bytes).map_err(|e| e.to_string())?;
        let value = self.graph.constant(meta.clone(), Constant::from(tensor));
        self.values.insert(name.clone(), value);
        Ok(())
    }

    fn call(&mut self, results: Vec<(String, TensorMeta)>, text: &str) -> Result<()> {
        let (name, rest) = text.split_once('(').ok_or("no call")?;
        let (inputs, attributes) = rest.split_once(')').ok_or("no end of inputs")?;
        let kernel = self.registry.get(name).ok_or("an operator that is not known")?;
        let mut inputs = inputs.split(", ").filter(|name| !name.is_empty()).peekable();
        let attributes = attributes.trim().trim_start_matches('{').trim_end_matches('}');
        let attributes: HashMap<&str, &str> = split(attributes).filter_map(|a| a.split_once(": ")).collect();
        let (mut args, mut outs, mut operands) = (Vec::new(), Vec::new(), Vec::new());
        for declared in &kernel.schema().args {
            args.push(match (declared.written, declared.ty, declared.list) {
                (true, ..) => {
                    outs.push(CallOut::Tensor);
                    CallArg::Out(outs.len() - 1)
                }
                (_, ArgType::Tensor, true) => {
                    let before = operands.len();
                    for name in inputs.by_ref() {
                        operands.push(self.value(name)?);
                    }
                    CallArg::Tensors(operands.len() - before)
                }
                (_, ArgType::Tensor, false) if inputs.next_if(|name| *name == "none").is_some() => {
                    CallArg::None
                }
                (_, ArgType::Tensor, false) => {
                    operands.push(self.value(inputs.next().ok_or("too few inputs")?)?);
                    CallArg::Tensor
                }
                _ => attribute(declared, attributes.get(&*declared.name).copied())?,
            });
        }
        let metas = results.iter().map(|(_, meta)| meta.clone());
        let node = self.graph.append(Call::new(kernel, args, outs), &operands, metas);
        let outputs = self.graph.node(node).outputs().to_vec();
        self.values.extend(results.into_iter().map(|(name, _)| name).zip(outputs));
        Ok(())
    }
}

fn attribute(declared: &SchemaArg, given: Option<&str>) -> Result<CallArg> {
    let missing = || format!("no {}", declared.name);
    let text = given.or(declared.default.as_deref()).ok_or_else(missing)?;
    if text == "None" {
        return Ok(CallArg::None);
    }
    let items = || text.trim_matches(['[', ']']).split(", ").filter(|item| !item.is_empty());
    Ok(match (declared.ty, declared.list) {
        (ArgType::Float, true) => CallArg::Doubles(items().map(number).collect::<Result<Vec<_>>>()?.into()),
        (ArgType::Bool, true) => {
            CallArg::Bools(items().map(|item| item.eq_ignore_ascii_case("true")).collect())
        }
        (_, true) => CallArg::Ints(items().map(|item| Ok(number(item)? as i64)).collect::<Result<_>>()?),
        (ArgType::Str, _) => CallArg::Str(text.trim_matches(['"', '\'']).into()),
        (ArgType::Bool, _) => CallArg::Scalar(Scalar::Bool(text.eq_ignore_ascii_case("true"))),
        (ArgType::Float, _) => CallArg::Scalar(Scalar::Double(number(text)?)),
        (ArgType::Scalar, _) if text.contains(['.', 'e', 'n']) => {
            CallArg::Scalar(Scalar::Double(number(text)?))
        }
        _ => CallArg::Scalar(Scalar::Int(number(text)? as i64)),
    })
}

fn number(text: &str) -> Result<f64> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// `%a: float32[2, 3], %b: ...`
fn typed(text: &str) -> Result<Vec<(String, TensorMeta)>> {
    let each = |item: &str| {
        let (name, ty) = item.split_once(": ").ok_or("no type")?;
        let (dtype, sizes) = ty.split_once('[').ok_or("no sizes")?;
        let (sizes, order) = sizes.split_once(']').ok_or("no end of sizes")?;
        let dtype = ScalarType::ALL.iter().find(|d| d.name() == dtype).ok_or("an unknown type")?;
        let list =
            |text: &str| text.split(", ").filter(|n| !n.is_empty()).map(number).collect::<Result<Vec<_>>>();
        let sizes: Vec<usize> = list(sizes)?.into_iter().map(|n| n as usize).collect();
        let order = match order.strip_prefix(" in dim order ") {
            Some(order) => {
                let order: Vec<u8> =
                    list(order.trim_matches(['[', ']']))?.into_iter().map(|n| n as u8).collect();
                DimOrder::new(&order).map_err(|e| e.to_string())?
            }
            None => DimOrder::contiguous(sizes.len()),
        };
        Ok((name.to_owned(), TensorMeta::new(*dtype, &sizes, order).map_err(|e| e.to_string())?))
    };
    split(text).map(each).collect()
}

/// Splits at commas outside of brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = text.split(move |c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}
