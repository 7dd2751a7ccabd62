"""The example's backend in Python, and the program that its command compiled."""

import importlib.util
import json
import struct
import unittest

import pteron
from common import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "accelerator"
CASE = REPOSITORY / "testdata" / "archives" / "transformer"


def example():
    spec = importlib.util.spec_from_file_location("accelerator_run", EXAMPLE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Accelerator(unittest.TestCase):
    def test_a_program_runs_on_the_backend_in_python(self):
        example().register()
        [run] = json.loads((CASE / "case.json").read_text())["runs"][:1]
        values = (CASE / "io.bin").read_bytes()

        def recorded(tensor):
            count = tensor["nbytes"] // 4
            return list(struct.unpack_from(f"<{count}f", values, tensor["offset"])), tensor["shape"]

        inputs = [pteron.Tensor(data, dtype="float32", shape=shape) for data, shape in map(recorded, run["inputs"])]
        outputs = pteron.load(EXAMPLE / "model.pte")(*inputs)
        for output, tensor in zip(outputs, run["outputs"]):
            expected, shape = recorded(tensor)
            self.assertEqual(list(output.shape), shape)
            found = list(memoryview(output).cast("B").cast("f"))
            for a, b in zip(found, expected):
                self.assertAlmostEqual(a, b, places=4)

    def test_damaged_payloads_are_refused(self):
        parse = example().parse
        for payload in (b"", b"ACCL", b"ACCL" + bytes(16)):
            with self.assertRaises((ValueError, struct.error)):
                parse(payload)


if __name__ == "__main__":
    unittest.main()
