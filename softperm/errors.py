"""Errors and warnings that know which graph they are about, and counts in their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


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


class GraphWarning(UserWarning):
    """A warning about some graphs, of which the message names the first.

    Args:
        indices: positions of the graphs, at least one.
        problem: what was found and what is done about it; without the names of the graphs.
        name: the first graph's name in the message; ``graph <index>`` by default.

    Example:
        >>> str(GraphWarning([3, 5, 8], "4 vertices have labels that training did not see"))
        'graph 3 and 2 more: 4 vertices have labels that training did not see'
    """

    def __init__(self, indices: Sequence[int], problem: str, name: str | None = None) -> None:
        super().__init__(indices, problem, name)
        self.indices, self.problem = tuple(indices), problem
        self.name = name or f"graph {self.indices[0]}"

    def __str__(self) -> str:
        more = f" and {len(self.indices) - 1} more" if len(self.indices) > 1 else ""
        return f"{self.name}{more}: {self.problem}"

    def renamed(self, ids: Sequence[object]) -> GraphWarning:
        """The same warning with the graph's ID in the input in place of its position."""
        return GraphWarning(self.indices, self.problem, f"graph {ids[self.indices[0]]}")


def by_count(count: int, one: str, several: str) -> str:
    """The form of a word that fits a count, such as ``has`` or ``have``."""
    return one if count == 1 else several


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun.

    Args:
        count: how many there are.
        noun: what they are, in the singular.
        plural: the plural; by default the regular one, and "vertices".

    Example:
        >>> counted(1, "row"), counted(2048, "row"), counted(2, "class"), counted(0, "vertex")
        ('1 row', '2,048 rows', '2 classes', '0 vertices')
    """
    if plural is None:
        stem = noun.removesuffix("vertex")
        plural = f"{noun}es" if noun.endswith("ss") else f"{noun}s"
        plural = plural if stem == noun else f"{stem}vertices"
    return f"{count:,} {by_count(count, noun, plural)}"


def one_line(error: BaseException) -> str:
    """The message of an error without line ends."""
    return " ".join(str(error).split())


@contextmanager
def errors_about_graph(index: int, name: str | None = None) -> Iterator[None]:
    """Turns a ``ValueError`` in the block into a :class:`GraphError` about one graph.

    Functions that read a single graph need not know its position: they raise ``ValueError`` with
    the problem alone.

    Args:
        index: position of the graph.
        name: its name in messages; ``graph <index>`` by default.
    """
    try:
        yield
    except GraphError:
        raise
    except ValueError as error:
        raise GraphError(index, str(error), name) from error
