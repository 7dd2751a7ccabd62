"""The examples of the documentation and the docstrings."""

import doctest
import os
import sys
import unittest

import pteron
from common import REPOSITORY


DOCUMENT = REPOSITORY / "docs" / "python.md"


def code():
    """The examples of the document as one program, for type checkers."""
    examples = doctest.DocTestParser().get_examples(DOCUMENT.read_text())
    return "".join(example.source for example in examples)


def load_tests(loader, tests, pattern):
    before = os.getcwd()

    def enter(_):
        os.chdir(REPOSITORY)

    def leave(_):
        os.chdir(before)

    tests.addTests(doctest.DocFileSuite(str(DOCUMENT), module_relative=False, setUp=enter, tearDown=leave))
    tests.addTests(doctest.DocTestSuite(pteron, setUp=enter, tearDown=leave))
    return tests


if __name__ == "__main__":
    print(code()) if sys.argv[1:] == ["--code"] else unittest.main()
