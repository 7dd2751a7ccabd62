"""Maps Parquet and Arrow files on one machine. Needs PyArrow.

Each file is read, executed and written in parts, so that memory does not grow with the files. An output file appears when it is
complete, under the name of its input; a further run over the same files makes those that are not there.
"""

import importlib
import json
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ..errors import FileError, InputError
from .mapper import Mapper

Path = Union[str, "os.PathLike[str]"]

KEY = b"pteron.batch"
"""The key of a file's metadata that says what it was made of."""

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc", ".arrows")

GROUP_ROWS = 1 << 16
GROUP_BYTES = 64 << 20
"""A row group is written when it has this many rows or bytes."""


@dataclass(frozen=True)
class MappedFile:
    """A file that was mapped: its output, rows, rows without a result, seconds, and whether an earlier run had made it."""

    input: str
    output: str
    rows: int = 0
    failed: int = 0
    seconds: float = 0.0
    is_old: bool = False


def map_files(
    model: Mapper,
    files: Sequence[Path],
    folder: Path,
    *,
    threads: Optional[int] = None,
    rows: int = 4096,
    again: bool = False,
    progress: Optional[Callable[[int], None]] = None,
) -> List[MappedFile]:
    """Maps files to files of the same names and formats in a folder, and returns what was done to each.

    Files that an earlier run has made of the same inputs, by the same program with the same options, are not made again. One that
    was made of others is an error, or is replaced with `again`.

    Args:
        model: The mapper.
        files: Parquet files (`.parquet`), Arrow files and streams (`.arrow`, `.feather`, `.ipc`, `.arrows`), and folders of them.
        folder: The folder for the outputs, which is made if it does not exist.
        threads: The number of rows' batches that are executed at the same time; if None, the number of cores.
        rows: The number of rows that are read at a time.
        again: Whether files are made even if they are there.
        progress: Called with the number of rows that were added to an output. Several threads may call it.
    """
    if rows < 1 or (threads is not None and threads < 1):
        raise ValueError("rows and threads are 1 or more")
    folder = os.path.abspath(folder)
    pairs = _outputs(files, folder)
    os.makedirs(folder, exist_ok=True)
    with _Lock(folder):
        stale = {f".{os.path.basename(output)}.part" for _, output in pairs}
        for name in stale.intersection(os.listdir(folder)):
            os.unlink(os.path.join(folder, name))
        job = _Job(model, threads or os.cpu_count() or 1, rows, progress)
        # Compare all files before any is made.
        there = {source: None if again else job.made_before(source, output) for source, output in pairs}
        return job.run([(source, output, there[source]) for source, output in pairs])


def _outputs(files: Sequence[Path], folder: str) -> List[Tuple[str, str]]:
    """Each input with its output."""
    pairs: Dict[str, str] = {}
    for file in files:
        file = os.path.abspath(file)
        if os.path.isdir(file):
            names = sorted(name for name in os.listdir(file) if name.endswith(SUFFIXES) and not name.startswith("."))
            found = [os.path.join(file, name) for name in names]
            if not found:
                raise InputError(f"{file} has no files with the suffixes {', '.join(SUFFIXES)}")
        elif not file.endswith(SUFFIXES):
            raise InputError(f"{file} has none of the suffixes {', '.join(SUFFIXES)}")
        else:
            found = [file]
        for source in found:
            output = os.path.join(folder, os.path.basename(source))
            if os.path.realpath(output) == os.path.realpath(source):
                raise InputError(f"{source} would be replaced by its output: give another folder")
            other = pairs.setdefault(output, source)
            if other != source:
                raise InputError(f"{source} and {other} have the same name, and so would their outputs")
    return [(source, output) for output, source in pairs.items()]


def _pyarrow() -> Any:
    try:
        pyarrow = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.ipc")
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("Parquet and Arrow files are read by PyArrow, which is not installed", remedy="pip install pyarrow") from error
    return pyarrow


class _Lock:
    """Keeps a second process from writing to a folder, where the system can."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, ".pteron-batch.lock")

    def __enter__(self) -> None:
        self.file = open(self.path, "w")
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise FileError(f"{os.path.dirname(self.path)}: another process is writing to this folder") from None

    def __exit__(self, *_: Any) -> None:
        os.unlink(self.path)
        self.file.close()


class _Job:
    """A run over files."""

    def __init__(self, model: Mapper, threads: int, rows: int, progress: Optional[Callable[[int], None]]) -> None:
        self.model, self.threads, self.rows, self.progress = model, threads, rows, progress
        self.stopped = threading.Event()

    def origin(self, source: str) -> Dict[str, Any]:
        """What an output is made of."""
        found = os.stat(source)
        return {
            "program": self.model.digest,
            "options": self.model.described(),
            "input": {"bytes": found.st_size, "modified_ns": found.st_mtime_ns},
        }

    def made_before(self, source: str, output: str) -> Optional[MappedFile]:
        """What an earlier run has made; None if the output is not there."""
        if not os.path.exists(output):
            return None
        with _Reader(output, GROUP_ROWS, self.model.failure_columns) as reader:
            made, origin = json.loads((reader.schema.metadata or {}).get(KEY, b"{}")), self.origin(source)
            if made != origin:
                differing = [name for name in origin if made.get(name) != origin[name]] if made else []
                what = f"was made of another {' and '.join(differing)}" if differing else "is there, and not from this step"
                raise InputError(f"{output} {what}", remedy="give another folder, or again=True (--again) to replace it")
            rows, failed = reader.rows_in_all, 0
            for batch in reader if reader.columns else ():
                failed += self.model.failures(batch)
        return MappedFile(source, output, rows, failed, 0.0, True)

    def run(self, files: Sequence[Tuple[str, str, Optional[MappedFile]]]) -> List[MappedFile]:
        todo = [(source, output) for source, output, there in files if there is None]
        lanes = max(1, min(self.threads, len(todo)))
        # Batches of a file that may wait for their turn to be written.
        self.window = -(-2 * self.threads // lanes) + 1
        with ThreadPoolExecutor(self.threads) as self.pool, ThreadPoolExecutor(lanes) as lane:
            made = {source: lane.submit(self._file, source, output) for source, output in todo}
            try:
                return [there or made[source].result() for source, _, there in files]
            except BaseException:
                self.stopped.set()
                for future in made.values():
                    future.cancel()
                raise

    def _file(self, source: str, output: str) -> MappedFile:
        started, origin = time.perf_counter(), self.origin(source)
        part = os.path.join(os.path.dirname(output), f".{os.path.basename(output)}.part")
        rows = failed = 0
        try:
            with _Reader(source, self.rows, self.model.needed) as reader:
                writer = _Writer(part, output, json.dumps(origin).encode())
                try:
                    for result in self._mapped(reader):
                        writer.write(result)
                        rows += result.num_rows
                        failed += self.model.failures(result)
                        if self.progress is not None:
                            self.progress(result.num_rows)
                    if not writer.is_open:
                        writer.write(self.model(reader.empty()))
                    if self.origin(source) != origin:
                        raise FileError(f"{source}: it was changed while it was read", file=source)
                    writer.close()
                except BaseException:
                    writer.abandon()
                    raise
            os.replace(part, output)
        except BaseException as error:
            if os.path.exists(part):
                os.unlink(part)
            if isinstance(error, Exception) and hasattr(error, "add_note"):
                error.add_note(f"in {source}")
            raise
        return MappedFile(source, output, rows, failed, time.perf_counter() - started)

    def _mapped(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The results of batches in their order. Only so many are computed ahead."""
        ahead: Deque["Future[Any]"] = deque()
        try:
            for batch in batches:
                ahead.append(self.pool.submit(self.model, batch))
                if len(ahead) >= self.window:
                    yield ahead.popleft().result()
                if self.stopped.is_set():
                    raise RuntimeError("the run was stopped")
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


class _Reader:
    """The batches of a Parquet or Arrow file."""

    def __init__(self, path: str, rows: int, needed: Callable[[Tuple[str, ...]], Sequence[str]] = lambda names: names) -> None:
        pyarrow = _pyarrow()
        self.pyarrow, self.path, self.rows = pyarrow, path, rows
        self.file: Any
        try:
            with open(path, "rb") as file:
                magic = file.read(6)
            if magic.startswith(b"PAR1"):
                self.file = pyarrow.parquet.ParquetFile(path)
                self.kind, whole = "parquet", self.file.schema_arrow
            elif magic == b"ARROW1":
                self.file = pyarrow.ipc.open_file(pyarrow.memory_map(path))
                self.kind, whole = "file", self.file.schema
            else:
                self.file = pyarrow.ipc.open_stream(pyarrow.OSFile(path))
                self.kind, whole = "stream", self.file.schema
        except pyarrow.ArrowInvalid as error:
            raise FileError(f"{path}: it is no Parquet or Arrow file: {error}", file=path) from error
        self.columns = list(needed(tuple(whole.names)))
        self.schema = pyarrow.schema([whole.field(name) for name in self.columns], metadata=whole.metadata)

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_: Any) -> None:
        if hasattr(self.file, "close"):
            self.file.close()

    @property
    def rows_in_all(self) -> int:
        """The number of rows of the file."""
        if self.kind == "parquet":
            return int(self.file.metadata.num_rows)
        if self.kind == "file":
            return sum(self.file.get_batch(i).num_rows for i in range(self.file.num_record_batches))
        with self.pyarrow.ipc.open_stream(self.pyarrow.OSFile(self.path)) as stream:
            return sum(batch.num_rows for batch in stream)

    def empty(self) -> Any:
        """A batch without rows."""
        return self.pyarrow.RecordBatch.from_pylist([], schema=self.schema)

    def __iter__(self) -> Iterator[Any]:
        if self.kind == "parquet":
            yield from self.file.iter_batches(batch_size=self.rows, columns=self.columns)
            return
        batches = self.file if self.kind == "stream" else map(self.file.get_batch, range(self.file.num_record_batches))
        for batch in batches:
            batch = batch.select(self.columns)
            for first in range(0, batch.num_rows, self.rows):
                yield batch.slice(first, self.rows)


class _Writer:
    """Writes batches to a file in the format of the output's suffix, with what it was made of as metadata."""

    def __init__(self, path: str, output: str, origin: bytes) -> None:
        self.path, self.origin = path, origin
        self.is_parquet, self.is_stream = output.endswith(".parquet"), output.endswith(".arrows")
        self.is_open = False
        self.waiting: List[Any] = []
        self.bytes = self.count = 0

    def write(self, batch: Any) -> None:
        if not self.is_open:
            self._open(batch.schema)
        if not self.is_parquet:
            self.writer.write_batch(batch)
            return
        self.waiting.append(batch)
        self.bytes, self.count = self.bytes + batch.nbytes, self.count + batch.num_rows
        if self.count >= GROUP_ROWS or self.bytes >= GROUP_BYTES:
            self._flush()

    def _open(self, schema: Any) -> None:
        pyarrow = _pyarrow()
        self.schema = schema.with_metadata({**(schema.metadata or {}), KEY: self.origin})
        self.file, self.is_open = open(self.path, "wb"), True
        if self.is_parquet:
            self.writer: Any = pyarrow.parquet.ParquetWriter(self.file, self.schema)
        else:
            make = pyarrow.ipc.new_stream if self.is_stream else pyarrow.ipc.new_file
            self.writer = make(self.file, self.schema)

    def _flush(self) -> None:
        if self.waiting:
            table = _pyarrow().Table.from_batches(self.waiting)
            self.writer.write_table(table.replace_schema_metadata(self.schema.metadata))
        self.waiting, self.bytes, self.count = [], 0, 0

    def close(self) -> None:
        self._flush()
        self.writer.close()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def abandon(self) -> None:
        if self.is_open:
            self.file.close()
