//! Quantized matrix multiplications, convolutions and additions.

use super::element::{affine, int, quantization, write_affine, write_quantization};
use super::image::{check_conv, read_conv, write_conv};
use super::product::product_sizes;
use super::words::{activation, activation_text};
use super::{Operands, Stored};
use crate::error::{Error, Result, fail};
use crate::payload::{Fields, Record};
use graph::{
    Activation, Affine, Quantization, QuantizedConvolution, QuantizedInput, QuantizedLinear, SumOfQuantized,
    WeightBits,
};
use kernels::compute::{PackedWeights, QuantizedConv, QuantizedSum};
use tensor::{ScalarType, TensorMeta};

/// Whether a tensor of quantized values is signed.
fn signed(meta: &TensorMeta) -> Result<bool> {
    match meta.dtype() {
        ScalarType::Char => Ok(true),
        ScalarType::Byte => Ok(false),
        _ => fail(format!("a tensor is {meta}, expected int8 or uint8")),
    }
}

/// Checks that the scale is finite and the zero point is small enough for accumulators of 32 bits.
fn check_affine(affine: &Affine) -> Result<()> {
    match affine.scale.is_finite() && affine.zero.unsigned_abs() < 1 << 16 {
        true => Ok(()),
        false => fail(format!("the scale or zero point of {affine:?} is out of range")),
    }
}

/// Checks that the weights are `i8`, and that there are `scales` scales, or a single one if `one`.
fn check_weights<'g>(operands: &Operands<'g>, scales: usize, one: bool) -> Result<&'g TensorMeta> {
    let (weights, found) = (operands.constant(1)?, operands.constant(2)?);
    if weights.dtype() != ScalarType::Char {
        return fail(format!("the weights are {weights}, expected int8"));
    }
    let fits = found.numel() == scales || one && found.numel() == 1;
    match fits && found.dtype() == ScalarType::Float {
        true => Ok(weights),
        false => fail(format!("the scales are {found}, expected {scales} of float32")),
    }
}

/// Checks the bias, operand 3, if `present`: it is f32, or int32 in the scale of the accumulators.
fn check_bias(operands: &Operands<'_>, present: bool, len: usize) -> Result<()> {
    if !present {
        return Ok(());
    }
    let bias = operands.constant(3)?;
    match bias.numel() == len && matches!(bias.dtype(), ScalarType::Float | ScalarType::Int) {
        true => Ok(()),
        false => fail(format!("the bias is {bias}, expected {len} constants of float32 or int32")),
    }
}

/// Checks that the result is f32, or quantized with valid parameters and a simple activation.
fn check_output(
    operands: &Operands<'_>,
    output: Option<&Quantization>,
    activation: Activation,
) -> Result<()> {
    let out = operands.output(0)?;
    let is_sound = match output {
        None => !operands.is_not_float(out),
        Some(q) => q.is_sound(signed(out)?) && activation.is_simple(),
    };
    match is_sound {
        true => Ok(()),
        false => fail(format!("the result {out} does not support {output:?} with {activation:?}")),
    }
}

fn write_output(record: &mut Record, output: Option<&Quantization>) {
    record.flag("quantized", output.is_some());
    if let Some(q) = output {
        write_quantization(record, q);
    }
}

fn read_output(fields: &Fields<'_>) -> Result<Option<Quantization>> {
    if fields.flag("quantized")? { quantization(fields).map(Some) } else { Ok(None) }
}

const INPUT: [&str; 2] = ["input_scale", "input_zero"];

impl Stored for QuantizedLinear {
    const KERNEL: &'static str = "pteron.quantized_linear";

    fn write(&self, record: &mut Record) {
        record.text(
            "input",
            match self.input {
                QuantizedInput::Quantized(_) => "quantized",
                QuantizedInput::ByTensor { .. } => "by_tensor",
                QuantizedInput::ByRow => "by_row",
                QuantizedInput::ByFactorOfRow => "by_factor_of_row",
            },
        );
        match self.input {
            QuantizedInput::Quantized(affine) => write_affine(record, INPUT, &affine),
            QuantizedInput::ByTensor { low, high, eps } => {
                record.int("input_low", low.into()).int("input_high", high.into()).float("input_eps", eps);
            }
            QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow => {}
        }
        record.flag("out_major", self.out_major).flag("four_bits", self.bits == WeightBits::Four);
        record.size("group", self.group).flag("bias", self.bias);
        record.text("activation", activation_text(self.activation));
        write_output(record, self.output.as_ref());
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        let input = match fields.text("input")? {
            "quantized" => QuantizedInput::Quantized(affine(fields, INPUT)?),
            "by_tensor" => QuantizedInput::ByTensor {
                low: int(fields, "input_low")?,
                high: int(fields, "input_high")?,
                eps: fields.float("input_eps")?,
            },
            "by_row" => QuantizedInput::ByRow,
            "by_factor_of_row" => QuantizedInput::ByFactorOfRow,
            other => return fail(format!("unknown input form `{other}`")),
        };
        Ok(Self {
            input,
            out_major: fields.flag("out_major")?,
            bits: if fields.flag("four_bits")? { WeightBits::Four } else { WeightBits::Eight },
            group: fields.size("group")?,
            bias: fields.flag("bias")?,
            activation: activation(fields.text("activation")?)?,
            output: read_output(fields)?,
        })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(3 + usize::from(self.bias), 1)?;
        let x = operands.input(0)?;
        let (inner, outer) = product_sizes(operands, self.out_major, PackedWeights::MAX_ROWS)?;
        let is_one = self.group >= inner;
        if self.group == 0 || !is_one && !self.group.is_multiple_of(PackedWeights::GROUP_UNIT) {
            return fail(format!("{inner} weights cannot be divided into groups of {}", self.group));
        }
        let groups = inner.div_ceil(self.group);
        check_weights(operands, groups.saturating_mul(outer), is_one)?;
        if self.bits == WeightBits::Four {
            operands.four_bit_values(1)?;
        }
        check_bias(operands, self.bias, outer)?;
        let is_float = x.dtype() == ScalarType::Float;
        match self.input {
            QuantizedInput::Quantized(affine) => {
                signed(x)?;
                check_affine(&affine)?;
            }
            QuantizedInput::ByTensor { low, high, eps } => {
                let is_sound = -128 <= low && low < high && high <= 127 && eps > 0.0 && eps.is_finite();
                if !is_sound || !is_float {
                    return fail(format!(
                        "{x} cannot be quantized to {low}..={high} with the minimum scale {eps}"
                    ));
                }
            }
            QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow if !is_float => {
                return fail(format!("the input is {x}, expected float32 to quantize by row"));
            }
            QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow => {}
        }
        check_output(operands, self.output.as_ref(), self.activation)
    }
}

impl Stored for QuantizedConvolution {
    const KERNEL: &'static str = "pteron.quantized_conv";

    fn write(&self, record: &mut Record) {
        write_conv(&self.conv, record);
        write_affine(record, INPUT, &self.input);
        write_output(record, self.output.as_ref());
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self { conv: read_conv(fields)?, input: affine(fields, INPUT)?, output: read_output(fields)? })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(3 + usize::from(self.conv.bias), 1)?;
        check_conv(&self.conv, operands)?;
        let channels = self.conv.params.out_channels;
        check_weights(operands, channels, true)?;
        check_bias(operands, self.conv.bias, channels)?;
        if self.conv.residual || !QuantizedConv::supports(&self.conv.params) {
            return fail("this convolution has no quantized form");
        }
        check_affine(&self.input)?;
        let least = if signed(operands.input(0)?)? { -128 } else { 0 };
        if !(least..=least + 255).contains(&self.input.zero) {
            return fail(format!("the zero point {} is out of range of the input", self.input.zero));
        }
        check_output(operands, self.output.as_ref(), self.conv.activation)
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
            *number = int(fields, name)?;
        }
        let [fa, fb, za, zb, shift, zero, low, high] = numbers;
        let shift = u32::try_from(shift).ok().filter(|shift| (1..=31).contains(shift));
        let shift = shift.ok_or_else(|| Error::new("the shift is outside of 1..=31"))?;
        let signed = fields.flag("signed")?;
        Ok(Self(QuantizedSum { factors: [fa, fb], zeros: [za, zb], shift, zero, low, high, signed }))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(2, 1)?;
        operands.same_as_output(0)?;
        operands.same_as_output(1)?;
        let out = operands.output(0)?;
        let QuantizedSum { low, high, signed: is_signed, .. } = self.0;
        let least = if is_signed { -128 } else { 0 };
        let is_sound = least <= low && low <= high && high <= least + 255;
        match is_sound && signed(out)? == is_signed {
            true => Ok(()),
            false => fail(format!("{out} cannot hold sums clamped to {low}..={high}")),
        }
    }
}
