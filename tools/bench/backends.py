#!/usr/bin/env python3
"""Compares the same archives compiled for Pteron's own backend and for no backend, and lowered to XNNPACK and run by the reference.

    python tools/bench/backends.py PTERON [NAME...] [--rounds N]

For each network: CPU time (user and system) from the start of a process to its first result, steady-state time
on one and two threads, and memory of one process and of four concurrent ones, as the sum of their proportional set sizes
(`/proc/PID/smaps_rollup`) after an inference. `bef` is `--backend bef`, `packed` the same with `--target-cpu native`; both
have their weights in a `.ptd`. Files are memory-mapped. For the reference, time starts after its library is loaded, and the
memory that Python had then is subtracted. Each time is the minimum over several rounds, in which the runtimes alternate.
Needs torch, torchvision and executorch; `vit_tiny` needs timm.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from beside import pin

NAMES = "mobilenet_v2", "resnet18", "vit_tiny"
WAYS = "none", "bef", "packed"


def export(name, folder):
    import torch
    import torchvision.models
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    if name == "vit_tiny":
        import timm
        model = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    else:
        model = torchvision.models.get_model(name, weights=None)
    program = torch.export.export(model.eval(), (torch.randn(1, 3, 224, 224),))
    torch.export.save(program, f"{folder}/m.pt2")
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    pathlib.Path(f"{folder}/lowered.pte").write_bytes(lowered.buffer)


def pss(pid):
    """The proportional set size of a process in bytes."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss of process {pid}")


def reference(model, threads, seconds):
    """The reference's process. It is driven by lines on stdin and answers with JSON lines: after its library is loaded (memory),
    after the first and the steady-state inferences (times), and then its memory again."""
    import torch
    from executorch.extension.pybindings import portable_lib
    torch.set_num_threads(threads)
    portable_lib._unsafe_reset_threadpool(threads)
    image = torch.zeros(1, 3, 224, 224)
    answer = lambda **values: print(json.dumps(values), flush=True)
    answer()
    sys.stdin.readline()
    answer(memory=pss("self"))
    sys.stdin.readline()
    cpu = time.process_time()
    module = portable_lib._load_for_executorch(model)
    module.run_method("forward", [image])
    first = time.process_time() - cpu
    times, end = [], time.monotonic() + seconds
    while seconds and (len(times) < 3 or time.monotonic() < end):
        start = time.perf_counter()
        module.run_method("forward", [image], False)
        times.append(time.perf_counter() - start)
    answer(first=first, steady=min(times, default=0))
    sys.stdin.readline()
    answer(memory=pss("self"))


class Reference:
    def __init__(self, folder):
        self.model = f"{folder}/lowered.pte"

    def start(self, threads, seconds):
        command = [sys.executable, __file__, "--reference", self.model, str(threads), str(seconds)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   preexec_fn=pin(threads))
        process.stdout.readline()
        return process

    def go_on(self, processes):
        """Lets processes continue and returns their next answers."""
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in processes]

    def once(self, threads, seconds):
        process = self.start(threads, seconds)
        self.go_on([process])
        [answer] = self.go_on([process])
        process.communicate("\n")
        return answer

    def first(self):
        return self.once(1, 0)["first"]

    def steady(self, threads):
        return self.once(threads, 1)["steady"]

    def memory(self, count):
        processes = [self.start(1, 0) for _ in range(count)]
        total = lambda: sum(answer["memory"] for answer in self.go_on(processes))
        before = total()
        self.go_on(processes)
        added = total() - before
        for process in processes:
            process.communicate()
        return added


class Pteron:
    def __init__(self, command, folder, way):
        self.model, self.command = f"{folder}/{way}.pte", command
        data = f"{folder}/{way}.ptd"
        self.data = ["--data", data] if way != "none" else []
        options = {"none": [], "bef": ["--backend", "bef"], "packed": ["--backend", "bef", "--target-cpu", "native"]}[way]
        to_data = ["--external-data", data] if way != "none" else []
        subprocess.run([command, "compile", f"{folder}/m.pt2", "-o", self.model, *options, *to_data], check=True,
                       stdout=subprocess.DEVNULL)
        self.bytes = sum(os.path.getsize(path) for path in (self.model, *self.data[1:]))

    def run(self, threads, repeat=0):
        command = [self.command, "run", self.model, *self.data, "--load", "mmap", "--json", "--threads", str(threads)]
        command += ["--repeat", str(repeat)] if repeat else []
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=pin(threads))

    def first(self):
        process = self.run(1)
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        if status:
            raise RuntimeError(f"{self.model}: {status}")
        return usage.ru_utime + usage.ru_stime

    def steady(self, threads):
        out, _ = self.run(threads, 20).communicate()
        return json.loads(out)["latency"]["min_ms"] / 1e3

    def memory(self, count):
        # Practically endless runs, so that all processes are alive at once.
        processes = [self.run(1, 1_000_000) for _ in range(count)]
        time.sleep(2 + 2 * count)
        total = sum(pss(process.pid) for process in processes)
        for process in processes:
            process.kill()
            process.communicate()
        return total


def main():
    if "--export" in sys.argv:
        return export(*sys.argv[-2:])
    if "--reference" in sys.argv:
        model, threads, seconds = sys.argv[-3:]
        return reference(model, int(threads), float(seconds))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pteron")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="folder to keep the exported files in, for another run")
    args = parser.parse_args()
    print("| network | | file | first, CPU | steady, 1 thread | 2 threads | memory, 1 process | 4 processes |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in args.names or NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.folder / name if args.folder else pathlib.Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "lowered.pte").exists():
                subprocess.run([sys.executable, __file__, "--export", name, folder], check=True, stdout=subprocess.DEVNULL)
            runtimes = {way: Pteron(args.pteron, folder, way) for way in WAYS}
            runtimes["reference, XNNPACK"] = last = Reference(folder)
            last.bytes = os.path.getsize(last.model)
            rows = {way: [r.bytes / 1e6] for way, r in runtimes.items()}
            for measure, scale in (
                (lambda r: r.first(), 1e3),
                (lambda r: r.steady(1), 1e3),
                (lambda r: r.steady(2), 1e3),
            ):
                best = {way: float("inf") for way in runtimes}
                for _ in range(args.rounds):
                    for way, runtime in runtimes.items():
                        best[way] = min(best[way], measure(runtime) * scale)
                for way in runtimes:
                    rows[way].append(best[way])
            for count in (1, 4):
                for way, runtime in runtimes.items():
                    rows[way].append(runtime.memory(count) / 1e6)
            for way, (size, first, one, two, single, four) in rows.items():
                print(f"| {name} | {way} | {size:.1f} MB | {first:.1f} ms | {one:.2f} ms | {two:.2f} ms | {single:.1f} MB | "
                      f"{four:.1f} MB |", flush=True)


if __name__ == "__main__":
    main()
