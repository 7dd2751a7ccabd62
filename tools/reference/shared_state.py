#!/usr/bin/env python3
"""Writes a conformance case of a program whose methods share their state, with what the reference's C++ `Module` computes
with the option `share_memory_arenas`.

    python tools/reference/shared_state.py testdata/shared/counter

Needs torch, executorch and g++: the Python bindings lack the option, so the program that runs the reference is C++.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import executorch
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from torch.export import export

RUNNER = r"""
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
using namespace executorch::extension;
using executorch::aten::ScalarType;

// Lines of stdin: a method, then the elements of its input, if it takes one. Prints the outputs' elements, a line a call.
int main(int, char** args) {
  Module module(args[1], Module::LoadMode::File, nullptr, nullptr, nullptr, /*share_memory_arenas=*/true);
  char line[256];
  while (fgets(line, sizeof line, stdin)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<float> elements;
    for (float x; words >> x;) elements.push_back(x);
    std::vector<executorch::runtime::EValue> inputs;
    auto sizes = std::vector<executorch::aten::SizesType>{(int)elements.size()};
    auto input = from_blob(elements.data(), sizes, ScalarType::Float);
    if (!elements.empty()) inputs.push_back(*input);
    auto outputs = module.execute(name, inputs);
    if (!outputs.ok()) return 1;
    for (auto& value : outputs.get()) {
      auto tensor = value.toTensor();
      for (int i = 0; i < tensor.numel(); i++) printf("%.9g ", tensor.const_data_ptr<float>()[i]);
    }
    printf("\n");
  }
}
"""


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x)
        self.steps.add_(1)
        return self.total * 2

    def set_total(self, x):
        self.total.copy_(x)
        return self.steps + x

    def mean(self):
        return self.total / torch.clamp(self.steps, min=1)


CALLS = [
    ("mean", []),
    ("forward", [1, 1, 1]),
    ("mean", []),
    ("set_total", [8, 16, 32]),
    ("forward", [0, 4, -2]),
    ("mean", []),
]


def exported(module, name, *args):
    forward = module.forward
    module.forward = getattr(module, name)
    program = export(module, args)
    module.forward = forward
    return program


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    module, x = Counter().eval(), torch.zeros(3)
    methods = {name: exported(module, name, *([x] if name != "mean" else [])) for name in ("forward", "set_total", "mean")}
    plan = MemoryPlanningPass(share_mutable_buffers=True)
    config = ExecutorchBackendConfig(memory_planning_pass=plan, emit_mutable_buffer_names=True)
    (folder / "model.pte").write_bytes(to_edge(methods).to_executorch(config).buffer)

    wheel = pathlib.Path(executorch.__path__[0])
    libraries = [f"-l{path.name[3:-3]}" for path in (wheel / "lib").glob("libexecutorch*.so") if "backend" not in path.name]
    with tempfile.TemporaryDirectory() as scratch:
        source, runner = pathlib.Path(scratch) / "run.cpp", pathlib.Path(scratch) / "run"
        source.write_text(RUNNER)
        core = ["-DC10_USING_CUSTOM_GENERATED_MACROS", f"-I{wheel}/include", f"-I{wheel}/include/executorch/runtime/core/portable_type/c10"]
        link = [f"-L{wheel}/lib", f"-Wl,-rpath,{wheel}/lib", "-Wl,--no-as-needed", *libraries]
        subprocess.run(["g++", "-std=c++17", "-O0", *core, source, "-o", runner, *link], check=True)
        text = "".join(f"{name} {' '.join(map(str, elements))}\n" for name, elements in CALLS)
        answers = subprocess.run([runner, folder / "model.pte"], input=text, capture_output=True, text=True, check=True)
    blob, runs = bytearray(), []

    def record(elements):
        data = torch.tensor(elements, dtype=torch.float32).numpy().tobytes()
        blob.extend(data)
        return {"kind": "tensor", "dtype": "float32", "shape": [len(elements)], "dim_order": [0],
                "file": "io.bin", "offset": len(blob) - len(data), "nbytes": len(data)}

    for (name, elements), line in zip(CALLS, answers.stdout.splitlines(), strict=True):
        inputs = [record(elements)] if elements else []
        runs.append({"method": name, "inputs": inputs, "outputs": [record([float(word) for word in line.split()])]})
    (folder / "io.bin").write_bytes(blob)
    case = {"name": folder.name, "group": "shared", "model": "model.pte", "data_files": [],
            "note": "methods that share their state, as the reference's Module runs them with share_memory_arenas",
            "share_memory_arenas": True, "runs": runs}
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
