"""JSON Lines of node-link graphs: one graph per line, as ``networkx.node_link_data`` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from softperm.data.canonical import RawGraph, graph_from_lists
from softperm.data.formats.tables import Record, Target, Unreadable, not_utf8


def json_records(
    name: str, prefix: str, first: int, content: bytes
) -> Iterator[Record | Unreadable]:
    """The graphs of some lines of a JSON Lines file, in their order.

    Each line is an object ``{"nodes": [{"id": …, "label": …, "x": …}, …], "links": [{"source": …,
    "target": …, "label": …, "x": …, "weight": …}, …]}``; ``edges`` is another name of ``links``.
    Targets are the graph's own attributes, under ``graph``, and the values of ``target`` and ``y``
    beside it: a value, an object of named values, or a list, whose values are named ``y_0``,
    ``y_1``, ….

    Args:
        name: the file's name in error messages.
        prefix: the beginning of each ``id``, before the line number.
        first: number of the first line.
        content: the lines; blank ones are skipped.
    """
    for number, line in enumerate(content.split(b"\n"), start=first):
        if not line.strip():
            continue
        where, id = f"{name} line {number}", f"{prefix}{number}"
        try:
            graph, targets = _parse(line)
        except UnicodeDecodeError as error:
            yield Unreadable(where, id, not_utf8(error))
        except ValueError as error:
            yield Unreadable(where, id, str(error))
        else:
            yield Record(where, id, graph, targets)


def _parse(line: bytes) -> tuple[RawGraph, dict[str, Target]]:
    text = line.decode()
    try:
        content = json.loads(text, object_pairs_hook=_unique)
        if "\\ud" in text.lower():  # half of a surrogate pair is no text
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}; write one graph per line") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a node-link graph; expected an object with 'nodes'")
    return node_link_graph(content), _targets(content)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; ValueError if a key appears twice, of which only one would count."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return content


def node_link_graph(content: dict[str, Any]) -> RawGraph:
    """The graph of a node-link object, before :func:`softperm.data.canonical.canonicalise`."""
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
