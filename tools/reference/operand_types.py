#!/usr/bin/env python3
"""Measures which types of operands the kernels of the reference runtime take.

    python tools/reference/operand_types.py OPS NAMES > crates/compiler/src/portable_operators.txt

OPS is a folder of single-operator conformance cases (a folder with `cases.json` for each operator), NAMES a file whose
lines start with the names of the operators. A case of each operator is run with each type for all its operands together,
and for each operand alone; the memory plan leaves room for the largest type. Kernels that abort run in a child process.
Prints the names with groups of operands and their types: `self=mat2: int half float32` means that both must have one of
these types, and the same. Needs torch and executorch.
"""

import copy
import json
import multiprocessing
import os
import pathlib
import re
import sys

import torch
from executorch.exir import schema as s
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary
from executorch.exir.tensor import scalar_type_enum

SETS = [("bool", ["bool"]), ("int", ["uint8", "int8", "int16", "int32", "int64"]), ("half", ["float16", "bfloat16"]),
        ("float32", ["float32"]), ("float64", ["float64"]), ("complex", ["complex32", "complex64", "complex128"]),
        ("bits", ["float8_e5m2", "float8_e4m3fn", "uint16", "uint32"])]
NAMES = [name for _, names in SETS for name in names]
ENUM = {name: scalar_type_enum(getattr(torch, name)) for name in NAMES}
NAME_OF = {value: name for name, value in ENUM.items()}
# Bytes of the largest type for each byte of the smallest.
ROOM = 16
# Operands that the compiler casts to one type.
PROMOTED = ("self", "other", "exponent")
# Schemas that the cases lack.
SCHEMAS = {"aten::_local_scalar_dense": "(Tensor self) -> Scalar",
           "dim_order_ops::_to_dim_order_copy.out": "(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)",
           "dim_order_ops::_clone_dim_order.out": "(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)"}
# Measured as accepted, but computed as if the numbers were real.
NOT_COMPLEX = ("aten::div.out",)


class Template:
    """A call of an operator, from a case."""

    def __init__(self, folder):
        record = json.loads((folder / "cases.json").read_text())
        self.op, best = record["op"], -1
        self.schema = SCHEMAS.get(self.op, record["schema"])
        for case in record["cases"]:
            if sum(case["ops"].values()) != 1 or any(run.get("runtime_error") for run in case["runs"]):
                continue
            program = deserialize_pte_binary((folder / case["pte"]).read_bytes()).program
            tensors = [v.val for v in program.execution_plan[0].values if isinstance(v.val, s.Tensor)]
            if any(t.data_buffer_idx or 0 in t.sizes[:1] for t in tensors if t.allocation_info is None):
                continue
            floats = sum(t.scalar_type == ENUM["float32"] for t in tensors)
            if 2 * floats + 3 * len(program.execution_plan[0].inputs) > best:
                best = 2 * floats + 3 * len(program.execution_plan[0].inputs)
                self.case, self.program = case, program
        if best < 0:
            raise ValueError("no case")
        self.plan = self.program.execution_plan[0]
        for value in self.plan.values:
            if isinstance(value.val, s.Tensor) and value.val.allocation_info:
                value.val.allocation_info.memory_offset_low *= ROOM
        self.plan.non_const_buffer_sizes = [n * ROOM and n * ROOM + 64 for n in self.plan.non_const_buffer_sizes]
        self.inputs = [self.tensor(folder, value) for value in self.case["runs"][0]["inputs"]]
        self.operands, self.outs = self.positions() if "(" in self.schema else ({}, {})

    def tensor(self, folder, value):
        if value["kind"] != "tensor":
            return value.get("value")
        raw = (folder / value["file"]).read_bytes()[value["offset"]:value["offset"] + value["nbytes"]]
        dtype = getattr(torch, value["dtype"])
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(value["shape"]) if raw else torch.zeros(value["shape"], dtype=dtype)

    def positions(self):
        """The operands and the results: a name, and the indices of its values."""
        calls = [i.instr_args for i in self.plan.chains[0].instructions if isinstance(i.instr_args, s.KernelCall)]
        declared = re.findall(r"(\w+(?:\([a-z]!?(?: -> \*)?\))?(?:\?|\[\d*\])*) (\w+)", self.schema[self.schema.index("("):self.schema.rindex(") ->")])
        operands, outs = {}, {}
        for (kind, name), index in zip(declared, calls[-1].args):
            value = self.plan.values[index].val
            indices = [index] if isinstance(value, s.Tensor) else [i for i in getattr(value, "items", []) if i >= 0]
            if kind.startswith("Tensor") and indices:
                (outs if "!" in kind and name != "self" else operands)[name] = indices
        return operands, outs

    def type_of(self, indices):
        return NAME_OF[self.plan.values[indices[0]].val.scalar_type]

    def variants(self):
        """Calls to try: what they are, and the types of the values that differ from the template's."""
        types = [self.type_of(indices) for indices in self.operands.values()]
        main = "float32" if "float32" in types or not types else types[0]
        for dtype in NAMES:
            if not self.operands:
                yield ("all", dtype, dtype), {i: dtype for indices in self.outs.values() for i in indices}
                continue
            real = dtype.replace("complex32", "float16").replace("complex64", "float32").replace("complex128", "float64")
            whole = {"float32": "complex64", "float64": "complex128"}.get(dtype, dtype)
            for result in dict.fromkeys([None, dtype, real, whole, "float32", "float64", "bool", "int64"]):
                given = {i: dtype for indices in self.operands.values() if self.type_of(indices) == main for i in indices}
                for n, indices in enumerate(self.outs.values()):
                    if result and (self.type_of(indices) == main or n == 0):
                        given |= {i: result for i in indices}
                yield ("all", dtype, result), given
        for name, indices in self.operands.items() if len(self.operands) > 1 else ():
            for dtype in NAMES:
                yield (name, dtype, None), {i: dtype for i in indices}

    def program_with(self, variants):
        """A program with a method for each of the variants."""
        program = copy.deepcopy(self.program)
        program.execution_plan = []
        for k, (_, types) in variants:
            plan = copy.deepcopy(self.plan)
            plan.name = f"m{k}"
            for i, dtype in types.items():
                plan.values[i].val.scalar_type = ENUM[dtype]
            program.execution_plan.append(plan)
        return bytes(serialize_pte_binary(PTEFile(program)))

    def arguments(self, types):
        def argument(i, t):
            dtype = types.get(i)
            return torch.ones(t.shape).to(getattr(torch, dtype)) if dtype and isinstance(t, torch.Tensor) else t
        return [argument(i, t) for i, t in zip(self.plan.inputs, self.inputs)]


def attempt(template, first, answers):
    """Runs the variants from `first` on; reports each before and after it has run."""
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    variants = list(enumerate(template.variants()))[first:]
    for start in range(0, len(variants), 40):
        part = variants[start:start + 40]
        module = _load_for_executorch_from_buffer(template.program_with([(k, v) for k, v in part]))
        for k, (_, types) in part:
            answers.put((k, None))
            try:
                module.run_method(f"m{k}", template.arguments(types))
                answers.put((k, True))
            except Exception:
                answers.put((k, False))
    answers.put((None, None))


def accepted(template):
    """The variants that the kernel runs."""
    what, found, first, count = [v for v, _ in template.variants()], set(), 0, None
    context = multiprocessing.get_context("fork")
    while first is not None and first < len(what):
        answers = context.SimpleQueue()
        child = context.Process(target=attempt, args=(template, first, answers))
        child.start()
        last = first
        while True:
            while answers.empty() and child.is_alive():
                child.join(0.002)
            if answers.empty():
                first = last + 1
                break
            k, ran = answers.get()
            if k is None:
                first = None
                break
            last = k
            if ran:
                found.add(what[k])
        child.join()
    return found


def words(types):
    rest = set(types)
    named = [name for name, members in SETS if rest >= set(members)]
    covered = {t for name, members in SETS if name in named for t in members}
    return " ".join(named + sorted(rest - covered))


def groups(template, found):
    """The operands that must have one type, each other operand, and the types that each may have."""
    together = {dtype for name, dtype, _ in found if name == "all"}
    if template.op in NOT_COMPLEX:
        together = {t for t in together if "complex" not in t}
    alone = {name: {d for n, d, _ in found if n == name} for name in template.operands}
    types = {name: template.type_of(indices) for name, indices in template.operands.items()}
    if not types:
        return [f"out: {words(together)}"]
    main = "float32" if "float32" in types.values() else next(iter(types.values()))
    varies = {name for name in types if alone[name] - {types[name]}}
    tied = [name for name, dtype in types.items() if dtype == main and name not in varies]
    if len(template.outs) > 1:
        tied += [name for name, indices in template.outs.items() if template.type_of(indices) == main]
    text = [f"{'='.join(tied)}: {words(together)}"] if tied else []
    for name, dtype in types.items():
        if dtype == main and name in varies:
            text.append(f"{name}: {words(together if name in PROMOTED else alone[name] | {main})}")
        elif dtype != main:
            text.append(f"{name}: {words(alone[name] | {dtype})}")
    return text


def main():
    folder, names = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text().splitlines()
    templates = {}
    for case in sorted(folder.iterdir()):
        try:
            template = Template(case)
            templates[template.op] = template
        except (ValueError, FileNotFoundError, AttributeError):
            continue
    for line in names:
        name = line.split(" ")[0]
        found = accepted(templates[name]) if name in templates and "(" in templates[name].schema else set()
        print(" ".join([name, "; ".join(groups(templates[name], found))] if found else [name]), flush=True)


if __name__ == "__main__":
    main()
