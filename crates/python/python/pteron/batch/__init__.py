"""Executes rows of tables in batches, for engines that process tables in parts: Ray Data, Spark, Daft, DataFusion and others.

>>> import pteron.batch
>>> model = pteron.batch.Mapper("examples/digits/digits.pte", inputs="picture", outputs="scores")
>>> result = model({"id": [7, 8], "picture": [[0.0] * 64, [0.5] * 64]})
>>> result["id"], result["scores"].shape
([7, 8], (2, 10))
"""

from .._pteron import ArrowArray, ArrowTable
from ..errors import RowError, RowFailure
from .files import MappedFile, map_files
from .mapper import Counters, Mapper, map_batch
from .pictures import Pictures
from .program import Column

__all__ = ["ArrowArray", "ArrowTable", "Column", "Counters", "MappedFile", "Mapper", "Pictures", "RowError", "RowFailure", "map_batch", "map_files"]
