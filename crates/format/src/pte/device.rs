use super::enumeration::schema_enum;

schema_enum! {
    /// The kind of device that memory is on.
    DeviceType {
        /// The host's CPU.
        Cpu = 0 "CPU",
        /// A CUDA device.
        Cuda = 1 "CUDA",
    }
}

/// The name of a device: `CUDA:1`.
pub(crate) fn device_name(kind: DeviceType, index: i8) -> String {
    format!("{}:{index}", kind.name())
}
