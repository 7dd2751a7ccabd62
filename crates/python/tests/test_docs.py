"""The examples of the documents."""

import doctest
import os
import unittest

import pteron
from common import REPOSITORY


def load_tests(loader, tests, pattern):
    before = os.getcwd()

    def enter(_):
        os.chdir(REPOSITORY)

    def leave(_):
        os.chdir(before)

    document = str(REPOSITORY / "docs" / "python.md")
    tests.addTests(doctest.DocFileSuite(document, module_relative=False, setUp=enter, tearDown=leave))
    tests.addTests(doctest.DocTestSuite(pteron, setUp=enter, tearDown=leave))
    return tests


if __name__ == "__main__":
    unittest.main()
