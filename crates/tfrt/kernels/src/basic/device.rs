use crate::kernels::{RegistryExt, object_value};
use pteron_host::{Frame, KernelRegistry};

/// A device of the host, by its name. The only device is the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device(pub(crate) String);

/// The name of the only device.
pub(crate) const CPU: &str = "CPU:0";

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt.get_device", |frame: &mut Frame<'_>| {
        let name: &str = frame.attribute(0)?;
        if name == CPU {
            Ok(object_value(Device(name.to_owned())))
        } else {
            Err(format!("cannot find device {name}").into())
        }
    });
}
