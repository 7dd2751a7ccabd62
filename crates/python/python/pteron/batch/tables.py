"""Tables and columns of other libraries. None of them is imported unless a table is from it."""

import importlib
import sys
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .. import _pteron
from .._pteron import ArrowArray, ArrowTable
from ..errors import InputError

Undecodable = List[Tuple[int, Optional[str], str]]


def _import(name: str) -> Any:
    return importlib.import_module(name)


def library(table: Any) -> str:
    """The name of the library that a table is from."""
    return type(table).__module__.partition(".")[0].lstrip("_")


def is_pandas(table: Any) -> bool:
    """Whether a table is a pandas data frame."""
    return library(table) == "pandas" and hasattr(table, "iloc")


def like(given: Any, result: Any) -> Any:
    """Converts a result to the library that the input is from, if it is PyArrow, Polars or DuckDB."""
    name = library(given)
    if name == "pyarrow":
        pyarrow: Any = sys.modules["pyarrow"]
        if isinstance(result, ArrowTable):
            return pyarrow.table(result)
        return pyarrow.record_batch(result) if isinstance(given, pyarrow.RecordBatch) else pyarrow.array(result)
    if name == "polars":
        polars: Any = sys.modules["polars"]
        return polars.DataFrame(result) if isinstance(result, ArrowTable) else polars.Series(result)
    if name == "duckdb":
        return sys.modules["duckdb"].from_arrow(_import("pyarrow").table(result))
    return result


def array(column: Any) -> ArrowArray:
    """The Arrow array of a column, whose chunks are combined by PyArrow if there are several."""
    if hasattr(column, "__arrow_c_array__"):
        return ArrowArray.take(column)
    if not hasattr(column, "__arrow_c_stream__"):
        raise TypeError(f"a {type(column).__name__} is no column: give what has __arrow_c_array__ or __arrow_c_stream__")
    stream = _pteron.ArrowStream.take(column)
    chunks = list(stream)
    if not chunks:
        return stream.empty()
    if len(chunks) == 1:
        return chunks[0]
    pyarrow = _import("pyarrow")
    return ArrowArray.take(pyarrow.concat_arrays([pyarrow.array(chunk) for chunk in chunks]))


def position(names: Sequence[str], name: str, what: str) -> int:
    """The position of a column."""
    if name not in names:
        raise InputError(f"there is no column `{name}`, {what}; the batch has {', '.join(names) or 'no columns'}")
    return names.index(name)


def cells(column: ArrowArray) -> List[Any]:
    """The cells of an Arrow array as Python objects."""
    found: List[Any] = _import("pyarrow").array(column).to_pylist()
    return found


def cell_of(column: Any) -> Callable[[int], Any]:
    """A function of a row that returns its cell as a Python object, or None if PyArrow would be needed and is not installed."""

    def cell(row: int) -> Any:
        if isinstance(column, ArrowArray):
            try:
                return _import("pyarrow").array(column)[row].as_py()
            except ImportError:
                return None
        value = column.iloc[row] if hasattr(column, "iloc") else column[row]
        return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value

    return cell


def decoded(decode: Optional[Callable[[Any], Any]], name: str, column: Any, undecodable: Undecodable) -> Any:
    """A column with its cells decoded. A cell for which `decode` raises is None, and is added to `undecodable`."""
    if decode is None:
        return column
    results: List[Any] = []
    for row, cell in enumerate(column):
        try:
            results.append(None if cell is None else decode(cell))
        except Exception as error:
            results.append(None)
            undecodable.append((row, name, f"it cannot be decoded: {type(error).__name__}: {error}"))
    return results


def rows(column: Any) -> Any:
    """A column for the extension module: arrays of objects become lists of rows, missing values None."""
    name = library(column)
    if name == "pandas":
        dtype = column.dtype
        if getattr(dtype, "kind", "O") in "biuf" and not hasattr(dtype, "na_value"):
            return column.to_numpy()
        missing = sys.modules["pandas"].isna(column).to_numpy()
        return [None if gone else _plain(cell) for cell, gone in zip(column, missing)]
    if name in ("pyarrow", "polars"):
        return [_plain(cell) for cell in (column.to_pylist() if name == "pyarrow" else column.to_list())]
    if getattr(getattr(column, "dtype", None), "kind", None) == "O":
        column = list(column)
    if isinstance(column, (list, tuple)) and any(_is_decimal(cell) for cell in column):
        return [_plain(cell) for cell in column]
    return column


def _is_decimal(cell: Any) -> bool:
    return type(cell).__name__ == "Decimal"


def _plain(cell: Any) -> Any:
    return float(cell) if _is_decimal(cell) else cell


def labelled(indices: Any, labels: Sequence[str]) -> List[Any]:
    """The labels of indices; None for None."""
    if isinstance(indices, list):
        return [None if cell is None else _label(cell.tolist(), labels) for cell in indices]
    return [_label(row, labels) for row in indices.tolist()]


def _label(index: Any, labels: Sequence[str]) -> Any:
    return [labels[i] for i in index] if isinstance(index, list) else labels[index]


def numpy_column(numpy: Any, output: Any) -> Any:
    """An output as a NumPy array: of objects, None without a result, if rows differ or have none."""
    if not isinstance(output, list):
        return output.numpy()
    return _objects(numpy, [cell.numpy()[()] if isinstance(cell, _pteron.Tensor) else cell for cell in output])


def _objects(numpy: Any, cells: Sequence[Any]) -> Any:
    """An array of objects, which NumPy would otherwise combine to one of more dimensions."""
    result = numpy.empty(len(cells), dtype=object)
    for i, cell in enumerate(cells):
        result[i] = cell
    return result


def pandas_column(output: Any) -> Any:
    """An output as what a pandas data frame takes as a column: numbers, or arrays in rows."""
    numpy = _import("numpy")
    if isinstance(output, list):
        return numpy_column(numpy, output)
    values = output.numpy()
    return values if values.ndim == 1 else _objects(numpy, values)
