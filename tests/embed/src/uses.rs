//! Uses each feature of `pteron` once, so that the linker keeps its code. The second argument of the command is passed to
//! all of them as a path.

use pteron::KernelRegistry;
use std::error::Error;
use std::sync::Arc;

/// The options to load the program with.
pub fn options(kernels: KernelRegistry) -> pteron::LoadOptions {
    let kernels = Arc::new(kernels);
    let backends = pteron::BackendRegistry::new();
    #[cfg(feature = "bef-backend")]
    let backends = backends.with(pteron::BefBackend::new(Arc::clone(&kernels)));
    #[cfg(feature = "xnnpack")]
    let backends = backends.with(pteron::XnnpackBackend::new(Arc::clone(&kernels)));
    pteron::LoadOptions::new(kernels).backends(backends)
}

pub fn all(_argument: &std::path::Path) -> Result<(), Box<dyn Error>> {
    #[cfg(feature = "bef")]
    bef(_argument)?;
    #[cfg(feature = "compile")]
    compile(_argument)?;
    #[cfg(feature = "tools")]
    tools(_argument)?;
    #[cfg(feature = "image")]
    image(_argument)?;
    #[cfg(feature = "safetensors")]
    safetensors(_argument)?;
    #[cfg(feature = "training")]
    training(_argument)?;
    #[cfg(feature = "ndarray")]
    ndarray()?;
    Ok(())
}

/// Translates text to a BEF program and back, and runs it.
#[cfg(feature = "bef")]
fn bef(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    use pteron::bef::{File, driver, mlir};
    let module = mlir::parse(&std::fs::read(path)?, "program.mlir")?;
    let bytes = mlir::to_bef(&module, mlir::Options::default())?;
    let program = File::open(&bytes)?.verify()?.to_module()?;
    let module = mlir::from_bef(&program, mlir::FromBefOptions::default())?;
    println!("{}", mlir::print(&module, mlir::PrintOptions::default()));
    driver::run(Arc::new(bytes), &driver::Options::default(), std::io::stdout(), std::io::stderr());
    Ok(())
}

/// Compiles an archive to a program.
#[cfg(feature = "compile")]
fn compile(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    use pteron::compile::{OperatorTable, Options, from_loader};
    let table = OperatorTable::portable(&pteron::kernel_registry());
    let archive: Arc<dyn pteron::DataLoader> = Arc::new(pteron::FileLoader::open(path)?);
    let compiled = from_loader(&archive, &table, &Options::default(), &mut |_, _, _| {})?;
    compiled.program.write_to(&mut std::io::stdout())?;
    Ok(())
}

/// Inspects and validates a program.
#[cfg(feature = "tools")]
fn tools(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    use pteron::tools::{inspect, run, validate};
    let options = pteron::load_options();
    let loader = run::open(path, run::LoadMode::File)?;
    let report = inspect::inspect(&loader, &options.kernels, &options.backends, &options.limits)?;
    println!("{}", inspect::text(&report, false));
    println!("{}", validate::validate(&loader, &options.kernels, &options.backends, &options.limits)?.valid);
    Ok(())
}

/// Reads a picture as an input.
#[cfg(feature = "image")]
fn image(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    use pteron::tools::picture::{Preparation, read};
    let meta = pteron::TensorMeta::contiguous(pteron::ScalarType::Float, &[1, 3, 224, 224])?;
    println!("{}", read(path, &meta, &Preparation::default())?.numel());
    Ok(())
}

/// Converts named data to safetensors.
#[cfg(feature = "safetensors")]
fn safetensors(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    use pteron::tools::{convert, file::Progress, run};
    let loader = run::open(path, run::LoadMode::File)?;
    let limits = pteron::Limits::default();
    let options = convert::Options::default();
    let file = convert::convert(&loader, convert::Format::Safetensors, options, &limits, &Progress::default())?;
    println!("{}", file.bytes());
    Ok(())
}

/// Runs one training step.
#[cfg(feature = "training")]
fn training(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    use pteron::{Sgd, SgdOptions, TrainingModule};
    let mut model = TrainingModule::open(path, pteron::load_options())?;
    let mut sgd = Sgd::new(SgdOptions::default())?;
    model.execute_forward_backward("forward", &[])?;
    model.step("forward", &mut sgd)?;
    model.save_checkpoint("forward", path)?;
    Ok(())
}

/// Converts an array to a tensor and back.
#[cfg(feature = "ndarray")]
fn ndarray() -> Result<(), Box<dyn Error>> {
    let tensor = pteron::Tensor::try_from(ndarray::array![[1.0f32, 2.0], [3.0, 4.0]].view())?;
    println!("{}", ndarray::ArrayViewD::<f32>::try_from(&tensor)?);
    Ok(())
}
