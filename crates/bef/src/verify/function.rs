//! Verification of one function: its tables against its kernels, and both against the file's tables.

use super::{LocationStarts, Verified};
use crate::error::{Error, ErrorKind, Result, Within};
use crate::ids::TypeId;
use crate::limits::Budget;
use crate::section::attribute_names::AttributeNames;
use crate::section::function_index::{FunctionEntry, FunctionKind};
use crate::section::functions::{FunctionRecord, KernelRecord, PSEUDO_KERNEL_CODE, Words};
use crate::section::register_types::RegisterTypes;

/// Checks functions in index order; buffers are reused from one to the next.
pub(super) struct Checker<'v, 'a> {
    file: &'v Verified<'a>,
    locations: &'v LocationStarts,
    /// Position of the location seen last.
    last_location: usize,
    budget: Budget,
    names: Option<AttributeNames<'a>>,
    types: Option<RegisterTypes<'a>>,
    /// Types of the function's registers.
    kinds: Vec<TypeId>,
    defined: Vec<bool>,
    /// Kernels' uses of each register, then where each register's part of `users` starts.
    uses: Vec<u32>,
    /// How often the function returns each register.
    returned: Vec<u32>,
    users: Vec<u32>,
    sorted: Vec<u32>,
    /// Arguments of all kernels, one after another: the register, and the kernel that reads it. A kernel without any
    /// counts as reading the register that does not exist.
    arguments: Vec<(u32, u32)>,
    /// Position in the AttributeTypes section of the attribute seen last.
    last_attribute: usize,
}

/// The lists of a kernel, in file order, with the words that the format uses for them.
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
        let (kinds, defined, uses, returned, users, sorted, arguments) = Default::default();
        Checker {
            file,
            locations,
            last_location: 0,
            budget,
            names,
            types,
            kinds,
            defined,
            uses,
            returned,
            users,
            sorted,
            arguments,
            last_attribute: 0,
        }
    }

    /// Fails if the names and types sections hold more than the functions took.
    pub(super) fn finish(&self) -> Result<()> {
        self.names.iter().try_for_each(AttributeNames::finish)?;
        self.types.iter().try_for_each(RegisterTypes::finish)
    }

    /// `record` ends with its last kernel.
    pub(super) fn check(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<()> {
        let registers = record.register_uses().len();
        if registers < entry.arguments.len() {
            return Err(Error::new(
                ErrorKind::Mismatch,
                record.start(),
                format!("{registers} registers"),
                format!("at least {}, one for each argument", entry.arguments.len()),
            ))
            .within(|| "registers");
        }
        // Kernels count one another, and registers their uses, in 32 bits; each takes a word at least.
        let words = record.kernel_list().len() / 4;
        if words > u64::from(u32::MAX) {
            return Err(Error::new(
                ErrorKind::Unaddressable,
                record.kernels_start(),
                format!("kernels of {words} words"),
                "less than 2^32 words in one function",
            ))
            .within(|| "kernels");
        }
        self.check_location(record.location(), record.start()).within(|| "location")?;
        if let Some(names) = &mut self.names {
            names.next_function(record.kernel_table().len())?;
        }
        self.check_types(record, entry)?;
        self.defined.clear();
        self.defined.resize(registers, false);
        self.uses.clear();
        self.uses.resize(registers, 0);
        self.arguments.clear();
        self.check_kernels(record, entry)?;
        self.check_uses(record, entry)?;
        self.check_used_bys(record)
    }

    fn check_location(&mut self, offset: u64, at: u64) -> Result<()> {
        if offset >= self.locations.len {
            return Ok(());
        }
        if let Some((position, cost)) = self.locations.find(offset, self.last_location) {
            self.last_location = position;
            return self.budget.spend(cost, at);
        }
        Err(Error::new(
            ErrorKind::NotAStart,
            at,
            format!("location offset {offset}"),
            format!("the start of a location, or at least {} for none", self.locations.len),
        ))
    }

    /// The types of registers exist and agree with the signature.
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
            .within(|| format!("register_types[{register}]"));
        }
        let arguments = entry.arguments.iter().zip(&*kinds).position(|(expected, found)| expected != found);
        let result = entry.results.iter().zip(record.results()).position(|(expected, register)| {
            kinds.get(register.index()).is_some_and(|found| found != expected)
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
            format!("{}, as the function's signature says", self.file.type_name(expected)),
        ))
        .within(|| format!("register_types[{register}]"))
    }

    /// Everything about kernels but their used-by lists.
    fn check_kernels(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<()> {
        if record.kernel_table().is_empty() {
            return Err(Error::new(
                ErrorKind::Mismatch,
                record.start(),
                "no kernels",
                "at least the pseudo kernel, which starts a function",
            ))
            .within(|| "kernels");
        }
        let mut end = 0;
        for (index, (kernel, table)) in record.kernels().zip(record.kernel_table()).enumerate() {
            let kernel = kernel?;
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
                match index {
                    0 => self.check_pseudo_kernel(&kernel, entry.arguments.len()),
                    _ => self.check_kernel(&kernel, index as u32),
                }
            };
            check().within(|| format!("kernels[{index}]"))?;
            end += kernel.size();
        }
        let list = record.kernel_list();
        if end != list.len() {
            return Err(Error::new(
                ErrorKind::TrailingBytes,
                list.start() + end,
                format!("{} more bytes", list.len() - end),
                "the next function's record, or the end of the section",
            ))
            .within(|| "kernels");
        }
        Ok(())
    }

    fn check_pseudo_kernel(&mut self, kernel: &KernelRecord<'a>, arguments: usize) -> Result<()> {
        let mismatch = |found: String, expected: String| {
            Err(Error::new(ErrorKind::Mismatch, kernel.start(), found, expected))
        };
        if kernel.code() != PSEUDO_KERNEL_CODE {
            return mismatch(
                format!("code {:#010x}", kernel.code()),
                format!("{PSEUDO_KERNEL_CODE:#010x}: kernel 0 is the pseudo kernel"),
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
        let first = self.defined.len() as u32;
        let expected = std::iter::once(first).chain(0..arguments as u32);
        for (index, (found, expected)) in kernel.results().iter().zip(expected).enumerate() {
            if found != expected {
                return Err(Error::new(
                    ErrorKind::Mismatch,
                    place(kernel, List::Results, index),
                    format!("register {found}"),
                    format!("{expected}: a register that does not exist, then the arguments"),
                ))
                .within(|| format!("results[{index}]"));
            }
        }
        self.defined[..arguments].fill(true);
        Ok(())
    }

    fn check_kernel(&mut self, kernel: &KernelRecord<'a>, number: u32) -> Result<()> {
        let kernels = self.file.kernel_names().len();
        if kernel.code() as usize >= kernels {
            return Err(out_of_range(kernel.start(), "kernel code", kernel.code(), kernels))
                .within(|| "code");
        }
        self.check_location(kernel.location().into(), kernel.start() + 4).within(|| "location")?;
        let registers = self.defined.len();
        for (index, register) in kernel.arguments().iter().enumerate() {
            match self.defined.get(register as usize) {
                Some(true) => {
                    self.uses[register as usize] += 1;
                    self.arguments.push((register, number));
                }
                defined => {
                    let at = place(kernel, List::Args, index);
                    let error = match defined {
                        None => out_of_range(at, "register", register, registers),
                        Some(_) => Error::new(
                            ErrorKind::Definition,
                            at,
                            format!("register {register}, which no kernel before this one defines"),
                            "an argument, or a result of an earlier kernel",
                        ),
                    };
                    return Err(error).within(|| format!("args[{index}]"));
                }
            }
        }
        if kernel.arguments().is_empty() {
            self.arguments.push((registers as u32, number));
        }
        self.check_attributes(kernel)?;
        let functions = self.file.functions().len();
        if let Some(index) = kernel.functions().iter().position(|function| function as usize >= functions) {
            let function = kernel.functions().get(index).unwrap_or_default();
            return Err(out_of_range(place(kernel, List::Funcs, index), "function", function, functions))
                .within(|| format!("funcs[{index}]"));
        }
        for (index, register) in kernel.results().iter().enumerate() {
            let at = place(kernel, List::Results, index);
            let error = match self.defined.get_mut(register as usize) {
                Some(defined) if !*defined => {
                    *defined = true;
                    continue;
                }
                Some(_) => Error::new(
                    ErrorKind::Definition,
                    at,
                    format!("register {register}, which is defined already"),
                    "a register of its own",
                ),
                None => out_of_range(at, "register", register, registers),
            };
            return Err(error).within(|| format!("results[{index}]"));
        }
        Ok(())
    }

    fn check_attributes(&mut self, kernel: &KernelRecord<'a>) -> Result<()> {
        let len = self.file.file().attributes().region().len();
        let types = self.file.attribute_types();
        for (index, offset) in kernel.attributes().iter().enumerate() {
            let at = place(kernel, List::Attrs, index);
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
                .within(|| format!("attrs[{index}]"));
            }
            if let Some(names) = &mut self.names {
                names.check_name(&mut self.budget)?;
            }
        }
        Ok(())
    }

    /// Every register is defined and used as often as the register table says, and the results are what the kind of
    /// function allows.
    fn check_uses(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<()> {
        let registers = self.defined.len();
        self.returned.clear();
        self.returned.resize(registers, 0);
        for (index, register) in record.results().iter().enumerate() {
            let fail = |error: Error| Err(error).within(|| format!("results[{index}]"));
            let Some(count) = self.returned.get_mut(register.index()) else {
                return fail(out_of_range(record.start(), "register", register.0, registers));
            };
            *count += 1;
            if entry.kind == FunctionKind::Sync && (*count > 1 || register.index() < entry.arguments.len()) {
                return fail(Error::new(
                    ErrorKind::Mismatch,
                    record.start(),
                    format!("register {register}, an argument or returned already, in a sync function"),
                    "a register that a kernel defines, once",
                ));
            }
        }
        for (register, &expected) in record.register_uses().iter().enumerate() {
            let found = self.uses[register] + self.returned[register];
            let error = if !self.defined[register] {
                Error::new(ErrorKind::Definition, record.start(), "no definition", "a kernel that defines it")
            } else if found != expected {
                Error::new(
                    ErrorKind::Mismatch,
                    record.start(),
                    format!("a use count of {expected}"),
                    format!("{found}, the uses by kernels and results"),
                )
            } else {
                continue;
            };
            return Err(error).within(|| format!("registers[{register}]"));
        }
        Ok(())
    }

    /// Every used-by list names the kernels whose arguments say so, as often as they do.
    fn check_used_bys(&mut self, record: &FunctionRecord<'a>) -> Result<()> {
        // Turn counts into the start of each register's users. The kernels without operands come last: they are the
        // users of the register that does not exist.
        let mut start = 0;
        for count in &mut self.uses {
            start += std::mem::replace(count, start);
        }
        self.uses.push(start);
        self.users.clear();
        self.users.resize(self.arguments.len(), 0);
        for &(register, kernel) in &self.arguments {
            let next = &mut self.uses[register as usize];
            self.users[*next as usize] = kernel;
            *next += 1;
        }
        // Each start has moved to its end, which is the next one's start.
        let kernels = record.kernel_table().len();
        for (index, kernel) in record.kernels().enumerate() {
            let kernel = kernel?;
            for (number, (register, found)) in kernel.results().iter().zip(kernel.used_bys()).enumerate() {
                let register = register as usize;
                let start = if register == 0 { 0 } else { self.uses[register - 1] };
                let expected = &self.users[start as usize..self.uses[register] as usize];
                if !same_users(found, expected, &mut self.sorted) {
                    let place = || format!("kernels[{index}].used_bys[{number}]");
                    return Err(wrong_users(&kernel, found, expected, kernels)).within(place);
                }
            }
        }
        Ok(())
    }
}

/// Whether two lists hold the same kernels. `expected` rises; files usually have the last user first.
fn same_users(found: Words<'_>, expected: &[u32], sorted: &mut Vec<u32>) -> bool {
    if found.len() != expected.len() {
        return false;
    }
    if found.iter().eq(expected.iter().rev().copied()) {
        return true;
    }
    sorted.clear();
    sorted.extend(found.iter());
    sorted.sort_unstable();
    sorted == expected
}

#[cold]
fn wrong_users(kernel: &KernelRecord<'_>, found: Words<'_>, expected: &[u32], kernels: usize) -> Error {
    let at = kernel.start();
    if let Some(user) = found.iter().find(|&user| user as usize >= kernels) {
        return out_of_range(at, "kernel", user, kernels);
    }
    const SHOWN: usize = 8;
    let show = |total: usize, users: Vec<u32>| {
        let more = if total > SHOWN { ", ..." } else { "" };
        format!("{total} users {users:?}{more}")
    };
    Error::new(
        ErrorKind::Mismatch,
        at,
        show(found.len(), found.iter().take(SHOWN).collect()),
        format!(
            "{}, by the kernels' arguments",
            show(expected.len(), expected.iter().copied().take(SHOWN).collect())
        ),
    )
}

/// Absolute file offset of a word in one of a kernel's lists.
fn place(kernel: &KernelRecord<'_>, list: List, index: usize) -> u64 {
    let lists = [kernel.arguments(), kernel.attributes(), kernel.functions(), kernel.results()];
    let before: usize = lists[..list as usize].iter().map(Words::len).sum();
    kernel.start() + 4 * (6 + kernel.results().len() + before + index) as u64
}

#[cold]
fn out_of_range(at: u64, what: &str, index: u32, count: usize) -> Error {
    Error::new(ErrorKind::OutOfRange, at, format!("{what} {index}"), format!("one below {count}"))
}
