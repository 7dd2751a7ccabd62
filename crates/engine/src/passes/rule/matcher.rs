//! Finds patterns in graphs.

use super::pattern::{Match, Pattern, Place, Shape};
use crate::graph::{Graph, NodeId, ValueId, argument};
use crate::operation::as_op;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use pteron_operator::Instr;
use smallvec::{SmallVec, smallvec};

/// The maximum number of nodes that are followed in a chain: a program may chain any number of reshapes and clamps.
pub(crate) const MAX_CHAIN: usize = 64;

/// The maximum number of parts of a pattern that are compared for one node, including those of failed alternatives.
pub(super) const MAX_STEPS: usize = 512;

impl Pattern {
    /// The match whose value is the first result of a node.
    pub(crate) fn find(&self, graph: &Graph, node: NodeId) -> Option<Match> {
        self.find_with(graph, *graph.node(node).outputs().first()?, &[])
    }

    /// The match whose value is `value`, where the values `known` are captured already.
    pub(crate) fn find_with(
        &self,
        graph: &Graph,
        value: ValueId,
        known: &[(&'static str, ValueId)],
    ) -> Option<Match> {
        let mut matched = Match::default();
        known.iter().try_for_each(|&(name, value)| matched.capture(name, Place::Value(value)))?;
        Search::new(graph).run(self, value, matched)
    }
}

/// A part of a pattern, and where it is to be compared.
type Goal<'p> = (&'p Pattern, Place);

/// A partial match, and the goals that are left to compare; the last goal is the next one.
#[derive(Clone)]
struct State<'p> {
    matched: Match,
    goals: SmallVec<[Goal<'p>; 8]>,
}

impl<'p> State<'p> {
    /// Adds goals, which are compared in this order; goals that a comparison adds come before the remaining ones.
    fn push_goals(&mut self, goals: &[Goal<'p>]) -> Option<()> {
        self.goals.extend(goals.iter().rev().copied());
        Some(())
    }
}

/// A search with backtracking, in bounded work: at most [`MAX_STEPS`] steps of at most [`MAX_CHAIN`] nodes each.
pub(super) struct Search<'g, 'p> {
    graph: &'g Graph,
    /// The alternatives that are still to be tried; the last one is the next.
    open: Vec<State<'p>>,
    /// The number of parts of the pattern that were compared.
    pub(super) steps: usize,
}

impl<'g, 'p> Search<'g, 'p> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, open: Vec::new(), steps: 0 }
    }

    pub(super) fn run(&mut self, pattern: &'p Pattern, value: ValueId, matched: Match) -> Option<Match> {
        let mut next = Some(State { matched, goals: smallvec![(pattern, Place::Value(value))] });
        while let Some(state) = next {
            if let Some(mut matched) = self.meet_goals(state) {
                matched
                    .parts
                    .sort_by(|&a, &b| self.graph.comes_before(a, b).cmp(&self.graph.comes_before(b, a)));
                return Some(matched);
            }
            next = self.open.pop();
        }
        None
    }

    /// Compares until all goals are met. `None` if one fails, is split into alternatives (in `open`), or no steps are
    /// left.
    fn meet_goals(&mut self, mut state: State<'p>) -> Option<Match> {
        while let Some((pattern, place)) = state.goals.pop() {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                self.open.clear();
                return None;
            }
            self.compare(pattern, place, &mut state)?;
        }
        Some(state.matched)
    }

    /// Compares the root of a pattern with the node or instruction at a place, and adds its operands to the goals.
    fn compare(&mut self, pattern: &'p Pattern, place: Place, state: &mut State<'p>) -> Option<()> {
        match &*pattern.0 {
            Shape::Any(name) => state.matched.capture(name, Place::Value(value_at(place)?)),
            Shape::Number(name) => state.matched.capture(name, Place::Number(self.number_at(place)?)),
            Shape::Constant(n) => {
                let actual = self.number_at(place)?;
                (actual == *n || (actual - n).abs() <= 1e-6 * n.abs()).then_some(())
            }
            Shape::Unary(f, of) => {
                let (node, Instr::Unary(g, x)) = self.instr_at(place)? else { return None };
                (*f == g).then_some(())?;
                state.matched.add_part(node);
                state.push_goals(&[(of, self.place_of_register(node, x))])
            }
            Shape::Binary(f, [a, b]) => {
                let (node, Instr::Binary(g, x, y)) = self.instr_at(place)? else { return None };
                (*f == g).then_some(())?;
                state.matched.add_part(node);
                let (x, y) = (self.place_of_register(node, x), self.place_of_register(node, y));
                if f.commutes() && x != y {
                    return self.open_alternatives(state, &[[(a, x), (b, y)], [(b, x), (a, y)]]);
                }
                state.push_goals(&[(a, x), (b, y)])
            }
            Shape::Clamp(parts) => self.compare_clamps(parts, place, state),
            Shape::Node(test, result, operands) => {
                let value = value_at(place)?;
                let node = self.graph.producer(value)?;
                let (inputs, outputs) = (self.graph.node(node).inputs(), self.graph.node(node).outputs());
                let fits = inputs.len() == operands.len() && outputs.get(*result) == Some(&value);
                (fits && test(self.graph, node)).then_some(())?;
                state.matched.add_part(node);
                let is_call = self.graph.node(node).call().is_some();
                for (i, operand) in operands.iter().enumerate().rev() {
                    let input = if is_call { argument(self.graph, node, i)? } else { inputs[i] };
                    state.push_goals(&[(operand, Place::Value(input))])?;
                }
                Some(())
            }
            Shape::Through(test, before) => {
                let reached = self.before_chain(value_at(place)?, &**test);
                state.push_goals(&[(before, Place::Value(reached))])
            }
            Shape::Either([a, b]) => self.open_alternatives(state, &[[(a, place)], [(b, place)]]),
            Shape::Both([a, b]) => state.push_goals(&[(a, place), (b, place)]),
            Shape::Holds(condition) => condition(self.graph, &state.matched).then_some(()),
        }
    }

    /// Adds an alternative state for each of these lists of goals. The first list is tried first.
    fn open_alternatives<const N: usize>(
        &mut self,
        state: &State<'p>,
        lists: &[[Goal<'p>; N]],
    ) -> Option<()> {
        for goals in lists.iter().rev() {
            self.open.push(state.clone());
            self.open.last_mut()?.push_goals(goals)?;
        }
        None
    }

    /// Compares a clamp with a run of consecutive clamps combined: first the longest run, then without the innermost.
    fn compare_clamps(
        &mut self,
        [of, low, high]: &'p [Pattern; 3],
        mut at: Place,
        state: &mut State<'p>,
    ) -> Option<()> {
        let (mut least, mut greatest) = (f32::NEG_INFINITY, f32::INFINITY);
        for _ in 0..MAX_CHAIN {
            let Some((node, Instr::Clamp { of: x, low: l, high: h })) = self.instr_at(at) else { break };
            let true = least <= greatest else { break };
            (least, greatest) = (l.clamp(least, greatest), h.clamp(least, greatest));
            state.matched.add_part(node);
            at = self.place_of_register(node, x);
            let bounds = [(low, Place::Number(least)), (high, Place::Number(greatest))];
            self.open_alternatives(state, &[[(of, at), bounds[0], bounds[1]]]);
        }
        None
    }

    /// The elementwise node and the instruction that compute the value at a place.
    fn instr_at(&self, place: Place) -> Option<(NodeId, Instr)> {
        let (node, register) = match place {
            Place::Value(value) => (self.graph.producer(value)?, None),
            Place::Register(node, register) => (node, Some(register)),
            Place::Number(_) => return None,
        };
        let Pointwise(expression) = as_op(self.graph, node)?;
        let last = expression.instrs.len().checked_sub(1)?;
        Some((node, expression.instrs[register.unwrap_or(last)]))
    }

    /// The place of a register of an elementwise node.
    fn place_of_register(&self, node: NodeId, register: usize) -> Place {
        match self.instr_at(Place::Register(node, register)) {
            Some((_, Instr::Input(n))) => Place::Value(self.graph.node(node).inputs()[n]),
            Some((_, Instr::Const(number))) => Place::Number(number),
            _ => Place::Register(node, register),
        }
    }

    /// The number at a place: a literal number, or the element of a constant with one element.
    fn number_at(&self, place: Place) -> Option<f32> {
        if let Place::Number(number) = place {
            return Some(number);
        }
        let constant =
            self.before_chain(value_at(place)?, &|graph, node| as_op::<Reshape>(graph, node).is_some());
        if let &[number] = self.graph.floats(constant)? { Some(number) } else { None }
    }

    /// The input of a chain of nodes that pass a test and end with `value`; `value` itself if the chain is empty.
    fn before_chain(&self, mut value: ValueId, test: &dyn Fn(&Graph, NodeId) -> bool) -> ValueId {
        for _ in 0..MAX_CHAIN {
            let node = self.graph.producer(value).filter(|&node| test(self.graph, node));
            let Some(&before) = node.and_then(|node| self.graph.node(node).inputs().first()) else { break };
            value = before;
        }
        value
    }
}

fn value_at(place: Place) -> Option<ValueId> {
    if let Place::Value(value) = place { Some(value) } else { None }
}
