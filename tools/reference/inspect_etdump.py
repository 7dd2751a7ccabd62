#!/usr/bin/env python3
"""Checks that the reference's Inspector reads the ETDumps of `pteron profile`.

Profiles every program with its intermediate values, once prepared and once as written (`--no-prepare`). The Inspector
must find a timed event for every executed instruction, and the recorded values. If the reference's own ETDump is stored
beside the program, the values of the as-written run are compared with it.

    pip install executorch
    tools/reference/inspect_etdump.py target/release/pteron testdata/corpus/wild/etdump_portable/model.pte...
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from executorch.devtools import Inspector


def events(dump, buffer):
    inspector = Inspector(etdump_path=str(dump), debug_buffer_path=str(buffer))
    blocks = {block.name: block for block in inspector.event_blocks}
    inspector.print_data_tabular(file=open("/dev/null", "w"))
    return blocks["Execute"].events, blocks["Default"].events


def operators(found):
    calls = [e for e in found if e.name and e.name.startswith("native_call_")]
    assert all(e.perf_data.raw and min(e.perf_data.raw) >= 0 for e in calls), "a call without a time"
    return {e._instruction_id: e for e in calls}


def close(a, b):
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in zip(a, b, strict=True))


def check(pteron, model, inputs):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        counts = []
        for mode in ([], ["--no-prepare"]):
            dump, buffer = folder / "run.etdp", folder / "values.bin"
            command = [pteron, "profile", model, *inputs, *mode, "--etdump", dump, "--debug-buffer", buffer]
            subprocess.run(command, check=True, capture_output=True)
            execute, load = events(dump, buffer)
            calls = operators(execute)
            values = {i: e.debug_data for i, e in calls.items() if len(e.debug_data)}
            assert any(e.name == "Method::execute" for e in execute), "no event of the whole run"
            assert any(e.name == "Program::load_method" for e in load), "no event of loading"
            assert values, "no value was recorded"
            counts.append((len(calls), len(values)))
        recorded = model.with_name("etdump.etdp")
        compared = 0
        if recorded.exists() and inputs:
            theirs = operators(events(recorded, model.with_name("debug_buffer.bin"))[0])
            assert theirs.keys() == calls.keys(), (theirs.keys(), calls.keys())
            for i, event in theirs.items():
                assert event.name == calls[i].name, (event.name, calls[i].name)
                assert close(event.debug_data, calls[i].debug_data), f"instruction {i} differs"
                compared += 1
        (steps, known), (calls, values) = counts
        print(
            f"{model}: as written {calls} calls, {values} with values; prepared {steps} steps, {known} with"
            f" values; {compared} instructions compared with the reference's own ETDump"
        )


def main():
    pteron, *models = sys.argv[1:]
    for model in map(pathlib.Path, models):
        inputs = []
        if model.with_name("etdump.etdp").exists():
            # The reference dumped the first recorded run. Its input is 2x8 floats at the start of io.bin.
            with tempfile.NamedTemporaryFile(delete=False) as file:
                file.write(model.with_name("io.bin").read_bytes()[:64])
            inputs = [f"2x8xf32=@{file.name}"]
        check(pteron, model, inputs)


main()
