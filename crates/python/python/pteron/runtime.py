"""The module `executorch.runtime` on Pteron: a script switches by importing this one instead.

Outputs are tensors of torch if torch is installed, otherwise tensors of Pteron.
"""

import enum
import functools
import os
import pathlib
from typing import Any, BinaryIO, Dict, List, Optional, Sequence, Set, Union

from . import _pteron, _records

__all__ = ["BackendRegistry", "Method", "MethodMeta", "OperatorRegistry", "Program", "Runtime", "TensorInfo", "Verification"]


class Verification(enum.Enum):
    """How much of a program is checked when it is loaded. Everything always is, whatever is asked for."""

    Minimal = 0
    InternalConsistency = 1


class TensorInfo:
    """Type and sizes of a tensor."""

    def __init__(self, info: _records.TensorInfo) -> None:
        self._info = info

    def sizes(self) -> "tuple[int, ...]":
        """The sizes; upper bounds if the tensor is dynamic."""
        return self._info.shape

    def dtype(self) -> int:
        """The number of the scalar type."""
        return self._info.scalar_type

    def is_memory_planned(self) -> bool:
        """Whether the program gives it memory."""
        return self._info.is_memory_planned

    def nbytes(self) -> int:
        """Its bytes."""
        return self._info.nbytes

    def __repr__(self) -> str:
        sizes = ", ".join(str(size) for size in self.sizes())
        planned = "True" if self.is_memory_planned() else "False"
        return (
            f"TensorInfo(sizes=[{sizes}], dtype={self._info.dtype}, is_memory_planned={planned}, nbytes={self.nbytes()})"
        )


class MethodMeta:
    """What a program says about a method."""

    def __init__(self, meta: _records.MethodMeta) -> None:
        self._meta = meta

    def name(self) -> str:
        """The method's name."""
        return self._meta.name

    def num_inputs(self) -> int:
        """The number of inputs."""
        return len(self._meta.inputs)

    def num_outputs(self) -> int:
        """The number of outputs."""
        return len(self._meta.outputs)

    def num_attributes(self) -> int:
        """The number of tensors that have names."""
        return len(self._meta.attributes)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """An input, which is a tensor. Raises IndexError if there is none of this number."""
        return _info([value.tensor for value in self._meta.inputs], index, "input")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """An output, which is a tensor. Raises IndexError if there is none of this number."""
        return _info([value.tensor for value in self._meta.outputs], index, "output")

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """A tensor with a name. Raises IndexError if there is none of this number."""
        return _info(list(self._meta.attributes), index, "attribute")

    def __repr__(self) -> str:
        inputs = ", ".join(repr(TensorInfo(value.tensor)) for value in self._meta.inputs if value.tensor)
        outputs = ", ".join(repr(TensorInfo(value.tensor)) for value in self._meta.outputs if value.tensor)
        return (
            f"MethodMeta(name='{self.name()}', num_inputs={self.num_inputs()}, input_tensor_meta=[{inputs}], "
            f"num_outputs={self.num_outputs()}, output_tensor_meta=[{outputs}])"
        )


def _info(all: "Sequence[Optional[_records.TensorInfo]]", index: int, what: str) -> TensorInfo:
    if not 0 <= index < len(all):
        raise IndexError(f"there is no {what} {index}; the method has {len(all)}")
    info = all[index]
    if info is None:
        raise IndexError(f"{what} {index} is no tensor")
    return TensorInfo(info)


def _converted(value: Any) -> Any:
    """A tensor as torch has it, if torch is installed."""
    if not isinstance(value, _pteron.Tensor):
        return value
    torch = _torch()
    return value if torch is None else torch.from_dlpack(value)


@functools.lru_cache(maxsize=None)
def _torch() -> Any:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return torch


class Method:
    """A method of a program, loaded."""

    def __init__(self, method: _pteron.Method) -> None:
        self._method = method

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Executes the method."""
        return [_converted(value) for value in self._method(*inputs)]

    @property
    def metadata(self) -> MethodMeta:
        """What the program says about it."""
        return MethodMeta(_records.method_meta(self._method.module, self._method.name))


class Program:
    """A program."""

    def __init__(self, module: _pteron.Module, events: Optional[Any] = None) -> None:
        self._module = module
        self._events = events
        self._methods: Dict[str, Optional[Method]] = {name: None for name in module.method_names}

    @property
    def method_names(self) -> Set[str]:
        """The names of its methods."""
        return set(self._methods)

    def load_method(self, name: str) -> Method:
        """Loads a method. Raises KeyError if there is none of this name."""
        method = self._methods[name]
        if method is None:
            self._module.load_method(name)
            method = Method(self._module.method(name))
            self._methods[name] = method
        return method

    def metadata(self, method_name: str) -> MethodMeta:
        """What the program says about a method, which need not be loaded for it."""
        return MethodMeta(_records.method_meta(self._module, method_name))

    def write_etdump_result_to_file(self, etdump_path: str, debug_buffer_path: str) -> None:
        """Writes what was recorded of the executions since the program was loaded with `enable_etdump`."""
        self._module.write_etdump(etdump_path, debug_buffer_path)


class BackendRegistry:
    """The backends that delegates can use."""

    @property
    def registered_backend_names(self) -> List[str]:
        """Their names."""
        return _pteron.backends()

    def is_available(self, backend_name: str) -> bool:
        """Whether there is one of this name."""
        return backend_name in self.registered_backend_names


class OperatorRegistry:
    """The operators that programs can call."""

    @property
    def operator_names(self) -> Set[str]:
        """Their names."""
        from .tools import operators

        return {operator.name for operator in operators()}


class Runtime:
    """Loads programs."""

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> "Runtime":
        """The only one there is."""
        return Runtime()

    def __init__(self) -> None:
        self.backend_registry = BackendRegistry()
        self.operator_registry = OperatorRegistry()

    def load_program(
        self,
        data: Union[bytes, bytearray, BinaryIO, pathlib.Path, str],
        *,
        verification: Verification = Verification.InternalConsistency,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
        data_path: Optional[Union[pathlib.Path, str]] = None,
    ) -> Program:
        """Loads a program: its path, its bytes, or a file that is open.

        Args:
            data: The program.
            verification: Everything is verified, whatever is asked for.
            enable_etdump: Whether executions are recorded, for `Program.write_etdump_result_to_file`.
            debug_buffer_size: If it is not 0, tensors are recorded, too; their size is not limited to it.
            data_path: A `.ptd` file with data that the program keeps outside.
        """
        if not isinstance(data, (str, os.PathLike, bytes, bytearray, memoryview)):
            if not hasattr(data, "read"):
                raise TypeError(
                    "Expected data to be bytes, bytearray, a path to a .pte file, or a file-like object, but got "
                    f"{type(data).__name__}."
                )
            data = data.read()
        options: Dict[str, Any] = {}
        if data_path is not None:
            options["data"] = [data_path]
        if enable_etdump:
            options["record"] = "values" if debug_buffer_size else "times"
        module = _pteron.Module(data, **options)
        module.open()
        return Program(module)
