"""Conformance cases: programs with inputs, and outputs recorded by another runtime."""

import json
import os
from dataclasses import dataclass
from typing import Callable, Optional, Sequence, Tuple, Union

from . import _pteron
from ._records import Limits, record
from .tools import Path


@dataclass(frozen=True)
class CaseOutcome:
    """The outcome of a case: `passed`, `failed`, `set_aside` (the recorded outputs are no reference) or `skipped`, with the reason;
    with `matrix`, also the setting under which it was run."""

    case: str
    outcome: str
    reason: Optional[str] = None
    way: Optional[str] = None


@dataclass(frozen=True)
class Verified:
    """The outcomes of cases. True if none has failed."""

    passed: int
    failed: int
    set_aside: int
    skipped: int
    cases: Tuple[CaseOutcome, ...]

    def __bool__(self) -> bool:
        return self.failed == 0


def verify(
    cases: Union[Path, Sequence[Path]],
    *,
    archives: bool = False,
    backends: Sequence[str] = (),
    native: bool = False,
    retarget: Sequence[str] = (),
    undelegated: bool = False,
    matrix: bool = False,
    atol: Optional[float] = None,
    rtol: Optional[float] = None,
    prepare: bool = True,
    threads: Optional[int] = None,
    isa: Optional[str] = None,
    limits: Optional[Limits] = None,
    jobs: Optional[int] = None,
    on_case: Optional[Callable[[str, str, Optional[str]], None]] = None,
) -> Verified:
    """Runs recorded cases, and compares their outputs with the recorded ones.

    Args:
        cases: Folders with a `case.json` or a `cases.json`, folders of such folders, the JSON files, or bundled programs.
        archives: Compiles and runs the torch.export archives beside the programs instead of the programs.
        backends: Backends to which parts of the archives' programs are delegated, in order of preference: `xnnpack`, `bef`.
        native: Also stores weights packed for this machine in programs for `bef`.
        retarget: Recompiles the programs for these backends (`none`, `xnnpack`, `bef`) in turn, and runs the result.
        undelegated: Skips programs with delegates.
        matrix: Runs each case under every setting: prepared and as written, with every instruction set of the machine, on one
            thread and on two.
        atol: The allowed absolute difference, instead of each case's tolerance.
        rtol: The allowed relative difference, instead of each case's tolerance.
        prepare: As in `pteron.load`, like `isa` and `limits`.
        threads: The number of threads of an execution; if None, the cores are shared by the cases that run concurrently.
        jobs: The number of cases that run concurrently; if None, the number of cores.
        on_case: Called with the name, outcome and reason of each case when it is done.
    """
    paths = [cases] if isinstance(cases, (str, os.PathLike)) else list(cases)
    options = {"threads": threads, "limits": limits, "prepare": prepare, "isa": isa}
    programs = _Programs(archives, list(backends), native, list(retarget), undelegated)
    found = json.loads(_pteron.verify(paths, programs, (atol, rtol), (matrix, jobs), options, on_case))
    outcomes = tuple(record(CaseOutcome, values) for values in found["cases"])
    return Verified(cases=outcomes, **found["counts"])


@dataclass(frozen=True)
class _Programs:
    archives: bool
    backends: Sequence[str]
    native: bool
    retarget: Sequence[str]
    undelegated: bool
