#!/usr/bin/env python3
"""Writes conformance cases for every architecture of a family: undecomposed torch.export archives with PyTorch's outputs.

    python tools/models/wide.py FOLDER --family torchvision|timm|transformers|decoders|programs [NAME...] [--part K/N] [--seconds N]
    pteron verify --archives FOLDER [--backend bef|xnnpack]
    python tools/reference/compiled.py PTERON FOLDER

Each model is exported in a separate process, with a timeout. A line for each says whether it was written,
or why not. Needs torch, and torchvision, timm or transformers.
"""

import argparse
import contextlib
import logging
import os
import pathlib
import signal
import sys
import time
import warnings

HERE = pathlib.Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "reference")]


def export(folder, make, name):
    """Writes one case and exits the process."""
    import torch
    from archives import write_case
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        module, inputs, *rest = make()
        more, dynamic = rest or ((), None)
        # Suppress the exporter's output, which contains whole graphs on failure.
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            write_case(folder / name, module.eval(), inputs, more, dynamic)
        print(name, "written", flush=True)
    except BaseException as e:
        print(name, f"left out: {type(e).__name__}: {' '.join(str(e).split())[:200]}", flush=True)
    os._exit(0)


def ended(child, seconds):
    """Waits for a process; kills it and returns False after `seconds`."""
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.05)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--family", required=True)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--seconds", type=int, default=240)
    args = parser.parse_intermixed_args()
    import archives  # noqa: F401: loads torch once, for all processes
    from catalogue import FAMILIES
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    part, parts = map(int, args.part.split("/"))
    networks = dict(FAMILIES[args.family]())
    for name in args.names or [*networks][part::parts]:
        if (args.folder / name / "case.json").exists():
            continue
        child = os.fork()
        if child == 0:
            export(args.folder, networks[name], name)
        if not ended(child, args.seconds):
            print(name, f"left out: {args.seconds} s are over", flush=True)


if __name__ == "__main__":
    sys.exit(main())
