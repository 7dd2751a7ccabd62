"""An open program, and the columns that it takes and makes."""

import functools
import json
from collections.abc import Mapping as _Mapping
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .. import _pteron
from .._records import record
from ..errors import InputError

Wanted = Union[str, Sequence[str]]
Inputs = Union[None, str, Sequence[Wanted], Mapping[Union[str, int], Wanted]]


@dataclass(frozen=True)
class Column:
    """An input or output of a method as a column: its element type, and the sizes of a row, which are upper bounds if dynamic."""

    dtype: str
    row: Tuple[int, ...]
    is_dynamic: bool
    name: Optional[str] = None


class OpenProgram:
    """The runner of an open program, and its columns."""

    def __init__(self, module: _pteron.Module, options: Dict[str, Any]) -> None:
        self.runner = _pteron.BatchRunner(
            module,
            options["method"],
            options["batched"],
            options["batch_size"],
            options["check"],
            (options["exact"], options["nonfinite"] == "error"),
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
        for values, name in zip(described["outputs"], names):
            values["name"] = name
        self.outputs: Tuple[Column, ...] = tuple(record(Column, values) for values in described["outputs"])
        self.wanted = self._wanted(options["inputs"])
        self.keep: Union[bool, Sequence[str]] = options["keep"]
        self.chosen: Callable[[Tuple[str, ...]], List[List[int]]] = functools.lru_cache(maxsize=8)(self._chosen)
        self.kept: Callable[[Tuple[str, ...], Tuple[str, ...]], List[int]] = functools.lru_cache(maxsize=8)(self._kept)

    def _wanted(self, inputs: Inputs) -> Optional[List[Optional[List[str]]]]:
        """The names of the columns for each input, or None for an input whose name is that of its column; None if no columns are
        named."""
        if inputs is None:
            return None
        if isinstance(inputs, _Mapping):
            named: List[Optional[List[str]]] = [None] * len(self.inputs)
            for key, columns in inputs.items():
                named[self._position(key)] = _names(columns)
            return named
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        if len(given) != len(self.inputs):
            raise InputError(
                f"the program has {len(self.inputs)} inputs, {len(given)} columns are named for them",
                remedy="for one input of several columns of numbers, give inputs={0: [column, …]}",
            )
        return [_names(columns) for columns in given]

    def _chosen(self, names: Tuple[str, ...]) -> List[List[int]]:
        """The positions in the table of the columns for each input."""
        if self.wanted is None and len(self.inputs) == 1 and len(names) == 1:
            return [[0]]
        chosen = []
        for i, column in enumerate(self.inputs):
            wanted = None if self.wanted is None else self.wanted[i]
            if wanted is None and (column.name is None or column.name not in names):
                called = f"`{column.name}`" if column.name else "without a name"
                there = ", ".join(names) or "no columns"
                raise InputError(f"input {i} ({called}) is no column: say with inputs=[…] which is; the batch has {there}")
            chosen.append([_index(names, name) for name in wanted or [str(column.name)]])
        return chosen

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
            wanted = [self.keep] if isinstance(self.keep, str) else self.keep
            missing = [name for name in wanted if name not in names]
            if missing:
                raise InputError(f"there is no column `{missing[0]}` to keep; the batch has {', '.join(names)}")
            kept = [i for i, name in enumerate(names) if name in wanted]
        twice = [names[i] for i in kept if names[i] in made]
        if twice:
            raise InputError(f"column `{twice[0]}` is both kept and made: name outputs with outputs=[…], or keep others")
        return kept


def _names(columns: Wanted) -> List[str]:
    names = [columns] if isinstance(columns, str) else list(columns)
    if not names:
        raise InputError("an input takes a column or more, and an empty list of them is given")
    return names


def _index(names: Tuple[str, ...], name: str) -> int:
    if name not in names:
        raise InputError(f"there is no column `{name}`; the batch has {', '.join(names) or 'no columns'}")
    if names.count(name) > 1:
        raise InputError(f"the batch has several columns `{name}`")
    return names.index(name)
