"""Errors that know which graph they are about."""

from __future__ import annotations

from collections.abc import Sequence


class GraphError(ValueError):
    """A graph that cannot be used.

    Args:
        index: position of the graph in the user's list or file.
        problem: what was expected, what came, and what to do; without the name of the graph.
        name: the graph's name in messages; ``graph <index>`` by default.

    Example:
        >>> str(GraphError(17, "edge (3, 12) names vertex 12, but the graph has 9 vertices"))
        'graph 17: edge (3, 12) names vertex 12, but the graph has 9 vertices'
    """

    def __init__(self, index: int, problem: str, name: str | None = None) -> None:
        super().__init__(index, problem, name)  # the arguments, so that pickle can rebuild it
        self.index, self.problem, self.name = index, problem, name or f"graph {index}"

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"

    def renamed(self, ids: Sequence[object]) -> GraphError:
        """The same error with the graph's ID in the input in place of its position."""
        return GraphError(self.index, self.problem, f"graph {ids[self.index]}")
