"""Makes files whose names are hostile text, shows them with every printing verb, and reads the output back through a terminal.

    pip install pyte
    python tools/hostile_names.py target/release/pteron [--inputs N] [--verbs K] [--jobs J] [--seed S] FILE|FOLDER…

An input is a program (.pte), named data (.ptd), a bundle (.bpte), an ETDump or MLIR text of the folders in which some strings are
replaced: by escape sequences, line ends with a forged message, marks that reverse the order of text, long and wide names, bytes
that are not UTF-8. Each is given to K verbs in turn (0: to all of them), so that every verb gets about as many inputs.

What a verb writes to stdout and stderr is fed to a terminal emulator. It must do nothing there but print characters that are
visible and end lines: no cursor moves, colours, titles, bells or modes. No line may begin with the forged message. JSON must
parse. The verb must end by itself within 20 seconds with status 0, 1 or 2, and print at most 64 times the input and 1 MB.

Exit status: 0 if all is well; 1 otherwise, with the first failures, whose inputs are kept in the folder `hostile_names`.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import struct
import subprocess
import tempfile
import unicodedata

import pyte

FORGED = "FORGED"
MESSAGES = [f"error: {FORGED}", f"{FORGED} valid", f"  caused by: {FORGED}", f"method {FORGED}"]

# ---- strings in flatbuffers: by the schemas, the fields of a table that are strings, tables, or vectors of them.
S, V = "string", "vector"
FRAME = {0: S, 2: S, 3: S}
TENSOR = {9: {1: S}}
# A union at id n has its table at n + 1, and its members by the number of their kind.
VALUE = {"union": 0, 5: TENSOR, 6: {0: S}}
PLAN = {
    0: S, 1: {0: S, 1: S}, 2: (V, VALUE), 6: (V, {0: S, 1: S}), 7: (V, {0: S, 2: (V, {0: S, 1: S})}),
    5: (V, {3: (V, {0: (V, FRAME)})}),
}
PTE = {1: (V, PLAN), 7: (V, {0: S})}
PTD = {2: (V, {0: S}), 4: (V, {0: S})}
EVENT = {0: {0: S, 3: S}, 2: {0: S, 5: S}}
ETDUMP = {1: (V, {0: S, 2: (V, {0: S}), 3: (V, EVENT)})}


def u(b, at, form="<I"):
    return struct.unpack_from(form, b, at)[0]


def fields(b, table):
    vtable = table - u(b, table, "<i")
    for k in range((u(b, vtable, "<H") - 4) // 2):
        offset = u(b, vtable + 4 + 2 * k, "<H")
        if offset:
            yield k, table + offset


def strings(b, table, shape, found):
    """The places of offsets to strings in a table and those below it."""
    places = dict(fields(b, table))
    if "union" in shape:
        at = shape["union"]
        kind = b[places[at]] if at in places else 0
        if kind in shape and at + 1 in places:
            strings(b, places[at + 1] + u(b, places[at + 1]), shape[kind], found)
        return
    for k, below in shape.items():
        if k not in places:
            continue
        at = places[k]
        if below == S:
            found.append(at)
        elif isinstance(below, tuple):
            vector = at + u(b, at)
            for i in range(u(b, vector)):
                item = vector + 4 + 4 * i
                strings(b, item + u(b, item), below[1], found)
        else:
            strings(b, at + u(b, at), below, found)


def with_strings(flatbuffer, shape, rng, header_at=None):
    """The flatbuffer with some strings replaced by new ones at its end."""
    b = bytearray(flatbuffer)
    found = []
    strings(b, u(b, 0), shape, found)
    if not found:
        return None
    for at in rng.sample(found, min(len(found), rng.choice([1, 1, 2, 4, 12]))):
        b += b"\0" * (-len(b) % 4)
        text = hostile(rng)
        struct.pack_into("<I", b, at, len(b) - at)
        b += struct.pack("<I", len(text)) + text + b"\0"
    return b


def of_program(data, rng):
    head = data[8:12]
    if head != b"eh00":
        return with_strings(data, PTE, rng)
    length = u(data, 12)
    size, base = struct.unpack_from("<2Q", data, 16)
    made = with_strings(data[:size], PTE, rng)
    if made is None:
        return None
    end = len(made)
    made += b"\0" * (-len(made) % 128)
    struct.pack_into("<2Q", made, 16, end, len(made) if base else 0)
    return made + data[base:] if base else made


def of_named_data(data, rng):
    length, at, size, base, total = struct.unpack_from("<I4Q", data, 12)
    made = with_strings(data[: at + size], PTD, rng)
    if made is None:
        return None
    struct.pack_into("<Q", made, 24, len(made) - at)
    made += b"\0" * (-len(made) % 128)
    struct.pack_into("<Q", made, 32, len(made))
    return made + data[base:]


def of_text(data, rng):
    """MLIR text with hostile string attributes and comments."""
    text = hostile(rng).decode("utf-8", "replace")
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    if rng.random() < 0.5:
        quoted = "".join(c if " " <= c <= "~" else "".join(f"\\{b:02X}" for b in c.encode()) for c in quoted)
    source = data.decode("utf-8", "replace")
    parts = source.split('"')
    if len(parts) > 2:
        at = rng.randrange(1, len(parts) - 1, 2)
        parts[at] = quoted
        return '"'.join(parts).encode()
    return (f"// {text}\n" + source).encode()


def of_bundle(data, rng):
    """A bundle whose program, a byte vector in it, is not changed in length: bytes of its names are."""
    made = bytearray(data)
    for name in (b"forward", b"aten::", b"XnnpackBackend"):
        text = hostile(rng)[: len(name)].ljust(len(name), b"\x1b")
        for _ in range(rng.randint(0, 3)):
            at = made.find(name, rng.randrange(len(made)))
            if at >= 0:
                made[at : at + len(name)] = text
    return made


def of_etdump(data, rng):
    return with_strings(data, ETDUMP, rng)


KINDS = {".pte": of_program, ".ptd": of_named_data, ".mlir": of_text, ".bpte": of_bundle, ".etdp": of_etdump}

# ---- hostile text
ESCAPES = [
    "\x1b[31m", "\x1b[2J", "\x1b[H", "\x1b[10A", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b[?25l", "\x1b[?1049h", "\x1b(0",
    "\x1bc", "\x1b[6n", "\x1bP+q\x1b\\", "\u009b31m", "\u009d0;t\u009c", "\u0090", "\u0085", "\x07", "\x08" * 9, "\x7f" * 3, "\x0e", "\x00",
    "\r", "\v", "\f", "\x1b[100G", "\x1b[1K", "\x1b#8",
]
MARKS = ["\u202e", "\u202a", "\u2066", "\u2069", "\u200f", "\u061c", "\u2028", "\u2029", "\ufeff", "\u200b", "\u00ad", "\U000e0041", "\u3164", "\u115f"]
ORDINARY = ["aten::add", "forward", "layers.0.weight", "XnnpackBackend", "größe", "重み", "🙂", "a b", "%0", "`x`", '"', "\\", "{}", "{0}", "%s%n"]


def hostile(rng):
    pieces = []
    for _ in range(rng.randint(1, 5)):
        pick = rng.random()
        if pick < 0.35:
            pieces.append(rng.choice(ESCAPES))
        elif pick < 0.5:
            pieces.append(rng.choice(MARKS))
        elif pick < 0.75:
            end = rng.choice(["\n", "\r\n", "\r", "\n  ", "\n    ", "\u2028", "\u0085", "\v"])
            pieces.append(end + rng.choice(MESSAGES) + rng.choice(["", "\n", ": "]))
        elif pick < 0.8:
            pieces.append(rng.choice(["x", " ", "\u0301", "重", "\x1b[A", "\n"]) * rng.choice([70, 200, 5_000, 70_000]))
        else:
            pieces.append(rng.choice(ORDINARY))
    text = "".join(pieces).encode()
    if rng.random() < 0.02:
        text += rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x9b31m"])
    return text


# ---- verbs
TEXT = [
    ["inspect"], ["inspect", "-a"], ["inspect", "-v"], ["inspect", "--delegates"], ["print"], ["print", "-v"], ["validate"], ["extract", "-l"], ["diff", None],
    ["run"], ["run", "-m", "nothing"], ["plan"], ["plan", "--check"], ["ops", "--file"], ["profile", "--repeat", "1"], ["compare"], ["report", "-o", "report.html"],
    ["retarget", "-o", "out.pte"], ["strip", "-o", "out.pte"], ["externalize", "-d", "out.ptd", "-o", "out.pte"], ["set-weight", "nothing", "none.npy", "-o", "out.pte"],
    ["convert", "-o", "out.npz"], ["convert", "-o", "out.safetensors"], ["merge", "-o", "out.ptd"], ["dedupe", None, "-o", "out.ptd", "--into", "."], ["bundle", "-o", "out.bpte"], ["print", "--graph"], ["translate", "-o", "out.bef"],
    ["embed", "-d", "none.ptd", "-o", "out.pte"], ["verify"],
]
JSON = [["inspect", "--json"], ["validate", "--json"], ["plan", "--json"], ["ops", "--json", "--file"], ["diff", "--json", None], ["run", "--json"], ["extract", "-l", "--json"]]


class Terminal:
    """Receives what the emulator makes of output: anything but drawing and line ends is an event."""

    def __init__(self):
        self.events, self.lines, self.other = [], [""], set()

    def draw(self, data):
        self.lines[-1] += data

    def linefeed(self):
        self.lines.append("")

    def carriage_return(self):
        pass

    def tab(self):
        self.lines[-1] += "\t"

    def __getattr__(self, name):
        def event(*arguments, **named):
            self.events.append((name, arguments))
        return event


def problems_of(output, source):
    """What is wrong with the output of a verb on a terminal."""
    try:
        text = output.decode()
    except UnicodeDecodeError as e:
        return [f"is not UTF-8: {e}"]
    if "\r" in text:
        return ["has a carriage return"]
    terminal = Terminal()
    stream = pyte.Stream(terminal, strict=False)
    stream.feed(text.replace("\n", "\r\n"))
    found = [f"acts on the terminal: {name}{arguments!r}" for name, arguments in terminal.events[:3]]
    for line, below in zip(terminal.lines, terminal.lines[1:] + [""]):
        start = line.strip()
        # A diagnostic quotes a line of MLIR text, with a caret below it.
        if below.strip() != "^" and any(start.startswith(message.strip()) for message in MESSAGES):
            found.append(f"has a forged line: {line[:80]!r}")
        hidden = {c for c in line if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp", "Cs", "Co"} and c != "\t"}
        if hidden:
            found.append(f"has {sorted(hidden)!r}: {line[:80]!r}")
        if found:
            break
    if len(output) > 64 * len(source) + (1 << 20):
        found.append(f"is {len(output)} bytes, of an input of {len(source)}")
    return found


def tried(pteron, verb, path, original, source):
    with tempfile.TemporaryDirectory() as work:
        arguments = [str(original) if a is None else a for a in verb]
        if None in verb:
            line = [pteron, *arguments[: verb.index(None)], path, *arguments[verb.index(None) :]]
        elif verb[0] == "set-weight":
            line = [pteron, verb[0], path, *arguments[1:]]
        elif arguments[-1] in ("--file",):
            line = [pteron, *arguments, path]
        else:
            line = [pteron, arguments[0], path, *arguments[1:]]
        try:
            ran = subprocess.run(line, cwd=work, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return ["does not end within 20 s"], None
        found = problems_of(ran.stdout, source) + problems_of(ran.stderr, source)
        if ran.returncode not in (0, 1, 2):
            found.append(f"ends with status {ran.returncode}: {ran.stderr[-200:]!r}")
        if "--json" in verb and ran.returncode == 0:
            try:
                json.loads(ran.stdout)
            except ValueError as e:
                found.append(f"is not JSON: {e}")
        page = pathlib.Path(work, "report.html")
        if page.exists():
            text = page.read_text(errors="surrogateescape")
            hidden = {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp", "Cs", "Co"} and c not in "\t\n"}
            if hidden:
                found.append(f"writes a page with {sorted(hidden)!r}")
        return found, ran.returncode


def mutated(kinds, rng):
    """A file, and its bytes with hostile names. Files that have no names, or are damaged, are passed over."""
    while True:
        kind = rng.choices(list(kinds), weights=[6 if kind == ".pte" else 1 for kind in kinds])[0]
        original = rng.choice(kinds[kind])
        try:
            made = KINDS[kind](original.read_bytes(), rng)
        except (struct.error, IndexError):
            continue
        if made is not None:
            return original, made


def one(options, number, path, kinds, verbs):
    original, made = mutated(kinds, random.Random(f"{options.seed} {number}"))
    path = pathlib.Path(path, f"{number}{original.suffix}")
    path.write_bytes(made)
    counts, failures = collections.Counter(), []
    for verb in verbs:
        found, status = tried(options.pteron, verb, str(path), original.resolve(), made)
        shown = " ".join(a or "ORIGINAL" for a in verb)
        counts[shown, status] += 1
        failures += [(number, original, shown, problem) for problem in found]
    if failures:
        kept = pathlib.Path("hostile_names")
        kept.mkdir(exist_ok=True)
        (kept / path.name).write_bytes(made)
    path.unlink()
    return counts, failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pteron", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--verbs", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--largest", type=int, default=200_000, help="bytes of files that are mutated")
    options = parser.parse_args()
    files = []
    for path in options.files:
        files += sorted(p for p in path.rglob("*") if p.suffix in KINDS) if path.is_dir() else [path]
    files = [p for p in files if p.stat().st_size <= options.largest]
    kinds = collections.defaultdict(list)
    for path in files:
        kinds[path.suffix].append(path)
    all_verbs = TEXT + JSON
    counts, failures = collections.Counter(), []
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        def start(number):
            first = number * options.verbs
            verbs = [all_verbs[(first + k) % len(all_verbs)] for k in range(options.verbs)] if options.verbs else all_verbs
            return one(options, number, work, kinds, verbs)
        for counted, failed in pool.map(start, range(options.inputs)):
            counts += counted
            failures += failed
            for number, original, verb, problem in failed:
                print(f"input {number} of {original}: {verb}: {problem}", flush=True)
    for verb in sorted({verb for verb, _ in counts}):
        statuses = {status: n for (v, status), n in counts.items() if v == verb}
        print(f"{verb:40} {sum(statuses.values()):6}  " + ", ".join(f"status {s}: {n}" for s, n in sorted(statuses.items(), key=str)))
    print(f"{options.inputs} inputs of {len(files)} files, {sum(counts.values())} calls of {len(all_verbs)} verbs, {len(failures)} failures")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
