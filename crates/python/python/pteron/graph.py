"""Programs that are built call by call: see `pteron.Graph`."""

from dataclasses import dataclass

from ._pteron import Graph, Value

__all__ = ["Dim", "Graph", "Value"]


@dataclass(frozen=True)
class Dim:
    """A size that the caller of a method chooses, from `min` to `max`. Dims of one name are equal in a graph."""

    name: str
    max: int
    min: int = 0
