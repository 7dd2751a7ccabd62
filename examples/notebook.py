"""A notebook as a script: a program is opened, tried, quantized, compared and stored with what its users need to know.

`# %%` begins a cell, as editors and Jupytext read them. Run as a script, it checks what it computes:

    pip install ./crates/python numpy pandas && python examples/notebook.py
"""

# %% A program: what goes in and out.
import pathlib
import tempfile

import numpy
import pteron
import pteron.batch

DIGITS = pathlib.Path(__file__).parent / "digits"
FOLDER = pathlib.Path(tempfile.mkdtemp())

module = pteron.load(DIGITS / "digits.pte", outputs="numpy")
print(module.metadata)

# %% The program says how a picture becomes an input, and what its classes are called.
labels = (DIGITS / "labels.txt").read_text().split()
task = {"preprocessing": {"scale": 1 / 255}, "labels": labels, "provenance": "examples/digits"}
pteron.set_task(DIGITS / "digits.pte", task, FOLDER / "digits.pte")
module = pteron.load(FOLDER / "digits.pte", outputs="numpy")

pictures = {path.stem: module.picture(path) for path in sorted(DIGITS.glob("*.png"))}
scores = {name: module(picture)[0] for name, picture in pictures.items()}
best = {name: module.task["labels"][int(row.argmax())] for name, row in scores.items()}
print(best)
assert all(name == label for name, label in best.items())

# %% Where the time goes. In a notebook the value of a cell is shown as a table.
profile = pteron.profile(FOLDER / "digits.pte", [pictures["3"]], repeat=20)
print(profile)

# %% The same network with weights of 8 bits, calibrated with the pictures.
samples = [[picture] for picture in pictures.values()]
compiled = pteron.quantize(FOLDER / "digits.pte", FOLDER / "digits8.pte", calibrate=samples)
print(compiled)

# %% What that has cost: outputs and layers side by side.
comparison = pteron.compare(FOLDER / "digits.pte", FOLDER / "digits8.pte", samples, min_sqnr=20)
print(comparison)
assert comparison.agree, "8 bits cost more than 20 dB"

quantized = pteron.load(FOLDER / "digits8.pte", outputs="numpy")
assert quantized.task["labels"] == labels, "the labels are kept"
for name, picture in pictures.items():
    numpy.testing.assert_allclose(quantized(picture)[0], scores[name], atol=0.1)

# %% Many pictures at once: a program is a step of a table's pipeline. A row that fails has a reason.
try:
    import pandas
except ImportError:
    print("the cell with a data frame needs pandas")
else:
    rows = [picture.numpy().ravel() for picture in pictures.values()]
    frame = pandas.DataFrame({"name": list(pictures), "picture": [*rows[:-1], rows[-1][:63]]})
    mapper = pteron.batch.Mapper(FOLDER / "digits8.pte", inputs="picture", outputs="digit", labels=labels, keep=["name"], on_error="null")
    result = mapper(frame)
    print(result)
    assert (result.digit[:-1] == result.name[:-1]).all() and "63 elements" in result.error.iloc[-1]

# %% A page to send to a colleague.
pteron.report(FOLDER / "digits8.pte", FOLDER / "digits.html")
print((FOLDER / "digits.html").stat().st_size, "bytes")
