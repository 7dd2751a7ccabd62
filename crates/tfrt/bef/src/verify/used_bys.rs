//! Verifies the used-by lists of a function, in whatever order they list the kernels.

use super::out_of_range::out_of_range_error;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::section::functions::{FunctionRecord, KernelRecord, Words};

/// Checks that every used-by list contains exactly the kernels that use the register, once for each use. Everything
/// else about the function, which has `registers` registers, must have been verified.
pub(super) fn check(record: &FunctionRecord<'_>, registers: usize) -> Result<()> {
    let users = Users::new(record, registers)?;
    let mut sorted = Vec::new();
    for (index, kernel) in record.kernels().enumerate() {
        let kernel = kernel?;
        for (number, (register, used_by)) in kernel.results().iter().zip(kernel.used_bys()).enumerate() {
            let expected = users.kernels_using(register as usize);
            if !lists_same_kernels(used_by, expected, &mut sorted) {
                let kernels = record.kernel_table().len();
                let place = || format!("kernels[{index}].used_bys[{number}]");
                return Err(used_by_mismatch(&kernel, used_by, expected, kernels)).in_field(place);
            }
        }
    }
    Ok(())
}

/// The kernels that use each register, computed from the kernels' arguments.
struct Users {
    /// The users of each register in ascending order, one register after another. The kernels without arguments come
    /// last, as the users of the virtual register.
    kernels: Vec<u32>,
    /// End of each register's users in `kernels`.
    ends: Vec<u32>,
}

impl Users {
    fn new(record: &FunctionRecord<'_>, registers: usize) -> Result<Self> {
        let none = registers as u32;
        // Pairs of a register and a kernel that uses it.
        let mut arguments = Vec::new();
        for (number, kernel) in (0..).zip(record.kernels()).skip(1) {
            let list = kernel?.arguments();
            // All registers are in range, unless the file changed since its arguments were checked.
            arguments.extend(list.iter().map(|register| (register.min(none), number)));
            if list.is_empty() {
                arguments.push((none, number));
            }
        }
        // Counting sort: counts become start offsets, and each start advances to its end as users are stored.
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

    fn kernels_using(&self, register: usize) -> &[u32] {
        let register = register.min(self.ends.len() - 1);
        let start = register.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.kernels[start as usize..self.ends[register] as usize]
    }
}

/// Whether two lists contain the same kernels; `expected` is in ascending order, and `sorted` is a scratch buffer.
fn lists_same_kernels(used_by: Words<'_>, expected: &[u32], sorted: &mut Vec<u32>) -> bool {
    sorted.clear();
    sorted.extend(used_by.iter());
    sorted.sort_unstable();
    sorted == expected
}

#[cold]
fn used_by_mismatch(
    kernel: &KernelRecord<'_>,
    used_by: Words<'_>,
    expected: &[u32],
    kernels: usize,
) -> Error {
    let at = kernel.start();
    if let Some(user) = used_by.iter().find(|&user| user as usize >= kernels) {
        return out_of_range_error(at, "kernel", user, kernels);
    }
    const SHOWN: usize = 8;
    let show = |total: usize, users: Vec<u32>| {
        let more = if total > SHOWN { ", ..." } else { "" };
        format!("{total} users {users:?}{more}")
    };
    Error::new(
        ErrorKind::Mismatch,
        at,
        show(used_by.len(), used_by.iter().take(SHOWN).collect()),
        format!(
            "{}, by the kernels' arguments",
            show(expected.len(), expected.iter().copied().take(SHOWN).collect())
        ),
    )
}
