"""Array exchange by the buffer protocol, DLPack and `__array__`, and the number of copies."""

import array
import contextlib
import ctypes
import gc
import unittest

import pteron
from common import DIGITS, corpus, floats, numpy, torch

ADD = corpus("tiny/ModuleAdd")
ONES = [[1.0, 1.0], [1.0, 1.0]]
TWOS = [[2.0, 2.0], [2.0, 2.0]]


class Counting(unittest.TestCase):
    @contextlib.contextmanager
    def copied(self, inputs, outputs):
        before = pteron.copies()
        yield
        after = pteron.copies()
        self.assertEqual((after.inputs - before.inputs, after.outputs - before.outputs), (inputs, outputs))


class Buffers(Counting):
    def setUp(self):
        self.module = pteron.load(ADD)

    def test_inputs(self):
        ones = floats([2, 2], [1.0] * 4)
        for given in (ones, ones.toreadonly(), pteron.Tensor(ONES), pteron.Tensor(memoryview(ones).tobytes(), "f32", [2, 2])):
            with self.copied(0, 1):
                self.assertEqual(self.module(given, given)[0].tolist(), TWOS)

    def test_strides(self):
        every_second = memoryview(array.array("f", [1.0, 9.0, 1.0, 9.0]))[::2]
        with self.copied(1, 0):
            self.assertEqual(pteron.Tensor(every_second).tolist(), [1.0, 1.0])
        self.assertEqual(pteron.Tensor(memoryview(array.array("i", [1, 2, 3]))[::-1]).tolist(), [3, 2, 1])

    def test_outputs_are_written_to_given_arrays(self):
        ones, out = floats([2, 2], [1.0] * 4), floats([2, 2], [0.0] * 4)
        with self.copied(0, 1):
            [result] = self.module(ones, ones, out=out)
        self.assertIs(result, out)
        self.assertEqual(out.tolist(), TWOS)
        self.assertEqual(self.module(ones, ones, out=[None])[0].tolist(), TWOS)
        for wrong in (out.toreadonly(), floats([4], [0.0] * 4), array.array("d", [0.0] * 4), [out, out]):
            with self.assertRaises(ValueError):
                self.module(ones, ones, out=wrong)
        with self.assertRaises(TypeError):
            self.module(ones, ones, out=3)

    def test_outputs_are_not_written_to_copies(self):
        ones, out = floats([2, 2], [1.0] * 4), floats([2, 2], [0.0] * 4)

        class Copies:
            def __array__(self):
                return floats([2, 2], out.tobytes())

        class Lends:
            def __array__(self):
                return out

        with self.assertRaises(TypeError):
            self.module(ones, ones, out=Copies())
        self.module(ones, ones, out=Lends())
        self.assertEqual(out.tolist(), TWOS)

    def test_outputs_are_buffers(self):
        result = self.module(ONES, ONES)[0]
        with self.copied(0, 0):
            view = memoryview(result)
            self.assertEqual((view.shape, view.format, view.strides, view.nbytes), ((2, 2), "f", (8, 4), 16))
            self.assertEqual(bytes(view), result.tobytes())
            view[0, 0] = 7.0
            self.assertEqual(result.tolist()[0][0], 7.0)

    def test_element_types(self):
        for dtype in ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32", "float64"):
            tensor = pteron.Tensor([[1, 2], [3, 4]], dtype=dtype)
            view = memoryview(tensor)
            again = pteron.Tensor(view)
            self.assertEqual((again.dtype, again.tolist()), (dtype, [[1, 2], [3, 4]]))
        self.assertEqual(memoryview(pteron.Tensor([True, False])).tolist(), [True, False])

    def test_bfloat16_is_exchanged_as_integers(self):
        module = pteron.load(corpus("tiny/dtype_bfloat16"))
        inputs = [meta.tensor for meta in pteron.method_meta(module).inputs]
        self.assertTrue(all(meta.dtype == "bfloat16" for meta in inputs))
        halves = [pteron.Tensor([1] * meta.nbytes, dtype="uint8") for meta in inputs]
        given = [memoryview(pteron.Tensor(h, dtype="uint16", shape=m.shape)) for h, m in zip(halves, inputs)]
        [result, *_] = module(*given)
        self.assertEqual((result.dtype, memoryview(result).format), ("bfloat16", "H"))

    def test_foreign_byte_order_is_refused(self):
        big = (ctypes.c_float.__ctype_be__ * 4)()
        with self.assertRaises(TypeError):
            pteron.Tensor(big)

    def test_buffers_are_released(self):
        memory = bytearray(16)
        tensor = pteron.Tensor(memory, "f32", [2, 2])
        memory.append(1)
        view = memoryview(tensor)
        del tensor
        gc.collect()
        self.assertEqual(view.tolist(), [[0.0, 0.0], [0.0, 0.0]])
        lent = bytearray(16)
        self.module(pteron.Tensor(ONES), memoryview(lent).cast("f", [2, 2]))
        lent.append(1)


class DlPack(Counting):
    def test_round_trip_without_other_libraries(self):
        class Wrapped:
            """An object that supports only DLPack."""

            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **options):
                return self.tensor.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

        module = pteron.load(ADD)
        ones = Wrapped(pteron.Tensor(ONES))
        with self.copied(0, 1):
            self.assertEqual(module(ones, ones)[0].tolist(), TWOS)
        self.assertEqual(pteron.Tensor(ONES).__dlpack_device__(), (1, 0))
        for dtype in ("bfloat16", "float16", "bool", "uint8", "int64", "complex64"):
            tensor = pteron.Tensor([[1, 0], [1, 1]], dtype=dtype)
            again = pteron.Tensor(Wrapped(tensor))
            self.assertEqual((again.dtype, again.tolist()), (dtype, tensor.tolist()))
        capsule = pteron.Tensor(ONES).__dlpack__()
        self.assertIn("dltensor", repr(capsule))
        del capsule
        gc.collect()

    def test_a_capsule_is_taken_once(self):
        capsule = pteron.Tensor(ONES).__dlpack__()

        class Once:
            def __dlpack__(self):
                return capsule

        pteron.Tensor(Once())
        with self.assertRaises(ValueError):
            pteron.Tensor(Once())

    def test_other_devices_are_refused(self):
        class Elsewhere:
            def __dlpack__(self):
                raise AssertionError("it was asked")

            def __dlpack_device__(self):
                return (2, 0)

        with self.assertRaisesRegex(TypeError, "CPU"):
            pteron.Tensor(Elsewhere())


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """`DLManagedTensorVersioned`."""


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("version", ctypes.c_uint32 * 2),
    ("context", ctypes.c_void_p),
    ("deleter", DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", DlTensor),
]
LEND = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Managed)))


class Functions(ctypes.Structure):
    """`DLPackExchangeAPI`, up to the function that exports a tensor."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("earlier", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("lend", LEND),
    ]


def capsule(pointer, name):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.cast(pointer, ctypes.c_void_p), name, None)


class Lender:
    """Exports floats as DLPack's versioned struct, and counts how often the deleter is called."""

    def __init__(self, values, shape, version=1, flags=0, device=1, data=True):
        self.values = (ctypes.c_float * len(values))(*values)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.returned = 0
        self.deleter = DELETER(self.delete)
        place = ctypes.addressof(self.values) if data else None
        tensor = DlTensor(place, (device, 0), len(shape), 2, 32, 1, self.shape, None, 0)
        self.managed = Managed((version, 0), None, self.deleter, flags, tensor)

    def delete(self, _managed):
        self.returned += 1

    def __dlpack__(self, *, max_version=None):
        assert max_version >= (1, 0)
        return capsule(ctypes.pointer(self.managed), b"dltensor_versioned")


class Versions(Counting):
    def test_the_deleter_is_called_once(self):
        lender = Lender([1.0] * 4, [2, 2])
        with self.copied(0, 1):
            self.assertEqual(pteron.load(ADD)(lender, ONES)[0].tolist(), TWOS)
        self.assertEqual(lender.returned, 1)

    def test_unreadable_tensors_are_refused(self):
        for options, error in (({"version": 2}, BufferError), ({"device": 2}, TypeError), ({"data": False}, TypeError)):
            lender = Lender([1.0] * 4, [2, 2], **options)
            with self.assertRaises(error):
                pteron.Tensor(lender)
            self.assertEqual(lender.returned, 1)
        empty = Lender([], [0, 3], data=False)
        self.assertEqual(pteron.Tensor(empty).shape, (0, 3))

    def test_read_only_memory_is_not_written_to(self):
        lender = Lender([0.0] * 4, [2, 2], flags=1)
        with self.assertRaisesRegex(ValueError, "read-only"):
            pteron.load(ADD)(ONES, ONES, out=lender)
        lender = Lender([0.0] * 4, [2, 2])
        pteron.load(ADD)(ONES, ONES, out=lender)
        self.assertEqual(list(lender.values), [2.0] * 4)

    def test_the_c_exchange_api_is_used(self):
        def lend(given, out):
            out[0] = ctypes.pointer(given.managed)
            return 0

        def asked(self, **options):
            raise AssertionError("Python was asked")

        table = Functions((1, 3), None, None, LEND(lend))
        newer = Functions((2, 0), ctypes.addressof(table), None, LEND())
        module = pteron.load(ADD)
        for first in (table, newer):
            known = capsule(ctypes.pointer(first), b"dlpack_exchange_api")
            fast = type("Fast", (Lender,), {"__dlpack_c_exchange_api__": known, "__dlpack__": asked})
            lender = fast([1.0] * 4, [2, 2])
            self.assertEqual(module(lender, ONES)[0].tolist(), TWOS)
            self.assertEqual(lender.returned, 1)
        unknown = capsule(ctypes.pointer(Functions((2, 0), None, None, LEND())), b"dlpack_exchange_api")
        slow = type("Slow", (Lender,), {"__dlpack_c_exchange_api__": unknown})
        self.assertEqual(module(slow([1.0] * 4, [2, 2]), ONES)[0].tolist(), TWOS)


@unittest.skipIf(numpy is None, "NumPy is not installed")
class NumPy(Counting):
    def setUp(self):
        self.module = pteron.load(DIGITS)
        self.picture = numpy.zeros((1, 1, 8, 8), numpy.float32)

    def test_inputs(self):
        permuted = numpy.zeros((8, 8, 1, 1), numpy.float32).transpose(2, 3, 0, 1)
        fortran = numpy.asfortranarray(self.picture)
        for given in (self.picture, permuted, fortran):
            with self.copied(0, 1):
                self.module(given)
        with self.copied(1, 1):
            self.module(numpy.zeros((1, 1, 8, 16), numpy.float32)[..., ::2])
        with self.copied(1, 1):
            self.module(numpy.broadcast_to(numpy.float32(0), (1, 1, 8, 8)))

    def test_strided_layouts(self):
        module = pteron.load(ADD)
        values = numpy.arange(4, dtype=numpy.float32).reshape(2, 2)
        wide = numpy.zeros((4, 6), numpy.float32)
        wide[::2, ::3] = values
        for given in (values, numpy.asfortranarray(values), values[::-1, ::-1][::-1, ::-1], wide[::2, ::3]):
            result = module(given, numpy.zeros((2, 2), numpy.float32))[0]
            self.assertEqual(result.tolist(), values.tolist())
        self.assertEqual(module(values[::-1], values * 0)[0].tolist(), values[::-1].tolist())
        out = numpy.zeros((2, 4), numpy.float32)
        module(values, values * 0, out=out[:, ::2])
        self.assertEqual(out[:, ::2].tolist(), values.tolist())
        self.assertEqual(out[:, 1::2].tolist(), [[0.0, 0.0], [0.0, 0.0]])

    def test_outputs(self):
        result = self.module(self.picture)[0]
        with self.copied(0, 0):
            a, b = numpy.asarray(result), numpy.from_dlpack(result)
            self.assertTrue((a == b).all() and numpy.shares_memory(a, b) and numpy.shares_memory(a, result.numpy()))
        self.assertEqual(result.__array__(dtype=numpy.float64).dtype, numpy.float64)

    def test_no_dimensions_and_no_elements(self):
        self.assertEqual(pteron.Tensor(numpy.float32(3)).tolist(), 3.0)
        self.assertEqual(numpy.asarray(pteron.Tensor(numpy.zeros(()))).shape, ())
        self.assertEqual(numpy.asarray(pteron.Tensor(numpy.zeros((0, 3)))).shape, (0, 3))

    def test_array_protocol(self):
        class Arrays:
            def __array__(self, dtype=None, copy=None):
                return numpy.ones((2, 2), numpy.float32)

        with self.copied(0, 1):
            self.assertEqual(pteron.load(ADD)(Arrays(), Arrays())[0].tolist(), TWOS)


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Torch(Counting):
    def test_inputs_and_outputs(self):
        module = pteron.load(ADD)
        ones = torch.ones(2, 2)
        with self.copied(0, 1):
            result = module(ones, ones.t())[0]
        self.assertEqual(torch.from_dlpack(result).tolist(), TWOS)
        out = torch.zeros(2, 2)
        with self.copied(0, 1):
            module(ones, ones, out=out)
        self.assertEqual(out.tolist(), TWOS)
        self.assertEqual(pteron.Tensor(torch.ones(3, dtype=torch.bfloat16)).dtype, "bfloat16")
        self.assertEqual(pteron.Tensor(torch.nn.Parameter(torch.ones(2))).tolist(), [1.0, 1.0])
        self.assertEqual(pteron.Tensor(torch.tensor(2.5)).item(), 2.5)

    def test_lazy_negation_and_conjugation_are_refused(self):
        numbers = torch.tensor([1 + 2j, 3 - 4j])
        for view in (numbers.conj(), numbers.conj().imag):
            with self.assertRaisesRegex(TypeError, "resolve_conj"):
                pteron.Tensor(view)
        self.assertEqual(pteron.Tensor(numbers.conj().imag.resolve_neg()).tolist(), [-2.0, 4.0])
        for kind in (torch.empty(2, device="meta"), torch.eye(2).to_sparse()):
            with self.assertRaises((TypeError, RuntimeError, BufferError)):
                pteron.Tensor(kind)


if __name__ == "__main__":
    unittest.main()
