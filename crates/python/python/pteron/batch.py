"""Executes rows of tables in batches, for engines that process tables in parts: Ray Data, Spark, Daft, DataFusion and others.

>>> import pteron.batch
>>> model = pteron.batch.Mapper("examples/digits/digits.pte", inputs="picture", outputs="scores")
>>> result = model({"id": [7, 8], "picture": [[0.0] * 64, [0.5] * 64]})
>>> result["id"], result["scores"].shape
([7, 8], (2, 10))
"""

import functools
import json
import os
import sys
import threading
from collections.abc import Mapping as _Mapping
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _pteron
from ._pteron import ArrowArray, ArrowTable
from ._records import record
from .errors import InputError, RowError, RowFailure

__all__ = ["ArrowArray", "ArrowTable", "Column", "Mapper", "RowError", "RowFailure", "map_batch"]

Path = Union[str, "os.PathLike[str]"]
Inputs = Union[None, str, Sequence[str], Mapping[Union[str, int], str]]


@dataclass(frozen=True)
class Column:
    """An input or output of a method as a column: its element type, and the sizes of a row, which are upper bounds if dynamic."""

    dtype: str
    row: Tuple[int, ...]
    is_dynamic: bool
    name: Optional[str] = None


class Mapper:
    """Maps tables through a program: a call returns the table with the program's outputs as additional columns.

    It is called with a dict of arrays or lists, or with any object that has `__arrow_c_array__` (a batch) or `__arrow_c_stream__`
    (a table), and returns the same kind. Rows are executed in batches as large as the program allows, along the first dimension of
    its tensors if they all have the same; if the program fixes the batch size, batches are padded with copies of a row. Rows of
    different sizes are executed in separate batches.

    A mapper is pickled as the path and the options, and opened in each process on the first call; with `mmap`, all processes of a
    machine share the pages of the file.

    Args:
        source: The path of a program, or its bytes.
        method: The method; if None, the only one, or `forward`.
        inputs: The columns for the inputs: one name, names in the order of the inputs, or a mapping from inputs' names or positions
            to columns. If None, the columns with the names of the inputs, or the only column.
        outputs: The names of the output columns; if None, those of the program, or `output_0` and so on.
        keep: The columns of the input table that are kept: all, none, or those with these names.
        on_error: How failed rows are handled: `raise` raises a `pteron.errors.RowError` that lists all of them; with `null` their
            outputs are null (in dicts NaN, or 0 for types without NaN), and the column `error_column` has the reasons.
        error_column: The name of that column, which is null for rows with a result.
        lists: The Arrow type for rows of several elements: `fixed` for fixed-size lists, or `any` for variable-size lists.
        batched: Whether rows are batched; if None, they are if all tensors have the same first dimension.
        batch_size: The maximum number of rows of a batch, if the program allows different numbers.
        check: Whether a row of a batch is once also executed alone, to check that the other rows do not affect its results.
        mmap: Whether the file is mapped instead of read. A mapped file must not be written to or truncated while it is in use.
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
        keep: Union[bool, Sequence[str]] = True,
        on_error: str = "raise",
        error_column: str = "error",
        lists: str = "fixed",
        batched: Optional[bool] = None,
        batch_size: Optional[int] = None,
        check: bool = True,
        mmap: bool = True,
        **options: Any,
    ) -> None:
        if on_error not in ("raise", "null"):
            raise ValueError(f"on_error is raise or null, not `{on_error}`")
        if lists not in ("fixed", "any"):
            raise ValueError(f"lists is fixed or any, not `{lists}`")
        if isinstance(source, (bytearray, memoryview)):
            source = bytes(source)
        self._options: Dict[str, Any] = {
            "method": method,
            "inputs": inputs,
            "outputs": outputs,
            "keep": keep,
            "on_error": on_error,
            "error_column": error_column,
            "lists": lists,
            "batched": batched,
            "batch_size": batch_size,
            "check": check,
            "mmap": mmap and not isinstance(source, bytes),
            **options,
        }
        load = {"mmap": self._options["mmap"], "threads": 1, **options}
        self._module = _pteron.Module(source, **load)
        self._source: Union[str, bytes] = source if isinstance(source, bytes) else os.fspath(source)
        self._lock = threading.Lock()
        self._opened: Optional[_Opened] = None

    def __reduce__(self) -> Any:
        return _again, (self._source, self._options)

    def __repr__(self) -> str:
        return f"<pteron.batch.Mapper of {self._module!r}>"

    def _open(self) -> "_Opened":
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened
                if opened is None:
                    opened = self._opened = _Opened(self._module, self._options)
        return opened

    @property
    def inputs(self) -> Tuple[Column, ...]:
        """The input columns."""
        return self._open().inputs

    @property
    def outputs(self) -> Tuple[Column, ...]:
        """The output columns, with their names."""
        return self._open().outputs

    @property
    def batch_sizes(self) -> Tuple[int, ...]:
        """The batch sizes that are executed; empty if each row is executed alone."""
        return self._open().batch_sizes

    def __call__(self, batch: Any) -> Any:
        """Returns the table with the outputs as columns."""
        if isinstance(batch, _Mapping):
            return self._of_arrays(batch)
        if hasattr(batch, "__arrow_c_array__"):
            return _like(batch, self._of_batch(ArrowArray.take(batch), 0))
        if hasattr(batch, "__arrow_c_stream__"):
            return _like(batch, self._of_stream(batch))
        raise TypeError(
            f"a {type(batch).__name__} is no table: give a dict of arrays, or what has __arrow_c_array__ or __arrow_c_stream__"
        )

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Maps the tables of an iterator, as engines such as Spark's `mapInArrow` call functions."""
        for batch in batches:
            yield self(batch)

    def columns(self, *columns: Any) -> Any:
        """Returns the only output, or a struct of the outputs, for Arrow arrays that are the inputs in their order: the form in which
        engines call scalar functions."""
        opened = self._open()
        given = [ArrowArray.take(column) for column in columns]
        outputs, errors = self._run(opened, given, [f"input {i}" for i in range(len(given))], 0)
        outputs += errors
        result = outputs[0] if len(outputs) == 1 else ArrowArray.batch(len(outputs[0]), outputs)
        return _like(columns[0] if columns else None, result)

    def _run(
        self, opened: "_Opened", given: List[ArrowArray], names: Sequence[str], first: int
    ) -> Tuple[List[ArrowArray], List[ArrowArray]]:
        outputs, failures = opened.runner.run_arrow(given, opened.output_names, self._options["lists"])
        failed = _failures(failures, names, first)
        rows = len(given[0]) if given else 0
        if self._options["on_error"] == "raise":
            if failed:
                raise RowError(failed, first + rows)
            return outputs, []
        texts: List[Optional[str]] = [None] * rows
        for failure in failed:
            texts[failure.row - first] = failure.text()
        return outputs, [ArrowArray.texts(self._options["error_column"], texts)]

    def _of_batch(self, batch: ArrowArray, first: int) -> ArrowArray:
        opened = self._open()
        columns = batch.columns()
        names = [column.name for column in columns]
        chosen = opened.chosen(tuple(names))
        outputs, errors = self._run(opened, [columns[i] for i in chosen], [names[i] for i in chosen], first)
        made = opened.output_names + [error.name for error in errors]
        kept = [columns[i] for i in opened.kept(tuple(names), tuple(made))]
        return ArrowArray.batch(len(batch), kept + outputs + errors)

    def _of_stream(self, table: Any) -> ArrowTable:
        stream = _pteron.ArrowStream.take(table)
        results: List[ArrowArray] = []
        first = 0
        failures: List[RowFailure] = []
        for batch in stream:
            try:
                results.append(self._of_batch(batch, first))
            except RowError as error:
                failures += error.rows
            first += len(batch)
        if failures:
            raise RowError(failures, first)
        if not results:
            results.append(self._of_batch(stream.empty(), 0))
        return ArrowTable(results)

    def _of_arrays(self, batch: Mapping[str, Any]) -> Dict[str, Any]:
        opened = self._open()
        names = tuple(batch)
        chosen = [names[i] for i in opened.chosen(names)]
        outputs, found = opened.runner.run_arrays([(name, _rows(batch[name])) for name in chosen])
        rows = len(batch[chosen[0]])
        failed = _failures(found, chosen, 0)
        made = list(opened.output_names)
        if self._options["on_error"] == "raise":
            if failed:
                raise RowError(failed, rows)
        else:
            made.append(self._options["error_column"])
        result: Dict[str, Any] = {names[i]: batch[names[i]] for i in opened.kept(names, tuple(made))}
        numpy = sys.modules.get("numpy")
        for name, output in zip(opened.output_names, outputs):
            if numpy is not None and not isinstance(output, list):
                output = output.numpy()
            elif numpy is not None:
                cells = numpy.empty(len(output), dtype=object)
                cells[:] = [None if cell is None else cell.numpy() for cell in output]
                output = cells
            result[name] = output
        if self._options["on_error"] == "null":
            texts: List[Optional[str]] = [None] * rows
            for failure in failed:
                texts[failure.row] = failure.text()
            result[self._options["error_column"]] = texts if numpy is None else numpy.array(texts, dtype=object)
        return result


class _Opened:
    """The runner and the columns of an open program."""

    def __init__(self, module: _pteron.Module, options: Dict[str, Any]) -> None:
        self.runner = _pteron.BatchRunner(
            module, options["method"], options["batched"], options["batch_size"], options["check"]
        )
        described = json.loads(self.runner.describe())
        self.inputs: Tuple[Column, ...] = tuple(record(Column, values) for values in described["inputs"])
        self.batch_sizes: Tuple[int, ...] = tuple(described["batch_sizes"])
        outputs = options["outputs"]
        names = [values["name"] or f"output_{i}" for i, values in enumerate(described["outputs"])]
        if outputs is not None:
            given = [outputs] if isinstance(outputs, str) else list(outputs)
            if len(given) != len(names):
                raise InputError(f"the program has {len(names)} outputs, {len(given)} names are given for them")
            names = given
        self.output_names: List[str] = names
        for values, name in zip(described["outputs"], names):
            values["name"] = name
        self.outputs: Tuple[Column, ...] = tuple(record(Column, values) for values in described["outputs"])
        self.wanted: Inputs = options["inputs"]
        self.keep: Union[bool, Sequence[str]] = options["keep"]
        self.chosen: Callable[[Tuple[str, ...]], List[int]] = functools.lru_cache(maxsize=8)(self._chosen)
        self.kept: Callable[[Tuple[str, ...], Tuple[str, ...]], List[int]] = functools.lru_cache(maxsize=8)(self._kept)

    def _chosen(self, names: Tuple[str, ...]) -> List[int]:
        """The positions of the input columns in the table."""
        wanted: List[Optional[str]] = [column.name for column in self.inputs]
        if isinstance(self.wanted, str):
            wanted = [self.wanted]
        elif isinstance(self.wanted, _Mapping):
            for key, column in self.wanted.items():
                wanted[self._position(key)] = column
        elif self.wanted is not None:
            wanted = list(self.wanted)
        elif len(wanted) == 1 and len(names) == 1:
            wanted = [names[0]]
        if len(wanted) != len(self.inputs):
            raise InputError(f"the program has {len(self.inputs)} inputs, {len(wanted)} columns are named for them")
        there = ", ".join(names) or "no columns"
        for i, name in enumerate(wanted):
            if name is None or (name not in names and self.wanted is None):
                called = f"`{name}`" if name else "without a name"
                raise InputError(f"input {i} ({called}) is no column: say with inputs=[…] which is; the batch has {there}")
            if name not in names:
                raise InputError(f"there is no column `{name}`; the batch has {there}")
            if names.count(name) > 1:
                raise InputError(f"the batch has several columns `{name}`")
        return [names.index(name) for name in wanted if name is not None]

    def _position(self, key: Union[str, int]) -> int:
        names = [column.name for column in self.inputs]
        if isinstance(key, int) and 0 <= key < len(names):
            return key
        if isinstance(key, str) and key in names:
            return names.index(key)
        known = ", ".join(name or str(i) for i, name in enumerate(names))
        raise InputError(f"the program has no input `{key}`: {known}")

    def _kept(self, names: Tuple[str, ...], made: Tuple[str, ...]) -> List[int]:
        """The positions of the columns that are kept."""
        if isinstance(self.keep, bool):
            kept = list(range(len(names))) if self.keep else []
        else:
            missing = [name for name in self.keep if name not in names]
            if missing:
                raise InputError(f"there is no column `{missing[0]}` to keep; the batch has {', '.join(names)}")
            kept = [i for i, name in enumerate(names) if name in self.keep]
        twice = [names[i] for i in kept if names[i] in made]
        if twice:
            raise InputError(f"column `{twice[0]}` is both kept and made: name outputs with outputs=[…], or keep others")
        return kept


def _again(source: Union[str, bytes], options: Dict[str, Any]) -> Mapper:
    """Recreates a pickled mapper. Engines pickle one for each task; a process shares one instance."""
    return _cached(source, options)


def _cached(source: Union[str, bytes], options: Mapping[str, Any]) -> Mapper:
    state: Tuple[int, ...] = ()
    if isinstance(source, str):
        try:
            # A replaced file is another program.
            found = os.stat(source)
            state = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            return Mapper(source, **options)
    fixed = tuple(sorted((name, _hashable(value)) for name, value in options.items()))
    try:
        return _mapper(source, state, fixed)
    except TypeError:
        # An option that is not hashable.
        return Mapper(source, **options)


@functools.lru_cache(maxsize=4)
def _mapper(source: Union[str, bytes], state: Tuple[int, ...], options: Tuple[Tuple[str, Any], ...]) -> Mapper:
    return Mapper(source, **dict(options))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _failures(found: Sequence[Tuple[int, Optional[str], str]], names: Sequence[str], first: int) -> List[RowFailure]:
    return [RowFailure(first + row, column, reason) for row, column, reason in found]


def _rows(column: Any) -> Any:
    """A column for the extension module: arrays of objects become lists of rows."""
    dtype = getattr(column, "dtype", None)
    return list(column) if getattr(dtype, "kind", None) == "O" else column


def _like(given: Any, result: Any) -> Any:
    """Converts the result to PyArrow if the input is from PyArrow."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is None or not type(given).__module__.startswith("pyarrow"):
        return result
    if isinstance(result, ArrowTable):
        return pyarrow.table(result)
    return pyarrow.record_batch(result) if isinstance(given, pyarrow.RecordBatch) else pyarrow.array(result)


def map_batch(batch: Any, source: Path, **options: Any) -> Any:
    """Returns a batch with a program's outputs as columns, as `Mapper` does. The last few programs stay open."""
    return _cached(os.fspath(source), options)(batch)
