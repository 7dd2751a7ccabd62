"""Tests `pteron serve` with a third-party client: tritonclient over HTTP and gRPC.

    pip install 'tritonclient[http,grpc]' numpy
    python tools/serve_client.py path/to/pteron

Starts the server on a folder of models from testdata, compares every response with the output of `pteron run`, loads
and unloads models, compresses requests and responses, sends pictures and asks for classes, and sends invalid requests.
Prints the number of checks that passed.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {
    "mlp": ("testdata/dynamic/mlp/model.pte", (3, 12), np.float32),
    "convolutions": ("testdata/dynamic/convolutions/model.pte", (2, 3, 12, 12), np.float32),
    "half": ("testdata/corpus/models/mlp_fp16/model.pte", None, np.float16),
    "quantized": ("testdata/corpus/models/mlp_q8/model.pte", None, np.float32),
}


def expected(pteron, path, arrays, folder):
    inputs = []
    for i, array in enumerate(arrays):
        np.save(folder / f"in{i}.npy", array)
        inputs.append(f"@{folder / f'in{i}.npy'}")
    subprocess.run([pteron, "run", path, *inputs, "-o", folder / "out"], check=True, capture_output=True)
    return [np.load(p) for p in sorted((folder / "out").glob("*.npy"))]


def check(client, api, pteron, folder):
    passed = 0
    assert client.is_server_live() and client.is_server_ready()
    for name, (path, shape, _) in MODELS.items():
        assert client.is_model_ready(name), name
        metadata = client.get_model_metadata(name)
        metadata = metadata if isinstance(metadata, dict) else {
            "inputs": [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in metadata.inputs],
            "outputs": [{"name": t.name} for t in metadata.outputs],
        }
        inputs, arrays = [], []
        for tensor in metadata["inputs"]:
            dims = shape or [int(size) for size in tensor["shape"]]
            dtype = tritonclient.utils.triton_to_np_dtype(tensor["datatype"])
            generator = np.random.default_rng(1)
            array = generator.standard_normal(dims) if np.issubdtype(dtype, np.floating) else generator.integers(0, 2, dims)
            array = np.asarray(array, dtype=dtype)
            tensor = api.InferInput(tensor["name"], list(array.shape), tensor["datatype"])
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
            arrays.append(array)
        outputs = [api.InferRequestedOutput(tensor["name"]) for tensor in metadata["outputs"]]
        result = client.infer(name, inputs, outputs=outputs, request_id="7")
        for tensor, reference in zip(metadata["outputs"], expected(pteron, ROOT / path, arrays, folder)):
            np.testing.assert_allclose(result.as_numpy(tensor["name"]), reference, rtol=1e-3, atol=1e-5)
            passed += 1
    client.unload_model("mlp")
    assert not client.is_model_ready("mlp")
    client.load_model("mlp")
    assert client.is_model_ready("mlp")
    index = client.get_model_repository_index()
    index = index if isinstance(index, list) else [{"name": m.name, "state": m.state} for m in index.models]
    assert {m["name"] for m in index if m["state"] == "READY"} == {"digits", *MODELS}, index
    passed += check_compression(client, api) + check_pictures(client, api)
    for wrong in (("nothing", [1, 12]), ("mlp", [10, 12]), ("mlp", [12])):
        tensor = api.InferInput("input_0", wrong[1], "FP32")
        tensor.set_data_from_numpy(np.zeros(wrong[1], np.float32))
        try:
            client.infer(wrong[0], [tensor])
        except InferenceServerException as error:
            assert "input_0" in str(error) or "no model" in str(error), error
            passed += 1
        else:
            raise AssertionError(f"{wrong} was answered")
    return passed


def check_compression(client, api):
    array = np.random.default_rng(2).standard_normal((9, 12)).astype(np.float32)
    tensor = api.InferInput("input_0", [9, 12], "FP32")
    tensor.set_data_from_numpy(array)
    # The response has the id, and is compressed only if it is long enough.
    plain = client.infer("mlp", [tensor], request_id="i" * 3000).as_numpy("output_0")
    for coding in ("gzip", "deflate"):
        if api is tritonclient.http:
            options = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
        else:
            options = {"compression_algorithm": coding}
        result = client.infer("mlp", [tensor], request_id="i" * 3000, **options)
        np.testing.assert_array_equal(result.as_numpy("output_0"), plain)
    return 2


def check_pictures(client, api):
    for digit in range(9):
        file = (ROOT / f"examples/digits/{digit}.png").read_bytes()
        tensor = api.InferInput("input_0", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([file], dtype=object))
        output = api.InferRequestedOutput("output_0", class_count=2)
        classes = client.infer("digits", [tensor], outputs=[output]).as_numpy("output_0")
        assert classes.shape == (1, 2), classes
        best = classes[0, 0] if isinstance(classes[0, 0], str) else classes[0, 0].decode()
        assert best.split(":")[1:] == [str(digit), f"digit {digit}"], best
    return 9


def main():
    pteron = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "models").mkdir()
        (folder / "out").mkdir()
        for name, (path, _, _) in MODELS.items():
            shutil.copy(ROOT / path, folder / "models" / f"{name}.pte")
        (folder / "labels.txt").write_text("".join(f"digit {digit}\n" for digit in range(10)))
        subprocess.run(
            [pteron, "set-task", ROOT / "examples/digits/digits.pte", "--preset", "0..1",
             "--labels", folder / "labels.txt", "-o", folder / "models/digits.pte"], check=True, capture_output=True)
        command = [pteron, "serve", folder / "models", "--listen", "127.0.0.1:0", "--control", "--json", "--max-batch", "4"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                address = json.loads(server.stdout.readline())["address"]
                while (event := json.loads(server.stdout.readline())["event"]) != "ready":
                    assert event == "model_loaded", event
                for api in (tritonclient.http, tritonclient.grpc):
                    passed = check(api.InferenceServerClient(address), api, pteron, folder)
                    print(f"{api.__name__}: {passed} passed")
            finally:
                server.terminate()
                assert server.wait(60) == 0


if __name__ == "__main__":
    main()
