//! Convolution in f32, in one, two or three dimensions, and its transpose.
//!
//! A [`Conv`] holds its weights in the form that suits its parameters and layouts:
//!
//! | form | layouts | patches |
//! | --- | --- | --- |
//! | depthwise | NCHW to NCHW, NHWC to NHWC | read directly |
//! | few channels | NHWC to NHWC, at most 8 channels | read directly |
//! | planes | NCHW to NCHW | im2col of a block at a time; none for 1x1 |
//! | rows | any, and transposed | read in place where the input is NHWC, else im2col of a block at a time |
//! | [Winograd](Method::Winograd) | NHWC to NHWC, 3 x 3 taps of stride 1 | tiles of 4 x 4 pixels are transformed, some at a time |
//!
//! No matrix of all patches is ever built. The taps of a pixel are summed in an order that depends on the form and
//! the instruction set, never on the number of threads.

mod by_line;
mod chain;
mod depthwise_first;
mod depthwise_last;
mod epilogue;
mod few_channels;
mod lines;
mod params;
mod patches;
mod phase;
mod planes;
mod problem;
mod rows;
mod weights;
mod winograd;
mod winograd_transforms;

#[cfg(test)]
mod tests;

pub use chain::{Link, can_chain, chain, chain_pays};
pub use epilogue::{ConvEpilogue, Tail};
pub use params::{ConvFrame, ConvParams, Layout};

use super::gemm::WeightStorage;
use super::isa::Isa;
use super::packed_weights::{PackedWeightsReader, WeightBuffer};
use depthwise_last::DepthwiseLast;
use epilogue::TAIL_PART;
use few_channels::FewChannels;
use planes::PlanesConv;
use problem::{Problem, Window};
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Result};
use rows::RowsConv;
use std::ops::Range;
pub use weights::ConvWeights;
use winograd::Winograd;

/// A convolution, with weights packed for an instruction set and for the layouts of input and output images.
#[derive(Debug)]
pub struct Conv {
    isa: Isa,
    params: ConvParams,
    /// The layout of the output.
    output: Layout,
    algorithm: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    Rows(RowsConv),
    Planes(PlanesConv),
    DepthwiseFirst(WeightBuffer),
    DepthwiseLast(DepthwiseLast),
    FewChannels(FewChannels),
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
    /// The faster method for images of this layout and these sizes.
    pub fn of(params: &ConvParams, layout: Layout, frame: &ConvFrame) -> Self {
        match layout {
            Layout::ChannelsLast if Winograd::is_faster(params, frame) => Method::Winograd,
            _ => Method::Direct,
        }
    }
}

/// The algorithm, which determines the form of the packed weights.
enum AlgorithmKind {
    Rows,
    Planes,
    DepthwiseFirst,
    DepthwiseLast,
    FewChannels,
    Winograd,
}

fn algorithm_of(params: &ConvParams, method: Method, input: Layout, output: Layout) -> AlgorithmKind {
    match (input, output) {
        (Layout::ChannelsLast, Layout::ChannelsLast)
            if method == Method::Winograd && Winograd::supports(params) =>
        {
            AlgorithmKind::Winograd
        }
        (Layout::ChannelsLast, Layout::ChannelsLast)
            if params.is_depthwise() && params.tap_count() <= depthwise_last::MAX_TAPS =>
        {
            AlgorithmKind::DepthwiseLast
        }
        (Layout::ChannelsLast, Layout::ChannelsLast) if few_channels::supports(params) => {
            AlgorithmKind::FewChannels
        }
        (Layout::ChannelsFirst, Layout::ChannelsFirst)
            if params.is_depthwise() && depthwise_first::supports(params) =>
        {
            AlgorithmKind::DepthwiseFirst
        }
        (Layout::ChannelsFirst, Layout::ChannelsFirst) if !params.transposed => AlgorithmKind::Planes,
        _ => AlgorithmKind::Rows,
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
        let weights = ConvWeights::contiguous(&params, weights);
        Self::of(isa, params, Method::Direct, &weights, WeightStorage::F32, (input, output))
    }

    /// Packs weights with dimensions in any order for `method`, or for the direct method if `method` does not support
    /// the convolution or the weights are not finite. `storage` says how they are stored in the form of rows, with
    /// the scale of each output channel if it has scales; other forms store them as f32, whatever it says. Fails if memory
    /// runs out.
    ///
    /// # Panics
    /// If the parameters contradict each other, or the weights have other sizes.
    pub fn of(
        isa: Isa,
        params: ConvParams,
        method: Method,
        weights: &ConvWeights<'_>,
        storage: WeightStorage<'_>,
        (input, output): (Layout, Layout),
    ) -> Result<Self> {
        params.check();
        weights.check(&params);
        let mut kind = algorithm_of(&params, method, input, output);
        if let AlgorithmKind::Winograd = kind {
            if let Some(algorithm) = Winograd::new(isa, &params, weights)? {
                return Ok(Self { isa, params, output, algorithm: Algorithm::Winograd(algorithm) });
            }
            kind = algorithm_of(&params, Method::Direct, input, output);
        }
        let row_major = match kind {
            AlgorithmKind::DepthwiseFirst | AlgorithmKind::Planes => weights.row_major_copy()?,
            AlgorithmKind::DepthwiseLast
            | AlgorithmKind::FewChannels
            | AlgorithmKind::Rows
            | AlgorithmKind::Winograd => None,
        };
        let plain = row_major.as_deref().unwrap_or(weights.values);
        let algorithm = match kind {
            AlgorithmKind::DepthwiseLast => Algorithm::DepthwiseLast(DepthwiseLast::new(&params, weights)?),
            AlgorithmKind::FewChannels => Algorithm::FewChannels(FewChannels::new(&params, weights)?),
            AlgorithmKind::DepthwiseFirst => Algorithm::DepthwiseFirst(WeightBuffer::Owned(
                AlignedBuffer::from_slice(bytemuck::cast_slice(plain))?,
            )),
            AlgorithmKind::Planes => Algorithm::Planes(PlanesConv::new(isa, &params, plain)?),
            AlgorithmKind::Rows | AlgorithmKind::Winograd => {
                Algorithm::Rows(RowsConv::new(isa, &params, weights, storage, (input, output))?)
            }
        };
        Ok(Self { isa, params, output, algorithm })
    }

    /// Loads weights that were packed for this instruction set and these parameters, method, storage and layouts, and
    /// stored. `None` if their number does not match.
    ///
    /// # Panics
    /// If the parameters contradict each other.
    pub fn from_packed(
        isa: Isa,
        params: ConvParams,
        method: Method,
        storage: WeightStorage<'_>,
        (input, output): (Layout, Layout),
        mut from: PackedWeightsReader,
    ) -> Option<Self> {
        params.check();
        let from = &mut from;
        let algorithm = match algorithm_of(&params, method, input, output) {
            AlgorithmKind::Winograd => Algorithm::Winograd(Winograd::from_packed(isa, &params, from)?),
            AlgorithmKind::DepthwiseLast => {
                Algorithm::DepthwiseLast(DepthwiseLast::from_packed(&params, from)?)
            }
            AlgorithmKind::FewChannels => Algorithm::FewChannels(FewChannels::from_packed(&params, from)?),
            AlgorithmKind::DepthwiseFirst => Algorithm::DepthwiseFirst(from.take(params.weight_count())?),
            AlgorithmKind::Planes => Algorithm::Planes(PlanesConv::from_packed(isa, &params, from)?),
            AlgorithmKind::Rows => {
                Algorithm::Rows(RowsConv::from_packed(isa, &params, storage, (input, output), from)?)
            }
        };
        from.is_empty().then_some(Self { isa, params, output, algorithm })
    }

    /// Appends the weights in the form that [`Self::from_packed`] reads.
    pub fn store(&self, out: &mut Vec<u8>) {
        match &self.algorithm {
            Algorithm::Rows(rows) => rows.store(out),
            Algorithm::Planes(planes) => planes.store(out),
            Algorithm::DepthwiseFirst(weights) => weights.store(out),
            Algorithm::DepthwiseLast(depthwise) => depthwise.store(out),
            Algorithm::FewChannels(few) => few.store(out),
            Algorithm::Winograd(winograd) => winograd.store(out),
        }
    }

    /// The parameters of the convolution.
    pub fn params(&self) -> &ConvParams {
        &self.params
    }

    /// The number of bytes of memory that the weights own; none if they were [loaded](Self::from_packed).
    pub fn nbytes(&self) -> usize {
        match &self.algorithm {
            Algorithm::Rows(rows) => rows.nbytes(),
            Algorithm::Planes(planes) => planes.nbytes(),
            Algorithm::DepthwiseFirst(weights) => weights.nbytes(),
            Algorithm::DepthwiseLast(depthwise) => depthwise.nbytes(),
            Algorithm::FewChannels(few) => few.nbytes(),
            Algorithm::Winograd(winograd) => winograd.nbytes(),
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
        let tail = epilogue.tail;
        let epilogue =
            &ConvEpilogue { tail: epilogue.tail.filter(|_| self.computes_in_parts()), ..*epilogue };
        let complete = tail.filter(|_| x.is_empty() || epilogue.tail.is_none());
        let problem = Problem { isa: self.isa, p, frame, x, epilogue };
        match &self.algorithm {
            _ if x.is_empty() => self.run_empty(frame, out, epilogue),
            Algorithm::Rows(algorithm) => algorithm.run(pool, problem, out),
            Algorithm::Planes(algorithm) => algorithm.run(pool, problem, out),
            Algorithm::DepthwiseFirst(weights) => {
                depthwise_first::run(pool, problem, weights.elements(), out);
            }
            Algorithm::DepthwiseLast(algorithm) => algorithm.run(pool, problem, out),
            Algorithm::FewChannels(algorithm) => algorithm.run(pool, problem, out),
            Algorithm::Winograd(algorithm) => algorithm.run(pool, problem, out),
        }
        if let Some(tail) = complete {
            pool.parallel_chunks_mut(out, TAIL_PART, 1, &|i, part| (tail.0)(i * TAIL_PART, part));
        }
    }

    /// Computes lines of the output of one image on this thread, for a convolution that can be a link of a chain
    /// ([`can_chain`]).
    ///
    /// # Panics
    /// If the window lacks lines that these read, or `out` has another size.
    fn compute_lines(
        &self,
        frame: &ConvFrame,
        from: Window<'_>,
        lines: Range<usize>,
        out: &mut [f32],
        epilogue: &ConvEpilogue<'_>,
    ) {
        match &self.algorithm {
            Algorithm::Rows(_) => {
                let (step, size) =
                    (frame.input[2] * self.params.in_channels, [1, lines.len(), frame.input[2]]);
                let x = &from.elements[(lines.start - from.first) * step..][..lines.len() * step];
                let frame = ConvFrame { batch: 1, input: size, output: size };
                self.run(Pool::alone(), &frame, x, out, epilogue);
            }
            Algorithm::DepthwiseLast(algorithm) => {
                algorithm.compute_lines(self.isa, &self.params, frame, from, lines, out, epilogue);
            }
            Algorithm::Planes(_)
            | Algorithm::DepthwiseFirst(_)
            | Algorithm::FewChannels(_)
            | Algorithm::Winograd(_) => {
                panic!("{:?} cannot be a link of a chain", self.params)
            }
        }
    }

    /// Whether the output is computed in contiguous parts, so that a tail can be applied to each part.
    fn computes_in_parts(&self) -> bool {
        match &self.algorithm {
            Algorithm::Rows(algorithm) => algorithm.computes_in_parts(&self.params),
            Algorithm::DepthwiseLast(_) | Algorithm::FewChannels(_) | Algorithm::Winograd(_) => true,
            Algorithm::Planes(_) | Algorithm::DepthwiseFirst(_) => false,
        }
    }
}

impl Conv {
    /// Computes the output of images without pixels or channels: every sum is zero.
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
