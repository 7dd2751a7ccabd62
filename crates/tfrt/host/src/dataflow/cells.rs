//! The registers of an asynchronous execution, shared by its threads. The `unsafe` code here: a register is a plain
//! cell; the ready counts of the kernels that use it order all accesses.

use crate::sync::{AtomicU8, AtomicU32, Ordering, UnsafeCell};
use crate::value::Value;

/// A register: set once, then copied or taken by each of its users.
pub(crate) struct Cell {
    value: UnsafeCell<Value>,
    /// Number of uses of the register that have not happened yet.
    uses: AtomicU32,
}

// SAFETY: under the contracts of `put` and `take_use` no write is concurrent with another access, and values are
// `Send` and `Sync`.
unsafe impl Sync for Cell {}

impl Cell {
    /// A register that holds `value`, perhaps [`Value::Empty`], and has this number of uses.
    pub(crate) fn new(value: Value, uses: u32) -> Self {
        Self { value: UnsafeCell::new(value), uses: AtomicU32::new(uses) }
    }

    /// Sets the register.
    ///
    /// # Safety
    /// Called once, before any other thread is notified (with release) that the register is set.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, value: Value) {
        // SAFETY: the caller promises that nobody else accesses the cell yet. The overwritten value is
        // `Value::Empty`, which needs no drop.
        self.value.with_mut(|cell| unsafe { cell.write(value) });
    }

    /// As [`Self::put`], with a copy of `value`; optimized for plain values.
    ///
    /// # Safety
    /// As for [`Self::put`].
    #[inline(always)]
    pub(crate) unsafe fn put_copy(&self, value: &Value) {
        // SAFETY: the caller promises that nobody else accesses the cell yet.
        self.value.with_mut(|cell| unsafe { (*cell).put_copy(value) });
    }

    /// Takes the value out of the register again.
    ///
    /// # Safety
    /// Called after [`Self::put`], before any other thread is notified that the register is set.
    pub(crate) unsafe fn take_back(&self) -> Value {
        // SAFETY: the caller promises that nobody else accesses the cell yet.
        self.value.with_mut(|cell| std::mem::take(unsafe { &mut *cell }))
    }

    /// Uses the register: the last use moves the value out, the others copy it.
    ///
    /// # Safety
    /// The caller has observed (with acquire) that the register is set, and all callers together call this at most as
    /// often as the number of uses that the register was created with.
    #[inline(always)]
    pub(crate) unsafe fn take_use(&self) -> Value {
        let mut value = Value::Empty;
        // SAFETY: passed on to the caller.
        unsafe { self.take_use_into(&mut value) };
        value
    }

    /// As [`Self::take_use`], into `place`; optimized for plain values on both sides.
    ///
    /// # Safety
    /// As for [`Self::take_use`].
    #[inline(always)]
    pub(crate) unsafe fn take_use_into(&self, place: &mut Value) {
        // SAFETY: the register is set, and nobody writes the cell while another use remains; this one has not
        // decremented the count yet.
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

    /// As [`Self::take_use`], for a refcounted value. Uses of plain values are not counted.
    ///
    /// # Safety
    /// As for [`Self::take_use`].
    #[inline(never)]
    unsafe fn take_shared_use(&self) -> Value {
        // A count of one means that every other use is over: each made its copy before it decremented the count
        // (release), and this load has observed that (acquire).
        if self.uses.load(Ordering::Acquire) == 1 {
            // SAFETY: this is the only use left, so nobody else accesses the cell.
            return self.value.with_mut(|cell| unsafe { std::mem::take(&mut *cell) });
        }
        // SAFETY: nobody writes the cell while this use remains.
        let copy = self.value.with(|cell| unsafe { (*cell).clone() });
        if self.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The other uses ended meanwhile, so this one is the last after all.
            // SAFETY: all uses are over, and only this thread saw the count reach zero.
            self.value.with_mut(|cell| drop(unsafe { std::mem::take(&mut *cell) }));
        }
        copy
    }
}

/// The number of operands that a kernel still waits for.
pub(crate) struct ReadyCount(AtomicU32);

impl ReadyCount {
    pub(crate) fn new(operands: u32) -> Self {
        Self(AtomicU32::new(operands))
    }

    /// Records that an operand is available. Returns true for the last operand; everything that happened before any
    /// of the calls is then visible to the caller.
    #[inline(always)]
    pub(crate) fn arrive(&self) -> bool {
        // A thread that reads 1 is the last to arrive, so it can skip the costly atomic subtraction.
        self.0.load(Ordering::Acquire) == 1 || self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The state of a function's result: not set, set, or promised to the caller.
pub(crate) struct ResultSlot {
    state: AtomicU8,
    promise: UnsafeCell<Option<crate::async_value::Promise>>,
}

const UNSET: u8 = 0;
const SET: u8 = 1;
const PROMISED: u8 = 2;

// SAFETY: the only caller of `is_set_or_store` writes `promise` before it sets `state` to PROMISED (release); only the
// single caller of `mark_set` takes it, after it has read that state (acquire).
unsafe impl Sync for ResultSlot {}

impl ResultSlot {
    /// The slot of a result; `set` is whether its register is set already.
    pub(crate) fn new(set: bool) -> Self {
        Self { state: AtomicU8::new(if set { SET } else { UNSET }), promise: UnsafeCell::new(None) }
    }

    /// Records that the result's register is set. Returns the promise to resolve if the function's caller has continued
    /// with an asynchronous value.
    ///
    /// # Safety
    /// Called once, after the register was put.
    pub(crate) unsafe fn mark_set(&self) -> Option<crate::async_value::Promise> {
        if self.state.swap(SET, Ordering::AcqRel) != PROMISED {
            return None;
        }
        // SAFETY: the exchange read PROMISED, so the promise has been stored and nobody else accesses it.
        self.promise.with_mut(|cell| unsafe { (*cell).take() })
    }

    /// Returns true if the result's register is set. Otherwise stores `promise()` for [`Self::mark_set`].
    ///
    /// # Safety
    /// Called once.
    pub(crate) unsafe fn is_set_or_store(
        &self,
        promise: impl FnOnce() -> crate::async_value::Promise,
    ) -> bool {
        if self.state.load(Ordering::Acquire) == SET {
            return true;
        }
        // SAFETY: nobody else accesses the cell before the state becomes PROMISED.
        self.promise.with_mut(|cell| unsafe { *cell = Some(promise()) });
        let outcome = self.state.compare_exchange(UNSET, PROMISED, Ordering::AcqRel, Ordering::Acquire);
        if outcome.is_ok() {
            return false;
        }
        // SAFETY: the state is SET and was not PROMISED: nobody else ever accesses the cell.
        let unused = self.promise.with_mut(|cell| unsafe { (*cell).take() });
        if let Some(promise) = unused {
            promise.discard();
        }
        true
    }
}
