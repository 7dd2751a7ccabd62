"""Programs that are built call by call."""

import pathlib
import tempfile
import unittest

import pteron
from common import floats, numpy


def linear(name="forward", rows=1):
    graph = pteron.Graph(name)
    x = graph.input("x", "float32", [rows, 2])
    weight = graph.constant([[1.0, 2.0], [3.0, 4.0]], "weight")
    y = graph.call("aten.linear", x, weight, bias=pteron.Tensor([0.5, -100.0]))
    graph.output(graph.call("aten.relu", y))
    return graph


class Building(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_graph_is_compiled_to_a_file_or_to_bytes(self):
        path = self.folder / "model.pte"
        found = pteron.compile(linear(), path)
        self.assertEqual(found.program, b"")
        self.assertEqual(found.file_bytes, path.stat().st_size)
        self.assertEqual([method.name for method in found.methods], ["forward"])
        program = pteron.compile(linear()).program
        self.assertEqual(program, path.read_bytes())
        self.assertTrue(pteron.validate(program).can_run)
        [y] = pteron.load(program)(floats([1, 2], [1.0, 2.0]))
        self.assertEqual(y.tolist(), [[5.5, 0.0]])

    def test_backends_and_quantization(self):
        x = floats([1, 2], [1.0, 2.0])
        for backend in ("xnnpack", "bef"):
            found = pteron.compile(linear(), backends=[backend])
            self.assertTrue(found.methods[0].delegates)
            self.assertEqual(pteron.load(found.program)(x)[0].tolist(), [[5.5, 0.0]])
        samples = [(floats([1, 2], [value, 2.0 * value]),) for value in (0.5, 1.0, 2.0)]
        found = pteron.quantize(linear(), None, "int8", samples)
        self.assertTrue(found.methods[0].quantized)
        self.assertAlmostEqual(pteron.load(found.program)(x)[0].tolist()[0][0], 5.5, delta=0.5)
        with self.assertRaisesRegex(pteron.errors.InputError, "calibrate"):
            pteron.compile(linear(), quantize="int8")

    def test_weights_outside_and_alignments(self):
        data = self.folder / "weights.ptd"
        program = pteron.compile(linear(), external_data=data, segment_alignment=1024).program
        self.assertIn("weight", pteron.load_data(data))
        self.assertEqual(pteron.load(program, data=data)(floats([1, 2], [1.0, 2.0]))[0].tolist(), [[5.5, 0.0]])
        wide = pteron.compile(linear(), constant_alignment=256, segment_alignment=4096)
        self.assertEqual(pteron.inspect(wide.program).segments[0].offset % 4096, 0)
        self.assertGreater(wide.file_bytes, pteron.compile(linear()).file_bytes)
        again = pteron.retarget(wide.program, None)
        self.assertEqual(pteron.inspect(again.program).segments[0].offset % 4096, 0)
        for name in ("alignment", "segment_alignment", "constant_alignment"):
            with self.assertRaisesRegex(pteron.errors.CompileError, "power of two"):
                pteron.compile(linear(), **{name: 24})

    def test_several_methods(self):
        graphs = [linear("one"), linear("other", 3)]
        program = pteron.compile(graphs).program
        module = pteron.load(program)
        self.assertEqual(module.method_names, ["one", "other"])
        [y] = module.method("other")(floats([3, 2], [1.0, 2.0] * 3))
        self.assertEqual(y.tolist(), [[5.5, 0.0]] * 3)
        only = pteron.compile(graphs, methods=["other"]).program
        self.assertEqual(pteron.load(only).method_names, ["other"])
        with self.assertRaisesRegex(pteron.errors.InputError, "did you mean `other`"):
            pteron.compile(graphs, methods=["othre"])
        with self.assertRaisesRegex(pteron.errors.CompileError, "two programs have the name `one`"):
            pteron.compile([graphs[0], graphs[0]])
        with self.assertRaises(ValueError):
            pteron.compile([])
        with self.assertRaises(TypeError):
            pteron.compile([graphs[0], "model.pt2"])

    def test_sizes_that_the_caller_chooses(self):
        graph = pteron.Graph()
        rows = pteron.Dim("rows", min=1, max=8)
        x = graph.input("x", "float32", (rows, 3))
        y = graph.input("y", "float32", (rows, 3))
        total = graph.call("aten.sum", graph.call("aten.add", x, y), [1], keepdim=True)
        count = graph.call("aten.sym_size", x, 0)
        ones = graph.call("aten.full", [count, 1], 1.0)
        graph.output(graph.call("aten.add", total, ones))
        self.assertEqual((x.shape, total.shape, count.shape), (("rows", 3), ("rows", 1), None))
        module = pteron.load(pteron.compile(graph).program)
        for n in (1, 5, 8):
            [z] = module(floats([n, 3], [1.0] * 3 * n), floats([n, 3], [2.0] * 3 * n))
            self.assertEqual(z.tolist(), [[10.0]] * n)
        with self.assertRaises(pteron.Error):
            module(floats([9, 3], [1.0] * 27), floats([9, 3], [1.0] * 27))
        with self.assertRaises(pteron.Error):
            module(floats([2, 3], [1.0] * 6), floats([3, 3], [1.0] * 9))

    def test_arguments_and_results(self):
        graph = pteron.Graph()
        x = graph.input("x", "float32", [2, 3])
        values, places = graph.call("aten.topk", x, 2)
        self.assertEqual((values.shape, places.dtype), ((2, 2), "int64"))
        first, second = graph.call("aten.split_with_sizes", x, [1, 2], dim=1)
        both = graph.call("aten.cat", [second, first], dim=1)
        cast = graph.call("aten.to", graph.call("aten.eq", both, 2), "int32")
        found = graph.call("aten.nonzero", x, results=[("int64", [pteron.Dim("found", 6), 2])])
        picked = graph.call("aten.index", x, [None, pteron.Tensor([2, 0])])
        self.assertEqual((cast.dtype, picked.shape, found.shape), ("int32", (2, 2), ("found", 2)))
        graph.output(values, cast, picked, found)
        outputs = pteron.load(pteron.compile(graph, all_operators=True).program)(floats([2, 3], [1, 0, 2, 0, 0, 3]))
        self.assertEqual(outputs[1].tolist(), [[0, 1, 0], [0, 0, 0]])
        self.assertEqual(outputs[2].tolist(), [[2.0, 1.0], [3.0, 0.0]])
        self.assertEqual(outputs[3].tolist(), [[0, 0], [0, 2], [1, 2]])
        self.assertIn("aten.topk.default", str(graph))
        self.assertEqual((repr(x), repr(graph)[:15]), ("Value(x: float32[2, 3])", "Graph('forward'"))

    def test_a_convolution(self):
        graph = pteron.Graph()
        x = graph.input("x", "float32", [1, 1, 4, 4])
        y = graph.call("aten.conv2d", x, pteron.Tensor([1.0] * 9, shape=[1, 1, 3, 3]), padding=1)
        y = graph.call("aten.max_pool2d", y, 2)
        y = graph.call("aten.flatten", y, 1)
        graph.output(graph.call("aten.softmax", y, -1))
        self.assertEqual(y.shape, (1, 4))
        picture = floats([1, 1, 4, 4], [1.0] * 16)
        for backends in ((), ("xnnpack",)):
            [scores] = pteron.load(pteron.compile(graph, backends=backends).program)(picture)
            self.assertEqual(scores.tolist(), [[0.25] * 4])

    @unittest.skipIf(numpy is None, "needs NumPy")
    def test_dim_orders(self):
        last = lambda x: numpy.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        image = numpy.arange(32, dtype=numpy.float32).reshape(1, 2, 4, 4)
        weight = numpy.arange(12, dtype=numpy.float32).reshape(3, 2, 1, 2)
        results = []
        for order, change in ((None, lambda x: x), ([0, 2, 3, 1], last)):
            graph = pteron.Graph()
            x = graph.input("x", "float32", image.shape, dim_order=order)
            graph.output(graph.call("aten.conv2d", x, change(weight)))
            results.append(pteron.load(pteron.compile(graph).program)(change(image))[0].numpy())
        self.assertTrue(numpy.array_equal(results[0], results[1]))
        with self.assertRaisesRegex(pteron.errors.CompileError, "another rank than its dim order"):
            pteron.Graph().input("x", "float32", [1, 2], dim_order=[0])

    def test_errors(self):
        graph = pteron.Graph()
        x = graph.input("x", "float32", [2, 3])
        refused = lambda *args, **named: self.assertRaisesRegex(pteron.errors.CompileError, *args, **named)
        with refused("there is `aten.relu`"):
            graph.call("aten.rleu", x)
        with refused("do not broadcast"):
            graph.call("aten.add", x, pteron.Tensor([1.0, 2.0]))
        with refused("it has no argument `biass`; did you mean `bias`"):
            graph.call("aten.linear", x, x, biass=None)
        with refused("give the types of its results"):
            graph.call("aten.nonzero", x)
        with refused("two values have the name `x`"):
            graph.input("x", "float32", [1])
        with refused("cannot be from 3 to 2"):
            graph.input("y", "float32", [pteron.Dim("n", min=3, max=2)])
        with refused("it has no output"):
            pteron.compile(graph)
        with self.assertRaisesRegex(ValueError, "another graph"):
            pteron.Graph().call("aten.relu", x)
        with self.assertRaises(ValueError):
            graph.input("z", "float33", [1])
        endless = []
        endless.append(endless)
        for wrong in (object(), [object()], {"a": 1}, [1, "a"], [[1]], endless):
            with self.assertRaises(TypeError):
                graph.call("aten.add", x, wrong)
        with self.assertRaises(TypeError):
            graph.output(1)


if __name__ == "__main__":
    unittest.main()
