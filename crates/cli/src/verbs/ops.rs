use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, OutputArg};
use crate::registries::registries;
use clap::Args;
use pteron::compile::{OperatorTable, Options, SeenArgument, SeenOperator, seen_by_partitioners};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use pteron_toolbox::ops::{Requirements, bef_kernels, registry_source, requirements, supported};
use pteron_toolbox::paths::{Paths, is_stdout};
use pteron_toolbox::show::{count, line, name, table as table_of};

/// List the operators of this build, or check whether it can run programs
///
/// The kernels that BEF programs (.bef, .mlir) can call are listed behind the operators of ExecuTorch programs.
///
/// With --file, the operators and backends that each program needs are listed, those that are missing are
/// marked, and the last line says whether this build can run the program. `inspect`, `validate` and the
/// error of `run` report the same.
///
/// With --partitioner, the operators that a backend's partitioner sees of archives (.pt2) are listed, with their arguments
/// and the defaults of those that nodes leave out.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  # every operator, with its schema and types\n",
    "  pteron ops\n\n",
    "  # those with `conv` in their name\n",
    "  pteron ops conv\n\n",
    "  # the kernels of BEF programs\n",
    "  pteron ops --bef tfrt.add\n\n",
    "  # what a program needs; fails if something is missing\n",
    "  pteron ops --file model.pte\n\n",
    "  # check programs before a release\n",
    "  pteron ops --file build/*.pte --json > support.json\n\n",
    "  # what a backend's partitioner sees of a model\n",
    "  pteron ops --partitioner --file model.pt2\n\n",
    "  # the kernels for an application that runs only these programs\n",
    "  pteron ops --file a.pte b.pte --emit src/registry.rs",
    "\n\nExit status:\n  0  done; with --file, every program can run\n  1  a program cannot run, no operator has TEXT in its name, or something failed\n",
    "  2  a file cannot be read, or the arguments are invalid"
))]
pub(crate) struct Opts {
    /// Show only operators whose names contain this
    #[arg(value_name = "TEXT")]
    filter: Option<String>,
    /// List what these programs (.pte, .bpte, .bef) need and whether this build can run them; `-` is stdin
    #[arg(short, long = "file", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    /// List the operators that partitioners see of these archives (.pt2)
    #[arg(long, requires = "files", conflicts_with = "emit")]
    partitioner: bool,
    /// Also write a Rust file with a registry of the kernels that these programs call, for an application
    /// that links no others: `mod registry;` and `LoadOptions::new(registry::kernels())`. `-` writes it to
    /// stdout instead of the list
    #[arg(long, value_name = "FILE", requires = "files")]
    emit: Option<PathBuf>,
    /// List only the kernels of BEF programs
    #[arg(long, conflicts_with = "files")]
    bef: bool,
    /// Print JSON; without --bef, without the kernels of BEF programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.files.iter().for_each(|path| paths.read("--file", path));
        self.output.declare_paths(paths);
        self.emit.iter().filter(|path| !is_stdout(path)).for_each(|path| paths.write("--emit", path));
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        match (self.files.is_empty(), self.partitioner) {
            (true, _) => self.list_operators(),
            (false, true) => self.list_seen_by_partitioners(general),
            (false, false) => self.check_files(general),
        }
    }

    fn matches_filter(&self, name: &str) -> bool {
        self.filter.as_deref().is_none_or(|text| name.contains(text))
    }

    fn list_operators(&self) -> Result {
        let mut all = if self.bef { Vec::new() } else { supported(registries().kernels()) };
        all.retain(|op| self.matches_filter(&op.name));
        let mut kernels = if self.json && !self.bef { Vec::new() } else { bef_kernels() };
        kernels.retain(|name| self.matches_filter(name));
        if let (Some(filter), true) = (&self.filter, all.is_empty() && kernels.is_empty()) {
            let problem = if self.bef { no_bef_kernel_error(filter) } else { no_operator_error(filter) };
            return Err(pteron_toolbox::Error::input(problem).into());
        }
        if self.json {
            return if self.bef { self.output.write_json(&kernels) } else { self.output.write_json(&all) };
        }
        let mut text = String::new();
        for op in &all {
            let _ = writeln!(text, "{}", op.schema);
            if !op.dtypes.is_empty() {
                let _ = writeln!(text, "    {}", op.dtypes.join(", "));
            }
        }
        if !self.bef {
            let _ = writeln!(text, "{}", count(all.len(), "operator"));
        }
        if self.bef || !kernels.is_empty() {
            kernels.iter().for_each(|name| text.extend([name, "\n"]));
            let _ = writeln!(text, "{} of BEF programs", count(kernels.len(), "kernel"));
        }
        self.output.write_text(&text)
    }

    /// Lists the operators of torch.export archives in the form in which partitioners see them.
    fn list_seen_by_partitioners(&self, general: &GeneralOpts) -> Result {
        let kernels = registries().kernels();
        let table = OperatorTable::preferring_portable(kernels);
        let options = Options { memory: general.limits().memory, ..Options::default() };
        let mut all: BTreeMap<String, SeenOperator> = BTreeMap::new();
        for file in &self.files {
            let archive = general::open_uncompiled(file)?;
            let seen = seen_by_partitioners(&archive, &table, kernels, &options);
            for operator in seen.map_err(pteron_toolbox::Error::from)? {
                let count = operator.count;
                let known = all.entry(operator.target.clone());
                known.and_modify(|known| known.count += count).or_insert(operator);
            }
        }
        all.retain(|name, _| self.matches_filter(name));
        if self.json {
            return self.output.write_json(&all.values().map(operator_json).collect::<Vec<_>>());
        }
        let argument = |arg: &SeenArgument| match &arg.default {
            Some(default) => format!("{}={default}", arg.name),
            None => arg.name.clone(),
        };
        let row = |seen: &SeenOperator| {
            let args = seen.args.iter().map(argument).collect::<Vec<_>>().join(", ");
            vec![seen.count.to_string(), seen.target.clone(), args]
        };
        self.output.write_text(&table_of(all.values().map(row).collect(), "><<", 0))
    }

    /// Reports for each file whether this build can run it. Continues after a file that cannot be read.
    fn check_files(&self, general: &GeneralOpts) -> Result {
        if self.json && self.emit.as_deref().is_some_and(is_stdout) && !self.output.is_file() {
            let message = "--json: the registry goes to stdout; name a file for the list with `-o FILE`";
            return Err(Failure::Usage(message.to_owned()));
        }
        let (kernels, backends) = (registries().kernels(), registries().backends());
        let read = |file: &PathBuf| -> Result<Requirements> {
            let loader = general.open(file)?;
            Ok(requirements(&loader, kernels, backends, general.limits())?)
        };
        let (mut all, mut unread) = (Vec::new(), None);
        for file in &self.files {
            match read(file) {
                Ok(report) => all.push(report),
                // `main` reports the last failure; the others are reported here.
                Err(failure) => unread.replace(failure).into_iter().for_each(|f| {
                    f.report(general.stderr_style());
                }),
            }
        }
        if let Some(path) = self.emit.as_ref().filter(|_| unread.is_none()) {
            OutputArg::to_path(path).write_text(&registry_source(&all)?)?;
        }
        for report in &mut all {
            report.operators.retain(|op| self.matches_filter(&op.name));
        }
        if self.emit.as_deref().is_some_and(is_stdout) && !self.output.is_file() {
            // The registry source went to stdout.
        } else if self.json {
            self.output.write_json(&all)?;
        } else if !all.is_empty() {
            self.output.write_text(&all.iter().map(|report| self.text(report)).collect::<String>())?;
        }
        match unread {
            Some(failure) => Err(failure.into_trouble()),
            None if all.iter().all(|report| report.can_run) => Ok(()),
            None => Err(Failure::Reported),
        }
    }

    fn text(&self, report: &Requirements) -> String {
        let operators = report.operators.iter().map(|op| {
            let note = if op.available { "" } else { "missing" };
            vec![op.calls.to_string(), name(&op.name).to_string(), note.to_owned()]
        });
        let backends = report.backends.iter().flat_map(|b| {
            let note = if b.available { "" } else { "missing" };
            let row = vec![b.delegates.to_string(), format!("backend {}", name(&b.id)), note.to_owned()];
            let nodes = b.nodes.iter().filter(|node| self.matches_filter(&node.kind)).map(|node| {
                let refused = (node.refused > 0).then(|| format!("{} refused", node.refused));
                vec![node.count.to_string(), format!("  node {}", name(&node.kind)), refused.unwrap_or_default()]
            });
            std::iter::once(row).chain(nodes)
        });
        let mut text = table_of(operators.chain(backends).collect(), "><<", 0);
        for backend in report.backends.iter().filter(|backend| !backend.absent_data.is_empty()) {
            let keys = count(backend.absent_data.len(), "key");
            let _ = writeln!(
                text,
                "{}: {keys} of named data of {} outside the program; the nodes that read them were not looked at",
                report.file,
                name(&backend.id)
            );
        }
        if report.can_run {
            let _ = writeln!(text, "{}: can run", report.file);
        } else {
            let _ = writeln!(text, "{}: cannot run", report.file);
            for sentence in &report.missing {
                let _ = writeln!(text, "  {}", line(sentence));
            }
        }
        text
    }
}

fn operator_json(seen: &SeenOperator) -> Value {
    let argument = |arg: &SeenArgument| json!({ "name": arg.name, "default": arg.default });
    json!({
        "operator": seen.target, "nodes": seen.count, "args": seen.args.iter().map(argument).collect::<Vec<_>>(),
    })
}

/// The error message for a `filter` that no kernel of BEF programs has in its name; suggests a similar name.
fn no_bef_kernel_error(filter: &str) -> String {
    let names = bef_kernels();
    let meant = pteron_toolbox::did_you_mean(filter, names.iter().map(String::as_str));
    format!("no kernel of BEF programs has `{filter}` in its name{meant}")
}

/// The error message for a `filter` that no operator has in its name; suggests similar names or parts of names.
fn no_operator_error(filter: &str) -> String {
    let registry = registries().kernels();
    let names = registry.names();
    let bases = names.iter().map(|name| name.split('.').next().unwrap_or(name));
    let parts = bases.flat_map(|base| {
        let own = base.rsplit("::").next().unwrap_or(base);
        [base, own].into_iter().chain(own.split('_').filter(|part| part.len() > 2))
    });
    let meant = pteron_toolbox::did_you_mean(filter, parts);
    format!("no operator has `{filter}` in its name{meant}")
}
