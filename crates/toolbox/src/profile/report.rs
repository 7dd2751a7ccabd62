//! Reports the time of a profile by operator and by instruction.

use super::{Profile, Span};
use crate::delegates::NodeKinds;
use crate::input::type_text;
use crate::show::{count, line, name, table};
use pteron_format::pte::{self, Instruction};
use pteron_operator::KernelRegistry;
use pteron_runtime::{AsWritten, Program};
use pteron_tensor::ScalarType;
use pteron_trace::{Place, SpanKind};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;

/// The profile of a method. Times are in microseconds; those of runs, operators and steps are the mean of all runs.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub method: String,
    /// The number of runs.
    pub runs: usize,
    /// The time to load the method, preparation included.
    pub load_us: f64,
    /// The time to prepare kernels and to lower regions, in loading and in all recorded runs.
    pub prepare_us: f64,
    /// The time of a run, without setting the inputs.
    pub run_us: f64,
    /// The time of the fastest run.
    pub fastest_run_us: f64,
    /// The part of the time of a run that is spent outside operators and delegates.
    pub outside_us: f64,
    /// The operators, by descending time.
    pub operators: Vec<OperatorTime>,
    /// The steps, in execution order.
    pub steps: Vec<StepTime>,
    /// Sentences about instructions that run unprepared, because preparing them would exceed the memory limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub as_written: Vec<String>,
}

/// The calls of one operator.
#[derive(Debug, Clone, Serialize)]
pub struct OperatorTime {
    /// The operator, the kind of fused step, or the backend.
    pub name: String,
    /// The number of calls per run.
    pub calls: f64,
    /// The time of all calls of a run.
    pub total_us: f64,
    /// Percentage of the run's time that the operator takes.
    pub share: f64,
}

/// One step of a run: an instruction, or a fused step.
#[derive(Debug, Clone, Serialize)]
pub struct StepTime {
    /// The chain and instruction whose result the step computes, if there is one.
    pub place: Option<(u32, u32)>,
    /// If the instruction calls a delegate, the payload's node whose result the step computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Whether a delegate reported the step. The time of the delegate call before it then includes the step's time.
    #[serde(skip_serializing_if = "is_false")]
    pub in_delegate: bool,
    /// The operator, the kind of fused step, or the backend.
    pub name: String,
    /// The operator of the instruction, if it differs from the step's name.
    pub instruction: Option<String>,
    /// The types of the instruction's input and output tensors, with the sizes in the file, if they are known.
    pub shapes: Option<String>,
    /// The nodes of the source program behind a step of a delegate, with their lines and modules, if the program was
    /// compiled with source frames and the step's name or node is a debug handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The number of executions per run.
    pub calls: f64,
    /// The time of all executions of the step in a run.
    pub total_us: f64,
    /// Percentage of the run's time that the step takes.
    pub share: f64,
}

impl Profile {
    /// Aggregates the recorded spans.
    pub fn report(&self, program: &Program, kernels: &KernelRegistry, nodes: &NodeKinds) -> Report {
        let us = |ns: u64| ns as f64 / 1e3;
        let all = || self.recording.blocks.iter().flat_map(|b| &b.spans);
        let of = |kind: SpanKind| all().filter(move |s| s.kind == kind);
        let total = |kind: SpanKind| us(of(kind).map(Span::nanoseconds).sum());
        let runs = of(SpanKind::Execute).count().max(1);
        let run_us = total(SpanKind::Execute) / runs as f64;
        let share = |us: f64| if run_us > 0.0 { 100.0 * us / run_us } else { 0.0 };

        let mut operators: Vec<OperatorTime> = Vec::new();
        let mut steps: Vec<StepTime> = Vec::new();
        let (mut by_name, mut by_step) = (HashMap::new(), HashMap::new());
        let mut inside = 0.0;
        for block in self.recording.blocks.iter().filter(|b| b.name == "Execute") {
            let mut nameless = 0;
            for span in spans_in_call_order(&block.spans) {
                let time = us(span.nanoseconds());
                let in_delegate = span.kind == SpanKind::DelegateStep;
                // Steps without an instruction are identified by their order in the run.
                let order = if span.place == Place::default() { nameless + 1 } else { 0 };
                nameless += usize::from(order > 0);
                let key = (span.place, &*span.name, order, in_delegate);
                let at = *by_step.entry(key).or_insert_with(|| {
                    steps.push(step_time(program, &self.method, kernels, nodes, span));
                    steps.len() - 1
                });
                steps[at].calls += 1.0;
                steps[at].total_us += time;
                if in_delegate {
                    continue;
                }
                inside += time;
                let at = *by_name.entry(&*span.name).or_insert_with(|| {
                    operators.push(OperatorTime {
                        name: span.name.to_string(),
                        calls: 0.0,
                        total_us: 0.0,
                        share: 0.0,
                    });
                    operators.len() - 1
                });
                operators[at].calls += 1.0;
                operators[at].total_us += time;
            }
        }
        // Sums are divided once: a sum of quotients would round calls to fractions.
        let count = runs as f64;
        for o in &mut operators {
            (o.calls, o.total_us) = (o.calls / count, o.total_us / count);
            o.share = share(o.total_us);
        }
        for s in &mut steps {
            (s.calls, s.total_us) = (s.calls / count, s.total_us / count);
            s.share = share(s.total_us);
        }
        operators.sort_by(|a, b| b.total_us.total_cmp(&a.total_us).then_with(|| a.name.cmp(&b.name)));
        let fastest = of(SpanKind::Execute).map(Span::nanoseconds).min().unwrap_or(0);
        Report {
            method: self.method.clone(),
            runs,
            load_us: total(SpanKind::LoadMethod),
            prepare_us: total(SpanKind::Prepare),
            run_us,
            fastest_run_us: us(fastest),
            outside_us: (run_us - inside / count).max(0.0),
            operators,
            steps,
            as_written: self.as_written.iter().map(as_written_text).collect(),
        }
    }
}

/// The spans of kernels and delegates in the order in which they ended, each followed by the steps that the delegate
/// reported during the call; they ended before it.
fn spans_in_call_order(spans: &[Span]) -> Vec<&Span> {
    let mut ordered = Vec::new();
    let mut steps: HashMap<(Option<u32>, Option<u32>), Vec<&Span>> = HashMap::new();
    for span in spans {
        let call = (span.place.chain, span.place.instruction);
        match span.kind {
            SpanKind::DelegateStep => steps.entry(call).or_default().push(span),
            SpanKind::Kernel => ordered.push(span),
            SpanKind::Delegate => {
                ordered.push(span);
                ordered.extend(steps.remove(&call).into_iter().flatten());
            }
            _ => {}
        }
    }
    ordered
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

/// A sentence about instructions that run as they are written.
fn as_written_text(noted: &AsWritten) -> String {
    let AsWritten { chain, instructions, reason } = noted;
    let chain = if *chain == 0 { String::new() } else { format!("{chain}:") };
    let last = instructions.end.saturating_sub(1);
    let which = match instructions.len() {
        1 => format!("instruction {chain}{last} runs"),
        _ => format!("instructions {chain}{} to {chain}{last} run", instructions.start),
    };
    format!("{which} as written, with weights that are not packed: {reason}")
}

fn step_time(
    program: &Program,
    method: &str,
    kernels: &KernelRegistry,
    nodes: &NodeKinds,
    span: &Span,
) -> StepTime {
    let place = span.place.chain.zip(span.place.instruction);
    let named = place.and_then(|(c, i)| instruction_summary(program, method, kernels, c, i));
    let is_step = span.kind == SpanKind::DelegateStep;
    let (operator, shapes) = match nodes.text(span.place) {
        // The delegate call is listed above its steps, so its name is not repeated.
        node if is_step => (node, None),
        Some(node) => (named.map(|(delegate, _)| format!("{delegate}, {node}")), None),
        None => named.unzip(),
    };
    StepTime {
        place,
        node: span.place.node,
        in_delegate: span.kind == SpanKind::DelegateStep,
        name: span.name.to_string(),
        instruction: operator.filter(|o| !o.ends_with(&*span.name)),
        shapes,
        source: nodes.source(span.place, &span.name),
        calls: 0.0,
        total_us: 0.0,
        share: 0.0,
    }
}

/// The operator or delegate that an instruction calls, and the types of its input and output tensors.
fn instruction_summary(
    program: &Program,
    method: &str,
    kernels: &KernelRegistry,
    chain: u32,
    index: u32,
) -> Option<(String, String)> {
    let plan = program.method_meta(method).ok()?.plan();
    let called = plan.chains.get(chain as usize)?.instructions.get(index as usize)?;
    let (name, args) = match called {
        Instruction::KernelCall { op_index, args } => {
            (plan.operators.get(*op_index as usize)?.full_name(), args)
        }
        Instruction::DelegateCall { delegate_index, args } => {
            let backend = &plan.delegates.get(*delegate_index as usize)?.id;
            (format!("delegate {delegate_index} of {backend}"), args)
        }
        _ => return None,
    };
    let kernel = kernels.get(&name);
    let written =
        |i: usize| kernel.as_ref().is_some_and(|k| k.schema().args.get(i).is_some_and(|a| a.written));
    // Values after the schema's arguments repeat outputs that are among the arguments already.
    let declared = kernel.as_ref().map_or(args.len(), |k| k.schema().args.len());
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for (i, &arg) in args.iter().take(declared).enumerate() {
        let side = if written(i) { &mut outputs } else { &mut inputs };
        match plan.values.get(arg as usize) {
            Some(pte::EValue::Tensor(t)) => side.extend(shape_text(t)),
            Some(pte::EValue::TensorList(ids)) => {
                let tensors = ids.iter().filter_map(|&id| plan.values.get(id as usize)?.as_tensor());
                side.extend(tensors.filter_map(shape_text));
            }
            _ => {}
        }
    }
    let shapes = match (inputs.is_empty(), outputs.is_empty()) {
        (_, true) => inputs.join(", "),
        (true, false) => format!("-> {}", outputs.join(", ")),
        _ => format!("{} -> {}", inputs.join(", "), outputs.join(", ")),
    };
    Some((name, shapes))
}

fn shape_text(t: &pte::Tensor) -> Option<String> {
    let sizes: Vec<usize> = t.sizes.iter().map(|&s| usize::try_from(s).unwrap_or(0)).collect();
    Some(type_text(ScalarType::from_i8(t.scalar_type).ok()?, &sizes))
}

impl Report {
    /// The report as text; with `steps`, it lists every step with its shapes.
    pub fn text(&self, steps: bool) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{}: {}, {} each, the fastest {}; loaded in {}, {} of it preparing",
            name(&self.method),
            count(self.runs, "run"),
            time_text(self.run_us),
            time_text(self.fastest_run_us),
            time_text(self.load_us),
            time_text(self.prepare_us),
        );
        let mut rows = vec![["operator", "calls", "total", "share", "a call"].map(str::to_owned).to_vec()];
        for o in &self.operators {
            let mean = o.total_us / o.calls;
            rows.push(vec![
                o.name.clone(),
                calls_text(o.calls),
                time_text(o.total_us),
                percent_text(o.share),
                time_text(mean),
            ]);
        }
        let outside = if self.run_us > 0.0 { 100.0 * self.outside_us / self.run_us } else { 0.0 };
        rows.push(vec![
            "(between)".to_owned(),
            String::new(),
            time_text(self.outside_us),
            percent_text(outside),
        ]);
        let _ = write!(out, "\n{}", table(rows, "<>>>>", 0));
        self.as_written.iter().for_each(|noted| _ = writeln!(out, "\n{}", line(noted)));
        if !steps {
            return out;
        }
        let mut rows = vec![["at", "step", "calls", "total", "share", "shapes"].map(str::to_owned).to_vec()];
        for s in &self.steps {
            let mut at = match s.place {
                None => "-".to_owned(),
                Some((0, i)) => i.to_string(),
                Some((c, i)) => format!("{c}:{i}"),
            };
            s.node.iter().for_each(|node| _ = write!(at, ".{node}"));
            let indent = if s.in_delegate { "  " } else { "" };
            let name = match &s.instruction {
                Some(operator) => format!("{indent}{} ({operator})", s.name),
                None => format!("{indent}{}", s.name),
            };
            let shapes = s.shapes.as_ref().or(s.source.as_ref()).cloned().unwrap_or_default();
            rows.push(vec![
                at,
                name,
                calls_text(s.calls),
                time_text(s.total_us),
                percent_text(s.share),
                shapes,
            ]);
        }
        let _ = write!(out, "\n{}", table(rows, "><>>><", 0));
        out
    }
}

/// Formats calls per run: an integer unless runs differ.
pub(super) fn calls_text(n: f64) -> String {
    if (n - n.round()).abs() < 1e-6 { format!("{}", n.round()) } else { format!("{n:.1}") }
}

/// Formats a time in microseconds with a suitable unit.
pub fn time_text(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.2} µs"),
        us if us < 1e6 => format!("{:.3} ms", us / 1e3),
        us => format!("{:.3} s", us / 1e6),
    }
}

pub(super) fn percent_text(share: f64) -> String {
    format!("{share:.1} %")
}
