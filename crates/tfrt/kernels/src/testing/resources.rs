use crate::kernels::{RegistryExt, object_value, out, text_value};
use pteron_host::{Chain, Fault, Frame, HostContext, KernelRegistry};
use std::sync::Mutex;

/// A resource that prints when it is created and destroyed.
struct Resource(HostContext);

impl Resource {
    fn new(frame: &Frame<'_>) -> Self {
        out!(frame, "Allocated TestResource\n");
        Self(frame.context().host().clone())
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.0.print(|out| {
            writeln!(out, "Destroyed TestResource")?;
            out.flush()
        });
    }
}

/// A value that all requests of a host share.
struct SampleContext(&'static str);

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt_test.allocate_resource", |frame: &mut Frame<'_>| {
        Ok((object_value(Mutex::new(Some(Resource::new(frame)))), Chain))
    });
    registry.add_fallible("tfrt_test.deallocate_resource", |frame: &mut Frame<'_>| {
        let resource = frame.object::<Mutex<Option<Resource>>>(0)?;
        let removed = resource.lock().unwrap_or_else(|e| e.into_inner()).take();
        drop(removed);
        out!(frame, "tfrt_test.deallocate_resource done\n");
        Ok(Chain)
    });
    registry.add_fallible("tfrt_test.use_sample_shared_context", |frame: &mut Frame<'_>| {
        let sample = frame.context().host().shared(|| SampleContext("sample_shared_context0"));
        Ok((text_value(frame, &[sample.0])?, Chain))
    });
    // In the reference this kernel leaks an integer on purpose, to test its leak checker. Here it does nothing.
    registry.add_fallible("tfrt_test.memory_leak_one_int32", |_: &mut Frame<'_>| Ok::<_, Fault>(()));
}
