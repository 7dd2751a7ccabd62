use super::arrow;
use super::columns::{Columns, Inputs, index};
use super::pictures::PictureColumn;
use crate::{ArrowColumn, BuiltArray, Lists, with_stacked, with_top};
use arrow_array::{Array as _, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_data::ArrayData;
use arrow_schema::{FieldRef, Schema};
use pteron_runtime::{Method, Program};
use pteron_tensor::ScalarType;
use pteron_toolbox::batch::{Column, Failure, Joining, Plan, Row, RowRules, Runner, Spec};
use pteron_toolbox::picture::Preparation;
use pteron_toolbox::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;

/// The column with the reasons of failed rows.
pub(super) const ERROR_COLUMN: &str = "error";

/// The maximum number of characters of a reason.
const MAX_REASON: usize = 400;

/// The number of rows that are read at a time, unless they are large.
const ROWS: usize = 4096;

/// The bytes of inputs that are made of the rows that are read at a time, unless a batch has more.
const INPUT_BYTES: usize = 64 << 20;

/// What happens to rows that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// Their results are null, and the column `error` has the reasons.
    #[default]
    Null,
    /// They end the run.
    Raise,
}

/// How the rows of a table become inputs of a program, and its outputs columns.
#[derive(Debug, Clone, Default)]
pub struct Mapping {
    /// The method; by default the only one, or `forward`.
    pub method: Option<String>,
    /// The columns for the inputs.
    pub inputs: Inputs,
    /// The names of the output columns; by default those of the program, or `output_0` and so on.
    pub outputs: Option<Vec<String>>,
    /// The columns of the input that are kept; by default all.
    pub keep: Option<Vec<String>>,
    /// What happens to rows that fail.
    pub on_error: OnError,
    /// The column by which an error names rows.
    pub key: Option<String>,
    /// Requirements that rows must meet.
    pub rules: RowRules,
    /// Whether rows are executed in batches.
    pub joining: Joining,
    /// The maximum number of rows of an execution.
    pub batch_size: Option<usize>,
    /// The number of largest elements of the only output that are kept.
    pub top: Option<usize>,
    /// The labels of the elements of the only output. They imply a `top` of 1.
    pub labels: Option<Vec<String>>,
    /// How the pictures in the cells of the input columns, or in the files that these name, are prepared; `None` if cells are
    /// numbers.
    pub pictures: Option<Preparation>,
}

/// Executes a method over tables.
pub(super) struct Mapper {
    pub(super) method: String,
    mapping: Mapping,
    runner: Runner,
    columns: Columns,
    /// The names of the output columns.
    names: Vec<String>,
}

/// A table with outputs.
pub(super) struct Mapped {
    pub(super) batch: RecordBatch,
    /// The number of rows without a result.
    pub(super) failed: usize,
}

impl Mapper {
    pub(super) fn new(program: &Program, mapping: &Mapping) -> Result<Self> {
        let mut mapping = mapping.clone();
        mapping.top = mapping.top.or(mapping.labels.as_ref().map(|_| 1));
        let method =
            mapping.method.clone().map_or_else(|| pteron_toolbox::run::default_method(program), Ok)?;
        let meta = program.method_meta(&method)?;
        let plan = Plan::new(&meta, mapping.joining, mapping.batch_size, mapping.rules)?;
        let names = output_names(&plan.outputs, &mapping)?;
        let mut made = names.clone();
        made.extend((mapping.on_error == OnError::Null).then(|| ERROR_COLUMN.to_owned()));
        let columns = Columns::new(&plan.inputs, &mapping.inputs, mapping.keep.clone(), made)?;
        Ok(Self { method, runner: Runner::new(plan, true), columns, names, mapping })
    }

    /// The options that the results depend on, for comparison with those of another run.
    pub(super) fn described(&self) -> Value {
        let Mapping { inputs, keep, on_error, rules, joining, top, labels, pictures, .. } = &self.mapping;
        let inputs = match inputs {
            Inputs::Unnamed => Value::Null,
            Inputs::Ordered(columns) => json!(columns),
            Inputs::Named(columns) => {
                columns.iter().map(|(input, columns)| (input.clone(), json!(columns))).collect()
            }
        };
        json!({
            "method": self.method,
            "inputs": inputs,
            "outputs": self.names,
            "keep": keep,
            "on_error": if *on_error == OnError::Null { "null" } else { "raise" },
            "exact": rules.exact,
            "nonfinite": if rules.finite { "error" } else { "allow" },
            "batched": match joining {
                Joining::Automatic => Value::Null,
                Joining::Together => true.into(),
                Joining::Alone => false.into(),
            },
            "top": top,
            "labels": labels,
            "pictures": pictures.as_ref().map(|pictures| format!("{pictures:?}")),
        })
    }

    /// The number of rows to read at a time: several batches of them, of bounded size.
    pub(super) fn rows_at_a_time(&self) -> usize {
        let bytes = |spec: &Spec| {
            spec.row.iter().fold(spec.dtype.size(), |product, &size| product.saturating_mul(size))
        };
        let row = self.runner.plan.inputs.iter().map(bytes).fold(1, usize::saturating_add);
        (INPUT_BYTES / row)
            .clamp(self.runner.plan.batch_size().max(1), ROWS.max(self.runner.plan.batch_size()))
    }

    /// The positions of the columns of a file that are read, in ascending order.
    pub(super) fn needed(&self, names: &[&str]) -> Result<Vec<usize>> {
        let chosen = self.columns.choose(names)?;
        let mut needed: Vec<usize> = chosen.inputs.into_iter().flatten().chain(chosen.kept).collect();
        needed.extend(self.mapping.key.iter().map(|key| index(names, key)).collect::<Result<Vec<_>>>()?);
        needed.sort_unstable();
        needed.dedup();
        Ok(needed)
    }

    /// The table with the outputs of its rows as columns. `first` is the number of its first row in the file.
    ///
    /// # Errors
    /// If the columns do not fit the program, if it fails for another reason than its rows, or if a row fails and rows that fail
    /// end the run.
    pub(super) fn map(&self, method: &mut Method, batch: &RecordBatch, first: usize) -> Result<Mapped> {
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let chosen = self.columns.choose(&names)?;
        let specs = &self.runner.plan.inputs;
        let data: Vec<Vec<ArrayData>> = chosen
            .inputs
            .iter()
            .map(|parts| parts.iter().map(|&i| batch.column(i).to_data()).collect())
            .collect();
        let mut parts = Vec::new();
        for ((positions, data), spec) in chosen.inputs.iter().zip(&data).zip(specs) {
            let part = |(&i, data)| self.source(names[i], data, spec);
            parts.push(positions.iter().zip(data).map(part).collect::<Result<Vec<_>>>()?);
        }
        let parts: Vec<Vec<&dyn Column>> =
            parts.iter().map(|parts| parts.iter().map(|part| &**part).collect()).collect();
        let outcome = with_stacked(specs, &parts, |columns| self.runner.run(method, columns))?;
        if self.mapping.on_error == OnError::Raise && !outcome.failures.is_empty() {
            let key = self.mapping.key.as_ref().map(|key| index(&names, key)).transpose()?;
            let keys = key.map(|key| batch.column(key).to_data());
            return Err(raised(&outcome.failures, keys.as_ref(), first));
        }
        let mut made: Vec<(FieldRef, ArrayRef)> = chosen
            .kept
            .iter()
            .map(|&i| (Arc::clone(&schema.fields()[i]), Arc::clone(batch.column(i))))
            .collect();
        let failed = outcome.failures.len();
        for (i, column) in with_top(outcome.outputs, self.mapping.top)?.iter().enumerate() {
            let built = match &self.mapping.labels {
                Some(labels) if i == 0 => BuiltArray::from_labels(column, labels, &self.names[i])?,
                _ => BuiltArray::from_output(column, &self.names[i], Lists::Any)?,
            };
            made.push(field_and_array(built)?);
        }
        if self.mapping.on_error == OnError::Null {
            let mut texts = vec![None; batch.num_rows()];
            for failure in &outcome.failures {
                texts[failure.row] = Some(reason(failure));
            }
            made.push(field_and_array(BuiltArray::from_texts(ERROR_COLUMN, &texts)?)?);
        }
        let (fields, arrays): (Vec<FieldRef>, Vec<ArrayRef>) = made.into_iter().unzip();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
            .map_err(|error| Error::Input(error.to_string()))?;
        Ok(Mapped { batch, failed })
    }

    /// The rows of a column: numbers, or decoded pictures.
    fn source<'a>(&self, name: &str, data: &'a ArrayData, spec: &Spec) -> Result<Box<dyn Column + 'a>> {
        let array = arrow::lend(data);
        Ok(match &self.mapping.pictures {
            Some(preparation) => Box::new(PictureColumn::new(name, &array, spec, preparation)?),
            None => Box::new(ArrowColumn::new(name, &array).map_err(Error::Input)?),
        })
    }
}

/// The names of the output columns, whose number and labels are checked.
fn output_names(outputs: &[Spec], mapping: &Mapping) -> Result<Vec<String>> {
    let own = outputs.iter().enumerate();
    let own = own.map(|(i, spec)| spec.name.clone().unwrap_or_else(|| format!("output_{i}"))).collect();
    let names: Vec<String> = mapping.outputs.clone().unwrap_or(own);
    if names.len() != outputs.len() {
        return Err(Error::Input(format!(
            "the program has {} outputs, {} names are given for them",
            outputs.len(),
            names.len()
        )));
    }
    let Some(top) = mapping.top else { return Ok(names) };
    let ([only], [name]) = (outputs, &names[..]) else {
        let count = outputs.len();
        return Err(Error::Input(format!("top and labels are of one output, the program has {count}")));
    };
    let count: usize = only.row.iter().product();
    if top < 1 || top > count {
        return Err(Error::Input(format!(
            "top is 1 to {count}, the number of elements of output `{name}`, not {top}"
        )));
    }
    match &mapping.labels {
        Some(labels) if labels.len() != count => Err(Error::Input(format!(
            "output `{name}` has {count} elements, and there are {} labels",
            labels.len()
        ))),
        _ => Ok(vec![name.clone(), format!("{name}_score")]),
    }
}

fn field_and_array(built: BuiltArray) -> Result<(FieldRef, ArrayRef)> {
    arrow::take_over(built).map(|(field, array)| (Arc::new(field), array))
}

/// A reason of a length that a table can hold for each row, with the column at fault.
fn reason(failure: &Failure) -> String {
    let short = match failure.reason.char_indices().nth(MAX_REASON) {
        None => failure.reason.clone(),
        Some(_) => failure.reason.chars().take(MAX_REASON - 1).chain(['…']).collect(),
    };
    match &failure.column {
        Some(column) => format!("column `{column}`: {short}"),
        None => short,
    }
}

/// The error that names the first of the failed rows.
fn raised(failures: &[Failure], keys: Option<&ArrayData>, first: usize) -> Error {
    let shown = failures.iter().take(3).map(|failure| {
        let key = keys.and_then(|keys| key_text(keys, failure.row));
        let key = key.map_or_else(String::new, |key| format!(" (key {key})"));
        format!("row {}{key}: {}", first + failure.row, reason(failure))
    });
    let shown: Vec<String> = shown.collect();
    let more = if failures.len() > 3 { "; …" } else { "" };
    Error::Input(format!(
        "rows have no result: {}{more}; leave these rows out, or have them named in a column (--on-error null)",
        shown.join("; ")
    ))
}

/// The text of an integer or a string; `None` for other types and for null.
fn key_text(keys: &ArrayData, row: usize) -> Option<String> {
    let mut array = arrow::lend(keys);
    let is_text = matches!(&*array.format, "u" | "U" | "vu");
    if is_text {
        array.format = array.format.replace('u', "z").replace('U', "Z").into();
    }
    let column = ArrowColumn::new("", &array).ok()?;
    let Row { bytes, .. } = column.row(row).ok()?;
    match (is_text, column.dtype()) {
        (true, _) => Some(format!("`{}`", String::from_utf8_lossy(bytes))),
        (false, ScalarType::Long) => Some(i64::from_ne_bytes(bytes.try_into().ok()?).to_string()),
        (false, ScalarType::Int) => Some(i32::from_ne_bytes(bytes.try_into().ok()?).to_string()),
        (false, ScalarType::UInt64) => Some(u64::from_ne_bytes(bytes.try_into().ok()?).to_string()),
        (false, ScalarType::UInt32) => Some(u32::from_ne_bytes(bytes.try_into().ok()?).to_string()),
        _ => None,
    }
}
