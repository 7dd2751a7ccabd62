"""Conformance cases: programs with inputs, and the outputs that another runtime has recorded."""

import json
import os
from dataclasses import dataclass
from typing import Callable, Optional, Sequence, Tuple, Union

from . import _pteron
from ._records import Limits, record
from .tools import Path


@dataclass(frozen=True)
class CaseOutcome:
    """What has come of a case: `passed`, `failed`, `set_aside` (the record cannot judge it) or `skipped`, and why; with `matrix`, in
    which way it was run."""

    case: str
    outcome: str
    reason: Optional[str] = None
    way: Optional[str] = None


@dataclass(frozen=True)
class Verified:
    """What has come of cases. It is true if none has failed."""

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
    threads: int = 1,
    isa: Optional[str] = None,
    limits: Optional[Limits] = None,
    jobs: Optional[int] = None,
    on_case: Optional[Callable[[str, str, Optional[str]], None]] = None,
) -> Verified:
    """Runs recorded cases, and compares what comes out with what is recorded.

    Args:
        cases: Folders with a `case.json` or a `cases.json`, folders of such, those files, or bundled programs.
        archives: Runs the torch.export archives beside the programs, compiled, instead of the programs.
        backends: Backends that take parts of the archives' programs, in order: `xnnpack`, `bef`.
        native: Stores weights packed for this machine, too, in programs of `bef`.
        retarget: Compiles the programs again for these backends (`none`, `xnnpack`, `bef`), one after the other, and runs the result.
        undelegated: Leaves out programs with delegates.
        matrix: Runs each case in every way that must agree: prepared and as written, with every level of instructions that the
            machine has, on one thread and on two.
        atol: An absolute difference to allow, in the place of every case's own.
        rtol: A relative one.
        prepare: As in `pteron.load`, like `threads`, `isa` and `limits`.
        jobs: Cases that run at a time; as many as there are cores if it is None.
        on_case: Is called with each case's name, outcome and reason as they come.
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
