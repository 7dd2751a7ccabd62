//! Convolution as products of patches by weights, for images of any layout.
//!
//! A transposed convolution of stride `s` decomposes into `s` ordinary ones a dimension, its phases: all output
//! pixels of a phase use the same taps. A convolution that is not transposed has one phase.

use super::super::gemm::{PackedB, WeightStorage, tile};
use super::super::isa::Isa;
use super::super::mat::Shared;
use super::super::packed_weights::PackedWeightsReader;
use super::super::split::{self, Grid};
use super::lines::Lines;
use super::params::{ConvParams, Layout};
use super::patches::Run;
use super::phase::{Phase, first_pixels};
use super::problem::Problem;
use super::weights::ConvWeights;
use pteron_pool::Pool;
use pteron_tensor::Result;
use std::ops::Range;

#[derive(Debug)]
pub(super) struct RowsConv {
    phases: Vec<Phase>,
    input: Layout,
    output: Layout,
}

impl RowsConv {
    pub(super) fn new(
        isa: Isa,
        p: &ConvParams,
        weights: &ConvWeights<'_>,
        storage: WeightStorage<'_>,
        (input, output): (Layout, Layout),
    ) -> Result<Self> {
        let phases = first_pixels(p).map(|first| Phase::new(isa, p, weights, first, storage));
        Ok(Self { phases: phases.collect::<Result<_>>()?, input, output })
    }

    pub(super) fn from_packed(
        isa: Isa,
        p: &ConvParams,
        storage: WeightStorage<'_>,
        (input, output): (Layout, Layout),
        from: &mut PackedWeightsReader,
    ) -> Option<Self> {
        let phases = first_pixels(p).map(|first| Phase::from_packed(isa, p, first, storage, from));
        Some(Self { phases: phases.collect::<Option<_>>()?, input, output })
    }

    pub(super) fn store(&self, out: &mut Vec<u8>) {
        self.phases.iter().flat_map(|phase| &phase.weights).for_each(|group| group.store(out));
    }

    /// Whether results are contiguous: all channels of neighbouring pixels are computed together.
    pub(super) fn computes_in_parts(&self, p: &ConvParams) -> bool {
        self.output == Layout::ChannelsLast && p.groups == 1 && !p.transposed
    }

    pub(super) fn nbytes(&self) -> usize {
        self.phases.iter().flat_map(|phase| &phase.weights).map(PackedB::nbytes).sum()
    }

    /// The computation of one phase of `problem`, which writes to `out`.
    fn phase_run<'a>(&self, problem: Problem<'a>, out: Shared<'a>, phase: &'a Phase) -> Run<'a> {
        let count = phase.pixel_counts(problem.frame.output);
        Run { problem, out, input: self.input, output: self.output, phase, count }
    }

    /// Computes a range of pixels and channels of image `n`, for a convolution with one group that is not transposed.
    ///
    /// # Safety
    /// No other task accesses these meanwhile.
    pub(super) unsafe fn compute_pixels(
        &self,
        problem: Problem<'_>,
        out: Shared<'_>,
        (n, pixels, cols): (usize, Range<usize>, Range<usize>),
    ) {
        for phase in &self.phases {
            let run = self.phase_run(problem, out, phase);
            // SAFETY: as the caller promises.
            unsafe { run.compute_part(n, 0, pixels.clone(), cols.clone()) };
        }
    }

    pub(super) fn run(&self, pool: &Pool, problem: Problem<'_>, out: &mut [f32]) {
        let Problem { isa, p, frame, epilogue, .. } = problem;
        let out = Shared::new(out);
        for phase in &self.phases {
            let run = self.phase_run(problem, out, phase);
            let rows: usize = run.count.iter().product();
            let cols = p.out_channels / p.groups;
            if rows == 0 {
                continue;
            }
            let units = frame.batch * p.groups;
            let k = phase.taps.len() * (p.in_channels / p.groups);
            let work = units.saturating_mul(rows).saturating_mul(cols).saturating_mul(k);
            pteron_pool::count(work);
            let threads = split::thread_count(pool, work, split::PRODUCTS);
            let layouts = (self.input, self.output);
            if !run.is_pointwise()
                && let Some(lines) = Lines::new(p, frame, layouts, epilogue.tail.is_some())
            {
                run.run_by_lines(pool, threads, &lines);
                continue;
            }
            // A tail needs all channels of a pixel.
            let col_unit = if epilogue.tail.is_some() { cols } else { tile::panel_cols(isa) };
            let grid_units = [tile::max_rows_in_place(isa), col_unit];
            let grid = Grid::new(threads.div_ceil(units.max(1)), [rows, cols], grid_units);
            let part = |t: usize| {
                let (unit, [rows, cols]) = (t / grid.task_count(), grid.task_block(t % grid.task_count()));
                // SAFETY: units have an image or a group of their own, and the shares of a unit differ in their rows
                // or columns.
                unsafe { run.compute_part(unit / p.groups, unit % p.groups, rows, cols) };
            };
            split::run_tasks(pool, threads, units * grid.task_count(), part);
        }
    }
}
