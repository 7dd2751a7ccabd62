"""Dataclasses, and how they are made of what the compiled part says as JSON."""

import dataclasses
import functools
import json
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple, Type, TypeVar, Union, cast

from . import _pteron

T = TypeVar("T")


@functools.lru_cache(maxsize=None)
def _fields(kind: Any) -> Dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _value(kind: Any, value: Any) -> Any:
    if value is None or kind is Any:
        return value
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Union:
        inner = [argument for argument in arguments if argument is not type(None)]
        return _value(inner[0], value) if len(inner) == 1 else value
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in value)
    if origin is dict:
        return {key: _value(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return record(cast(type, kind), value)
    return value


def record(kind: Type[T], values: Dict[str, Any]) -> T:
    """A dataclass of its fields as JSON has them. What it does not know is passed over."""
    known: Dict[str, Any] = _fields(cast(Any, kind))
    return kind(**{name: _value(hint, values[name]) for name, hint in known.items() if name in values})


def parse(kind: Type[T], text: str) -> T:
    """A dataclass of JSON."""
    return record(kind, json.loads(text))


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a program. Sizes of a dynamic one are upper bounds."""

    dtype: str
    shape: Tuple[int, ...]
    dim_order: Tuple[int, ...]
    nbytes: int
    is_dynamic: bool
    is_memory_planned: bool
    scalar_type: int
    name: Optional[str] = None


@dataclass(frozen=True)
class ValueMeta:
    """An input or output of a method: its kind, what is known of it if it is a tensor, its value if it was fixed, and of an input
    the name by which it can be given."""

    kind: str
    tensor: Optional[TensorInfo] = None
    fixed: Any = None
    name: Optional[str] = None


@dataclass(frozen=True)
class BackendUse:
    """A backend to which parts of a method are delegated."""

    id: str
    delegates: int
    payload_bytes: int


@dataclass(frozen=True)
class MethodMeta:
    """What a program says about a method."""

    name: str
    inputs: Tuple[ValueMeta, ...]
    outputs: Tuple[ValueMeta, ...]
    attributes: Tuple[TensorInfo, ...]
    memory_arenas: Tuple[int, ...]
    operators: Dict[str, int]
    backends: Tuple[BackendUse, ...]
    instructions: int


def method_meta(module: "_pteron.Module", method: Optional[str] = None) -> MethodMeta:
    """What a program says about a method, which need not be loaded for it; of its only one if none is named, or `forward`."""
    if method is None:
        names = module.method_names
        method = names[0] if len(names) == 1 else "forward"
    return parse(MethodMeta, module._meta(method))


@dataclass(frozen=True)
class Copies:
    """How often this process has copied elements, beside the copy that a method makes of each input into its memory."""

    inputs: int
    outputs: int


def copies() -> Copies:
    """The copies so far: of inputs whose elements do not lie without gaps, and of outputs out of a method's memory."""
    return Copies(*_pteron.copies())


@dataclass(frozen=True)
class Limits:
    """What a program may use. What is None is as `base` says: `default` (what the machine has free), `strict` (for files of
    strangers) or `none`.

    Attributes:
        instructions: Instructions that one execution may run.
        time: Seconds that one execution may take.
        memory: Bytes that a method may hold.
        arena_bytes: Bytes of the memory arenas of a method.
        scratch_bytes: Bytes of temporary memory of its operators.
        segment_bytes: Bytes of one segment, constant or payload.
        backend_bytes: Bytes that a backend may take.
    """

    base: str = field(default="default")
    instructions: Optional[int] = None
    time: Optional[float] = None
    memory: Optional[int] = None
    arena_bytes: Optional[int] = None
    scratch_bytes: Optional[int] = None
    segment_bytes: Optional[int] = None
    backend_bytes: Optional[int] = None
