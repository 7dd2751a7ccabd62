"""Packs the library built by `cargo build --release -p pteron-python` as a wheel for this machine, as maturin does, but without
maturin's checks of which other machines it runs on.

    python3 crates/python/pack.py target/release/lib_pteron.so FOLDER
"""

import base64
import hashlib
import pathlib
import re
import sys
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).parent


def version():
    """The version of the workspace."""
    manifest = (HERE / "../../Cargo.toml").read_text()
    return re.search(r'^version = "(.+)"', manifest, re.MULTILINE).group(1)


def files(library):
    """The names and bytes of the files in the package."""
    for path in sorted((HERE / "python").rglob("*")):
        if path.suffix in (".py", ".pyi", ".typed") or path.name == "py.typed":
            yield path.relative_to(HERE / "python").as_posix(), path.read_bytes()
    yield "pteron/_pteron" + interface()[1](library), library.read_bytes()


def interface():
    """The interpreter part of the wheel's tag, and a function of the library's suffix: a free-threaded interpreter needs a build
    for its version, others use the stable ABI.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        number = sysconfig.get_config_var("py_version_nodot")
        return f"cp{number}-cp{number}t-", lambda _: sysconfig.get_config_var("EXT_SUFFIX")
    return "cp311-abi3-", lambda library: ".pyd" if library.suffix == ".dll" else ".abi3.so"


def pack(library, folder):
    """Writes the wheel, and returns its path."""
    number = version()
    tag = interface()[0] + re.sub(r"[.-]", "_", sysconfig.get_platform())
    info = f"pteron-{number}.dist-info"
    project = (HERE / "pyproject.toml").read_text()
    summary = re.search(r'^description = "(.+)"', project, re.MULTILINE).group(1)
    wheel = f"Wheel-Version: 1.0\nGenerator: pack.py\nRoot-Is-Purelib: false\nTag: {tag}\n"
    metadata = f"Metadata-Version: 2.1\nName: pteron\nVersion: {number}\nSummary: {summary}\nRequires-Python: >=3.11\n"
    entries = [*files(library), (f"{info}/WHEEL", wheel.encode()), (f"{info}/METADATA", metadata.encode())]
    record = ""
    path = folder / f"pteron-{number}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


if __name__ == "__main__":
    print(pack(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
