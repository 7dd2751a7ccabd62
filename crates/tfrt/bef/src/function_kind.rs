/// How a function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FunctionKind {
    /// Kernels run as soon as their operands are available.
    Async = 0,
    /// No body in the file: the executor looks the function up by name in its registry.
    Native = 1,
    /// Kernels run in file order.
    Sync = 2,
}

impl FunctionKind {
    /// The function kind with this number in the format; `None` if the format does not define the number.
    pub fn new(number: u8) -> Option<Self> {
        [FunctionKind::Async, FunctionKind::Native, FunctionKind::Sync].get(usize::from(number)).copied()
    }
}
