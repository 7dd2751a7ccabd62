//! Quantized matrix multiplications, convolutions and additions.

use super::Stored;
use super::element::{read_affine, read_i32, read_quantization, write_affine, write_quantization};
use super::image::{read_conv, write_conv};
use super::text::{activation_text, parse_activation};
use crate::error::{Error, Result, fail};
use crate::payload::{Fields, Record};
use pteron_engine::{
    Graph, NodeId, Quantization, QuantizedConvolution, QuantizedInput, QuantizedLinear, QuantizedProduct,
    SumOfQuantized, WeightBits,
};
use pteron_kernels::compute::QuantizedSum;

fn write_output(record: &mut Record, output: Option<&Quantization>) {
    record.flag("quantized", output.is_some());
    if let Some(q) = output {
        write_quantization(record, q);
    }
}

fn read_output(fields: &Fields<'_>) -> Result<Option<Quantization>> {
    if fields.flag("quantized")? { read_quantization(fields).map(Some) } else { Ok(None) }
}

const INPUT: [&str; 2] = ["input_scale", "input_zero"];

fn write_input(record: &mut Record, input: &QuantizedInput) {
    record.text(
        "input",
        match input {
            QuantizedInput::Quantized(_) => "quantized",
            QuantizedInput::ByTensor { .. } => "by_tensor",
            QuantizedInput::ByRow => "by_row",
            QuantizedInput::ByFactorOfRow => "by_factor_of_row",
        },
    );
    match *input {
        QuantizedInput::Quantized(affine) => write_affine(record, INPUT, &affine),
        QuantizedInput::ByTensor { low, high, eps } => {
            record.int("input_low", low.into()).int("input_high", high.into()).float("input_eps", eps);
        }
        QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow => {}
    }
}

fn read_input(fields: &Fields<'_>) -> Result<QuantizedInput> {
    Ok(match fields.text("input")? {
        "quantized" => QuantizedInput::Quantized(read_affine(fields, INPUT)?),
        "by_tensor" => QuantizedInput::ByTensor {
            low: read_i32(fields, "input_low")?,
            high: read_i32(fields, "input_high")?,
            eps: fields.float("input_eps")?,
        },
        "by_row" => QuantizedInput::ByRow,
        "by_factor_of_row" => QuantizedInput::ByFactorOfRow,
        other => return fail(format!("unknown input form `{other}`")),
    })
}

impl Stored for QuantizedLinear {
    const KERNEL: &'static str = "pteron.quantized_linear";

    fn write(&self, record: &mut Record) {
        write_input(record, &self.input);
        record.flag("out_major", self.out_major).flag("four_bits", self.bits == WeightBits::Four);
        record.size("group", self.group).flag("bias", self.bias);
        record.text("activation", activation_text(self.activation));
        write_output(record, self.output.as_ref());
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            input: read_input(fields)?,
            out_major: fields.flag("out_major")?,
            bits: if fields.flag("four_bits")? { WeightBits::Four } else { WeightBits::Eight },
            group: fields.size("group")?,
            bias: fields.flag("bias")?,
            activation: parse_activation(fields.text("activation")?)?,
            output: read_output(fields)?,
        })
    }

    /// Checks that the values of 4-bit weights fit 4 bits.
    fn check_elements(&self, graph: &Graph, node: NodeId) -> Result<()> {
        let weights = graph.node(node).inputs().get(1).and_then(|&weights| graph.view(weights));
        if self.bits == WeightBits::Eight {
            return Ok(());
        }
        // Without bytes there is nothing to check: loading the weights reports what is wrong with them.
        let Some(weights) = weights else { return Ok(()) };
        match weights.storage::<i8>()?.iter().all(|number| (-8..8).contains(number)) {
            true => Ok(()),
            false => fail("4-bit weights are outside of -8..=7"),
        }
    }
}

impl Stored for QuantizedConvolution {
    const KERNEL: &'static str = "pteron.quantized_conv";

    fn write(&self, record: &mut Record) {
        write_conv(&self.conv, record);
        match &self.input {
            QuantizedInput::Quantized(affine) => write_affine(record, INPUT, affine),
            dynamic => write_input(record, dynamic),
        }
        write_output(record, self.output.as_ref());
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        let input = match fields.has("input") {
            true => read_input(fields)?,
            false => QuantizedInput::Quantized(read_affine(fields, INPUT)?),
        };
        Ok(Self { conv: read_conv(fields)?, input, output: read_output(fields)? })
    }
}

impl Stored for QuantizedProduct {
    const KERNEL: &'static str = "pteron.quantized_product";

    fn write(&self, record: &mut Record) {
        write_input(record, &self.left);
        record.float("right_scale", self.right_scale);
        write_output(record, self.output.as_ref());
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            left: read_input(fields)?,
            right_scale: fields.float("right_scale")?,
            output: read_output(fields)?,
        })
    }
}

/// The attribute names of the integer parameters of a sum.
const SUM: [&str; 8] = ["factor_a", "factor_b", "zero_a", "zero_b", "shift", "zero", "low", "high"];

impl Stored for SumOfQuantized {
    const KERNEL: &'static str = "pteron.quantized_sum";

    fn write(&self, record: &mut Record) {
        let QuantizedSum { factors: [fa, fb], zeros: [za, zb], shift, zero, low, high, signed } = self.0;
        let numbers = [fa, fb, za, zb, shift as i32, zero, low, high];
        SUM.iter().zip(numbers).for_each(|(name, number)| {
            record.int(name, number.into());
        });
        record.flag("signed", signed);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        let mut numbers = [0; SUM.len()];
        for (number, name) in numbers.iter_mut().zip(SUM) {
            *number = read_i32(fields, name)?;
        }
        let [fa, fb, za, zb, shift, zero, low, high] = numbers;
        let shift = u32::try_from(shift).ok().filter(|shift| (1..=31).contains(shift));
        let shift = shift.ok_or_else(|| Error::new("the shift is outside of 1..=31"))?;
        let signed = fields.flag("signed")?;
        Ok(Self(QuantizedSum { factors: [fa, fb], zeros: [za, zb], shift, zero, low, high, signed }))
    }
}
