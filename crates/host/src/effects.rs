//! Which functions may run in program order, though their kernels belong to several streams.
//!
//! Kernels have a program order, and a scheduling order: the reference's, which decides in which order text is
//! printed and failures are reported. A function is *ordered* if every schedule that respects data dependences
//! gives the same order of observable side effects:
//!
//! * the side effects of each of its kernels, and of the kernels of its callees, are declared ([`Effect`]), and
//!   happen while the kernel runs, before its results are available;
//! * each kernel with an observable effect depends, directly or not, on the one before it;
//! * every result of a callee depends on its last kernel with such an effect.
//!
//! Then the effects of a call happen after its arguments are available and before its results are. Loops may begin an
//! iteration before the results of the last one are available, so the functions that they call must have no
//! observable effect.

use crate::body::Body;
use crate::function::{FunctionKind, FunctionRef};
use crate::kernel::Effect;
use crate::limits::{MOST_ORDERED_FUNCTIONS, MOST_ORDERED_KERNELS};
use std::collections::HashMap;

/// Whether no schedule of a function's executions is observable. False also of functions that are too large to
/// analyse.
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
    /// Whether its executions have observable effects.
    observable: bool,
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
            let observable = body.nodes.iter().any(|node| node.effect == Effect::Immediate);
            found.positions.insert(function.index(), found.functions.len());
            found.functions.push(Reached { body, observable });
        }
        Some(found)
    }

    fn all_in_one_order(mut self) -> bool {
        while self.spread() {}
        (0..self.functions.len()).all(|position| self.has_one_order(position))
    }

    /// Whether the functions that a kernel calls have observable effects.
    fn calls_observable(&self, body: &Body, kernel: usize) -> bool {
        let called = body.sites[kernel].functions.iter().filter_map(|f| self.positions.get(&(*f as usize)));
        called.into_iter().any(|&position| self.functions[position].observable)
    }

    /// Marks functions that are observable because a callee is; false once there are no more.
    fn spread(&mut self) -> bool {
        let mut more = false;
        // Backwards: most callees come after their callers.
        for position in (0..self.functions.len()).rev() {
            let Reached { body, observable } = self.functions[position];
            if !observable && (0..body.nodes.len()).any(|kernel| self.calls_observable(body, kernel)) {
                self.functions[position].observable = true;
                more = true;
            }
        }
        more
    }

    /// Whether the observable kernels of a function depend on one another in a chain, and its results on the last.
    fn has_one_order(&self, position: usize) -> bool {
        let Reached { body, observable } = self.functions[position];
        if !observable {
            return true;
        }
        // How many observable kernels have returned when each register is set, and when each kernel begins.
        let mut set = vec![0; body.registers.len()];
        let mut begins = vec![0; body.nodes.len()];
        let mut count = 0;
        for (i, node) in body.nodes.iter().enumerate() {
            let (arguments, results) = body.operands(node);
            let mut over = arguments.iter().map(|&r| set[r as usize]).fold(begins[i], usize::max);
            if node.effect == Effect::Immediate || self.calls_observable(body, i) {
                if node.effect == Effect::Loop || over != count {
                    return false;
                }
                count += 1;
                over = count;
            }
            results.iter().for_each(|&r| set[r as usize] = over);
            body.successors(node).iter().for_each(|&s| begins[s as usize] = over.max(begins[s as usize]));
        }
        // No caller waits for a root without results.
        let waited_for = position == 0 || !body.results.is_empty();
        waited_for && body.results.iter().all(|&r| set[r as usize] == count)
    }
}
