//! Objects that are created once for each key, by the first that asks for them.

use crate::sync::{Condvar, Mutex, MutexGuard, ThreadId, lock};
use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// A shared object of any type.
pub(crate) type Shared = Arc<dyn Any + Send + Sync>;

/// Objects by key. A constructor may ask for other objects; a constructor that needs its own object, also by way of
/// others and of other threads, is refused.
pub(crate) struct Instances<K> {
    state: Mutex<State<K>>,
    changed: Condvar,
}

struct State<K> {
    objects: HashMap<K, Slot>,
    /// For each waiting thread, the key of the object that it waits for.
    waiting: HashMap<ThreadId, K>,
}

enum Slot {
    /// The object is being constructed by this thread.
    UnderConstruction(ThreadId),
    Ready(Shared),
}

/// The error for a constructor that asks, directly or through others, for the object that it constructs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle;

impl<K> Default for Instances<K> {
    fn default() -> Self {
        let state = State { objects: HashMap::new(), waiting: HashMap::new() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

/// Ends the construction of an object on drop. If the constructor panicked, the next thread that asks constructs it.
struct Construction<'a, K: Hash + Eq> {
    instances: &'a Instances<K>,
    key: Option<K>,
    object: Option<Shared>,
}

impl<K: Hash + Eq> Drop for Construction<'_, K> {
    fn drop(&mut self) {
        let mut state = lock(&self.instances.state);
        if let Some(key) = self.key.take() {
            match self.object.take() {
                Some(object) => state.objects.insert(key, Slot::Ready(object)),
                None => state.objects.remove(&key),
            };
        }
        drop(state);
        self.instances.changed.notify_all();
    }
}

impl<K: Hash + Eq + Clone> Instances<K> {
    /// The object of this key, created by `make` if there is none. Other threads wait for it meanwhile.
    ///
    /// # Errors
    /// [`Cycle`] if this thread, or one that waits for it, is creating the object.
    pub(crate) fn get(&self, key: &K, make: impl FnOnce() -> Shared) -> Result<Shared, Cycle> {
        let here = crate::nested::root_thread();
        let mut state = lock(&self.state);
        loop {
            match state.objects.get(key) {
                Some(Slot::Ready(object)) => return Ok(Arc::clone(object)),
                Some(Slot::UnderConstruction(_)) if state.waits_for(key, here) => return Err(Cycle),
                Some(Slot::UnderConstruction(_)) => state = self.wait(state, key, here),
                None => break,
            }
        }
        state.objects.insert(key.clone(), Slot::UnderConstruction(here));
        drop(state);
        let mut construction = Construction { instances: self, key: Some(key.clone()), object: None };
        let object = make();
        construction.object = Some(Arc::clone(&object));
        drop(construction);
        Ok(object)
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<K>>,
        key: &K,
        here: ThreadId,
    ) -> MutexGuard<'a, State<K>> {
        state.waiting.insert(here, key.clone());
        let mut state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        state.waiting.remove(&here);
        state
    }

    /// Removes all objects that are ready, and returns them.
    pub(crate) fn take_ready(&self) -> Vec<Shared> {
        let mut state = lock(&self.state);
        let ready = state.objects.extract_if(|_, slot| matches!(slot, Slot::Ready(_)));
        ready
            .filter_map(|(_, slot)| if let Slot::Ready(object) = slot { Some(object) } else { None })
            .collect()
    }
}

impl<K: Hash + Eq> State<K> {
    /// Whether the construction of the object with this key waits for `thread`, directly or through other threads.
    fn waits_for(&self, key: &K, thread: ThreadId) -> bool {
        let mut next = Some(key);
        while let Some(key) = next {
            match self.objects.get(key) {
                Some(Slot::UnderConstruction(by)) if *by == thread => return true,
                Some(Slot::UnderConstruction(by)) => next = self.waiting.get(by),
                _ => return false,
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn constructors_may_ask_for_other_objects_and_not_for_their_own() {
        let all = Instances::<&str>::default();
        let b = || all.get(&"b", || Arc::new(2));
        let first = all.get(&"a", || Arc::new(b().is_ok())).unwrap();
        assert_eq!(first.downcast_ref(), Some(&true));
        let itself = all
            .get(&"c", || Arc::new(all.get(&"d", || Arc::new(all.get(&"c", || Arc::new(1)).err())).is_ok()));
        assert_eq!(itself.unwrap().downcast_ref(), Some(&true));
        assert_eq!(all.get(&"d", || Arc::new(())).unwrap().downcast_ref(), Some(&Some(Cycle)));
        assert_eq!(all.take_ready().len(), 4);
    }

    #[test]
    fn a_constructor_that_panics_leaves_the_object_to_the_next() {
        let all = Instances::<u8>::default();
        let panics = || all.get(&0, || panic!("no object"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(all.get(&0, || Arc::new(5)).unwrap().downcast_ref(), Some(&5));
    }

    #[test]
    fn constructors_of_two_threads_that_need_each_other_are_refused() {
        let all = Instances::<u8>::default();
        let both = std::sync::Barrier::new(2);
        let refused = std::thread::scope(|scope| {
            let make = |own, other| {
                let (all, both) = (&all, &both);
                move || {
                    let mut refused = false;
                    let object = all.get(&own, || {
                        both.wait();
                        refused = all.get(&other, || Arc::new(())).is_err();
                        Arc::new(())
                    });
                    object.is_ok() && refused
                }
            };
            let threads = [scope.spawn(make(0, 1)), scope.spawn(make(1, 0))];
            threads.map(|thread| thread.join().unwrap())
        });
        // The one that came second is refused; the first then gets its object.
        assert_eq!(refused.iter().filter(|r| **r).count(), 1);
    }
}
