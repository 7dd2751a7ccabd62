//! Decides which functions may run in program order, though their kernels belong to several streams.
//!
//! Kernels have a program order and a scheduling order. The latter is the reference implementation's, and decides in
//! which order text is printed and failures are reported. A function is *ordered* if every schedule that respects its
//! data dependences produces the same order of observable side effects. Sufficient conditions:
//!
//! * the side effects of each of its kernels, and of the kernels of its callees, are declared ([`Effect`]), and
//!   happen while the kernel runs, before its results are available;
//! * each kernel with an observable effect depends, directly or transitively, on the previous one;
//! * every result of a callee depends on its last kernel with such an effect.
//!
//! Then the effects of a call happen after its arguments are available and before its results are. A loop may begin an
//! iteration before the results of the previous one are available, so the functions that it calls must have no
//! observable effect.

use crate::body::Body;
use crate::function::{FunctionKind, FunctionRef};
use crate::kernel::Effect;
use crate::limits::{MAX_ORDERED_FUNCTIONS, MAX_ORDERED_KERNELS};
use std::collections::HashMap;

/// Whether the observable effects of a function have the same order in every schedule. Returns false for functions that are too large to
/// analyse.
pub(crate) fn is_ordered(root: FunctionRef<'_>) -> bool {
    Reachable::from_root(root).is_some_and(Reachable::prove_ordered)
}

/// A function and its transitive callees.
struct Reachable<'a> {
    /// The functions; the root comes first.
    functions: Vec<CalledFunction<'a>>,
    /// Maps a function's index in the module to its position in `functions`.
    positions: HashMap<usize, usize>,
    /// Whether the root calls itself, directly or through its callees.
    is_recursive: bool,
}

#[derive(Clone, Copy)]
struct CalledFunction<'a> {
    body: &'a Body,
    /// Whether executing the function has observable effects.
    observable: bool,
}

impl<'a> Reachable<'a> {
    /// Returns `None` if a function is not asynchronous, a kernel's effects are not declared, a call does not match its
    /// callee, or there are too many functions or kernels.
    fn from_root(root: FunctionRef<'a>) -> Option<Self> {
        let mut reachable = Self { functions: Vec::new(), positions: HashMap::new(), is_recursive: false };
        let mut open = vec![root];
        let mut kernels = 0;
        while let Some(function) = open.pop() {
            if reachable.positions.contains_key(&function.index()) {
                continue;
            }
            if function.kind() != FunctionKind::Async || reachable.functions.len() == MAX_ORDERED_FUNCTIONS {
                return None;
            }
            let body = function.body().ok()?;
            kernels += body.nodes.len();
            if kernels > MAX_ORDERED_KERNELS {
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
                    // A call passes its arguments on, perhaps without the first, which selects the callee.
                    let fits = arguments.len().wrapping_sub(callee.arguments()) <= 1
                        && callee.results() == results.len();
                    if node.effect == Effect::Call && !fits {
                        return None;
                    }
                    reachable.is_recursive |= callee.index() == root.index();
                    open.push(callee);
                }
            }
            let observable = body.nodes.iter().any(|node| node.effect == Effect::Immediate);
            reachable.positions.insert(function.index(), reachable.functions.len());
            reachable.functions.push(CalledFunction { body, observable });
        }
        Some(reachable)
    }

    fn prove_ordered(mut self) -> bool {
        while self.propagate_observable() {}
        (0..self.functions.len()).all(|position| self.is_function_ordered(position))
    }

    /// Whether a function that the kernel calls has observable effects.
    fn calls_observable(&self, body: &Body, kernel: usize) -> bool {
        let called = body.sites[kernel].functions.iter().filter_map(|f| self.positions.get(&(*f as usize)));
        called.into_iter().any(|&position| self.functions[position].observable)
    }

    /// Marks functions as observable if a callee is. Returns false when nothing changed.
    fn propagate_observable(&mut self) -> bool {
        let mut more = false;
        // Backwards, since most callees come after their callers.
        for position in (0..self.functions.len()).rev() {
            let CalledFunction { body, observable } = self.functions[position];
            if !observable && (0..body.nodes.len()).any(|kernel| self.calls_observable(body, kernel)) {
                self.functions[position].observable = true;
                more = true;
            }
        }
        more
    }

    /// Whether the observable kernels of a function form a dependence chain, and its results depend on the last one.
    fn is_function_ordered(&self, position: usize) -> bool {
        let CalledFunction { body, observable } = self.functions[position];
        if !observable {
            return true;
        }
        // Number of observable kernels that have completed when each register is set, and when each kernel begins.
        let mut set = vec![0; body.registers.len()];
        let mut begins = vec![0; body.nodes.len()];
        let mut count = 0;
        for (i, node) in body.nodes.iter().enumerate() {
            let (arguments, results) = body.operands(node);
            let mut completed = arguments.iter().map(|&r| set[r as usize]).fold(begins[i], usize::max);
            if node.effect == Effect::Immediate || self.calls_observable(body, i) {
                if node.effect == Effect::Loop || completed != count {
                    return false;
                }
                count += 1;
                completed = count;
            }
            results.iter().for_each(|&r| set[r as usize] = completed);
            body.successors(node)
                .iter()
                .for_each(|&s| begins[s as usize] = completed.max(begins[s as usize]));
        }
        // A callee without results has nothing that its caller could wait for.
        let is_callee = position > 0 || self.is_recursive;
        (!is_callee || !body.results.is_empty()) && body.results.iter().all(|&r| set[r as usize] == count)
    }
}
