//! Finds patterns in graphs.

use super::pattern::{Match, NodeTest, Pattern, Shape};
use crate::graph::{Graph, NodeId, ValueId, argument};
use crate::operation::{as_op, producer_as};
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use pteron_operator::{Expression, Instr};
use smallvec::{SmallVec, smallvec};

/// The maximum number of nodes that are followed in a chain: a program may chain any number of reshapes and clamps.
pub(crate) const MAX_CHAIN: usize = 64;

/// The maximum number of parts of a pattern that are compared for one node, those of alternatives that fail included.
pub(super) const MAX_STEPS: usize = 512;

impl Pattern {
    /// The match whose value is the first result of a node.
    pub(crate) fn find(&self, graph: &Graph, node: NodeId) -> Option<Match> {
        self.find_value(graph, *graph.node(node).outputs().first()?)
    }

    /// The match with this value.
    pub(crate) fn find_value(&self, graph: &Graph, value: ValueId) -> Option<Match> {
        Search::new(graph).run(self, value, Match::default())
    }

    /// The match whose value is the first result of a node, where another value has a name already.
    pub(crate) fn find_with(
        &self,
        graph: &Graph,
        node: NodeId,
        name: &'static str,
        value: ValueId,
    ) -> Option<Match> {
        let mut found = Match::default();
        found.capture(name, value)?;
        Search::new(graph).run(self, *graph.node(node).outputs().first()?, found)
    }
}

/// Where a part of a pattern is compared: a value of the graph, or what an instruction of an elementwise node computes
/// that is no value of the graph.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Value(ValueId),
    Register(NodeId, usize),
    Number(f32),
}

/// A part of a pattern, and where it is to be compared.
type Goal<'p> = (&'p Pattern, Place);

/// A match so far, and what is left to compare, the next one last.
#[derive(Clone)]
struct State<'p> {
    found: Match,
    goals: SmallVec<[Goal<'p>; 8]>,
}

/// A search with backtracking. It takes bounded work: [`MAX_STEPS`], each at most [`MAX_CHAIN`] nodes.
pub(super) struct Search<'g, 'p> {
    pub(super) graph: &'g Graph,
    alternatives: Vec<State<'p>>,
    /// How many parts of the pattern were compared.
    pub(super) steps: usize,
}

impl<'g, 'p> Search<'g, 'p> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, alternatives: Vec::new(), steps: 0 }
    }

    pub(super) fn run(&mut self, pattern: &'p Pattern, value: ValueId, found: Match) -> Option<Match> {
        let place = Place::Value(value);
        if !self.fits(pattern, place) {
            return None;
        }
        let mut next = Some(State { found, goals: smallvec![(pattern, place)] });
        while let Some(state) = next {
            if let Some(mut found) = self.follow(state) {
                found
                    .parts
                    .sort_by(|&a, &b| self.graph.comes_before(a, b).cmp(&self.graph.comes_before(b, a)));
                return Some(found);
            }
            next = self.alternatives.pop();
        }
        None
    }

    /// Compares until all goals are met; `None` if one is not.
    fn follow(&mut self, mut state: State<'p>) -> Option<Match> {
        while let Some((pattern, place)) = state.goals.pop() {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                self.alternatives.clear();
                return None;
            }
            self.step(pattern, place, &mut state)?;
        }
        Some(state.found)
    }

    /// Compares the last node or instruction of a pattern, and adds its operands to the goals.
    fn step(&mut self, pattern: &'p Pattern, place: Place, state: &mut State<'p>) -> Option<()> {
        match &*pattern.0 {
            Shape::Any(name) => state.found.capture(name, value(place)?),
            Shape::Number(name) => state.found.capture_number(name, self.number(place)?),
            Shape::Constant(n) => {
                let found = self.number(place)?;
                (found == *n || (found - n).abs() <= 1e-6 * n.abs()).then_some(())
            }
            Shape::Through(test, before) => {
                let before_chain = self.before_chain(value(place)?, *test);
                self.choose(state, &[&[(before, Place::Value(before_chain))]])
            }
            Shape::Either([a, b]) => self.choose(state, &[&[(a, place)], &[(b, place)]]),
            // What `a` reads is compared before `b`.
            Shape::Both([a, b]) => self.choose(state, &[&[(a, place), (b, place)]]),
            Shape::Holds(condition) => condition(self.graph, &state.found).then_some(()),
            Shape::Unary(_, of) => {
                let (node, Instr::Unary(_, x)) = self.instr(place)? else { return None };
                state.found.cover(node);
                self.choose(state, &[&[(of, self.place(node, x))]])
            }
            Shape::Binary(f, [a, b]) => {
                let (node, Instr::Binary(_, x, y)) = self.instr(place)? else { return None };
                state.found.cover(node);
                let (x, y) = (self.place(node, x), self.place(node, y));
                let orders: [&[_]; 2] = [&[(a, x), (b, y)], &[(b, x), (a, y)]];
                self.choose(state, if f.commutes() && x != y { &orders } else { &orders[..1] })
            }
            Shape::Clamp(parts) => self.clamps(parts, place, state),
            Shape::Node { operands, .. } => {
                let node = self.graph.producer(value(place)?)?;
                state.found.cover(node);
                let inputs = self.graph.node(node).inputs();
                let is_call = self.graph.node(node).call().is_some();
                let input = |i| if is_call { argument(self.graph, node, i) } else { inputs.get(i).copied() };
                let places = (0..operands.len()).map(|i| input(i).map(Place::Value));
                let goals: Option<SmallVec<[_; 4]>> =
                    operands.iter().zip(places).map(|(operand, place)| Some((operand, place?))).collect();
                self.choose(state, &[&goals.filter(|goals| goals.len() == inputs.len())?])
            }
        }
    }

    /// Goes on with the first of these lists of goals that may be met, and later with the others.
    fn choose(&mut self, state: &mut State<'p>, lists: &[&[Goal<'p>]]) -> Option<()> {
        let fit = |goals: &&&[Goal<'p>]| goals.iter().all(|&(pattern, place)| self.fits(pattern, place));
        let fitting: SmallVec<[_; 2]> = lists.iter().filter(fit).copied().collect();
        let (first, others) = fitting.split_first()?;
        for goals in others.iter().rev() {
            let mut other = state.clone();
            other.goals.extend(goals.iter().rev().copied());
            self.alternatives.push(other);
        }
        state.goals.extend(first.iter().rev().copied());
        Some(())
    }

    /// Compares consecutive clamps with one that combines them: first all of them, then without the innermost.
    fn clamps(
        &mut self,
        [of, low, high]: &'p [Pattern; 3],
        place: Place,
        state: &mut State<'p>,
    ) -> Option<()> {
        let (mut at, mut bounds) = (place, (f32::NEG_INFINITY, f32::INFINITY));
        let mut goals: Option<[Goal<'p>; 3]> = None;
        for _ in 0..MAX_CHAIN {
            let Some((node, Instr::Clamp { of: x, low: least, high: greatest })) = self.instr(at) else {
                break;
            };
            let true = bounds.0 <= bounds.1 else { break };
            bounds = match goals {
                None => (least, greatest),
                Some(_) => (least.clamp(bounds.0, bounds.1), greatest.clamp(bounds.0, bounds.1)),
            };
            if let Some(goals) = goals.take() {
                let mut other = state.clone();
                if self.choose(&mut other, &[&goals]).is_some() {
                    self.alternatives.push(other);
                }
            }
            state.found.cover(node);
            at = self.place(node, x);
            goals = Some([(of, at), (low, Place::Number(bounds.0)), (high, Place::Number(bounds.1))]);
        }
        self.choose(state, &[&goals?])
    }

    /// Whether a pattern may match here: a test of the last node or instruction alone.
    fn fits(&self, pattern: &Pattern, place: Place) -> bool {
        match &*pattern.0 {
            Shape::Any(_) | Shape::Through(..) => value(place).is_some(),
            Shape::Number(_) | Shape::Constant(_) => self.number(place).is_some(),
            Shape::Holds(_) => true,
            Shape::Both(all) => all.iter().all(|pattern| self.fits(pattern, place)),
            Shape::Either(all) => all.iter().any(|pattern| self.fits(pattern, place)),
            Shape::Unary(f, _) => matches!(self.instr(place), Some((_, Instr::Unary(g, _))) if *f == g),
            Shape::Binary(f, ..) => matches!(self.instr(place), Some((_, Instr::Binary(g, ..))) if *f == g),
            Shape::Clamp(_) => matches!(self.instr(place), Some((_, Instr::Clamp { .. }))),
            Shape::Node { test, result, .. } => value(place).is_some_and(|value| {
                self.graph.producer(value).is_some_and(|node| {
                    self.graph.node(node).outputs().get(*result) == Some(&value)
                        && test.passes(self.graph, node)
                })
            }),
        }
    }

    /// The elementwise node and the instruction that compute what is here.
    fn instr(&self, place: Place) -> Option<(NodeId, Instr)> {
        match place {
            Place::Value(value) => {
                let (node, Pointwise(expression)) = producer_as(self.graph, value)?;
                Some((node, *expression.instrs.last()?))
            }
            Place::Register(node, at) => Some((node, self.expression(node)?.instrs[at])),
            Place::Number(_) => None,
        }
    }

    fn expression(&self, node: NodeId) -> Option<&'g Expression> {
        as_op::<Pointwise>(self.graph, node).map(|Pointwise(expression)| expression)
    }

    /// The place of a register of an elementwise node.
    fn place(&self, node: NodeId, register: usize) -> Place {
        match self.expression(node).map(|e| e.instrs[register]) {
            Some(Instr::Input(n)) => Place::Value(self.graph.node(node).inputs()[n]),
            Some(Instr::Const(number)) => Place::Number(number),
            _ => Place::Register(node, register),
        }
    }

    /// The number that a constant with one element holds.
    fn number(&self, place: Place) -> Option<f32> {
        match place {
            Place::Number(number) => Some(number),
            Place::Register(..) => None,
            Place::Value(value) => {
                let is_reshape: NodeTest = |graph, node| as_op::<Reshape>(graph, node).is_some();
                let floats = self.graph.floats(self.before_chain(value, is_reshape))?;
                if let &[number] = floats { Some(number) } else { None }
            }
        }
    }

    /// The value before a chain of nodes that pass a test.
    fn before_chain(&self, mut value: ValueId, test: NodeTest) -> ValueId {
        for _ in 0..MAX_CHAIN {
            let node = self.graph.producer(value).filter(|&node| test(self.graph, node));
            match node.and_then(|node| self.graph.node(node).inputs().first()) {
                Some(&before) => value = before,
                None => break,
            }
        }
        value
    }
}

fn value(place: Place) -> Option<ValueId> {
    if let Place::Value(value) = place { Some(value) } else { None }
}
