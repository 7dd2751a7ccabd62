#!/usr/bin/env python3
"""Counts the instructions of one execution of programs on 64-bit Arm, under QEMU, by class.

    python tools/arm/count.py PTERON MODEL.pte... [--cpu NAME:...] [--reference WHEEL/executorch] [--check | --record]

PTERON is the command built for aarch64-unknown-linux-gnu. A count is half the difference of a process that executes the
program three times and one that does so once, on one thread, with inputs of zeros: exact, and the same on every machine.
It judges work, not speed. With the unpacked wheel of the reference for aarch64 (pip download executorch --platform
manylinux_2_28_aarch64 --no-deps), its counts of the same programs stand beside.

`--check` compares with `bounds.json`, which `--record` writes: a count may be 2 % above its bound, and f32 products
must be those of vectors. Names there are the last two parts of a program's path.

Needs qemu-aarch64 with plugins (Debian's qemu-user), a C compiler, the libraries of aarch64 (libc6-dev-arm64-cross), and for
the reference aarch64-linux-gnu-g++.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
BOUNDS = HERE / "bounds.json"
LIBRARIES = "/usr/aarch64-linux-gnu"
# Without vectors of any length, which QEMU emulates for `max` alone and the reference's 8-bit kernels get wrong there.
MACHINES = "cortex-a53:neoverse-n1:max,sve=off,sme=off"
ALLOWED = 1.02


def build(work, reference):
    """Builds the plugin and, if its wheel is given, the reference's program; returns their paths."""
    plugin = work / "count.so"
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-o", plugin, HERE / "count.c"], check=True)
    if not reference:
        return plugin, None
    program, root = work / "reference", reference.resolve()
    libraries = ["", "_kernels_optimized", "_kernels_quantized", "_backend_xnnpack", "_threadpool"]
    subprocess.run(
        ["aarch64-linux-gnu-g++", "-std=c++17", "-w", "-O2", f"-I{root}/include"]
        + [f"-I{root}/include/executorch/runtime/core/portable_type/c10", "-DC10_USING_CUSTOM_GENERATED_MACROS"]
        + [HERE / "reference.cpp", f"-L{root}/lib", "-Wl,--no-as-needed", f"-Wl,-rpath,{root}/lib"]
        + [f"-lexecutorch{name}" for name in libraries]
        + ["-o", program],
        check=True,
    )
    return plugin, program


def executed(plugin, cpu, command, counts):
    """The instructions that a process executes."""
    emulator = ["qemu-aarch64", "-L", LIBRARIES, "-cpu", cpu, "-plugin", f"{plugin},out={counts}"]
    done = subprocess.run(emulator + command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(counts.read_text())


def one_execution(plugin, cpu, command_of, work):
    """The instructions of one execution, of which `command_of` gives the command that makes a number."""
    once, thrice = (executed(plugin, cpu, command_of(n), work / "counts.json") for n in (1, 3))
    return {name: (thrice[name] - once[name]) // 2 for name in once}


def name_of(model):
    return "/".join(pathlib.Path(model).resolve().parts[-2:])


def faults(name, cpu, counts, bound):
    """What is wrong with the counts of a program whose recorded ones are `bound`."""
    if bound is None:
        return [f"{name} on {cpu}: no bound is recorded"]
    found = []
    if counts["total"] > bound["total"] * ALLOWED:
        found.append(f"{name} on {cpu}: {counts['total']} instructions, recorded were {bound['total']}")
    if counts["fma_scalar"] > max(bound["fma_scalar"] * ALLOWED, counts["total"] // 1000):
        found.append(f"{name} on {cpu}: {counts['fma_scalar']} multiply-adds of scalars, recorded were {bound['fma_scalar']}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pteron")
    parser.add_argument("models", nargs="+", metavar="MODEL.pte")
    parser.add_argument("--cpu", default=MACHINES, help="machines of qemu-aarch64, separated by colons")
    parser.add_argument("--reference", type=pathlib.Path, help="the unpacked wheel's folder `executorch`")
    parser.add_argument("--check", action="store_true", help="fail where a recorded bound is exceeded")
    parser.add_argument("--record", action="store_true", help="write the counts to bounds.json")
    arguments = parser.parse_args()
    bounds = json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    wrong = []
    print(f"{'program':44} {'machine':24} {'millions':>10} {'reference':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        plugin, reference = build(work, arguments.reference)
        for model in arguments.models:
            name = name_of(model)
            for cpu in arguments.cpu.split(":"):
                own = lambda n: [arguments.pteron, "run", "-t", "1", "--repeat", str(n), model]
                counts = one_execution(plugin, cpu, own, work)
                line = f"{name:44} {cpu:24} {counts['total'] / 1e6:10.3f}"
                if reference:
                    other = one_execution(plugin, cpu, lambda n: [reference, model, str(n)], work)
                    line += f" {other['total'] / 1e6:10.3f} {counts['total'] / other['total']:6.2f}"
                print(line, flush=True)
                if arguments.check:
                    wrong += faults(name, cpu, counts, bounds.get(name, {}).get(cpu))
                if arguments.record:
                    bounds.setdefault(name, {})[cpu] = counts
    if arguments.record:
        BOUNDS.write_text(json.dumps(bounds, indent=1, sort_keys=True) + "\n")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
