"""Backends that are written in Python."""

import unittest

import pteron
from common import CORPUS


class Recorder:
    """The demonstration backend of the reference: y = a · x + b for 2x2 matrices."""

    def __init__(self, payload, context):
        self.payload, self.context, self.calls = payload, context, 0

    def execute(self, a, x, b):
        self.calls += 1
        a, x, b = (t.tolist() for t in (a, x, b))
        product = [[sum(a[i][k] * x[k][j] for k in range(2)) + b[i][j] for j in range(2)] for i in range(2)]
        return pteron.Tensor(product, dtype="float32")


ID = "BackendWithCompilerDemo"
MODEL = CORPUS / "wild" / "demo_backend" / "model.pte"
ONES = pteron.Tensor([[1.0, 1.0], [1.0, 1.0]], dtype="float32")


class Backends(unittest.TestCase):
    def register(self, execute):
        made = []

        def init(payload, context):
            made.append(Recorder(payload, context))
            return made[-1]

        pteron.register_backend(ID, init, execute)
        return made

    def test_a_backend_runs_and_knows_its_call(self):
        made = self.register(Recorder.execute)
        self.assertIn(ID, pteron.backends())
        outputs = pteron.load(MODEL).forward(ONES, ONES, ONES)
        self.assertEqual(outputs[0].tolist(), [4.0, 4.0])
        [delegate] = made
        self.assertGreater(len(delegate.payload), 0)
        self.assertEqual(delegate.context["method"], "forward")
        self.assertEqual(delegate.context["num_inputs"], 3)
        self.assertEqual(delegate.context["arguments"], [("float32", [2, 2])] * 4)
        self.assertEqual(delegate.calls, 1)

    def test_exceptions_name_the_delegate_and_the_line(self):
        def fails(state, *inputs):
            raise ValueError("no power")

        self.register(fails)
        with self.assertRaises(pteron.errors.ExecuteError) as caught:
            pteron.load(MODEL).forward(ONES, ONES, ONES)
        for part in ("no power", ID, "forward", "test_backend.py:"):
            self.assertIn(part, str(caught.exception))

    def test_results_are_checked(self):
        for result in (None, (ONES, ONES), pteron.Tensor([1], dtype="int64"), pteron.Tensor([1.0], dtype="float32")):
            self.register(lambda state, *inputs, result=result: result)
            with self.assertRaises(pteron.Error):
                pteron.load(MODEL).forward(ONES, ONES, ONES)

    def test_an_init_that_fails_is_a_load_error(self):
        def fails(payload, context):
            raise RuntimeError("no device")

        pteron.register_backend(ID, fails, Recorder.execute)
        with self.assertRaises(pteron.errors.LoadError) as caught:
            pteron.load(MODEL).forward(ONES, ONES, ONES)
        self.assertIn("no device", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
