"""Measures the overhead of `pteron serve` over a bare loop, the gain of batching, and ONNX Runtime behind the same protocol.

    python3 -m venv env && env/bin/pip install onnx onnxruntime mlserver numpy
    env/bin/python tools/bench/serve_against.py path/to/pteron [--seconds 10] [--clients 8] [--network perceptron]

The networks of serve_networks.py are served by `pteron serve` (as `.pt2`) and by MLServer with a minimal runtime that
calls ONNX Runtime (as `.onnx`), each with one compute thread on one core; the clients are processes on another core. They
use persistent connections and request one row at a time, as JSON over REST. The first response of each server is
compared with the other's. Without `mlserver` and `onnxruntime` only Pteron is measured. Prints a Markdown table.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import serve_networks

RUNTIME = '''
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Network(MLModel):
    async def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload):
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = self.session.run(None, {"input_0": rows})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("output_0", output)])
'''


def request(network, rows, path):
    """The bytes of a request for `rows` rows of arbitrary values, and the values."""
    sizes = serve_networks.NETWORKS[network]()[0]
    count = rows
    for size in sizes:
        count *= size
    data = [((i * 37) % 101 - 50) / 64 for i in range(count)]
    tensor = {"name": "input_0", "datatype": "FP32", "shape": [rows, *sizes], "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body, data


def answer(stream):
    """Reads a response with a content-length; returns its status and body."""
    got = b""
    while (end := got.find(b"\r\n\r\n")) < 0:
        piece = stream.recv(65536)
        if not piece:
            raise ConnectionError("the server closed the connection")
        got += piece
    head = got[:end].lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    while len(got) < end + 4 + length:
        got += stream.recv(65536)
    return int(head.split(b" ")[1]), got[end + 4 :]


def client(port, message, until, cpus, results):
    os.sched_setaffinity(0, cpus)
    latencies, failed = [], 0
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (begin := time.perf_counter()) < until:
            stream.sendall(message)
            status, _ = answer(stream)
            failed += status != 200
            latencies.append(time.perf_counter() - begin)
    results.put((latencies, failed))


def load(port, message, seconds, clients, cpus):
    results = multiprocessing.Queue()
    until = time.perf_counter() + seconds
    workers = [multiprocessing.Process(target=client, args=(port, message, until, cpus, results)) for _ in range(clients)]
    [worker.start() for worker in workers]
    both = [results.get() for _ in workers]
    [worker.join() for worker in workers]
    latencies = sorted(latency for latencies, _ in both for latency in latencies)
    return latencies, sum(failed for _, failed in both)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pinned(cpus, command, **more):
    return subprocess.Popen(["taskset", "-c", ",".join(map(str, cpus)), *map(str, command)], **more)


class Pteron:
    def __init__(self, pteron, folder, options, cpus):
        command = [pteron, "serve", folder, "--listen", "127.0.0.1:0", "--threads", "1", "--json", *options]
        self.process = pinned(cpus, command, stdout=subprocess.PIPE, text=True)
        self.port = int(json.loads(self.process.stdout.readline())["address"].rsplit(":", 1)[1])
        assert json.loads(self.process.stdout.readline())["event"] == "ready"

    def joined(self, network):
        """The number of requests that were executed in a batch with others."""
        with socket.create_connection(("127.0.0.1", self.port)) as stream:
            stream.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            text = answer(stream)[1].decode()
        return int(next(l for l in text.splitlines() if l.startswith(f'pteron_joined_requests_total{{model="{network}"')).split()[-1])

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


class OnnxRuntime:
    def __init__(self, folder, network, rows, delay, cpus):
        (folder / "onnx_runtime.py").write_text(RUNTIME)
        self.port, unused = free_port(), free_port()
        settings = {"host": "127.0.0.1", "http_port": self.port, "grpc_port": unused, "parallel_workers": 0, "metrics_endpoint": None, "debug": False}
        model = {"name": network, "implementation": "onnx_runtime.Network", "parameters": {"uri": str(folder / f"{network}.onnx")}}
        if rows > 1:
            model |= {"max_batch_size": rows, "max_batch_time": delay}
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "model-settings.json").write_text(json.dumps(model))
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [pathlib.Path(sys.executable).with_name("mlserver"), "start", folder]
        self.process = pinned(cpus, command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as stream:
                    stream.sendall(f"GET /v2/models/{network}/ready HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                    if answer(stream)[0] == 200:
                        return
            except OSError:
                pass
            time.sleep(0.1)
        self.stop()
        raise SystemExit("mlserver does not start: see what it says in a folder with settings.json and model-settings.json")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def outputs_of(server, message):
    with socket.create_connection(("127.0.0.1", server.port)) as stream:
        stream.sendall(message)
        status, body = answer(stream)
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"]


def row(name, clients, latencies, failed, seconds, more=""):
    at = lambda share: latencies[min(int(len(latencies) * share), len(latencies) - 1)] * 1e3
    print(f"| {name} | {clients} | {len(latencies) / seconds:.0f} | {at(0.5):.2f} | {at(0.99):.2f} | {latencies[-1] * 1e3:.1f} | {failed} | {more} |", flush=True)


def bare(pteron, folder, network, cpus):
    """Measures the network in a bare loop of the command, without a server."""
    sizes = serve_networks.NETWORKS[network]()[0]
    for rows in (1, 8, 32):
        shape = "x".join(map(str, [rows, *sizes]))
        process = pinned(cpus, [pteron, "run", folder / f"{network}.pt2", f"{shape}xf32=0.5", "--json", "--repeat", "300", "--threads", "1"], stdout=subprocess.PIPE, text=True)
        found = json.loads(process.communicate()[0])["latency"]
        assert process.returncode == 0
        print(f"| bare loop, Pteron, {rows} rows | | {rows * 1e3 / found['median_ms']:.0f} | {found['median_ms']:.2f} | {found['p99_ms']:.2f} | | | |", flush=True)


def bare_onnx(folder, network, cpus):
    import numpy
    import onnxruntime

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / f"{network}.onnx"), options, providers=["CPUExecutionProvider"])
    for rows in (1, 8, 32):
        inputs = {"input_0": numpy.full([rows, *serve_networks.NETWORKS[network]()[0]], 0.5, numpy.float32)}
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            session.run(None, inputs)
            times.append(time.perf_counter() - begin)
        times.sort()
        median, late = statistics.median(times) * 1e3, times[int(len(times) * 0.99)] * 1e3
        print(f"| bare loop, ONNX Runtime, {rows} rows | | {rows * 1e3 / median:.0f} | {median:.2f} | {late:.2f} | | | |", flush=True)
    os.sched_setaffinity(0, before)


def measure(pteron, network, arguments, folder, others):
    print(f"\n{network}\n\n| server | clients | rows/s | p50 ms | p99 ms | longest ms | failed | |\n| --- | --: | --: | --: | --: | --: | --: | --- |")
    serve_networks.write_archive(network, folder / f"{network}.pt2")
    cpus = sorted(os.sched_getaffinity(0))
    server_cpus, client_cpus = cpus[:1], cpus[1:] or cpus
    if others:
        serve_networks.write_onnx(network, folder / f"{network}.onnx")
        bare_onnx(folder, network, server_cpus)
    bare(pteron, folder, network, server_cpus)
    models = folder / "models"
    models.mkdir(exist_ok=True)
    os.replace(folder / f"{network}.pt2", models / f"{network}.pt2")
    message, _ = request(network, 1, f"/v2/models/{network}/infer")
    seconds, rows, right = arguments.seconds, 16, None
    settings = [("alone", []), (f"batches of {rows}", ["--max-batch", rows]), (f"batches of {rows}, 2 ms delay", ["--max-batch", rows, "--batch-delay", "2ms"])]
    for name, options in settings:
        server = Pteron(pteron, models, list(map(str, options)), server_cpus)
        try:
            right = outputs_of(server, message)
            for clients in (1, arguments.clients):
                before = server.joined(network)
                latencies, failed = load(server.port, message, seconds, clients, client_cpus)
                share = (server.joined(network) - before) / max(len(latencies), 1)
                row(f"pteron serve, {name}", clients, latencies, failed, seconds, f"{share:.0%} joined" if options else "")
        finally:
            server.stop()
    (models / f"{network}.pt2").unlink()
    for most, delay in ((1, 0), (rows, 0.002)) if others else ():
        server = OnnxRuntime(folder, network, most, delay, server_cpus)
        try:
            found = outputs_of(server, message)
            assert all(abs(a - b) <= 1e-3 * (1 + abs(b)) for a, b in zip(found, right, strict=True)), (found, right)
            for clients in (1, arguments.clients):
                latencies, failed = load(server.port, message, seconds, clients, client_cpus)
                row("MLServer with ONNX Runtime" + (f", batches of {most}, 2 ms delay" if most > 1 else ", alone"), clients, latencies, failed, seconds)
        finally:
            server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pteron", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--network", choices=serve_networks.NETWORKS, action="append")
    arguments = parser.parse_args()
    try:
        import mlserver, onnx, onnxruntime  # noqa: E401, F401

        others = True
    except ImportError as error:
        print(f"only Pteron is measured: {error}")
        others = False
    for network in arguments.network or serve_networks.NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            measure(arguments.pteron.resolve(), network, arguments, pathlib.Path(folder), others)


if __name__ == "__main__":
    main()
