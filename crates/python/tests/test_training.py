"""A training run that is saved and resumed equals one that was not interrupted."""

import pathlib
import tempfile
import unittest

import pteron

MODEL = pathlib.Path(__file__).parents[3] / "testdata/corpus/wild/train_xor/model.pte"
RULES = [
    dict(lr=0.1),
    dict(lr=0.1, momentum=0.9, nesterov=True),
    dict(lr=0.01, optimizer="adam"),
    dict(lr=0.01, optimizer="adamw", amsgrad=True),
]


def run(module, numbers, rule):
    losses = []
    for i in numbers:
        bits = (i & 1, i >> 1 & 1)
        x = pteron.Tensor([[float(b) for b in bits]], "float32")
        y = pteron.Tensor([bits[0] ^ bits[1]], "int64")
        out = module.forward_backward(x, y)
        module.clip_gradient_norm(1.0)
        module.step(**rule)
        losses.append(bytes(memoryview(out[0]).cast("B")))
    return losses


class Training(unittest.TestCase):
    def test_a_resumed_run_equals_an_uninterrupted_one(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.ptd"
            for rule in RULES:
                whole = run(pteron.TrainingModule(MODEL), range(20), rule)
                first = pteron.TrainingModule(MODEL)
                before = run(first, range(10), rule)
                first.save_checkpoint(path)
                second = pteron.TrainingModule(MODEL)
                second.load_checkpoint(path)
                self.assertEqual(second.steps(), 10)
                self.assertEqual(before + run(second, range(10, 20), rule), whole, rule)

    def test_a_new_learning_rate_keeps_the_momentum(self):
        module = pteron.TrainingModule(MODEL)
        run(module, range(3), dict(lr=0.1, momentum=0.9))
        run(module, range(3, 5), dict(lr=0.1, momentum=0.8))
        self.assertEqual(module.steps(), 5)

    def test_an_unknown_optimizer_is_refused(self):
        module = pteron.TrainingModule(MODEL)
        with self.assertRaisesRegex(Exception, "no optimizer `lion`"):
            run(module, range(1), dict(lr=0.1, optimizer="lion"))


if __name__ == "__main__":
    unittest.main()
