"""Measures the overhead of a call from Python over one from Rust, for each kind of input and output.

    python tools/bench/python_call.py target/release/pteron PROGRAM [--rounds 10]

From Rust (`pteron run --repeat`) a call sets the inputs and runs the method; from Python it also copies the outputs. Rounds of Rust
and of each kind alternate, so that other load on the machine affects all of them. Prints for each kind the microseconds per call in
the fastest round of 20 calls (from Rust, of the fastest call), the difference from Rust, and the number of copies of inputs and
outputs besides the copy into the method's memory. Kinds whose library is not installed are skipped.
"""

import argparse
import array
import json
import subprocess
import time

import pteron

CALLS = 20


def kinds(info):
    """The kinds of arguments, with an argument of each."""
    bytes_ = bytes(info.nbytes)
    tensor = pteron.Tensor(bytes_, info.dtype, info.shape)
    buffer = memoryview(array.array("B", bytes_)).cast(memoryview(tensor).format, info.shape)
    yield "pteron.Tensor", tensor
    yield "buffer (memoryview)", buffer
    try:
        import numpy

        ndarray = numpy.asarray(tensor).copy()
        yield "NumPy", ndarray
        yield "`__array__`", type("Arrays", (), {"__array__": lambda self, *_, **__: ndarray})()
    except ImportError:
        pass
    yield "DLPack (`__dlpack__`)", type("Lender", (), {"__dlpack__": lambda self, **options: tensor.__dlpack__()})()
    try:
        import torch

        yield "PyTorch", torch.from_dlpack(tensor).clone()
    except ImportError:
        pass


def rust(command, program):
    """Microseconds of the fastest call from Rust."""
    text = subprocess.check_output([command, "run", program, "--repeat", "5000", "--json", "--threads", "1"], stderr=subprocess.DEVNULL)
    return json.loads(text)["latency"]["min_ms"] * 1e3


def round_of(call):
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", help="the pteron command")
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    module = pteron.load(options.program, threads=1)
    [info] = [value.tensor for value in pteron.method_meta(module).inputs if value.tensor]
    calls = {}
    given = dict(kinds(info))
    for name, argument in given.items():
        calls[name] = lambda argument=argument: module(argument)
    method = module.method(module.method_names[0])
    calls["pteron.Tensor, by `module.method(…)`"] = lambda: method(given["pteron.Tensor"])
    outputs = [bytearray(memoryview(output).nbytes) for output in module(given["pteron.Tensor"])]
    shaped = [
        memoryview(into).cast(memoryview(output).format, output.shape)
        for into, output in zip(outputs, module(given["pteron.Tensor"]))
    ]
    calls["pteron.Tensor, into a buffer (`out=`)"] = lambda: module(given["pteron.Tensor"], out=shaped)
    if "PyTorch" in given:
        import torch

        into = [torch.from_dlpack(output).clone() for output in module(given["pteron.Tensor"])]
        calls["PyTorch, into a PyTorch tensor (`out=`)"] = lambda: module(given["PyTorch"], out=into)
        calls["PyTorch, read as PyTorch"] = lambda: torch.from_dlpack(module(given["PyTorch"])[0])
    copied = {}
    for name, call in calls.items():
        before = pteron.copies()
        call()
        after = pteron.copies()
        copied[name] = (after.inputs - before.inputs, after.outputs - before.outputs)
    base, times = [], {name: [] for name in calls}
    for _ in range(options.rounds):
        base.append(rust(options.command, options.program))
        for name, call in calls.items():
            times[name] += [round_of(call) for _ in range(200)]
    base = min(base)
    print("| call | µs | more than Rust's | copies of inputs, of outputs |\n| --- | ---: | ---: | ---: |")
    print(f"| Rust | {base:.2f} | | 0, 0 |")
    for name, all_ in times.items():
        took = min(all_)
        print(f"| {name} | {took:.2f} | {took - base:.2f} | {copied[name][0]}, {copied[name][1]} |")


if __name__ == "__main__":
    main()
