//! What a linker must be told where it does not leave Python's own functions to be found later, as on macOS.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
