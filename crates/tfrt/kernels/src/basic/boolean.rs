use crate::kernels::RegistryExt;
use pteron_host::{Attr, KernelRegistry};

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_pure("tfrt.constant.i1", |Attr(v): Attr<bool>| v);
    registry.add_pure("tfrt.and.i1", |a: bool, b: bool| a && b);
}
