//! Compares a loop that calls the program once per row with `SELECT pteron(picture)`, on 100,000 pictures.
//!
//!     cargo run --release [ROWS]

use datafusion::arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use pteron::Tensor;
use pteron_datafusion::{Pteron, across_ffi};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const PIXELS: usize = 64;
const BATCH: usize = 8192;

fn pixel(row: usize, i: usize) -> f32 {
    ((row * 31 + i * 7) % 17) as f32 / 16.0
}

fn pictures(rows: std::ops::Range<usize>) -> Result<RecordBatch, Box<dyn Error>> {
    let values: Vec<f32> = rows.flat_map(|row| (0..PIXELS).map(move |i| pixel(row, i))).collect();
    let field = Arc::new(Field::new_list_field(DataType::Float32, true));
    let column =
        FixedSizeListArray::try_new(field, PIXELS as i32, Arc::new(Float32Array::from(values)), None)?;
    let schema = Schema::new(vec![Field::new("picture", column.data_type().clone(), true)]);
    Ok(RecordBatch::try_new(Arc::new(schema), vec![Arc::new(column) as ArrayRef])?)
}

async fn selected(rows: usize, partitions: usize) -> Result<(f64, Vec<f32>), Box<dyn Error>> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../digits/digits.pte");
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(partitions));
    let mut parts = vec![Vec::new(); partitions];
    let each = rows.div_ceil(partitions);
    for (i, part) in parts.iter_mut().enumerate() {
        for start in (i * each..rows.min((i + 1) * each)).step_by(BATCH) {
            part.push(pictures(start..(start + BATCH).min(rows.min((i + 1) * each)))?);
        }
    }
    let schema = parts[0][0].schema();
    context.register_table("pictures", Arc::new(MemTable::try_new(schema, parts)?))?;
    context.register_udf(across_ffi(Pteron::open(program)?));
    let start = Instant::now();
    let result = context.sql("SELECT pteron(picture) FROM pictures").await?.collect_partitioned().await?;
    let seconds = start.elapsed().as_secs_f64();
    let batches = result.iter().flatten();
    let scores = batches.flat_map(|batch| {
        batch.column(0).as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec()
    });
    Ok((seconds, scores.collect()))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let rows: usize = std::env::args().nth(1).map_or(Ok(100_000), |rows| rows.parse())?;
    let mut module = pteron::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../digits/digits.pte"))?;
    let start = Instant::now();
    let mut expected = Vec::new();
    for row in 0..rows {
        let picture: Vec<f32> = (0..PIXELS).map(|i| pixel(row, i)).collect();
        let outputs = module.forward(&[Tensor::from_slice(&[1, 1, 8, 8], &picture)?.into()])?;
        let scores = outputs[0].as_tensor()?;
        expected.extend_from_slice(scores.view().storage::<f32>()?);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("a loop                      {seconds:.2} s  {:.0} rows a second", rows as f64 / seconds);
    for partitions in [1, 2] {
        let (seconds, scores) = selected(rows, partitions).await?;
        let same = if scores == expected { "same results" } else { "DIFFERENT RESULTS" };
        let speed = rows as f64 / seconds;
        println!("DataFusion, {partitions} partition(s)  {seconds:.2} s  {speed:.0} rows a second, {same}");
    }
    Ok(())
}
