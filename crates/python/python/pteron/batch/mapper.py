"""The mapper, which executes a program over the rows of tables."""

import json
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping as _Mapping
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from .. import _pteron
from .._pteron import ArrowArray, ArrowTable
from ..errors import FileError, InputError, RowError, RowFailure
from . import identity, tables
from .pictures import Pictures
from .program import Column, Inputs, OpenProgram

Path = Union[str, "os.PathLike[str]"]

Decode = Union[Pictures, Callable[[Any], Any]]


@dataclass(frozen=True)
class Counters:
    """What a mapper has done in this process: rows given to it, rows without a result, calls, and seconds in them."""

    rows: int = 0
    failed: int = 0
    batches: int = 0
    seconds: float = 0.0


class Mapper:
    """Maps tables through a program: a call returns the table with the program's outputs as additional columns.

    It is called with a dict of arrays or lists, a pandas or Polars data frame, a DuckDB relation, or any object that has
    `__arrow_c_array__` (a batch) or `__arrow_c_stream__` (a table), and returns the same kind. Rows are executed in batches as large
    as the program allows, along the first dimension of its tensors if they all have the same; if the program fixes the batch size,
    batches are padded with copies of a row. Rows of different sizes are executed in separate batches.

    The program is opened, and its columns and sizes checked, when the mapper is made. A mapper is pickled as the absolute path, the
    file's digest and the options: a process that finds another file there fails. With `mmap`, all processes of a machine share the
    pages of the file.

    Args:
        source: The path of a program, or its bytes.
        method: The method; if None, the only one, or `forward`.
        inputs: The columns for the inputs: one name, names in the order of the inputs, or a mapping from inputs' names or positions
            to columns. Several columns of scalars make one input if a list of names stands in place of a name. If None, the columns
            with the names of the inputs, or the only column.
        outputs: The names of the output columns; if None, those of the program, or `output_0` and so on.
        keep: The columns of the input table that are kept: all, none, or those with these names.
        on_error: How failed rows are handled: `raise` raises a `pteron.errors.RowError` that lists the first of them; with `null`
            their outputs are null (None in dicts and data frames), and the column `error_column` has the reasons.
        error_column: The name of that column, which is null for rows with a result.
        key: A column by which errors name rows, beside their index.
        exact: Whether a row must have exactly the sizes of its input. A program does not say which sizes of a dynamic input may
            change; if False, rows may be smaller in any of them.
        nonfinite: `error` if a row with NaN or infinity in a floating-point input fails: without it, a null that became NaN in
            NumPy or pandas gives a result. `allow` gives such values to the program.
        lists: The Arrow type for rows of several elements: `any` for variable-size lists, or `fixed` for fixed-size lists.
        batched: Whether rows are batched; if None, they are if all tensors have the same first dimension.
        batch_size: The maximum number of rows of a batch, if the program allows different numbers.
        check: Whether a row of a batch is once also executed alone, to check that the other rows do not affect its results.
        decode: What cells of the input columns are decoded by: `Pictures`, a function, or a mapping from columns to these. A cell for which it raises an exception fails. It is pickled with the mapper.
        top: The number of largest elements of the only output that are kept: the output column has their indices, or labels, and
            the column with `_score` added to its name has their values; lists, if `top` is more than 1.
        labels: The labels of the elements of the only output: a sequence, or the path of a text file with one in each line. Implies
            `top=1`.
        progress: A function that is called with the mapper's `Counters` after each batch.
        mmap: Whether the file is mapped instead of read. A mapped file must not be written to or truncated while it is in use.
        digest: The SHA-256 that the file must have, as `Mapper.digest` has it.
        follow: Whether another file at the path is accepted, by which the rows of one job may be those of two programs.
        options: Further options of `pteron.load`; `threads` is 1 unless given, since engines call mappers in a process or thread for
            each core.
    """

    def __init__(
        self,
        source: Union[Path, bytes, bytearray, memoryview],
        *,
        method: Optional[str] = None,
        inputs: Inputs = None,
        outputs: Union[None, str, Sequence[str]] = None,
        keep: Union[bool, str, Sequence[str]] = True,
        on_error: str = "raise",
        error_column: str = "error",
        key: Optional[str] = None,
        exact: bool = True,
        nonfinite: str = "error",
        lists: str = "any",
        batched: Optional[bool] = None,
        batch_size: Optional[int] = None,
        check: bool = True,
        decode: Union[None, Decode, Mapping[str, Decode]] = None,
        top: Optional[int] = None,
        labels: Union[None, Path, Sequence[str]] = None,
        progress: Optional[Callable[[Counters], None]] = None,
        mmap: bool = True,
        digest: Optional[str] = None,
        follow: bool = False,
        **options: Any,
    ) -> None:
        for name, value, known in (
            ("on_error", on_error, ("raise", "null")),
            ("nonfinite", nonfinite, ("error", "allow")),
            ("lists", lists, ("any", "fixed")),
        ):
            if value not in known:
                raise ValueError(f"{name} is {' or '.join(known)}, not `{value}`")
        if follow and digest is not None:
            raise ValueError("a file that follow=True accepts has no digest")
        if isinstance(source, (bytearray, memoryview)):
            source = bytes(source)
        self._source: Union[str, bytes] = source if isinstance(source, bytes) else os.path.abspath(source)
        if isinstance(labels, (str, os.PathLike)):
            with open(labels, encoding="utf-8") as file:
                labels = file.read().splitlines()
        load = {"mmap": mmap and isinstance(self._source, str), "threads": 1, **options}
        if load.get("data"):
            load["data"] = _absolute(load["data"])
        if load.get("cache"):
            load["cache"] = os.path.abspath(load["cache"])
        self._files = [self._source] if isinstance(self._source, str) else []
        self._files += [data for data in load.get("data") or []]
        self._options: Dict[str, Any] = {
            "method": method,
            "inputs": inputs,
            "outputs": outputs,
            "keep": keep,
            "on_error": on_error,
            "error_column": error_column,
            "key": key,
            "exact": exact,
            "nonfinite": nonfinite,
            "lists": lists,
            "batched": batched,
            "batch_size": batch_size,
            "check": check,
            "decode": decode,
            "top": 1 if top is None and labels is not None else top,
            "labels": None if labels is None else tuple(labels),
            "progress": progress,
            "digest": digest,
            "follow": follow,
            **load,
        }
        self._lock = threading.Lock()
        self._counters = Counters()
        before = identity.states(self._files)
        self._module = _pteron.Module(self._source, **load)
        self._opened = OpenProgram(self._module, self._options)
        if self._files and not follow:
            if digest is None:
                self._options["digest"] = identity.digest(self._files)
            else:
                identity.check(self._files, digest)
            if identity.states(self._files) != before:
                raise FileError(f"{self._files[0]}: it was replaced while it was opened", file=self._files[0])
        self._pid = os.getpid()
        self._names = self._made()

    def __reduce__(self) -> Any:
        return _again, (self._source, self._options)

    def __repr__(self) -> str:
        return f"<pteron.batch.Mapper of {self._module!r}>"

    def _made(self) -> List[str]:
        """The names of the output columns."""
        names = [str(column.name) for column in self._opened.outputs]
        top, labels = self._options["top"], self._options["labels"]
        if top is None:
            return names
        if len(names) != 1:
            raise InputError(f"top and labels are of one output, the program has {len(names)}")
        column = self._opened.outputs[0]
        count = 1
        for size in column.row:
            count *= size
        if not 1 <= top <= count:
            raise InputError(f"top is 1 to {count}, the number of elements of output `{names[0]}`, not {top}")
        if labels is not None and len(labels) != count:
            raise InputError(f"output `{names[0]}` has {count} elements, and there are {len(labels)} labels")
        return [names[0], f"{names[0]}_score"]

    def _open(self) -> OpenProgram:
        if self._pid != os.getpid():
            # After a fork, the program is opened again by its path.
            if self._options["digest"] is not None:
                identity.check(self._files, self._options["digest"])
            self._pid = os.getpid()
        return self._opened

    @property
    def inputs(self) -> Tuple[Column, ...]:
        """The input columns."""
        return self._opened.inputs

    @property
    def outputs(self) -> Tuple[Column, ...]:
        """The program's outputs as columns, with their names."""
        return self._opened.outputs

    @property
    def batch_sizes(self) -> Tuple[int, ...]:
        """The batch sizes that are executed; empty if each row is executed alone."""
        return self._opened.batch_sizes

    @property
    def digest(self) -> Optional[str]:
        """The SHA-256 of the program's file, or of the digests of it and of its `.ptd` files; None for bytes, or with `follow`."""
        digest: Optional[str] = self._options["digest"]
        return digest

    @property
    def counters(self) -> Counters:
        """What the mapper has done in this process."""
        return self._counters

    def needed(self, names: Sequence[str]) -> List[str]:
        """Those of a table's columns that are given to the program or kept."""
        given = tuple(names)
        chosen = {i for parts in self._opened.chosen(given) for i in parts}
        chosen.update(self._opened.kept(given, tuple(self._columns())))
        if self._options["key"] is not None:
            chosen.add(tables.position(given, self._options["key"], "the key"))
        return [given[i] for i in sorted(chosen)]

    def failure_columns(self, names: Sequence[str]) -> List[str]:
        """The column of a result that has the reasons of failed rows, if there is one."""
        return [name for name in names if self._options["on_error"] == "null" and name == self._options["error_column"]]

    def failures(self, result: Any) -> int:
        """The number of rows without a result in a batch of PyArrow that the mapper has returned."""
        return sum(len(result[name]) - result[name].null_count for name in self.failure_columns(result.schema.names))

    def described(self) -> Dict[str, Any]:
        """The options that the results depend on, for comparison with those of another mapper."""
        names = ("method", "inputs", "outputs", "keep", "on_error", "error_column", "exact", "nonfinite", "lists", "batched", "top", "labels")
        described = {name: self._options[name] for name in names}
        decode = self._options["decode"]
        each = decode.items() if isinstance(decode, _Mapping) else [("", decode)]
        described["decode"] = {name: _named(function) for name, function in each if function is not None}
        as_stored: Dict[str, Any] = json.loads(json.dumps(described))
        return as_stored

    def __call__(self, batch: Any) -> Any:
        """Returns the table with the outputs as columns."""
        if isinstance(batch, _Mapping):
            return self._of_arrays(batch)
        if tables.is_pandas(batch):
            return self._of_pandas(batch)
        if hasattr(batch, "__arrow_c_array__"):
            return tables.like(batch, self._of_batch(ArrowArray.take(batch), 0))
        if hasattr(batch, "__arrow_c_stream__"):
            return tables.like(batch, self._of_stream(batch))
        raise TypeError(
            f"a {type(batch).__name__} is no table: give a dict of arrays, a data frame, or what has __arrow_c_array__ or "
            "__arrow_c_stream__"
        )

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Maps the tables of an iterator, as engines such as Spark's `mapInArrow` call functions."""
        for batch in batches:
            yield self(batch)

    def columns(self, *columns: Any) -> Any:
        """Returns the only output, or a struct of the outputs, for Arrow arrays that are the inputs in their order: the form in which
        engines call scalar functions."""
        given = [tables.array(column) for column in columns]
        names = [column.name or f"input {i}" for i, column in enumerate(self.inputs)]
        outputs, failed, total = self._run_arrow([[(name, column)] for name, column in zip(names, given)])
        if total and self._options["on_error"] == "raise":
            raise RowError(failed, len(given[0]), total)
        if self._options["on_error"] == "null":
            outputs.append(self._errors(len(given[0]) if given else 0, failed))
        result = outputs[0] if len(outputs) == 1 else ArrowArray.batch(len(outputs[0]), outputs)
        return tables.like(columns[0] if columns else None, result)

    def _count(self, rows: int, failed: int, started: float) -> None:
        with self._lock:
            old, seconds = self._counters, time.perf_counter() - started
            self._counters = Counters(old.rows + rows, old.failed + failed, old.batches + 1, old.seconds + seconds)
            counters = self._counters
        if self._options["progress"] is not None:
            self._options["progress"](counters)

    def _decoder(self, column: str, index: int) -> Optional[Callable[[Any], Any]]:
        """What decodes the cells of a column for the input with this index."""
        decode = self._options["decode"]
        found: Optional[Decode] = decode.get(column) if isinstance(decode, _Mapping) else decode
        if isinstance(found, Pictures):
            pictures, given = found, self.inputs[index]
            return lambda cell: pictures.row(cell, given)
        return found

    def _run_arrow(
        self, given: Sequence[Sequence[Tuple[str, ArrowArray]]], key: Optional[ArrowArray] = None
    ) -> Tuple[List[ArrowArray], List[RowFailure], int]:
        """The outputs for the columns of each input, and failures: all of them if they become a column, otherwise the first."""
        opened, started = self._open(), time.perf_counter()
        rows = len(given[0][0][1]) if given else 0
        undecodable: List[Tuple[int, Optional[str], str]] = []

        def decoded(name: str, column: ArrowArray, index: int) -> Any:
            decode = self._decoder(name, index)
            return column if decode is None else tables.decoded(decode, name, tables.cells(column), undecodable)

        outputs, found = opened.runner.run_arrow(
            [[(name, decoded(name, column, i)) for name, column in parts] for i, parts in enumerate(given)],
            self._names,
            self._options["lists"],
            self._options["top"],
            self._options["labels"],
        )
        failed = self._failures(found, undecodable, None if key is None else tables.cell_of(key))
        self._count(rows, len(found), started)
        return outputs, failed, len(found)

    def _failures(
        self,
        found: Sequence[Tuple[int, Optional[str], str]],
        undecodable: Sequence[Tuple[int, Optional[str], str]],
        key: Optional[Callable[[int], Any]],
    ) -> List[RowFailure]:
        if self._options["on_error"] == "raise":
            found = found[: RowError.MAX_ROWS]
        reasons = {(row, column): reason for row, column, reason in undecodable}
        return [
            RowFailure(row, column, _short(reasons.get((row, column), reason)), None if key is None else key(row))
            for row, column, reason in found
        ]

    def _texts(self, rows: int, failed: Sequence[RowFailure]) -> List[Optional[str]]:
        texts: List[Optional[str]] = [None] * rows
        for failure in failed:
            texts[failure.row] = failure.text()
        return texts

    def _errors(self, rows: int, failed: Sequence[RowFailure]) -> ArrowArray:
        return ArrowArray.texts(self._options["error_column"], self._texts(rows, failed))

    def _columns(self) -> List[str]:
        """The names of the columns that are made."""
        return self._names + ([self._options["error_column"]] if self._options["on_error"] == "null" else [])

    def _of_batch(self, batch: ArrowArray, first: int) -> ArrowArray:
        opened = self._open()
        columns = batch.columns()
        names = tuple(column.name for column in columns)
        kept = [columns[i] for i in opened.kept(names, tuple(self._columns()))]
        key = self._options["key"]
        keys = None if key is None else columns[tables.position(names, key, "the key")]
        chosen = [[(names[i], columns[i]) for i in parts] for parts in opened.chosen(names)]
        outputs, failed, total = self._run_arrow(chosen, keys)
        if self._options["on_error"] == "null":
            outputs.append(self._errors(len(batch), failed))
        elif total:
            raise RowError([failure.moved(first) for failure in failed], first + len(batch), total)
        return ArrowArray.batch(len(batch), kept + outputs)

    def _of_stream(self, table: Any) -> ArrowTable:
        stream = _pteron.ArrowStream.take(table)
        results: List[ArrowArray] = []
        first, total = 0, 0
        failures: List[RowFailure] = []
        for batch in stream:
            try:
                result = self._of_batch(batch, first)
                if not total:
                    results.append(result)
            except RowError as error:
                failures += error.rows
                total += error.failed
                # A result with gaps is of no use.
                results.clear()
            first += len(batch)
        if total:
            raise RowError(failures, first, total)
        if not results:
            results.append(self._of_batch(stream.empty(), 0))
        return ArrowTable(results)

    def _run_arrays(self, names: Tuple[str, ...], column: Callable[[str], Any]) -> Tuple[List[Any], List[Optional[str]]]:
        """The outputs as arrays or lists, and the reasons of failed rows. Failures are raised if they do not become a column."""
        opened, started = self._open(), time.perf_counter()
        undecodable: List[Tuple[int, Optional[str], str]] = []

        def given(name: str, index: int) -> Any:
            return tables.decoded(self._decoder(name, index), name, tables.rows(column(name)), undecodable)

        chosen = [[(names[i], given(names[i], at)) for i in parts] for at, parts in enumerate(opened.chosen(names))]
        outputs, found = opened.runner.run_arrays(chosen, self._options["top"])
        rows = len(chosen[0][0][1])
        key = self._options["key"]
        if key is not None:
            keys = column(names[tables.position(names, key, "the key")])
        failed = self._failures(found, undecodable, None if key is None else tables.cell_of(keys))
        self._count(rows, len(found), started)
        if found and self._options["on_error"] == "raise":
            raise RowError(failed, rows, len(found))
        labels = self._options["labels"]
        if labels is not None:
            outputs[0] = tables.labelled(outputs[0], labels)
        return outputs, self._texts(rows, failed)

    def _of_arrays(self, batch: Mapping[str, Any]) -> Dict[str, Any]:
        opened, names = self._open(), tuple(batch)
        kept = opened.kept(names, tuple(self._columns()))
        outputs, texts = self._run_arrays(names, lambda name: batch[name])
        result: Dict[str, Any] = {names[i]: batch[names[i]] for i in kept}
        numpy = sys.modules.get("numpy")
        for name, output in zip(self._names, outputs):
            result[name] = output if numpy is None else tables.numpy_column(numpy, output)
        if self._options["on_error"] == "null":
            result[self._options["error_column"]] = texts if numpy is None else numpy.array(texts, dtype=object)
        return result

    def _of_pandas(self, frame: Any) -> Any:
        opened, names = self._open(), tuple(map(str, frame.columns))
        kept = opened.kept(names, tuple(self._columns()))
        positions = {name: i for i, name in enumerate(names)}
        outputs, texts = self._run_arrays(names, lambda name: frame.iloc[:, positions[name]])
        result = frame.iloc[:, kept].copy(deep=False)
        for name, output in zip(self._names, outputs):
            result[name] = tables.pandas_column(output)
        if self._options["on_error"] == "null":
            result[self._options["error_column"]] = tables.pandas_column(texts)
        return result


def _named(decode: Any) -> str:
    """What tells one `decode` from another in every process."""
    return repr(decode) if isinstance(decode, Pictures) else f"{decode.__module__}.{decode.__qualname__}"


def _absolute(paths: Any) -> Any:
    """Paths for workers that run in another folder."""
    if isinstance(paths, (str, os.PathLike)):
        return [os.path.abspath(paths)]
    return [os.path.abspath(path) for path in paths]


def _short(reason: str) -> str:
    """A reason of a length that a table and an error can hold for each row."""
    return reason if len(reason) <= 400 else reason[:399] + "…"


def _again(source: Union[str, bytes], options: Dict[str, Any]) -> Mapper:
    """Recreates a pickled mapper. Engines pickle one for each task; a process shares one instance."""
    return _cached(source, options)


_mappers: "OrderedDict[Any, Mapper]" = OrderedDict()
_mappers_lock = threading.Lock()


def _cached(source: Union[str, bytes], options: Mapping[str, Any]) -> Mapper:
    """The mapper of this source and these options: the last few stay open."""
    files = [source, *(options.get("data") or [])] if isinstance(source, str) else []
    # A replaced file is another program.
    key = (source, identity.states([str(file) for file in files]), _hashable(options))
    try:
        with _mappers_lock:
            mapper = _mappers.get(key)
            if mapper is not None:
                _mappers.move_to_end(key)
                return mapper
    except TypeError:
        # An option that is not hashable.
        return Mapper(source, **options)
    mapper = Mapper(source, **options)
    with _mappers_lock:
        mapper = _mappers.setdefault(key, mapper)
        while len(_mappers) > 4:
            _mappers.popitem(last=False)
    return mapper


def _hashable(value: Any) -> Any:
    if isinstance(value, _Mapping):
        return (dict, *((name, _hashable(item)) for name, item in value.items()))
    return (list, *map(_hashable, value)) if isinstance(value, (list, tuple)) else value


def map_batch(batch: Any, source: Path, **options: Any) -> Any:
    """Returns a batch with a program's outputs as columns, as `Mapper` does. The last few programs stay open. A replaced file is
    another program, unless `digest=` says which one is meant."""
    return _cached(os.path.abspath(source), options)(batch)
