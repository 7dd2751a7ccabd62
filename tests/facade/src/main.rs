//! Uses `pteron` as a crate that depends on it alone: an operator with its prepared form, a data loader, a
//! delegate backend, a tracer, typed outputs, one method in several threads and, with the features, BEF programs and the
//! tools.
//!
//! The first argument is the folder of the repository.

mod backend;
mod kernel;
mod loader;
mod sessions;
mod tracer;
#[cfg(feature = "all")]
mod whole;

use std::path::{Path, PathBuf};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result {
    let root = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("../.."), PathBuf::from);
    let run = |what: &str, check: fn(&Path) -> Result| -> Result {
        check(&root).map_err(|e| format!("{what}: {e}"))?;
        println!("{what}: works");
        Ok(())
    };
    run("kernel", kernel::check)?;
    run("data loader", loader::check)?;
    run("backend", backend::check)?;
    run("tracer", tracer::check)?;
    run("outputs", sessions::outputs)?;
    run("sessions", sessions::sessions)?;
    #[cfg(feature = "all")]
    {
        run("bef", whole::bef)?;
        run("tools", whole::tools)?;
    }
    Ok(())
}
