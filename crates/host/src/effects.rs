//! Which functions may run in program order, though their kernels belong to several streams.
//!
//! Kernels have a program order, and are scheduled in another: the reference's, which decides in which order
//! text is printed and failures are reported. A function is *ordered* if all schedules that respect who uses
//! what give the same order of everything that can be noticed:
//!
//! * of each of its kernels, and of those of the functions that they call, it is known what can be noticed of
//!   it ([`Effect`]), and when: while the kernel runs, and before its results are available;
//! * kernels of one function that can be noticed use, directly or not, results of the one before;
//! * so do all results of a function that is called, of its last such kernel.
//!
//! Then a call can be noticed, as a whole, before its results are available, and after its arguments are. Loops
//! may begin an iteration before the results of the last one are available, so functions that they call must
//! have nothing that can be noticed.

use crate::body::Body;
use crate::function::{FunctionKind, FunctionRef};
use crate::kernel::Effect;
use crate::limits::{MOST_ORDERED_FUNCTIONS, MOST_ORDERED_KERNELS};
use std::collections::HashMap;

/// Whether all schedules of a function's executions look the same from outside. False also of functions that
/// are too large to look at.
pub(crate) fn is_ordered(root: FunctionRef<'_>) -> bool {
    Reachable::from(root).is_some_and(Reachable::all_in_one_order)
}

/// A function, and those that it calls, directly or not.
struct Reachable<'a> {
    /// The root first.
    functions: Vec<Reached<'a>>,
    /// Position in `functions` by number in the module.
    positions: HashMap<usize, usize>,
}

#[derive(Clone, Copy)]
struct Reached<'a> {
    body: &'a Body,
    /// Whether something of its executions can be noticed.
    noticed: bool,
}

impl<'a> Reachable<'a> {
    /// None if something is not known of a kernel, or calls do not fit.
    fn from(root: FunctionRef<'a>) -> Option<Self> {
        let mut found = Self { functions: Vec::new(), positions: HashMap::new() };
        let mut open = vec![root];
        let mut kernels = 0;
        while let Some(function) = open.pop() {
            if found.positions.contains_key(&function.index()) {
                continue;
            }
            if function.kind() != FunctionKind::Async || found.functions.len() == MOST_ORDERED_FUNCTIONS {
                return None;
            }
            let body = function.body().ok()?;
            kernels += body.nodes.len();
            if kernels > MOST_ORDERED_KERNELS {
                return None;
            }
            for (node, site) in body.nodes.iter().zip(&body.sites) {
                let calls = match node.effect {
                    Effect::Any => return None,
                    Effect::None | Effect::Immediate => false,
                    Effect::Call | Effect::Loop => true,
                };
                if calls == site.functions.is_empty() {
                    return None;
                }
                for &index in &site.functions {
                    let callee = FunctionRef::new(function.module(), index as usize)?;
                    let (arguments, results) = body.operands(node);
                    // A call passes its arguments on, perhaps but for the first, which chooses the function.
                    let fits = arguments.len().wrapping_sub(callee.arguments()) <= 1
                        && callee.results() == results.len();
                    if node.effect == Effect::Call && !fits {
                        return None;
                    }
                    open.push(callee);
                }
            }
            let noticed = body.nodes.iter().any(|node| node.effect == Effect::Immediate);
            found.positions.insert(function.index(), found.functions.len());
            found.functions.push(Reached { body, noticed });
        }
        Some(found)
    }

    fn all_in_one_order(mut self) -> bool {
        while self.spread() {}
        (0..self.functions.len()).all(|position| self.has_one_order(position))
    }

    /// Whether something of the functions that a kernel calls can be noticed.
    fn calls_noticed(&self, body: &Body, kernel: usize) -> bool {
        let called = body.sites[kernel].functions.iter().filter_map(|f| self.positions.get(&(*f as usize)));
        called.into_iter().any(|&position| self.functions[position].noticed)
    }

    /// Finds functions of which something can be noticed because they call such; false once there are no more.
    fn spread(&mut self) -> bool {
        let mut more = false;
        // Callees mostly stand behind their callers.
        for position in (0..self.functions.len()).rev() {
            let Reached { body, noticed } = self.functions[position];
            if !noticed && (0..body.nodes.len()).any(|kernel| self.calls_noticed(body, kernel)) {
                self.functions[position].noticed = true;
                more = true;
            }
        }
        more
    }

    /// Whether the kernels of a function that can be noticed come one after another, and its results after them.
    fn has_one_order(&self, position: usize) -> bool {
        let Reached { body, noticed } = self.functions[position];
        if !noticed {
            return true;
        }
        // Of each register and kernel, the noticed kernels that are over when it is set, or begins.
        let mut set = vec![0; body.registers.len()];
        let mut begins = vec![0; body.nodes.len()];
        let mut count = 0;
        for (i, node) in body.nodes.iter().enumerate() {
            let (arguments, results) = body.operands(node);
            let mut over = arguments.iter().map(|&r| set[r as usize]).fold(begins[i], usize::max);
            if node.effect == Effect::Immediate || self.calls_noticed(body, i) {
                if node.effect == Effect::Loop || over != count {
                    return false;
                }
                count += 1;
                over = count;
            }
            results.iter().for_each(|&r| set[r as usize] = over);
            body.successors(node).iter().for_each(|&s| begins[s as usize] = over.max(begins[s as usize]));
        }
        // Nobody waits for the root if it has no results.
        let waited_for = position == 0 || !body.results.is_empty();
        waited_for && body.results.iter().all(|&r| set[r as usize] == count)
    }
}
