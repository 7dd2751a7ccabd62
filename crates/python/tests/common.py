"""Helpers of the tests: programs of the repository, and arrays without NumPy."""

import array
import os
import pathlib

REPOSITORY = pathlib.Path(os.environ.get("PTERON_REPOSITORY", pathlib.Path(__file__).parents[3]))
DIGITS = REPOSITORY / "examples" / "digits" / "digits.pte"
CORPUS = REPOSITORY / "testdata" / "corpus"

try:
    import numpy
except ImportError:
    numpy = None

try:
    import torch
except ImportError:
    torch = None


def corpus(name):
    """The path of a case's program."""
    return CORPUS / name / "model.pte"


def floats(shape, values):
    """A buffer of float32 without NumPy."""
    flat = memoryview(array.array("f", values)).cast("B")
    return flat.cast("f", shape) if shape else flat.cast("f")
