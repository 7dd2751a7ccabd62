"""Parquet and Arrow files on one machine."""

import contextlib
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import pteron
from common import DIGITS, REPOSITORY
from pteron.batch import Mapper, map_files
from pteron.errors import FileError, InputError, RowError

try:
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
except ImportError:
    pyarrow = None

MLP = REPOSITORY / "testdata" / "dynamic" / "mlp" / "model.pte"


@unittest.skipIf(pyarrow is None, "PyArrow is not installed")
class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"

    def table(self, rows, start=0):
        vectors = [[(row * 12 + i) % 97 / 97 for i in range(12)] for row in range(start, start + rows)]
        for row in range(3, rows, 50):
            vectors[row] = vectors[row][:5] if row % 100 == 3 else None
        kind = pyarrow.list_(pyarrow.float32())
        ids = pyarrow.array(range(start, start + rows), pyarrow.int64())
        return pyarrow.table({"id": ids, "x": pyarrow.array(vectors, kind), "other": pyarrow.array(["a"] * rows)})

    def parquet(self, name, rows, start=0):
        path = self.folder / name
        pyarrow.parquet.write_table(self.table(rows, start), path, row_group_size=64)
        return path

    def model(self, **options):
        return Mapper(MLP, inputs="x", outputs="y", on_error="null", **options)

    def expected(self, path):
        return self.model()(pyarrow.parquet.read_table(path))

    def test_files_are_mapped_in_parts(self):
        paths = [self.parquet("a.parquet", 300), self.parquet("b.parquet", 7, 300), self.parquet("none.parquet", 0)]
        seen = []
        made = map_files(self.model(), paths, self.out, rows=32, threads=3, progress=seen.append)
        self.assertEqual([(file.rows, file.failed, file.is_old) for file in made], [(300, 6, False), (7, 1, False), (0, 0, False)])
        self.assertEqual(sum(seen), 307)
        for path in paths:
            result = pyarrow.parquet.read_table(self.out / path.name)
            self.assertTrue(result.equals(self.expected(path)), path)
        self.assertEqual(sorted(os.listdir(self.out)), ["a.parquet", "b.parquet", "none.parquet"])

    def test_a_second_run_continues(self):
        paths = [self.parquet("a.parquet", 300), self.parquet("b.parquet", 40)]
        map_files(self.model(), paths[:1], self.out)
        before = os.stat(self.out / "a.parquet").st_mtime_ns
        (self.out / ".b.parquet.part").write_bytes(b"half of a file")
        made = map_files(self.model(), [self.folder], self.out)
        self.assertEqual([(file.rows, file.failed, file.is_old) for file in made], [(300, 6, True), (40, 1, False)])
        self.assertEqual(os.stat(self.out / "a.parquet").st_mtime_ns, before)
        self.assertEqual(sorted(os.listdir(self.out)), ["a.parquet", "b.parquet"])

    def test_outputs_of_other_jobs_are_not_mixed(self):
        path = self.parquet("a.parquet", 30)
        map_files(self.model(), [path], self.out)
        model = self.folder / "model.pte"
        pteron.compile(MLP, model, backends=["xnnpack"])
        other = Mapper(model, inputs="x", outputs="y", on_error="null")
        with self.assertRaisesRegex(InputError, "a.parquet was made of another program"):
            map_files(other, [path], self.out)
        with self.assertRaisesRegex(InputError, "was made of another options"):
            map_files(self.model(keep=["id"]), [path], self.out)
        self.assertFalse(map_files(other, [path], self.out, again=True)[0].is_old)
        self.parquet("a.parquet", 31)
        with self.assertRaisesRegex(InputError, "was made of another input"):
            map_files(other, [path], self.out)
        pyarrow.parquet.write_table(self.table(3), self.out / "a.parquet")
        with self.assertRaisesRegex(InputError, "is there, and not from this step"):
            map_files(other, [path], self.out)

    def test_arrow_files(self):
        table = self.table(100)
        for name, make in (("a.arrow", pyarrow.ipc.new_file), ("b.arrows", pyarrow.ipc.new_stream)):
            with make(self.folder / name, table.schema) as writer:
                writer.write_table(table, 33)
        for _ in range(2):
            made = map_files(self.model(), [self.folder / "a.arrow", self.folder / "b.arrows"], self.out, rows=10)
            self.assertEqual([(file.rows, file.failed) for file in made], [(100, 2), (100, 2)])
        expected = self.model()(table)
        self.assertTrue(pyarrow.ipc.open_file(self.out / "a.arrow").read_all().equals(expected))
        self.assertTrue(pyarrow.ipc.open_stream(self.out / "b.arrows").read_all().equals(expected))

    def test_only_columns_that_are_needed_are_read(self):
        path = self.parquet("a.parquet", 20)
        model = self.model(keep=["id"])
        self.assertEqual(model.needed(("id", "x", "other")), ["id", "x"])
        map_files(model, [path], self.out)
        self.assertEqual(pyarrow.parquet.read_table(self.out / "a.parquet").column_names, ["id", "y", "error"])

    def test_nothing_is_left_of_a_run_that_fails(self):
        path = self.parquet("a.parquet", 300)
        with self.assertRaises(RowError) as caught:
            map_files(Mapper(MLP, inputs="x", key="id"), [path], self.out, rows=16)
        self.assertEqual((caught.exception.rows[0].key, caught.exception.__notes__[-1]), (3, f"in {path}"))
        self.assertEqual(os.listdir(self.out), [])

    def test_files_that_cannot_be_mapped(self):
        path = self.parquet("a.parquet", 3)
        (self.folder / "text.parquet").write_text("no Parquet")
        (self.folder / "deep").mkdir()
        shutil.copy(path, self.folder / "deep" / "a.parquet")
        for files, folder, error, message in (
            ([path], self.folder, InputError, "would be replaced by its output"),
            ([path, self.folder / "deep" / "a.parquet"], self.out, InputError, "have the same name"),
            ([self.folder / "a.csv"], self.out, InputError, "none of the suffixes"),
            ([self.folder / "text.parquet"], self.out, FileError, "no Parquet or Arrow file"),
            ([self.folder / "missing.parquet"], self.out, OSError, "missing"),
        ):
            with self.subTest(message), self.assertRaisesRegex(error, message):
                map_files(self.model(), files, folder)

    def test_the_command(self):
        from pteron.batch.__main__ import main

        self.parquet("a.parquet", 120)
        out, errors = io.StringIO(), io.StringIO()
        command = [str(MLP), str(self.folder), "-o", str(self.out), "--input", "x", "--outputs", "y", "--keep", "id", "--top", "2"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            self.assertEqual([main(command), main(command), main([*command, "--top", "9"])], [0, 0, 1])
        self.assertIn("a.parquet: 120 rows, 3 without a result in ", out.getvalue())
        self.assertIn("a.parquet: 120 rows, 3 without a result, made before", out.getvalue())
        self.assertIn("error: top is 1 to 3", errors.getvalue())
        self.assertEqual(pyarrow.parquet.read_table(self.out / "a.parquet").column_names, ["id", "y", "y_score", "error"])

    @unittest.skipIf(os.name == "nt", "signals")
    def test_a_run_that_is_killed_leaves_no_half_of_a_file(self):
        for name in ("a.parquet", "b.parquet"):
            self.parquet(name, 5000)
        command = [sys.executable, "-m", "pteron.batch", str(MLP), str(self.folder), "-o", str(self.out)]
        command += ["--input", "x", "--rows", "8", "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not any(path.name.endswith(".part") for path in self.out.glob(".*.part")):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        whole = [path for path in self.out.glob("*.parquet") if pyarrow.parquet.read_table(path).num_rows != 5000]
        self.assertEqual(whole, [])
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name in ("a.parquet", "b.parquet"):
            self.assertEqual(pyarrow.parquet.read_table(self.out / name)["id"].to_pylist(), list(range(5000)))


if __name__ == "__main__":
    unittest.main()
