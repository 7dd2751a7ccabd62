//! Verification of the used-by lists of a function, in whatever order they name their kernels.

use super::function::out_of_range;
use crate::error::{Error, ErrorKind, Result, Within};
use crate::section::functions::{FunctionRecord, KernelRecord, Words};

/// Checks that every used-by list names the kernels whose arguments say so, as often as they do. Everything else about
/// the function, which has so many `registers`, is known to be right.
pub(super) fn check(record: &FunctionRecord<'_>, registers: usize) -> Result<()> {
    let users = Users::new(record, registers)?;
    let mut sorted = Vec::new();
    for (index, kernel) in record.kernels().enumerate() {
        let kernel = kernel?;
        for (number, (register, found)) in kernel.results().iter().zip(kernel.used_bys()).enumerate() {
            let expected = users.of(register as usize);
            if !same(found, expected, &mut sorted) {
                let kernels = record.kernel_table().len();
                let place = || format!("kernels[{index}].used_bys[{number}]");
                return Err(wrong(&kernel, found, expected, kernels)).within(place);
            }
        }
    }
    Ok(())
}

/// The kernels that use each register, as the kernels' arguments say.
struct Users {
    /// One register after another, the kernels of each by rising number. The kernels without arguments come last: they
    /// are the users of the register that does not exist.
    kernels: Vec<u32>,
    /// Where each register's users end.
    ends: Vec<u32>,
}

impl Users {
    fn new(record: &FunctionRecord<'_>, registers: usize) -> Result<Self> {
        let none = registers as u32;
        // The register that each argument of a kernel names, with the kernel.
        let mut arguments = Vec::new();
        for (number, kernel) in (0..).zip(record.kernels()).skip(1) {
            let list = kernel?.arguments();
            // All registers exist, unless the file changed since its arguments were checked.
            arguments.extend(list.iter().map(|register| (register.min(none), number)));
            if list.is_empty() {
                arguments.push((none, number));
            }
        }
        // Counts become starts, and each start moves on to its end as the users are put in their places.
        let mut ends = vec![0u32; registers + 1];
        arguments.iter().for_each(|&(register, _)| ends[register as usize] += 1);
        let mut start = 0;
        for count in &mut ends {
            start += std::mem::replace(count, start);
        }
        let mut kernels = vec![0; arguments.len()];
        for (register, kernel) in arguments {
            let next = &mut ends[register as usize];
            kernels[*next as usize] = kernel;
            *next += 1;
        }
        Ok(Users { kernels, ends })
    }

    fn of(&self, register: usize) -> &[u32] {
        let register = register.min(self.ends.len() - 1);
        let start = register.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.kernels[start as usize..self.ends[register] as usize]
    }
}

/// Whether two lists hold the same kernels; `expected` rises.
fn same(found: Words<'_>, expected: &[u32], sorted: &mut Vec<u32>) -> bool {
    sorted.clear();
    sorted.extend(found.iter());
    sorted.sort_unstable();
    sorted == expected
}

#[cold]
fn wrong(kernel: &KernelRecord<'_>, found: Words<'_>, expected: &[u32], kernels: usize) -> Error {
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
