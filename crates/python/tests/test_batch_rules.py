"""Batches: no row gets a result of another program, of missing elements or of a null."""

import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest

import pteron
import pteron.batch
from common import DIGITS, REPOSITORY, corpus, numpy
from pteron.batch import Mapper
from pteron.errors import FileError, InputError, RowError

try:
    import pyarrow
except ImportError:
    pyarrow = None

try:
    import pandas
except ImportError:
    pandas = None

MLP = REPOSITORY / "testdata" / "dynamic" / "mlp" / "model.pte"


def numbers(rows, size):
    """Rows of numbers, all different."""
    return [[(row * size + i) % 17 / 16 for i in range(size)] for row in range(rows)]


class Identity(unittest.TestCase):
    """A job is one program."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "model.pte"
        shutil.copy(DIGITS, self.path)

    def replace(self):
        other = self.path.with_suffix(".new")
        pteron.compile(DIGITS, other, backends=["xnnpack"])
        os.replace(other, self.path)

    def test_another_file_is_an_error(self):
        model = Mapper(self.path)
        sent = pickle.dumps(model)
        rows = {"x": numbers(3, 64)}
        expected = model(rows)["output_0"].tolist()
        self.assertEqual(pickle.loads(sent)(rows)["output_0"].tolist(), expected)
        self.replace()
        with self.assertRaisesRegex(FileError, "another file than the one that the mapper was made of") as caught:
            pickle.loads(sent)
        self.assertIn("follow=True", caught.exception.remedy)
        self.assertEqual(pickle.loads(pickle.dumps(caught.exception)).file, str(self.path))
        # The open mapper still runs the program that it was made of.
        self.assertEqual(model(rows)["output_0"].tolist(), expected)

    def test_a_worker_process_finds_another_file(self):
        model = pickle.dumps(Mapper(self.path))
        self.replace()
        code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
        done = subprocess.run([sys.executable, "-c", code], input=model, capture_output=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"another file than the one", done.stderr)

    def test_another_file_is_followed_on_request(self):
        sent = pickle.dumps(Mapper(self.path, follow=True))
        self.replace()
        self.assertEqual(len(pickle.loads(sent)({"x": numbers(3, 64)})["output_0"]), 3)
        self.assertIsNone(pickle.loads(sent).digest)

    def test_a_digest_says_which_file_is_meant(self):
        digest = Mapper(self.path).digest
        rows = {"x": numbers(2, 64)}
        self.assertEqual(len(pteron.batch.map_batch(rows, self.path, digest=digest)["output_0"]), 2)
        self.replace()
        with self.assertRaisesRegex(FileError, "another file"):
            pteron.batch.map_batch(rows, self.path, digest=digest)
        self.assertNotEqual(Mapper(self.path).digest, digest)

    def test_paths_are_absolute(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.path.parent)
        sent = pickle.dumps(Mapper("model.pte"))
        os.chdir(before)
        self.assertEqual(len(pickle.loads(sent)({"x": numbers(2, 64)})["output_0"]), 2)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_forked_process_finds_another_file(self):
        model = Mapper(self.path)
        rows = {"x": numbers(2, 64)}
        model(rows)
        self.replace()
        child = os.fork()
        if child == 0:
            status = 2
            try:
                model(rows)
            except FileError:
                status = 7
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)

    def test_what_does_not_fit_fails_when_the_mapper_is_made(self):
        for options, message in (
            ({"inputs": ["a", "b"]}, "has 1 inputs, 2 columns"),
            ({"inputs": {"z": "a"}}, "no input `z`"),
            ({"inputs": {0: []}}, "an empty list"),
            ({"outputs": ["a", "b"]}, "has 1 outputs, 2 names"),
            ({"batch_size": 0, "batched": True}, "one row or more"),
            ({"top": 11}, "top is 1 to 10"),
            ({"labels": ["a", "b"]}, "10 elements, and there are 2 labels"),
        ):
            with self.subTest(options), self.assertRaisesRegex(InputError, message):
                Mapper(DIGITS, **options)
        with self.assertRaises(FileError):
            Mapper(self.path.with_name("missing.pte"))

    def test_mappers_of_a_process_share_a_program(self):
        for inputs in (["x"], {0: "x"}, {0: ["x"]}):
            text = pickle.dumps(Mapper(self.path, inputs=inputs))
            self.assertIs(pickle.loads(text), pickle.loads(text))


class Rows(unittest.TestCase):
    """Rows that are not what the program takes."""

    def test_rows_of_a_dynamic_batch_are_exact(self):
        rows = numbers(4, 12)
        good = Mapper(MLP)({"x": rows})["output_0"].tolist()
        rows[1], rows[2] = rows[1][:11], rows[2][:5]
        with self.assertRaises(RowError) as caught:
            Mapper(MLP)({"x": rows})
        failures = [(failure.row, failure.column, failure.reason) for failure in caught.exception.rows]
        self.assertEqual([failure[:2] for failure in failures], [(1, "x"), (2, "x")])
        self.assertIn("it has 11 elements, a row of [12] takes 12", failures[0][2])
        found = Mapper(MLP, on_error="null")({"x": rows})["output_0"]
        self.assertEqual([None if row is None else row.tolist() for row in found], [good[0], None, None, good[3]])

    def test_nulls_that_became_nan_are_errors(self):
        for bad, reason in ((float("nan"), "its element 3 is NaN, or was null"), (float("-inf"), "its element 3 is -inf")):
            rows = numbers(3, 64)
            rows[1][3] = bad
            with self.assertRaisesRegex(RowError, f"row 1: column `x`: {reason}"):
                Mapper(DIGITS)({"x": rows})
            self.assertEqual(len(Mapper(DIGITS, nonfinite="allow")({"x": rows})["output_0"]), 3)

    def test_scalars_are_stacked(self):
        rows = numbers(5, 12)
        expected = Mapper(MLP)({"x": rows})["output_0"].tolist()
        table = {f"c{i}": [row[i] for row in rows] for i in range(12)}
        model = Mapper(MLP, inputs={0: list(table)}, keep=False)
        self.assertEqual(model(table)["output_0"].tolist(), expected)
        self.assertEqual(Mapper(MLP, inputs=[list(table)], keep=False)(table)["output_0"].tolist(), expected)
        table["c4"][2], table["c7"][3] = float("nan"), None
        with self.assertRaises(RowError) as caught:
            model(table)
        found = [(failure.row, failure.column, failure.reason) for failure in caught.exception.rows]
        self.assertEqual(found, [(2, "c4", "it is NaN, or was null, and must be finite"), (3, "c7", "it is null")])
        with self.assertRaisesRegex(RowError, "it has 11 elements, a row of .12. takes 12"):
            Mapper(MLP, inputs=[list(table)[:11]], keep=False)({**table, "c4": [1.0] * 5, "c7": [1.0] * 5})

    def test_errors_name_the_key_and_stay_small(self):
        rows = numbers(3000, 64)
        rows[1000:2000] = [None] * 1000
        table = {"id": [f"row-{i}" for i in range(3000)], "x": rows}
        with self.assertRaisesRegex(RowError, r"1000 of 3000 rows .* row 1000 \(key 'row-1000'\): column `x`: it is null") as caught:
            Mapper(DIGITS, inputs="x", key="id")(table)
        error = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((error.failed, error.count, len(error.rows), error.rows[1].key), (1000, 3000, 100, "row-1001"))
        self.assertLess(len(pickle.dumps(error)), 20_000)

    def test_the_largest_elements_and_labels(self):
        rows = numbers(6, 64)
        scores = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        best = [max(range(10), key=row.__getitem__) for row in scores]
        names = [f"digit {i}" for i in range(10)]
        found = Mapper(DIGITS, top=1, outputs="y")({"x": rows})
        self.assertEqual((list(found), found["y"].tolist()), (["x", "y", "y_score"], best))
        self.assertEqual(found["y_score"].tolist(), [max(row) for row in scores])
        rows[2] = None
        found = Mapper(DIGITS, top=2, labels=names, outputs="y", on_error="null")({"x": rows})
        self.assertEqual([row and row[0] for row in found["y"]], [None if i == 2 else names[b] for i, b in enumerate(best)])
        self.assertIsNone(found["y_score"][2])

    def test_cells_are_decoded(self):
        cells = [bytes([i] * 64) for i in range(4)]
        expected = Mapper(DIGITS)({"x": [[float(b) for b in cell] for cell in cells]})["output_0"].tolist()
        model = Mapper(DIGITS, decode=decode)
        self.assertEqual(pickle.loads(pickle.dumps(model))({"x": cells})["output_0"].tolist(), expected)
        cells[1] = b"torn"
        with self.assertRaisesRegex(RowError, "row 1: column `x`: it cannot be decoded: ValueError: a torn picture"):
            model({"x": cells})

    def test_pictures_are_decoded(self):
        folder = REPOSITORY / "examples" / "digits"
        files = [folder / f"{digit}.png" for digit in range(10)]
        model = Mapper(DIGITS, decode=pteron.batch.Pictures(), labels=folder / "labels.txt", keep=False)
        cells = [file.read_bytes() for file in files]
        for column in (cells, [str(file) for file in files]):
            found = pickle.loads(pickle.dumps(model))({"x": column})["output_0"]
            self.assertEqual(list(found), [str(digit) for digit in range(10)])
        with self.assertRaisesRegex(RowError, "row 1: column `x`: it cannot be decoded"):
            model({"x": [cells[0], cells[1][:40]]})
        signed = Mapper(DIGITS, decode=pteron.batch.Pictures(values="signed", resize=8, crop=(8, 8)))({"x": cells})
        self.assertNotEqual(signed["output_0"].tolist(), Mapper(DIGITS, decode=pteron.batch.Pictures())({"x": cells})["output_0"].tolist())

    def test_counters(self):
        seen = []
        model = Mapper(DIGITS, on_error="null", progress=seen.append)
        model({"x": numbers(3, 64)})
        model({"x": [*numbers(3, 64), None]})
        self.assertEqual([(counters.rows, counters.failed, counters.batches) for counters in seen], [(3, 0, 1), (7, 1, 2)])
        self.assertEqual(model.counters, seen[-1])


def decode(cell):
    """A picture of 64 bytes."""
    if len(cell) != 64:
        raise ValueError("a torn picture")
    return [float(value) for value in cell]


@unittest.skipIf(numpy is None, "NumPy is not installed")
class Numpy(unittest.TestCase):
    def test_a_null_of_numpy_has_no_result(self):
        rows = numpy.random.default_rng(0).random((4, 64), dtype=numpy.float32)
        rows[2, 5] = numpy.nan
        model = Mapper(DIGITS, on_error="null", top=1)
        found = model({"x": rows})
        self.assertEqual(found["output_0"].dtype, object)
        self.assertEqual([label is None for label in found["output_0"]], [False, False, True, False])
        self.assertIn("element 5 is NaN", found["error"][2])
        with self.assertRaises(RowError):
            Mapper(DIGITS)({"x": rows})


@unittest.skipIf(pyarrow is None, "PyArrow is not installed")
class Arrow(unittest.TestCase):
    def test_a_null_in_each_column(self):
        model = Mapper(MLP, inputs=[list("abcdefghijkl")], keep=["id"], key="id")
        table = {name: pyarrow.array([0.5] * 13) for name in "abcdefghijkl"}
        for row, name in enumerate("abcdefghijkl"):
            table[name] = pyarrow.array([None if i == row else 0.5 for i in range(13)])
        batch = pyarrow.record_batch({"id": pyarrow.array([100 + i for i in range(13)]), **table})
        with self.assertRaises(RowError) as caught:
            model(batch)
        found = [(failure.row, failure.column, failure.reason, failure.key) for failure in caught.exception.rows]
        self.assertEqual(found, [(i, name, "it is null", 100 + i) for i, name in enumerate("abcdefghijkl")])

    def test_failed_rows_survive_parquet(self):
        import io

        import pyarrow.parquet

        rows = [*numbers(3, 64), None]
        table = pyarrow.table({"x": pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))})
        result = Mapper(DIGITS, on_error="null")(table)
        file = io.BytesIO()
        pyarrow.parquet.write_table(result, file)
        self.assertTrue(pyarrow.parquet.read_table(file).equals(result))

    def test_encodings(self):
        import decimal

        rows = numbers(4, 12)
        expected = Mapper(MLP)({"x": rows})["output_0"].tolist()
        flat = pyarrow.array([x for row in rows for x in row], pyarrow.float32())
        lists = pyarrow.FixedSizeListArray.from_arrays(flat, 12)
        order = pyarrow.array([3, None, 0, 1], pyarrow.int8())
        column = pyarrow.DictionaryArray.from_arrays(order, lists)
        found = Mapper(MLP, on_error="null")(pyarrow.record_batch({"x": column}))
        self.assertEqual(found["output_0"].to_pylist(), [expected[3], None, expected[0], expected[1]])
        names = [f"c{i}" for i in range(12)]
        kinds = [pyarrow.decimal128(9, 4), pyarrow.decimal256(50, 4), pyarrow.decimal128(38, 4)]
        columns = {}
        for i, name in enumerate(names):
            values = [decimal.Decimal(row[i]).quantize(decimal.Decimal("0.0001")) for row in rows]
            columns[name] = pyarrow.array(values, kinds[i % 3])
        columns["c3"] = pyarrow.array([row[3] for row in rows], pyarrow.float64()).dictionary_encode()
        found = Mapper(MLP, inputs=[names], keep=False)(pyarrow.record_batch(columns).slice(1))
        self.assertEqual(found["output_0"].to_pylist(), expected[1:])
        whole = pyarrow.array([decimal.Decimal(-3), decimal.Decimal(7)], pyarrow.decimal128(10, 0))
        ones = pyarrow.array([-3, 7])
        both = [Mapper(MLP, inputs=[["a"] * 12], keep=False)(pyarrow.record_batch({"a": a})) for a in (whole, ones)]
        self.assertTrue(both[0].equals(both[1]))

    def test_views(self):
        cells = [bytes([i] * 64) for i in range(4)] + [b"short"]
        expected = Mapper(DIGITS)({"x": [[float(b) for b in cell] for cell in cells[:4]]})["output_0"].tolist()
        table = pyarrow.table({"text": pyarrow.array(["a long text that is no prefix"] * 5, pyarrow.string_view()), "x": pyarrow.array(cells, pyarrow.binary_view())})
        found = Mapper(DIGITS, inputs="x", on_error="null")(table.slice(1))
        found.validate(full=True)
        self.assertEqual(found["output_0"].to_pylist(), [*expected[1:], None])
        self.assertEqual(found["text"].to_pylist(), ["a long text that is no prefix"] * 4)
        self.assertEqual(Mapper(DIGITS, inputs="x")(table.slice(0, 0)).num_rows, 0)

    def test_chunked_columns_and_labels(self):
        rows = numbers(6, 64)
        kind = pyarrow.list_(pyarrow.float32())
        column = pyarrow.chunked_array([pyarrow.array(rows[:2], kind), pyarrow.array(rows[2:], kind)])
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        self.assertEqual(Mapper(DIGITS).columns(column).to_pylist(), expected)
        names = [f"digit {i}" for i in range(10)]
        best = [names[max(range(10), key=row.__getitem__)] for row in expected]
        table = pyarrow.table({"x": column})
        found = Mapper(DIGITS, labels=names)(table)
        found.validate(full=True)
        self.assertEqual(found["output_0"].to_pylist(), best)
        found = Mapper(DIGITS, labels=names, top=3)(table)
        found.validate(full=True)
        self.assertEqual([row[0] for row in found["output_0"].to_pylist()], best)
        self.assertEqual([row[0] for row in found["output_0_score"].to_pylist()], [max(row) for row in expected])

    def test_cells_are_decoded(self):
        cells = [bytes([i] * 64) for i in range(3)]
        batch = pyarrow.record_batch({"x": pyarrow.array([*cells, b"torn", None])})
        found = Mapper(DIGITS, decode={"x": decode}, on_error="null")(batch)
        self.assertEqual([row is None for row in found["output_0"].to_pylist()], [False] * 3 + [True] * 2)
        self.assertEqual(found["error"].to_pylist()[3:], ["column `x`: it cannot be decoded: ValueError: a torn picture", "column `x`: it is null"])


@unittest.skipIf(pandas is None, "pandas is not installed")
class Pandas(unittest.TestCase):
    def test_frames(self):
        rows = numbers(5, 64)
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        frame = pandas.DataFrame({"id": list("abcde"), "x": rows}, index=[10, 20, 30, 40, 50])
        found = Mapper(DIGITS, inputs="x")(frame)
        self.assertIsInstance(found, pandas.DataFrame)
        self.assertEqual((list(found.columns), list(found.index)), (["id", "x", "output_0"], [10, 20, 30, 40, 50]))
        self.assertEqual([row.tolist() for row in found["output_0"]], expected)
        self.assertEqual(list(frame.columns), ["id", "x"])
        frame.loc[30, "x"] = None
        found = Mapper(DIGITS, inputs="x", on_error="null", labels=list("0123456789"))(frame)
        self.assertEqual(found["output_0"].isna().tolist(), [False, False, True, False, False])
        self.assertEqual(found["error"].isna().tolist(), [True, True, False, True, True])
        self.assertEqual(found["error"].iloc[2], "column `x`: it is null")

    def test_nulls_of_pandas(self):
        names = [f"c{i}" for i in range(12)]
        frame = pandas.DataFrame({name: [0.25, 0.5, 0.75] for name in names})
        frame["c1"] = [0.25, None, 0.75]
        frame["c2"] = pandas.array([1, 2, None], dtype="Int64")
        with self.assertRaises(RowError) as caught:
            Mapper(MLP, inputs=[names])(frame)
        found = [(failure.row, failure.column, failure.reason) for failure in caught.exception.rows]
        self.assertEqual(found, [(1, "c1", "it is NaN, or was null, and must be finite"), (2, "c2", "it is null")])


class Libraries(unittest.TestCase):
    def test_polars(self):
        try:
            import polars
        except ImportError:
            self.skipTest("Polars is not installed")
        rows = numbers(4, 64)
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        for kind in (polars.List(polars.Float32), polars.Array(polars.Float32, 64)):
            frame = polars.DataFrame({"name": ["a long name of a row", None, "c", "d"], "x": polars.Series(rows, dtype=kind)})
            found = Mapper(DIGITS, inputs="x")(frame)
            self.assertIsInstance(found, polars.DataFrame)
            self.assertEqual(found["output_0"].to_list(), expected)
            self.assertEqual(found["name"].to_list(), frame["name"].to_list())
            self.assertEqual(Mapper(DIGITS).columns(frame["x"]).to_list(), expected)

    def test_duckdb(self):
        try:
            import duckdb
        except ImportError:
            self.skipTest("DuckDB is not installed")
        relation = duckdb.sql("SELECT i AS id, CAST(i AS DECIMAL(9, 2)) / 4 AS a, CAST(i AS FLOAT) AS b FROM range(5) t(i)")
        found = Mapper(MLP, inputs=[["a", "b"] * 6], outputs="y")(relation)
        self.assertEqual(type(found), type(relation))
        expected = Mapper(MLP)({"x": [[i / 4, float(i)] * 6 for i in range(5)]})["output_0"].tolist()
        self.assertEqual([list(row) for (row,) in found.project("y").fetchall()], expected)


if __name__ == "__main__":
    unittest.main()
