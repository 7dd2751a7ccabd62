//! Convolution of channels-last images line by line: neighbouring pixels of an output line read pixels a fixed stride
//! apart, and every tap adds a fixed offset. No row needs a pointer of its own, and all groups use the same offsets.
//! If patches cross the border of the image, its lines are copied with their padding, a strip at a time.

use super::super::gemm::driver::{MAX_F32_SUM, accumulation_len};
use super::super::gemm::sweep::{LhsBlock, RhsBlock, Sweep};
use super::super::gemm::tile;
use super::super::scratch;
use super::super::split::{self, Grid};
use super::params::{ConvFrame, ConvParams, Layout};
use super::patches::Run;
use super::phase::{KC, MC};
use super::problem::Problem;
use pteron_pool::Pool;
use std::ops::Range;

/// The smallest width of an output line: tiles end with the line, so shorter lines would leave them mostly empty.
const MIN_WIDTH: usize = 4;
/// The maximum number of filter taps that this algorithm supports.
const MAX_TAPS: usize = 64;
/// The number of input channels below which neighbouring taps of a kernel line are merged into one.
const FEW_CHANNELS: usize = 16;
/// The largest extent of the kernel beyond its first tap, largest padding and largest stride along a dimension, in
/// pixels.
const MAX_REACH: usize = 64;
/// The approximate number of elements in the input lines that are copied at once: they stay in the L2 cache.
const COPIED: usize = 1 << 15;
/// The maximum number of elements in the input lines that are copied for a block.
const MAX_COPIED: usize = 1 << 20;

/// The layout of the lines that a convolution reads.
pub(super) struct Lines {
    /// Whether input lines are copied before they are read.
    copied: bool,
    /// Line stride of the image, or of the copy, in elements.
    pitch: usize,
    /// The number of neighbouring taps that are merged into one, because their pixels are contiguous.
    wide: usize,
    offsets: [usize; MAX_TAPS],
    /// The number of taps after merging.
    taps: usize,
    /// The number of output lines in a block.
    block: usize,
    /// The number of output lines whose input is copied at once.
    strip: usize,
}

impl Lines {
    /// The layout of the input lines; `None` if this algorithm does not support the convolution, or reading the images
    /// pixel by pixel is faster.
    pub(super) fn new(
        p: &ConvParams,
        frame: &ConvFrame,
        layouts: (Layout, Layout),
        tail: bool,
    ) -> Option<Self> {
        if p.tap_count() == 0 {
            return None;
        }
        let flat = [p.kernel[0], frame.input[0], frame.output[0]] == [1; 3] && p.padding[0] == 0;
        let reach: [usize; 2] =
            std::array::from_fn(|d| (p.kernel[d + 1] - 1).saturating_mul(p.dilation[d + 1]));
        let near = reach.iter().chain(&p.padding).chain(&p.stride).all(|&n| n <= MAX_REACH);
        let ci = p.in_channels / p.groups;
        if layouts != (Layout::ChannelsLast, Layout::ChannelsLast)
            || p.transposed
            || !flat
            || !near
            || p.tap_count() > MAX_TAPS
            || frame.output[2] < MIN_WIDTH
            || ci == 0
            || ci * p.tap_count() > MAX_F32_SUM
        {
            return None;
        }
        // Extent of the image and its padding that the output reads, along each dimension.
        let needed: [usize; 2] =
            std::array::from_fn(|d| (frame.output[d + 1] - 1) * p.stride[d + 1] + reach[d] + 1);
        let copied = p.padding != [0; 3] || (0..2).any(|d| needed[d] > frame.input[d + 1]);
        let pitch = if copied { needed[1] } else { frame.input[2] } * p.in_channels;
        let block = (MC / frame.output[2]).clamp(1, frame.output[1]);
        let copied_by = |lines: usize| ((lines - 1) * p.stride[1] + reach[0] + 1).saturating_mul(pitch);
        if copied && copied_by(block) > MAX_COPIED {
            return None;
        }
        // A tail runs after each strip: strips are then a single block.
        let blocks = if tail || !copied { 1 } else { (COPIED / copied_by(block)).max(1) };
        let merges_taps =
            p.groups == 1 && p.dilation[2] == 1 && ci < FEW_CHANNELS && ci * p.tap_count() <= KC;
        let wide = if merges_taps { p.kernel[2] } else { 1 };
        let mut offsets = [0; MAX_TAPS];
        let columns = p.kernel[2] / wide;
        for (t, offset) in offsets[..p.kernel[1] * columns].iter_mut().enumerate() {
            *offset = t / columns * p.dilation[1] * pitch + t % columns * p.dilation[2] * p.in_channels;
        }
        Some(Self { copied, pitch, wide, offsets, taps: p.kernel[1] * columns, block, strip: blocks * block })
    }
}

/// A task: some lines of the output, counted through all images, some groups, and some channels of each group.
struct Share {
    lines: Range<usize>,
    groups: Range<usize>,
    cols: Range<usize>,
}

impl Run<'_> {
    /// Computes all images, divided among `threads` threads by lines, then by groups or by channels.
    pub(super) fn run_by_lines(&self, pool: &Pool, threads: usize, lines: &Lines) {
        let Problem { isa, p, frame, epilogue, .. } = self.problem;
        let (all, cols) = (frame.batch * frame.output[1], p.out_channels / p.groups);
        let (count, unit) = match p.groups {
            // A tail needs all channels of a pixel.
            1 if epilogue.tail.is_some() => (cols, cols),
            1 => (cols, tile::panel_cols(isa)),
            groups => (groups, 1),
        };
        let grid = Grid::new(threads, [all, count], [1, unit]);
        let part = |t: usize| {
            let [lines_of, columns] = grid.task_block(t);
            let (groups, cols) = if p.groups == 1 { (0..1, columns) } else { (columns, 0..cols) };
            // SAFETY: tasks have lines, groups or channels of their own.
            unsafe { self.run_share(lines, &Share { lines: lines_of, groups, cols }) };
        };
        split::run_tasks(pool, threads, grid.task_count(), part);
    }

    /// Computes the lines of a task, strip by strip.
    ///
    /// # Safety
    /// No other task accesses the pixels and channels of the share meanwhile.
    unsafe fn run_share(&self, lines: &Lines, share: &Share) {
        if share.groups.is_empty() || share.cols.is_empty() {
            return;
        }
        let Problem { p, frame, x, epilogue, .. } = self.problem;
        let [_, height, width] = frame.output;
        let pixels = frame.in_pixels() * p.in_channels;
        let mut line = share.lines.start;
        while line < share.lines.end {
            let (n, y) = (line / height, line % height);
            let end = share.lines.end.min(line - y + height).min(line + lines.strip);
            let strip = y..y + (end - line);
            let image = &x[n * pixels..][..pixels];
            if lines.copied {
                let count = (strip.len() - 1) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + 1;
                scratch::with_buffer(count * lines.pitch, |copy| {
                    self.copy_lines(image, y, lines.pitch, copy);
                    // SAFETY: as the caller promises.
                    unsafe { self.run_strip(lines, n, strip.clone(), share, copy) };
                });
            } else {
                // SAFETY: as the caller promises.
                unsafe {
                    self.run_strip(lines, n, strip.clone(), share, &image[y * p.stride[1] * lines.pitch..])
                };
            }
            if epilogue.tail.is_some() {
                let rows = strip.start * width..strip.end * width;
                // SAFETY: as the caller promises.
                let c = unsafe { self.output_block(n, 0, rows.clone(), share.cols.clone()) };
                self.run_tail(n, rows, c);
            }
            line = end;
        }
    }

    /// Copies the input lines that are read by output line `y` and those after it, with zeros on either side, to
    /// lines of `pitch` elements. Lines outside the image are zero.
    fn copy_lines(&self, image: &[f32], y: usize, pitch: usize, copy: &mut [f32]) {
        let (p, frame) = (self.problem.p, self.problem.frame);
        let len = frame.input[2] * p.in_channels;
        let before = (p.padding[2] * p.in_channels).min(pitch);
        for (i, to) in copy.chunks_exact_mut(pitch).enumerate() {
            match (y * p.stride[1] + i).checked_sub(p.padding[1]).filter(|&line| line < frame.input[1]) {
                Some(line) => {
                    let (first, to) = to.split_at_mut(before);
                    let (to, last) = to.split_at_mut(len.min(to.len()));
                    first.fill(0.0);
                    to.copy_from_slice(&image[line * len..][..to.len()]);
                    last.fill(0.0);
                }
                None => to.fill(0.0),
            }
        }
    }

    /// Computes lines of the output of image `n`; `data` begins with the first line that the first of them reads.
    ///
    /// # Safety
    /// As for [`Self::run_share`].
    unsafe fn run_strip(&self, lines: &Lines, n: usize, strip: Range<usize>, share: &Share, data: &[f32]) {
        let Problem { isa, p, frame, .. } = self.problem;
        let width = frame.output[2];
        let ci = p.in_channels / p.groups;
        let step = p.stride[2] * p.in_channels;
        let height = width.div_ceil(width.div_ceil(tile::max_rows_in_place(isa)));
        let (k, run) = (ci * lines.wide, accumulation_len(p.tap_count() * ci, KC));
        for first in strip.clone().step_by(lines.block) {
            let block = first..strip.end.min(first + lines.block);
            let rows = block.start * width..block.end * width;
            let data = &data[(first - strip.start) * p.stride[1] * lines.pitch..];
            for g in share.groups.clone() {
                // SAFETY: as the caller promises.
                let mut c = unsafe { self.output_block(n, g, rows.clone(), share.cols.clone()) };
                let epilogue = self.gemm_epilogue(n, g, rows.clone());
                for chunk in self.phase.chunks(lines.taps, k, run) {
                    let row = chunk.taps.start * k + chunk.channels.start;
                    let sweep = Sweep {
                        isa,
                        epilogue: &epilogue,
                        rows: 0..rows.len(),
                        cols: share.cols.clone(),
                        height,
                        k: chunk.channels.len(),
                        b: RhsBlock::of_packed(&self.phase.weights[g], share.cols.start, row),
                        accumulate: row > 0,
                        last: (chunk.taps.end, chunk.channels.end) == (lines.taps, k),
                    };
                    let left = LhsBlock::Lines {
                        data: &data[g * ci + chunk.channels.start..],
                        width,
                        line: p.stride[1] * lines.pitch,
                        step,
                        offsets: &lines.offsets[chunk.taps],
                    };
                    sweep.run(left, c.reborrow());
                }
            }
        }
    }
}
