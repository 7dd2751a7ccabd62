"""Classifies pictures of digits in a table. The program takes one picture at a time, the table has any number.

    python examples/batches/images.py [ray | spark | daft | datafusion] [--fail]
"""

import pathlib
import struct
import sys
import zlib

import pyarrow

from engines import run_with
from pteron.batch import Mapper

DIGITS = pathlib.Path(__file__).parents[1] / "digits"


def pixels(png):
    """The pixels of an 8-bit greyscale PNG file, one byte each, with the filters of the lines undone."""
    data, at, packed = png.read_bytes(), 8, b""
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack_from(">IIBB", data, at + 8)
            assert (depth, colour) == (8, 0), "a grey picture of eight bits is wanted"
        elif kind == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += size + 12
    lines, above = zlib.decompress(packed), bytes(width)
    result = b""
    for row in range(height):
        start = row * (width + 1)
        line = bytearray(lines[start + 1 : start + 1 + width])
        for x in range(width):
            left, up = line[x - 1] if x else 0, above[x]
            corner = above[x - 1] if x else 0
            guess = left + up - corner
            nearest = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            line[x] = (line[x] + (0, left, up, (left + up) // 2, nearest)[lines[start]]) % 256
        above = bytes(line)
        result += above
    return result


def main():
    files = sorted(DIGITS.glob("?.png"))
    pictures = [pixels(file) for file in files]
    # A truncated picture.
    pictures.append(pictures[0][:40])
    # The program takes grey values from 0 to 1.
    values = [[value / 255 for value in picture] for picture in pictures]
    names = [file.name for file in files] + ["cut.png", "missing.png"]
    table = pyarrow.table({"file": names, "picture": pyarrow.array([*values, None], pyarrow.list_(pyarrow.float32()))})
    model = Mapper(
        DIGITS / "digits.pte", inputs="picture", outputs="scores", keep=["file"], on_error="null", lists="any"
    )
    result = run_with(sys.argv[1:], model, table, "file string, scores array<float>, error string")
    labels = (DIGITS / "labels.txt").read_text().split()
    for row in sorted(result.to_pylist(), key=lambda row: row["file"]):
        scores = row["scores"]
        if scores is None:
            print(f"{row['file']}: {row['error']}")
        else:
            best = max(range(len(scores)), key=scores.__getitem__)
            print(f"{row['file']}: {labels[best]} ({scores[best]:.3f})")


if __name__ == "__main__":
    main()
