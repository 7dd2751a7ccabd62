#!/usr/bin/env python3
"""Lists the operators that the compiler decomposes, with the arguments that PyTorch declares for them.

    python tools/reference/schemas.py > crates/pteron/tests/hostile_archives/schemas.txt

A line has an operator, its arguments, each with the letter of its type, and the number of its results. The operators are those
of the tables in `crates/compiler/src/decompose`. Needs torch and torchvision.
"""

import pathlib
import re

import torch
import torchvision  # noqa: F401

KINDS = {"Tensor": "t", "int": "i", "SymInt": "i", "float": "f", "number": "f", "Scalar": "f", "bool": "b", "str": "s"}


def rules():
    folder = pathlib.Path(__file__).parents[2] / "crates/compiler/src/decompose"
    text = "".join(f.read_text() for f in sorted(folder.rglob("*.rs")))
    return set(re.findall(r'\("([a-z_]+\.\w+)", (?:Always|NoKernel)', text))


def kind(declared):
    """The letter of a type, upper-case for a list: tensor, integer, float, boolean, string, or `o` for others."""
    text = str(declared)
    is_list = text.startswith("List[") or "List[" in text
    word = re.findall(r"\w+", text.replace("Optional", "").replace("List", ""))
    letter = KINDS.get(word[0] if word else "", "o")
    return letter.upper() if is_list else letter


def main():
    wanted, lines = rules(), []
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.replace("::", ".")
        if name not in wanted or schema.overload_name.endswith("out") or any(a.is_out for a in schema.arguments):
            continue
        args = " ".join(f"{a.name}:{kind(a.type)}" for a in schema.arguments)
        lines.append(f"{name}.{schema.overload_name or 'default'} {args} -> {len(schema.returns)}")
    print("\n".join(sorted(set(lines))))


if __name__ == "__main__":
    main()
