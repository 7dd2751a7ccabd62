"""The run-time half of the accelerator in Python, for prototypes: `python run.py PROGRAM` runs a program on zeros."""

import math
import struct
import sys

import pteron

BACKEND_ID = "Accelerator"
LINEAR, RELU, HARDSWISH, ADD, MUL = range(1, 6)


def parse(payload):
    """The words of a payload: the number of inputs, the instructions, the outputs, and the weights (src/payload.rs)."""
    magic, version, inputs, instructions, outputs = struct.unpack_from("<4s4I", payload)
    if magic != b"ACCL" or version != 1:
        raise ValueError(f"no payload of version 1: {bytes(payload[:8])!r}")
    at = 20
    code = [struct.unpack_from("<4I", payload, at + 16 * i) for i in range(instructions)]
    at += 16 * instructions
    results = struct.unpack_from(f"<{outputs}I", payload, at)
    at += 4 * outputs
    weights = []
    while at < len(payload):
        rows, columns, length = struct.unpack_from("<3I", payload, at)
        weights.append((rows, columns, bytes(payload[at + 12 : at + 12 + length]).decode()))
        at += 12 + (length + 3) // 4 * 4
    return inputs, code, results, weights


def flat(value):
    """The elements of nested lists."""
    return [x for item in value for x in flat(item)] if isinstance(value, list) else [value]


class State:
    """What a delegate keeps: its payload and its weights."""

    def __init__(self, payload, context):
        self.num_inputs, self.code, self.results, self.weights = parse(bytes(payload))
        self.data = [struct.unpack(f"<{rows * (columns + 1)}f", context["named_data"][key]) for rows, columns, key in self.weights]

    def linear(self, sizes, elements, weight):
        (rows, columns, _), data = self.weights[weight], self.data[weight]
        lines = [elements[i : i + columns] for i in range(0, len(elements), columns)]
        row = lambda x, r: sum(a * b for a, b in zip(x, data[r * columns :])) + data[rows * columns + r]
        return [*sizes[:-1], rows], [row(x, r) for x in lines for r in range(rows)]


def execute(state, *inputs):
    """The outputs of a call, one instruction after the other."""
    values = [(list(tensor.shape), flat(tensor.tolist())) for tensor in inputs]
    for opcode, _, a, b in state.code:
        sizes, x = values[a]
        if opcode == LINEAR:
            values.append(state.linear(sizes, x, b))
        elif opcode == RELU:
            values.append((sizes, [max(v, 0.0) for v in x]))
        elif opcode == HARDSWISH:
            values.append((sizes, [v * min(max(v + 3, 0), 6) / 6 for v in x]))
        else:
            pairs = zip(x, values[b][1])
            values.append((sizes, [p + q if opcode == ADD else p * q for p, q in pairs]))
    made = [pteron.Tensor(values[i][1], dtype="float32", shape=values[i][0]) for i in state.results]
    return made[0] if len(made) == 1 else tuple(made)


def register():
    """Programs that are loaded from now on run on this accelerator."""
    pteron.register_backend(BACKEND_ID, State, execute)


if __name__ == "__main__":
    register()
    module = pteron.load(sys.argv[1])
    inputs = [pteron.Tensor([0.0] * math.prod(given.tensor.shape), shape=given.tensor.shape) for given in pteron.method_meta(module).inputs]
    for output in module(*inputs):
        print(output.shape, output.tolist())
