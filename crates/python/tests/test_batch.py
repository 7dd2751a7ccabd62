"""Batches of rows: dicts of arrays, and Arrow if PyArrow is installed."""

import array
import math
import pickle
import unittest

import pteron
import pteron.batch
from common import DIGITS, REPOSITORY, corpus, floats, numpy
from pteron.batch import Mapper
from pteron.errors import InputError, RowError

try:
    import pyarrow
except ImportError:
    pyarrow = None

DYNAMIC = REPOSITORY / "testdata" / "dynamic"


def numbers(rows, size, start=0):
    """Rows of numbers, all different."""
    return [[((row + start) * size + i) % 17 / 16 for i in range(size)] for row in range(rows)]


def one_by_one(path, shape, rows, **options):
    """The results of calling the program with one row at a time."""
    module = pteron.load(path, **options)
    return [module(floats(shape, row))[0].tolist()[0] for row in rows]


class Programs(unittest.TestCase):
    """Rows and batch sizes of programs."""

    def test_batches_of_a_fixed_size(self):
        model = Mapper(corpus("tiny/ModuleAdd"))
        self.assertEqual(model.batch_sizes, (2,))
        self.assertEqual([column.row for column in model.inputs], [(2,), (2,)])
        with self.assertRaisesRegex(InputError, "batches of 2 rows, not of 3"):
            Mapper(corpus("tiny/ModuleAdd"), batch_size=3).inputs

    def test_batches_up_to_a_bound(self):
        model = Mapper(DYNAMIC / "mlp" / "model.pte", batch_size=8)
        self.assertEqual(model.batch_sizes, (1, 2, 4, 8))
        with self.assertRaisesRegex(InputError, "bound"):
            Mapper(DYNAMIC / "mlp" / "model.pte", batch_size=10**6).inputs

    def test_unbatched_rows(self):
        model = Mapper(corpus("tiny/ModuleAdd"), batched=False, inputs=["a", "b"])
        self.assertEqual((model.batch_sizes, model.inputs[0].row), ((), (2, 2)))
        rows = numbers(5, 4)
        result = model({"a": rows, "b": rows})["output_0"]
        self.assertEqual(result.tolist(), [[[2 * w, 2 * x], [2 * y, 2 * z]] for w, x, y, z in rows])

    def test_columns_have_the_names_of_inputs(self):
        path = REPOSITORY / "testdata" / "archives" / "keywords" / "model.pt2"
        model = Mapper(path, inputs={0: "x"}, outputs="y", keep=False)
        self.assertEqual([column.name for column in model.inputs], ["x", "scale", "offset.early", "offset.late"])
        x, early = [[1.0] * 6, [2.0] * 6], [[0.0] * 6, [1.0] * 6]
        columns = {"offset.late": [[0.5] * 3] * 2, "offset.early": early, "scale": [[1.0, 2.0, 3.0]] * 2, "x": x}
        self.assertEqual(model(columns)["y"].tolist(), [[[2.5, 4.5, 6.5]] * 2, [[6.5, 10.5, 14.5]] * 2])

    def test_columns_are_chosen(self):
        rows = numbers(3, 64)
        expected = Mapper(DIGITS)({"only": rows})["output_0"].tolist()
        for inputs in ("x", ["x"], {0: "x"}):
            result = Mapper(DIGITS, inputs=inputs, outputs="y", keep=["id"])({"id": [1, 2, 3], "x": rows})
            self.assertEqual((list(result), result["y"].tolist()), (["id", "y"], expected))
        with self.assertRaisesRegex(InputError, "say with inputs"):
            Mapper(DIGITS)({"id": [1, 2, 3], "x": rows})
        with self.assertRaisesRegex(InputError, "no column `z`"):
            Mapper(DIGITS, inputs="z")({"x": rows})
        with self.assertRaisesRegex(InputError, "both kept and made"):
            Mapper(DIGITS, outputs="x")({"x": rows})
        with self.assertRaisesRegex(InputError, "no column `z` to keep"):
            Mapper(DIGITS, keep=["z"])({"x": rows})

    def test_state_is_refused(self):
        path = corpus("tiny/mutable_initialized")
        inputs = [value.tensor for value in pteron.method_meta(pteron.load(path)).inputs]
        columns = {str(i): pteron.Tensor(bytes(info.nbytes), info.dtype, info.shape) for i, info in enumerate(inputs)}
        with self.assertRaisesRegex(InputError, "has state"):
            Mapper(path, inputs=list(columns))(columns)

    def test_a_mapper_is_pickled_as_a_path(self):
        model = Mapper(DIGITS, inputs="x", on_error="null")
        text = pickle.dumps(model)
        self.assertLess(len(text), 1000)
        rows = numbers(4, 64)
        again = pickle.loads(text)({"x": rows})
        self.assertEqual(again["output_0"].tolist(), model({"x": rows})["output_0"].tolist())
        self.assertEqual(len(again["error"]), 4)


class Dicts(unittest.TestCase):
    def test_sizes_of_batches(self):
        path = DYNAMIC / "mlp" / "model.pte"
        for rows in (0, 1, 2, 3, 8, 9, 21):
            given = numbers(rows, 12)
            result = Mapper(path, batch_size=8)({"x": given})["output_0"]
            self.assertEqual(result.shape, (rows, 3))
            for found, expected in zip(result.tolist(), one_by_one(path, [1, 12], given)):
                for a, b in zip(found, expected):
                    self.assertAlmostEqual(a, b, places=5)

    def test_padding_of_a_fixed_size(self):
        for rows in (0, 1, 2, 5):
            given = numbers(rows, 2)
            result = Mapper(corpus("tiny/ModuleAdd"), inputs=["x", "x"])({"x": given})["output_0"]
            self.assertEqual(result.tolist(), [[2 * a, 2 * b] for a, b in given])

    def test_arrays_of_any_layout(self):
        rows = numbers(6, 64)
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        flat = [x for row in rows for x in row]
        lent = floats([6, 64], flat)
        self.assertEqual(Mapper(DIGITS)({"x": lent})["output_0"].tolist(), expected)
        self.assertEqual(Mapper(DIGITS)({"x": floats([6, 8, 8], flat)})["output_0"].tolist(), expected)
        double = memoryview(array.array("d", flat)).cast("B").cast("d", [6, 64])
        self.assertEqual(Mapper(DIGITS)({"x": double})["output_0"].tolist(), expected)
        self.assertEqual(Mapper(DIGITS)({"x": lent[::2]})["output_0"].tolist(), expected[::2])
        self.assertEqual(Mapper(DIGITS)({"x": pteron.Tensor(lent)})["output_0"].tolist(), expected)

    def test_integers_become_numbers(self):
        given = bytes(range(64)) * 2
        column = memoryview(given).cast("B", [2, 64])
        expected = Mapper(DIGITS)({"x": [[float(x) for x in range(64)]] * 2})["output_0"].tolist()
        self.assertEqual(Mapper(DIGITS)({"x": column})["output_0"].tolist(), expected)

    def test_columns_that_do_not_fit(self):
        rows = numbers(2, 64)
        with self.assertRaisesRegex(InputError, "2 rows|1 rows"):
            Mapper(corpus("tiny/ModuleAdd"), inputs=["a", "b"])({"a": [[1.0, 2.0]], "b": [[1.0, 2.0]] * 2})
        with self.assertRaisesRegex(TypeError, "no table"):
            Mapper(DIGITS)(rows)
        with self.assertRaisesRegex(TypeError, "no rows"):
            Mapper(DIGITS)({"x": pteron.Tensor(1.0)})

    def test_rows_that_fail_are_named(self):
        rows = numbers(6, 64)
        good = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        rows[1], rows[4] = None, [1.0, 2.0]
        with self.assertRaises(RowError) as caught:
            Mapper(DIGITS)({"x": rows})
        error = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual([(row.row, row.column) for row in error.rows], [(1, "x"), (4, "x")])
        self.assertEqual((error.rows[0].reason, error.count), ("it is null", 6))
        self.assertIn("2 elements", error.rows[1].reason)
        result = Mapper(DIGITS, on_error="null")({"x": rows})
        for row, scores in enumerate(result["output_0"]):
            if row in (1, 4):
                self.assertIsNone(scores)
                self.assertIn("column `x`", result["error"][row])
            else:
                self.assertEqual(scores.tolist(), good[row])
                self.assertIsNone(result["error"][row])


@unittest.skipIf(numpy is None, "NumPy is not installed")
class Numpy(unittest.TestCase):
    def test_outputs_are_numpy_arrays(self):
        rows = numpy.random.default_rng(0).random((7, 64), dtype=numpy.float32)
        result = Mapper(DIGITS)({"x": rows})
        self.assertIs(result["x"], rows)
        self.assertIsInstance(result["output_0"], numpy.ndarray)
        module = pteron.load(DIGITS)
        expected = [module(row.reshape(1, 1, 8, 8))[0].numpy()[0] for row in rows]
        numpy.testing.assert_array_equal(result["output_0"], expected)

    def test_halves_and_objects(self):
        rows = numpy.random.default_rng(0).random((5, 64)).astype(numpy.float16)
        expected = Mapper(DIGITS)({"x": rows.astype(numpy.float32)})["output_0"]
        numpy.testing.assert_array_equal(Mapper(DIGITS)({"x": rows})["output_0"], expected)
        objects = numpy.empty(5, dtype=object)
        objects[:] = list(rows.astype(numpy.float32))
        numpy.testing.assert_array_equal(Mapper(DIGITS)({"x": objects})["output_0"], expected)


@unittest.skipIf(pyarrow is None, "PyArrow is not installed")
class Arrow(unittest.TestCase):
    def batch(self, column, **others):
        others = {name: pyarrow.array(values) for name, values in others.items()}
        return pyarrow.record_batch({**others, "x": column})

    def column(self, rows, kind):
        return pyarrow.array(rows, type=kind)

    def kinds(self):
        value = pyarrow.float32()
        nested = pyarrow.list_(pyarrow.list_(value, 8), 8)
        yield pyarrow.list_(value, 64), lambda row: row
        yield pyarrow.list_(value), lambda row: row
        yield pyarrow.large_list(pyarrow.float64()), lambda row: row
        yield nested, lambda row: [row[i : i + 8] for i in range(0, 64, 8)]
        yield pyarrow.list_(pyarrow.list_(value)), lambda row: [row[i : i + 8] for i in range(0, 64, 8)]

    def test_list_types(self):
        rows = numbers(9, 64)
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        for kind, shape in self.kinds():
            column = self.column([shape(row) for row in rows], kind)
            result = Mapper(DIGITS)(self.batch(column))
            self.assertIsInstance(result, pyarrow.RecordBatch)
            result.validate(full=True)
            self.assertEqual(result.schema.field("output_0").type, pyarrow.list_(pyarrow.float32()))
            self.assertEqual(result["output_0"].to_pylist(), expected)
            fixed = Mapper(DIGITS, lists="fixed")(self.batch(column))
            self.assertEqual(fixed.schema.field("output_0").type, pyarrow.list_(pyarrow.float32(), 10))
            self.assertEqual(fixed["output_0"].to_pylist(), expected)
            part = self.batch(column).slice(2, 5)
            self.assertEqual(Mapper(DIGITS)(part)["output_0"].to_pylist(), expected[2:7])
            struct = pyarrow.StructArray.from_arrays([column], ["x"]).slice(3, 4)
            again = Mapper(DIGITS)(pteron.batch.ArrowArray.take(struct))
            self.assertEqual(pyarrow.record_batch(again)["output_0"].to_pylist(), expected[3:7])

    def test_bytes_and_booleans(self):
        pixels = [bytes((row * 64 + i) % 256 for i in range(64)) for row in range(4)]
        expected = Mapper(DIGITS)({"x": [[float(x) for x in row] for row in pixels]})["output_0"].tolist()
        for kind in (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary(64), pyarrow.list_(pyarrow.uint8())):
            values = [list(row) for row in pixels] if pyarrow.types.is_list(kind) else pixels
            result = Mapper(DIGITS)(self.batch(self.column(values, kind)).slice(1))
            self.assertEqual(result["output_0"].to_pylist(), expected[1:])
        bits = [[(row + i) % 3 == 0 for i in range(64)] for row in range(5)]
        expected = Mapper(DIGITS)({"x": [[float(x) for x in row] for row in bits]})["output_0"].tolist()
        result = Mapper(DIGITS)(self.batch(self.column(bits, pyarrow.list_(pyarrow.bool_()))).slice(1))
        self.assertEqual(result["output_0"].to_pylist(), expected[1:])

    def test_columns_of_any_type_are_kept(self):
        rows = numbers(4, 64)
        others = {
            "text": pyarrow.array(["a", None, "c", "d"]),
            "kind": pyarrow.array(["u", "v", "u", None]).dictionary_encode(),
            "pair": pyarrow.array([{"a": 1, "b": [1, 2]}, None, {"a": 2, "b": None}, {"a": 3, "b": []}]),
            "time": pyarrow.array([1, 2, 3, 4], type=pyarrow.timestamp("us", tz="UTC")),
        }
        schema = pyarrow.schema(
            [pyarrow.field(name, column.type, metadata={"of": name}) for name, column in others.items()]
            + [pyarrow.field("x", pyarrow.list_(pyarrow.float32()))]
        )
        columns = [*others.values(), self.column(rows, pyarrow.list_(pyarrow.float32()))]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=schema).slice(1, 3)
        result = Mapper(DIGITS, inputs="x")(batch)
        result.validate(full=True)
        for name in others:
            self.assertTrue(result[name].equals(batch[name]))
            self.assertEqual(result.schema.field(name), batch.schema.field(name))
            self.assertEqual(result.schema.field(name).metadata, {b"of": name.encode()})
        self.assertEqual(result.num_columns, 6)

    def test_results_outlive_their_inputs(self):
        rows = numbers(3, 64)
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        model = Mapper(DIGITS)
        result = model(self.batch(self.column(rows, pyarrow.list_(pyarrow.float32()))))
        exported = pteron.batch.ArrowArray.take(result)
        views = [pyarrow.array(column) for column in exported.columns()]
        del model, result, exported
        self.assertEqual([view.to_pylist() for view in views], [[[float(x) for x in row] for row in rows], expected])

    def test_nulls_and_skewed_rows(self):
        rows = numbers(8, 64)
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        rows[0], rows[2], rows[5] = None, rows[2][:63], [*rows[5][:9], None, *rows[5][10:]]
        bad = {0: "it is null", 2: "63 elements", 5: "element 9 is null"}
        batch = self.batch(self.column(rows, pyarrow.list_(pyarrow.float32())), id=list(range(8)))
        with self.assertRaises(RowError) as caught:
            Mapper(DIGITS, inputs="x")(batch)
        self.assertEqual([failure.row for failure in caught.exception.rows], [0, 2, 5])
        result = Mapper(DIGITS, inputs="x", on_error="null")(batch)
        result.validate(full=True)
        for row in range(8):
            reason = result["error"][row].as_py()
            if row in bad:
                self.assertIsNone(result["output_0"][row].as_py())
                self.assertIn(bad[row], reason)
            else:
                self.assertIsNone(reason)
                self.assertEqual(result["output_0"][row].as_py(), expected[row])

    def test_tables(self):
        rows = numbers(10, 64)
        kind = pyarrow.list_(pyarrow.float32())
        expected = Mapper(DIGITS)({"x": rows})["output_0"].tolist()
        chunks = [rows[:3], [], rows[3:4], rows[4:]]
        table = pyarrow.table({"x": pyarrow.chunked_array([self.column(part, kind) for part in chunks], type=kind)})
        result = Mapper(DIGITS)(table)
        self.assertIsInstance(result, pyarrow.Table)
        result.validate(full=True)
        self.assertEqual(result["output_0"].to_pylist(), expected)
        empty = pyarrow.schema([("x", kind), ("text", pyarrow.string())]).empty_table()
        result = Mapper(DIGITS, inputs="x")(empty)
        self.assertEqual((result.num_rows, result.column_names), (0, ["x", "text", "output_0"]))
        self.assertEqual(result.schema.field("output_0").type, pyarrow.list_(pyarrow.float32()))
        rows[6] = rows[6][1:]
        chunks = [self.column(rows[:5], kind), self.column(rows[5:], kind)]
        with self.assertRaises(RowError) as caught:
            Mapper(DIGITS)(pyarrow.table({"x": pyarrow.chunked_array(chunks)}))
        self.assertEqual([failure.row for failure in caught.exception.rows], [6])

    def test_a_function_of_batches(self):
        rows = numbers(3, 64)
        batch = self.batch(self.column(rows, pyarrow.list_(pyarrow.float32())))
        result = pteron.batch.map_batch(batch, DIGITS, outputs=["scores"])
        self.assertEqual(result.schema.field("scores").type, pyarrow.list_(pyarrow.float32()))
        self.assertEqual(result["scores"].to_pylist(), Mapper(DIGITS)({"x": rows})["output_0"].tolist())
        column = Mapper(DIGITS).columns(batch["x"])
        self.assertEqual(column.to_pylist(), result["scores"].to_pylist())
        self.assertEqual(len(list(Mapper(DIGITS).over([batch, batch]))), 2)

    def test_columns_that_cannot_be_read(self):
        for column in (pyarrow.array(["a", "b"]), pyarrow.array([1, 2], type=pyarrow.timestamp("s"))):
            with self.assertRaisesRegex(InputError, "column `x` is of the Arrow type"):
                Mapper(DIGITS)(self.batch(column))

    def test_a_row_that_fails_in_the_program(self):
        model = Mapper(corpus("models/embedding_lookup"), inputs=["seen", "x"], on_error="null")
        self.assertEqual(model.batch_sizes, (3,))
        rows = [[(row + i) % 5 for i in range(7)] for row in range(8)]
        items = pyarrow.array([1] * 8, type=pyarrow.int32())
        good = model(self.batch(items, seen=rows))["output_0"].to_pylist()
        rows[3][0] = 10**6
        result = model(self.batch(items, seen=rows))
        self.assertEqual([reason is None for reason in result["error"].to_pylist()], [row != 3 for row in range(8)])
        self.assertNotIn("column", result["error"][3].as_py())
        self.assertEqual(result["output_0"].to_pylist(), [None if row == 3 else good[row] for row in range(8)])
        narrow = Mapper(corpus("tiny/dtype_int32"), on_error="null")
        size = math.prod(narrow.inputs[0].row)
        column = self.column([[1] * size, [2**40] * size], pyarrow.list_(pyarrow.int64()))
        self.assertIn("1099511627776 is no int32", narrow(self.batch(column))["error"][1].as_py())


if __name__ == "__main__":
    unittest.main()
