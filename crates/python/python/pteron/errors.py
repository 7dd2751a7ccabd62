"""Exceptions, which say where something went wrong and what to do about it."""

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple


class Error(RuntimeError):
    """Something that Pteron refused or failed to do.

    Attributes:
        file: The file.
        path: The field of the file, the instruction, the weight or the limit that the error is about.
        offset: The byte offset in the file.
        remedy: What to do about it.
        method: The method.
        instruction: The chain, and the index of the instruction in it.
        operators: Operators that are missing.
        backends: Backends that are missing.
        errno: The operating system's error code.
    """

    file: Optional[str] = None
    path: Optional[str] = None
    offset: Optional[int] = None
    remedy: Optional[str] = None
    method: Optional[str] = None
    instruction: Optional[Tuple[int, int]] = None
    operators: Tuple[str, ...] = ()
    backends: Tuple[str, ...] = ()

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> Any:
        return _again, (type(self), self.args[0], self.__dict__)


def _again(kind: type, message: str, facts: "dict[str, Any]") -> Error:
    error: Error = kind(message, **facts)
    return error


class FileError(Error, OSError):
    """A file cannot be opened, read or written."""

    def __str__(self) -> str:
        return str(self.args[0])


class FormatError(Error, ValueError):
    """A file is not valid, or not of a format that was expected."""


class CompileError(Error, ValueError):
    """An archive or a program cannot be compiled."""


class InputError(Error, ValueError):
    """An argument does not match what a method or a function expects."""


@dataclass(frozen=True)
class RowFailure:
    """A row of a table without a result: its index, the column that caused the failure if any, and the reason."""

    row: int
    column: Optional[str]
    reason: str

    def text(self) -> str:
        """The column and the reason."""
        return self.reason if self.column is None else f"column `{self.column}`: {self.reason}"


class RowError(InputError):
    """Rows of a table have no result.

    Attributes:
        rows: A `RowFailure` for each.
        count: The number of all rows.
    """

    rows: Tuple[RowFailure, ...] = ()
    count: int = 0

    def __init__(self, rows: Sequence[RowFailure], count: int, **facts: Any) -> None:
        shown = "; ".join(f"row {failure.row}: {failure.text()}" for failure in rows[:3])
        more = "; …" if len(rows) > 3 else ""
        remedy = 'leave these rows out, or give on_error="null", which names them in a column'
        super().__init__(f"{len(rows)} of {count} rows have no result: {shown}{more}", remedy=remedy, **facts)
        self.rows = tuple(rows)
        self.count = count

    def __reduce__(self) -> Any:
        return RowError, (self.rows, self.count)


class NoSuchMethodError(Error, LookupError):
    """The program has no method of this name."""


class DataError(Error, LookupError):
    """External data of the program is missing, or a key is duplicated."""


class MissingError(Error):
    """Operators or backends that the program needs are missing."""


class LoadError(Error):
    """A method cannot be loaded."""


class ExecuteError(Error):
    """An instruction failed, or the execution was interrupted."""


class LimitError(Error):
    """A limit of `pteron.Limits` is exceeded."""


class TensorError(Error, ValueError):
    """A tensor cannot have the requested type, sizes or layout, or there is no memory for it."""
