"""Files of named data from and to dicts."""

import array
import pathlib
import tempfile
import unittest

import pteron
from common import corpus, floats, numpy, torch


class Saving(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_dict_is_read_back(self):
        data = {
            "floats": floats([2, 3], range(6)),
            "numbers": array.array("q", [1, -2]),
            "half": pteron.Tensor([1.5], "bfloat16"),
            "list": [[1, 2], [3, 4]],
            "one": pteron.Tensor(7),
            "none": pteron.Tensor([], "float32", [0, 4]),
            "blob": b"\x00\x01\x02",
            "empty": bytearray(),
        }
        path = self.folder / "data.ptd"
        self.assertIsNone(pteron.save_data(data, path))
        self.assertEqual(pteron.save_data(data), path.read_bytes())
        found = pteron.load_data(path)
        self.assertEqual(list(found), list(data))
        self.assertEqual((found["blob"], found["empty"]), (b"\x00\x01\x02", b""))
        of = lambda key: (found[key].dtype, found[key].shape, found[key].tolist())
        self.assertEqual(of("floats"), ("float32", (2, 3), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))
        self.assertEqual(of("numbers"), ("int64", (2,), [1, -2]))
        self.assertEqual(of("half"), ("bfloat16", (1,), [1.5]))
        self.assertEqual(of("list"), ("int64", (2, 2), [[1, 2], [3, 4]]))
        self.assertEqual(of("one"), ("int64", (), 7))
        self.assertEqual(of("none"), ("float32", (0, 4), []))
        self.assertEqual(pteron.save_data(found), path.read_bytes())
        self.assertEqual(list(pteron.load_data(path.read_bytes(), ["one", "blob"])), ["one", "blob"])
        self.assertTrue(pteron.validate(path).valid)

    @unittest.skipIf(numpy is None, "needs NumPy")
    def test_dim_orders_are_kept(self):
        image = numpy.arange(24, dtype=numpy.float32).reshape(1, 2, 3, 4)
        last = numpy.ascontiguousarray(image.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        found = pteron.load_data(pteron.save_data({"rows": image, "last": last, "gaps": image[..., ::2]}))
        self.assertEqual(found["rows"].dim_order, (0, 1, 2, 3))
        self.assertEqual(found["last"].dim_order, (0, 2, 3, 1))
        self.assertTrue(numpy.array_equal(found["last"].numpy(), image))
        self.assertTrue(numpy.array_equal(found["gaps"].numpy(), image[..., ::2]))

    @unittest.skipIf(torch is None, "needs torch")
    def test_tensors_of_torch(self):
        found = pteron.load_data(pteron.save_data({"x": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}))
        self.assertEqual((found["x"].dtype, found["x"].tolist()), ("bfloat16", [1.0, 2.0]))

    def test_alignment_and_sharing(self):
        data = {"a": b"1", "b": b"2", "c": b"1"}
        sizes = {alignment: len(pteron.save_data(data, alignment=alignment)) for alignment in (1, 16, 4096)}
        self.assertLess(sizes[1], sizes[16])
        self.assertGreater(sizes[4096], 4096)
        self.assertLess(len(pteron.save_data(data)), len(pteron.save_data(data, share=False)))
        for alignment in (0, 3, 1 << 31):
            with self.assertRaisesRegex(pteron.errors.InputError, "power of two"):
                pteron.save_data(data, alignment=alignment)

    def test_progress(self):
        heard = []
        whole = pteron.save_data({"a": bytes(3 << 20)}, progress=lambda *told: heard.append(told))
        self.assertEqual({what for what, _, _ in heard}, {"writing"})
        self.assertTrue(all(0 <= done <= total for _, done, total in heard) and len(heard) > 3)
        heard.clear()
        pteron.load_data(whole, progress=lambda *told: heard.append(told))
        self.assertEqual(heard[-1], ("reading", 3 << 20, 3 << 20))

    def test_a_program_takes_its_weights_from_a_dict(self):
        program = corpus("tiny/extconst_single")
        [path] = sorted(program.parent.glob("*.ptd"))
        weights = pteron.load_data(path)
        copy = self.folder / "copy.ptd"
        pteron.save_data(weights, copy)
        self.assertFalse(pteron.diff(path, copy, meaning=True))
        pteron.load(program, data=copy).load_method("forward")

    def test_errors(self):
        whole = pteron.save_data({"weight": [1.0]})
        with self.assertRaisesRegex(pteron.errors.InputError, "did you mean `weight`"):
            pteron.load_data(whole, ["wieght"])
        with self.assertRaises(pteron.errors.FormatError):
            pteron.load_data(corpus("tiny/ModuleAdd"))
        with self.assertRaises(pteron.errors.FileError):
            pteron.load_data(self.folder / "none.ptd")
        with self.assertRaises(pteron.errors.FileError):
            pteron.save_data({}, self.folder / "none" / "data.ptd")
        with self.assertRaises(TypeError):
            pteron.save_data({1: [1.0]})
        with self.assertRaises(TypeError):
            pteron.save_data({"a": object()})
        self.assertEqual(pteron.load_data(pteron.save_data({})), {})


if __name__ == "__main__":
    unittest.main()
