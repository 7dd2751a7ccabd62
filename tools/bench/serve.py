"""Loads `pteron serve` while weights are swapped and clients die, and counts answers that are wrong.

    python tools/bench/serve.py path/to/pteron [--seconds 60] [--clients 8]

Every second the weights of a model are replaced by others, times a power of two, and swapped in by a request. Clients
ask over connections that they keep; some die in the middle of a request, others send what is no request. An answer is
right if it is that of one of the weights as a whole. Prints latencies, throughput, how many connections were refused,
and the server's resident size in the course of time. Only Python's own library is needed.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINEAR = ROOT / "testdata/corpus/tiny/ModuleLinear_extconst"
MLP = ROOT / "testdata/dynamic/mlp/model.pte"
FACTORS = (1.0, 2.0, 4.0)


def resident(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def scaled(pteron, folder, factor):
    """The weights of the model, times `factor`: a `.ptd` made of arrays."""
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


class Load:
    def __init__(self, address):
        self.address = address
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.latencies, self.wrong, self.failed, self.died, self.generations = [], [], [], 0, set()

    def connection(self):
        host, port = self.address.rsplit(":", 1)
        return http.client.HTTPConnection(host, int(port), timeout=60)

    def body(self, values):
        tensor = {"name": "input_0", "datatype": "FP32", "shape": [len(values)], "data": values}
        return json.dumps({"inputs": [tensor]})

    def ask(self, connection, values):
        connection.request("POST", "/v2/models/linear/infer", self.body(values))
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise ValueError(f"{response.status}: {answer}")
        numbers = answer["outputs"][0]["data"]
        # As float32, of which the text is the shortest: times two, it is another text than that of twice the number.
        numbers = struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers))
        return answer["parameters"]["generation"], numbers

    def client(self, values, right):
        connection, latencies, seen = self.connection(), [], set()
        while not self.stop.is_set():
            begin = time.perf_counter()
            try:
                generation, answer = self.ask(connection, values)
            except Exception as error:
                with self.lock:
                    self.failed.append(repr(error))
                connection = self.connection()
                continue
            latencies.append(time.perf_counter() - begin)
            seen.add((generation, answer))
            if answer not in right:
                with self.lock:
                    self.wrong.append(answer)
        with self.lock:
            self.latencies += latencies
            self.generations |= seen

    def dying(self, values):
        host, port = self.address.rsplit(":", 1)
        body = self.body(values).encode()
        head = f"POST /v2/models/linear/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        while not self.stop.is_set():
            with socket.create_connection((host, int(port))) as stream:
                part = (head + body)[: random.randrange(1, len(head) + len(body) + 1)]
                stream.sendall(part)
                if random.random() < 0.5:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.died += 1
            time.sleep(0.002)


def run(pteron, seconds, clients, folder):
    models = folder / "models"
    models.mkdir()
    shutil.copy(LINEAR / "model.pte", models / "linear.pte")
    weights = [scaled(pteron, folder, factor) for factor in FACTORS]
    shutil.copy(weights[0], models / "linear.ptd")
    command = [pteron, "serve", models, "--listen", "127.0.0.1:0", "--control", "--json", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = json.loads(server.stdout.readline())["address"]
            assert json.loads(server.stdout.readline())["event"] == "ready"
            load = Load(address)
            values, control = [0.25, -0.5, 0.75], load.connection()
            first = load.ask(control, values)[1]
            right = {tuple(x * factor for x in first) for factor in FACTORS}
            threads = [threading.Thread(target=load.client, args=(values, right)) for _ in range(clients)]
            threads += [threading.Thread(target=load.dying, args=(values,)) for _ in range(2)]
            [thread.start() for thread in threads]
            swaps, sizes, end = 0, [], time.time() + seconds
            while time.time() < end:
                time.sleep(1)
                swaps += 1
                shutil.copy(weights[swaps % len(weights)], models / "new")
                os.replace(models / "new", models / "linear.ptd")
                control.request("POST", "/v2/repository/models/linear/load")
                response = control.getresponse()
                assert response.status == 200, response.read()
                response.read()
                sizes.append(resident(server.pid))
            load.stop.set()
            [thread.join() for thread in threads]
            report(load, swaps, seconds, sizes)
        finally:
            server.terminate()
            status = server.wait(60)
    assert status == 0, status
    assert not load.wrong and not load.failed, (load.wrong[:3], load.failed[:3])


def report(load, swaps, seconds, sizes):
    mixed = {}
    for generation, answer in load.generations:
        mixed.setdefault(generation, set()).add(answer)
    mixed = sum(len(answers) > 1 for answers in mixed.values())
    latencies = sorted(load.latencies)
    at = lambda share: latencies[min(int(len(latencies) * share), len(latencies) - 1)] * 1e3
    print(f"{len(latencies)} answers in {seconds} s ({len(latencies) / seconds:.0f}/s), {swaps} swaps, {load.died} clients died")
    print(f"wrong {len(load.wrong)}, failed {len(load.failed)}, generations with two answers {mixed}")
    print(f"latency p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, longest {latencies[-1] * 1e3:.2f} ms")
    middle = len(sizes) // 2
    print(f"resident: first {sizes[0]} kB, half way {sizes[middle]} kB, last {sizes[-1]} kB, most {max(sizes)} kB")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pteron", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(arguments.pteron.resolve(), arguments.seconds, arguments.clients, pathlib.Path(folder))


if __name__ == "__main__":
    main()
