use host::{Attr, KernelRegistry};

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_typed("tfrt.constant.i1", |Attr(v): Attr<bool>| v);
    registry.add_typed("tfrt.and.i1", |a: bool, b: bool| a && b);
}
