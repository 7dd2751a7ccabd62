//! The optional features: BEF programs and the tools.

use crate::Result;
use pteron::bef::{File, driver, mlir};
use pteron::tools::{diff, inspect, ops, plan, print, run, validate, verify};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

const SUM: &[u8] = br#"
func.func @main() -> i32 {
  %x = tfrt.constant.i32 40
  %y = tfrt.constant.i32 2
  %sum = tfrt.add.i32 %x, %y
  tfrt.return %sum : i32
}"#;

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::Error::other("poisoned"))?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Translates text to BEF and back, and checks the result of the program.
pub(crate) fn bef(_: &Path) -> Result {
    let module = mlir::parse(SUM, "sum.mlir")?;
    let bytes = mlir::to_bef(&module, mlir::Options::default())?;
    let program = File::open(&bytes)?.verify()?.to_module()?;
    let module = mlir::from_bef(&program, mlir::FromBefOptions::default())?;
    if !mlir::print(&module, mlir::PrintOptions::default()).contains("tfrt.add.i32") {
        return Err("the text lacks the addition".into());
    }
    let out = Text::default();
    let status = driver::run(Arc::new(bytes), &driver::Options::default(), out.clone(), io::stderr());
    let text = String::from_utf8(out.0.lock().map_err(|_| "poisoned")?.clone())?;
    if status != 0 || !text.contains("42") {
        return Err(format!("status {status}, {text:?}").into());
    }
    Ok(())
}

/// Runs the tools on the digit classifier and on a case of the corpus.
pub(crate) fn tools(root: &Path) -> Result {
    let options = pteron::load_options();
    let (kernels, backends, limits) = (&options.kernels, &options.backends, &options.limits);
    let loader = run::open(&root.join("examples/digits/digits.pte"), run::LoadMode::File)?;
    let report = inspect::inspect(&loader, kernels, backends, limits)?;
    if !inspect::text(&report, false).contains("forward") {
        return Err("the report names no method".into());
    }
    if !validate::validate(&loader, kernels, backends, limits)?.valid {
        return Err("the program is not valid".into());
    }
    if !ops::requirements(&loader, kernels, backends, limits)?.can_run {
        return Err("the program cannot run".into());
    }
    let cases = verify::find(&root.join("testdata/corpus/tiny/ModuleAdd"))?;
    let checks = verify::Options { load: options.clone(), ..verify::Options::default() };
    let counts = verify::check_all(&cases, &checks, 1, |_, _| {});
    if counts.passed != 1 {
        return Err(format!("{counts:?}").into());
    }
    // Check that the modules of the other tools exist.
    #[allow(unused_imports)]
    use pteron::tools::{bef, bundle, convert, divergence, edit, extract, merge, npy, profile, show};
    #[allow(unused_imports)]
    use {diff as _, plan as _, print as _};
    Ok(())
}
