"""Scores how well an item fits the items that a person has viewed before; the program embeds items by their ids. The program takes
batches of three people, the table has any number.

    python examples/batches/embeddings.py [ray | spark | daft | datafusion] [--fail]
"""

import pathlib
import sys

import pyarrow

from engines import run_with
from pteron.batch import Mapper

PROGRAM = pathlib.Path(__file__).parents[2] / "testdata" / "corpus" / "models" / "embedding_lookup" / "model.pte"


def main():
    people = 8
    seen = [[(person * 5 + i * 3) % 20 for i in range(7)] for person in range(people)]
    # An id that the program does not know, and a list that is too short.
    seen[2][4] = 1_000_000
    seen[6] = seen[6][:3]
    table = pyarrow.table(
        {
            "person": pyarrow.array(range(people), pyarrow.int64()),
            "seen": pyarrow.array(seen, pyarrow.list_(pyarrow.int64())),
            "item": pyarrow.array([person % 10 for person in range(people)], pyarrow.int32()),
        }
    )
    model = Mapper(
        PROGRAM, inputs=["seen", "item"], outputs="fit", keep=["person"], on_error="null", lists="any"
    )
    result = run_with(sys.argv[1:], model, table, "person long, fit array<float>, error string")
    for row in sorted(result.to_pylist(), key=lambda row: row["person"]):
        fit = row["fit"]
        print(f"person {row['person']}: " + (row["error"] if fit is None else f"{fit[0]:.4f}"))


if __name__ == "__main__":
    main()
