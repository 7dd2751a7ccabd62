//! Verifies one function: its tables against its kernels, and both against the file's tables.

use super::out_of_range::out_of_range_error;
use super::{LocationStarts, Verified, used_bys};
use crate::error::{Error, ErrorKind, InField, Result};
use crate::function_kind::FunctionKind;
use crate::ids::TypeId;
use crate::limits::Budget;
use crate::section::attribute_names::AttributeNames;
use crate::section::function_index::FunctionEntry;
use crate::section::functions::{FunctionRecord, KernelRecord, PSEUDO_KERNEL_CODE, Words, check_stream};
use crate::section::register_types::RegisterTypes;

/// Checks functions in index order, reusing its buffers.
pub(super) struct Checker<'v, 'a> {
    file: &'v Verified<'a>,
    locations: &'v LocationStarts,
    /// Index in `locations` at which the next lookup tries first: that after the location found last.
    next_location: usize,
    budget: Budget,
    names: Option<AttributeNames<'a>>,
    types: Option<RegisterTypes<'a>>,
    /// Types of the function's registers.
    kinds: Vec<TypeId>,
    registers: Vec<Register<'a>>,
    /// The virtual result of the pseudo kernel, whose users are the kernels without arguments.
    start: Register<'a>,
    /// Whether every used-by list so far is in the usual order: the last user first, but kernels without arguments in
    /// file order.
    usual_order: bool,
    /// Index in the AttributeTypes section of the most recently used attribute, where the next lookup starts.
    last_attribute: usize,
}

/// Initial capacity for registers and kernels, enough for most functions.
pub(super) const INITIAL_CAPACITY: usize = 32;

/// What the checker knows of one register of the function.
#[derive(Clone, Copy, Default)]
struct Register<'a> {
    /// The used-by list in the kernel that defines the register; `None` until a kernel defines it.
    users: Option<Words<'a>>,
    /// Number of uses of the register by kernels so far.
    uses: u32,
    /// Number of times that the function returns the register.
    returned: u32,
}

impl Register<'_> {
    /// Counts a use by kernel number `kernel`. Returns whether the used-by list has this kernel at the position
    /// expected if the last user comes first.
    #[inline]
    fn count_use_last_first(&mut self, kernel: u32) -> bool {
        self.uses += 1;
        let users = self.users.unwrap_or_default();
        let place = users.len().checked_sub(self.uses as usize);
        place.and_then(|place| users.get(place)) == Some(kernel)
    }

    /// Counts a use like [`Self::count_use_last_first`], for a used-by list in which the first user comes first.
    #[inline]
    fn count_use_in_order(&mut self, kernel: u32) -> bool {
        self.uses += 1;
        self.users.unwrap_or_default().get(self.uses as usize - 1) == Some(kernel)
    }

    /// Whether the used-by list is as long as the number of counted uses.
    fn has_no_more_users(&self) -> bool {
        self.users.unwrap_or_default().len() == self.uses as usize
    }
}

/// The kinds of lists in a kernel, in file order, with the names that the format gives them.
#[derive(Clone, Copy)]
enum List {
    Args,
    Attrs,
    Funcs,
    Results,
}

impl<'v, 'a> Checker<'v, 'a> {
    pub(super) fn new(
        file: &'v Verified<'a>,
        locations: &'v LocationStarts,
        budget: Budget,
        names: Option<AttributeNames<'a>>,
        types: Option<RegisterTypes<'a>>,
    ) -> Self {
        Checker {
            file,
            locations,
            next_location: 0,
            budget,
            names,
            types,
            kinds: Vec::with_capacity(INITIAL_CAPACITY),
            registers: Vec::with_capacity(INITIAL_CAPACITY),
            start: Register::default(),
            usual_order: true,
            last_attribute: 0,
        }
    }

    /// Fails if the AttributeNames or RegisterTypes section has entries that no function has used.
    pub(super) fn finish(&self) -> Result<()> {
        self.names.iter().try_for_each(AttributeNames::finish)?;
        self.types.iter().try_for_each(RegisterTypes::finish)
    }

    /// Checks a function. `record` must end with the function's last kernel.
    pub(super) fn check(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<()> {
        let registers = record.register_uses().len();
        if registers < entry.arguments.len() {
            return Err(Error::new(
                ErrorKind::Mismatch,
                record.start(),
                format!("{registers} registers"),
                format!("at least {}, one for each argument", entry.arguments.len()),
            ))
            .in_field(|| "registers");
        }
        // Kernel numbers and use counts have 32 bits; each kernel and each use takes at least one word.
        let words = record.kernel_list().len() / 4;
        if words > u64::from(u32::MAX) {
            return Err(Error::new(
                ErrorKind::Unaddressable,
                record.kernels_start(),
                format!("kernels of {words} words"),
                "less than 2^32 words in one function",
            ))
            .in_field(|| "kernels");
        }
        self.check_location(record.location(), record.start()).in_field(|| "location")?;
        if let Some(names) = &mut self.names {
            names.next_function(record.kernel_table().len())?;
        }
        self.check_types(record, entry)?;
        self.registers.clear();
        self.registers.resize(registers, Register::default());
        self.usual_order = true;
        self.check_kernels(record, entry)?;
        self.check_uses(record, entry)?;
        if self.usual_order { Ok(()) } else { used_bys::check(record, self.registers.len()) }
    }

    fn check_location(&mut self, offset: u64, at: u64) -> Result<()> {
        if offset >= self.locations.len {
            return Ok(());
        }
        if let Some((position, cost)) = self.locations.find(offset, self.next_location) {
            self.next_location = position + 1;
            return self.budget.spend(cost, at);
        }
        Err(Error::new(
            ErrorKind::NotAStart,
            at,
            format!("location offset {offset}"),
            format!("the start of a location, or at least {} for none", self.locations.len),
        ))
    }

    /// Checks that the types of registers exist and agree with the signature.
    fn check_types(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<()> {
        let Some(types) = &mut self.types else { return Ok(()) };
        let at = types.offset();
        let kinds = &mut self.kinds;
        types.next_function_into(record.register_uses().len(), kinds)?;
        let known = self.file.type_names().len();
        if let Some(register) = kinds.iter().position(|kind| kind.index() >= known) {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                at,
                format!("type {}", kinds[register]),
                format!("one below {known}"),
            ))
            .in_field(|| format!("register_types[{register}]"));
        }
        let arguments = entry.arguments.iter().zip(&*kinds).position(|(expected, actual)| expected != actual);
        let result = entry.results.iter().zip(record.results()).position(|(expected, register)| {
            kinds.get(register.index()).is_some_and(|actual| actual != expected)
        });
        let (register, expected) = match (arguments, result) {
            (Some(index), _) => (index, entry.arguments[index]),
            (None, Some(index)) => (record.results()[index].index(), entry.results[index]),
            (None, None) => return Ok(()),
        };
        Err(Error::new(
            ErrorKind::Mismatch,
            at,
            format!("type {}", self.file.type_name(kinds[register])),
            format!("{}, by the function's signature", self.file.type_name(expected)),
        ))
        .in_field(|| format!("register_types[{register}]"))
    }

    /// Checks kernels, except the contents of their used-by lists.
    fn check_kernels(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<()> {
        if record.kernel_table().is_empty() {
            return Err(Error::new(
                ErrorKind::Mismatch,
                record.start(),
                "no kernels",
                "at least the pseudo kernel, which starts a function",
            ))
            .in_field(|| "kernels");
        }
        let mut end = 0;
        for (index, table) in record.kernel_table().iter().enumerate() {
            let kernel = record.kernel(index)?;
            let mut check = || {
                if table.offset != end {
                    return Err(Error::new(
                        ErrorKind::Mismatch,
                        kernel.start(),
                        format!("kernel offset {}", table.offset),
                        format!("{end}, where the kernel before it ends"),
                    ));
                }
                if table.num_operands as usize != kernel.arguments().len() {
                    return Err(Error::new(
                        ErrorKind::Mismatch,
                        kernel.start(),
                        format!("{} operands in the kernel table", table.num_operands),
                        format!("{}, the kernel's arguments", kernel.arguments().len()),
                    ));
                }
                check_stream(table.stream_id, Some(record.start()))?;
                match index {
                    0 => self.check_pseudo_kernel(&kernel, entry.arguments.len()),
                    _ => self.check_kernel(&kernel, index as u32),
                }
            };
            check().in_field(|| format!("kernels[{index}]"))?;
            end += kernel.size();
        }
        let list = record.kernel_list();
        // The published grammar ends a function with a word of zero, which the reference does not write.
        let ends_as_published = list.bytes().get(end as usize..) == Some(&[0; 4]);
        if end != list.len() && !ends_as_published {
            return Err(Error::new(
                ErrorKind::TrailingBytes,
                list.start() + end,
                format!("{} more bytes", list.len() - end),
                "the next function's record, or the end of the section",
            ))
            .in_field(|| "kernels");
        }
        Ok(())
    }

    fn check_pseudo_kernel(&mut self, kernel: &KernelRecord<'a>, arguments: usize) -> Result<()> {
        let mismatch = |actual: String, expected: String| {
            Err(Error::new(ErrorKind::Mismatch, kernel.start(), actual, expected))
        };
        // The published grammar gives the pseudo kernel no code of its own; its writers use 0.
        if !matches!(kernel.code(), PSEUDO_KERNEL_CODE | 0) {
            return mismatch(
                format!("code {:#010x}", kernel.code()),
                format!("{PSEUDO_KERNEL_CODE:#010x} or 0: kernel 0 is the pseudo kernel"),
            );
        }
        let others = [kernel.arguments(), kernel.attributes(), kernel.functions()];
        if others.iter().any(|list| !list.is_empty()) {
            return mismatch("operands of the pseudo kernel".into(), "results only".into());
        }
        if kernel.results().len() != arguments + 1 {
            return mismatch(
                format!("{} results of the pseudo kernel", kernel.results().len()),
                format!("{}: one, and one for each argument", arguments + 1),
            );
        }
        let first = self.registers.len() as u32;
        let expected = std::iter::once(first).chain(0..arguments as u32);
        for (index, (actual, expected)) in kernel.results().iter().zip(expected).enumerate() {
            if actual != expected {
                return Err(Error::new(
                    ErrorKind::Mismatch,
                    word_offset(kernel, List::Results, index),
                    format!("register {actual}"),
                    format!("{expected}: a register that does not exist, then the arguments"),
                ))
                .in_field(|| format!("results[{index}]"));
            }
        }
        let mut users = kernel.used_bys();
        self.start = Register { users: users.next(), ..Register::default() };
        for (register, users) in self.registers.iter_mut().zip(users) {
            register.users = Some(users);
        }
        Ok(())
    }

    fn check_kernel(&mut self, kernel: &KernelRecord<'a>, number: u32) -> Result<()> {
        let kernels = self.file.kernel_names().len();
        if kernel.code() as usize >= kernels {
            return Err(out_of_range_error(kernel.start(), "kernel code", kernel.code(), kernels))
                .in_field(|| "code");
        }
        self.check_location(kernel.location().into(), kernel.start() + 4).in_field(|| "location")?;
        for (index, register) in kernel.arguments().iter().enumerate() {
            match self.registers.get_mut(register as usize) {
                Some(register) if register.users.is_some() => {
                    self.usual_order &= register.count_use_last_first(number);
                }
                _ => {
                    return Err(self.undefined_argument(kernel, index)).in_field(|| format!("args[{index}]"));
                }
            }
        }
        if kernel.arguments().is_empty() {
            self.usual_order &= self.start.count_use_in_order(number);
        }
        self.check_attributes(kernel)?;
        let functions = self.file.functions().len();
        if let Some(index) = kernel.functions().iter().position(|function| function as usize >= functions) {
            let function = kernel.functions().get(index).unwrap_or_default();
            return Err(out_of_range_error(
                word_offset(kernel, List::Funcs, index),
                "function",
                function,
                functions,
            ))
            .in_field(|| format!("funcs[{index}]"));
        }
        for (index, (register, users)) in kernel.results().iter().zip(kernel.used_bys()).enumerate() {
            match self.registers.get_mut(register as usize) {
                Some(register) if register.users.is_none() => register.users = Some(users),
                _ => {
                    return Err(self.redefined_result(kernel, index))
                        .in_field(|| format!("results[{index}]"));
                }
            }
        }
        Ok(())
    }

    /// The error for argument number `index` of a kernel, which is out of range or not yet defined.
    #[cold]
    fn undefined_argument(&self, kernel: &KernelRecord<'a>, index: usize) -> Error {
        let at = word_offset(kernel, List::Args, index);
        let register = kernel.arguments().get(index).unwrap_or_default();
        if register as usize >= self.registers.len() {
            return out_of_range_error(at, "register", register, self.registers.len());
        }
        Error::new(
            ErrorKind::Definition,
            at,
            format!("register {register}, which no kernel before this one defines"),
            "an argument, or a result of an earlier kernel",
        )
    }

    /// The error for result number `index` of a kernel, which is out of range or already defined.
    #[cold]
    fn redefined_result(&self, kernel: &KernelRecord<'a>, index: usize) -> Error {
        let at = word_offset(kernel, List::Results, index);
        let register = kernel.results().get(index).unwrap_or_default();
        if register as usize >= self.registers.len() {
            return out_of_range_error(at, "register", register, self.registers.len());
        }
        Error::new(
            ErrorKind::Definition,
            at,
            format!("register {register}, which is defined already"),
            "a register of its own",
        )
    }

    fn check_attributes(&mut self, kernel: &KernelRecord<'a>) -> Result<()> {
        let len = self.file.file().attributes().region().len();
        let types = self.file.attribute_types();
        for (index, offset) in kernel.attributes().iter().enumerate() {
            let at = word_offset(kernel, List::Attrs, index);
            let known = match types {
                Some(types) => {
                    let position = types.position_near(offset.into(), self.last_attribute);
                    self.last_attribute = position.unwrap_or(self.last_attribute);
                    position.is_some()
                }
                None => u64::from(offset) < len,
            };
            if !known {
                return Err(Error::new(
                    ErrorKind::OutOfRange,
                    at,
                    format!("attribute offset {offset}"),
                    match types {
                        Some(_) => "one that the AttributeTypes section lists".to_string(),
                        None => format!("one below {len}, the size of the Attributes section"),
                    },
                ))
                .in_field(|| format!("attrs[{index}]"));
            }
            if let Some(names) = &mut self.names {
                names.check_name(&mut self.budget)?;
            }
        }
        Ok(())
    }

    /// Checks that every register is defined and has as many uses as the register table says, and that the function's
    /// kind allows its results.
    fn check_uses(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<()> {
        let registers = self.registers.len();
        for (index, register) in record.results().iter().enumerate() {
            let fail = |error: Error| Err(error).in_field(|| format!("results[{index}]"));
            let Some(Register { returned, .. }) = self.registers.get_mut(register.index()) else {
                return fail(out_of_range_error(record.start(), "register", register.0, registers));
            };
            *returned += 1;
            if entry.kind == FunctionKind::Sync && (*returned > 1 || register.index() < entry.arguments.len())
            {
                return fail(Error::new(
                    ErrorKind::Mismatch,
                    record.start(),
                    format!("register {register}, an argument or returned already, in a sync function"),
                    "a register that a kernel defines, once",
                ));
            }
        }
        self.usual_order &= self.start.has_no_more_users();
        for (index, (register, &expected)) in self.registers.iter().zip(record.register_uses()).enumerate() {
            let actual = register.uses + register.returned;
            self.usual_order &= register.has_no_more_users();
            let error = if register.users.is_none() {
                Error::new(ErrorKind::Definition, record.start(), "no definition", "a kernel that defines it")
            } else if actual != expected {
                Error::new(
                    ErrorKind::Mismatch,
                    record.start(),
                    format!("a use count of {expected}"),
                    format!("{actual}, the uses by kernels and results"),
                )
            } else {
                continue;
            };
            return Err(error).in_field(|| format!("registers[{index}]"));
        }
        Ok(())
    }
}

/// Absolute file offset of a word in one of a kernel's lists.
fn word_offset(kernel: &KernelRecord<'_>, list: List, index: usize) -> u64 {
    let lists = [kernel.arguments(), kernel.attributes(), kernel.functions(), kernel.results()];
    let before: usize = lists[..list as usize].iter().map(Words::len).sum();
    kernel.start() + 4 * (6 + kernel.results().len() + before + index) as u64
}
