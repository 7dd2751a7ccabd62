#!/usr/bin/env python3
"""Runs the reference wheel's own tests of `executorch.runtime` against `pteron.runtime`.

    python tools/reference/runtime_tests.py [-v]

Needs executorch and pteron in one environment. Replaces the classes of `executorch.runtime` with those of
`pteron.runtime` before the tests import them. The test programs are still exported by the reference.
"""

import pathlib
import sys
import unittest

import executorch.runtime
import pteron.runtime


def main():
    for name in pteron.runtime.__all__:
        if hasattr(executorch.runtime, name):
            setattr(executorch.runtime, name, getattr(pteron.runtime, name))
    folder = pathlib.Path(executorch.runtime.__file__).parent / "test"
    names = [f"executorch.runtime.test.{file.stem}" for file in sorted(folder.glob("test_*.py"))]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=1 + ("-v" in sys.argv)).run(suite)
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed - len(result.skipped)} of {result.testsRun} passed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
