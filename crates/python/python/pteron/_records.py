"""Dataclasses, and their creation from the JSON of the extension module."""

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
    """Creates a dataclass from JSON fields. Unknown fields are ignored."""
    known: Dict[str, Any] = _fields(cast(Any, kind))
    return kind(**{name: _value(hint, values[name]) for name, hint in known.items() if name in values})


def parse(kind: Type[T], text: str) -> T:
    """Creates a dataclass from JSON text."""
    return record(kind, json.loads(text))


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a program. The sizes of a dynamic tensor are upper bounds."""

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
    """An input or output of a method: its kind, its tensor type if it is a tensor, its value if the exporter fixed it, and for an
    input the name of its keyword argument."""

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
    """The metadata of a method."""

    name: str
    inputs: Tuple[ValueMeta, ...]
    outputs: Tuple[ValueMeta, ...]
    attributes: Tuple[TensorInfo, ...]
    memory_arenas: Tuple[int, ...]
    operators: Dict[str, int]
    backends: Tuple[BackendUse, ...]
    instructions: int

    def __str__(self) -> str:
        """The signature, such as `forward(x: float32[1, 8]) -> (float32[1, 10])`; sizes of dynamic tensors are upper bounds."""
        inputs = (_typed(value, value.name or f"input_{i}") for i, value in enumerate(self.inputs))
        outputs = (_typed(value, value.name) for value in self.outputs)
        return f"{self.name}({', '.join(inputs)}) -> ({', '.join(outputs)})"


def _typed(value: ValueMeta, name: Optional[str]) -> str:
    if value.tensor is None:
        kind = value.kind
    else:
        up_to = "≤" if value.tensor.is_dynamic else ""
        kind = f"{value.tensor.dtype}[{', '.join(f'{up_to}{size}' for size in value.tensor.shape)}]"
    return f"{name}: {kind}" if name else kind


def method_meta(module: "_pteron.Module", method: Optional[str] = None) -> MethodMeta:
    """The metadata of a method, by default the only one or `forward`. The method need not be loaded."""
    if method is None:
        names = module.method_names
        method = names[0] if len(names) == 1 else "forward"
    return parse(MethodMeta, module._meta(method))


@dataclass(frozen=True)
class Copies:
    """The numbers of copies of inputs and outputs in this process, without the copy that a method makes of each input."""

    inputs: int
    outputs: int


def copies() -> Copies:
    """The copies so far: of inputs whose elements are not dense, and of outputs from a method's memory."""
    return Copies(*_pteron.copies())


@dataclass(frozen=True)
class Limits:
    """Limits on what a program may use. Attributes that are None have the values of `base`: `default` (the free memory of the
    machine), `strict` (for untrusted files) or `none`.

    Attributes:
        instructions: Maximum number of instructions per execution.
        time: Maximum time per execution, in seconds.
        memory: Maximum memory of a method, in bytes.
        arena_bytes: Maximum size of the memory arenas of a method.
        scratch_bytes: Maximum temporary memory of its operators.
        segment_bytes: Maximum size of one segment, constant or payload.
        backend_bytes: Maximum memory of a backend.
    """

    base: str = field(default="default")
    instructions: Optional[int] = None
    time: Optional[float] = None
    memory: Optional[int] = None
    arena_bytes: Optional[int] = None
    scratch_bytes: Optional[int] = None
    segment_bytes: Optional[int] = None
    backend_bytes: Optional[int] = None
