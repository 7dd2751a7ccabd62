#!/usr/bin/env python3
"""Writes undecomposed torch.export archives of one operator each, for all operators of PyTorch's own tests.

    python tools/reference/aten.py FOLDER [NAME...] [--samples N]
    pteron verify --archives FOLDER

The operators and their sample inputs are those of PyTorch's own tests (`op_db`): the tensors of a sample are the inputs of a module,
all other arguments are fixed. Operators that cannot be exported (data-dependent sizes, randomness) are skipped and
counted. Needs torch with `torch.testing._internal`.
"""

import argparse
import pathlib
import re
import warnings

import torch
from torch.utils import _pytree as tree

from archives import write_case

# Operators that are random, return uninitialized memory, or are otherwise unsuitable.
RANDOM = re.compile(r"rand|normal|uniform|exponential|cauchy|geometric|bernoulli|multinomial|dropout|empty|rrelu|jiterator"
                    r"|fractional|_fwd_|to_sparse|sparse|lowrank|resize|hash_tensor|_scaled_mm|_flash|_efficient")


class Operator(torch.nn.Module):
    """A call whose non-tensor arguments are fixed."""

    def __init__(self, call, args, spec):
        super().__init__()
        self.call, self.args, self.spec = call, args, spec

    def forward(self, *tensors):
        tensors = iter(tensors)
        args = [next(tensors) if a is TENSOR else a for a in self.args]
        args, kwargs = tree.tree_unflatten(args, self.spec)
        outputs = self.call(*args, **kwargs)
        return [o for o in tree.tree_leaves(outputs) if isinstance(o, (torch.Tensor, int, float, bool))]


# Marks an input among the fixed arguments.
TENSOR = object()


def modules(info, samples):
    """Modules of an operator, each with its inputs. Samples with different kinds of arguments come before samples that differ only in
    sizes."""
    dtypes = [d for d in (torch.float32, torch.int64, torch.bool) if d in info.dtypes]
    if not dtypes:
        return
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = list(info.sample_inputs("cpu", dtypes[0]))
    for s in drawn:
        leaves, spec = tree.tree_flatten(((s.input, *s.args), s.kwargs))
        fixed = [TENSOR if isinstance(a, torch.Tensor) else a for a in leaves]
        inputs = [a.detach().clone() for a in leaves if isinstance(a, torch.Tensor)]
        kind = (str([str(a) for a in fixed if a is not TENSOR and not isinstance(a, (int, float))]), str(sorted(s.kwargs)),
                [a.dim() for a in inputs], [a.dtype for a in inputs])
        seen.append((kind, Operator(info.op, fixed, spec), inputs))
    first, rest, kinds = [], [], []
    for kind, module, inputs in seen:
        (rest if kind in kinds else first).append((module, inputs))
        kinds.append(kind)
    yield from (first + rest)[:samples]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, default=3)
    args = parser.parse_args()
    from torch.testing._internal.common_methods_invocations import op_db
    written, left_out = 0, {}
    for info in op_db:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        if RANDOM.search(name) or (args.names and info.name not in args.names):
            continue
        torch.manual_seed(0)
        try:
            drawn = list(modules(info, args.samples))
        except Exception as e:
            left_out[name] = str(e)
            continue
        for i, (module, inputs) in enumerate(drawn):
            target = args.folder / f"{name}-{i}"
            try:
                write_case(target, module, inputs)
                written += 1
            except Exception as e:
                left_out[target.name] = f"{type(e).__name__}: {str(e)}"
    for name, why in left_out.items():
        print(f"{name}: {why.splitlines()[0][:150] if why else ''}")
    print(f"{written} written, {len(left_out)} left out")


if __name__ == "__main__":
    main()
