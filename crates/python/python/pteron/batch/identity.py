"""Which file a mapper was made of, so that no worker runs another one."""

import hashlib
import os
import threading
from typing import Dict, Sequence, Tuple

from ..errors import FileError

State = Tuple[int, ...]

_digests: Dict[Tuple[str, State], str] = {}
_lock = threading.Lock()


def state(path: str) -> State:
    """What changes when a file is replaced or written to."""
    found = os.stat(path)
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


def states(paths: Sequence[str]) -> Tuple[State, ...]:
    """The states of files; empty for one that is not there."""
    found = []
    for path in paths:
        try:
            found.append(state(path))
        except OSError:
            found.append(())
    return tuple(found)


def digest(paths: Sequence[str]) -> str:
    """The SHA-256 of a file, or of the digests of several. A process reads a file again only if its state has changed."""
    each = [_digest(path) for path in paths]
    return each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()


def _digest(path: str) -> str:
    try:
        key = (path, state(path))
        known = _digests.get(key)
        if known is None:
            with open(path, "rb") as file:
                known = hashlib.file_digest(file, "sha256").hexdigest()
            with _lock:
                if len(_digests) >= 256:
                    _digests.clear()
                _digests[key] = known
        return known
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}", file=path, errno=error.errno) from error


def check(paths: Sequence[str], expected: str) -> None:
    """Fails if the files are others than those with this digest."""
    found = digest(paths)
    if found != expected:
        raise FileError(
            f"{' and '.join(paths)}: another file than the one that the mapper was made of (SHA-256 {found[:16]}…, "
            f"not {expected[:16]}…)",
            file=paths[0],
            remedy="run a job with one file, and give a new file a new name; follow=True takes whatever file is there",
        )
