#!/usr/bin/env python3
"""Runs the tests of TFRT (the `.mlir` files with RUN lines) that a folder has, with `pteron` in place of its tools.

    run_tests.py --pteron target/release/pteron FOLDER [--only TEXT] [--verbose]

The folder is a checkout of github.com/tensorflow/runtime, or a part of it, such as `mlir_tests`. Each test is passed,
failed (with the first reason) or not run (with what it wants). `tfrt_opt` without passes is a translation to BEF and back;
its passes, and drivers with kernels of their own, are not there.
"""

import argparse
import collections
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import filecheck


class NotRun(Exception):
    """A test that needs what is not there."""


def run_lines(source):
    """The RUN lines of a test, with continued ones joined."""
    lines, open_line = [], ""
    for match in re.finditer(r"RUN:(.*)", source):
        text = open_line + match[1].strip()
        open_line = text[:-1] if text.endswith("\\") else ""
        if not open_line:
            lines.append(text)
    return lines


class Test:
    def __init__(self, path, pteron, work):
        self.path, self.pteron, self.work = path, pteron, work
        self.source = path.read_text(errors="replace")
        self.bef = work / (path.name + ".bef")
        self.merge = subprocess.PIPE

    def run(self):
        lines = run_lines(self.source)
        if not lines:
            raise NotRun("no RUN line")
        if any("%s.bef" in line for line in lines):
            done = self.call(["translate", str(self.path), "-o", str(self.bef)])
            if done.returncode:
                raise filecheck.Failure("translate: " + first(done.stderr))
        for line in lines:
            self.pipeline(line)

    def pipeline(self, line):
        data, errors, status = b"", b"", 0
        for part in re.split(r"(?<!2>&1)\|(?!\|)", line):
            merge = "2>&1" in part
            words = shlex.split(part.replace("2>&1", "").replace("> /dev/null", ""))
            words = [word.replace("%s.bef", str(self.bef)).replace("%s", str(self.path)) for word in words]
            expect_failure = words[0] == "not"
            words = words[1:] if expect_failure else words
            # A tool's own order of both streams.
            self.merge = subprocess.STDOUT if merge else subprocess.PIPE
            status, out, err = self.tool(words, data)
            if expect_failure != (status != 0):
                raise filecheck.Failure("%s: exit %d: %s" % (words[0], status, first(err or out)))
            errors += err
            data = out
        return data

    def tool(self, words, data):
        name, *arguments = words
        if name == "FileCheck":
            return self.check(arguments, data)
        if name in ("cat", "od", "grep"):
            done = subprocess.run(words, input=data, capture_output=True)
            return done.returncode, done.stdout, done.stderr
        if name in ("bef_executor", "bef_executor_lite"):
            return self.executor(arguments, data)
        if name == "tfrt_translate":
            return self.translate(arguments, data)
        if name == "tfrt_opt":
            return self.opt(arguments, data)
        raise NotRun("the tool " + name)

    def check(self, arguments, data):
        prefixes = ["CHECK"]
        for argument in arguments:
            if match := re.match(r"-?-check-prefix(?:es)?=(.*)", argument):
                prefixes = match[1].split(",")
        filecheck.check(self.source, data.decode(errors="replace"), prefixes)
        return 0, b"", b""

    def call(self, arguments, data=b""):
        streams = {"stdout": subprocess.PIPE, "stderr": self.merge}
        done = subprocess.run([self.pteron, *arguments], input=data, timeout=60, **streams)
        done.stderr = done.stderr or b""
        return done

    def executor(self, arguments, data):
        options, files, queue, allocator = [], [], "s", "leak_check_allocator"
        words = iter(arguments)
        for word in words:
            name, _, value = word.lstrip("-").partition("=")
            if not word.startswith("-"):
                files.append(word)
                continue
            if name == "print_error_code":
                options.append("--print-error-code")
                continue
            if name in ("enable_tracing", "tracing_level"):
                raise NotRun("the text of a trace (`pteron profile` shows one)")
            value = value or next(words)
            if name == "work_queue_type":
                queue = value
            elif name == "host_allocator_type":
                allocator = value
            elif name == "test_init_function":
                options += ["--init", value]
            elif name == "functions":
                options += ["--functions", value]
            else:
                raise NotRun("the option " + word)
        if allocator != "leak_check_allocator":
            raise NotRun("the allocator " + allocator)
        done = self.call(["bef", "run", *(files or ["-"]), "--limits", "none", "--work-queue", queue, *options], data)
        kind = "single-threaded" if queue == "s" else "multi-threaded"
        begin = "Choosing memory leak check allocator.\nChoosing %s work queue.\n" % kind
        return done.returncode, begin.encode() + done.stdout, done.stderr

    def translate(self, arguments, data):
        flags = {word.lstrip("-").partition("=")[0] for word in arguments if word.startswith("-")}
        files = [word for word in arguments if not word.startswith("-")] or ["-"]
        if "bef-to-mlir" in flags:
            form = ["--generic"] if "mlir-print-op-generic" in flags else []
            keep = [] if "mlir-print-debuginfo" in flags else ["--no-locations"]
            done = self.call(["translate", *files, *form, *keep], data)
            return done.returncode, done.stdout, done.stderr
        if "verify-diagnostics" in flags:
            return self.verify(files, flags, data)
        small = ["--no-optional-sections"] if "disable-optional-sections" in flags else []
        done = self.call(["translate", *files, *small], data)
        return done.returncode, done.stdout, done.stderr

    def verify(self, files, flags, data):
        split = ["--split-input-file"] if "split-input-file" in flags else []
        done = self.call(["translate", *files, "--verify-diagnostics", *split], data)
        return done.returncode, done.stdout, done.stderr

    def opt(self, arguments, data):
        flags = {word.lstrip("-").partition("=")[0] for word in arguments if word.startswith("-")}
        files = [word for word in arguments if not word.startswith("-")] or ["-"]
        passes = flags - {"split-input-file", "verify-diagnostics", "allow-unregistered-dialect"}
        if passes:
            raise NotRun("the pass " + ", ".join(sorted(passes)))
        if "verify-diagnostics" in flags:
            return self.verify(files, flags, data)
        done = self.call(["translate", *files], data)
        if done.returncode:
            return done.returncode, b"", done.stderr
        back = self.call(["translate", "-", "--no-locations"], done.stdout)
        return back.returncode, back.stdout, back.stderr


def first(text):
    lines = text.decode(errors="replace").splitlines()
    return lines[0] if lines else "no message"


def outcome(path, pteron):
    with tempfile.TemporaryDirectory() as work:
        try:
            Test(path, pteron, pathlib.Path(work)).run()
            return "passed", ""
        except NotRun as reason:
            return "not run", str(reason)
        except filecheck.Failure as reason:
            # Kernels of TFRT's CPU backend, of its file format for tensors, and of TensorFlow.
            lacking = re.search(r"(unknown kernel name '[^']*'|[\w.]+ was not supported)", str(reason))
            return ("not run", lacking[1]) if lacking else ("failed", str(reason))
        except (re.error, subprocess.TimeoutExpired, StopIteration) as reason:
            return "failed", str(reason)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pteron", default="pteron")
    parser.add_argument("--only", default="", help="tests whose path contains this")
    parser.add_argument("--verbose", action="store_true", help="list the tests that pass, too")
    options = parser.parse_args()
    counts = collections.Counter()
    for path in sorted(options.folder.rglob("*.mlir")):
        name = str(path.relative_to(options.folder))
        if options.only not in name:
            continue
        result, reason = outcome(path, options.pteron)
        counts[result] += 1
        if reason or options.verbose:
            print(f"{result:8} {name}  {reason}")
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
