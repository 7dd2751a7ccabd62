"""Runs, inspects, compiles and edits machine-learning program files, without torch.

>>> import pteron
>>> module = pteron.load("examples/digits/digits.pte")
>>> [scores] = module(pteron.Tensor([0.0] * 64, shape=[1, 1, 8, 8]))
>>> scores.shape
(1, 10)
"""

import os as _os
from typing import Any, Optional, Sequence, Union

from . import batch, errors, graph, runtime, tools
from ._pteron import Method, Module, Tensor, TrainingModule, __version__, bef_functions as _bef_functions, note_fork as _note_fork
from ._records import Copies, Limits, MethodMeta, TensorInfo, ValueMeta, copies, method_meta
from ._verify import CaseOutcome, Verified, verify
from .errors import Error
from .graph import Dim, Graph, Value
from .tools import (
    backends,
    bundle,
    compare,
    compile,
    convert,
    dedupe,
    diff,
    embed,
    externalize,
    extract,
    inspect,
    load_bef,
    load_data,
    merge,
    operators,
    plan,
    profile,
    quantize,
    register_backend,
    report,
    requirements,
    retarget,
    run_bef,
    save_data,
    set_task,
    set_weight,
    strip,
    translate,
    validate,
)

__all__ = [
    "CaseOutcome",
    "Copies",
    "Dim",
    "Error",
    "Graph",
    "Limits",
    "Method",
    "MethodMeta",
    "Module",
    "Tensor",
    "TensorInfo",
    "TrainingModule",
    "Value",
    "ValueMeta",
    "Verified",
    "__version__",
    "backends",
    "batch",
    "bundle",
    "compare",
    "compile",
    "convert",
    "copies",
    "dedupe",
    "diff",
    "embed",
    "errors",
    "externalize",
    "extract",
    "graph",
    "inspect",
    "load",
    "load_bef",
    "load_data",
    "merge",
    "method_meta",
    "operators",
    "plan",
    "profile",
    "quantize",
    "register_backend",
    "report",
    "requirements",
    "retarget",
    "run_bef",
    "runtime",
    "save_data",
    "set_task",
    "set_weight",
    "strip",
    "tools",
    "translate",
    "validate",
    "verify",
]

# Threads do not survive a fork: open programs must know, and start theirs again.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_note_fork)

Path = Union[str, "_os.PathLike[str]"]


def load(
    source: Any,
    *,
    data: Union[Path, Sequence[Path]] = (),
    backends: Optional[Sequence[str]] = None,
    threads: Optional[int] = None,
    limits: Optional[Limits] = None,
    mmap: bool = False,
    cache: Optional[Path] = None,
    prepare: bool = True,
    isa: Optional[str] = None,
    seed: int = 0,
    share_memory_arenas: bool = False,
    outputs: str = "tensor",
) -> Module:
    """Opens a program: the path of a `.pte`, `.pt2` or `.bpte` file, its bytes, an open file, or a `torch.export.ExportedProgram`.

    A torch.export archive (`.pt2`) is compiled in memory. Methods are loaded on their first call.

    Args:
        source: A path, the bytes of a file, an object whose `read` returns them, or an exported program of PyTorch.
        data: `.ptd` files with the external weights of the program.
        backends: The ids of the backends that delegates may use; if None, all backends.
        threads: The number of threads for operators; if None, the number of cores that this process may use. Results do not depend
            on it.
        limits: Limits on what the program may use.
        mmap: Maps files instead of reading them, so that all processes of a machine share the pages. A mapped file must not be
            written to or truncated while it is in use; replacing the whole file is fine.
        cache: A folder that caches the program, compiled for this kind of machine with packed weights: the first process compiles
            it, and all processes map it and share its weights. It is compiled again when the file or its data change.
        prepare: Whether operators are fused and weights packed; otherwise instructions run as written.
        isa: The instruction set that operators may use, with those that it implies: `portable`,
            `avx2`, `avxvnni`, `avx512`, `avx512vnni`, `amx`, `dotprod`, `i8mm`.
        seed: The seed of random operators.
        share_memory_arenas: Whether all methods use the same memory for their state, as with the reference's option of this name;
            for programs that were exported with `share_mutable_buffers`. All methods are loaded at once, and calls take turns.
        outputs: What calls return: `tensor` for `pteron.Tensor`, `numpy` or `torch`, which share the tensors' memory.

    Raises:
        pteron.Error: The file cannot be read, is not valid, or cannot be run here.
    """
    options: dict[str, Any] = {
        "data": [data] if isinstance(data, (str, _os.PathLike)) else list(data),
        "backends": None if backends is None else list(backends),
        "threads": threads,
        "limits": limits,
        "mmap": mmap,
        "cache": None if cache is None else _os.fspath(cache),
        "prepare": prepare,
        "isa": isa,
        "seed": seed,
        "share_memory_arenas": share_memory_arenas,
        "outputs": outputs,
    }
    source = tools.source_of(source)
    module = Module(source, **options)
    try:
        module.open()
    except errors.FormatError as error:
        if _bef_functions(source) is not None:
            error.remedy = "open BEF programs with `pteron.load_bef`, and call their functions by name"
        raise
    return module
