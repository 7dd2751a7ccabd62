use crate::{Error, Result};
use pteron_tensor::{Scalar, Shape, TensorView, TensorViewMut};
use smallvec::SmallVec;

/// One output of a call.
#[derive(Debug)]
pub enum Out<'a> {
    /// A tensor.
    Tensor(TensorViewMut<'a>),
    /// Tensors.
    Tensors(SmallVec<[TensorViewMut<'a>; 4]>),
    /// A scalar; `None` until the kernel sets it.
    Scalar(Option<Scalar>),
    /// The sizes of a view of an argument; `None` until the kernel sets them.
    View(Option<Shape>),
}

/// The outputs of a call: the schema's written arguments in order, then the fresh result, if the schema has one.
#[derive(Debug, Default)]
pub struct Outs<'a> {
    list: SmallVec<[Out<'a>; 3]>,
}

impl<'a> Outs<'a> {
    /// The outs of a call, in this order.
    pub fn new(list: SmallVec<[Out<'a>; 3]>) -> Self {
        Self { list }
    }

    /// The number of outs.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the call has no outs.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The out at this index as a writable tensor.
    pub fn tensor(&mut self, index: usize) -> Result<&mut TensorViewMut<'a>> {
        match self.list.get_mut(index) {
            Some(Out::Tensor(t)) => Ok(t),
            _ => Err(kind_error(index, "a tensor")),
        }
    }

    /// The out at this index as a read-only tensor.
    pub fn read(&self, index: usize) -> Result<TensorView<'_>> {
        match self.list.get(index) {
            Some(Out::Tensor(t)) => Ok(t.as_view()),
            _ => Err(kind_error(index, "a tensor")),
        }
    }

    /// Several outs as writable tensors. The indices must be distinct.
    pub fn tensors<const N: usize>(&mut self, indices: [usize; N]) -> Result<[&mut TensorViewMut<'a>; N]> {
        let outs = self
            .list
            .get_disjoint_mut(indices)
            .map_err(|_| Error::invalid(format!("the call has no outs {indices:?}")))?;
        let mut bad = None;
        let tensors = outs.map(|out| match out {
            Out::Tensor(t) => Some(t),
            _ => {
                bad = Some(());
                None
            }
        });
        if bad.is_some() {
            return Err(kind_error(indices[0], "a tensor"));
        }
        Ok(tensors.map(|t| t.expect("absent tensors were refused above")))
    }

    /// The out at this index as a list of writable tensors.
    pub fn list(&mut self, index: usize) -> Result<&mut [TensorViewMut<'a>]> {
        match self.list.get_mut(index) {
            Some(Out::Tensors(list)) => Ok(list),
            _ => Err(kind_error(index, "a list of tensors")),
        }
    }

    /// Sets the out at this index to a scalar.
    pub fn set(&mut self, index: usize, value: Scalar) -> Result<()> {
        match self.list.get_mut(index) {
            Some(Out::Scalar(slot)) => {
                *slot = Some(value);
                Ok(())
            }
            _ => Err(kind_error(index, "a number")),
        }
    }

    /// Sets the sizes of the out at this index, which is a view of an argument.
    pub fn set_view(&mut self, index: usize, sizes: Shape) -> Result<()> {
        match self.list.get_mut(index) {
            Some(Out::View(slot)) => {
                *slot = Some(sizes);
                Ok(())
            }
            _ => Err(kind_error(index, "a view")),
        }
    }

    /// Unwraps the list of outs.
    pub fn into_inner(self) -> SmallVec<[Out<'a>; 3]> {
        self.list
    }
}

#[cold]
fn kind_error(index: usize, expected: &'static str) -> Error {
    Error::invalid(format!(
        "out {index} is not {expected}; the program's value table disagrees with the schema"
    ))
}
