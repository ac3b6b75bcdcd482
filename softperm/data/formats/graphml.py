"""GraphML: one file for each graph, targets inside or in a table beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BufferedIOBase, TextIOBase
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

import numpy as np

from softperm.data.attributes import attach
from softperm.data.canonical import RawGraph
from softperm.data.formats.records import Record, Target, parse_cells
from softperm.data.formats.smiles_csv import read_table

_PARSE: dict[str, Callable[[str], Any]] = {
    "boolean": lambda text: {"true": 1, "1": 1, "false": 0, "0": 0}[text.strip().lower()],
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
}


def read_graphml(stream: BufferedIOBase, name: str) -> Record:
    """The one graph of a GraphML file.

    Vertices and edges carry what they do in NetworkX: ``label``, ``x`` and, on edges, ``weight``.
    GraphML has no vectors, so an ``x`` of several numbers is a string of them, with spaces or
    commas between: ``"0.5 1 2"``. Targets are the graph's own data.

    Args:
        stream: the file.
        name: what errors call it; its stem becomes the ``id``.

    Returns:
        The record.

    Raises:
        ValueError: the file is not XML, not GraphML, or uses hyperedges, ports or nested graphs.
    """
    try:
        root = ElementTree.parse(stream).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{name} is not well-formed XML: {error}") from None
    graphs = [child for child in root if _tag(child) == "graph"]
    if _tag(root) != "graphml" or len(graphs) != 1:
        raise ValueError(f"{name}: expected GraphML with one graph in it, found {len(graphs)}")
    keys = [_Key.read(child, name) for child in root if _tag(child) == "key"]
    graph = graphs[0]
    nodes = [child for child in graph if _tag(child) == "node"]
    links = [child for child in graph if _tag(child) == "edge"]
    unusual = {_tag(part) for part in graph.iter()} & {"hyperedge", "port"}
    if unusual or any(_tag(part) == "graph" for child in graph for part in child.iter()):
        what = unusual.pop() if unusual else "nested graph"
        raise ValueError(f"{name} contains a {what}; expected plain vertices and edges")
    bare = _bare(graph, nodes, links, name)
    vertices = [_data(node, keys, name) for node in nodes]
    raw = attach(bare, vertices, [_data(link, keys, name) for link in links], name)
    return Record(name, PurePosixPath(name).stem, raw, _data(graph, keys, name))


def read_graphml_folder(
    names: list[str], open_file: Callable[[str], BufferedIOBase], table: TextIOBase | None
) -> Iterator[Record]:
    """The graphs of a folder of GraphML files, in the order of their names.

    Args:
        names: the files.
        open_file: opens one of them.
        table: ``targets.csv`` where there is one: a column ``file``, with or without the ending
            ``.graphml``, with as many folders before it as tell it from others, and one column
            for each target; a file without a row has no targets.

    Returns:
        Records.

    Raises:
        ValueError: a file is unusable, or the table names one that is not there, or one of several.
    """
    called = _calls(names)
    targets = {} if table is None else _read_targets(table, called)
    columns = {column: None for row in targets.values() for column in row}
    for name in sorted(names):
        with open_file(name) as stream:
            record = read_graphml(stream, name)
        if len(called[(record.id,)]) > 1:
            record = replace(record, id="/".join(_path(name)))
        given = {**record.targets, **columns, **targets.get(name, {})}
        yield replace(record, targets=given)


def _path(name: str) -> tuple[str, ...]:
    """Folders and stem of a file."""
    path = PurePosixPath(name)
    return (path.with_suffix("") if path.suffix.lower() == ".graphml" else path).parts


def _calls(names: list[str]) -> dict[tuple[str, ...], list[str]]:
    """The files that a stem means, alone or with some of the folders before it."""
    called: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(names):
        path = _path(name)
        for k in range(len(path)):
            called.setdefault(path[k:], []).append(name)
    return called


def _meant(path: tuple[str, ...], called: dict[tuple[str, ...], list[str]]) -> list[str]:
    """The files that a row may mean, by as many of its folders as there are here."""
    for k in range(len(path)):
        found = called.get(path[k:], [])
        exact = [name for name in found if _path(name) == path[k:]]
        if found:
            return exact or found
    return []


def _read_targets(
    table: TextIOBase, called: dict[tuple[str, ...], list[str]]
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
        found = _meant(_path(row[place].strip()), called)
        if len(found) != 1 or found[0] in targets:
            fault = "twice" if found else "but there is no such file"
            if len(found) > 1:
                fault = f"which may be {found[0]} or {found[1]}: name the folder too"
            raise ValueError(f"targets.csv line {line} names {row[place]!r}, {fault}")
        targets[found[0]] = {column: values[k] for column, values in columns.items()}
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
    def read(cls, element: ElementTree.Element, where: str) -> _Key:
        kind = element.get("attr.type", "string")
        id = element.get("id", "")
        if kind not in _PARSE:
            raise ValueError(
                f"{where}: key {id!r} has type {kind!r}; expected one of {', '.join(_PARSE)}"
            )
        default = next((child.text or "" for child in element if _tag(child) == "default"), None)
        name = element.get("attr.name", id)
        return cls(id, element.get("for", "all"), name, _PARSE[kind], default)


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _bare(graph: ElementTree.Element, nodes: list, links: list, where: str) -> RawGraph:
    """The vertices and edges, without what they carry."""
    names = [node.get("id") for node in nodes]
    index = {name: k for k, name in enumerate(names)}
    if len(index) < len(names) or None in index:
        raise ValueError(f"{where}: a vertex has no id, or two have the same; give each its own")
    ends = []
    for link in links:
        pair = (link.get("source"), link.get("target"))
        for end in pair:
            if end not in index:
                raise ValueError(
                    f"{where}: edge {pair} names vertex {end!r}, which is not among the "
                    f"{len(names)} nodes; list it there"
                )
        ends.append([index[end] for end in pair])
    by_default = "true" if graph.get("edgedefault") == "directed" else "false"
    directed = any(link.get("directed", by_default).lower() == "true" for link in links)
    edges = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return RawGraph(len(names), edges, once=not directed, names=names)


def _data(element: ElementTree.Element, keys: list[_Key], where: str) -> dict[str, Any]:
    """What an element carries, by name, with the defaults of its kind."""
    given = {c.get("key"): c.text or "" for c in element if _tag(c) == "data"}
    carried = {}
    for key in keys:
        text = given.get(key.id, key.default)
        if text is None or key.domain not in ("all", _tag(element)):
            continue
        try:
            value = key.parse(text)
            carried[key.name] = _vector(value) if key.name == "x" else value
        except (ValueError, KeyError):
            raise ValueError(
                f"{where}: {key.name} of {_tag(element)} {element.get('id', '')} is {text!r}, "
                f"which is not of the type the file declares"
            ) from None
    return carried


def _vector(value: Any) -> Any:
    """An attribute ``x``: a string of numbers is a vector."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [float(part) for part in re.split(r"[\s,]+", value.strip())]
