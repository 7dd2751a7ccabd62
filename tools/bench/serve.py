"""Stress test of `pteron serve`: weights are swapped and clients die under load, and wrong answers are counted.

    python tools/bench/serve.py path/to/pteron [--seconds 60] [--clients 8] [--connections 10000]

Every second the weights of a model are replaced by a multiple (a power of two) and swapped in by a request. Client processes
send requests over persistent connections without pause; two more clients die in the middle of requests. An answer is correct
if it belongs to exactly one version of the weights; all answers of one generation must be equal. Prints latencies,
throughput, the number of failures, and the server's resident size over time.

With `--connections`, a second server gets that many connections that send nothing, half a head, half a preface, or a body byte
by byte, and then requests of hostile sizes and shapes, twice. A well-behaved client must be answered throughout,
and most of the memory that the connections took must be returned to the system each time. The limit of open files is raised to
its maximum (`ulimit -Hn`).
Needs only Python's standard library; Linux.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import time

from serve_against import answer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINEAR = ROOT / "testdata/corpus/tiny/ModuleLinear_extconst"
FACTORS = (1.0, 2.0, 4.0)


def resident(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def scaled(pteron, folder, factor):
    """A `.ptd` with the weights of the model multiplied by `factor`."""
    import_path = folder / f"weights-{factor}.ptd"
    arrays = folder / "arrays"
    if not arrays.exists():
        subprocess.run([pteron, "extract", LINEAR / "_default_external_constant.ptd", "-o", arrays], check=True, capture_output=True)
    data = (LINEAR / "_default_external_constant.ptd").read_bytes()
    shutil.copy(LINEAR / "_default_external_constant.ptd", import_path)
    os.chmod(import_path, 0o644)
    for array in arrays.rglob("*.npy"):
        raw = array.read_bytes()
        at = 10 + struct.unpack("<H", raw[8:10])[0]
        header, body = raw[:at], raw[at:]
        floats = struct.unpack(f"<{len(body) // 4}f", body)
        changed = folder / "changed.npy"
        changed.write_bytes(header + struct.pack(f"<{len(floats)}f", *(x * factor for x in floats)))
        subprocess.run([pteron, "set-weight", import_path, array.stem, changed, "-o", import_path], check=True, capture_output=True)
    assert factor == 1.0 or import_path.read_bytes() != data
    return import_path


def post(path, body):
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def infer(values, shape=None):
    tensor = {"name": "input_0", "datatype": "FP32", "shape": shape or [len(values)], "data": values}
    return post("/v2/models/linear/infer", json.dumps({"inputs": [tensor]}).encode())


def outputs_of(body):
    """The generation and the outputs of a response."""
    body = json.loads(body)
    found = body["outputs"][0]["data"]
    # Round to float32: the text is the shortest that identifies the float32, so that twice its float64 value would differ from
    # the value parsed from the text of twice the float32.
    return body["parameters"]["generation"], struct.unpack(f"{len(found)}f", struct.pack(f"{len(found)}f", *found))


def connect(port):
    stream = socket.create_connection(("127.0.0.1", port), timeout=60)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def ask(stream, message):
    stream.sendall(message)
    return answer(stream)


def client(port, message, stop, results):
    latencies, bodies, failed, stream = [], set(), [], connect(port)
    while not stop.is_set():
        begin = time.perf_counter()
        try:
            status, body = ask(stream, message)
        except Exception as error:
            failed.append(repr(error))
            stream = connect(port)
            continue
        latencies.append(time.perf_counter() - begin)
        bodies.add(body) if status == 200 else failed.append(f"{status}: {body}")
    # Only a sample: there are millions of latencies after some minutes.
    results.put((len(latencies), random.sample(latencies, min(len(latencies), 100_000)), max(latencies), bodies, failed))


def dying(port, message, stop, results):
    died = 0
    while not stop.is_set():
        with connect(port) as stream:
            stream.sendall(message[: random.randrange(1, len(message) + 1)])
            if random.random() < 0.5:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        died += 1
        time.sleep(0.002)
    results.put(died)


class Server:
    def __init__(self, pteron, models, *options):
        command = [pteron, "serve", models, "--listen", "127.0.0.1:0", "--control", "--threads", "1", "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.port = int(json.loads(self.process.stdout.readline())["address"].rsplit(":", 1)[1])
        assert json.loads(self.process.stdout.readline())["event"] == "ready"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0 or kind


def soak(pteron, seconds, clients, folder):
    models = folder / "models"
    models.mkdir()
    shutil.copy(LINEAR / "model.pte", models / "linear.pte")
    weights = [scaled(pteron, folder, factor) for factor in FACTORS]
    shutil.copy(weights[0], models / "linear.ptd")
    with Server(pteron, models, "--workers", "2") as server:
        message, control = infer([0.25, -0.5, 0.75]), connect(server.port)
        first = outputs_of(ask(control, message)[1])[1]
        right = {tuple(x * factor for x in first) for factor in FACTORS}
        stop, results, deaths = multiprocessing.Event(), multiprocessing.Queue(), multiprocessing.Queue()
        both = [(client, results)] * clients + [(dying, deaths)] * 2
        workers = [multiprocessing.Process(target=work, args=(server.port, message, stop, queue)) for work, queue in both]
        [worker.start() for worker in workers]
        swaps, sizes, end = 0, [], time.time() + seconds
        while time.time() < end:
            time.sleep(1)
            swaps += 1
            shutil.copy(weights[swaps % len(weights)], models / "new")
            os.replace(models / "new", models / "linear.ptd")
            status, body = ask(control, post("/v2/repository/models/linear/load", b""))
            assert status == 200, body
            sizes.append(resident(server.pid))
        stop.set()
        found = [results.get() for _ in range(clients)]
        died = sum(deaths.get() for _ in range(2))
        [worker.join() for worker in workers]
    generations, wrong, failed = {}, 0, [text for one in found for text in one[4]]
    for body in set().union(*(one[3] for one in found)):
        generation, outputs = outputs_of(body)
        wrong += outputs not in right
        generations.setdefault(generation, set()).add(outputs)
    mixed = sum(len(outputs) > 1 for outputs in generations.values())
    count, latencies = sum(one[0] for one in found), sorted(latency for one in found for latency in one[1])
    at = lambda share: latencies[min(int(len(latencies) * share), len(latencies) - 1)] * 1e3
    print(f"{count} answers in {seconds} s ({count / seconds:.0f}/s), {swaps} swaps, {len(generations)} generations seen, {died} clients died")
    print(f"wrong {wrong}, failed {len(failed)}, generations with two answers {mixed}")
    print(f"latency p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, longest {max(one[2] for one in found) * 1e3:.2f} ms")
    tenths = [sizes[len(sizes) * i // 10] for i in range(10)] + [sizes[-1]]
    print(f"resident, kB, after each tenth: {' '.join(map(str, tenths))}; most {max(sizes)}")
    assert not wrong and not failed and not mixed, failed[:3]
    # Memory that grows with swaps or clients would show in the second half.
    assert max(sizes[len(sizes) // 2 :]) <= max(sizes[: len(sizes) // 2]) * 1.1 + 1024, sizes


BEGINNINGS = (
    b"", b"POST /v2/models/linear/inf", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2",
    b"POST /v2/models/linear/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n",
)


def hostile_requests():
    """Requests that must be refused, and the allowed statuses of each."""
    huge = (1 << 64) - 1
    yield infer([1.0, 2.0]), {400}
    yield infer([1.0] * 3, [huge, huge]), {400}
    yield infer([1.0] * 3, [1] * 100_000), {400}
    yield infer([1.0] * 1_000_000, [1_000_000]), {400}
    yield infer([1e300] * 3), {400}
    yield post("/v2/models/linear/infer", b"[" * 1_000_000), {400}
    yield post("/v2/models/linear/infer", b'{"inputs":[' + b'{"name":"","shape":[],"datatype":"FP32","data":0},' * 500_000 + b"0]}"), {400}
    yield post("/v2/repository/index", b"[" + b"0," * 2_000_000 + b"0]"), {413}
    yield b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nx-large: " + b"x" * 200_000 + b"\r\n\r\n", {431}
    yield b"POST /v2/models/linear/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n", {413}
    yield b"POST /v2/models/linear/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffffff\r\n", {400}
    yield post("/inference.GRPCInferenceService/ModelInfer", b"\xff" * 1_000_000), {400, 404}


def connections(pteron, count, folder):
    models = folder / "models-2"
    models.mkdir()
    shutil.copy(LINEAR / "model.pte", models / "linear.pte")
    shutil.copy(LINEAR / "_default_external_constant.ptd", models / "linear.ptd")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < count + 200:
        count = hard - 200
        print(f"no more than {hard} files may be open (ulimit -Hn): {count} connections")
    patience = 20 + count // 500
    with Server(pteron, models, "--max-connections", str(count + 100), "--patience", f"{patience}s") as server:
        first = resident(server.pid)
        for full, left in (disturb(server, count, patience) for _ in range(2)):
            assert left - first <= 0.25 * (full - first) + 4096, (first, full, left)


def disturb(server, count, patience):
    message, good = infer([0.25, -0.5, 0.75]), connect(server.port)
    right, before = outputs_of(ask(good, message)[1]), resident(server.pid)
    asked, slowest = 0, 0.0

    def behave():
        nonlocal asked, slowest
        begin = time.perf_counter()
        status, body = ask(good, message)
        assert status == 200 and outputs_of(body) == right, body
        asked, slowest = asked + 1, max(slowest, time.perf_counter() - begin)

    def open_now():
        text = ask(good, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")[1].decode()
        return int(next(line for line in text.splitlines() if line.startswith("pteron_connections ")).split()[1])

    streams, begin = [], time.time()
    for i in range(count):
        stream = connect(server.port)
        stream.sendall(BEGINNINGS[i % len(BEGINNINGS)])
        streams.append(stream)
        if i % 50 == 0:
            behave()
    while open_now() < count:
        time.sleep(0.01)
    full = resident(server.pid)
    # Send bodies byte by byte.
    for _ in range(5):
        for stream in streams[len(BEGINNINGS) - 1 :: len(BEGINNINGS)]:
            try:
                stream.sendall(b" ")
            except OSError:
                pass
        behave()
    print(f"{count} connections in {time.time() - begin:.0f} s: resident {before} kB before, {full} kB with them ({(full - before) / count:.1f} kB each)")
    for i, (request, statuses) in enumerate(hostile_requests()):
        with connect(server.port) as stream:
            try:
                stream.sendall(request)
                status, body = answer(stream)
                assert status in statuses, (i, status, body[:300])
            except (ConnectionError, BrokenPipeError):
                # The request was refused before all of it was sent, and the response was lost with the connection.
                assert len(request) > 64 << 10, i
        behave()
    print(f"hostile requests: resident {resident(server.pid)} kB")
    # The server disconnects idle connections.
    begin = time.time()
    while open_now() > 1:
        behave()
        time.sleep(0.1)
        assert time.time() - begin < 2 * patience + 60, open_now()
    print(f"{asked} of {asked} requests were answered meanwhile, the slowest in {slowest * 1e3:.0f} ms; all others disconnected after {time.time() - begin:.0f} s")
    # A background thread of the server returns memory to the system.
    time.sleep(1)
    left = resident(server.pid)
    print(f"resident {left} kB then")
    [stream.close() for stream in streams]
    good.close()
    return full, left


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pteron", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--connections", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.seconds:
            soak(arguments.pteron.resolve(), arguments.seconds, arguments.clients, pathlib.Path(folder))
        if arguments.connections:
            connections(arguments.pteron.resolve(), arguments.connections, pathlib.Path(folder))


if __name__ == "__main__":
    main()
