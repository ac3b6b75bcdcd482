"""JSON Lines of node-link graphs, the format NetworkX writes: one graph a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import TextIOBase
from typing import Any

import numpy as np

from softperm.data.attributes import attach
from softperm.data.canonical import RawGraph
from softperm.data.formats.records import Record, Target


def read_json_lines(stream: TextIOBase, name: str) -> Iterator[Record]:
    """The graphs of a JSON Lines file, in the order of its lines.

    Each line is an object ``{"nodes": [{"id": …, "label": …, "x": …}, …], "links": [{"source": …,
    "target": …, "label": …, "x": …, "weight": …}, …]}`` as ``networkx.node_link_data`` makes it;
    ``edges`` may stand for ``links``. Targets are the graph's own attributes, under ``graph``, and
    the values of ``target`` and ``y`` beside it: a value, an object of named values, or a list,
    whose values are called ``y_0``, ``y_1``, ….

    Args:
        stream: the text; blank lines are skipped.
        name: what errors call the file.

    Returns:
        Records, with the line number as ``id``.

    Raises:
        ValueError: a line is not JSON, or not a node-link graph; the message names the line.
    """
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON: {error}; write one graph a line") from None
        if not isinstance(content, dict):
            raise ValueError(f"{where} is not a node-link graph; expected an object with 'nodes'")
        yield Record(where, str(number), _graph(content, where), _targets(content))


def _graph(content: dict[str, Any], where: str) -> RawGraph:
    nodes = _objects(content, ("nodes",), where)
    links = _objects(content, ("links", "edges"), where)
    names = [_key(node, "id", f"{where}: node {k}") for k, node in enumerate(nodes)]
    index = {name: k for k, name in enumerate(names)}
    if len(index) < len(names):
        twice = next(name for k, name in enumerate(names) if index[name] != k)
        raise ValueError(f"{where}: vertex {twice!r} is listed twice; give every vertex its own id")
    ends = []
    for k, link in enumerate(links):
        pair = [_key(link, end, f"{where}: link {k}") for end in ("source", "target")]
        for end in pair:
            if end not in index:
                raise ValueError(
                    f"{where}: edge ({pair[0]!r}, {pair[1]!r}) names vertex {end!r}, which is not "
                    f"among the {len(names)} nodes; list it there"
                )
        ends.append([index[end] for end in pair])
    edges = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    plain = names == list(range(len(names)))
    raw = RawGraph(len(names), edges, not content.get("directed"), names=None if plain else names)
    return attach(raw, nodes, links, where)


def _objects(content: dict[str, Any], keys: tuple[str, ...], where: str) -> list[dict[str, Any]]:
    """The list of objects under the one of the keys that is there."""
    found = [content[key] for key in keys if key in content]
    listed = found[0] if len(found) == 1 else None
    if isinstance(listed, list) and all(isinstance(item, dict) for item in listed):
        return listed
    expected = " or ".join(map(repr, keys))
    raise ValueError(
        f"{where} is not a node-link graph; expected a list of objects under {expected}"
    )


def _key(item: dict[str, Any], key: str, what: str) -> Any:
    """An id, with lists as tuples, the way NetworkX reads them."""
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
            row = (
                value[0] if len(value) == 1 and isinstance(value[0], list) else value
            )  # as PyG's y
            named |= {f"{key}_{k}": v for k, v in enumerate(row)}
        elif key in content:
            named[key] = value
    return {k: v for k, v in named.items() if v is None or isinstance(v, bool | int | float | str)}
