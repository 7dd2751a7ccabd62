//! Writes a payload as a BEF file.

use super::{CALL, CONSTANT, GRAPH, Op, Payload, Record, VERSION, call};
use crate::error::{Error, Result, fail};
use crate::kinds;
use pteron_bef::{FunctionBuilder, Location, Module, Register};

impl Payload {
    /// The bytes of the file.
    ///
    /// # Errors
    /// A node is of a kind that payloads cannot contain, or a value is used before it is defined.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let types: Vec<String> = self.values.iter().map(|value| value.ty.to_string()).collect();
        let arguments: Vec<&str> = types.iter().take(self.inputs).map(String::as_str).collect();
        let mut module = Module::new(true);
        let mut function = FunctionBuilder::new(&mut module, self.name.as_str(), &arguments);
        let mut registers: Vec<Option<Register>> = vec![None; self.values.len()];
        for (index, register) in registers.iter_mut().take(self.inputs).enumerate() {
            *register = Some(function.argument(index as u32));
        }
        self.put(&mut function, GRAPH, &[], self.graph_attributes(), None, &[])?;
        for (index, value) in self.values.iter().enumerate() {
            let Some(constant) = &value.constant else { continue };
            let mut record = Record::default();
            record.int("bytes", i64::try_from(constant.bytes).unwrap_or(i64::MAX));
            if let Some(key) = &constant.key {
                record.text("key", key);
            }
            if !constant.laid_out.is_empty() {
                record.texts("layouts", constant.laid_out.iter().map(|laid| laid.layout.clone()));
                record.texts("layout_keys", constant.laid_out.iter().map(|laid| laid.key.clone()));
            }
            let written = self.put(&mut function, CONSTANT, &[], record, None, &[&types[index]])?;
            registers[index] = written.first().copied();
        }
        let used = |registers: &[Option<Register>], values: &[usize]| {
            let register = |&v: &usize| registers.get(v).copied().flatten();
            let registers: Option<Vec<Register>> = values.iter().map(register).collect();
            registers.ok_or_else(|| Error::new("a value is used before it is defined"))
        };
        for node in &self.nodes {
            let (kernel, record) = match &node.op {
                Op::Call { operator, args } => {
                    let mut record = Record::default();
                    call::write(&mut record, operator, args);
                    (CALL, record)
                }
                Op::Node(kind) => match kinds::write(&**kind) {
                    Some(stored) => stored,
                    None => {
                        return fail(format!("payloads cannot contain nodes of the kind `{}`", kind.name()));
                    }
                },
            };
            let inputs = used(&registers, &node.inputs)?;
            let results: Vec<&str> =
                node.outputs.iter().filter_map(|&v| types.get(v)).map(String::as_str).collect();
            let source = node.source.as_ref();
            let written = self.put(&mut function, kernel, &inputs, record, source, &results)?;
            for (&v, register) in node.outputs.iter().zip(written) {
                registers[v] = Some(register);
            }
        }
        let results = used(&registers, &self.outputs)?;
        function.finish(&results)?;
        Ok(module.to_bytes()?)
    }

    /// The attributes of the whole graph.
    fn graph_attributes(&self) -> Record {
        let mut record = Record::default();
        record.int("version", VERSION).ints("maxima", &self.maxima);
        record.texts("expressions", self.expressions.iter().map(ToString::to_string));
        record
    }

    fn put<'m>(
        &self,
        function: &mut FunctionBuilder<'_, 'm>,
        kernel: &'static str,
        inputs: &[Register],
        record: Record,
        source: Option<&'m (String, u64)>,
        results: &[&'m str],
    ) -> Result<Vec<Register>> {
        let mut builder = function.kernel(kernel).arguments(inputs);
        for (name, value) in record.list {
            builder = builder.attribute(name, value);
        }
        if let Some((file, line)) = source {
            builder = builder.location(Location::file(file.as_str(), *line, 1));
        }
        Ok(builder.results(results))
    }
}
