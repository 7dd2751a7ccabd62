"""What makes programs convenient at a prompt: sources, outputs, metadata, reports, notes, interruption."""

import io
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
import unittest

import pteron
from common import DIGITS, REPOSITORY, corpus, floats, numpy, torch

PICTURE = floats([1, 1, 8, 8], [0.5] * 64)


class Sources(unittest.TestCase):
    def test_open_files(self):
        expected = pteron.load(DIGITS)(PICTURE)[0].tolist()
        with open(DIGITS, "rb") as file:
            self.assertEqual(pteron.load(file)(PICTURE)[0].tolist(), expected)
        self.assertEqual(pteron.load(io.BytesIO(DIGITS.read_bytes()))(PICTURE)[0].tolist(), expected)
        with self.assertRaisesRegex(TypeError, "mode `rb`"):
            pteron.load(io.StringIO("text"))

    def test_programs_are_compiled_to_bytes(self):
        archive = REPOSITORY / "testdata" / "archives" / "keywords" / "model.pt2"
        with open(archive, "rb") as file:
            compiled = pteron.compile(file)
        self.assertEqual(pteron.load(compiled.program).method_names, ["forward"])
        again = pteron.retarget(compiled.program)
        self.assertEqual(pteron.load(again.program).method_names, ["forward"])
        self.assertGreater(len(pteron.quantize(DIGITS, scheme="dynamic-int8").program), 1000)

    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_exported_programs(self):
        model = torch.nn.Linear(3, 2)
        exported = torch.export.export(model, (torch.ones(1, 3),))
        [found] = pteron.load(exported, outputs="torch")(torch.ones(1, 3))
        self.assertIsInstance(found, torch.Tensor)
        torch.testing.assert_close(found, model(torch.ones(1, 3)).detach())


class Outputs(unittest.TestCase):
    def test_indices(self):
        tensor = pteron.Tensor([[1, 2, 3], [4, 5, 6]], dtype="int32")
        self.assertEqual((tensor[1, 2], tensor[-1][0], tensor[0, -1]), (6, 4, 3))
        self.assertEqual((tensor[1].tolist(), tensor[:, 1].tolist(), tensor[..., ::-2].tolist()), ([4, 5, 6], [2, 5], [[3, 1], [6, 4]]))
        self.assertEqual((tensor[::-1, 1:].tolist(), tensor[5:].shape, tensor[...].tolist()), ([[5, 6], [2, 3]], (0, 3), tensor.tolist()))
        self.assertEqual([row.tolist() for row in tensor], tensor.tolist())
        self.assertEqual((list(tensor[0]), max(tensor[1]), 5 in tensor[1]), ([1, 2, 3], 6, True))
        self.assertEqual(tensor[0:1].dtype, "int32")
        for index in (2, -3, (0, 3), (0, 0, 0)):
            with self.subTest(index), self.assertRaises(IndexError):
                tensor[index]
        with self.assertRaises(TypeError):
            tensor["a"]
        with self.assertRaises(TypeError):
            iter(pteron.Tensor(1.0))

    def test_numbers(self):
        self.assertEqual((float(pteron.Tensor([2.5])), int(pteron.Tensor(3)), bool(pteron.Tensor([0]))), (2.5, 3, False))
        with self.assertRaises(ValueError):
            float(pteron.Tensor([1.0, 2.0]))

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_numpy(self):
        module = pteron.load(DIGITS, outputs="numpy")
        [scores] = module(PICTURE)
        self.assertIsInstance(scores, numpy.ndarray)
        self.assertEqual(scores.tolist(), pteron.load(DIGITS)(PICTURE)[0].tolist())
        [again] = pickle.loads(pickle.dumps(module)).method("forward")(PICTURE)
        self.assertIsInstance(again, numpy.ndarray)
        for dtype in (numpy.float16, numpy.dtype("float16"), "float16"):
            self.assertEqual(pteron.Tensor([1.0], dtype=dtype).dtype, "float16")
        self.assertEqual(pteron.Graph().input("x", numpy.int64, [2]).dtype, "int64")

    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_torch(self):
        self.assertEqual(pteron.Tensor([1.0], dtype=torch.bfloat16).dtype, "bfloat16")

    def test_what_is_not_known(self):
        with self.assertRaisesRegex(ValueError, "outputs is tensor, numpy or torch"):
            pteron.load(DIGITS, outputs="pandas")
        with self.assertRaisesRegex(ValueError, "there is no type `int7`"):
            pteron.Tensor([1], dtype="int7")


class Metadata(unittest.TestCase):
    def test_modules_and_methods(self):
        module = pteron.load(DIGITS)
        meta = pteron.method_meta(module)
        self.assertEqual((module.inputs, module.outputs, module.metadata), (meta.inputs, meta.outputs, meta))
        method = module.method("forward")
        self.assertEqual((method.inputs, method.outputs, method.metadata), (meta.inputs, meta.outputs, meta))

    def test_reprs(self):
        module = pteron.load(DIGITS)
        signature = "forward(input_0: float32[1, 1, 8, 8]) -> (float32[1, 10])"
        self.assertEqual(str(module.metadata), signature)
        self.assertEqual(repr(module), f'<pteron.Module "{DIGITS}": {signature}>')
        self.assertEqual(repr(module.method("forward")), f"<pteron.Method {signature}>")
        self.assertIn(": forward(", repr(pteron.load(DIGITS.read_bytes())))
        self.assertIn("≤", repr(pteron.load(REPOSITORY / "testdata" / "dynamic" / "mlp" / "model.pte")))


class Reports(unittest.TestCase):
    def test_reports_are_text_and_html(self):
        inputs = [PICTURE]
        other = pteron.compile(DIGITS, backends=["xnnpack"])
        reports = [
            (pteron.inspect(DIGITS), "aten::convolution.out"),
            (pteron.plan(DIGITS), "no live tensor is overwritten"),
            (pteron.profile(DIGITS, inputs, repeat=2), "method forward: "),
            (pteron.compare(DIGITS, inputs), "prepared and as written"),
            (pteron.compare(DIGITS, other.program, [inputs]), "the outputs agree"),
            (pteron.diff(DIGITS, other.program), "differences"),
            (other, "XnnpackBackend"),
        ]
        for report, expected in reports:
            with self.subTest(type(report).__name__):
                text, page = str(report), report._repr_html_()
                self.assertIn(expected, text)
                self.assertIn(expected, page)
                self.assertIn("<table>" if "\n  " in text else "<b>", page)
                self.assertLess(len(text), 20_000)

    def test_text_of_files_is_escaped(self):
        data = pteron.save_data({"<b>\x1b[31m": [1.0]})
        found = pteron.inspect(data)
        self.assertIn(r"<b>\x1b[31m", str(found))
        self.assertIn(r"&lt;b&gt;\x1b[31m", found._repr_html_())
        self.assertNotIn("\x1b", str(found) + found._repr_html_())

    def test_a_page(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pteron.report(DIGITS, pathlib.Path(folder) / "page.html")
            self.assertTrue(os.path.exists(report))
            self.assertIn("srcdoc", report._repr_html_())


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Eager(unittest.TestCase):
    def test_a_model_runs_beside_a_program(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        samples = [(torch.randn(2, 4),), (torch.randn(2, 4),)]
        exported = torch.export.export(model, samples[0])
        program = pteron.compile(exported).program
        for source in (model, exported):
            found = pteron.compare(source, program, samples)
            self.assertTrue(found.agree)
            self.assertEqual([layer.a for layer in found.layers], ["linear (aten.linear.default)", "relu (aten.relu.default)", "linear_1 (aten.linear.default)"])
        self.assertTrue(pteron.compare(exported, program).agree)
        with torch.no_grad():
            model[2].weight += 0.5
        found = pteron.compare(model, program, samples)
        self.assertFalse(found.agree)
        self.assertEqual(found.layers[found.first].a, "linear_1 (aten.linear.default)")
        with self.assertRaisesRegex(pteron.errors.InputError, "exported with the first sample"):
            pteron.compare(model, program)


class Errors(unittest.TestCase):
    def test_the_remedy_is_a_note(self):
        with self.assertRaises(pteron.errors.FormatError) as caught:
            pteron.load(DIGITS.read_bytes()[:300])
        for error in (caught.exception, pickle.loads(pickle.dumps(caught.exception))):
            text = "".join(traceback.format_exception(error))
            self.assertEqual(text.count("what to do: the file is cut off; copy or export it again"), 1)


ENDLESS = """
import sys
import pteron
from pteron.batch import Mapper

graph = pteron.Graph()
x = graph.input("x", "float32", [512, 512])
for _ in range(3000):
    x = graph.call("aten.mm", x, x)
graph.output(x)
module = pteron.load(pteron.compile(graph).program)
zeros = pteron.Tensor(bytes(4 * 512 * 512), "float32", [512, 512])
print("ready", flush=True)
try:
    module(zeros)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@unittest.skipIf(os.name == "nt", "signals")
class Interruption(unittest.TestCase):
    def test_ctrl_c_ends_an_execution(self):
        with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            with self.assertRaises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.stdout.readline(), "interrupted\n")
            self.assertEqual(process.wait(60), 0)


if __name__ == "__main__":
    unittest.main()
