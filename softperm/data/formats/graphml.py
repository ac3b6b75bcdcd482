"""GraphML files, one graph each, with targets in the file or in a table beside the files.

``networkx.read_graphml`` is not used: it adds the vertices that only edges name and merges vertices
of one id, where a user has made a mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from io import BufferedIOBase, TextIOBase
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

from softperm.data.canonical import RawGraph, graph_from_lists
from softperm.data.formats.tables import Record, Target, Unreadable, parse_cells, read_table

_PARSE: dict[str, Callable[[str], Any]] = {
    "boolean": lambda text: {"true": 1, "1": 1, "false": 0, "0": 0}[text.strip().lower()],
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
}


def read_graphml(stream: BufferedIOBase, name: str) -> Record | Unreadable:
    """The one graph of a GraphML file.

    Vertices and edges have the attributes they have in NetworkX: ``label``, ``x`` and, on edges,
    ``weight``. GraphML has no vectors, so an ``x`` of several numbers is a string of numbers
    separated by spaces or commas: ``"0.5 1 2"``. Targets are the graph's own data.

    Args:
        stream: the file.
        name: its name in error messages; its stem becomes the ``id``.

    Returns:
        The record; unreadable if the file is not XML, not GraphML, or uses hyperedges, ports or
        nested graphs.
    """
    stem = PurePosixPath(name).stem
    try:
        return Record(name, stem, *_parse(stream))
    except ValueError as error:
        return Unreadable(name, stem, str(error))


def _parse(stream: BufferedIOBase) -> tuple[RawGraph, dict[str, Any]]:
    """The graph of a file and its targets."""
    try:
        root = ElementTree.parse(stream).getroot()
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # or of an odd encoding
        raise ValueError(f"it is not well-formed XML: {error}") from None
    graphs = [child for child in root if _tag(child) == "graph"]
    if _tag(root) != "graphml" or len(graphs) != 1:
        raise ValueError(f"expected GraphML with one graph in it, found {len(graphs)}")
    keys = [_Key.read(child) for child in root if _tag(child) == "key"]
    graph = graphs[0]
    nodes = [child for child in graph if _tag(child) == "node"]
    links = [child for child in graph if _tag(child) == "edge"]
    unusual = {_tag(part) for part in graph.iter()} & {"hyperedge", "port"}
    if unusual or any(_tag(part) == "graph" for child in graph for part in child.iter()):
        what = unusual.pop() if unusual else "nested graph"
        raise ValueError(f"it contains a {what}; expected plain vertices and edges")
    raw = graph_from_lists(
        names=[_attribute(node, "id") for node in nodes],
        vertices=[_data(node, keys) for node in nodes],
        pairs=[(_attribute(link, "source"), _attribute(link, "target")) for link in links],
        edges=[_data(link, keys) for link in links],
        once=not _is_directed(graph, links),
    )
    return raw, _data(graph, keys)


def read_graphml_folder(
    names: list[str], files: Iterable[tuple[str, BufferedIOBase]], table: TextIOBase | None
) -> Iterator[Record | Unreadable]:
    """The graphs of a folder of GraphML files.

    Args:
        names: names of all files.
        files: name and content of each.
        table: ``targets.csv``, if there is one: a column ``file`` with the name of each file, with
            or without the ending ``.graphml`` and with as many of its folders as make it unique,
            and one column for each target; a file without a row has no targets.

    Raises:
        ValueError: the table names a file that does not exist, or is ambiguous.
    """
    by_suffix = _files_by_suffix(names)
    targets = {} if table is None else _read_targets(table, by_suffix)
    columns = {column: None for row in targets.values() for column in row}
    for name, stream in files:
        record = read_graphml(stream, name)
        if len(by_suffix[(record.id,)]) > 1:
            record = replace(record, id="/".join(_path(name)))
        if isinstance(record, Unreadable):
            yield record
            continue
        yield replace(record, targets={**record.targets, **columns, **targets.get(name, {})})


def _path(name: str) -> tuple[str, ...]:
    """The folders and the stem of a file."""
    path = PurePosixPath(name)
    return (path.with_suffix("") if path.suffix.lower() == ".graphml" else path).parts


def _files_by_suffix(names: list[str]) -> dict[tuple[str, ...], list[str]]:
    """The files whose path ends in given parts: a stem alone, or after some of its folders."""
    by_suffix: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(names):
        path = _path(name)
        for k in range(len(path)):
            by_suffix.setdefault(path[k:], []).append(name)
    return by_suffix


def _matching(path: tuple[str, ...], by_suffix: dict[tuple[str, ...], list[str]]) -> list[str]:
    """The files that a row of the table may refer to, by the longest matching end of its path."""
    for k in range(len(path)):
        matches = by_suffix.get(path[k:], [])
        exact = [name for name in matches if _path(name) == path[k:]]
        if matches:
            return exact or matches
    return []


def _read_targets(
    table: TextIOBase, by_suffix: dict[tuple[str, ...], list[str]]
) -> dict[str, dict[str, Target]]:
    """The rows of ``targets.csv`` by the file they belong to."""
    header, rows = read_table(table, "targets.csv")
    lowered = [column.lower() for column in header]
    if "file" not in lowered:
        raise ValueError(
            f"targets.csv: expected a column 'file' with the names of the graphs' files, found the "
            f"columns {', '.join(header)}"
        )
    place = lowered.index("file")
    columns = {
        c: parse_cells([row[k] for _, row in rows]) for k, c in enumerate(header) if k != place
    }
    targets: dict[str, dict[str, Target]] = {}
    for k, (line, row) in enumerate(rows):
        files = _matching(_path(row[place].strip()), by_suffix)
        if len(files) != 1 or files[0] in targets:
            fault = "twice" if files else "but there is no such file"
            if len(files) > 1:
                fault = f"which may be {files[0]} or {files[1]}: name the folder too"
            raise ValueError(f"targets.csv line {line} names {row[place]!r}, {fault}")
        targets[files[0]] = {column: values[k] for column, values in columns.items()}
    return targets


@dataclass(frozen=True)
class _Key:
    """A declaration ``<key id=… for=… attr.name=… attr.type=…>``."""

    id: str
    domain: str
    name: str
    parse: Callable[[str], Any]
    default: str | None

    @classmethod
    def read(cls, element: ElementTree.Element) -> _Key:
        kind = element.get("attr.type", "string")
        id = element.get("id", "")
        if kind not in _PARSE:
            raise ValueError(f"key {id!r} has type {kind!r}; expected one of {', '.join(_PARSE)}")
        default = next((child.text or "" for child in element if _tag(child) == "default"), None)
        name = element.get("attr.name", id)
        return cls(id, element.get("for", "all"), name, _PARSE[kind], default)


def _tag(element: ElementTree.Element) -> str:
    """The name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _attribute(element: ElementTree.Element, key: str) -> str:
    value = element.get(key)
    if value is None:
        raise ValueError(
            f"{_tag(element)} without {key!r}; every node needs an id and every edge "
            "a source and a target"
        )
    return value


def _is_directed(graph: ElementTree.Element, links: list[ElementTree.Element]) -> bool:
    by_default = "true" if graph.get("edgedefault") == "directed" else "false"
    return any(link.get("directed", by_default).lower() == "true" for link in links)


def _data(element: ElementTree.Element, keys: list[_Key]) -> dict[str, Any]:
    """The data of an element by name, with the defaults for its kind."""
    given = {c.get("key"): c.text or "" for c in element if _tag(c) == "data"}
    data = {}
    for key in keys:
        text = given.get(key.id, key.default)
        if text is None or key.domain not in ("all", _tag(element)):
            continue
        try:
            value = key.parse(text)
            data[key.name] = _vector(value) if key.name == "x" else value
        except (ValueError, KeyError, RecursionError):
            shown = text if len(text) < 60 else f"{text[:60]}…"
            raise ValueError(
                f"{key.name} of {_tag(element)} {element.get('id', '')} is {shown!r}, which is not "
                f"of the type that the file declares"
            ) from None
    return data


def _vector(value: Any) -> Any:
    """The attribute ``x``: a string of numbers is a vector."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [float(part) for part in re.split(r"[\s,]+", value.strip())]
