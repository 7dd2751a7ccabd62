"""Maps a table through a mapper, directly or by an engine, in parts of very different sizes, one of them empty.

With `--fail` the step fails once: in an engine with worker processes the worker is killed, otherwise an exception is
raised. The engine retries; if it does not, the caller does.
"""

import argparse
import os
import signal
import sys
import tempfile

import pyarrow


# Spark starts its workers by name.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def run_with(arguments, model, table, schema):
    """Maps `table` by the engine that the arguments name. `schema` is the schema of the result in Spark's notation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", nargs="?", choices=list(ENGINES), default="none")
    parser.add_argument("--fail", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        step = model
        if options.fail:
            step = Unlucky(model, os.path.join(folder, "failed"), dies=options.engine in ("ray", "spark"))
        # The step's result for a table without rows has the schema of all its results.
        result = ENGINES[options.engine](step, model(table.slice(0, 0)).schema, table, schema)
        if options.fail and not os.path.exists(step.marker):
            raise SystemExit("nothing has failed")
        return result


class Unlucky:
    """A mapper that fails once, across all processes that call it."""

    def __init__(self, model, marker, dies):
        self.model, self.marker, self.dies = model, marker, dies

    def __call__(self, table):
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return self.model(table)
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("bad luck")

    def over(self, tables):
        return map(self, tables)


def parts(table):
    """One row, no rows, and all other rows."""
    return [table.slice(0, 1), table.slice(1, 0), table.slice(1)]


def none(step, made, table, schema):
    return retry(lambda: pyarrow.concat_tables([step(part) for part in parts(table)]))


def retry(job, times=3):
    """Retries a job whose engine does not."""
    while True:
        times -= 1
        try:
            return job()
        except Exception as error:
            if times == 0 or "bad luck" not in str(error):
                raise


def ray(step, made, table, schema):
    import ray.data

    # No actor class is needed to open the program once: equal mappers of a process share one program.
    done = ray.data.from_arrow(parts(table)).map_batches(step, batch_format="pyarrow", batch_size=max(4, len(table) // 1000))
    return pyarrow.concat_tables(ray.get(done.to_arrow_refs()), promote_options="default")


def spark(step, made, table, schema):
    from pyspark.sql import SparkSession

    # Two threads; a task is attempted at most four times.
    session = SparkSession.builder.master("local[2,4]").config("spark.driver.memory", "1g").getOrCreate()
    # The worker processes import this file for `Unlucky`.
    session.sparkContext.addPyFile(__file__)
    # Rows are partitioned by a key that most of them share, so that some partitions are empty.
    rows = session.createDataFrame(table)
    skewed = rows.repartition(4, (rows[table.column_names[0]] == table[0][0].as_py()).cast("int"))
    return skewed.mapInArrow(step.over, schema).toArrow()


def daft(step, made, table, schema):
    import daft

    kind = pyarrow.struct(list(made))

    @daft.cls(max_retries=2)
    class Step:
        def __init__(self, step):
            self.step = step

        @daft.method.batch(return_dtype=daft.DataType.from_arrow_type(kind))
        def __call__(self, *columns: daft.Series):
            batch = pyarrow.table([column.to_arrow() for column in columns], names=table.column_names)
            return self.step(batch).to_struct_array().combine_chunks()

    step = Step(step)
    frame = daft.from_arrow(parts(table))
    found = frame.select(step(*map(daft.col, table.column_names)).alias("row"))
    return found.select(*[daft.col("row").get(field.name).alias(field.name) for field in made]).to_arrow()


def datafusion(step, made, table, schema):
    from datafusion import SessionContext, udf

    def columns_of(*columns):
        return step(pyarrow.RecordBatch.from_arrays(list(columns), names=table.column_names)).to_struct_array()

    context = SessionContext()
    batches = [part.combine_chunks().to_batches() or [empty(part)] for part in parts(table)]
    context.register_record_batches("rows", batches)
    kind = pyarrow.struct(list(made))
    context.register_udf(udf(columns_of, list(table.schema.types), kind, "immutable", "pteron"))
    columns = ", ".join(table.column_names)
    fields = ", ".join(f"found['{field.name}'] AS {field.name}" for field in made)
    return retry(
        lambda: context.sql(f"SELECT {fields} FROM (SELECT pteron({columns}) AS found FROM rows)").to_arrow_table()
    )


def pandas(step, made, table, schema):
    frames = [step(part.to_pandas()) for part in parts(table)]
    return pyarrow.concat_tables([pyarrow.Table.from_pandas(frame, schema=made, preserve_index=False) for frame in frames])


def dask(step, made, table, schema):
    import dask
    import dask.dataframe

    # Otherwise lists become their texts.
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dask.dataframe.from_pandas(table.to_pandas(), npartitions=3)
        found = frame.map_partitions(step, meta=made.empty_table().to_pandas())
        found = retry(lambda: found.compute(scheduler="threads"))
    return pyarrow.Table.from_pandas(found, schema=made, preserve_index=False)


def polars(step, made, table, schema):
    import polars

    def lazy():
        return polars.from_arrow(table).lazy().map_batches(step, schema=polars.from_arrow(made.empty_table()).schema)

    return retry(lambda: lazy().collect()).to_arrow().cast(made)


def duckdb(step, made, table, schema):
    import duckdb

    return retry(lambda: step(duckdb.from_arrow(table)).to_arrow_table()).cast(made)


def beam(step, made, table, schema):
    import apache_beam
    import pyarrow.parquet

    def map_rows(rows):
        return step(pyarrow.Table.from_pylist(rows, schema=table.schema)).to_pylist()

    def run():
        with tempfile.TemporaryDirectory() as folder:
            with apache_beam.Pipeline() as pipeline:
                rows = pipeline | apache_beam.Create(table.to_pylist()) | apache_beam.BatchElements()
                rows | apache_beam.FlatMap(map_rows) | apache_beam.io.WriteToParquet(os.path.join(folder, "rows"), made)
            return pyarrow.parquet.read_table(folder)

    return retry(run)


def empty(table):
    """A batch without rows."""
    return pyarrow.RecordBatch.from_pylist([], schema=table.schema)


ENGINES = {
    "none": none,
    "pandas": lambda *arguments: retry(lambda: pandas(*arguments)),
    "polars": polars,
    "duckdb": duckdb,
    "dask": dask,
    "datafusion": datafusion,
    "beam": beam,
    "daft": daft,
    "ray": ray,
    "spark": spark,
}
