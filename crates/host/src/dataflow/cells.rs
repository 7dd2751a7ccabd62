//! The registers of an asynchronous execution, shared by its threads. The `unsafe` here: a register
//! is a plain cell; who may touch it when is decided by the ready counts of the kernels that use it.

use crate::sync::{AtomicU8, AtomicU32, Ordering, UnsafeCell};
use crate::value::Value;

/// A register: set once, and then taken or copied by each of its users.
pub(crate) struct Cell {
    value: UnsafeCell<Value>,
    /// Uses to come, of those that the function has.
    uses: AtomicU32,
}

// SAFETY: the contracts of `put` and `take_use` keep writes apart from all other accesses, and values
// are `Send` and `Sync`.
unsafe impl Sync for Cell {}

impl Cell {
    /// A register that holds this, perhaps nothing yet, and will be used so many times.
    pub(crate) fn new(value: Value, uses: u32) -> Self {
        Self { value: UnsafeCell::new(value), uses: AtomicU32::new(uses) }
    }

    /// Sets the register.
    ///
    /// # Safety
    /// Called once, before anybody is told (with release) that the register is set.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, value: Value) {
        // SAFETY: the caller promises that nobody else looks yet. What is overwritten is the empty
        // value, which needs no drop.
        self.value.with_mut(|cell| unsafe { cell.write(value) });
    }

    /// As [`Self::put`], of a copy of a value that mostly is plain.
    ///
    /// # Safety
    /// As for [`Self::put`].
    #[inline(always)]
    pub(crate) unsafe fn put_copy(&self, value: &Value) {
        // SAFETY: the caller promises that nobody else looks yet.
        self.value.with_mut(|cell| unsafe { (*cell).put_copy(value) });
    }

    /// Takes back what was put into the register.
    ///
    /// # Safety
    /// Called after [`Self::put`], before anybody is told that the register is set.
    pub(crate) unsafe fn take_back(&self) -> Value {
        // SAFETY: the caller promises that nobody else looks yet.
        self.value.with_mut(|cell| std::mem::take(unsafe { &mut *cell }))
    }

    /// Uses the register: the last use takes the value, the others copy it.
    ///
    /// # Safety
    /// The caller has learnt (with acquire) that the register is set, and calls this at most as often
    /// as it was counted among the uses that the register was made with.
    #[inline(always)]
    pub(crate) unsafe fn take_use(&self) -> Value {
        let mut value = Value::Empty;
        // SAFETY: passed on to the caller.
        unsafe { self.take_use_into(&mut value) };
        value
    }

    /// As [`Self::take_use`], to a place that mostly holds a plain value.
    ///
    /// # Safety
    /// As for [`Self::take_use`].
    #[inline(always)]
    pub(crate) unsafe fn take_use_into(&self, place: &mut Value) {
        // SAFETY: the register is set, and nobody writes the cell while uses are left besides this
        // one, which has not counted itself out.
        let copied = self.value.with(|cell| unsafe {
            let is_plain = (*cell).is_plain();
            if is_plain {
                place.put_copy(&*cell);
            }
            is_plain
        });
        if !copied {
            // SAFETY: passed on to the caller.
            *place = unsafe { self.take_shared_use() };
        }
    }

    /// As [`Self::take_use`], of a value that shares something. Uses of plain values are not counted.
    ///
    /// # Safety
    /// As for [`Self::take_use`].
    #[inline(never)]
    unsafe fn take_shared_use(&self) -> Value {
        // A count of one means that every other use is over: their copies were made before they
        // counted themselves out (release), and this load has seen that (acquire).
        if self.uses.load(Ordering::Acquire) == 1 {
            // SAFETY: this is the only use left, so nobody else looks at the cell.
            return self.value.with_mut(|cell| unsafe { std::mem::take(&mut *cell) });
        }
        // SAFETY: nobody writes the cell while uses are left besides this one.
        let copy = self.value.with(|cell| unsafe { (*cell).clone() });
        if self.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Another use ended meanwhile, and this one is the last after all.
            // SAFETY: all uses are over, and the count tells only this thread so.
            self.value.with_mut(|cell| drop(unsafe { std::mem::take(&mut *cell) }));
        }
        copy
    }
}

/// Operands that a kernel waits for.
pub(crate) struct ReadyCount(AtomicU32);

impl ReadyCount {
    pub(crate) fn new(operands: u32) -> Self {
        Self(AtomicU32::new(operands))
    }

    /// Counts an operand in. True for the call that counts the last one: what was done before any of
    /// the calls is visible after it.
    #[inline(always)]
    pub(crate) fn arrive(&self) -> bool {
        // Whoever sees 1 is the only one to come, which makes the costly subtraction unnecessary.
        self.0.load(Ordering::Acquire) == 1 || self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// Says whether a result of a function is there, or who waits for it.
pub(crate) struct ResultSlot {
    state: AtomicU8,
    promise: UnsafeCell<Option<crate::async_value::Promise>>,
}

const UNSET: u8 = 0;
const SET: u8 = 1;
const PROMISED: u8 = 2;

// SAFETY: `promise` is written before `state` becomes PROMISED (release) by the only caller of
// `promise`, and taken only by the only caller of `set`, after it has seen that (acquire).
unsafe impl Sync for ResultSlot {}

impl ResultSlot {
    /// The slot of a result whose register is set, or not yet.
    pub(crate) fn new(set: bool) -> Self {
        Self { state: AtomicU8::new(if set { SET } else { UNSET }), promise: UnsafeCell::new(None) }
    }

    /// Says that the result's register is set. Gives the promise to keep, if the caller of the
    /// function has gone on with one.
    ///
    /// # Safety
    /// Called once, after the register was put.
    pub(crate) unsafe fn set(&self) -> Option<crate::async_value::Promise> {
        if self.state.swap(SET, Ordering::AcqRel) != PROMISED {
            return None;
        }
        // SAFETY: the exchange has seen PROMISED, so the promise is there and nobody else touches it.
        self.promise.with_mut(|cell| unsafe { (*cell).take() })
    }

    /// Asks for the result: true if its register is set. Else `promise` is kept for [`Self::set`].
    ///
    /// # Safety
    /// Called once.
    pub(crate) unsafe fn is_set_or(&self, promise: impl FnOnce() -> crate::async_value::Promise) -> bool {
        if self.state.load(Ordering::Acquire) == SET {
            return true;
        }
        // SAFETY: nobody else touches the cell before the state becomes PROMISED.
        self.promise.with_mut(|cell| unsafe { *cell = Some(promise()) });
        let outcome = self.state.compare_exchange(UNSET, PROMISED, Ordering::AcqRel, Ordering::Acquire);
        if outcome.is_ok() {
            return false;
        }
        // SAFETY: the state is SET and was not PROMISED: nobody else ever touches the cell.
        let unused = self.promise.with_mut(|cell| unsafe { (*cell).take() });
        if let Some(promise) = unused {
            promise.discard();
        }
        true
    }
}
