use crate::kernels::{RegistryExt, object_value, out};
use pteron_host::{Chain, Frame, HostContext, KernelRegistry};

/// A number that prints a line when it is created and when it is destroyed.
struct Tracked {
    value: i32,
    host: HostContext,
}

impl Tracked {
    /// Prints both the construction and the move, because the reference constructs the value and then moves it.
    fn new(frame: &Frame<'_>, value: i32) -> Self {
        out!(frame, "constructed vt.value({value})\nmove constructed vt.value({value})\n");
        Self { value, host: frame.context().host().clone() }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // As in the reference, which marks moved-from values with -1.
        if self.value != -1 {
            self.host.print(|out| {
                writeln!(out, "destroyed vt.value({})", self.value)?;
                out.flush()
            });
        }
    }
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("vt.constant", |frame: &mut Frame<'_>| {
        Ok(object_value(Tracked::new(frame, frame.attribute(0)?)))
    });
    registry.add_fallible("vt.add", |frame: &mut Frame<'_>| {
        let (a, b) = (frame.object::<Tracked>(0)?, frame.object::<Tracked>(1)?);
        Ok(object_value(Tracked::new(frame, a.value.wrapping_add(b.value))))
    });
    registry.add_fallible("vt.print", |frame: &mut Frame<'_>| {
        out!(frame, "print vt_value({})\n", frame.object::<Tracked>(0)?.value);
        Ok(Chain)
    });
}
