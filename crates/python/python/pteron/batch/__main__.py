"""The command `python -m pteron.batch`."""

import argparse
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

from ..errors import Error
from .files import map_files
from .mapper import Mapper
from .pictures import Pictures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pteron.batch",
        description="Executes a program over the rows of Parquet and Arrow files, on all cores and in bounded memory. Each output "
        "file appears when it is complete; a further run makes those that are not there.",
    )
    parser.add_argument("model", help="the program: a .pte, .pt2 or .bpte file")
    parser.add_argument("files", nargs="+", help=".parquet, .arrow, .feather, .ipc and .arrows files, or folders of them")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder for files of the same names")
    parser.add_argument(
        "--input",
        action="append",
        metavar="[INPUT=]COLUMN[,COLUMN...]",
        help="the column for an input, by its name or position, or in the order of the inputs; several columns of numbers make one input",
    )
    parser.add_argument("--outputs", metavar="NAME[,NAME...]", help="the names of the output columns")
    parser.add_argument("--keep", metavar="COLUMN[,COLUMN...]", help="the columns that are kept, or an empty text for none; all by default")
    parser.add_argument("--top", type=int, metavar="N", help="write the indices and values of the largest elements")
    parser.add_argument("--labels", metavar="FILE", help="write labels instead of indices: a text file with one in each line")
    parser.add_argument("--pictures", action="store_true", help="decode the PNG and JPEG files, or their paths, in the input columns")
    parser.add_argument("--values", choices=("unit", "signed", "imagenet"), help="the values of pictures")
    parser.add_argument("--resize", type=_size, metavar="N|HxW", help="the size that pictures are resized to: the shorter side, or both")
    parser.add_argument("--crop", type=_size, metavar="N|HxW", help="the center of pictures that is kept")
    parser.add_argument("--key", metavar="COLUMN", help="the column by which errors name rows")
    parser.add_argument(
        "--on-error",
        choices=("null", "raise"),
        default="null",
        help="give failed rows null results and a reason in the column `error`, or end; null by default",
    )
    parser.add_argument("--nonfinite", choices=("error", "allow"), default="error", help="whether rows with NaN or infinity fail")
    parser.add_argument("--inexact", action="store_true", help="accept rows that are smaller than a dynamic input's bound")
    parser.add_argument("--method", help="the method of the program")
    parser.add_argument("--data", action="append", default=[], metavar="FILE", help="a .ptd file with weights of the program")
    parser.add_argument("--batch-size", type=int, metavar="N", help="the maximum number of rows of an execution")
    parser.add_argument("--rows", type=int, default=4096, metavar="N", help="the number of rows that are read at a time; 4096 by default")
    parser.add_argument("--threads", type=int, metavar="N", help="the number of threads; all cores by default")
    parser.add_argument("--again", action="store_true", help="replace outputs that are there")
    return parser


def _size(text: str) -> Any:
    sizes = [int(size) for size in text.split("x")]
    return sizes[0] if len(sizes) == 1 else tuple(sizes)


def _pictures(options: argparse.Namespace) -> Optional[Pictures]:
    given = (options.resize, options.crop, options.values)
    return Pictures(*given) if options.pictures or any(given) else None


def _inputs(given: Optional[Sequence[str]]) -> Any:
    if not given:
        return None
    split = [text.rpartition("=") for text in given]
    columns = [columns.split(",") for _, _, columns in split]
    if not any(sign for _, sign, _ in split):
        return columns
    named: Dict[Any, List[str]] = {}
    for i, (name, _, _) in enumerate(split):
        named[int(name) if name.isdigit() else name or i] = columns[i]
    return named


class _Progress:
    """The rows so far, on a terminal."""

    def __init__(self) -> None:
        self.rows, self.shown, self.started = 0, 0.0, time.monotonic()
        self.is_shown = sys.stderr.isatty()
        self.lock = threading.Lock()

    def __call__(self, rows: int) -> None:
        with self.lock:
            self.rows += rows
            now = time.monotonic()
            if self.is_shown and now - self.shown > 0.5:
                self.shown = now
                print(f"\r{self.rows:,} rows, {self.rows / (now - self.started):,.0f} a second", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.is_shown and self.shown:
            print(file=sys.stderr)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns its exit status: 0 if all files are there, 1 if an error ended it."""
    options = _parser().parse_args(arguments)
    progress = _Progress()
    try:
        model = Mapper(
            options.model,
            method=options.method,
            inputs=_inputs(options.input),
            outputs=None if options.outputs is None else options.outputs.split(","),
            keep=True if options.keep is None else [name for name in options.keep.split(",") if name],
            on_error=options.on_error,
            key=options.key,
            exact=not options.inexact,
            nonfinite=options.nonfinite,
            batch_size=options.batch_size,
            top=options.top,
            labels=options.labels,
            decode=_pictures(options),
            data=options.data,
        )
        files = map_files(
            model,
            options.files,
            options.output,
            threads=options.threads,
            rows=options.rows,
            again=options.again,
            progress=progress,
        )
    except (Error, OSError, ValueError) as error:
        progress.end()
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n  ", file=sys.stderr)
        return 1
    progress.end()
    for file in files:
        old = ", made before" if file.is_old else f" in {file.seconds:.1f} s"
        print(f"{file.output}: {file.rows:,} rows, {file.failed:,} without a result{old}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
