use crate::dataflow;
use crate::kernel::{Effect, Kernel, PlainKernel, PlainOperands, Site};
use crate::value::Value;
use std::sync::Arc;

/// Indices into one of a body's tables.
#[derive(Clone, Copy, Default)]
pub(crate) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Where `items` will stand in `table` once they are appended, which this does.
    fn append(table: &mut Vec<u32>, items: impl IntoIterator<Item = u32>) -> Self {
        let start = table.len();
        table.extend(items);
        Self { start: start as u32, len: (table.len() - start) as u32 }
    }

    #[inline(always)]
    pub(crate) fn of(self, table: &[u32]) -> &[u32] {
        &table[self.start as usize..][..self.len as usize]
    }
}

/// A kernel of a body.
pub(crate) struct Node {
    pub(crate) kernel: Arc<dyn Kernel>,
    /// Arguments, then results.
    operands: Span,
    arguments: u32,
    pub(crate) stream: u32,
    pub(crate) effect: Effect,
    /// Kernels in the order in which this one's end counts for them: users of its results, then
    /// `successors`.
    arrivals: Span,
    /// Registers that hold nothing useful after this kernel has run.
    retired: Span,
    /// Kernels that wait for this one without using its results.
    successors: Span,
}

/// The call of a kernel on the registers themselves, if it can be called so.
pub(crate) struct PlainCall {
    kernel: Option<PlainKernel>,
    operands: PlainOperands,
}

impl PlainCall {
    fn new(node: &NodeParts) -> Self {
        let mut operands = PlainOperands::default();
        let given = node.arguments.iter().chain(&node.results);
        let fits = node.arguments.len() + node.results.len() <= operands.len();
        operands.iter_mut().zip(given).for_each(|(operand, &register)| *operand = register);
        let plain = || Arc::clone(&node.kernel).plain(node.arguments.len(), node.results.len());
        Self { kernel: fits.then(plain).flatten(), operands }
    }

    /// Runs the kernel, if its operands are such. False if they are not: then nothing has happened.
    #[inline(always)]
    pub(crate) fn run(&self, registers: &mut [Value]) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.run(registers, &self.operands))
    }
}

/// What the executor knows of a register.
#[derive(Clone, Copy, Default)]
pub(crate) struct Register {
    /// Kernels that use it, in the order in which they become ready; once for every use.
    users: Span,
    /// Uses, returning it included.
    pub(crate) uses: u32,
    /// Whether it is returned.
    pub(crate) returned: bool,
    /// The stream of the kernel that sets it.
    pub(crate) stream: u32,
}

/// The kernels of a function and who uses what: checked, so that executors can rely on it. Every
/// register is set by one kernel, or is an argument; kernels use what earlier kernels set.
pub(crate) struct Body {
    pub(crate) nodes: Box<[Node]>,
    /// Of each kernel.
    pub(crate) plain: Box<[PlainCall]>,
    pub(crate) sites: Box<[Site]>,
    table: Box<[u32]>,
    pub(crate) registers: Box<[Register]>,
    /// Uses of each register, and then the operands and predecessors that each kernel waits for, at
    /// least one.
    pub(crate) counts: Box<[u32]>,
    /// Kernels that wait for nothing.
    start: Span,
    /// Kernels that wait for nothing, and then the users of the arguments.
    begin: Span,
    pub(crate) arguments: usize,
    pub(crate) results: Box<[u32]>,
    pub(crate) root_stream: u32,
    /// Kernels in the order in which one thread runs them before it makes tasks of others, as long as all
    /// results are available: [`dataflow::schedule`].
    pub(crate) schedule: Box<[u32]>,
}

/// A kernel before it is checked.
pub(crate) struct NodeParts {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) site: Site,
    pub(crate) arguments: Vec<u32>,
    pub(crate) results: Vec<u32>,
    /// Kernels that must have run before.
    pub(crate) after: Vec<u32>,
    pub(crate) stream: u32,
    pub(crate) effect: Effect,
}

/// A body before it is checked.
#[derive(Default)]
pub(crate) struct BodyParts {
    pub(crate) arguments: u32,
    pub(crate) registers: u32,
    pub(crate) nodes: Vec<NodeParts>,
    pub(crate) results: Vec<u32>,
    pub(crate) root_stream: u32,
    /// Users of each register, and kernels that wait for nothing, in the order in which they become
    /// ready. Without it: last kernel first, so that a stack of ready kernels runs in program order.
    pub(crate) order: Option<Order>,
}

/// See [`BodyParts::order`].
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) start: Vec<u32>,
    pub(crate) users: Vec<Vec<u32>>,
}

impl Body {
    /// Kernels, and registers, of a body at most.
    const MOST: usize = 1 << 31;

    /// Checks a body and lays it out.
    pub(crate) fn new(parts: BodyParts) -> Result<Self, String> {
        let uses = Uses::count(&parts)?;
        let order = match parts.order {
            Some(order) => uses.check(order)?,
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
            })
            .collect();
        for &result in &parts.results {
            let register = &mut registers[result as usize];
            register.uses += 1;
            register.returned = true;
        }
        for node in &parts.nodes {
            node.results.iter().for_each(|&r| registers[r as usize].stream = node.stream);
        }
        let retired = retired(&parts.nodes, &registers);
        let users = |registers: &[u32]| -> Vec<u32> {
            registers.iter().flat_map(|&r| &order.users[r as usize]).copied().collect()
        };
        let arguments: Vec<u32> = (0..parts.arguments).collect();
        let start = Span::append(&mut table, order.start.iter().copied());
        let begin = Span::append(&mut table, order.start.iter().copied().chain(users(&arguments)));
        let mut successors = vec![Vec::new(); parts.nodes.len()];
        for (i, node) in parts.nodes.iter().enumerate().rev() {
            node.after.iter().for_each(|&a| successors[a as usize].push(i as u32));
        }
        let mut nodes = Vec::with_capacity(parts.nodes.len());
        let mut sites = Vec::with_capacity(parts.nodes.len());
        let plain = parts.nodes.iter().map(PlainCall::new).collect();
        for (i, node) in parts.nodes.into_iter().enumerate() {
            let arrivals = users(&node.results).into_iter().chain(successors[i].iter().copied());
            nodes.push(Node {
                kernel: node.kernel,
                arguments: node.arguments.len() as u32,
                arrivals: Span::append(&mut table, arrivals),
                operands: Span::append(&mut table, node.arguments.into_iter().chain(node.results)),
                stream: node.stream,
                effect: node.effect,
                retired: Span::append(&mut table, retired[i].iter().copied()),
                successors: Span::append(&mut table, successors[i].iter().copied()),
            });
            sites.push(node.site);
        }
        if u32::try_from(table.len()).is_err() || nodes.len().max(registers.len()) > Self::MOST {
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
            start,
            begin,
            arguments: parts.arguments as usize,
            results: parts.results.into(),
            root_stream: parts.root_stream,
            schedule: Box::default(),
        };
        body.schedule = dataflow::schedule(&body);
        Ok(body)
    }

    /// The registers of a kernel: arguments, and results.
    #[inline(always)]
    pub(crate) fn operands(&self, node: &Node) -> (&[u32], &[u32]) {
        node.operands.of(&self.table).split_at(node.arguments as usize)
    }

    /// Kernels for which a kernel's end counts, if all its results are there: users of the results, then
    /// those that wait for it without using its results.
    #[inline(always)]
    pub(crate) fn arrivals(&self, node: &Node) -> &[u32] {
        node.arrivals.of(&self.table)
    }

    /// Kernels that can begin, if all arguments are there: those that wait for nothing, then the users of
    /// the arguments.
    #[inline(always)]
    pub(crate) fn begin(&self) -> &[u32] {
        self.begin.of(&self.table)
    }

    /// Registers that hold nothing useful after a kernel.
    #[inline(always)]
    pub(crate) fn retired(&self, node: &Node) -> &[u32] {
        node.retired.of(&self.table)
    }

    /// Kernels that wait for a kernel without using its results.
    #[inline(always)]
    pub(crate) fn successors(&self, node: &Node) -> &[u32] {
        node.successors.of(&self.table)
    }

    /// Kernels that use a register.
    #[inline(always)]
    pub(crate) fn users(&self, register: u32) -> &[u32] {
        self.registers[register as usize].users.of(&self.table)
    }

    /// Kernels that wait for nothing.
    pub(crate) fn start(&self) -> &[u32] {
        self.start.of(&self.table)
    }
}

/// Who uses what, as the kernels' arguments say.
struct Uses {
    users: Vec<Vec<u32>>,
    start: Vec<u32>,
    ready: Vec<u32>,
}

impl Uses {
    /// Counts uses, and checks that registers are set once and before they are used.
    fn count(parts: &BodyParts) -> Result<Self, String> {
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

    /// Checks that an order names the same kernels.
    fn check(&self, order: Order) -> Result<Order, String> {
        let same = |a: &[u32], b: &[u32]| {
            a.len() == b.len() && {
                let (mut a, mut b) = (a.to_vec(), b.to_vec());
                a.sort_unstable();
                b.sort_unstable();
                a == b
            }
        };
        if !same(&order.start, &self.start) {
            return Err("the kernels without operands are not those that the function starts with".into());
        }
        for (r, users) in self.users.iter().enumerate() {
            if !order.users.get(r).is_some_and(|u| same(u, users)) {
                return Err(format!("the users of register {r} are not those that its list names"));
            }
        }
        Ok(order)
    }
}

/// For each kernel of an execution in order, the registers that no later kernel uses and nobody
/// returns.
fn retired(nodes: &[NodeParts], registers: &[Register]) -> Vec<Vec<u32>> {
    let mut seen: Vec<bool> = registers.iter().map(|r| r.returned).collect();
    let mut retired = vec![Vec::new(); nodes.len()];
    for (i, node) in nodes.iter().enumerate().rev() {
        for &r in node.arguments.iter().chain(&node.results) {
            if !std::mem::replace(&mut seen[r as usize], true) {
                retired[i].push(r);
            }
        }
    }
    retired
}
