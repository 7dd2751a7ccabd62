//! The payload: what the accelerator computes.
//!
//! Numbers are little-endian `u32`. The words of a payload are the magic, the version, the number of inputs, of instructions and
//! of outputs; four words for each instruction: opcode, debug handle, and two operands; a value for each output; and for each
//! weight the number of its rows and columns, the length of its key and the key, padded to a whole word. Values are numbered:
//! inputs first, then the results of the instructions.

/// The first word: `ACCL`.
const MAGIC: u32 = u32::from_le_bytes(*b"ACCL");
const VERSION: u32 = 1;
/// The maximum of each count in a payload (inputs, instructions, outputs, ...); a payload with more is rejected.
const MAX_ITEMS: u32 = 1 << 16;

/// An operation; `Linear` has a weight as second operand, `Relu` and `Hardswish` have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    Linear = 1,
    Relu,
    Hardswish,
    Add,
    Mul,
}

impl Opcode {
    /// The operation that computes one of PyTorch's operators; `None` if there is none.
    pub(crate) fn of(target: &str) -> Option<Self> {
        Some(match target {
            "aten.linear.default" => Self::Linear,
            "aten.relu.default" => Self::Relu,
            "aten.hardswish.default" => Self::Hardswish,
            "aten.add.Tensor" => Self::Add,
            "aten.mul.Tensor" => Self::Mul,
            _ => return None,
        })
    }

    /// The PyTorch operator that the operation computes.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Linear => "aten.linear.default",
            Self::Relu => "aten.relu.default",
            Self::Hardswish => "aten.hardswish.default",
            Self::Add => "aten.add.Tensor",
            Self::Mul => "aten.mul.Tensor",
        }
    }

    fn read(word: u32) -> Option<Self> {
        let all = [Self::Linear, Self::Relu, Self::Hardswish, Self::Add, Self::Mul];
        all.into_iter().find(|&opcode| opcode as u32 == word)
    }
}

/// An operation on values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) opcode: Opcode,
    /// The debug handle: the node of the source program that the instruction computes.
    pub(crate) handle: u32,
    /// The number of the value that is the first operand.
    pub(crate) a: u32,
    /// The number of the value or the index of the weight that is the second operand; 0 if there is none.
    pub(crate) b: u32,
}

/// A weight in the named data: a matrix of `rows` by `columns` elements, followed by a bias of `rows` elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) key: String,
}

/// A payload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Payload {
    pub(crate) num_inputs: u32,
    pub(crate) instructions: Vec<Instruction>,
    /// The number of the value of each output.
    pub(crate) outputs: Vec<u32>,
    pub(crate) weights: Vec<Weight>,
}

impl Payload {
    /// The payload as bytes.
    pub(crate) fn write(&self) -> Vec<u8> {
        let counts = [self.num_inputs, self.instructions.len() as u32, self.outputs.len() as u32];
        let mut words = vec![MAGIC, VERSION];
        words.extend(counts);
        words.extend(self.instructions.iter().flat_map(|i| [i.opcode as u32, i.handle, i.a, i.b]));
        words.extend(&self.outputs);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for weight in &self.weights {
            for word in [weight.rows, weight.columns, weight.key.len() as u32] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(weight.key.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    /// Reads a payload. Every operand is defined before it is used, every weight and output exists.
    ///
    /// # Errors
    /// What is wrong, and at which byte.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut from = Reader { bytes, at: 0 };
        if from.word()? != MAGIC {
            return Err("it does not begin with `ACCL`".to_owned());
        }
        match from.word()? {
            VERSION => {}
            other => return Err(format!("its version is {other}; this backend reads {VERSION}")),
        }
        let (num_inputs, instructions, outputs) = (from.count()?, from.count()?, from.count()?);
        let mut payload = Self { num_inputs, ..Self::default() };
        for index in 0..instructions {
            let defined = num_inputs + index;
            let opcode = from.word()?;
            let opcode = Opcode::read(opcode).ok_or_else(|| from.wrong(format!("no operation {opcode}")))?;
            let (handle, a, b) = (from.word()?, from.below(defined)?, from.word()?);
            if matches!(opcode, Opcode::Add | Opcode::Mul) && b >= defined {
                return Err(from.wrong(format!("value {b}, of {defined}")));
            }
            payload.instructions.push(Instruction { opcode, handle, a, b });
        }
        for _ in 0..outputs {
            payload.outputs.push(from.below(num_inputs + instructions)?);
        }
        while from.at < bytes.len() {
            let (rows, columns, len) = (from.word()?, from.word()?, from.count()?);
            let key = from.take(len.next_multiple_of(4) as usize)?;
            let key =
                std::str::from_utf8(&key[..len as usize]).map_err(|_| from.wrong("a key that is no text"))?;
            payload.weights.push(Weight { rows, columns, key: key.to_owned() });
        }
        let weights = payload.weights.len() as u32;
        let linear = |i: &&Instruction| i.opcode == Opcode::Linear;
        match payload.instructions.iter().filter(linear).find(|i| i.b >= weights) {
            Some(i) => Err(format!("weight {} of {weights}", i.b)),
            None => Ok(payload),
        }
    }
}

/// Reads words.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn wrong(&self, what: impl Into<String>) -> String {
        format!("{} before byte {} of the payload", what.into(), self.at)
    }

    fn take(&mut self, len: usize) -> Result<&'b [u8], String> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..len));
        self.at += len;
        taken.ok_or_else(|| self.wrong("the end"))
    }

    fn word(&mut self) -> Result<u32, String> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn below(&mut self, bound: u32) -> Result<u32, String> {
        let word = self.word()?;
        if word < bound { Ok(word) } else { Err(self.wrong(format!("value {word}, of {bound}"))) }
    }

    fn count(&mut self) -> Result<u32, String> {
        self.below(MAX_ITEMS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload() -> Payload {
        let instruction = |opcode, a, b| Instruction { opcode, handle: 7, a, b };
        Payload {
            num_inputs: 1,
            instructions: vec![
                instruction(Opcode::Linear, 0, 0),
                instruction(Opcode::Relu, 1, 0),
                instruction(Opcode::Add, 1, 2),
            ],
            outputs: vec![3],
            weights: vec![Weight { rows: 2, columns: 3, key: "w.1".to_owned() }],
        }
    }

    #[test]
    fn a_payload_is_read_as_it_was_written() {
        assert_eq!(Payload::read(&payload().write()), Ok(payload()));
    }

    #[test]
    fn damaged_payloads_are_refused_or_read_whole() {
        let bytes = payload().write();
        for at in 0..bytes.len() {
            assert!(Payload::read(&bytes[..at]).is_err(), "the first {at} bytes");
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let Ok(read) = Payload::read(&bytes) else { continue };
                let values = read.num_inputs + read.instructions.len() as u32;
                assert!(read.outputs.iter().all(|&output| output < values));
                assert!(read.instructions.iter().all(|i| i.a < values));
            }
        }
    }
}
