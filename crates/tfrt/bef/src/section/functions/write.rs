//! The writer of function records.

use super::{KERNEL_ALIGNMENT, PSEUDO_KERNEL_CODE, PSEUDO_KERNEL_LOCATION};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::ids::{AttributeId, FunctionId, Register};
use crate::model::{Body, Kernel, Module};
use crate::section::locations::LocationsWriter;

/// Writes the record of every function that has a body. Returns the section and the offset of each function's record.
/// A native function gets the offset of the next record.
///
/// `attributes` are the offsets of the module's attributes in section 1.
pub(crate) fn write<'m>(
    module: &'m Module<'_>,
    attributes: &[u64],
    locations: &mut LocationsWriter<'m>,
) -> Result<(Buffer<'static>, Vec<u64>)> {
    let mut out = Buffer::new();
    let mut offsets = Vec::with_capacity(module.functions.len());
    for (index, function) in module.functions.iter().enumerate() {
        offsets.push(out.len());
        let place = || format!("functions[{index}]");
        if let Some(body) = &function.body {
            if body.results.len() != function.results.len() {
                return Err(count_mismatch("result registers", body.results.len(), function.results.len()))
                    .in_field(place);
            }
            let functions = module.functions.len();
            let mut writer = BodyWriter { body, arguments: function.arguments.len(), attributes, functions };
            writer.write(&mut out, locations).in_field(place)?;
        }
    }
    Ok((out, offsets))
}

#[cold]
fn count_mismatch(what: &str, actual: usize, expected: usize) -> Error {
    Error::without_offset(
        ErrorKind::Mismatch,
        format!("{actual} {what}"),
        format!("{expected}, by the signature"),
    )
}

#[cold]
fn out_of_range_error(what: &str, index: u32, count: usize) -> Error {
    Error::without_offset(ErrorKind::OutOfRange, format!("{what} {index}"), format!("one below {count}"))
}

struct BodyWriter<'m, 'w> {
    body: &'m Body<'m>,
    arguments: usize,
    attributes: &'w [u64],
    functions: usize,
}

/// For each register, the kernels that use it, the last user first; a kernel is listed once for each use.
struct Users {
    starts: Vec<usize>,
    users: Vec<u32>,
}

impl Users {
    fn kernels_using(&self, register: Register) -> &[u32] {
        &self.users[self.starts[register.index()]..self.starts[register.index() + 1]]
    }
}

impl<'m> BodyWriter<'m, '_> {
    fn write(&mut self, out: &mut Buffer<'static>, locations: &mut LocationsWriter<'m>) -> Result<()> {
        let body = self.body;
        if body.registers.len() < self.arguments {
            return Err(count_mismatch("registers", body.registers.len(), self.arguments));
        }
        let users = self.collect_users()?;
        out.vbr(u64::from(locations.append(body.location.as_ref()).in_field(|| "location")?));
        self.write_register_table(&users, out)?;
        out.vbr(body.kernels.len() as u64 + 1);
        let mut list = Buffer::new();
        write_table_entry(&list, 0, body.root_stream, out);
        self.write_pseudo_kernel(&users, &mut list);
        for (index, kernel) in body.kernels.iter().enumerate() {
            write_table_entry(&list, kernel.arguments.len(), kernel.stream, out);
            self.write_kernel(kernel, &users, &mut list, locations)
                .in_field(|| format!("kernels[{}]", index + 1))?;
        }
        body.results.iter().for_each(|register| out.vbr(u64::from(register.0)));
        out.align(KERNEL_ALIGNMENT);
        out.append(list);
        Ok(())
    }

    /// Collects the users of each register, and checks every register index.
    fn collect_users(&self) -> Result<Users> {
        let registers = self.body.registers.len();
        let check = |register: &Register| match register.index() < registers {
            true => Ok(register.index()),
            false => Err(out_of_range_error("register", register.0, registers)),
        };
        let mut starts = vec![0; registers + 1];
        for (index, kernel) in self.body.kernels.iter().enumerate() {
            let place = || format!("kernels[{}]", index + 1);
            for register in &kernel.arguments {
                starts[check(register).in_field(place)? + 1] += 1;
            }
            kernel.results.iter().try_for_each(|register| check(register).map(drop)).in_field(place)?;
        }
        self.body.results.iter().try_for_each(|register| check(register).map(drop)).in_field(|| "results")?;
        for register in 0..registers {
            starts[register + 1] += starts[register];
        }
        let mut next = starts.clone();
        let mut users = vec![0; starts[registers]];
        for (index, kernel) in self.body.kernels.iter().enumerate().rev() {
            for register in &kernel.arguments {
                users[next[register.index()]] = index as u32 + 1;
                next[register.index()] += 1;
            }
        }
        Ok(Users { starts, users })
    }

    /// Writes the use counts, which include the uses by the function's results.
    fn write_register_table(&self, users: &Users, out: &mut Buffer<'static>) -> Result<()> {
        let mut returned = vec![0u64; self.body.registers.len()];
        self.body.results.iter().for_each(|register| returned[register.index()] += 1);
        let count = u32::try_from(returned.len()).map_err(|_| {
            Error::without_offset(
                ErrorKind::Unaddressable,
                format!("{} registers", returned.len()),
                "less than 2^32",
            )
        })?;
        out.vbr(u64::from(count));
        for (register, returned) in (0..).map(Register).zip(returned) {
            out.vbr(returned + users.kernels_using(register).len() as u64);
        }
        Ok(())
    }

    fn write_pseudo_kernel(&self, users: &Users, list: &mut Buffer<'static>) {
        let ready = self.body.kernels.iter().zip(1u32..).filter(|(kernel, _)| kernel.arguments.is_empty());
        let ready: Vec<u32> = ready.map(|(_, index)| index).collect();
        let arguments = || (0..self.arguments as u32).map(Register);
        [PSEUDO_KERNEL_CODE, PSEUDO_KERNEL_LOCATION, 0, 0, 0].into_iter().for_each(|word| list.u32(word));
        list.u32(self.arguments as u32 + 1);
        list.u32(ready.len() as u32);
        arguments().for_each(|register| list.u32(users.kernels_using(register).len() as u32));
        list.u32(self.body.registers.len() as u32);
        arguments().for_each(|register| list.u32(register.0));
        ready.into_iter().for_each(|user| list.u32(user));
        arguments()
            .for_each(|register| users.kernels_using(register).iter().for_each(|&user| list.u32(user)));
    }

    fn write_kernel(
        &self,
        kernel: &'m Kernel<'m>,
        users: &Users,
        list: &mut Buffer<'static>,
        locations: &mut LocationsWriter<'m>,
    ) -> Result<()> {
        list.u32(kernel.code.0);
        list.u32(locations.append(kernel.location.as_ref()).in_field(|| "location")?);
        let counts =
            [kernel.arguments.len(), kernel.attributes.len(), kernel.functions.len(), kernel.results.len()];
        for count in counts {
            list.u32(u32::try_from(count).map_err(|_| {
                Error::without_offset(
                    ErrorKind::Unaddressable,
                    format!("a list of {count}"),
                    "less than 2^32",
                )
            })?);
        }
        kernel.results.iter().for_each(|&register| list.u32(users.kernels_using(register).len() as u32));
        kernel.arguments.iter().for_each(|register| list.u32(register.0));
        for (index, attribute) in kernel.attributes.iter().enumerate() {
            list.u32(self.attribute_offset(attribute.value).in_field(|| format!("attributes[{index}]"))?);
        }
        for (index, &FunctionId(function)) in kernel.functions.iter().enumerate() {
            if function as usize >= self.functions {
                let error = out_of_range_error("function", function, self.functions);
                return Err(error).in_field(|| format!("functions[{index}]"));
            }
            list.u32(function);
        }
        kernel.results.iter().for_each(|register| list.u32(register.0));
        kernel
            .results
            .iter()
            .for_each(|&register| users.kernels_using(register).iter().for_each(|&user| list.u32(user)));
        Ok(())
    }

    fn attribute_offset(&self, id: AttributeId) -> Result<u32> {
        let offset = *self
            .attributes
            .get(id.index())
            .ok_or_else(|| out_of_range_error("attribute", id.0, self.attributes.len()))?;
        u32::try_from(offset).map_err(|_| {
            Error::without_offset(
                ErrorKind::Unaddressable,
                format!("attribute {id} at offset {offset} of the Attributes section"),
                "an offset below 4 GiB: kernels refer to attributes by 32-bit offsets (put large ones last)",
            )
        })
    }
}

fn write_table_entry(list: &Buffer<'_>, operands: usize, stream: u64, out: &mut Buffer<'_>) {
    out.vbr(list.len());
    out.vbr(operands as u64);
    out.vbr(stream);
}
