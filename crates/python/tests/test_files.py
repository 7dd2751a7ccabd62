"""Functions that derive files from a file, and BEF programs."""

import pathlib
import tempfile
import unittest

import pteron
from pteron.batch import Pictures
from common import DIGITS, REPOSITORY, corpus, floats

BEF = REPOSITORY / "crates" / "tfrt" / "bef" / "tests" / "data" / "sync_funcs.bef"


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_weights_are_set(self):
        path = self.folder / "other.pte"
        pteron.extract(DIGITS, self.folder, kinds=["constants"])
        same = pteron.set_weight(DIGITS, "2", self.folder / "constants" / "constant_2.npy", path)
        self.assertEqual((same.tensors, same.layout), (1, "float32[16]"))
        self.assertFalse(pteron.diff(DIGITS, path, meaning=True))
        pteron.set_weight(DIGITS, "2", floats([16], [0.25] * 16), path)
        self.assertTrue(pteron.diff(DIGITS, path, meaning=True))
        # Constants are renumbered.
        parts = pteron.extract(path, self.folder / "again", kinds=["constants"])
        [bias] = [part for part in parts if part.what.endswith("float32[16]")]
        written = (self.folder / "again" / bias.path).read_bytes()
        self.assertEqual(written[-64:], bytes(floats([16], [0.25] * 16)))
        [part] = pteron.extract(corpus("tiny/mutable_names"), names=["acc"])
        self.assertEqual((part.path, part.name), ("constants/acc.npy", "acc"))
        with self.assertRaisesRegex(pteron.errors.InputError, "no part"):
            pteron.extract(DIGITS, names=["nothing"])
        with self.assertRaisesRegex(pteron.errors.InputError, "did you mean `segments`"):
            pteron.extract(DIGITS, kinds=["segment"])

    def test_pictures_are_prepared_as_the_program_says(self):
        path = self.folder / "task.pte"
        three = DIGITS.parent / "3.png"
        pteron.set_task(DIGITS, {"preprocessing": {"mean": [0.5], "std": [0.5]}}, path)
        module, plain = pteron.load(path), pteron.load(DIGITS)
        [stored], [unit] = module.picture(three)[0], plain.picture(three.read_bytes())[0]
        self.assertEqual((stored.shape, unit.shape), ((8, 8), (8, 8)))
        for signed, value in zip(sum(stored.tolist(), []), sum(unit.tolist(), [])):
            self.assertAlmostEqual(signed, 2 * value - 1, places=6)
        unit_again = module.picture(three, pictures=Pictures(values="unit"))
        self.assertEqual(unit_again.tolist(), plain.picture(str(three)).tolist())
        [scores] = module(unit_again)
        self.assertEqual(max(range(10), key=scores.tolist()[0].__getitem__), 3)
        with self.assertRaisesRegex(pteron.Error, "input 1 of method `forward`"):
            module.picture(three, 1)
        with self.assertRaisesRegex(pteron.Error, "labels.txt"):
            module.picture(DIGITS.parent / "labels.txt")

    def test_task_metadata_is_stored(self):
        path = self.folder / "labelled.pte"
        task = {"version": 1, "labels": [str(digit) for digit in range(10)], "preprocessing": {"crop": [8, 8]}, "run": 7}
        self.assertIsNone(pteron.load(DIGITS).task)
        pteron.set_task(DIGITS, task, path)
        self.assertEqual(pteron.load(path).task, task)
        [difference] = [d for d in pteron.diff(DIGITS, path).differences if "labels" in d.place]
        self.assertIn("10", difference.b or "")
        (self.folder / "task.json").write_text('{"license": "MIT"}')
        pteron.set_task(path, self.folder / "task.json", path)
        self.assertEqual(pteron.load(path).task, {"version": 1, "license": "MIT"})
        with self.assertRaisesRegex(pteron.errors.InputError, "version 2"):
            pteron.set_task(DIGITS, {"version": 2}, path)

    def test_sizes_are_fixed(self):
        archive = REPOSITORY / "testdata" / "archives" / "related_sizes" / "model.pt2"
        fixed = pteron.compile(archive, sizes={"x.0": 5}).program
        self.assertEqual([value.tensor.shape for value in pteron.load(fixed).method("forward").metadata.inputs], [(5, 32), (10, 3), (6,)])
        with self.assertRaisesRegex(pteron.errors.Error, "3..16"):
            pteron.compile(archive, sizes={"s77": (17, 20)})

    def test_bundles(self):
        path = self.folder / "digits.bpte"
        picture = floats([1, 1, 8, 8], [0.5] * 64)
        self.assertEqual(pteron.bundle(DIGITS, [picture], path), 1)
        self.assertEqual(pteron.bundle(path, None, path), 2)
        module = pteron.load(path)
        inputs, expected = module.case()
        for a, b in zip(module(*inputs)[0].tolist()[0], expected[0].tolist()[0]):
            self.assertAlmostEqual(a, b, places=5)

    def test_edits_of_bundles_keep_test_cases(self):
        bundle = self.folder / "digits.bpte"
        pteron.bundle(DIGITS, None, bundle)
        before = bundle.read_bytes()
        pteron.strip(bundle, self.folder / "same.bpte")
        self.assertEqual((self.folder / "same.bpte").read_bytes(), before)
        pteron.strip(bundle, bundle, names=True)
        pteron.retarget(bundle, self.folder / "lowered.bpte", backends=["xnnpack"])
        moved = self.folder / "moved.bpte"
        pteron.externalize(bundle, moved, self.folder / "weights.ptd")
        for path in (bundle, self.folder / "lowered.bpte", moved):
            suites = pteron.inspect(path).values["suites"]
            self.assertEqual([(suite["method"], len(suite["cases"])) for suite in suites], [("forward", 1)])

    def test_merges_choose_and_rename(self):
        one, other, merged = (self.folder / name for name in ("one.ptd", "other.ptd", "merged.ptd"))
        pteron.save_data({"a": floats([2], [1.0, 2.0]), "b.x": floats([1], [3.0])}, one)
        pteron.save_data({"a": floats([2], [5.0, 6.0])}, other)
        with self.assertRaises(pteron.errors.Error):
            pteron.merge([one, other], merged)
        pteron.merge([one, other], merged, prefer="last", rename={"b.x": "c"})
        data = pteron.load_data(merged)
        self.assertEqual({key: value.tolist() for key, value in data.items()}, {"a": [5.0, 6.0], "c": [3.0]})
        pteron.merge([one], merged, names=["b.*"])
        self.assertEqual(list(pteron.load_data(merged)), ["b.x"])
        with self.assertRaisesRegex(pteron.errors.Error, "nothing"):
            pteron.merge([one], merged, names=["nothing"])

    def test_reports(self):
        for source in (DIGITS, BEF):
            path = self.folder / "report.html"
            pteron.report(source, path)
            self.assertTrue(path.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>"))
        self.assertEqual([file.name for file in self.folder.iterdir()], ["report.html"])
        # A report that fails, or would replace its source, leaves the file as it is.
        before = path.read_bytes()
        for source in (self.folder / "missing.pte", b"no program", path):
            with self.assertRaises(pteron.errors.Error):
                pteron.report(source, path)
            self.assertEqual(path.read_bytes(), before)
        program = self.folder / "digits.pte"
        program.write_bytes(DIGITS.read_bytes())
        with self.assertRaisesRegex(pteron.errors.InputError, "digits.pte"):
            pteron.report(program, program)
        self.assertEqual(program.read_bytes(), DIGITS.read_bytes())

    def test_translations(self):
        text = pteron.translate(BEF)
        self.assertIsInstance(text, str)
        path = self.folder / "program.mlir"
        path.write_text(text)
        made = pteron.translate(path)
        self.assertIsInstance(made, bytes)
        # A location that is not in the file is the file itself.
        self.assertEqual(pteron.translate(made, locations=False), pteron.translate(BEF, locations=False))
        path.write_text("func @f( {")
        with self.assertRaisesRegex(pteron.errors.FormatError, "program.mlir"):
            pteron.translate(path)

    def test_bef_programs(self):
        with self.assertRaises(pteron.errors.FormatError) as caught:
            pteron.load(BEF)
        self.assertIn("load_bef", caught.exception.remedy)
        program = pteron.load_bef(BEF)
        name = next(name for name, function in program.functions.items() if not function.arguments)
        done = program.method(name)()
        self.assertEqual(done, pteron.run_bef(BEF, [name]))
        with self.assertRaisesRegex(pteron.errors.NoSuchMethodError, "no function"):
            program.method("nothing")
        with self.assertRaises(pteron.errors.InputError):
            pteron.load_bef(DIGITS)


if __name__ == "__main__":
    unittest.main()
