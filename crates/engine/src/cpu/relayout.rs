//! Changes of layout. [`Reshape`] and [`Permute`] move no elements: their results are aliases.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::layouts::image_layout;
use crate::ops::relayout::{Permute, Relayout, Reshape};
use pteron_kernels::compute::{Isa, Layout, MatMut, MatRef, copy};
use pteron_operator::Error;
use pteron_operator::{KernelContext, Result};
use pteron_tensor::{ScalarType, TensorMeta, TensorView};

/// The rows and columns of a block in the transposition of bytes.
const BLOCK: usize = 64;

/// The number of rows of a transposition that a task copies.
const ROWS: usize = 256;

impl Lower for Reshape {
    fn lower(&self, _: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::Alias)
    }
}

impl Lower for Permute {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (from, to) = (node.input(0)?, node.output(0)?);
        if Self::keeps_bytes(&self.dims, from, to) {
            return Ok(Lowered::Alias);
        }
        Err(Error::invalid(format!("permuting {from} by {:?} to {to} would move elements", self.dims)))
    }
}

impl Lower for Relayout {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (from, to) = (node.input(0)?, node.output(0)?);
        // The layouts may differ only in dimensions of size 1.
        if from.dim_order().same_layout(to.dim_order(), from.sizes()) {
            return Ok(Lowered::Alias);
        }
        Ok(Lowered::step(RelayoutStep::new(from, to, node.isa()), [0]))
    }
}

/// A change of layout. Between the image layouts it transposes the matrix of channels and pixels of each image.
pub(crate) struct RelayoutStep {
    /// The rows and columns of each output image as a matrix; `None` unless the change of layout transposes it.
    matrices: Option<(usize, usize)>,
    isa: Isa,
}

impl RelayoutStep {
    pub(crate) fn new(from: &TensorMeta, to: &TensorMeta, isa: Isa) -> Self {
        let known = matches!(from.dtype(), ScalarType::Float | ScalarType::Char | ScalarType::Byte);
        let known = known && from.rank() >= 3 && from.sizes() == to.sizes();
        let pixels = from.sizes().get(2..).map_or(0, |s| s.iter().product());
        let matrices = match (image_layout(from), image_layout(to)) {
            (Some(Layout::ChannelsFirst), Some(Layout::ChannelsLast)) if known => {
                Some((pixels, from.sizes()[1]))
            }
            (Some(Layout::ChannelsLast), Some(Layout::ChannelsFirst)) if known => {
                Some((from.sizes()[1], pixels))
            }
            _ => None,
        };
        Self { matrices: matrices.filter(|(r, c)| r * c > 0), isa }
    }
}

impl Step for RelayoutStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (x, out) = (&reads[0], only_output(&mut writes)?);
        let Some((rows, cols)) = self.matrices else { return Ok(x.relayout(out)?) };
        if x.dtype() != ScalarType::Float {
            let images =
                x.bytes().chunks_exact(rows * cols).zip(out.bytes_mut().chunks_exact_mut(rows * cols));
            images.for_each(|(x, out)| transpose_bytes(x, out, cols));
            return Ok(());
        }
        let (x, out) = (x.storage::<f32>()?, out.storage_mut::<f32>()?);
        for (x, out) in x.chunks_exact(rows * cols).zip(out.chunks_exact_mut(rows * cols)) {
            ctx.pool().parallel_chunks_mut(out, ROWS * cols, (1 << 15) / (ROWS * cols) + 1, &|i, out| {
                let n = out.len() / cols;
                let part = MatRef::strided(&x[i * ROWS..], n, cols, 1, rows);
                copy(self.isa, part, MatMut::new(out, n, cols));
            });
        }
        Ok(())
    }
}

/// Transposes a matrix; `out` has `cols` columns.
fn transpose_bytes(x: &[u8], out: &mut [u8], cols: usize) {
    let rows = out.len() / cols;
    if cols == 3 {
        let (a, rest) = x.split_at(rows);
        let (b, c) = rest.split_at(rows);
        let pixels = out.as_chunks_mut().0.iter_mut().zip(a.iter().zip(b.iter().zip(c)));
        return pixels.for_each(|(to, (&a, (&b, &c)))| *to = [a, b, c]);
    }
    // Blocked, so that the input and output blocks stay in the L1 cache.
    for r in (0..rows).step_by(BLOCK) {
        for c in (0..cols).step_by(BLOCK) {
            let end = rows.min(r + BLOCK);
            for (j, column) in x.chunks_exact(rows).enumerate().take(cols.min(c + BLOCK)).skip(c) {
                let places = out[r * cols + j..].iter_mut().step_by(cols);
                places.zip(&column[r..end]).for_each(|(to, &from)| *to = from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_transposed_across_blocks() {
        for (rows, cols) in [(1, 1), (3, 200), (130, 65), (64, 64), (200, 3)] {
            let x: Vec<u8> = (0..rows * cols).map(|i| (i * 7919 / 8) as u8).collect();
            let mut out = vec![0; x.len()];
            transpose_bytes(&x, &mut out, cols);
            for r in 0..rows {
                for c in 0..cols {
                    assert_eq!(out[r * cols + c], x[c * rows + r], "row {r}, column {c} of {rows}x{cols}");
                }
            }
        }
    }
}
