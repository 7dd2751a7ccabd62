"""The examples of the documentation and the docstrings."""

import doctest
import os
import sys
import unittest

import pteron
from common import REPOSITORY


DOCUMENTS = [REPOSITORY / "docs" / name for name in ("python.md", "batches.md")]


def code():
    """The examples of the documents as one program, for type checkers."""
    parser = doctest.DocTestParser()
    return "".join(example.source for document in DOCUMENTS for example in parser.get_examples(document.read_text()))


def load_tests(loader, tests, pattern):
    before = os.getcwd()

    def enter(_):
        os.chdir(REPOSITORY)

    def leave(_):
        os.chdir(before)

    for document in DOCUMENTS:
        tests.addTests(doctest.DocFileSuite(str(document), module_relative=False, setUp=enter, tearDown=leave))
    tests.addTests(doctest.DocTestSuite(pteron, setUp=enter, tearDown=leave))
    return tests


if __name__ == "__main__":
    print(code()) if sys.argv[1:] == ["--code"] else unittest.main()
