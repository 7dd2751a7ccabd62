//! Chains of convolutions, computed strip by strip: some lines of the last output at a time, and of each intermediate
//! image the lines that these read. Pointwise and depthwise convolutions do little work for each element; run one by
//! one, they would write whole intermediate images to the outer caches and read them back.
//!
//! Results are bit-identical to those of the convolutions run one by one.

use super::super::gemm::Activation;
use super::super::mat::Shared;
use super::super::{scratch, split};
use super::problem::Window;
use super::{Conv, ConvEpilogue, ConvFrame, ConvParams, Layout, depthwise_last};
use pteron_pool::Pool;
use smallvec::SmallVec;
use std::ops::Range;

/// The approximate number of elements in the intermediate lines that a thread holds: they stay in the L2 cache.
const HELD: usize = 1 << 17;
/// The smallest intermediate image, in elements, for which the convolutions before and after it are chained.
const LARGE_IMAGE: usize = 1 << 16;
/// The minimum number of intermediate lines a thread computes for each line of halo, which its neighbour computes too.
const OWN_PER_HALO: usize = 2;

/// A convolution of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// The convolution.
    pub conv: &'a Conv,
    /// The sizes of the convolution's images.
    pub frame: ConvFrame,
    /// The bias: one value for each output channel.
    pub bias: Option<&'a [f32]>,
    /// The function that is applied to each result of the convolution.
    pub activation: Activation,
}

/// Whether a convolution of images of this layout and these sizes can be a link of a chain: a pointwise or depthwise
/// 2-D convolution of channels-last images with the same padding on all sides.
pub fn can_chain(p: &ConvParams, layout: Layout, frame: &ConvFrame) -> bool {
    let flat = [p.kernel[0], p.stride[0], p.dilation[0], frame.input[0]] == [1; 4] && p.padding[0] == 0;
    let pointwise = is_pointwise(p) && p.in_channels > 0;
    let depthwise = p.is_depthwise() && p.tap_count() <= depthwise_last::MAX_TAPS;
    let fits = p.output_size(frame.input, [0; 3]) == Some(frame.output);
    layout == Layout::ChannelsLast && flat && fits && (pointwise || depthwise) && frame.out_pixels() > 0
}

/// Whether a convolution that can be a link ([`can_chain`]) is faster chained to the convolution that computes its
/// input: if that image is too large to stay in a near cache, and there are enough lines for `threads` threads.
pub fn chain_pays(p: &ConvParams, frame: &ConvFrame, threads: usize) -> bool {
    let large = frame.in_pixels().saturating_mul(p.in_channels) >= LARGE_IMAGE;
    let lines = frame.batch.saturating_mul(frame.output[1]);
    large && lines / min_lines_per_thread(input_line_count(p, 1), p.stride[1]) >= threads
}

/// The number of input lines that `lines` output lines read, including those in the padding.
fn input_line_count(p: &ConvParams, lines: usize) -> usize {
    (lines - 1) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + 1
}

/// The minimum number of output lines for a thread, if the first reads `one` intermediate lines and each further line
/// adds `more`.
fn min_lines_per_thread(one: usize, more: usize) -> usize {
    (OWN_PER_HALO * one.saturating_sub(more)).div_ceil(more).max(1)
}

/// Whether every output pixel reads only the input pixel at the same position.
fn is_pointwise(p: &ConvParams) -> bool {
    !p.transposed && p.groups == 1 && p.tap_count() == 1 && p.stride == [1; 3] && p.padding == [0; 3]
}

/// The lines of the input image that the output lines `lines` read. Neither end of the range decreases as `lines`
/// moves down.
fn input_lines(link: &Link<'_>, lines: &Range<usize>) -> Range<usize> {
    let (p, height) = (link.conv.params(), link.frame.input[1]);
    let reach = (p.kernel[1] - 1) * p.dilation[1] + 1;
    let first = (lines.start * p.stride[1]).saturating_sub(p.padding[1]).min(height);
    if lines.is_empty() {
        return first..first;
    }
    let end = ((lines.end - 1) * p.stride[1] + reach).saturating_sub(p.padding[1]).min(height);
    first..end.max(first)
}

/// Runs `links` one after another, from `x` to `out`; `residual` has the sizes and layout of the last output, and is
/// added to it before the activation. Lines of the output are divided among the threads of `pool`.
///
/// # Panics
/// If a link [cannot be chained](can_chain) or does not fit the one before it, or the length of a slice does not match
/// the frames.
pub fn chain(pool: &Pool, links: &[Link<'_>], x: &[f32], out: &mut [f32], residual: Option<&[f32]>) {
    let (Some(first), Some(last)) = (links.first(), links.last()) else { return };
    for link in links {
        let p = link.conv.params();
        assert!(can_chain(p, Layout::ChannelsLast, &link.frame), "{p:?} for {:?} in a chain", link.frame);
        assert!(link.bias.is_none_or(|b| b.len() == p.out_channels), "bias of {p:?}");
    }
    for pair in links.windows(2) {
        let (from, to) = (&pair[0].frame, &pair[1].frame);
        let channels = pair[0].conv.params().out_channels == pair[1].conv.params().in_channels;
        assert!(from.batch == to.batch && from.output == to.input && channels, "shapes of consecutive links");
    }
    let channels = [first.conv.params().in_channels, last.conv.params().out_channels];
    assert_eq!(x.len(), first.frame.batch * first.frame.in_pixels() * channels[0], "input of a chain");
    assert_eq!(out.len(), last.frame.batch * last.frame.out_pixels() * channels[1], "output of a chain");
    assert!(residual.is_none_or(|r| r.len() == out.len()), "residual of a chain");
    let work = links.iter().fold(0usize, |sum, link| {
        let p = link.conv.params();
        let all = [link.frame.batch, p.out_channels, p.in_channels / p.groups, p.tap_count()];
        sum.saturating_add(all.iter().fold(link.frame.out_pixels(), |work, &n| work.saturating_mul(n)))
    });
    let lines = last.frame.batch * last.frame.output[1];
    let (one, more) = intermediate_lines_and_step(links, 1);
    let threads =
        split::thread_count(pool, work, split::TAPS).min(lines.div_ceil(min_lines_per_thread(one, more)));
    let out = Shared::new(out);
    let task = |t: usize| {
        let lines = split::nth_share(t, threads, lines, 1);
        // SAFETY: tasks have lines of their own.
        unsafe { Strips { links, x, out, residual }.run_lines(lines) };
    };
    split::run_tasks(pool, threads, threads, task);
}

/// The number of lines of the first intermediate image that `lines` lines of the last output read, and the number that
/// each further line of the output adds.
fn intermediate_lines_and_step(links: &[Link<'_>], lines: usize) -> (usize, usize) {
    links[1..].iter().rev().fold((lines, 1), |(lines, more), link| {
        let p = link.conv.params();
        (input_line_count(p, lines), more.saturating_mul(p.stride[1]))
    })
}

struct Strips<'a> {
    links: &'a [Link<'a>],
    x: &'a [f32],
    out: Shared<'a>,
    residual: Option<&'a [f32]>,
}

/// Consecutive lines of an intermediate image.
struct IntermediateLines<'a> {
    elements: &'a mut [f32],
    /// The lines of the image that `elements` holds.
    lines: Range<usize>,
    /// The number of elements of a line.
    len: usize,
}

impl IntermediateLines<'_> {
    /// Drops the lines before `first`.
    fn drop_lines_before(&mut self, first: usize) {
        let Range { start, end } = self.lines;
        if first < end {
            self.elements.copy_within((first - start) * self.len..(end - start) * self.len, 0);
        }
        self.lines = first..end.max(first);
    }
}

impl Strips<'_> {
    /// Computes lines of the output, counted through all images.
    ///
    /// # Safety
    /// No other task accesses these meanwhile.
    unsafe fn run_lines(&self, lines: Range<usize>) {
        let [.., last] = self.links else { return };
        let height = last.frame.output[1];
        // Elements of intermediate lines for a strip of `lines` lines.
        let workspace = |lines: usize| -> usize {
            (1..self.links.len()).map(|i| self.max_input_lines(i, lines) * self.line_len(i)).sum()
        };
        let (one, two) = (workspace(1), workspace(2));
        let strip = (1 + HELD.saturating_sub(one) / (two - one).max(1)).min(height);
        scratch::with_buffer(workspace(strip), |mut scratch| {
            let mut line = lines.start;
            let mut between = SmallVec::<[IntermediateLines<'_>; 3]>::new();
            for i in 1..self.links.len() {
                let (len, most) = (self.line_len(i), self.max_input_lines(i, strip));
                let (elements, rest) = std::mem::take(&mut scratch).split_at_mut(most * len);
                scratch = rest;
                between.push(IntermediateLines { elements, lines: 0..0, len });
            }
            while line < lines.end {
                let (n, y) = (line / height, line % height);
                let count = strip.min(height - y).min(lines.end - line);
                if line == lines.start || y == 0 {
                    between.iter_mut().for_each(|b| b.lines = 0..0);
                }
                // SAFETY: as the caller promises.
                unsafe { self.run_strip(n, y..y + count, &mut between) };
                line += count;
            }
        });
    }

    /// The maximum number of lines of the `i`th link's input that `lines` lines of the output read.
    fn max_input_lines(&self, i: usize, lines: usize) -> usize {
        intermediate_lines_and_step(&self.links[i - 1..], lines).0.min(self.links[i].frame.input[1])
    }

    /// The number of elements of a line of the `i`th link's input.
    fn line_len(&self, i: usize) -> usize {
        self.links[i].frame.input[2] * self.links[i].conv.params().in_channels
    }

    /// Computes lines of the output of image `n`, and before them the intermediate lines that they read.
    ///
    /// # Safety
    /// As for [`Self::run_lines`].
    unsafe fn run_strip(&self, n: usize, lines: Range<usize>, between: &mut [IntermediateLines<'_>]) {
        // The lines needed of each link's output, from the last link to the first.
        let mut needed = SmallVec::<[Range<usize>; 4]>::from_iter([lines]);
        for link in self.links[1..].iter().rev() {
            let lines = input_lines(link, needed.last().expect("the last link's lines"));
            needed.push(lines);
        }
        let pixels = self.links[0].frame.in_pixels() * self.links[0].conv.params().in_channels;
        let mut from = Window { elements: &self.x[n * pixels..][..pixels], first: 0 };
        let (&last, before) = self.links.split_last().expect("a link");
        for ((link, between), needed) in before.iter().zip(between).zip(needed[1..].iter().rev()) {
            between.drop_lines_before(needed.start);
            let new = between.lines.end..needed.end.max(between.lines.end);
            let to = (new.start - between.lines.start) * between.len;
            between.lines.end = new.end;
            link.compute_lines(
                from,
                new.clone(),
                &mut between.elements[to..][..new.len() * between.len],
                None,
            );
            from = Window { elements: between.elements, first: between.lines.start };
        }
        let (lines, len) = (&needed[0], last.frame.output[2] * last.conv.params().out_channels);
        let elements =
            (n * last.frame.output[1] + lines.start) * len..(n * last.frame.output[1] + lines.end) * len;
        // SAFETY: as the caller promises.
        let mut out = unsafe { self.out.matrix(elements.start, (1, elements.len()), (elements.len(), 1)) };
        let out = out.row(0).expect("contiguous lines");
        last.compute_lines(from, lines.clone(), out, self.residual.map(|r| &r[elements]));
    }
}

impl Link<'_> {
    /// Computes `lines` of the output of one image; `out` and `residual` hold just these lines.
    fn compute_lines(
        &self,
        from: Window<'_>,
        lines: Range<usize>,
        out: &mut [f32],
        residual: Option<&[f32]>,
    ) {
        let epilogue = ConvEpilogue { bias: self.bias, residual, activation: self.activation, tail: None };
        self.conv.compute_lines(&self.frame, from, lines, out, &epilogue);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::isa::Isa;
    use super::*;
    use proptest::prelude::*;

    fn values(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    /// Parameters of a link for images of `channels` channels: a pointwise convolution to `out` channels, or a
    /// depthwise one.
    fn link(channels: usize, (depthwise, out, kernel, stride, padding): Kind) -> ConvParams {
        if !depthwise {
            return ConvParams::conv2d(channels, out, [1, 1]);
        }
        let space = |fill, [h, w]: [usize; 2]| [fill, h, w];
        ConvParams {
            groups: channels,
            stride: space(1, stride),
            padding: space(0, padding),
            ..ConvParams::conv2d(channels, channels, kernel)
        }
    }

    type Kind = (bool, usize, [usize; 2], [usize; 2], [usize; 2]);

    fn kind() -> impl Strategy<Value = Kind> {
        let two = |most: usize| [1..most, 1..most];
        (any::<bool>(), 1usize..40, two(6), two(4), [0usize..4, 0usize..4])
    }

    /// Compares a chain run on each number of threads with its convolutions run one by one. `false` if the sizes do
    /// not fit.
    fn agree(
        isa: Isa,
        batch: usize,
        input: [usize; 2],
        channels: usize,
        kinds: &[Kind],
        threads: &[usize],
    ) -> bool {
        let last = Layout::ChannelsLast;
        let mut frame = ConvFrame { batch, input: [1, input[0], input[1]], output: [1, input[0], input[1]] };
        let (mut width, mut convs, mut frames) = (channels, Vec::new(), Vec::new());
        for &kind in kinds {
            let p = link(width, kind);
            frame.input = frame.output;
            let Some(output) = p.output_size(frame.input, [0; 3]) else { return false };
            frame.output = output;
            if !can_chain(&p, last, &frame) {
                return false;
            }
            let conv = Conv::new(isa, p, &values(p.weight_count(), convs.len()), last, last).unwrap();
            (width, frames) = (p.out_channels, [frames, vec![frame]].concat());
            convs.push((conv, values(p.out_channels, 50)));
        }
        let x = values(batch * input[0] * input[1] * channels, 99);
        let residual = values(batch * frame.out_pixels() * width, 77);
        let mut want = x.clone();
        for (i, ((conv, bias), frame)) in convs.iter().zip(&frames).enumerate() {
            let residual = (i + 1 == convs.len()).then_some(&residual[..]);
            let epilogue =
                ConvEpilogue { bias: Some(bias), residual, activation: Activation::Relu, tail: None };
            let mut out = vec![f32::NAN; batch * frame.out_pixels() * conv.params().out_channels];
            conv.run(&Pool::serial(), frame, &want, &mut out, &epilogue);
            want = out;
        }
        let links = convs.iter().zip(&frames).map(|((conv, bias), &frame)| Link {
            conv,
            frame,
            bias: Some(bias),
            activation: Activation::Relu,
        });
        let links: Vec<_> = links.collect();
        for &threads in threads {
            let mut out = vec![f32::NAN; want.len()];
            chain(&Pool::new(threads), &links, &x, &mut out, Some(&residual));
            assert!(
                out == want,
                "{kinds:?} of {batch} x {input:?} x {channels} on {threads} threads, {isa:?}"
            );
        }
        true
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_chain_equals_its_convolutions_run_one_by_one(
            kinds in prop::collection::vec(kind(), 1..5), batch in 1usize..3, input in [1usize..30, 1usize..20],
            channels in 1usize..40,
        ) {
            Isa::available().for_each(|isa| { agree(isa, batch, input, channels, &kinds, &[1, 3]); });
        }
    }

    #[test]
    fn strips_that_share_halo_lines_match() {
        let (pointwise, depthwise) = ((false, 48, [1; 2], [1; 2], [0; 2]), (true, 0, [3; 2], [1; 2], [1; 2]));
        let strided = (true, 0, [5; 2], [2; 2], [2; 2]);
        let threads: &[usize] = if cfg!(miri) { &[1] } else { &[1, 2, 4] };
        let size = if cfg!(miri) { [5, 3] } else { [120, 90] };
        for kinds in [&[pointwise, depthwise, pointwise][..], &[depthwise, pointwise, strided, depthwise]] {
            assert!(agree(Isa::portable(), 1, size, 20, kinds, threads));
        }
    }

    #[test]
    fn one_thread_computes_every_line_once() {
        let kinds = [(false, 96, [1; 2], [1; 2], [0; 2]), (true, 0, [3; 2], [1; 2], [1; 2])];
        let counted = |threads: &[usize]| {
            let before = pteron_pool::counted();
            assert!(agree(Isa::portable(), 1, [64, 64], 8, &kinds, threads));
            pteron_pool::counted() - before
        };
        assert_eq!(counted(&[1]) - counted(&[]), 64 * 64 * (8 * 96 + 96 * 9));
    }

    #[test]
    fn small_images_and_many_threads_are_not_chained() {
        let p = link(96, (true, 0, [3; 2], [1; 2], [1; 2]));
        let frame = |n| ConvFrame { batch: 1, input: [1, n, n], output: [1, n, n] };
        assert!(chain_pays(&p, &frame(56), 2) && chain_pays(&p, &frame(56), 14));
        assert!(!chain_pays(&p, &frame(56), 16) && !chain_pays(&p, &frame(14), 1));
        let dense = ConvParams { padding: [0, 1, 1], ..ConvParams::conv2d(96, 96, [3, 3]) };
        assert!(
            can_chain(&p, Layout::ChannelsLast, &frame(56))
                && !can_chain(&p, Layout::ChannelsFirst, &frame(56))
        );
        assert!(!can_chain(&dense, Layout::ChannelsLast, &frame(56)));
    }
}
