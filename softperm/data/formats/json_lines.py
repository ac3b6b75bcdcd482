"""JSON Lines of node-link graphs: one graph per line, as ``networkx.node_link_data`` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import TextIOBase
from typing import Any

from softperm.data.attributes import graph_from_lists
from softperm.data.canonical import RawGraph
from softperm.data.formats.tables import Record, Target
from softperm.errors import errors_about_graph


def read_json_lines(stream: TextIOBase, name: str) -> Iterator[Record]:
    """The graphs of a JSON Lines file, in the order of its lines.

    Each line is an object ``{"nodes": [{"id": …, "label": …, "x": …}, …], "links": [{"source": …,
    "target": …, "label": …, "x": …, "weight": …}, …]}``; ``edges`` is another name of ``links``.
    Targets are the graph's own attributes, under ``graph``, and the values of ``target`` and ``y``
    beside it: a value, an object of named values, or a list, whose values are named ``y_0``,
    ``y_1``, ….

    Args:
        stream: the text; blank lines are skipped.
        name: the file's name in error messages.

    Returns:
        Records, with the line number as ``id``.

    Raises:
        GraphError: a line is not JSON, or not a node-link graph; the message names the line.
    """
    count = 0
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        with errors_about_graph(count, where):
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"it is not JSON: {error}; write one graph per line") from None
            if not isinstance(content, dict):
                raise ValueError("it is not a node-link graph; expected an object with 'nodes'")
            raw = _graph(content)
        yield Record(where, str(number), raw, _targets(content))
        count += 1


def _graph(content: dict[str, Any]) -> RawGraph:
    # Not networkx.node_link_graph: it adds the vertices that only edges name, and merges vertices
    # of one id, where a user has made a mistake.
    nodes = _objects(content, ("nodes",))
    links = _objects(content, ("links", "edges"))
    names = [_key(node, "id", f"node {k}") for k, node in enumerate(nodes)]
    pairs = [
        (_key(link, "source", f"link {k}"), _key(link, "target", f"link {k}"))
        for k, link in enumerate(links)
    ]
    return graph_from_lists(names, nodes, pairs, links, once=not content.get("directed"))


def _objects(content: dict[str, Any], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """The list of objects under one of the keys."""
    present = [content[key] for key in keys if key in content]
    objects = present[0] if len(present) == 1 else None
    if isinstance(objects, list) and all(isinstance(item, dict) for item in objects):
        return objects
    expected = " or ".join(map(repr, keys))
    raise ValueError(f"it is not a node-link graph; expected a list of objects under {expected}")


def _key(item: dict[str, Any], key: str, what: str) -> Any:
    """An id, with lists as tuples, as NetworkX reads them."""
    value = item.get(key)
    if value is None or isinstance(value, dict):
        raise ValueError(f"{what} has no usable {key!r}; expected a number or a string")
    return _hashable(value)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _targets(content: dict[str, Any]) -> dict[str, Target]:
    graph = content.get("graph")
    named: dict[str, Any] = dict(graph) if isinstance(graph, Mapping) else {}
    for key in ("target", "y"):
        value = content.get(key)
        if isinstance(value, Mapping):
            named |= value
        elif isinstance(value, list):
            row_of_one = len(value) == 1 and isinstance(value[0], list)  # like PyG's y, (1, T)
            row = value[0] if row_of_one else value
            named |= {f"{key}_{k}": v for k, v in enumerate(row)}
        elif key in content:
            named[key] = value
    return {k: v for k, v in named.items() if v is None or isinstance(v, bool | int | float | str)}
