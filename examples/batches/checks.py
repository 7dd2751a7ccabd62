"""Checks on an engine what a job must not get wrong: rows that are short or null, a worker that is killed, a model that is replaced.

    python examples/batches/checks.py [ENGINE] [--rows N]
"""

import argparse
import decimal
import os
import pathlib
import shutil
import sys
import tempfile
import time

import pyarrow

import engines
import pteron
from pteron.batch import Mapper

PROGRAM = pathlib.Path(__file__).parents[2] / "testdata" / "dynamic" / "mlp" / "model.pte"
WIDTH = 12
SCHEMA = "id long, scores array<float>, error string"


def table_of(rows):
    """A table with columns of eight kinds. One row in a thousand is too short, null, or has a null or NaN element."""
    vectors = [[(row * WIDTH + i) % 97 / 97 for i in range(WIDTH)] for row in range(rows)]
    bad = {}
    for row in range(5, rows, 1000):
        bad[row] = "it has 11 elements, a row of [12] takes 12"
        vectors[row] = vectors[row][:11]
    for row in range(6, rows, 1000):
        bad[row] = "it is null"
        vectors[row] = None
    for row in range(7, rows, 1000):
        bad[row] = "its element 4 is"
        vectors[row][4] = None if row % 2000 == 7 else float("nan")
    every = lambda value: [None if row % 11 == 3 else value(row) for row in range(rows)]
    columns = {
        "id": pyarrow.array(range(rows), pyarrow.int64()),
        "x": pyarrow.array(vectors, pyarrow.list_(pyarrow.float32())),
        "text": pyarrow.array(every(lambda row: f"row {row}")),
        "flag": pyarrow.array(every(lambda row: row % 2 == 0)),
        "price": pyarrow.array(every(lambda row: decimal.Decimal(row) / 4), pyarrow.decimal128(12, 2)),
        "day": pyarrow.array(every(lambda row: row % 1000), pyarrow.date32()),
        "small": pyarrow.array(every(lambda row: row % 100), pyarrow.int8()),
        "number": pyarrow.array(every(lambda row: row / 8), pyarrow.float64()),
    }
    return pyarrow.table(columns), bad


def check(result, expected, bad, rows):
    """Fails unless each row is there once, with its result, or with null and a reason."""
    result = result.sort_by("id")
    assert result["id"].to_pylist() == list(range(rows)), "rows are missing, or there twice"
    scores, errors = result["scores"].to_pylist(), result["error"].to_pylist()
    for row in range(rows):
        if row in bad:
            assert scores[row] is None and bad[row] in errors[row], (row, scores[row], errors[row])
            assert errors[row].startswith("column `x`: "), errors[row]
        else:
            assert errors[row] is None and scores[row] == expected[row], (row, scores[row], expected[row], errors[row])


class Replacing:
    """A mapper during whose first call the file of the program is replaced."""

    def __init__(self, model, path, other):
        self.model, self.path, self.other = model, path, other

    def __call__(self, table):
        result = self.model(table)
        if len(table):
            try:
                os.replace(self.other, self.path)
            except FileNotFoundError:
                pass
        return result

    def over(self, tables):
        return map(self, tables)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", nargs="?", choices=list(engines.ENGINES), default="none")
    parser.add_argument("--rows", type=int, default=4000)
    options = parser.parse_args()
    engine = engines.ENGINES[options.engine]
    if options.engine == "spark":
        # Worker processes import this file for `Replacing`.
        from pyspark.sql import SparkSession

        SparkSession.builder.master("local[2,4]").config("spark.driver.memory", "1g").getOrCreate().sparkContext.addPyFile(__file__)
    table, bad = table_of(options.rows)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pte"
        shutil.copy(PROGRAM, path)
        model = Mapper(path, inputs="x", outputs="scores", keep=["id"], on_error="null")
        direct = model(table)
        made = direct.schema
        expected = direct["scores"].to_pylist()

        started = time.monotonic()
        check(engine(model, made, table, SCHEMA), expected, bad, options.rows)
        print(f"{options.engine}: {options.rows:,} rows, {len(bad)} with a reason, in {time.monotonic() - started:.1f} s")

        unlucky = engines.Unlucky(model, os.path.join(folder, "failed"), dies=options.engine in ("ray", "spark"))
        check(engine(unlucky, made, table, SCHEMA), expected, bad, options.rows)
        assert os.path.exists(unlucky.marker), "nothing has failed"
        print(f"{options.engine}: the same rows after a {'worker was killed' if unlucky.dies else 'step failed'}")

        other = pathlib.Path(folder) / "other.pte"
        pteron.compile(PROGRAM, other, backends=["xnnpack"])
        try:
            result = engine(Replacing(model, path, other), made, table, SCHEMA)
        except Exception as error:
            assert "another file than the one that the mapper was made of" in str(error), error
            print(f"{options.engine}: a model that is replaced is an error")
        else:
            assert not other.exists(), "the model was not replaced"
            check(result, expected, bad, options.rows)
            print(f"{options.engine}: all rows are of the program that was there first")
        # A mapper that is sent to a new process after that is an error in any engine.
        import pickle

        try:
            pickle.loads(pickle.dumps(model))
        except pteron.errors.FileError:
            print(f"{options.engine}: a mapper of the old file cannot be opened any more")
        else:
            sys.exit("a mapper was opened with another file")


if __name__ == "__main__":
    main()
