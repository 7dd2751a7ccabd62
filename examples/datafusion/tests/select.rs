//! `SELECT pteron(picture)` over tables with batches of various sizes, in two partitions, through the C interface.

use datafusion::arrow::array::{ArrayRef, AsArray, FixedSizeListArray, Float32Array, Int64Array, ListArray};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type, Int64Type, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use pteron::Tensor;
use pteron_datafusion::{Failures, Pteron, across_ffi};
use std::path::PathBuf;
use std::sync::Arc;

const PIXELS: usize = 64;

fn digits() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../digits/digits.pte")
}

/// A distinct picture for each number.
fn picture(number: i64) -> Vec<f32> {
    (0..PIXELS as i64).map(|i| ((number * 31 + i * 7) % 17) as f32 / 16.0).collect()
}

fn batch(numbers: &[i64], picture: ArrayRef) -> RecordBatch {
    let field = Field::new("picture", picture.data_type().clone(), true);
    let schema = Schema::new(vec![Field::new("number", DataType::Int64, false), field]);
    let numbers: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
    RecordBatch::try_new(Arc::new(schema), vec![numbers, picture]).unwrap()
}

/// Pictures of a fixed size, null where the number is a multiple of 10.
fn pictures(numbers: std::ops::Range<i64>) -> RecordBatch {
    let numbers: Vec<i64> = numbers.collect();
    let values: Vec<f32> = numbers.iter().flat_map(|&n| picture(n)).collect();
    let field = Arc::new(Field::new_list_field(DataType::Float32, true));
    let valid = NullBuffer::from_iter(numbers.iter().map(|n| n % 10 != 0));
    let values = Arc::new(Float32Array::from(values));
    batch(&numbers, Arc::new(FixedSizeListArray::new(field, PIXELS as i32, values, Some(valid))))
}

async fn select(partitions: Vec<Vec<RecordBatch>>) -> (Vec<(i64, Option<Vec<f32>>)>, Failures) {
    let config = SessionConfig::new().with_target_partitions(2).with_batch_size(1000);
    let context = SessionContext::new_with_config(config);
    let schema = partitions[0][0].schema();
    context.register_table("pictures", Arc::new(MemTable::try_new(schema, partitions).unwrap())).unwrap();
    let function = Pteron::open(digits()).unwrap();
    let failures = function.failures();
    context.register_udf(across_ffi(function));
    let result = context.sql("SELECT number, pteron(picture) AS scores FROM pictures").await.unwrap();
    let mut rows = Vec::new();
    for batch in result.collect().await.unwrap() {
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        let scores = batch.column(1).as_fixed_size_list();
        for (i, number) in numbers.values().iter().enumerate() {
            let row = (!batch.column(1).is_null(i))
                .then(|| scores.value(i).as_primitive::<Float32Type>().values().to_vec());
            rows.push((*number, row));
        }
    }
    rows.sort_by_key(|row| row.0);
    (rows, failures)
}

/// The program's results for one picture at a time.
fn plain(numbers: impl Iterator<Item = i64>) -> Vec<Vec<f32>> {
    let mut module = pteron::open(digits()).unwrap();
    let each = numbers.map(|number| {
        let input = Tensor::from_slice(&[1, 1, 8, 8], &picture(number)).unwrap();
        let outputs = module.forward(&[input.into()]).unwrap();
        outputs[0].as_tensor().unwrap().view().storage::<f32>().unwrap().to_vec()
    });
    each.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_match_a_plain_loop_for_all_batch_sizes() {
    // Empty batches, batches of one row, and large ones.
    let partitions = vec![
        vec![pictures(0..0), pictures(0..1), pictures(1..7000)],
        vec![pictures(7000..7003), pictures(7003..7003), pictures(7003..9000)],
    ];
    let (rows, failures) = select(partitions).await;
    assert_eq!(rows.len(), 9000);
    let expected = plain(0..9000);
    for ((number, row), expected) in rows.iter().zip(&expected) {
        match number % 10 {
            0 => assert_eq!(*row, None, "{number}"),
            _ => assert_eq!(row.as_ref(), Some(expected), "{number}"),
        }
    }
    let failures = failures.take();
    assert_eq!(failures.len(), 900);
    assert!(failures[0].to_string().contains("it is null"), "{}", failures[0]);
}

#[tokio::test]
async fn a_failing_row_is_reported_and_the_others_have_results() {
    let numbers: Vec<i64> = (1..6).collect();
    let mut values: Vec<Vec<f32>> = numbers.iter().map(|&n| picture(n)).collect();
    values[2].truncate(60);
    let lengths: Vec<usize> = values.iter().map(Vec::len).collect();
    let items = Arc::new(Float32Array::from(values.concat()));
    let field = Arc::new(Field::new_list_field(DataType::Float32, true));
    let lists = ListArray::new(field, OffsetBuffer::from_lengths(lengths), items, None);
    let (rows, failures) = select(vec![vec![batch(&numbers, Arc::new(lists))]]).await;
    let expected = plain(numbers.iter().copied());
    for (i, ((_, row), expected)) in rows.iter().zip(&expected).enumerate() {
        assert_eq!(row.as_ref(), (i != 2).then_some(expected));
    }
    let failures = failures.take();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].row, 2);
    assert!(failures[0].to_string().contains("it has 60 elements"), "{}", failures[0]);
}

#[tokio::test]
async fn columns_of_other_types_are_refused() {
    let context = SessionContext::new();
    context.register_udf(across_ffi(Pteron::open(digits()).unwrap()));
    for (query, expected) in [("SELECT pteron('x')", "expected numbers"), ("SELECT pteron(1, 2)", "pteron")] {
        let error = match context.sql(query).await {
            Ok(result) => result.collect().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(expected), "{error}");
    }
}
