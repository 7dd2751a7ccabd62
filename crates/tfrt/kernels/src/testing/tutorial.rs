use crate::kernels::{RegistryExt, object_value, out};
use pteron_host::{Chain, Frame, KernelRegistry};

struct Coordinate {
    x: i32,
    y: i32,
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_typed("tfrt_tutorial.create_coordinate", |x: i32, y: i32| object_value(Coordinate { x, y }));
    registry.add_fallible("tfrt_tutorial.print_coordinate", |frame: &mut Frame<'_>| {
        let Coordinate { x, y } = frame.object(0)?;
        out!(frame, "({x}, {y})\n");
        Ok(Chain)
    });
}
