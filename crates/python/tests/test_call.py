"""Loading and calling programs, errors, pickles."""

import pathlib
import pickle
import unittest

import pteron
from common import DIGITS, REPOSITORY, corpus, floats

PICTURE = floats([1, 1, 8, 8], [0.5] * 64)


def ones(meta):
    """Inputs of ones for a method whose inputs are all tensors of float32."""
    return [pteron.Tensor(floats(list(i.tensor.shape), [1.0] * (i.tensor.nbytes // 4))) for i in meta.inputs]


class Calls(unittest.TestCase):
    def test_path_and_bytes_agree(self):
        with open(DIGITS, "rb") as file:
            data = file.read()
        results = [
            pteron.load(source)(PICTURE)[0].tolist()
            for source in (DIGITS, str(DIGITS), data, bytearray(data), memoryview(data))
        ]
        self.assertTrue(all(result == results[0] for result in results))
        self.assertAlmostEqual(sum(results[0][0]), 1.0, places=5)

    def test_forward_and_methods(self):
        module = pteron.load(corpus("tiny/ModuleMultipleEntry"))
        self.assertEqual(sorted(module.method_names), ["forward", "forward2"])
        inputs = ones(pteron.method_meta(module))
        expected = module(*inputs)[0].tolist()
        self.assertEqual(module.forward(*inputs)[0].tolist(), expected)
        other = module.method("forward2")
        self.assertEqual(other.name, "forward2")
        self.assertNotEqual(other(*ones(pteron.method_meta(module, "forward2")))[0].tolist(), expected)

    def test_a_method_that_is_not_valid(self):
        file = bytearray(pathlib.Path(corpus("tiny/ModuleMultipleEntry")).read_bytes())
        expected = pteron.load(bytes(file))
        file[720] = 99
        module = pteron.load(file)
        self.assertEqual(module.method_names, ["forward"])
        self.assertEqual(list(module.invalid_methods), ["forward2"])
        self.assertIn("execution_plan[1].values[1].data_buffer_idx", module.invalid_methods["forward2"])
        inputs = ones(pteron.method_meta(module))
        self.assertEqual(module(*inputs)[0].tolist(), expected(*inputs)[0].tolist())
        with self.assertRaisesRegex(pteron.errors.FormatError, "forward2"):
            module.method("forward2")

    def test_methods_share_their_state(self):
        for shared, total in ((False, 0.0), (True, 8.0)):
            module = pteron.load(corpus("tiny/ModuleSharedState"), share_memory_arenas=shared)
            module.method("set_state")(floats([1], [7.0]))
            module.forward(floats([1], [1.0]))
            state = module.snapshot()
            self.assertEqual(module.method("get_state")()[0].tolist(), [total])
            module.method("set_state")(floats([1], [2.0]))
            module.restore(state)
            self.assertEqual(module.method("get_state")()[0].tolist(), [total])

    def test_numbers_in_sequences(self):
        module = pteron.load(corpus("tiny/ModuleAdd"))
        shape = pteron.method_meta(module).inputs[0].tensor.shape
        self.assertEqual(shape, (2, 2))
        self.assertEqual(module([[1, 2], [3, 4]], ((1, 1), (1, 1)))[0].tolist(), [[2.0, 3.0], [4.0, 5.0]])
        with self.assertRaisesRegex(ValueError, "lengths"):
            module([[1, 2], [3]], [[1, 1], [1, 1]])

    def test_archives_are_compiled(self):
        module = pteron.load(REPOSITORY / "testdata" / "archives" / "arithmetic" / "model.pt2")
        self.assertEqual(module.method_names, ["forward"])

    def test_metadata(self):
        meta = pteron.method_meta(pteron.load(DIGITS))
        self.assertEqual(meta.name, "forward")
        [given], [scores] = meta.inputs, meta.outputs
        self.assertEqual((given.kind, given.tensor.dtype, given.tensor.shape), ("Tensor", "float32", (1, 1, 8, 8)))
        self.assertEqual((scores.tensor.shape, scores.tensor.nbytes), ((1, 10), 40))
        self.assertIn("aten::addmm.out", meta.operators)

    def test_outputs_outlive_the_next_call(self):
        module = pteron.load(corpus("tiny/ModuleAdd"))
        first = module([[1, 1], [1, 1]], [[1, 1], [1, 1]])[0]
        view = memoryview(first)
        module([[5, 5], [5, 5]], [[5, 5], [5, 5]])
        del module
        self.assertEqual((first.tolist(), view[0, 0]), ([[2.0, 2.0], [2.0, 2.0]], 2.0))
        del first
        self.assertEqual(view[1, 1], 2.0)

    def test_fixed_inputs_may_be_omitted(self):
        module = pteron.load(corpus("tiny/ModuleAdd"))
        ones = [[1.0, 1.0], [1.0, 1.0]]
        self.assertEqual(module(ones, ones, 1.0)[0].tolist(), module(ones, ones)[0].tolist())
        with self.assertRaisesRegex(pteron.errors.InputError, "fixed to 1"):
            module(ones, ones, 2.0)

    def test_inputs_by_name(self):
        module = pteron.load(REPOSITORY / "testdata" / "archives" / "keywords" / "model.pt2")
        names = [value.name for value in pteron.method_meta(module).inputs]
        self.assertEqual(names, ["x", "scale", "offset.early", "offset.late", "gain"])
        x, scale = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [1.0, 0.0, -1.0]
        early, late = [[1.0] * 3] * 2, [0.5, 0.0, 0.0]
        expected = [[4.5, 2.0, -4.0], [10.5, 2.0, -10.0]]
        offset = {"offset.early": early, "offset.late": late}
        self.assertEqual(module(x, scale, early, late)[0].tolist(), expected)
        self.assertEqual(module(x, scale=scale, **offset)[0].tolist(), expected)
        self.assertEqual(module.forward(x, **offset, gain=2.0, scale=scale)[0].tolist(), expected)
        for wrong, said in (
            ({"scale": scale}, "takes 5 input"),
            ({"scales": scale, **offset}, "did you mean `scale`"),
            ({"scale": scale, **offset, "gain": 3.0}, "fixed to 2"),
        ):
            with self.assertRaisesRegex(pteron.errors.InputError, said):
                module(x, **wrong)
        with self.assertRaisesRegex(TypeError, "twice"):
            module(x, scale, scale=scale)

    def test_options(self):
        for options in ({"threads": 2}, {"prepare": False}, {"isa": "portable"}, {"mmap": True}, {"limits": pteron.Limits("strict")}):
            scores = pteron.load(DIGITS, **options)(PICTURE)[0].tolist()[0]
            self.assertAlmostEqual(sum(scores), 1.0, places=5)
        with self.assertRaises(ValueError):
            pteron.load(DIGITS, threads=0)
        with self.assertRaises(ValueError):
            pteron.load(DIGITS, isa="pdp11")

    def test_external_data(self):
        folder = corpus("tiny/extconst_single").parent
        with self.assertRaises(pteron.errors.DataError) as caught:
            pteron.load(folder / "model.pte").load_method("forward")
        self.assertIn("data=", caught.exception.remedy)
        module = pteron.load(folder / "model.pte", data=sorted(folder.glob("*.ptd")))
        module.load_method("forward")


class Errors(unittest.TestCase):
    def test_files(self):
        with self.assertRaises(pteron.errors.FileError) as caught:
            pteron.load("no/such/file.pte")
        self.assertIsInstance(caught.exception, OSError)
        self.assertEqual((caught.exception.file, caught.exception.errno), ("no/such/file.pte", 2))

    def test_format(self):
        data = pathlib.Path(DIGITS).read_bytes()
        with self.assertRaises(pteron.errors.FormatError) as caught:
            pteron.load(data[:300])
        error = caught.exception
        self.assertEqual((error.path, error.offset), ("header.program_size", 0x10))
        self.assertIn("cut off", error.remedy)
        self.assertIsInstance(error, ValueError)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again), again.offset), (type(error), str(error), 0x10))
        with self.assertRaises(pteron.errors.FormatError):
            pteron.load(b"no program")

    def test_inputs(self):
        module = pteron.load(DIGITS)
        for wrong in ([], [PICTURE, PICTURE], [floats([64], [0.0] * 64)], [b"abc"], [[["x"]]]):
            with self.assertRaises((pteron.errors.InputError, TypeError)):
                module(*wrong)
        with self.assertRaisesRegex(pteron.errors.InputError, "by position"):
            module(picture=PICTURE)
        with self.assertRaisesRegex(pteron.errors.NoSuchMethodError, "forward"):
            module.method("backward")

    def test_limits(self):
        with self.assertRaises(pteron.errors.LimitError) as caught:
            pteron.load(DIGITS, limits=pteron.Limits(arena_bytes=1))(PICTURE)
        self.assertEqual(caught.exception.path, "arena_bytes")

    def test_missing_backends(self):
        module = pteron.load(corpus("tiny/xnn_mlp"), backends=[])
        with self.assertRaises(pteron.errors.MissingError) as caught:
            module.load_method("forward")
        self.assertEqual(caught.exception.backends, ("XnnpackBackend",))
        with self.assertRaisesRegex(pteron.errors.InputError, "did you mean|XnnpackBackend"):
            pteron.load(corpus("tiny/xnn_mlp"), backends=["XnnpackBacken"])


class Pickles(unittest.TestCase):
    def test_a_module_is_path_and_options(self):
        module = pteron.load(DIGITS, threads=2)
        expected = module(PICTURE)[0].tolist()
        text = pickle.dumps(module)
        self.assertLess(len(text), 1000)
        again = pickle.loads(text)
        self.assertEqual(again(PICTURE)[0].tolist(), expected)
        method = pickle.loads(pickle.dumps(module.method("forward")))
        self.assertEqual(method(PICTURE)[0].tolist(), expected)

    def test_an_unpickled_module_opens_on_first_use(self):
        module = pteron.Module("no/such/file.pte")
        again = pickle.loads(pickle.dumps(module))
        with self.assertRaises(pteron.errors.FileError):
            again.method_names

    def test_tensors(self):
        for tensor in (pteron.Tensor([[1, 2], [3, 4]]), pteron.Tensor([1.5], dtype="bfloat16"), pteron.Tensor(2.5)):
            again = pickle.loads(pickle.dumps(tensor))
            self.assertEqual((again.tolist(), again.dtype, again.shape), (tensor.tolist(), tensor.dtype, tensor.shape))


if __name__ == "__main__":
    unittest.main()
