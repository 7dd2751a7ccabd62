//! What the verbs that write compiled programs have in common.

use crate::backend::{self, BackendName, TargetCpu};
use crate::failure::{Failure, Result};
use crate::general::{self, OutputArg, say};
use clap::{Args, ValueEnum};
use pteron::compile::exported::{ExportedProgram, PrintOptions, TensorSpec};
use pteron::compile::{self, Compiled, ExternalTensor, OperatorTable, Options, expect_pass};
use pteron::format::{self, container::Blob};
use serde_json::json;
use std::path::PathBuf;
use toolbox::paths::Paths;
use toolbox::show::{bytes, count, table};

/// How a program is compiled, and where it goes.
#[derive(Debug, Args)]
pub(crate) struct LoweringOpts {
    /// Backends that take parts of the program, in order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none", value_name = "BACKEND")]
    backend: Vec<BackendName>,
    /// Store weights packed for a machine, too, which uses them where they lie (backend bef)
    #[arg(long, value_enum, default_value_t, value_name = "CPU")]
    target_cpu: TargetCpu,
    /// Which operators the program may call
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    operators: Operators,
    /// Write the weights to this file of named data (.ptd)
    #[arg(long, value_name = "FILE")]
    external_data: Option<PathBuf>,
    /// Compile this model of the archive; may be repeated [default: all of them]
    #[arg(short, long, value_name = "NAME")]
    method: Vec<String>,
    /// Align tensors in memory to this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    alignment: u64,
    /// Align segments of the file to this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 128)]
    segment_alignment: u64,
    /// Keep the lines of source code in the program, for errors and profiles
    #[arg(long)]
    source_frames: bool,
    /// Print the program after this pass to stderr; may be repeated
    #[arg(long, value_name = "PASS")]
    print_after: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}

/// Which operators a program may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Operators {
    /// Those of ExecuTorch's portable and optimized kernels: the program runs on the reference runtime too
    #[default]
    Portable,
    /// Every operator of Pteron
    All,
}

impl LoweringOpts {
    pub(crate) fn paths(&self, paths: &mut Paths) {
        self.external_data.iter().for_each(|path| paths.write("--external-data", path));
        self.output.paths_of_binary(paths);
    }

    /// Compiles, and writes the program and what is asked for beside it.
    pub(crate) fn compile(
        &self,
        compile: impl FnOnce(&OperatorTable, &Options, compile::Watch<'_>) -> pteron::Result<Compiled>,
    ) -> Result {
        let fail = |e: compile::Error| Failure::Failed(Box::new(e));
        for pass in &self.print_after {
            expect_pass(pass).map_err(|e| Failure::Usage(format!("--print-after: {e}")))?;
        }
        let registry = pteron::kernel_registry();
        let operators = match self.operators {
            Operators::Portable => OperatorTable::portable(&registry),
            Operators::All => OperatorTable::all(&registry),
        };
        let options = Options {
            alignment: self.alignment,
            segment_alignment: self.segment_alignment,
            source_frames: self.source_frames,
            external_data: self.external_data.is_some(),
            methods: self.method.clone(),
            delegation: backend::delegation(&self.backend, self.target_cpu)?,
        };
        let mut watch = |method: &str, pass: &str, program: &ExportedProgram| {
            if self.print_after.iter().any(|p| p == pass) {
                say(format_args!(
                    "# {method} after {pass}\n{}",
                    program.listing(PrintOptions { source: true })
                ));
            }
        };
        let compiled = compile(&operators, &options, &mut watch).map_err(toolbox::Error::from)?;
        if let Some(path) = &self.external_data {
            let file = external(&compiled).map_err(|e| fail(e.into()))?;
            general::write_file_with(path, |out| file.write_to(out).map_err(|e| fail(e.into())))?;
        }
        self.output.write_binary_with(|out| compiled.program.write_to(out).map_err(|e| fail(e.into())))?;
        let report = json!({
            "file_bytes": compiled.program.header().file_len,
            "methods": compiled.methods.iter().map(|m| json!({
                "name": m.name, "operators": m.operators, "arena_bytes": m.arena_bytes,
                "constant_bytes": m.constant_bytes,
                "delegates": m.delegates.iter().map(delegate_json).collect::<Vec<_>>(),
                "left": m.left.iter().map(|left| json!({
                    "operator": left.target, "nodes": left.count, "reason": left.reason,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        });
        general::report(&self.output, self.json, &report, &self.text(&compiled))
    }

    /// What backends took, and what they left and why.
    fn delegated(&self, compiled: &Compiled) -> String {
        let mut text = String::new();
        for method in compiled.methods.iter().filter(|_| self.backend != [BackendName::None]) {
            let nodes = |d: &compile::DelegateSummary| d.operators.values().sum::<usize>();
            let taken: usize = method.delegates.iter().map(nodes).sum();
            let left: usize = method.left.iter().map(|left| left.count).sum();
            let parts = count(method.delegates.len(), "delegate");
            text += &format!("\n{}: {taken} of {} in {parts}", method.name, count(taken + left, "node"));
            let head = ["left to kernels", "nodes", "because"].map(str::to_owned).to_vec();
            let rows = method
                .left
                .iter()
                .map(|left| vec![left.target.clone(), left.count.to_string(), left.reason.clone()]);
            if left > 0 {
                text += &format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<><", 2));
            }
        }
        text
    }

    fn text(&self, compiled: &Compiled) -> String {
        let head = ["method", "operators", "calls", "planned memory", "weights"].map(str::to_owned).to_vec();
        let rows = compiled.methods.iter().map(|m| {
            let calls: usize = m.operators.values().sum();
            vec![
                m.name.clone(),
                m.operators.len().to_string(),
                calls.to_string(),
                bytes(m.arena_bytes),
                bytes(m.constant_bytes),
            ]
        });
        let rows = table(std::iter::once(head).chain(rows).collect(), "<>>>>", 0);
        let size = bytes(compiled.program.header().file_len);
        let rows = format!("{rows}{}", self.delegated(compiled));
        match &self.external_data {
            Some(path) => {
                let moved = count(compiled.external.len() + compiled.external_data.len(), "weight");
                format!("{rows}\nthe program has {size}; {moved} in {}", path.display())
            }
            None => format!("{rows}\nthe program has {size}"),
        }
    }
}

fn delegate_json(delegate: &compile::DelegateSummary) -> serde_json::Value {
    let handles = delegate.debug_handle_map.iter().map(|(handle, nodes)| {
        let handle = match handle {
            compile::delegate::DebugHandle::Int(handle) => handle.to_string(),
            compile::delegate::DebugHandle::Str(handle) => handle.clone(),
        };
        (handle, json!(nodes))
    });
    json!({
        "backend": delegate.backend_id, "operators": delegate.operators, "payload_bytes": delegate.payload_bytes,
        "named_bytes": delegate.named_bytes, "debug_handle_map": handles.collect::<serde_json::Map<_, _>>(),
    })
}

/// A file of named data with the weights of a program, and the data of its delegates.
fn external(compiled: &Compiled) -> format::Result<format::ptd::Prepared<'static>> {
    let mut builder = format::ptd::Builder::<'static>::new();
    for ExternalTensor { name, spec, blob } in &compiled.external {
        builder.tensor(name, layout(spec), Blob::clone(blob));
    }
    for named in &compiled.external_data {
        builder.entries.push(format::ptd::Entry {
            key: named.key.clone(),
            layout: None,
            blob: Blob::clone(&named.blob),
            alignment: named.alignment,
        });
    }
    builder.prepare()
}

fn layout(spec: &TensorSpec) -> format::ptd::TensorLayout {
    let sizes = spec.known_sizes().unwrap_or_default();
    format::ptd::TensorLayout {
        scalar_type: spec.dtype as i8,
        sizes: sizes.into_iter().map(|s| i32::try_from(s).unwrap_or(i32::MAX)).collect(),
        dim_order: spec.dim_order.to_vec(),
    }
}
