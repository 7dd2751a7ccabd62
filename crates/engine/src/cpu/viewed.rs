//! Elementwise expressions of views of tensors, which are read in place.

use super::lowering::{Lower, Lowered, Lowering};
use super::pointwise::{InputIndex, Pass};
use crate::ops::viewed::Viewed;
use crate::strided::View;
use pteron_operator::Result;

impl Lower for Viewed {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let output = node.output(0)?;
        let access = self.views.iter().enumerate().map(|(i, view)| match view {
            Some(view) => Ok(view_access(view)),
            None => Ok(InputIndex::of(node.input(i)?, output)),
        });
        let access = access.collect::<Result<_>>()?;
        Ok(Lowered::step(Pass::with_access(&self.expression, access, node.isa()), 0..node.num_inputs()))
    }
}

/// How the elements of an input are accessed through a view with the sizes of the output, which is row-major.
fn view_access(view: &View) -> InputIndex {
    let mut parts = view.parts();
    if parts.is_empty() {
        parts.push((1, 0));
    }
    let (sizes, strides) = parts.into_iter().unzip();
    InputIndex::Strided { offset: view.offset, sizes, strides }
}
