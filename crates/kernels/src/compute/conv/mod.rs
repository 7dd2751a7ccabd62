//! Convolution in f32, in one, two or three dimensions, and its transpose.
//!
//! A [`Conv`] holds its weights in the form that suits its parameters and layouts:
//!
//! | form | layouts | patches |
//! | --- | --- | --- |
//! | depthwise | NCHW to NCHW, NHWC to NHWC | read directly |
//! | planes | NCHW to NCHW | im2col of a block at a time; none for 1x1 |
//! | rows | any, and transposed | read in place where the input is NHWC, else im2col of a block at a time |
//! | [Winograd](Method::Winograd) | NHWC to NHWC, 3 x 3 taps of stride 1 | tiles of 4 x 4 pixels are transformed, some at a time |
//!
//! No matrix of all patches is ever built. The taps of a pixel are summed in an order that depends on the form and
//! the level, never on the number of threads.

mod chain;
mod depthwise_first;
mod depthwise_last;
mod lines;
mod params;
mod planes;
mod rows;
mod weights;
mod winograd;
mod winograd_transforms;

#[cfg(test)]
mod tests;

pub use chain::{Link, chain, chain_pays, chains};
pub use params::{ConvFrame, ConvParams, Layout};

use super::gemm::Activation;
use super::isa::Isa;
use super::packed_weights::{PackedWeightsReader, WeightBuffer};
use chain::Window;
use depthwise_last::DepthwiseLast;
use planes::PlanesConv;
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Result};
use rows::RowsConv;
use std::ops::Range;
pub use weights::ConvWeights;
use winograd::Winograd;

/// A function that is applied to a result part by part, while a part is in the caches: it is called once with every
/// element of the result, in contiguous parts of any length, with the index of a part's first element. Several
/// threads may call it concurrently.
#[derive(Clone, Copy)]
pub struct Tail<'a>(pub &'a (dyn Fn(usize, &mut [f32]) + Sync));

impl std::fmt::Debug for Tail<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tail")
    }
}

/// Approximate number of elements of a part of a result.
const TAIL_PART: usize = 1 << 13;

/// The epilogue of a convolution: `tail(activation(sum + bias + residual))`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvEpilogue<'a> {
    /// One value an output channel.
    pub bias: Option<&'a [f32]>,
    /// An image of the output's size and layout.
    pub residual: Option<&'a [f32]>,
    /// Function to apply.
    pub activation: Activation,
    /// Applied last. Channels-last results of a convolution with one group that is not transposed are passed to it as
    /// they are computed; other results once they are complete.
    pub tail: Option<Tail<'a>>,
}

impl ConvEpilogue<'_> {
    /// The epilogue of a range of the elements.
    fn part(&self, elements: Range<usize>) -> Self {
        Self { residual: self.residual.map(|r| &r[elements]), ..*self }
    }
}

/// A convolution, with weights packed for a level and for the layouts of its images.
#[derive(Debug)]
pub struct Conv {
    isa: Isa,
    params: ConvParams,
    /// The layout of the output.
    output: Layout,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Rows(RowsConv),
    Planes(PlanesConv),
    DepthwiseFirst(WeightBuffer),
    DepthwiseLast(DepthwiseLast),
    Winograd(Winograd),
}

/// The algorithm of a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// Direct summation, tap by tap.
    #[default]
    Direct,
    /// Winograd's minimal filtering of 2 x 2 pixels, where it applies: the weights take 16/9 of the memory, the sums
    /// 16/36 of the multiplications. Results differ from direct ones by rounding errors relative to the values
    /// nearby.
    Winograd,
}

impl Method {
    /// The faster method for images of this layout and size.
    pub fn of(params: &ConvParams, layout: Layout, frame: &ConvFrame) -> Self {
        match layout {
            Layout::ChannelsLast if Winograd::pays(params, frame) => Method::Winograd,
            _ => Method::Direct,
        }
    }
}

/// The form of the weights.
enum FormKind {
    Rows,
    Planes,
    DepthwiseFirst,
    DepthwiseLast,
    Winograd,
}

fn form_of(params: &ConvParams, method: Method, input: Layout, output: Layout) -> FormKind {
    match (input, output) {
        (Layout::ChannelsLast, Layout::ChannelsLast)
            if method == Method::Winograd && Winograd::fits(params) =>
        {
            FormKind::Winograd
        }
        (Layout::ChannelsLast, Layout::ChannelsLast)
            if params.is_depthwise() && params.taps() <= depthwise_last::MAX_TAPS =>
        {
            FormKind::DepthwiseLast
        }
        (Layout::ChannelsFirst, Layout::ChannelsFirst)
            if params.is_depthwise() && depthwise_first::fits(params) =>
        {
            FormKind::DepthwiseFirst
        }
        (Layout::ChannelsFirst, Layout::ChannelsFirst) if !params.transposed => FormKind::Planes,
        _ => FormKind::Rows,
    }
}

impl Conv {
    /// Packs dense weights of shape `[out, in / groups, depth, height, width]`, or if transposed
    /// `[in, out / groups, depth, height, width]`. Fails if memory runs out.
    ///
    /// # Panics
    /// If the parameters contradict each other, or the number of weights does not match them.
    pub fn new(isa: Isa, params: ConvParams, weights: &[f32], input: Layout, output: Layout) -> Result<Self> {
        params.check();
        Self::of(isa, params, Method::Direct, &ConvWeights::plain(&params, weights), input, output)
    }

    /// Packs weights with dimensions in any order for `method`, or for the direct method if `method` does not support
    /// the convolution or the weights are not finite. Fails if memory runs out.
    ///
    /// # Panics
    /// If the parameters contradict each other, or the weights have other sizes.
    pub fn of(
        isa: Isa,
        params: ConvParams,
        method: Method,
        weights: &ConvWeights<'_>,
        input: Layout,
        output: Layout,
    ) -> Result<Self> {
        params.check();
        weights.check(&params);
        let mut kind = form_of(&params, method, input, output);
        if let FormKind::Winograd = kind {
            if let Some(form) = Winograd::new(isa, &params, weights)? {
                return Ok(Self { isa, params, output, form: Form::Winograd(form) });
            }
            kind = form_of(&params, Method::Direct, input, output);
        }
        let reordered = match kind {
            FormKind::DepthwiseFirst | FormKind::Planes => weights.reordered()?,
            FormKind::DepthwiseLast | FormKind::Rows | FormKind::Winograd => None,
        };
        let plain = reordered.as_deref().unwrap_or(weights.values);
        let form = match kind {
            FormKind::DepthwiseLast => Form::DepthwiseLast(DepthwiseLast::new(&params, weights)?),
            FormKind::DepthwiseFirst => Form::DepthwiseFirst(WeightBuffer::Owned(AlignedBuffer::from_slice(
                bytemuck::cast_slice(plain),
            )?)),
            FormKind::Planes => Form::Planes(PlanesConv::new(isa, &params, plain)?),
            FormKind::Rows | FormKind::Winograd => {
                Form::Rows(RowsConv::new(isa, &params, weights, input, output)?)
            }
        };
        Ok(Self { isa, params, output, form })
    }

    /// Loads weights that were packed for this instruction set and these parameters, method and layouts, and stored.
    /// `None` if their number does not match.
    ///
    /// # Panics
    /// If the parameters contradict each other.
    pub fn from_packed(
        isa: Isa,
        params: ConvParams,
        method: Method,
        input: Layout,
        output: Layout,
        mut from: PackedWeightsReader,
    ) -> Option<Self> {
        params.check();
        let from = &mut from;
        let form = match form_of(&params, method, input, output) {
            FormKind::Winograd => Form::Winograd(Winograd::from_packed(isa, &params, from)?),
            FormKind::DepthwiseLast => Form::DepthwiseLast(DepthwiseLast::from_packed(&params, from)?),
            FormKind::DepthwiseFirst => Form::DepthwiseFirst(from.take(params.weights())?),
            FormKind::Planes => Form::Planes(PlanesConv::from_packed(isa, &params, from)?),
            FormKind::Rows => Form::Rows(RowsConv::from_packed(isa, &params, (input, output), from)?),
        };
        from.is_empty().then_some(Self { isa, params, output, form })
    }

    /// Appends the weights in the form that [`Self::from_packed`] reads.
    pub fn store(&self, out: &mut Vec<u8>) {
        match &self.form {
            Form::Rows(rows) => rows.store(out),
            Form::Planes(planes) => planes.store(out),
            Form::DepthwiseFirst(weights) => weights.store(out),
            Form::DepthwiseLast(depthwise) => depthwise.store(out),
            Form::Winograd(winograd) => winograd.store(out),
        }
    }

    /// Its parameters.
    pub fn params(&self) -> &ConvParams {
        &self.params
    }

    /// Bytes of memory that the weights own; none if they were [loaded](Self::from_packed).
    pub fn bytes(&self) -> usize {
        match &self.form {
            Form::Rows(rows) => rows.bytes(),
            Form::Planes(planes) => planes.bytes(),
            Form::DepthwiseFirst(weights) => weights.own_bytes(),
            Form::DepthwiseLast(depthwise) => depthwise.bytes(),
            Form::Winograd(winograd) => winograd.bytes(),
        }
    }

    /// Convolves `frame.batch` images of `x` into `out`. Runs in parallel on `pool` if there is enough work.
    ///
    /// # Panics
    /// If the length of a slice does not match the frame.
    pub fn run(
        &self,
        pool: &Pool,
        frame: &ConvFrame,
        x: &[f32],
        out: &mut [f32],
        epilogue: &ConvEpilogue<'_>,
    ) {
        let p = &self.params;
        let elements = |pixels: [usize; 3], channels: usize| {
            pixels.iter().chain([&channels, &frame.batch]).try_fold(1usize, |n, &d| n.checked_mul(d))
        };
        assert_eq!(Some(x.len()), elements(frame.input, p.in_channels), "input of {p:?} for {frame:?}");
        assert_eq!(Some(out.len()), elements(frame.output, p.out_channels), "output of {p:?} for {frame:?}");
        if let Some(b) = epilogue.bias {
            assert_eq!(b.len(), p.out_channels, "bias of {p:?}");
        }
        if let Some(r) = epilogue.residual {
            assert_eq!(r.len(), out.len(), "residual of {p:?} for {frame:?}");
        }
        if out.is_empty() {
            return;
        }
        let whole = epilogue.tail;
        let epilogue = &ConvEpilogue { tail: epilogue.tail.filter(|_| self.makes_parts()), ..*epilogue };
        let complete = whole.filter(|_| x.is_empty() || epilogue.tail.is_none());
        match &self.form {
            _ if x.is_empty() => self.run_empty(frame, out, epilogue),
            Form::Rows(form) => form.run(self.isa, pool, p, frame, x, out, epilogue),
            Form::Planes(form) => form.run(self.isa, pool, p, frame, x, out, epilogue),
            Form::DepthwiseFirst(weights) => {
                let weights = weights.elements();
                depthwise_first::run(self.isa, pool, p, frame, weights, x, out, epilogue);
            }
            Form::DepthwiseLast(form) => form.run(self.isa, pool, p, frame, x, out, epilogue),
            Form::Winograd(form) => form.run(self.isa, pool, p, frame, x, out, epilogue),
        }
        if let Some(tail) = complete {
            pool.parallel_chunks_mut(out, TAIL_PART, 1, &|i, part| (tail.0)(i * TAIL_PART, part));
        }
    }

    /// Computes lines of the output of one image on this thread, for a convolution that can be a link of a chain
    /// ([`chains`]).
    ///
    /// # Panics
    /// If the window lacks lines that these read, or `out` has another size.
    fn lines(
        &self,
        frame: &ConvFrame,
        from: Window<'_>,
        lines: Range<usize>,
        out: &mut [f32],
        epilogue: &ConvEpilogue<'_>,
    ) {
        match &self.form {
            Form::Rows(_) => {
                let (step, size) =
                    (frame.input[2] * self.params.in_channels, [1, lines.len(), frame.input[2]]);
                let x = &from.elements[(lines.start - from.first) * step..][..lines.len() * step];
                let frame = ConvFrame { batch: 1, input: size, output: size };
                self.run(Pool::alone(), &frame, x, out, epilogue);
            }
            Form::DepthwiseLast(form) => {
                form.lines(self.isa, &self.params, frame, from, lines, out, epilogue);
            }
            Form::Planes(_) | Form::DepthwiseFirst(_) | Form::Winograd(_) => {
                panic!("{:?} cannot be a link of a chain", self.params)
            }
        }
    }

    /// Whether results are computed in contiguous parts, to each of which a tail can be applied.
    fn makes_parts(&self) -> bool {
        match &self.form {
            Form::Rows(form) => form.makes_parts(&self.params),
            Form::DepthwiseLast(_) | Form::Winograd(_) => true,
            Form::Planes(_) | Form::DepthwiseFirst(_) => false,
        }
    }
}

impl Conv {
    /// The result where images have no pixels or no channels: every sum is zero.
    fn run_empty(&self, frame: &ConvFrame, out: &mut [f32], epilogue: &ConvEpilogue<'_>) {
        let channels = self.params.out_channels;
        let (channel, _) = self.output.strides(channels, frame.out_pixels());
        for (i, out) in out.iter_mut().enumerate() {
            let bias = epilogue.bias.map_or(0.0, |b| b[i / channel % channels]);
            let residual = epilogue.residual.map_or(0.0, |r| r[i]);
            *out = epilogue.activation.scalar(bias + residual);
        }
    }
}

/// Convolves once with weights that were not packed ahead of time: [`Conv::new`], then [`Conv::run`]. Fails if memory
/// for the weights runs out.
///
/// # Panics
/// As those do.
pub fn conv(
    pool: &Pool,
    isa: Isa,
    params: ConvParams,
    frame: &ConvFrame,
    (x, input): (&[f32], Layout),
    weights: &[f32],
    (out, output): (&mut [f32], Layout),
    epilogue: &ConvEpilogue<'_>,
) -> Result<()> {
    Conv::new(isa, params, weights, input, output)?.run(pool, frame, x, out, epilogue);
    Ok(())
}
