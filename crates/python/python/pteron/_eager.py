"""What PyTorch computes for a model in eager mode, node by node."""

import re
from typing import Any, List, Optional, Sequence, Tuple

from .errors import InputError

Computed = Tuple[List[Tuple[str, str, Optional[str], Any]], List[List[Any]]]


def is_model(source: Any) -> bool:
    """Whether an object is a `torch.export.ExportedProgram` or a `torch.nn.Module`."""
    return hasattr(source, "graph_signature") or (hasattr(source, "named_parameters") and callable(source))


def exported(model: Any, samples: Optional[Sequence[Tuple[Any, ...]]]) -> Any:
    """A module exported with the first sample; an exported program as it is."""
    import torch

    if hasattr(model, "graph_signature"):
        return model
    if not samples:
        raise InputError("a module is exported with the first sample, and none was given")
    return torch.export.export(model.eval(), tuple(samples[0]))


def example(program: Any) -> Tuple[Any, ...]:
    """The sample with which a program was exported."""
    args, kwargs = program.example_inputs or ((), {})
    if kwargs or not args:
        raise InputError("the program was not exported with positional inputs alone, so that samples must be given")
    return tuple(args)


def run(program: Any, samples: Sequence[Tuple[Any, ...]]) -> Computed:
    """The values of the nodes on the first sample, and the outputs of each sample."""
    import torch

    values: List[Tuple[str, str, Optional[str], Any]] = []

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc,unused-ignore]
        def run_node(self, node: Any) -> Any:
            result = super().run_node(node)
            if node.op in ("call_function", "call_method", "call_module"):
                name = getattr(node.target, "__name__", str(node.target))
                operator = str(node.target) if str(node.target).startswith("aten.") else name
                several = isinstance(result, (tuple, list))
                for i, value in enumerate(result if several else [result]):
                    if isinstance(value, torch.Tensor):
                        label = f"{node.name}[{i}]" if several else node.name
                        values.append((label, operator, _source(node), value.detach().clone()))
            return result

    # A module of its own for each sample: an execution may write to buffers.
    outputs: List[List[Any]] = []
    for i, sample in enumerate(samples):
        module = program.module()
        with torch.no_grad():
            result = Recorder(module).run(*_tensors(sample)) if i == 0 else module(*_tensors(sample))
        outputs.append([torch.as_tensor(leaf).detach() for leaf in leaves(result) if leaf is not None])
    return values, outputs


def leaves(values: Any) -> Tuple[Any, ...]:
    """The tensors and numbers in nested containers, in the order of a program's inputs or outputs."""
    import torch

    return tuple(torch.utils._pytree.tree_leaves(values))


def _tensors(sample: Sequence[Any]) -> Tuple[Any, ...]:
    """The arrays of a sample as tensors, in the containers that they are in."""
    import torch

    def tensor(value: Any) -> Any:
        if isinstance(value, (torch.Tensor, int, float, bool, str, type(None))):
            return value
        return torch.from_dlpack(value) if hasattr(value, "__dlpack__") else torch.as_tensor(value)

    mapped: Tuple[Any, ...] = torch.utils._pytree.tree_map(tensor, tuple(sample))
    return mapped


def _source(node: Any) -> Optional[str]:
    """The innermost line of the model's code, as exporters write it to programs."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f"{lines[-1][0]}:{lines[-1][1]}" if lines else None
