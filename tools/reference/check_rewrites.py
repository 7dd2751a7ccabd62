#!/usr/bin/env python3
"""Runs programs rewritten by Pteron on the reference runtime.

Rewrites every case of a corpus with both writers of the format crate (`copy` and `build`), then runs the original
and the copies with pip's executorch on the recorded inputs: the outputs must be byte-identical. The stock flatbuffers
package must find the same root table despite the extended header.

    pip install executorch flatbuffers
    tools/reference/check_rewrites.py CORPUS [--report FILE]
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GROUPS = ["tiny", "models", "wild", "compat"]


def tensor(torch, folder, spec):
    raw = (folder / spec["file"]).read_bytes()[spec["offset"] : spec["offset"] + spec["nbytes"]]
    dtype = getattr(torch, spec["dtype"])
    shape = spec["shape"]
    if not raw:
        flat = torch.empty(0, dtype=dtype)
    else:
        flat = torch.frombuffer(bytearray(raw), dtype=dtype)
    value = flat.reshape(shape)
    order = spec.get("dim_order") or list(range(len(shape)))
    if order != sorted(order):
        inverse = [order.index(d) for d in range(len(order))]
        value = value.permute(order).contiguous().permute(inverse)
    return value


def value(torch, folder, spec):
    kind = spec["kind"]
    if kind == "tensor":
        return tensor(torch, folder, spec)
    if kind == "none":
        return None
    if kind == "list":
        return [value(torch, folder, item) for item in spec["items"]]
    if kind == "double":
        return float(spec["value"])
    return spec["value"]


def flatten(torch, out):
    if isinstance(out, torch.Tensor):
        # Compare bytes, so that NaN equals NaN.
        raw = out.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if out.numel() else b""
        return ("tensor", str(out.dtype), tuple(out.shape), raw)
    if isinstance(out, (list, tuple)):
        return tuple(flatten(torch, item) for item in out)
    return repr(out)


def run(folder, case, model, data):
    """Loads and runs a program in a child process, because the reference may crash. Returns an outcome for each run:
    its flattened outputs, or an error message."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        import pickle

        import torch
        from executorch.extension.pybindings import portable_lib

        outcome = []
        try:
            program = portable_lib._load_for_executorch(str(model), str(data) if data else None)
            for step in case["runs"]:
                inputs = tuple(value(torch, folder, spec) for spec in step["inputs"])
                try:
                    outcome.append(flatten(torch, program.run_method(step["method"], inputs)))
                except Exception as error:
                    outcome.append(f"refused: {str(error).splitlines()[0]}")
        except Exception as error:
            outcome.append(f"not loaded: {str(error).splitlines()[0]}")
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        raw = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        return [f"died: status {status}"]
    import pickle

    return pickle.loads(raw)


def as_recorded(torch, folder, case, found):
    """Whether the outputs are close to the recorded outputs of the case."""
    for step, outputs in zip(case["runs"], found):
        if isinstance(outputs, str):
            return False
        for spec, out in zip(step["outputs"], outputs):
            if spec["kind"] != "tensor":
                continue
            dtype = getattr(torch, spec["dtype"])
            was = tensor(torch, folder, spec)
            got = torch.frombuffer(bytearray(out[3]), dtype=dtype).reshape(out[2]) if out[3] else was
            if not torch.allclose(got.double(), was.double(), rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
    return True


def stock_root(path):
    """The method names, read with the flatbuffers package."""
    import flatbuffers
    from flatbuffers.table import Table

    raw = bytearray(path.read_bytes())
    root = flatbuffers.encode.Get(flatbuffers.packer.uoffset, raw, 0)
    table = Table(raw, root)
    plans = table.Offset(4 + 2 * 1)
    names = []
    for i in range(table.VectorLen(plans)):
        plan = Table(raw, table.Indirect(table.Vector(plans) + 4 * i))
        names.append(plan.String(plan.Offset(4) + plan.Pos))
    return names


def recorded(path):
    """Blocks and events of an ETDump, read with the reference's Inspector."""
    from executorch.devtools import Inspector

    blocks = Inspector(etdump_path=str(path)).event_blocks
    return [(b.name, [(e.name, e.perf_data and e.perf_data.raw) for e in b.events]) for b in blocks]


def bundled(path):
    """A bundled program, read with the reference's deserializer."""
    from executorch.devtools.bundled_program.serialize import deserialize_from_flatbuffer_to_bundled_program

    return deserialize_from_flatbuffer_to_bundled_program(path.read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--rewrite", type=pathlib.Path, help="built `rewrite` example of the format crate")
    options = parser.parse_args()
    import torch  # noqa: F401  (loaded once, before the forks)
    from executorch.extension.pybindings import portable_lib  # noqa: F401
    import executorch.kernels.quantized  # noqa: F401
    import importlib.metadata

    rewrite = options.rewrite
    if rewrite is None:
        command = ["cargo", "run", "--quiet", "--release", "-p", "pteron-format", "--example", "rewrite"]
    else:
        command = [str(rewrite)]
    counts = collections.defaultdict(collections.Counter)
    failures = []
    for group in GROUPS:
        for path in sorted((options.corpus / group).rglob("case.json")):
            case = json.loads(path.read_text())
            folder = path.parent
            model = folder / case.get("model", "model.pte")
            files = [f if isinstance(f, str) else f["file"] for f in case.get("data_files", [])]
            if not model.exists() or len(files) > 1:
                counts[group]["set aside"] += 1
                continue
            with tempfile.TemporaryDirectory() as scratch:
                scratch = pathlib.Path(scratch)
                jobs = [(mode, model, scratch / f"{mode}.pte") for mode in ("copy", "build")]
                jobs += [("build", folder / file, scratch / "data.ptd") for file in files]
                lines = "".join(f"{mode}\t{old}\t{new}\n" for mode, old, new in jobs)
                subprocess.run(command, input=lines.encode(), check=True, cwd=ROOT)
                data = folder / files[0] if files else None
                expected = run(folder, case, model, data)
                refused = any(str(step).startswith(("not loaded", "refused", "died")) for step in expected)
                name = f"{group}/{folder.relative_to(options.corpus / group)}"
                same, better = True, False
                for mode in ("copy", "build"):
                    new = scratch / f"{mode}.pte"
                    found = run(folder, case, new, scratch / "data.ptd" if files else None)
                    if found != expected and refused and as_recorded(torch, folder, case, found):
                        better = True
                    elif found != expected:
                        same = False
                        failures.append(f"{name} ({mode})")
                    if stock_root(new) != stock_root(model):
                        same = False
                        failures.append(f"{name} ({mode}, stock flatbuffers)")
                kinds = [(not same, "failed"), (better, "better"), (refused, "refused"), (True, "same")]
                counts[group][next(kind for holds, kind in kinds if holds)] += 1
    others = []
    for suffix, see in [(".etdp", recorded), (".bpte", bundled)]:
        for path in sorted((options.corpus / "wild").rglob(f"*{suffix}")):
            with tempfile.TemporaryDirectory() as scratch:
                new = pathlib.Path(scratch) / path.name
                subprocess.run(command, input=f"copy\t{path}\t{new}\n".encode(), check=True, cwd=ROOT)
                same = see(new) == see(path)
            name = f"wild/{path.parent.name}/{path.name}"
            others.append(f"- {name}: {'the same' if same else 'different'}")
            if not same:
                failures.append(name)
    lines = [
        "# Files written by Pteron, run by the reference runtime",
        "",
        "This report checks that files which Pteron has read and written again still work on the reference runtime:",
        f"executorch {importlib.metadata.version('executorch')}, torch {torch.__version__}, {datetime.date.today()}. It is "
        "written by",
        "`tools/reference/check_rewrites.py CORPUS --report FILE`; no times are measured, so the machine is not recorded.",
        "",
        "Each program was written twice, once with the original tables (`copy`) and once rebuilt from its parts with a new",
        "layout (`build`), and its `.ptd` was written once. The original and the copies ran on the recorded inputs. A copy",
        "passes if its outputs are byte-identical, if it is rejected in the same way as the original, or if it returns the",
        "recorded outputs where the original was rejected. In addition, the Python `flatbuffers` package must read the same",
        "method names from each copy. Cases without a program, or with several data files, are skipped (\"set aside\").",
        "",
        "| group | same outputs | refused as the original | runs, the original was refused | failed | set aside |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for group in GROUPS:
        c = counts[group]
        lines.append(
            f"| {group} | {c['same']} | {c['refused']} | {c['better']} | {c['failed']} | {c['set aside']} |"
        )
    lines += ["", "As the reference's Inspector sees ETDumps and its reader bundled programs, written again:", ""]
    lines += others
    lines += [""] + [f"- failed: {name}" for name in failures]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if options.report:
        options.report.write_text(text)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
