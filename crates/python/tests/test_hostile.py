"""Capsules and buffers of broken or hostile libraries: what contradicts itself is an error, and whatever was taken is released once.

Pointers to memory that is not there cannot be noticed, so every pointer here is null or valid, for as many elements as are declared
unless their number is absurd. To find what is read or freed wrongly nonetheless, run this with an instrumented library or under
Valgrind (`CONTRIBUTING.md`).
"""

import ctypes
import gc
import itertools
import unittest

import pteron
from common import corpus
from pteron.batch import Mapper

REFUSALS = (TypeError, ValueError, BufferError, OverflowError, MemoryError, RuntimeError, pteron.Error)
EXTREMES = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 65, 2**31 - 1, 2**61, 2**62 + 1, 2**63 - 1)

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Offer:
    """An object with methods that return what they are given."""

    def __init__(self, **methods):
        for name, result in methods.items():
            setattr(self, name, lambda *_, result=result, **__: result)


def within(value, kind):
    """Whether an integer fits a type of ctypes."""
    return kind(value).value == value


# DLPack


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Plain(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Lent:
    """A float32 tensor of shape [2, 2] in a capsule, with fields that are changed."""

    def __init__(self, versioned=False, shape=(2, 2), strides=(2, 1), deleter=True, **changes):
        self.memory = (ctypes.c_float * 4)(1, 2, 3, 4)
        # More than the declared number of dimensions, so that every pointer is valid.
        self.shape = (ctypes.c_int64 * 70)(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * 70)(*strides)
        self.deleted = 0
        self.deleter = DELETER(self.delete) if deleter else DELETER()
        self.managed = Versioned(1, 0, None, self.deleter, 0) if versioned else Plain(Tensor(), None, self.deleter)
        tensor = dict(data=ctypes.addressof(self.memory), device_type=1, ndim=2, code=2, bits=32, lanes=1)
        tensor["shape"] = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            tensor["strides"] = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        for name, value in (tensor | changes).items():
            setattr(self.managed if name in ("major", "minor", "flags") else self.managed.tensor, name, value)
        name = b"dltensor_versioned" if versioned else b"dltensor"
        self.capsule = new_capsule(ctypes.addressof(self.managed), name, None)

    def delete(self, _):
        self.deleted += 1

    def offer(self):
        return Offer(__dlpack__=self.capsule, __dlpack_device__=(1, 0))


class DlPack(unittest.TestCase):
    def check(self, lent, expected=None):
        """Takes a capsule, which must be refused or give the elements; it is deleted once either way."""
        try:
            found = pteron.Tensor(lent.offer()).tolist()
        except REFUSALS:
            found = None
        gc.collect()
        self.assertEqual(lent.deleted, 1)
        if expected is not None:
            self.assertEqual(found, expected)
        return found

    def test_the_unchanged_capsule(self):
        for versioned in (False, True):
            self.check(Lent(versioned), [[1.0, 2.0], [3.0, 4.0]])
            self.check(Lent(versioned, strides=None), [[1.0, 2.0], [3.0, 4.0]])
            self.check(Lent(versioned, strides=(0, -1), data=None, shape=(0, 3)), [])
        lent = Lent(deleter=False)
        self.assertEqual(pteron.Tensor(lent.offer()).tolist(), [[1.0, 2.0], [3.0, 4.0]])

    def test_one_field_is_absurd(self):
        for versioned in (False, True):
            for field, kind in Tensor._fields_:
                if field in ("data", "shape", "strides", "byte_offset"):
                    continue
                for value in filter(lambda value: within(value, kind), EXTREMES):
                    wide = field == "bits" and value > 32 or field == "ndim" and value > 2
                    # More memory than there is: only what cannot be a tensor.
                    if wide and value < 65:
                        continue
                    with self.subTest(versioned=versioned, field=field, value=value):
                        self.check(Lent(versioned, **{field: value}))
            self.assertIsNone(self.check(Lent(versioned, data=None)))
            lent = Lent(versioned)
            lent.managed.tensor.shape = None
            self.assertIsNone(self.check(lent))

    def test_sizes_and_strides_are_absurd(self):
        large = [size for size in EXTREMES if size < 0 or size > 2**60]
        for sizes in itertools.chain(itertools.product(large, (1, 2)), itertools.product((1, 2), large), [(2**31, 2**31)]):
            for strides in (None, (0, 0), (2, 1), (2**62, 2**62), (-(2**63), 1)):
                with self.subTest(sizes=sizes, strides=strides):
                    self.assertIsNone(self.check(Lent(shape=sizes, strides=strides)))
        # Sizes whose product is zero, and overflows on the way.
        for sizes in itertools.permutations((0, 2**62, 2**62)):
            self.check(Lent(shape=sizes, ndim=3, strides=None))
        for stride in large:
            self.assertIn(self.check(Lent(shape=(1, 2), strides=(stride, 1))), (None, [[1.0, 2.0]]))

    def test_versions_and_devices(self):
        for major in (0, 2, 2**32 - 1):
            self.assertIsNone(self.check(Lent(True, major=major, ndim=-5)))
        for device in (0, 2, 13, -1):
            self.assertIsNone(self.check(Lent(device_type=device)))

    def test_a_capsule_is_taken_once(self):
        lent = Lent()
        offer = lent.offer()
        pteron.Tensor(offer)
        with self.assertRaises(REFUSALS):
            pteron.Tensor(offer)
        gc.collect()
        self.assertEqual(lent.deleted, 1)
        for wrong in (None, 3, new_capsule(ctypes.addressof(lent.managed), b"other", None)):
            with self.assertRaises(REFUSALS):
                pteron.Tensor(Offer(__dlpack__=wrong, __dlpack_device__=(1, 0)))

    def test_read_only_and_short_outputs(self):
        module = pteron.load(corpus("tiny/ModuleAdd"))
        ones = [[1.0, 1.0], [1.0, 1.0]]
        for lent in (Lent(True, flags=1), Lent(shape=(1, 4), strides=(4, 1)), Lent(code=0)):
            with self.assertRaises(REFUSALS):
                module(ones, ones, out=[lent.offer()])
            gc.collect()
            self.assertEqual((lent.deleted, list(lent.memory)), (1, [1, 2, 3, 4]))

    def test_a_chain_of_versions_without_end(self):
        class Header(ctypes.Structure):
            _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("earlier", ctypes.c_void_p)]

        header = Header(7, 0)
        header.earlier = ctypes.addressof(header)
        lent = Lent()

        class Endless:
            __dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(header), b"dlpack_exchange_api", None)

            def __dlpack__(self, **_):
                return lent.capsule

        self.assertEqual(pteron.Tensor(Endless()).tolist(), [[1.0, 2.0], [3.0, 4.0]])


# Arrow


class Schema(ctypes.Structure):
    pass


class Array(ctypes.Structure):
    pass


RELEASE_SCHEMA = ctypes.CFUNCTYPE(None, ctypes.POINTER(Schema))
RELEASE_ARRAY = ctypes.CFUNCTYPE(None, ctypes.POINTER(Array))
Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
    ("dictionary", ctypes.POINTER(Schema)),
    ("release", RELEASE_SCHEMA),
    ("private_data", ctypes.c_void_p),
]
Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(Array))),
    ("dictionary", ctypes.POINTER(Array)),
    ("release", RELEASE_ARRAY),
    ("private_data", ctypes.c_void_p),
]


class Column:
    """A type and an array, with their children."""

    def __init__(self, format, length, buffers, children=(), name=b"", **changes):
        self.children = list(children)
        # With room for the rows behind an offset.
        self.memory = [None if b is None else ctypes.create_string_buffer(bytes(b), len(bytes(b)) + 256) for b in buffers]
        addresses = [None if b is None else ctypes.addressof(b) for b in self.memory]
        self.buffers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        count = len(self.children)
        self.schemas = (ctypes.POINTER(Schema) * max(count, 1))(*[ctypes.pointer(c.schema) for c in self.children])
        self.arrays = (ctypes.POINTER(Array) * max(count, 1))(*[ctypes.pointer(c.array) for c in self.children])
        self.schema = Schema(format, name, None, 2, count, self.schemas)
        self.array = Array(length, 0, 0, len(addresses), count, self.buffers, self.arrays)
        self.change(**changes)

    def change(self, **changes):
        for name, value in changes.items():
            where, field = name.split("_", 1)
            setattr(getattr(self, where), field, value)


class Batch(Column):
    """A batch of two columns of float32 lists, in capsules."""

    def __init__(self, columns=None, length=2, **changes):
        if columns is None:
            columns = [Batch.lists(b"a"), Batch.lists(b"b")]
        self.released = [0, 0]
        self.release = (RELEASE_SCHEMA(lambda at: self.free(0, at)), RELEASE_ARRAY(lambda at: self.free(1, at)))
        super().__init__(b"+s", length, [None], columns)
        self.schema.release, self.array.release = self.release
        self.change(**changes)
        pointers = (ctypes.addressof(self.schema), b"arrow_schema", None), (ctypes.addressof(self.array), b"arrow_array", None)
        self.capsules = tuple(new_capsule(*pointer) for pointer in pointers)

    def free(self, which, at):
        self.released[which] += 1
        at.contents.release = (RELEASE_SCHEMA, RELEASE_ARRAY)[which]()

    @staticmethod
    def lists(name, format=b"+w:4", buffers=(None,), **changes):
        numbers = Column(b"f", 8, [None, (ctypes.c_float * 8)(*range(8))], name=b"item")
        return Column(format, 2, buffers, [numbers], name, **changes)


class Arrow(unittest.TestCase):
    def setUp(self):
        self.model = Mapper(corpus("tiny/ModuleAdd"), batched=False, inputs=["a", "b"])

    def check(self, batch, released=(1, 1)):
        """Maps a batch, which must be refused or give rows; schema and array are released once either way."""
        try:
            found = self.model(Offer(__arrow_c_array__=batch.capsules))
        except REFUSALS:
            found = None
        del found
        gc.collect()
        self.assertEqual(tuple(batch.released), released)

    def test_one_field_is_absurd(self):
        self.check(Batch())
        fields = [("schema_" + name, kind) for name, kind in Schema._fields_ if kind is ctypes.c_int64]
        fields += [("array_" + name, kind) for name, kind in Array._fields_ if kind is ctypes.c_int64]
        for field, kind in fields:
            for value in EXTREMES:
                # More children or buffers than there are pointers: only what cannot be a number of them.
                if field.split("_", 1)[1] in ("n_children", "n_buffers") and 0 < value <= 2**31:
                    continue
                # More rows than there is memory for: only what cannot be a length.
                if field in ("array_length", "array_offset") and 2 < value <= 2**31:
                    continue
                with self.subTest(field=field, value=value):
                    self.check(Batch(**{field: value}))
                    self.check(Batch([Batch.lists(b"a", **{field: value}), Batch.lists(b"b")]))
                    inner = Batch.lists(b"a")
                    inner.children[0].change(**{field: value})
                    self.check(Batch([inner, Batch.lists(b"b")]))

    def test_pointers_are_null(self):
        for field in ("schema_format", "schema_name", "schema_children", "array_buffers", "array_children"):
            with self.subTest(field=field):
                self.check(Batch(**{field: None}))
                self.check(Batch([Batch.lists(b"a", **{field: None}), Batch.lists(b"b")]))
        for children in ("schemas", "arrays"):
            batch = Batch()
            getattr(batch, children)[1] = None
            self.check(batch)
        self.check(Batch([Column(b"f", 2, [None, None], name=b"a"), Batch.lists(b"b")]))

    def test_formats(self):
        formats = [b"", b"?", b"+", b"+w", b"+w:", b"+w:-1", b"+w:0", b"+w:9999999999999999999999", b"\xff\xfe", b"w:", b"w:-4"]
        formats += [f"{kind}:{size}".encode() for kind in ("w", "+w") for size in (2**31, 2**61, 2**62, 2**63, 2**64 - 1)]
        formats += [b"vu", b"+vl", b"+m", b"+us:0,1", b"+r", b"tdD", b"d:10,2", b"x" * 100000]
        for format in formats:
            with self.subTest(format=format[:20]):
                self.check(Batch([Batch.lists(b"a", format), Batch.lists(b"b")]))
                self.check(Batch(schema_format=format))

    def test_offsets_of_lists(self):
        good = [0, 4, 8]
        for place, offset in itertools.product(range(3), EXTREMES):
            for format, kind in ((b"+l", ctypes.c_int32), (b"+L", ctypes.c_int64)):
                if within(offset, kind):
                    offsets = [*good[:place], offset, *good[place + 1 :]]
                    with self.subTest(offsets=offsets):
                        column = Batch.lists(b"a", format, (None, (kind * 3)(*offsets)))
                        self.check(Batch([column, Batch.lists(b"b")]))
        misaligned = Batch.lists(b"a", b"+l", (None, bytes(17)))
        misaligned.buffers[1] = misaligned.buffers[1] + 1
        self.check(Batch([misaligned, Batch.lists(b"b")]))

    def test_nulls(self):
        for count, bits in itertools.product((-1, 1, 2, 2**62), (None, b"\x00", b"\x01", b"\xff")):
            self.check(Batch([Batch.lists(b"a", b"+w:4", (bits,), array_null_count=count), Batch.lists(b"b")]))

    def test_metadata(self):
        for numbers in ((-1,), (-(2**31),), (1, -1), (1, 0, -1), (0,)):
            self.check(Batch(schema_metadata=bytes((ctypes.c_int32 * len(numbers))(*numbers)) + bytes(8)))

    def test_nesting_without_end(self):
        column = Column(b"f", 2, [None, bytes(8)])
        for _ in range(3000):
            column = Column(b"+w:1", 2, [None], [column])
        self.check(Batch([column, Batch.lists(b"b")]))
        # A type that contains itself, and one that is its own dictionary.
        for field in ("children", "dictionary"):
            for kind in ("schema", "array"):
                with self.subTest(kind=kind, field=field):
                    batch = Batch()
                    top = getattr(batch, kind)
                    if field == "children":
                        getattr(batch, "schemas" if kind == "schema" else "arrays")[0] = ctypes.pointer(top)
                    else:
                        top.dictionary = ctypes.pointer(top)
                    self.check(batch)

    def test_type_and_array_differ(self):
        plain = Column(b"f", 2, [None, bytes(8)], name=b"a")
        lists = Batch.lists(b"a")
        plain.array, kept = lists.array, plain.array
        self.check(Batch([plain, Batch.lists(b"b")]))
        self.check(Batch(schema_n_children=1))
        self.check(Batch(array_n_children=1))
        del kept

    def test_capsules_that_are_empty_or_others(self):
        batch = Batch()
        self.check(batch)
        # Taken once, they are empty.
        self.check(batch)
        other = Batch()
        self.check_refused((other.capsules[1], other.capsules[0]))
        self.check_refused((other.capsules[0],))
        self.check_refused(None)
        self.assertEqual(other.released, [0, 0])

    def check_refused(self, capsules):
        with self.assertRaises(REFUSALS):
            self.model(Offer(__arrow_c_array__=capsules))


# The buffer protocol


class View(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View), ctypes.c_int)


class Slots(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(Slots)),
    ]


class Buffers(unittest.TestCase):
    """A type whose buffers are float32[2, 2] with fields that are changed."""

    @classmethod
    def setUpClass(cls):
        cls.memory = (ctypes.c_float * 4)(1, 2, 3, 4)
        cls.shape, cls.strides = (ctypes.c_ssize_t * 70)(2, 2), (ctypes.c_ssize_t * 70)(8, 4)
        cls.changes = {}
        cls.get = GET(cls.fill)
        # Py_bf_getbuffer; the flags are Py_TPFLAGS_DEFAULT.
        cls.slots = (Slots * 2)(Slots(1, ctypes.cast(cls.get, ctypes.c_void_p).value), Slots(0, None))
        cls.spec = Spec(b"hostile.Buffer", object.__basicsize__, 0, 1 << 18, cls.slots)
        make = ctypes.pythonapi.PyType_FromSpec
        make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(Spec)]
        cls.type = make(ctypes.byref(cls.spec))

    @classmethod
    def fill(cls, owner, view, _):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        fields = dict(
            buf=ctypes.addressof(cls.memory), obj=id(owner), len=16, itemsize=4, readonly=0, ndim=2, format=b"f",
            shape=cls.shape, strides=cls.strides, suboffsets=None, internal=None,
        )
        for name, value in (fields | cls.changes).items():
            setattr(view.contents, name, value)
        return 0

    def check(self, **changes):
        type(self).changes = changes
        try:
            return pteron.Tensor(self.type()).tolist()
        except REFUSALS:
            return None

    def test_one_field_is_absurd(self):
        self.assertEqual(self.check(), [[1.0, 2.0], [3.0, 4.0]])
        for field, kind in (("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t), ("ndim", ctypes.c_int)):
            for value in filter(lambda value: within(value, kind), EXTREMES):
                if (field, value) != ("ndim", 2):
                    with self.subTest(field=field, value=value):
                        self.assertIsNone(self.check(**{field: value}))
        for field in ("buf", "shape", "strides"):
            self.assertIsNone(self.check(**{field: None}))
        for format in (b"", b"xx", b"d", b"T{f:a:}", b">f", b"\xff", b"f" * 10000):
            with self.subTest(format=format[:8]):
                self.assertIsNone(self.check(format=format))
        self.assertIsNone(self.check(suboffsets=(ctypes.c_ssize_t * 2)(0, 0)))

    def test_sizes_are_absurd(self):
        large = [size for size in EXTREMES if size < 0 or size > 2**60]
        for sizes in itertools.chain(itertools.product(large, (1, 2)), itertools.product((1, 2), large)):
            with self.subTest(sizes=sizes):
                self.assertIsNone(self.check(shape=(ctypes.c_ssize_t * 2)(*sizes)))
        for strides in ((0, 0), (2**62, 4), (-(2**63), 4)):
            self.assertEqual(self.check(shape=(ctypes.c_ssize_t * 2)(1, 1), len=4, strides=(ctypes.c_ssize_t * 2)(*strides)), [[1.0]])


if __name__ == "__main__":
    unittest.main()
