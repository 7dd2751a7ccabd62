"""Tools, training and recordings."""

import json
import pathlib
import tempfile
import unittest

import pteron
from common import DIGITS, REPOSITORY, corpus, floats
from pteron import tools

PICTURE = floats([1, 1, 8, 8], [0.5] * 64)
ARCHIVE = REPOSITORY / "testdata" / "archives" / "layers" / "model.pt2"

BEF = [REPOSITORY / "crates" / "tfrt" / "bef" / "tests" / "data" / "sync_funcs.bef"]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Looking(Folder):
    def test_inspect(self):
        found = pteron.inspect(DIGITS)
        self.assertEqual((found.format, found.methods[0].name, found.bytes), ("pte", "forward", DIGITS.stat().st_size))
        self.assertEqual(found.methods[0].inputs[0].sizes, (1, 1, 8, 8))
        self.assertTrue(all(operator.available for operator in found.methods[0].operators))
        self.assertEqual(found.values["report"], 1)
        [data] = sorted(corpus("tiny/extconst_single").parent.glob("*.ptd"))
        self.assertTrue(pteron.inspect(data).entries)
        self.assertEqual(pteron.inspect(DIGITS.read_bytes()).methods, found.methods)

    def test_validate(self):
        self.assertTrue(pteron.validate(DIGITS).can_run)
        found = pteron.validate(DIGITS.read_bytes()[:300])
        self.assertFalse(found.valid)
        self.assertEqual(found.problems[0].offset, 0x10)

    def test_requirements_and_operators(self):
        needed = pteron.requirements(DIGITS)
        known = {operator.name for operator in pteron.operators()}
        self.assertTrue(needed.can_run and {operator.name for operator in needed.operators} <= known)
        self.assertIn("XnnpackBackend", pteron.backends())

    def test_plan_and_listing(self):
        found = pteron.plan(DIGITS)
        self.assertTrue(found.is_sound)
        self.assertGreater(found.methods[0].arenas[0].peak, 0)
        self.assertIn("aten::addmm.out", tools.listing(DIGITS))

    def test_diff(self):
        self.assertFalse(pteron.diff(DIGITS, DIGITS))
        found = pteron.diff(corpus("tiny/ModuleAdd"), corpus("tiny/ModuleBasic"), meaning=True)
        self.assertTrue(found and all(difference.kind == "meaning" for difference in found.differences))

    def test_bef(self):
        for name in BEF:
            found = pteron.run_bef(name)
            self.assertIn("--- Running", found.output)
            self.assertEqual(pteron.inspect(name).format, "bef")
        with self.assertRaises(pteron.errors.FormatError):
            pteron.run_bef(DIGITS)

    def test_profile(self):
        trace, dump = self.folder / "trace.json", self.folder / "dump.etdp"
        found = pteron.profile(DIGITS, [PICTURE], repeat=2, trace=trace, etdump=dump)
        self.assertEqual((found.method, found.runs), ("forward", 2))
        self.assertTrue(found.operators and found.steps)
        self.assertTrue(json.loads(trace.read_text()))
        self.assertEqual(pteron.inspect(dump).format, "etdump")
        self.assertEqual(pteron.profile(DIGITS, debug_buffer=self.folder / "tensors.bin").runs, 1)
        with self.assertRaises(ValueError):
            pteron.profile(DIGITS, repeat=0)

    def test_verify(self):
        told = []
        folders = [corpus("tiny/ModuleAdd").parent, corpus("tiny/xnn_mlp").parent]
        found = pteron.verify(folders, on_case=lambda *outcome: told.append(outcome))
        self.assertTrue(found)
        self.assertEqual((found.passed, found.failed, len(found.cases)), (2, 0, 2))
        self.assertEqual(told, [(case.case, "passed", None) for case in found.cases])
        self.assertEqual(pteron.verify(folders, undelegated=True).skipped, 1)
        self.assertTrue(pteron.verify(folders[1], retarget=["none"]))
        ways = pteron.verify(str(folders[0]), matrix=True)
        self.assertEqual(len({case.way for case in ways.cases}), ways.passed)
        wrong = pteron.verify(folders, atol=-1.0, rtol=0.0)
        self.assertFalse(wrong)
        self.assertIn("failed", [case.outcome for case in wrong.cases])
        with self.assertRaisesRegex(pteron.errors.Error, "no archive"):
            pteron.verify(REPOSITORY / "testdata" / "dynamic" / "mlp", archives=True)
        archive = pteron.verify(REPOSITORY / "testdata" / "archives" / "keywords", archives=True, backends=["bef"])
        self.assertEqual((archive.passed, archive.failed), (1, 0))
        with self.assertRaises(pteron.errors.FileError):
            pteron.verify("no/such/case")
        with self.assertRaisesRegex(pteron.errors.InputError, "did you mean"):
            pteron.verify(folders, retarget=["xnpack"])

    def test_compare_programs(self):
        with tempfile.TemporaryDirectory() as folder:
            quantized = pathlib.Path(folder) / "int8.pte"
            archive = REPOSITORY / "testdata" / "archives" / "transformer" / "model.pt2"
            pteron.compile(archive, quantized, quantize="dynamic-int8", backends=["xnnpack"])
            found = pteron.compare(archive, quantized)
            self.assertTrue(found.agree)
            self.assertEqual((found.min_sqnr, found.first), (20.0, None))
            self.assertGreater(found.outputs[0].sqnr, 40)
            self.assertLess(found.outputs[0].sqnr, 80)
            strict = pteron.compare(archive, quantized, min_sqnr=100)
            self.assertFalse(strict.agree)
            self.assertTrue(strict.layers[strict.first].differs)
        same = pteron.compare(DIGITS, DIGITS, [[PICTURE], [PICTURE]])
        self.assertEqual((same.agree, same.samples, same.outputs[0].same_top), (True, 2, 1.0))
        self.assertIsNone(same.outputs[0].sqnr)

    def test_compare(self):
        found = pteron.compare(DIGITS, [PICTURE])
        self.assertIsNone(found.first)
        self.assertTrue(found.values)


class Writing(Folder):
    def test_strip(self):
        heard = []
        out = self.folder / "small.pte"
        found = pteron.strip(DIGITS, out, names=True, progress=lambda *told: heard.append(told))
        self.assertEqual(found.bytes_after, out.stat().st_size)
        self.assertTrue(all(0 <= done <= total for _, done, total in heard))
        self.assertGreater(heard[-1][1], 0)
        self.assertEqual(pteron.load(out)(PICTURE)[0].tolist(), pteron.load(DIGITS)(PICTURE)[0].tolist())

    def test_weights_are_externalized_and_embedded(self):
        expected = pteron.load(DIGITS)(PICTURE)[0].tolist()
        program, data, whole = (self.folder / name for name in ("p.pte", "w.ptd", "whole.pte"))
        moved = pteron.externalize(DIGITS, program, data)
        self.assertTrue(moved.keys)
        self.assertEqual(pteron.load(program, data=data)(PICTURE)[0].tolist(), expected)
        self.assertTrue(pteron.embed(program, [data], whole).tensors)
        self.assertEqual(pteron.load(whole)(PICTURE)[0].tolist(), expected)
        self.assertGreater(pteron.convert(data, self.folder / "w.safetensors"), 0)
        self.assertEqual(pteron.merge([data], self.folder / "one.ptd").entries, len(moved.keys))
        module = pteron.load(program, data=data)
        module(PICTURE)
        module.swap_data(self.folder / "one.ptd")
        self.assertEqual(module(PICTURE)[0].tolist(), expected)
        with self.assertRaises(pteron.errors.InputError):
            pteron.externalize(DIGITS, program, program)
        with self.assertRaises(pteron.errors.InputError):
            pteron.convert(data, self.folder / "w.bin")

    def test_dedupe(self):
        programs, data = [self.folder / "a.pte", self.folder / "b.pte"], self.folder / "shared.ptd"
        found = pteron.dedupe([DIGITS, DIGITS], programs, data)
        self.assertLess(found.bytes_after, found.bytes_before)
        expected = pteron.load(DIGITS)(PICTURE)[0].tolist()
        for program in programs:
            self.assertEqual(pteron.load(program, data=data)(PICTURE)[0].tolist(), expected)
        with self.assertRaises(pteron.errors.InputError):
            pteron.dedupe([DIGITS, DIGITS], programs[:1], data)

    def test_alignments_of_compiled_programs(self):
        first = self.folder / "first.pte"
        pteron.compile(ARCHIVE, first, segment_alignment=4096, constant_alignment=64, alignment=32)
        self.assertTrue(all(segment.offset % 4096 == 0 for segment in pteron.inspect(first).segments))
        again = pteron.retarget(first, None).program
        self.assertTrue(all(segment.offset % 4096 == 0 for segment in pteron.inspect(again).segments))
        self.assertLess(len(pteron.retarget(first, None, segment_alignment=16).program), len(again))

    def test_compile(self):
        out = self.folder / "m.pte"
        found = pteron.compile(ARCHIVE, out)
        self.assertEqual(found.file_bytes, out.stat().st_size)
        lowered = pteron.compile(ARCHIVE, self.folder / "x.pte", backends=["xnnpack"])
        back = pteron.retarget(self.folder / "x.pte", self.folder / "back.pte")
        self.assertEqual([m.name for m in back.methods], [m.name for m in lowered.methods])
        self.assertFalse(any(m.delegates for m in back.methods))
        with self.assertRaisesRegex(pteron.errors.InputError, "xnnpack"):
            pteron.compile(ARCHIVE, out, backends=["xnpack"])

    def test_quantize(self):
        found = pteron.quantize(DIGITS, self.folder / "q.pte", "int8", [[PICTURE]], all_operators=True)
        self.assertTrue(found.methods[0].quantized)
        expected = pteron.load(DIGITS)(PICTURE)[0].tolist()[0]
        scores = pteron.load(self.folder / "q.pte")(PICTURE)[0].tolist()[0]
        self.assertLess(max(abs(a - b) for a, b in zip(expected, scores)), 0.1)
        with self.assertRaises(pteron.errors.InputError):
            pteron.quantize(DIGITS, self.folder / "q.pte", "int8")


class Training(Folder):
    def test_steps_update_parameters(self):
        program = corpus("tiny/ModuleSimpleTrain")
        module = pteron.TrainingModule(program)
        with self.assertRaisesRegex(pteron.errors.InputError, "call `forward_backward` first"):
            module.step(0.5)
        self.assertEqual(module.trainable_methods, ["forward"])
        with self.assertRaises(pteron.Error):
            module.gradients()
        shapes = [value.tensor for value in pteron.method_meta(pteron.load(program)).inputs]
        inputs = [pteron.Tensor(bytes(info.nbytes), info.dtype, info.shape) for info in shapes]
        module.forward_backward(*inputs)
        before, gradients = module.parameters(), module.gradients()
        self.assertEqual(set(before), set(gradients))
        module.save_checkpoint(self.folder / "c.ptd")
        module.step(0.5)

        def flat(tensor):
            return memoryview(tensor.tobytes()).cast("f").tolist()

        for name, parameter in module.parameters().items():
            stepped = [w - 0.5 * g for w, g in zip(flat(before[name]), flat(gradients[name]))]
            for a, b in zip(flat(parameter), stepped):
                self.assertAlmostEqual(a, b, places=5)
        module.load_checkpoint(self.folder / "c.ptd")
        self.assertEqual({n: flat(t) for n, t in module.parameters().items()}, {n: flat(t) for n, t in before.items()})


class State(Folder):
    def test_snapshots(self):
        module = pteron.load(corpus("tiny/mutable_initialized"))
        infos = [value.tensor for value in pteron.method_meta(module).inputs]
        inputs = [pteron.Tensor([1] * info.nbytes, dtype="uint8") for info in infos]
        inputs = [pteron.Tensor(i, info.dtype, info.shape) for i, info in zip(inputs, infos)]

        def step():
            return [tensor.tobytes() for tensor in module(*inputs)]

        step()
        state = module.snapshot()
        self.assertTrue(state["forward"])
        module.save_checkpoint(self.folder / "c.ptd")
        after = step()
        module.restore(state)
        self.assertEqual(step(), after)
        module.load_checkpoint(self.folder / "c.ptd")
        self.assertEqual(step(), after)
        with self.assertRaises(pteron.Error):
            module.restore({"forward": {}})


class Reference(Folder):
    def test_the_api_of_executorch_runtime(self):
        from pteron.runtime import Runtime, Verification

        runtime = Runtime.get()
        self.assertIs(runtime, Runtime.get())
        program = runtime.load_program(
            corpus("tiny/ModuleAdd"), verification=Verification.Minimal, enable_etdump=True, debug_buffer_size=1000
        )
        self.assertEqual(program.method_names, {"forward"})
        method = program.load_method("forward")
        ones = pteron.Tensor([[1.0, 1.0], [1.0, 1.0]])
        [result] = method.execute([ones, ones, 1.0])
        self.assertEqual(result.tolist(), [[2.0, 2.0], [2.0, 2.0]])
        meta = method.metadata
        self.assertEqual((meta.name(), meta.num_inputs(), meta.num_outputs()), ("forward", 3, 1))
        self.assertEqual((meta.input_tensor_meta(0).sizes(), meta.input_tensor_meta(0).dtype()), ((2, 2), 6))
        with self.assertRaises(IndexError):
            meta.output_tensor_meta(1)
        with self.assertRaises(IndexError):
            meta.input_tensor_meta(2)
        with self.assertRaises(KeyError):
            program.load_method("backward")
        with self.assertRaises(RuntimeError):
            runtime.load_program(b"no program")
        program.write_etdump_result_to_file(self.folder / "d.etdp", self.folder / "d.bin")
        self.assertEqual(pteron.inspect(self.folder / "d.etdp").format, "etdump")
        self.assertGreater((self.folder / "d.bin").stat().st_size, 0)
        self.assertIn("aten::add.out", runtime.operator_registry.operator_names)
        self.assertTrue(runtime.backend_registry.is_available("XnnpackBackend"))

    def test_each_call_is_a_block_of_the_recording(self):
        module = pteron.Module(corpus("tiny/ModuleAdd"), record="times")
        ones = floats([2, 2], [1.0] * 4)
        for out in ([None], floats([2, 2], [0.0] * 4), None):
            module(ones, ones, out=out)
        module.write_etdump(self.folder / "d.etdp")
        blocks = pteron.inspect(self.folder / "d.etdp").values["blocks"]
        self.assertEqual([block["name"] for block in blocks], ["Execute"] * 3)


if __name__ == "__main__":
    unittest.main()
