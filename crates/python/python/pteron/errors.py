"""Exceptions, which say where something went wrong and what to do about it."""

from dataclasses import dataclass, replace
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

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "remedy" and value:
            # Tracebacks print notes after the message.
            self.add_note(f"what to do: {value}")

    def __reduce__(self) -> Any:
        facts = {name: value for name, value in self.__dict__.items() if name != "__notes__"}
        return _again, (type(self), self.args[0], facts)


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
    """A row of a table without a result: its index, the column that caused the failure if any, the reason, and the row's value in
    the key column if there is one."""

    row: int
    column: Optional[str]
    reason: str
    key: Any = None

    def text(self) -> str:
        """The column and the reason."""
        return self.reason if self.column is None else f"column `{self.column}`: {self.reason}"

    def moved(self, rows: int) -> "RowFailure":
        """The failure as one of a table in which this many rows are before it."""
        return replace(self, row=self.row + rows)


class RowError(InputError):
    """Rows of a table have no result.

    Attributes:
        rows: A `RowFailure` for each of the first of them, at most `MAX_ROWS`: an error that workers send has to be small.
        failed: The number of rows without a result.
        count: The number of all rows.
    """

    MAX_ROWS = 100

    rows: Tuple[RowFailure, ...] = ()
    failed: int = 0
    count: int = 0

    def __init__(self, rows: Sequence[RowFailure], count: int, failed: Optional[int] = None, **facts: Any) -> None:
        failed = len(rows) if failed is None else failed
        shown = "; ".join(
            f"row {failure.row}{'' if failure.key is None else f' (key {failure.key!r})'}: {failure.text()}" for failure in rows[:3]
        )
        more = "; …" if failed > 3 else ""
        remedy = 'leave these rows out, or give on_error="null", which names them in a column'
        super().__init__(f"{failed} of {count} rows have no result: {shown}{more}", remedy=remedy, **facts)
        self.rows = tuple(rows[: self.MAX_ROWS])
        self.failed = failed
        self.count = count

    def __reduce__(self) -> Any:
        return RowError, (self.rows, self.count, self.failed)


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
