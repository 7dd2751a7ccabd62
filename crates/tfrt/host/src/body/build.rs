//! Checks the kernels of a function and builds their tables.

use super::{Body, Node, PlainCall, Register, Span};
use crate::dataflow;
use crate::frame::Site;
use crate::kernel::{Effect, Kernel, PlainOperands};
use std::sync::Arc;

/// A kernel call of a function that is being built, not checked yet.
pub(crate) struct NodeParts {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) site: Site,
    pub(crate) arguments: Vec<u32>,
    pub(crate) results: Vec<u32>,
    /// Indices of the kernels that must run before this one although it uses none of their results.
    pub(crate) after: Vec<u32>,
    pub(crate) stream: u32,
    pub(crate) effect: Effect,
}

/// The kernels, registers and results of a function that is being built, not checked yet.
#[derive(Default)]
pub(crate) struct BodyParts {
    pub(crate) arguments: u32,
    pub(crate) registers: u32,
    pub(crate) nodes: Vec<NodeParts>,
    pub(crate) results: Vec<u32>,
    pub(crate) root_stream: u32,
    /// Users of each register, and kernels that start the function, in the order in which they become ready. If absent,
    /// the last kernel comes first, so that popping a stack of ready kernels gives program order.
    pub(crate) order: Option<Order>,
}

/// The order in which kernels become ready: see [`BodyParts::order`].
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) start: Vec<u32>,
    pub(crate) users: Vec<Vec<u32>>,
}

impl PlainCall {
    fn new(node: &NodeParts) -> Self {
        let mut operands = PlainOperands::default();
        let registers = node.arguments.iter().chain(&node.results);
        let fits = node.arguments.len() + node.results.len() <= operands.len();
        operands.iter_mut().zip(registers).for_each(|(operand, &register)| *operand = register);
        let plain = || Arc::clone(&node.kernel).as_plain_kernel(node.arguments.len(), node.results.len());
        Self { kernel: fits.then(plain).flatten(), operands }
    }
}

impl Body {
    /// Maximum number of kernels of a function, and maximum number of its registers.
    const MAX_LEN: usize = 1 << 31;

    /// Checks a body and builds its tables.
    pub(crate) fn new(parts: BodyParts) -> Result<Self, String> {
        let uses = Uses::collect(&parts)?;
        let order = match parts.order {
            Some(order) => uses.check_order(order)?,
            None => Order { start: uses.start, users: uses.users },
        };
        let mut table = Vec::new();
        let mut registers: Vec<Register> = order
            .users
            .iter()
            .map(|users| Register {
                users: Span::append(&mut table, users.iter().copied()),
                uses: users.len() as u32,
                returned: false,
                stream: parts.root_stream,
                setter: Register::ARGUMENT,
            })
            .collect();
        for &result in &parts.results {
            let register = &mut registers[result as usize];
            register.uses += 1;
            register.returned = true;
        }
        for (i, node) in (0u32..).zip(&parts.nodes) {
            for &r in &node.results {
                let register = &mut registers[r as usize];
                (register.stream, register.setter) = (node.stream, i);
            }
        }
        let dead_after = dead_after(&parts.nodes, &registers);
        let users = |registers: &[u32]| -> Vec<u32> {
            registers.iter().flat_map(|&r| &order.users[r as usize]).copied().collect()
        };
        let arguments: Vec<u32> = (0..parts.arguments).collect();
        let root_kernels = Span::append(&mut table, order.start.iter().copied());
        let initial_dependents =
            Span::append(&mut table, order.start.iter().copied().chain(users(&arguments)));
        let mut successors = vec![Vec::new(); parts.nodes.len()];
        for (i, node) in parts.nodes.iter().enumerate().rev() {
            node.after.iter().for_each(|&a| successors[a as usize].push(i as u32));
        }
        let mut nodes = Vec::with_capacity(parts.nodes.len());
        let mut sites = Vec::with_capacity(parts.nodes.len());
        let plain = parts.nodes.iter().map(PlainCall::new).collect();
        for (i, node) in parts.nodes.into_iter().enumerate() {
            let dependents = users(&node.results).into_iter().chain(successors[i].iter().copied());
            nodes.push(Node {
                kernel: node.kernel,
                arguments: node.arguments.len() as u32,
                dependents: Span::append(&mut table, dependents),
                operands: Span::append(&mut table, node.arguments.into_iter().chain(node.results)),
                stream: node.stream,
                effect: node.effect,
                dead_after: Span::append(&mut table, dead_after[i].iter().copied()),
                successors: Span::append(&mut table, successors[i].iter().copied()),
            });
            sites.push(node.site);
        }
        if u32::try_from(table.len()).is_err() || nodes.len().max(registers.len()) > Self::MAX_LEN {
            return Err("it has more than 2^32 operands, or 2^31 kernels or registers".into());
        }
        let counts = registers.iter().map(|r| r.uses).chain(uses.ready).collect();
        let mut body = Self {
            nodes: nodes.into(),
            plain,
            sites: sites.into(),
            table: table.into(),
            registers: registers.into(),
            counts,
            root_kernels,
            initial_dependents,
            arguments: parts.arguments as usize,
            results: parts.results.into(),
            root_stream: parts.root_stream,
            schedule: Box::default(),
        };
        body.schedule = dataflow::schedule(&body);
        Ok(body)
    }
}

/// Def-use edges, computed from the kernels' arguments.
struct Uses {
    users: Vec<Vec<u32>>,
    start: Vec<u32>,
    ready: Vec<u32>,
}

impl Uses {
    /// Collects uses, and checks that each register is set once and before it is used.
    fn collect(parts: &BodyParts) -> Result<Self, String> {
        if parts.arguments > parts.registers {
            return Err(format!("{} arguments, but {} registers", parts.arguments, parts.registers));
        }
        let registers = parts.registers as usize;
        let mut set = vec![false; registers];
        set[..parts.arguments as usize].fill(true);
        let mut users = vec![Vec::new(); registers];
        let mut ready = Vec::with_capacity(parts.nodes.len());
        let mut start = Vec::new();
        for (i, node) in parts.nodes.iter().enumerate() {
            for &a in &node.arguments {
                if !set.get(a as usize).copied().unwrap_or(false) {
                    return Err(format!("kernel {i} uses register {a} before it is set"));
                }
                users[a as usize].push(i as u32);
            }
            for &a in &node.after {
                if a as usize >= i {
                    return Err(format!(
                        "kernel {i} cannot wait for kernel {a}, which does not come before it"
                    ));
                }
            }
            for &r in &node.results {
                match set.get_mut(r as usize) {
                    Some(set) if !*set => *set = true,
                    Some(_) => return Err(format!("kernel {i} sets register {r}, which is set already")),
                    None => return Err(format!("kernel {i} sets register {r} of {registers}")),
                }
            }
            let waits = (node.arguments.len() + node.after.len()) as u32;
            if waits == 0 {
                start.push(i as u32);
            }
            ready.push(waits.max(1));
        }
        if let Some(r) = parts.results.iter().find(|&&r| !set.get(r as usize).copied().unwrap_or(false)) {
            return Err(format!("it returns register {r}, which is never set"));
        }
        users.iter_mut().for_each(|u| u.reverse());
        start.reverse();
        Ok(Self { users, start, ready })
    }

    /// Fails unless `order` lists the kernels without operands and the users of each register completely, in any order.
    fn check_order(&self, order: Order) -> Result<Order, String> {
        let is_permutation = |a: &[u32], b: &[u32]| {
            a.len() == b.len() && {
                let (mut a, mut b) = (a.to_vec(), b.to_vec());
                a.sort_unstable();
                b.sort_unstable();
                a == b
            }
        };
        if !is_permutation(&order.start, &self.start) {
            return Err("the kernels without operands are not those that the function starts with".into());
        }
        for (r, users) in self.users.iter().enumerate() {
            if !order.users.get(r).is_some_and(|u| is_permutation(u, users)) {
                return Err(format!("the users of register {r} are not those that its list names"));
            }
        }
        Ok(order)
    }
}

/// For each kernel, the registers that are dead after it in program order: no later kernel uses them and the function
/// does not return them.
fn dead_after(nodes: &[NodeParts], registers: &[Register]) -> Vec<Vec<u32>> {
    let mut live: Vec<bool> = registers.iter().map(|r| r.returned).collect();
    let mut dead_after = vec![Vec::new(); nodes.len()];
    for (i, node) in nodes.iter().enumerate().rev() {
        for &r in node.arguments.iter().chain(&node.results) {
            if !std::mem::replace(&mut live[r as usize], true) {
                dead_after[i].push(r);
            }
        }
    }
    dead_after
}
