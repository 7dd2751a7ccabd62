"""The API of `executorch.runtime` on Pteron: a script switches by importing this module instead.

Outputs are torch tensors if torch is installed, otherwise Pteron tensors.
"""

import enum
import functools
import os
import pathlib
from typing import Any, BinaryIO, Dict, List, Optional, Sequence, Set, Union

from . import _pteron, _records

__all__ = ["BackendRegistry", "Method", "MethodMeta", "OperatorRegistry", "Program", "Runtime", "TensorInfo", "Verification"]


class Verification(enum.Enum):
    """How much of a program is checked when it is loaded. Pteron always checks everything."""

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
        """The scalar type as an integer."""
        return self._info.scalar_type

    def is_memory_planned(self) -> bool:
        """Whether the memory plan of the program includes it."""
        return self._info.is_memory_planned

    def nbytes(self) -> int:
        """The size in bytes."""
        return self._info.nbytes

    def __repr__(self) -> str:
        sizes = ", ".join(str(size) for size in self.sizes())
        planned = "True" if self.is_memory_planned() else "False"
        return (
            f"TensorInfo(sizes=[{sizes}], dtype={self._info.dtype}, is_memory_planned={planned}, nbytes={self.nbytes()})"
        )


class MethodMeta:
    """The metadata of a method."""

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
        """The number of named tensors."""
        return len(self._meta.attributes)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """The type of an input. Raises IndexError if there is no such input, or it is no tensor."""
        return _info([value.tensor for value in self._meta.inputs], index, "input")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """The type of an output. Raises IndexError if there is no such output, or it is no tensor."""
        return _info([value.tensor for value in self._meta.outputs], index, "output")

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """The type of a named tensor. Raises IndexError if there is none with this index."""
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
    """Converts a tensor to a torch tensor, if torch is installed."""
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
    """A loaded method of a program."""

    def __init__(self, method: _pteron.Method) -> None:
        self._method = method

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Executes the method."""
        return [_converted(value) for value in self._method(*inputs)]

    @property
    def metadata(self) -> MethodMeta:
        """The metadata of the method."""
        return MethodMeta(_records.method_meta(self._method.module, self._method.name))


class Program:
    """A program."""

    def __init__(self, module: _pteron.Module, events: Optional[Any] = None) -> None:
        self._module = module
        self._events = events
        self._methods: Dict[str, Optional[Method]] = {name: None for name in module.method_names}

    @property
    def method_names(self) -> Set[str]:
        """The names of the methods."""
        return set(self._methods)

    def load_method(self, name: str) -> Method:
        """Loads a method. Raises KeyError if there is no method with this name."""
        method = self._methods[name]
        if method is None:
            self._module.load_method(name)
            method = Method(self._module.method(name))
            self._methods[name] = method
        return method

    def metadata(self, method_name: str) -> MethodMeta:
        """The metadata of a method, which need not be loaded."""
        return MethodMeta(_records.method_meta(self._module, method_name))

    def write_etdump_result_to_file(self, etdump_path: str, debug_buffer_path: str) -> None:
        """Writes the recorded executions of a program that was loaded with `enable_etdump`."""
        self._module.write_etdump(etdump_path, debug_buffer_path)


class BackendRegistry:
    """The backends that delegates can use."""

    @property
    def registered_backend_names(self) -> List[str]:
        """The names of the backends."""
        return _pteron.backends()

    def is_available(self, backend_name: str) -> bool:
        """Whether there is a backend with this name."""
        return backend_name in self.registered_backend_names


class OperatorRegistry:
    """The operators that programs can call."""

    @property
    def operator_names(self) -> Set[str]:
        """The names of the operators."""
        from .tools import operators

        return {operator.name for operator in operators()}


class Runtime:
    """Loads programs."""

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> "Runtime":
        """The only instance."""
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
        """Loads a program from its path, its bytes, or an open file.

        Args:
            data: The program.
            verification: Ignored: everything is always verified.
            enable_etdump: Whether executions are recorded, for `Program.write_etdump_result_to_file`.
            debug_buffer_size: If not 0, tensors are recorded, too; their size is not limited.
            data_path: A `.ptd` file with external data of the program.
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
