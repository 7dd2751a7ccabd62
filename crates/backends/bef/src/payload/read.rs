//! Reads a payload from an untrusted BEF file.

use super::{
    CALL, CONSTANT, Constant, Expression, Fields, GRAPH, LaidOut, Node, Op, Payload, Type, VERSION, Value,
    call,
};
use crate::error::{Error, Result, fail};
use crate::kinds;
use pteron_bef::{Body, File, FunctionKind, Kernel, Location, Module, TypeId};
use std::collections::HashMap;

/// The maximum number of size expressions.
const MAX_EXPRESSIONS: usize = 1 << 16;

/// The maximum number of packed layouts of a constant.
const MAX_LAYOUTS: usize = 64;

impl Payload {
    /// Reads and verifies a file: references are valid, values are defined before they are used, and types and
    /// attributes are well formed. Whether nodes accept their operands is checked when the payload is raised to a
    /// graph.
    ///
    /// # Errors
    /// The file is malformed; the error names the kernel of the function.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let module = File::open(bytes)?.verify()?.to_module()?;
        let [function] = &module.functions[..] else {
            return fail(format!("{} functions, expected one", module.functions.len()));
        };
        let (Some(body), FunctionKind::Async) = (&function.body, function.kind) else {
            return fail(format!("the function `{}` is native or synchronous", function.name));
        };
        let mut kernels = body.kernels.iter().enumerate();
        let mut payload = match kernels.next() {
            Some((_, first)) if module.kernel_name(first.code) == Some(GRAPH) => {
                read_graph(&read_fields(&module, first)?).map_err(|e| e.at_kernel(0, GRAPH))?
            }
            _ => return fail(format!("the first kernel is not `{GRAPH}`")),
        };
        payload.name = function.name.to_string();
        payload.inputs = function.arguments.len();
        payload.values = read_values(&module, body, payload.expressions.len())?;
        if let Some(index) = payload.values[payload.inputs..].iter().position(|v| v.ty == Type::Number) {
            return fail(format!("register {} is a number, but not an argument", payload.inputs + index));
        }
        for (index, kernel) in kernels {
            let name = module.kernel_name(kernel.code).unwrap_or_default();
            payload.read_kernel(&module, kernel, name).map_err(|e| e.at_kernel(index, name))?;
        }
        payload.outputs = body.results.iter().map(|register| register.index()).collect();
        if let Some(&number) = payload.outputs.iter().find(|&&v| payload.values[v].ty == Type::Number) {
            return fail(format!("the result is register {number}, which is not a tensor"));
        }
        Ok(payload)
    }

    fn read_kernel(&mut self, module: &Module<'_>, kernel: &Kernel<'_>, name: &str) -> Result<()> {
        let fields = read_fields(module, kernel)?;
        let inputs: Vec<usize> = kernel.arguments.iter().map(|register| register.index()).collect();
        let outputs: Vec<usize> = kernel.results.iter().map(|register| register.index()).collect();
        if !kernel.functions.is_empty() {
            return fail("it has function operands");
        }
        if let Some(&number) = inputs.iter().find(|&&v| self.values[v].ty == Type::Number) {
            return fail(format!("it reads register {number}, which is not a tensor"));
        }
        if name == CONSTANT {
            let ([], [output]) = (&inputs[..], &outputs[..]) else {
                return fail("a constant has one result and no operands");
            };
            self.values[*output].constant = Some(read_constant(&fields)?);
            return Ok(());
        }
        let op = match name {
            CALL => {
                let (operator, args) = call::read(&fields, self.expressions.len())?;
                let operands = args.iter().try_fold(0usize, |sum, arg| sum.checked_add(arg.num_operands()));
                if operands != Some(inputs.len()) {
                    return fail(format!(
                        "its arguments do not refer to exactly its {} operands",
                        inputs.len()
                    ));
                }
                Op::Call { operator, args }
            }
            _ => Op::Node(kinds::read(name, &fields)?),
        };
        let source = match &kernel.location {
            Some(Location::FileLineCol { file, line, .. }) => Some((file.to_string(), *line)),
            _ => None,
        };
        self.nodes.push(Node { op, inputs, outputs, source });
        Ok(())
    }
}

fn read_graph(fields: &Fields<'_>) -> Result<Payload> {
    match fields.int("version")? {
        VERSION => {}
        version => return fail(format!("version {version} is unsupported, expected {VERSION}")),
    }
    let maxima = fields.ints("maxima")?;
    let texts = fields.texts("expressions")?;
    if texts.len() > MAX_EXPRESSIONS {
        return fail(format!("{} expressions, expected at most {MAX_EXPRESSIONS}", texts.len()));
    }
    let expression = |text| Expression::parse(text, maxima.len()).map_err(Error::new);
    let expressions = texts.into_iter().map(expression);
    Ok(Payload { expressions: expressions.collect::<Result<_>>()?, maxima, ..Payload::default() })
}

fn read_constant(fields: &Fields<'_>) -> Result<Constant> {
    let bytes = fields.int("bytes")?;
    let bytes = u64::try_from(bytes).map_err(|_| Error::new(format!("a constant has {bytes} bytes")))?;
    let key = if fields.has("key") { Some(fields.text("key")?.to_owned()) } else { None };
    if key.is_none() && bytes > 0 {
        return fail(format!("a constant of {bytes} bytes has no key"));
    }
    let mut laid_out = Vec::new();
    if fields.has("layouts") {
        let (layouts, keys) = (fields.texts("layouts")?, fields.texts("layout_keys")?);
        if layouts.len() != keys.len() || layouts.len() > MAX_LAYOUTS {
            return fail(format!(
                "{} layouts and {} keys, expected at most {MAX_LAYOUTS}",
                layouts.len(),
                keys.len()
            ));
        }
        let pairs = layouts.into_iter().zip(keys);
        laid_out
            .extend(pairs.map(|(layout, key)| LaidOut { layout: layout.to_owned(), key: key.to_owned() }));
    }
    Ok(Constant { key, bytes, laid_out })
}

/// Reads the payload's values: one for each register of the function.
fn read_values(module: &Module<'_>, body: &Body<'_>, expressions: usize) -> Result<Vec<Value>> {
    let mut types: HashMap<TypeId, Type> = HashMap::new();
    let mut values = Vec::with_capacity(body.registers.len());
    for (index, register) in body.registers.iter().enumerate() {
        let Some(id) = *register else {
            return fail(format!("the type of register {index} is not recorded"));
        };
        let ty = match types.get(&id) {
            Some(known) => known.clone(),
            None => {
                let text = module.type_name(id).unwrap_or_default();
                let ty = Type::parse(text, expressions)?;
                types.insert(id, ty.clone());
                ty
            }
        };
        values.push(Value { ty, constant: None });
    }
    Ok(values)
}

fn read_fields<'m>(module: &'m Module<'_>, kernel: &'m Kernel<'_>) -> Result<Fields<'m>> {
    let field = |named: &'m pteron_bef::NamedAttribute<'_>| {
        let name = named.name.as_deref();
        name.zip(module.attribute(named.value))
            .ok_or_else(|| Error::new("an attribute has no name or no type"))
    };
    Ok(Fields { list: kernel.attributes.iter().map(field).collect::<Result<_>>()? })
}
