//! Handles: objects that JavaScript refers to by number.

use crate::failure::{Failure, Result};
use pteron::tensor::AlignedBuffer;
use std::collections::BTreeMap;

/// Objects by handle. Handles start at 1 and are never reused.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    items: BTreeMap<u32, T>,
    last: u32,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), last: 0 }
    }
}

impl<T> Handles<T> {
    /// Adds an object and returns its handle; `None` if all handles are used up.
    pub(crate) fn add(&mut self, item: T) -> Option<u32> {
        self.last = self.last.checked_add(1)?;
        self.items.insert(self.last, item);
        Some(self.last)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items.get_mut(&number)
    }

    pub(crate) fn take(&mut self, number: u32) -> Option<T> {
        self.items.remove(&number)
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

/// Buffers of memory that Rust and JavaScript read and write.
pub(crate) type Buffers = Handles<AlignedBuffer>;

impl Buffers {
    /// The bytes of a buffer that a request refers to.
    pub(crate) fn bytes_of(&self, number: u32) -> Result<&[u8]> {
        self.get(number).map(|buffer| &**buffer).ok_or_else(|| no_such_buffer(number))
    }

    /// Removes and returns a buffer whose ownership a request transfers to Rust.
    pub(crate) fn take_buffer(&mut self, number: u32) -> Result<AlignedBuffer> {
        self.take(number).ok_or_else(|| no_such_buffer(number))
    }

    /// Adds a buffer, and returns its handle for JavaScript.
    pub(crate) fn add_buffer(&mut self, buffer: AlignedBuffer) -> Result<u32> {
        self.add(buffer)
            .ok_or_else(|| Failure::invalid_input("all numbers of buffers are used up; load the module anew"))
    }
}

fn no_such_buffer(number: u32) -> Failure {
    Failure::invalid_input(format!("there is no buffer {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_not_reused() {
        let mut things = Handles::default();
        assert_eq!((things.add('a'), things.add('b')), (Some(1), Some(2)));
        assert_eq!((things.take(2), things.take(2), things.add('c')), (Some('b'), None, Some(3)));
        things.last = u32::MAX;
        assert_eq!((things.add('d'), things.len()), (None, 2));
    }
}
