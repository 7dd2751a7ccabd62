"""The verbs of the `pteron` command as functions that return dataclasses.

`diff` and the functions that edit files report to the function `progress`: it is called with the name of the operation, the
bytes done, and an estimate of the total. An exception that it raises is printed to stderr and does not stop the operation.
`progress_bar()` returns a function that shows a tqdm bar.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union, overload

from . import _eager, _pteron
from ._readable import Readable, Section
from ._records import Limits, parse, record
from .errors import ExecuteError, InputError, NoSuchMethodError

Path = Union[str, "os.PathLike[str]"]
Source = Union[Path, bytes, bytearray, memoryview]
Progress = Callable[[str, int, int], None]


def progress_bar() -> Progress:
    """A function for `progress` that shows a tqdm bar, or nothing if tqdm is not installed."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return lambda what, done, total: None
    bars: List[Any] = []

    def show(what: str, done: int, total: int) -> None:
        if done == 0 or not bars:
            if bars:
                bars.pop().close()
            bars.append(tqdm(total=total, desc=what, unit="B", unit_scale=True))
        bars[0].update(done - bars[0].n)
        if done >= total:
            bars.pop().close()

    return show


@dataclass(frozen=True)
class Value:
    """An input or output of a method."""

    kind: str
    dtype: Optional[str] = None
    sizes: Optional[Tuple[int, ...]] = None
    dim_order: Optional[Tuple[int, ...]] = None
    dynamic: Optional[bool] = None
    planned: Optional[bool] = None
    traced: Any = None
    name: Optional[str] = None


@dataclass(frozen=True)
class OperatorUse:
    """An operator that a method calls."""

    name: str
    calls: int
    available: bool


@dataclass(frozen=True)
class DelegateUse:
    """A delegate of a method."""

    index: int
    backend: str
    bytes: int
    calls: int
    compile_specs: Dict[str, int]
    location: Optional[str] = None
    offset: Optional[int] = None
    magic: Optional[str] = None


@dataclass(frozen=True)
class Arena:
    """A memory arena of a method."""

    memory_id: int
    bytes: int
    tensors: int
    device: Optional[str] = None


@dataclass(frozen=True)
class Tensors:
    """The numbers of tensors of a method, by kind."""

    constant: int
    planned: int
    mutable: int
    external: int
    unplanned: int
    external_keys: Tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """The operators and backends that a method needs and this build lacks."""

    operators: Tuple[str, ...]
    backends: Tuple[str, ...]
    sentences: Tuple[str, ...]


@dataclass(frozen=True)
class MethodReport:
    """A method of a program."""

    name: str
    inputs: Tuple[Value, ...]
    outputs: Tuple[Value, ...]
    instructions: Dict[str, int]
    operators: Tuple[OperatorUse, ...]
    delegates: Tuple[DelegateUse, ...]
    arenas: Tuple[Arena, ...]
    tensors: Tensors
    missing: Optional[Missing] = None


@dataclass(frozen=True)
class Segment:
    """A segment of a program's file."""

    offset: int
    bytes: int
    holds: Tuple[str, ...]


@dataclass(frozen=True)
class NamedData:
    """Named data of a program, or an entry of a `.ptd` file."""

    key: str
    bytes: int
    segment: Optional[int] = None
    dtype: Optional[str] = None
    sizes: Optional[Tuple[int, ...]] = None
    dim_order: Optional[Tuple[int, ...]] = None


@dataclass(frozen=True)
class Constant:
    """A constant of a program."""

    bytes: int
    dtype: str
    sizes: Tuple[int, ...]
    dim_order: Tuple[int, ...]
    mutable: bool
    methods: Tuple[str, ...]
    name: Optional[str] = None


@dataclass(frozen=True)
class Inspection(Readable):
    """The contents of a file. Only programs have methods; `values` is the whole report, as the command's JSON."""

    format: str
    file: str
    bytes: int
    values: Dict[str, Any]
    methods: Tuple[MethodReport, ...] = ()
    segments: Tuple[Segment, ...] = ()
    named_data: Tuple[NamedData, ...] = ()
    constants: Tuple[Constant, ...] = ()
    entries: Tuple[NamedData, ...] = ()

    def _sections(self) -> Iterator[Section]:
        yield Section(f"{self.file}: {self.format}, {self.bytes:,} bytes")
        for method in self.methods:
            values = [("input", value) for value in method.inputs] + [("output", value) for value in method.outputs]
            rows = [(what, value.name, _type(value)) for what, value in values]
            yield Section(f"method {method.name}", ("", "name", "type"), rows)
            calls = [(use.name, use.calls, "" if use.available else "missing") for use in method.operators]
            yield Section("operators", ("operator", "calls", ""), calls)
            delegates = [(delegate.backend, delegate.bytes, delegate.calls) for delegate in method.delegates]
            if delegates:
                yield Section("delegates", ("backend", "bytes", "calls"), delegates)
            arenas = [(arena.memory_id, arena.bytes, arena.tensors) for arena in method.arenas]
            if arenas:
                yield Section("memory arenas", ("arena", "bytes", "tensors"), arenas)
        data = [(entry.key, entry.bytes, entry.dtype, _sizes(entry.sizes)) for entry in self.named_data + self.entries]
        if data:
            yield Section("named data", ("key", "bytes", "type", "sizes"), data)


def _sizes(sizes: Optional[Tuple[int, ...]]) -> str:
    return "" if sizes is None else f"[{', '.join(map(str, sizes))}]"


def _type(value: Value) -> str:
    if value.dtype is None:
        return value.kind if value.traced is None else f"{value.kind} = {value.traced!r}"
    return f"{value.dtype}{_sizes(value.sizes)}{', dynamic' if value.dynamic else ''}"


def inspect(source: Source) -> Inspection:
    """The contents of a program, an archive, a file of named data, a BEF program, an ETDump, an ETRecord or a `.gguf`."""
    values = json.loads(_pteron.inspect(source))
    fields = dict(values.get("program", {}))
    fields.update(values)
    if fields["format"] == "ptd":
        fields.pop("segments", None)
    if fields["format"] == "etrecord":
        fields.pop("entries")
    known = ("format", "file", "bytes", "methods", "segments", "named_data", "constants", "entries")
    chosen = {name: fields[name] for name in known if name in fields}
    return record(Inspection, {"values": values, **chosen})


@dataclass(frozen=True)
class Problem:
    """One problem of a file."""

    path: str
    kind: str
    expected: str
    found: str
    message: str
    offset: Optional[int] = None


@dataclass(frozen=True)
class Validation:
    """The problems of a file, and whether this build can run it."""

    file: str
    format: str
    bytes: int
    valid: bool
    problems: Tuple[Problem, ...]
    missing: Tuple[str, ...]
    can_run: Optional[bool] = None


def validate(source: Source) -> Validation:
    """Finds all problems of a program or a file of named data."""
    return parse(Validation, _pteron.validate(source))


@dataclass(frozen=True)
class Requirements:
    """The operators and backends that a program needs, and those that are missing."""

    file: str
    format: str
    can_run: bool
    operators: Tuple[OperatorUse, ...]
    backends: Tuple[Dict[str, Any], ...]
    missing: Tuple[str, ...]


def requirements(source: Source) -> Requirements:
    """The operators and backends that a program needs."""
    return parse(Requirements, _pteron.requirements(source))


@dataclass(frozen=True)
class Operator:
    """An operator that programs can call."""

    name: str
    schema: str
    dtypes: Tuple[str, ...]


def operators() -> Tuple[Operator, ...]:
    """The operators that programs can call."""
    return tuple(record(Operator, values) for values in json.loads(_pteron.operators()))


def backends() -> Tuple[str, ...]:
    """The ids of the backends that delegates can use."""
    return tuple(_pteron.backends())


def register_backend(
    id: str,
    init: Callable[[bytes, Dict[str, Any]], Any],
    execute: Callable[..., Any],
) -> None:
    """Registers a delegate backend that is written in Python, for tests and prototypes.

    Programs that are opened later use it for delegates with this id; it replaces a backend with the same id.

    Args:
        id: The id by which programs name the backend.
        init: Called for each delegate when a method is loaded, with the payload and a dict: `method`, its name;
            `arguments`, for each argument of the call `(dtype, sizes)`, or None if it is no tensor; `num_inputs`, how many
            of them are inputs, or None if the file does not tell; `compile_specs` and `named_data`, bytes by key. What it
            returns is the delegate's state; if that has an attribute `num_inputs`, it says how many arguments are inputs.
        execute: Called for each execution, with the state and the inputs, as tensors and numbers. It returns an array, or a
            tuple with one for each output. Outputs take the sizes of the arrays.

    An exception becomes a `LoadError` or an `ExecuteError` that names method, delegate, file and line.
    """
    _pteron.register_backend(id, init, execute)


@dataclass(frozen=True)
class ArenaPlan:
    """The tensors of an arena with their offsets and lifetimes."""

    memory_id: int
    bytes: int
    peak: int
    blocks: Tuple[Dict[str, Any], ...]
    peak_at: Optional[str] = None


@dataclass(frozen=True)
class MethodPlan:
    """The memory plan of a method."""

    name: str
    instructions: int
    arenas: Tuple[ArenaPlan, ...]
    overlaps: Tuple[Dict[str, Any], ...]
    unknown_operators: Tuple[str, ...]


@dataclass(frozen=True)
class Plan(Readable):
    """The memory plan of a program."""

    file: str
    methods: Tuple[MethodPlan, ...]

    @property
    def is_sound(self) -> bool:
        """Whether no live tensor is overwritten."""
        return not any(method.overlaps for method in self.methods)

    def _sections(self) -> Iterator[Section]:
        yield Section(f"{self.file}: {'no live tensor is overwritten' if self.is_sound else 'live tensors are overwritten'}")
        for method in self.methods:
            rows = [(arena.memory_id, arena.bytes, arena.peak, len(arena.blocks), arena.peak_at) for arena in method.arenas]
            yield Section(f"method {method.name}, {method.instructions:,} instructions", ("arena", "bytes", "peak", "tensors", "at"), rows)
            if method.overlaps:
                yield Section("overwritten", ("overlap",), [(overlap,) for overlap in method.overlaps])


def plan(source: Source, method: Optional[str] = None) -> Plan:
    """The memory plan of a program, or of one of its methods."""
    return parse(Plan, _pteron.plan(source, method))


def listing(source: Source) -> str:
    """A listing of a whole program or file of named data. Its format may change between releases."""
    return _pteron.listing(source)


@dataclass(frozen=True)
class Difference:
    """One difference; `kind` is `meaning` if it can change the results, otherwise `form`."""

    kind: str
    place: str
    a: Optional[str] = None
    b: Optional[str] = None


@dataclass(frozen=True)
class Diff(Readable):
    """The differences between two files; false if there are none."""

    a: str
    b: str
    differences: Tuple[Difference, ...]

    def __bool__(self) -> bool:
        return bool(self.differences)

    def _sections(self) -> Iterator[Section]:
        yield Section(f"{self.a}, {self.b}: {len(self.differences)} differences" if self else f"{self.a}, {self.b}: no difference")
        yield Section("differences", ("kind", "place", "a", "b"), [(d.kind, d.place, d.a, d.b) for d in self.differences])


def diff(a: Source, b: Source, *, meaning: bool = False, progress: Optional[Progress] = None) -> Diff:
    """The differences between two programs or two files of named data; with `meaning`, only those that can change the results."""
    values = json.loads(_pteron.diff(a, b, meaning, progress))
    for difference in values["differences"]:
        difference["kind"] = difference.pop("class")
    return record(Diff, values)


@dataclass(frozen=True)
class OperatorTime:
    """The time of the calls of an operator in one run."""

    name: str
    calls: float
    total_us: float
    share: float


@dataclass(frozen=True)
class StepTime:
    """The time of one step of a run."""

    name: str
    calls: float
    total_us: float
    share: float
    place: Optional[Tuple[int, ...]] = None
    node: Optional[int] = None
    instruction: Optional[str] = None
    shapes: Optional[str] = None


@dataclass(frozen=True)
class Profile(Readable):
    """The profile of a method: times in microseconds, averaged over the runs."""

    method: str
    runs: int
    load_us: float
    prepare_us: float
    run_us: float
    fastest_run_us: float
    outside_us: float
    operators: Tuple[OperatorTime, ...]
    steps: Tuple[StepTime, ...]

    def _sections(self) -> Iterator[Section]:
        yield Section(
            f"method {self.method}: {self.run_us / 1000:.3f} ms a run, the fastest of {self.runs} {self.fastest_run_us / 1000:.3f} ms; "
            f"loaded in {self.load_us / 1000:.3f} ms, prepared in {self.prepare_us / 1000:.3f} ms"
        )
        operators = [(use.name, use.calls, use.total_us, f"{use.share:.1%}") for use in self.operators]
        yield Section("operators", ("operator", "calls", "µs", "share"), operators)
        steps = [(step.name, step.calls, step.total_us, f"{step.share:.1%}", step.shapes) for step in self.steps]
        yield Section("steps", ("step", "calls", "µs", "share", "shapes"), steps)


def _options(
    data: Sequence[Path], threads: Optional[int], limits: Optional[Limits], prepare: bool, isa: Optional[str]
) -> Dict[str, Any]:
    return {"data": list(data), "threads": threads, "limits": limits, "prepare": prepare, "isa": isa}


def profile(
    source: Source,
    inputs: Optional[Sequence[Any]] = None,
    *,
    method: Optional[str] = None,
    repeat: Optional[int] = None,
    trace: Optional[Path] = None,
    etdump: Optional[Path] = None,
    debug_buffer: Optional[Path] = None,
    data: Sequence[Path] = (),
    threads: Optional[int] = None,
    limits: Optional[Limits] = None,
    prepare: bool = True,
    isa: Optional[str] = None,
) -> Profile:
    """Profiles a method over `repeat` runs: by default 10, or one if tensors are recorded. The inputs are zeros if none are given.

    `trace` is the file for a timeline for Chrome and Perfetto, `etdump` the file for a dump for ExecuTorch's Inspector, and
    `debug_buffer` the file for all computed tensors.
    """
    if repeat is None:
        repeat = 10 if debug_buffer is None else 1
    if repeat < 1:
        raise ValueError("repeat must be 1 or more")
    given = None if inputs is None else tuple(inputs)
    options = _options(data, threads, limits, prepare, isa)
    return parse(Profile, _pteron.profile(source, given, method, repeat, (trace, etdump, debug_buffer), options))


@dataclass(frozen=True)
class Compared:
    """A value that was compared between two runs."""

    what: str
    iteration: int
    output: int
    place: Optional[Tuple[int, ...]] = None
    source: Optional[str] = None
    largest: Optional[float] = None
    difference: Optional[str] = None


@dataclass(frozen=True)
class Comparison(Readable):
    """The comparison of a prepared run with one as written; `first` is the index in `values` of the first that differs."""

    method: str
    recorded: int
    values: Tuple[Compared, ...]
    fused: Tuple[Dict[str, Any], ...]
    first: Optional[int] = None

    def _sections(self) -> Iterator[Section]:
        parts = [value for value in self.values if value.difference is not None]
        result = f"{len(parts)} of {len(self.values)} values differ" if parts else "all values agree"
        yield Section(f"method {self.method}, prepared and as written: {result}")
        if parts:
            yield Section("values", ("value", "largest", "difference", "from"), [(v.what, v.largest, v.difference, v.source) for v in parts])


@dataclass(frozen=True)
class ComparedOutput:
    """An output of two programs: the largest absolute difference, the signal-to-noise ratio in decibels (None if the outputs are
    equal), the cosine, the share of rows with the same largest element, and how it differs, if it does."""

    name: Optional[str] = None
    largest: Optional[float] = None
    sqnr: Optional[float] = None
    cosine: Optional[float] = None
    same_top: Optional[float] = None
    difference: Optional[str] = None


@dataclass(frozen=True)
class ComparedLayer:
    """A value that two programs compute: what computes it in each, where it comes from, and how close it is."""

    a: str
    b: str
    sizes: Tuple[int, ...]
    differs: bool
    largest: Optional[float] = None
    sqnr: Optional[float] = None
    cosine: Optional[float] = None
    source: Optional[str] = None


@dataclass(frozen=True)
class ProgramComparison(Readable):
    """The comparison of two programs. `first` is the index in `layers` of the first that differs, `instruction` the first one of
    programs with the same instructions, `unpaired` the number of values of each that the other has not."""

    method: str
    samples: int
    agree: bool
    outputs: Tuple[ComparedOutput, ...]
    layers: Tuple[ComparedLayer, ...]
    unpaired: Tuple[int, ...]
    min_sqnr: Optional[float] = None
    first: Optional[int] = None
    instruction: Optional[str] = None

    def _sections(self) -> Iterator[Section]:
        result = "the outputs agree" if self.agree else "the outputs differ"
        yield Section(f"method {self.method}, {self.samples} samples: {result}")
        columns = ("largest difference", "SQNR, dB", "cosine")
        outputs = [(o.name or str(i), o.largest, o.sqnr, o.cosine, o.difference) for i, o in enumerate(self.outputs)]
        yield Section("outputs", ("output", *columns, ""), outputs)
        layers = [(l.a, l.b, _sizes(l.sizes), l.largest, l.sqnr, l.cosine, "differs" if l.differs else "") for l in self.layers]
        if layers:
            yield Section("layers", ("a", "b", "sizes", *columns, ""), layers)


@overload
def compare(
    source: Source,
    inputs: Optional[Sequence[Any]] = None,
    *,
    method: Optional[str] = None,
    atol: Optional[float] = None,
    rtol: Optional[float] = None,
    data: Sequence[Path] = (),
    threads: Optional[int] = None,
    limits: Optional[Limits] = None,
    isa: Optional[str] = None,
) -> Comparison: ...
@overload
def compare(
    source: Any,
    inputs: Source,
    samples: Optional[Sequence[Sequence[Any]]] = None,
    *,
    method: Optional[str] = None,
    atol: Optional[float] = None,
    rtol: Optional[float] = None,
    min_sqnr: Optional[float] = None,
    data: Sequence[Path] = (),
    threads: Optional[int] = None,
    limits: Optional[Limits] = None,
    isa: Optional[str] = None,
) -> ProgramComparison: ...
def compare(
    source: Any,
    inputs: Any = None,
    samples: Optional[Sequence[Sequence[Any]]] = None,
    *,
    method: Optional[str] = None,
    atol: Optional[float] = None,
    rtol: Optional[float] = None,
    min_sqnr: Optional[float] = None,
    data: Sequence[Path] = (),
    threads: Optional[int] = None,
    limits: Optional[Limits] = None,
    isa: Optional[str] = None,
) -> Union[Comparison, ProgramComparison]:
    """Compares two programs, or two runs of one.

    `compare(a, b, samples)` runs both programs on each sample (a sequence of inputs; by default one random sample), and compares
    their outputs and the layers that both have. `a` may also be a `torch.export.ExportedProgram`, or a `torch.nn.Module`, which is
    exported with the first sample: PyTorch runs it in eager mode, node by node. Programs with other precision agree if the signal-to-noise ratio of their outputs is at least
    20 dB, or `min_sqnr`. `compare(program, inputs)` compares the instructions of a prepared run with those of a run as written.
    """
    explicit = None if atol is None and rtol is None else (atol or 0.0, rtol or 0.0)
    options = _options(data, threads, limits, True, isa)
    if isinstance(inputs, (str, bytes, bytearray, memoryview, os.PathLike)):
        given = None if samples is None else [tuple(sample) for sample in samples]
        if _eager.is_model(source):
            model = _eager.exported(source, given)
            given = given or [_eager.example(model)]
            bounds = (explicit, min_sqnr)
            computed = _eager.run(model, given)
            flat = [_eager.leaves(sample) for sample in given]
            return parse(ProgramComparison, _pteron.compare_with_eager(computed, inputs, flat, method, bounds, options))
        programs = (source_of(source), inputs)
        found = _pteron.compare_programs(programs, given, method, (explicit, min_sqnr), options)
        return parse(ProgramComparison, found)
    run = None if inputs is None else tuple(inputs)
    return parse(Comparison, _pteron.compare(source, run, method, explicit, options))


def source_of(source: Any) -> Any:
    """The bytes of an open file or of the archive of an exported program of PyTorch; anything else as it is."""
    if hasattr(source, "graph_signature"):
        import io

        import torch

        file = io.BytesIO()
        torch.export.save(source, file)
        return file.getvalue()
    if hasattr(source, "read") and not isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike)):
        contents = source.read()
        if not isinstance(contents, bytes):
            raise TypeError("a program is bytes: open its file with mode `rb`")
        return contents
    return source


@dataclass(frozen=True)
class Stripped:
    """The numbers of source frames and names that were removed from a program. `lost` is what could not be kept."""

    frames: int
    names: int
    bytes_before: int
    bytes_after: int
    lost: Tuple[str, ...] = ()


def strip(
    source: Source, output: Path, *, names: bool = False, strict: bool = False, progress: Optional[Progress] = None
) -> Stripped:
    """Removes source frames, and with `names` also names. The output may be the file itself."""
    return parse(Stripped, _pteron.strip(source, output, names, strict, progress))


@dataclass(frozen=True)
class Externalized:
    """The weights that were moved out of a program."""

    keys: Tuple[str, ...]
    bytes: int
    lost: Tuple[str, ...] = ()


def externalize(
    source: Source,
    output: Path,
    data: Path,
    *,
    at_least: int = 0,
    initial: bool = False,
    names: Sequence[str] = (),
    strict: bool = False,
    progress: Optional[Progress] = None,
) -> Externalized:
    """Moves the weights of a program of at least `at_least` bytes to the `.ptd` file `data`; with `initial`, also the initial
    values of state. With `names`, only weights whose names fit one of them; `*` stands for any characters, `?` for one. The output
    may be the file itself."""
    options = (at_least, initial, list(names))
    return parse(Externalized, _pteron.externalize(source, output, data, options, strict, progress))


@dataclass(frozen=True)
class Embedded:
    """The weights that were embedded in a program."""

    tensors: Tuple[str, ...]
    named_data: Tuple[str, ...]
    left_out: Tuple[str, ...]
    lost: Tuple[str, ...] = ()


def embed(
    source: Source, data: Sequence[Path], output: Path, *, strict: bool = False, progress: Optional[Progress] = None
) -> Embedded:
    """Embeds the external weights (`.ptd`) of a program in the program. The output may be the program itself."""
    return parse(Embedded, _pteron.embed(source, list(data), output, strict, progress))


@dataclass(frozen=True)
class Deduped:
    """The weights that programs share."""

    keys: Tuple[str, ...]
    bytes_shared: int
    bytes_before: int
    bytes_after: int


def dedupe(
    programs: Sequence[Path],
    outputs: Sequence[Path],
    data: Path,
    *,
    at_least: int = 512,
    strict: bool = False,
    progress: Optional[Progress] = None,
) -> Deduped:
    """Moves the weights that programs have in common to the `.ptd` file `data`, and writes each program without them."""
    return parse(Deduped, _pteron.dedupe(list(programs), list(outputs), data, at_least, strict, progress))


@dataclass(frozen=True)
class Merged:
    """The result of merging files of named data."""

    entries: int
    same: Tuple[str, ...]
    bytes_before: int
    bytes_after: int
    lost: Tuple[str, ...] = ()


def merge(
    files: Sequence[Path],
    output: Path,
    *,
    names: Sequence[str] = (),
    rename: Optional[Mapping[str, str]] = None,
    prefer: Optional[str] = None,
    share: bool = True,
    strict: bool = False,
    progress: Optional[Progress] = None,
) -> Merged:
    """Merges `.ptd` files into one; with `share`, equal blobs are written once.

    With `names`, takes only entries whose keys in the files fit one of them; `*` stands for any characters, `?` for one. `rename`
    maps keys of the files to new ones. If the files have different entries under a key, `prefer` (`first` or `last`) says which
    file's is taken; without it, that is an error. The output may be one of the files."""
    options = (list(names), list((rename or {}).items()), prefer, share)
    return parse(Merged, _pteron.merge(list(files), output, options, strict, progress))


def convert(
    source: Path,
    output: Path,
    *,
    keep_quantized: bool = False,
    strict: bool = False,
    progress: Optional[Progress] = None,
) -> int:
    """Converts `.ptd`, `.safetensors`, `.npz` or `.gguf` to the format of the output's extension. Returns the bytes written."""
    return _pteron.convert(source, output, keep_quantized, strict, progress)


@overload
def save_data(
    data: Mapping[str, Any],
    output: None = None,
    *,
    alignment: int = ...,
    share: bool = ...,
    progress: Optional[Progress] = ...,
) -> bytes: ...
@overload
def save_data(
    data: Mapping[str, Any],
    output: Path,
    *,
    alignment: int = ...,
    share: bool = ...,
    progress: Optional[Progress] = ...,
) -> None: ...
def save_data(
    data: Mapping[str, Any],
    output: Optional[Path] = None,
    *,
    alignment: int = 128,
    share: bool = True,
    progress: Optional[Progress] = None,
) -> Optional[bytes]:
    """Writes tensors and bytes to a file of named data (`.ptd`), or returns the file's bytes if `output` is None.

    Args:
        data: Tensors, arrays or nested sequences of numbers by key, with their types, shapes and dim orders; `bytes` and
            `bytearray` become entries without a type.
        output: The file to write.
        alignment: The alignment of entries in the file: a power of two.
        share: Whether equal contents are written once.
        progress: Called as for the functions that edit files.
    """
    return _pteron.save_data(list(data.items()), output, alignment, share, progress)


def load_data(
    source: Source, keys: Optional[Sequence[str]] = None, *, progress: Optional[Progress] = None
) -> Dict[str, Any]:
    """Reads a file of named data (`.ptd`): `pteron.Tensor` and `bytes` by key. With `keys`, only these entries are read."""
    return _pteron.load_data(source, None if keys is None else list(keys), progress)


@dataclass(frozen=True)
class WeightSet:
    """A weight that was set: its type and sizes, and the number of tensors that use it."""

    layout: str
    tensors: int
    lost: Tuple[str, ...] = ()


def _task_json(task: Union[Path, Mapping[str, Any]]) -> str:
    if not isinstance(task, (str, os.PathLike)):
        return json.dumps(dict(task))
    with open(task, encoding="utf-8") as file:
        return file.read()


def set_task(
    source: Source,
    task: Union[Path, Mapping[str, Any]],
    output: Path,
    *,
    strict: bool = False,
    progress: Optional[Progress] = None,
) -> None:
    """Stores task metadata in a program: a mapping such as `{"labels": ["cat", "dog"], "license": "MIT"}`, or a JSON file. It
    replaces what the program has; `Module.task` returns it. The output may be the file itself."""
    _pteron.set_task(source, _task_json(task), output, strict, progress)


def set_weight(
    source: Source,
    name: str,
    array: Any,
    output: Path,
    *,
    strict: bool = False,
    progress: Optional[Progress] = None,
) -> WeightSet:
    """Replaces the values of a weight of a program or a `.ptd` by an array of the same sizes and type, or by a `.npy` file. The
    output may be the file itself."""
    if isinstance(array, (str, os.PathLike)):
        return parse(WeightSet, _pteron.set_weight(source, name, array, output, strict, progress))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "array.npy")
        _write_npy(path, _pteron.Tensor(array))
        return parse(WeightSet, _pteron.set_weight(source, name, path, output, strict, progress))


_NPY = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    **{f"{kind}{size * 8}": f"{kind[0]}{size}" for kind in ("int", "uint", "float") for size in (2, 4, 8)},
}


def _write_npy(path: str, tensor: _pteron.Tensor) -> None:
    code = _NPY.get(tensor.dtype)
    if code is None:
        raise InputError(f"an array of {tensor.dtype} cannot be a .npy file, by which weights are set")
    code = code if code[0] == "|" else ("<" if sys.byteorder == "little" else ">") + code
    header = repr({"descr": code, "fortran_order": False, "shape": tuple(tensor.shape)})
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + tensor.tobytes())


@dataclass(frozen=True)
class Part:
    """A part of a file: its path in the output folder, a description, its byte range in the file, and its name."""

    path: str
    what: str
    bytes: Dict[str, int]
    name: Optional[str] = None


def extract(
    source: Source,
    folder: Optional[Path] = None,
    *,
    kinds: Sequence[str] = (),
    names: Optional[Sequence[str]] = None,
    progress: Optional[Progress] = None,
) -> Tuple[Part, ...]:
    """Lists parts of a program or a `.ptd`, and writes them to a folder if one is given: tensors as NumPy arrays, others unchanged.
    `kinds` are some of `segments`, `delegates`, `named_data` and `constants`; if empty, all but segments. In `names`, `*` stands for
    any characters, `?` for one."""
    text = _pteron.extract(source, folder, list(kinds), None if names is None else list(names), progress)
    return tuple(record(Part, values) for values in json.loads(text))


def bundle(
    source: Source,
    inputs: Optional[Sequence[Any]],
    output: Path,
    *,
    method: Optional[str] = None,
    data: Sequence[Path] = (),
    limits: Optional[Limits] = None,
) -> int:
    """Adds a test case to a program or a bundled program, and writes a bundled program (`.bpte`). The case has these inputs, or
    zeros, and the outputs of the method as written. Returns the number of cases of the method. The output may be the file itself."""
    given = None if inputs is None else tuple(inputs)
    return _pteron.bundle(source, given, method, output, {"data": list(data), "limits": limits})


class Report:
    """The page of a report in a file, which notebooks show."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<pteron.tools.Report {self.path!r}>"

    def _repr_html_(self) -> str:
        import html

        with open(self.path, encoding="utf-8") as file:
            page = html.escape(file.read(), quote=True)
        return f'<iframe sandbox="allow-scripts" style="width: 100%; height: 600px; border: 0" srcdoc="{page}"></iframe>'


def report(source: Source, output: Path, *, data: Sequence[Path] = ()) -> Report:
    """Writes a self-contained page (`.html`) that shows a program, weights, an ETDump or a BEF program."""
    _pteron.report(source, output, {"data": list(data)})
    return Report(output)


def translate(
    source: Source, *, optional_sections: bool = True, locations: bool = True, generic: bool = False
) -> Union[bytes, str]:
    """Translates MLIR text (the path of a `.mlir` file) to the bytes of a BEF program, or a BEF program to text."""
    return _pteron.translate(source, (optional_sections, locations, generic))


@dataclass(frozen=True)
class CompiledDelegate:
    """A part of a method that is delegated to a backend."""

    backend: str
    operators: Dict[str, int]
    payload_bytes: int
    named_bytes: int


@dataclass(frozen=True)
class QuantizedLayer:
    """A matrix product or convolution that was quantized."""

    name: str
    operator: str
    weight_error: float


@dataclass(frozen=True)
class FloatNode:
    """A product, convolution or embedding that was not quantized, and the reason."""

    name: str
    operator: str
    reason: str


@dataclass(frozen=True)
class NarrowWeight:
    """A weight that is stored in fewer bits than float32: its bytes in float32 and as stored, and the relative error."""

    name: str
    bytes: Tuple[int, ...]
    error: float


@dataclass(frozen=True)
class WideWeight:
    """A weight that stays float32 although others are stored in fewer bits, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class QuantizationReport:
    """A quantized program on the samples of the calibration, beside the float program: `multiplications` are those that are
    quantized and all, `bytes` and `seconds` (the median of a run) those of the float program and of the quantized one."""

    samples: int
    outputs: Tuple[ComparedOutput, ...]
    kept: Tuple[str, ...]
    multiplications: Tuple[int, ...]
    bytes: Tuple[int, ...]
    seconds: Tuple[float, ...]


@dataclass(frozen=True)
class LeftNodes:
    """Nodes that no backend took, and the reason of the last backend that was asked."""

    operator: str
    nodes: int
    reason: str


@dataclass(frozen=True)
class CompiledMethod:
    """A compiled method."""

    name: str
    operators: Dict[str, int]
    arena_bytes: int
    constant_bytes: int
    delegates: Tuple[CompiledDelegate, ...]
    quantized: Tuple[QuantizedLayer, ...]
    float: Tuple[FloatNode, ...]
    narrow_weights: Tuple[NarrowWeight, ...]
    wide_weights: Tuple[WideWeight, ...]
    left: Tuple[LeftNodes, ...]


@dataclass(frozen=True)
class Compiled(Readable):
    """A program that was compiled. `program` has its bytes, unless they were written to a file."""

    file_bytes: int
    methods: Tuple[CompiledMethod, ...]
    measured: Optional[QuantizationReport] = None
    program: bytes = field(default=b"", repr=False)

    def _sections(self) -> Iterator[Section]:
        yield Section(f"a program of {self.file_bytes:,} bytes")
        for method in self.methods:
            title = f"method {method.name}: {method.constant_bytes:,} bytes of constants, {method.arena_bytes:,} bytes of memory"
            yield Section(title, ("operator", "calls"), list(method.operators.items()))
            delegates = [(d.backend, sum(d.operators.values()), d.payload_bytes + d.named_bytes) for d in method.delegates]
            if delegates:
                yield Section("delegates", ("backend", "operators", "bytes"), delegates)
            if method.left:
                yield Section("not delegated", ("operator", "nodes", "reason"), [(l.operator, l.nodes, l.reason) for l in method.left])
            if method.quantized:
                layers = [(layer.name, layer.operator, layer.weight_error) for layer in method.quantized]
                yield Section("quantized", ("layer", "operator", "weight error"), layers)
            if method.narrow_weights:
                weights = [(weight.name, weight.bytes[1], weight.error) for weight in method.narrow_weights]
                yield Section("stored in fewer bits", ("weight", "bytes", "error"), weights)
            if method.wide_weights:
                yield Section("stored as float32", ("weight", "reason"), [(w.name, w.reason) for w in method.wide_weights])


def compile(
    source: Union[Source, "_pteron.Graph", Sequence["_pteron.Graph"]],
    output: Optional[Path] = None,
    *,
    backends: Sequence[str] = (),
    native: bool = False,
    all_operators: bool = False,
    quantize: Optional[str] = None,
    weights: Optional[str] = None,
    calibrate: Optional[Iterable[Sequence[Any]]] = None,
    min_sqnr: Optional[float] = None,
    min_agreement: Optional[float] = None,
    keep_float: Sequence[str] = (),
    external_data: Optional[Path] = None,
    data: Sequence[Path] = (),
    methods: Sequence[str] = (),
    source_frames: bool = False,
    alignment: int = 16,
    segment_alignment: Optional[int] = None,
    constant_alignment: Optional[int] = None,
    sizes: Optional[Mapping[str, Union[int, Tuple[int, int]]]] = None,
    task: Union[None, Path, Mapping[str, Any]] = None,
) -> Compiled:
    """Compiles a torch.export archive (`.pt2`) or graphs, or recompiles a program (`.pte`).

    Args:
        source: The archive or the program, as `pteron.load` takes it; or a `pteron.Graph`, or several, one for each method.
        output: The file to write; if None, the result has the program's bytes in `program`.
        backends: The backends to delegate to, in order of preference: `bef`, `xnnpack`.
        native: Whether the backend `bef` also stores weights packed for this kind of machine.
        all_operators: Whether the program may call every operator of Pteron, and not only those of the reference runtime.
        quantize: `int8` with `calibrate`, `dynamic-int8`, or `8da4w[:GROUP]`.
        weights: The type in which the weights of layers and embeddings are stored that are float32 otherwise: `f16`, `bf16`, or
            `int8` with a scale for each output. The program computes in float32.
        calibrate: Sample calls to find value ranges and to measure the program beside the float one: a sequence of inputs for each call.
        min_sqnr: Keep as many nodes in float as it takes for each output to have this signal-to-noise ratio, in decibels, on
            the calls of `calibrate`.
        min_agreement: The same until the largest element of this share of the rows of each output stays at its position.
        keep_float: Nodes that are not quantized.
        external_data: A `.ptd` file to write weights to.
        data: `.ptd` files with external weights of a program.
        methods: The models of an archive, or the graphs, to compile; if empty, all of them.
        source_frames: Whether source locations are kept.
        alignment: The alignment of tensors in memory, in bytes. Alignments are powers of two.
        segment_alignment: The alignment of the file's segments, and of those of `external_data`; if None, that of the program
            that is recompiled, or 128.
        constant_alignment: The alignment of constants in their segment; if None, that of the program that is recompiled, or 16.
        sizes: Dynamic sizes to fix (`{"x.0": 1}`) or to bound (`{"x.1": (16, 512)}`), by symbol or dimension of an input.
        task: The task metadata that the program stores, as for `set_task`; if None, that of the source.
    """
    lowering = {
        "backends": list(backends),
        "native": native,
        "all_operators": all_operators,
        "quantize": quantize,
        "weights": weights,
        "min_sqnr": min_sqnr,
        "min_agreement": min_agreement,
        "keep_float": list(keep_float),
        "external_data": external_data,
        "data": list(data),
        "methods": list(methods),
        "source_frames": source_frames,
        "alignment": alignment,
        "segment_alignment": segment_alignment,
        "constant_alignment": constant_alignment,
        "sizes": [(name, *(size if isinstance(size, tuple) else (size, size))) for name, size in (sizes or {}).items()],
        "task": None if task is None else _task_json(task),
    }
    samples = None if calibrate is None else [tuple(sample) for sample in calibrate]
    text, program = _pteron.compile_to(source_of(source), output, lowering, samples)
    return replace(parse(Compiled, text), program=program or b"")


def quantize(
    source: Union[Source, "_pteron.Graph", Sequence["_pteron.Graph"]],
    output: Optional[Path] = None,
    scheme: str = "int8",
    calibrate: Optional[Iterable[Sequence[Any]]] = None,
    **options: Any,
) -> Compiled:
    """Compiles and quantizes as `compile` does: `int8` with `calibrate`, `dynamic-int8`, or `8da4w[:GROUP]`."""
    return compile(source, output, quantize=scheme, calibrate=calibrate, **options)


def retarget(source: Source, output: Optional[Path] = None, backends: Sequence[str] = (), **options: Any) -> Compiled:
    """Recompiles a program for other backends, or for none, without its source, as `compile` does."""
    return compile(source, output, backends=backends, **options)


@dataclass(frozen=True)
class BefRun:
    """The result of running a BEF program: exit code 0 or 1, returned values and output, and errors with their locations."""

    exit_code: int
    output: str
    errors: str


def run_bef(source: Source, functions: Sequence[str] = (), *, threads: Optional[int] = None) -> BefRun:
    """Runs functions of a BEF program, such as `f` or `g(1, 2.5)`, or all that take no arguments, as the reference's executor
    does; on `threads` threads in addition to the waiting one."""
    return BefRun(*_pteron.run_bef(source, list(functions), threads))


@dataclass(frozen=True)
class BefFunction:
    """A function of a BEF program: its kind (`async`, `sync` or `native`), and its argument and result types."""

    name: str
    kind: str
    arguments: Tuple[str, ...]
    results: Tuple[str, ...]


class BefModule:
    """A BEF program, whose functions are called by name."""

    def __init__(self, source: Source, *, threads: Optional[int] = None) -> None:
        text = _pteron.bef_functions(source)
        if text is None:
            raise InputError(f"{source if isinstance(source, (str, os.PathLike)) else 'the file'} is no BEF program")
        self._source = source
        self._threads = threads
        functions = (record(BefFunction, values) for values in json.loads(text)["functions"])
        self.functions: Dict[str, BefFunction] = {function.name: function for function in functions if function.name}

    @property
    def method_names(self) -> List[str]:
        """The names of the functions."""
        return list(self.functions)

    def method(self, name: str) -> Callable[..., BefRun]:
        """A function, which is called with numbers. Its errors are raised as `ExecuteError`."""
        if name not in self.functions:
            raise NoSuchMethodError(f"there is no function `{name}`: {', '.join(self.functions)}", method=name)

        def call(*arguments: Union[int, float]) -> BefRun:
            written = f"{name}({', '.join(map(repr, arguments))})" if arguments else name
            done = run_bef(self._source, [written], threads=self._threads)
            if done.exit_code != 0:
                raise ExecuteError(done.errors.strip() or f"function `{name}` failed", method=name)
            return done

        return call


def load_bef(source: Source, *, threads: Optional[int] = None) -> BefModule:
    """Opens a BEF program: the path of a `.bef` file, or its bytes; `threads` as in `run_bef`."""
    return BefModule(source, threads=threads)
