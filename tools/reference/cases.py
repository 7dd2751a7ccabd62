"""Writes a conformance case: a program and PyTorch's outputs for a sequence of calls."""

import copy
import json

import torch

DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


def record(blob, value):
    """The entry of a value in `case.json`. Appends a tensor's bytes to `blob`."""
    if isinstance(value, int):
        return {"kind": "int", "value": value}
    data = value.detach().contiguous()
    data = (data.view(torch.int16) if data.dtype == torch.bfloat16 else data).numpy().tobytes()
    entry = {
        "kind": "tensor",
        "dtype": DTYPES[value.dtype],
        "shape": list(value.shape),
        "dim_order": list(range(value.dim())),
        "file": "io.bin",
        "offset": len(blob),
        "nbytes": len(data),
    }
    blob.extend(data)
    return entry


def write(folder, group, module, note, buffer, calls, tolerance=None):
    """Writes a case of a program and the outputs of the eager module for each argument list in `calls`. Module state
    carries over from call to call. `tolerance` is an absolute tolerance for all elements; `None` means the default of
    the dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pte").write_bytes(buffer)
    blob, runs = bytearray(), []
    eager = copy.deepcopy(module)
    for call in calls:
        inputs = [record(blob, x) for x in call]
        with torch.no_grad():
            outputs = eager(*call)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        runs.append({"method": "forward", "inputs": inputs, "outputs": [record(blob, o) for o in outputs]})
    (folder / "io.bin").write_bytes(blob)
    case = {"name": folder.name, "group": group, "model": "model.pte", "data_files": [], "note": note, "runs": runs}
    if tolerance is not None:
        case["tolerance"] = {"atol": tolerance, "rtol": 0}
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
