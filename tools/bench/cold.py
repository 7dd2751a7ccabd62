#!/usr/bin/env python3
"""Load and first inference in a fresh process, on one thread, of the same programs by Pteron and the reference runtime:
seconds of the processor (user and system), seconds on the clock, and memory. Prints a table; each is the least of several
processes.

    python tools/bench/cold.py target/release/pteron MODEL.pte...

Of the reference only what it does after its library is loaded is counted, and only the memory that it takes beyond that;
of Pteron the whole process is. Inputs are zeros. Needs executorch.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

WORKER = """
import os, resource, sys, time
import torch
from executorch.extension.pybindings import portable_lib
torch.set_num_threads(1)
if hasattr(portable_lib, "_unsafe_reset_threadpool"):
    portable_lib._unsafe_reset_threadpool(1)
def rss():
    with open("/proc/self/status") as status:
        return {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith(("VmHWM", "VmRSS"))}
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before, cpu, clock = rss()["VmRSS"], time.process_time(), time.monotonic()
module = portable_lib._load_for_executorch(sys.argv[1])
meta = module.method_meta("forward")
types = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.half, 6: torch.float,
         7: torch.double, 11: torch.bool, 15: torch.bfloat16}
inputs = []
for i in range(meta.num_inputs()):
    info = meta.input_tensor_meta(i)
    inputs.append(torch.zeros(tuple(info.sizes()), dtype=types[info.dtype()]))
module.run_method("forward", inputs)
print(time.process_time() - cpu, time.monotonic() - clock, rss()["VmHWM"] - before)
"""


def reference(model):
    done = subprocess.run([sys.executable, "-c", WORKER, model], check=True, capture_output=True, text=True)
    cpu, clock, peak = done.stdout.split()[-3:]
    return float(cpu), float(clock), float(peak) / 1024


def pteron(command, model):
    start = time.monotonic()
    process = subprocess.Popen([command, "run", model, "--threads", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{model}: status {status}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - start, usage.ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pteron")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print("| program | CPU ms: Pteron | reference | ratio | clock ms: Pteron | reference | ratio | peak MB: Pteron | reference | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in options.models:
        best = lambda run: [min(column) for column in zip(*(run() for _ in range(options.repeat)))]
        ours, theirs = best(lambda: pteron(options.pteron, model)), best(lambda: reference(model))
        name = pathlib.Path(model)
        cells = [name.parent.name if name.stem == "model" else name.stem]
        for i, scale in enumerate([1e3, 1e3, 1]):
            cells += [f"{ours[i] * scale:.1f}", f"{theirs[i] * scale:.1f}", f"{ours[i] / theirs[i]:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
