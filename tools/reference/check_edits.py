#!/usr/bin/env python3
"""Runs programs edited by the pteron command on the reference runtime.

Edits every program of a corpus with strip, set-task, externalize, embed and dedupe, then runs the original and the edited
programs with pip's executorch on the recorded inputs: the outputs must be byte-identical. The stock flatbuffers
package must read the same method names from each result.

    pip install executorch flatbuffers
    tools/reference/check_edits.py CORPUS --pteron target/release/pteron [--report FILE]
"""

import argparse
import collections
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

from check_rewrites import GROUPS, as_recorded, run, stock_root

VERBS = ["strip", "set-task", "externalize", "embed", "dedupe"]
NOTHING = ["no weights", "in common"]


def edited(pteron, model, data, scratch):
    """For each verb, the edited programs, each with its data file; None if the verb had nothing to move."""

    def command(*arguments):
        done = subprocess.run([pteron, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode == 0:
            return True
        if done.returncode == 1 and any(text in done.stderr for text in NOTHING):
            return False
        raise RuntimeError(f"pteron {arguments[0]}: {done.stderr.strip()}")

    def together(new, name):
        """The data file of an edited program: `new` merged with the original data file."""
        if data is None:
            return new
        command("merge", new, data, "-o", scratch / name)
        return scratch / name

    made = {}
    stripped = scratch / "stripped.pte"
    command("strip", "--names", model, "-o", stripped)
    made["strip"] = [(stripped, data)]
    labelled = scratch / "labelled.pte"
    command("set-task", model, "--preset", "imagenet", "--license", "MIT", "-o", labelled)
    made["set-task"] = [(labelled, data)]
    code, weights = scratch / "code.pte", scratch / "weights.ptd"
    out = command("externalize", "--initial", model, "-o", code, "--data", weights)
    made["externalize"] = [(code, together(weights, "all.ptd"))] if out else None
    sources = [item for file in ([weights] if out else []) + ([data] if data else []) for item in ("--data", file)]
    made["embed"] = None
    if sources:
        whole = scratch / "whole.pte"
        command("embed", code if out else model, *sources, "-o", whole)
        made["embed"] = [(whole, None)]
    folder, shared = scratch / "deduped", scratch / "shared.ptd"
    folder.mkdir()
    out = command("dedupe", model, stripped, "-o", shared, "--into", folder, "--at-least", 1)
    both = [folder / model.name, folder / stripped.name]
    made["dedupe"] = [(program, together(shared, "all_shared.ptd")) for program in both] if out else None
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--pteron", required=True)
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--groups", nargs="+", default=GROUPS, help="folders of the corpus")
    options = parser.parse_args()
    import torch  # noqa: F401  (loaded once, before the forks)
    from executorch.extension.pybindings import portable_lib  # noqa: F401
    import executorch.kernels.quantized  # noqa: F401
    import importlib.metadata

    counts = collections.defaultdict(collections.Counter)
    failures = []
    programs = 0
    for group in options.groups:
        for path in sorted((options.corpus / group).rglob("case.json")):
            case = json.loads(path.read_text())
            folder = path.parent
            model = folder / case.get("model", "model.pte")
            files = [f if isinstance(f, str) else f["file"] for f in case.get("data_files", [])]
            if not model.exists() or len(files) > 1:
                continue
            name = f"{group}/{folder.relative_to(options.corpus / group)}"
            data = folder / files[0] if files else None
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    made = edited(options.pteron, model, data, pathlib.Path(scratch))
                except RuntimeError as error:
                    failures.append(f"{name}: {error}")
                    counts["edit"]["failed"] += 1
                    continue
                expected = run(folder, case, model, data)
                refused = any(str(step).startswith(("not loaded", "refused", "died")) for step in expected)
                programs += 1
                for verb in VERBS:
                    for program, weights in made[verb] or []:
                        found = run(folder, case, program, weights)
                        if stock_root(program) != stock_root(model):
                            kind = "failed"
                        elif found == expected:
                            kind = "refused" if refused else "same"
                        elif refused and as_recorded(torch, folder, case, found):
                            kind = "better"
                        else:
                            kind = "failed"
                        if kind == "failed":
                            what = next((str(step) for step in found if isinstance(step, str)), "other outputs")
                            failures.append(f"{name} ({verb}): {what}")
                        counts[verb][kind] += 1
                    if made[verb] is None:
                        counts[verb]["nothing"] += 1
    lines = [
        "# Programs edited by Pteron, run by the reference runtime",
        "",
        "This report checks that programs which Pteron has edited still run on the reference runtime with the same results:",
        f"executorch {importlib.metadata.version('executorch')}, torch {torch.__version__}, {datetime.date.today()}. It is "
        "written by",
        "`tools/reference/check_edits.py CORPUS --pteron target/release/pteron --report FILE`; no times are measured, so the",
        "machine is not recorded.",
        "",
        f"The {programs} programs of the groups {', '.join(options.groups)} were edited by `strip --names`, by `set-task`, by",
        "`externalize --initial`, by `embed` (of the weights that `externalize` had moved out) and by `dedupe` (together with",
        "the stripped copy; both results were run). The original and the results ran on the recorded inputs. A result passes",
        "if its outputs are byte-identical, if it is rejected in the same way as the original, or if it returns the recorded",
        "outputs where the original was rejected. In addition, the Python `flatbuffers` package must read the same method",
        "names from each result.",
        "",
        "| verb | same outputs | refused as the original | runs, the original was refused | failed | nothing to move |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for verb in VERBS:
        c = counts[verb]
        lines.append(
            f"| {verb} | {c['same']} | {c['refused']} | {c['better']} | {c['failed']} | {c['nothing']} |"
        )
    lines += [""] + [f"- failed: {failure}" for failure in failures]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if options.report:
        options.report.write_text(text)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
