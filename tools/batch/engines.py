"""Benchmarks `pteron.batch.Mapper` on data engines against a plain loop.

    pip install pyarrow numpy 'ray[data]' pyspark daft datafusion
    python tools/batch/engines.py loop ray spark daft datafusion [--rows 100000] [--workers 1 2] [--kill]

Each engine passes rows to a `pteron.batch.Mapper`. The results must equal those of a loop that calls the program once per row,
with no row lost or duplicated. Prints a row of a Markdown table for each engine and number of workers: seconds of the job without
starting the engine, rows per second, and seconds of the same job with a step that computes nothing (the engine's overhead).
With `--kill`, a worker of Ray or Spark is killed once, in the middle of a job.
"""

import argparse
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

import numpy
import pyarrow

import pteron
from pteron.batch import Mapper

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "examples" / "digits" / "digits.pte")
PARTS = 20


def table(rows):
    """A table of rows with an id and a picture."""
    pixels = numpy.random.default_rng(7).random((rows, 64), dtype=numpy.float32)
    pictures = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(pixels.reshape(-1)), 64)
    return pyarrow.table({"id": pyarrow.array(range(rows)), "x": pictures})


def pixels_of(rows):
    return rows["x"].combine_chunks().values.to_numpy().reshape(-1, 1, 1, 8, 8)


class Nothing:
    """A stand-in for the mapper that returns zeros."""

    def __init__(self, lists="fixed"):
        kind = pyarrow.float32()
        self.kind = pyarrow.list_(kind, 10) if lists == "fixed" else pyarrow.list_(kind)

    def columns(self, x):
        zeros = numpy.zeros(len(x) * 10, dtype=numpy.float32)
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(zeros), 10).cast(self.kind)

    def __call__(self, batch):
        made = {"id": batch["id"], "scores": self.columns(batch["x"])}
        return pyarrow.table(made) if isinstance(batch, pyarrow.Table) else pyarrow.record_batch(made)


def mapper(computes, **options):
    """The step of a job: a mapper, or a step that computes nothing."""
    if computes:
        return Mapper(PROGRAM, inputs="x", outputs="scores", keep=["id"], **options)
    return Nothing(**options)


def loop(rows, threads):
    """One call per row, on this many threads."""
    module = pteron.load(PROGRAM, threads=1)
    pixels = pixels_of(rows)
    scores = numpy.empty((len(pixels), 10), dtype=numpy.float32)

    def work(part):
        for row in part:
            [result] = module(pixels[row])
            scores[row] = result

    parts = numpy.array_split(numpy.arange(len(pixels)), threads)
    workers = [threading.Thread(target=work, args=(part,)) for part in parts]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - begin, scores


def batches(rows, threads, computes, _marker):
    """The mapper without an engine, over parts of the table, on this many threads."""
    model = mapper(computes)
    parts = rows.combine_chunks().to_batches(max_chunksize=len(rows) // PARTS or 1)
    model(parts[0].slice(0, 1))
    results = [None] * len(parts)

    def work(first):
        for i in range(first, len(parts), threads):
            results[i] = model(parts[i])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - begin, pyarrow.Table.from_batches(results)


def die_once(marker):
    """Kills this process, unless a process was killed before. `marker` is a file that records it."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Scores:
    """The class of Ray's actors."""

    def __init__(self, model, marker):
        self.model, self.marker, self.calls = model, marker, 0

    def __call__(self, batch):
        self.calls += 1
        if self.marker and self.calls == 3:
            die_once(self.marker)
        return self.model(batch)


def ray(rows, workers, computes, marker):
    import ray
    import ray.data

    model = mapper(computes)
    ray.data.DataContext.get_current().enable_progress_bars = False
    parts = [rows.slice(i, len(rows) // PARTS) for i in range(0, len(rows), len(rows) // PARTS)]
    given = ray.data.from_arrow(parts)
    pool = ray.data.ActorPoolStrategy(size=workers)
    begin = time.perf_counter()
    done = given.map_batches(
        Scores, fn_constructor_args=(model, marker), batch_format="pyarrow", batch_size=1024, compute=pool, num_cpus=0.5
    )
    tables = ray.get(done.to_arrow_refs())
    return time.perf_counter() - begin, pyarrow.concat_tables(tables)


def start_ray():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=200 << 20)
    return ray.shutdown


def spark(rows, workers, computes, marker):
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    model = mapper(computes, lists="any")
    lists = rows.set_column(1, "x", rows["x"].cast(pyarrow.list_(pyarrow.float32())))

    def mapped(given):
        for i, batch in enumerate(given):
            if marker and i == 1:
                die_once(marker)
            yield model(batch)

    parts = session.createDataFrame(lists).repartition(PARTS).cache()
    parts.count()
    begin = time.perf_counter()
    done = parts.coalesce(workers).mapInArrow(mapped, "id long, scores array<float>").toArrow()
    return time.perf_counter() - begin, done


def start_spark():
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        # Two threads, and at most four attempts per task.
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1024")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    session.range(10).mapInArrow(lambda given: given, "id long").count()
    return session.stop


def daft(rows, workers, computes, _marker):
    import daft

    @daft.cls(max_concurrency=workers, use_process=workers > 1)
    class Digits:
        def __init__(self, model):
            self.model = model

        @daft.method.batch(return_dtype=daft.DataType.fixed_size_list(daft.DataType.float32(), 10))
        def scores(self, x: daft.Series):
            return self.model.columns(x.to_arrow())

    digits = Digits(mapper(computes))
    given = daft.from_arrow(rows).into_batches(4096)
    begin = time.perf_counter()
    done = given.select(daft.col("id"), digits.scores(daft.col("x")).alias("scores")).to_arrow()
    return time.perf_counter() - begin, done


def datafusion(rows, workers, computes, _marker):
    from datafusion import SessionConfig, SessionContext, udf

    context = SessionContext(SessionConfig().with_target_partitions(workers).with_batch_size(4096))
    batches = rows.combine_chunks().to_batches(max_chunksize=4096)
    context.register_record_batches("digits", [batches[i::workers] for i in range(workers)])
    model = mapper(computes)
    scores = pyarrow.list_(pyarrow.float32(), 10)
    context.register_udf(udf(model.columns, [rows.schema.field("x").type], scores, "immutable", "pteron"))
    begin = time.perf_counter()
    done = context.sql("SELECT id, pteron(x) AS scores FROM digits").to_arrow_table()
    return time.perf_counter() - begin, done


def check(done, expected):
    """Checks that every row occurs once, with the results of the loop."""
    ids = done["id"].to_numpy()
    assert sorted(ids.tolist()) == list(range(len(expected))), "rows are missing or duplicated"
    scores = numpy.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in done["scores"].chunks])
    numpy.testing.assert_array_equal(scores.reshape(-1, 10), expected[ids])


ENGINES = {
    "batches": (batches, None),
    "ray": (ray, start_ray),
    "spark": (spark, start_spark),
    "daft": (daft, None),
    "datafusion": (datafusion, None),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", choices=["loop", *ENGINES])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--repeat", type=int, default=3, help="number of jobs, of which the fastest is reported")
    options = parser.parse_args()
    rows = table(options.rows)
    _, expected = loop(rows, 1)
    for name in options.engines:
        if name == "loop":
            for threads in options.workers:
                took = min(loop(rows, threads)[0] for _ in range(options.repeat))
                show(f"loop, {threads} threads", took, None, rows)
            continue
        run, start = ENGINES[name]
        stop = start() if start else None
        for workers in options.workers:
            seconds, alone = [], []
            for _ in range(options.repeat):
                with tempfile.TemporaryDirectory() as folder:
                    marker = os.path.join(folder, "killed") if options.kill else None
                    took, done = run(rows, workers, True, marker)
                    seconds.append(took)
                    check(done, expected)
                    assert marker is None or os.path.exists(marker), "no worker was killed"
                alone.append(run(rows, workers, False, None)[0])
            show(f"{name}, {workers} workers" + (", one killed" if options.kill else ""), min(seconds), min(alone), rows)
        if stop:
            stop()


def show(what, seconds, alone, rows):
    alone = "" if alone is None else f"{alone:.2f}"
    print(f"| {what} | {seconds:.2f} | {len(rows) / seconds:,.0f} | {alone} |", flush=True)


if __name__ == "__main__":
    main()
