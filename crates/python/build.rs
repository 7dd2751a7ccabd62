//! Passes the linker arguments that an extension module needs on platforms such as macOS, where undefined symbols of Python
//! are not resolved at load time by default.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
