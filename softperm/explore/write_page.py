"""The page as one HTML file: sources of ``page/``, and packets of data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np

from softperm.errors import counted
from softperm.explore.contents import LARGEST, Contents, Neighbours, StoredExplanation
from softperm.explore.packing import pack, pack_text

SOURCES = Path(__file__).parent / "page"
MODULES = (
    "elements", "data", "colours", "map", "matching", "drawing", "heatmap", "graph_panel",
    "compare_panel", "latent_panel", "model_panel", "server_panel", "main",
)  # fmt: skip
"""The page's modules; each imports only from those before it."""
BLOCK = 8192  # vertices whose graphs are compressed together: a click unpacks one block
LEVELS = (255, 63, 15)  # quantisation steps of D; the finest that fit are used
BUDGET = 24_000_000  # characters of the whole page
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.M)


def page_html(contents: Contents, server: bool = False) -> str:
    """The page, complete: it needs no network and no other file.

    Args:
        contents: what to show.
        server: whether the page may send requests to the server that it came from.
    """
    head, names, about, blocks = pack_contents(contents)
    data = [_json_script("about", {**about, "server": server}), _script("head", head)]
    if names is not None:
        data.append(_script("names", names))
    data += [_script(f"block{k}", block) for k, block in enumerate(blocks)]
    style, script = (SOURCES / "page.css").read_text(encoding="utf-8"), join_modules()
    template = (SOURCES / "page.html").read_text(encoding="utf-8")
    parts = {
        "policy": html.escape(content_security_policy(style, script, server), quote=True),
        "style": style,
        "data": "\n".join(data),
        "script": script,
    }
    return re.sub(r"\{(policy|style|data|script)\}", lambda match: parts[match[1]], template)


def content_security_policy(style: str, script: str, server: bool = False) -> str:
    """The policy that lets the page run its own script and nothing else."""
    rules = [
        "default-src 'none'",
        f"script-src '{_checksum(script)}'",
        f"style-src '{_checksum(style)}'",
        "worker-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "connect-src 'self'" if server else "connect-src 'none'",
    ]
    return "; ".join(rules)


def join_modules() -> str:
    """The modules of the page as one script: imports and exports are removed.

    Raises:
        ValueError: a module imports one that does not come before it.
    """
    joined: list[str] = []
    before: set[str] = set()
    for name in MODULES:
        text = (SOURCES / f"{name}.js").read_text(encoding="utf-8")
        if unknown := set(_IMPORT.findall(text)) - before:
            raise ValueError(f"{name}.js imports {min(unknown)}.js, which must come before it")
        joined.append(_EXPORT.sub("", _IMPORT.sub("", text)))
        before.add(name)
    return "\n" + "\n".join(joined)


def pack_contents(contents: Contents) -> tuple[str, str | None, dict[str, object], list[str]]:
    """The packets of the page: the map, the names, their metadata, and blocks of graphs."""
    places = contents.places - contents.places.min(0)
    places = np.rint(places / np.maximum(places.max(0), 1e-300) * 65535).astype(np.int64)
    head = {"places": places} | {f"column{i}": c.values for i, c in enumerate(contents.columns)}
    plain = list(contents.ids) == [str(i) for i in range(len(contents))]
    names = None if plain else pack_text(list(contents.ids))
    stored = np.flatnonzero(np.diff(contents.drawings.ptr) <= LARGEST)
    spent = len(pack(head)) + len(names or "")
    levels, stored = _fit(contents, stored, BUDGET - spent)
    starts = _block_starts(contents, stored)
    blocks = [
        pack(_block(contents, stored[a:b], levels))
        for a, b in zip(starts, [*starts[1:], len(stored)], strict=True)
    ]
    if len(stored) < len(contents):
        head["stored"] = stored
    about = _about(contents) | {
        "levels": levels,
        "blocks": starts,
        "named": names is not None,
        "stored_all": len(stored) == len(contents),
        "missing": f"This page holds the drawings of {len(stored):,} of "
        f"{counted(len(contents), 'graph')}; of this one it knows only its place on the map. "
        "softperm explore --serve shows all.",
    }
    return pack(head), names, about, blocks


def _fit(contents: Contents, stored: np.ndarray, budget: int) -> tuple[int, np.ndarray]:
    """The finest steps of D with which the blocks fit; fewer graphs if even the coarsest do not."""
    sample = stored[np.unique(np.linspace(0, max(len(stored) - 1, 0), 2000).astype(int))]
    size = 0
    for levels in LEVELS:
        starts = _block_starts(contents, sample)
        ends = [*starts[1:], len(sample)]
        size = sum(
            len(pack(_block(contents, sample[a:b], levels)))
            for a, b in zip(starts, ends, strict=True)
        )
        size = round(size * len(stored) / max(len(sample), 1))
        if size <= 0.95 * budget:
            return levels, stored
    count = int(len(stored) * 0.95 * budget / size)
    return LEVELS[-1], stored[np.unique(np.linspace(0, len(stored) - 1, count).astype(int))]


def _block_starts(contents: Contents, stored: np.ndarray) -> list[int]:
    """The first graph of each block, by its place among the stored graphs."""
    sizes = np.diff(contents.drawings.ptr)[stored]
    block = np.concatenate([[0], np.cumsum(sizes)[:-1]]) // BLOCK if len(sizes) else np.zeros(0)
    return [0, *(np.flatnonzero(np.diff(block)) + 1).tolist()] if len(sizes) else []


def _scale(contents: Contents) -> float:
    return max(float(contents.permutations.max(initial=0.0)), 1e-6)


def _block(contents: Contents, graphs: np.ndarray, levels: int) -> dict[str, np.ndarray]:
    """The arrays of some graphs, laid end to end."""
    drawings = contents.drawings
    rows, edges = _spans(drawings.ptr, graphs), _spans(drawings.edge_ptr, graphs)
    u, w = drawings.ends[:, edges]
    places = np.rint((drawings.places[rows] + 1) * 127.5).clip(0, 255).astype(np.int64)
    plans = np.rint(contents.permutations[rows] / _scale(contents) * levels).astype(np.int64)
    explained = [contents.explanations.get(i) for i in graphs.tolist()]
    arrays = {
        "size": np.diff(drawings.ptr)[graphs],
        "edge_count": np.diff(drawings.edge_ptr)[graphs],
        "label": drawings.label[rows],
        "u": u,
        "w": w,
        "edge_label": drawings.edge_label[edges],
        "x": places[:, 0],
        "y": places[:, 1],
        "permutation": plans,
        "outputs": contents.outputs.values[graphs].astype(np.float32),
        **_neighbours("near", contents.neighbours, graphs),
        **_neighbours("proven", contents.proven, graphs),
        **_explanations(explained),
    }
    if drawings.weight is not None:
        arrays["weight"] = drawings.weight[edges].astype(np.float32)
    return arrays


def _neighbours(
    name: str, neighbours: Neighbours | None, graphs: np.ndarray
) -> dict[str, np.ndarray]:
    if neighbours is None:
        none = np.zeros(int(graphs.max(initial=0)) + 2, np.int64)
        neighbours = Neighbours(none, np.zeros(0, np.int64), np.zeros(0))
    rows = _spans(neighbours.ptr, graphs)
    arrays = {
        f"{name}_count": np.diff(neighbours.ptr)[graphs],
        f"{name}_index": neighbours.index[rows],
        f"{name}_distance": neighbours.distance[rows].astype(np.float32),
    }
    if name == "proven":
        exact = neighbours.exact
        arrays["proven_exact"] = np.zeros(0, np.int64) if exact is None else exact[rows]
    return arrays


def _explanations(explained: list[StoredExplanation | None]) -> dict[str, np.ndarray]:
    there = [each for each in explained if each is not None]
    return {
        "explained": np.array([each is not None for each in explained]),
        "vertex_part": np.concatenate(
            [np.zeros(0, np.float32), *(e.vertices.ravel() for e in there)]
        ),
        "edge_part": np.concatenate([np.zeros(0, np.float32), *(e.edges.ravel() for e in there)]),
    }


def _spans(ptr: np.ndarray, graphs: np.ndarray) -> np.ndarray:
    """The rows of some graphs in arrays that are laid end to end."""
    lengths = np.diff(ptr)[graphs]
    total = int(lengths.sum())
    offset = np.repeat(ptr[:-1][graphs] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return np.arange(total) + offset.astype(np.int64) if total else np.zeros(0, np.int64)


def _about(contents: Contents) -> dict[str, object]:
    """The metadata of the packets, as JSON values."""
    drawings, outputs = contents.drawings, contents.outputs
    first, second = contents.map_shares
    return {
        "name": contents.name,
        "size": len(contents),
        "latent": contents.permutations.shape[1],
        "scale": _scale(contents),
        "labels": drawings.label_names,
        "edge_labels": drawings.edge_label_names,
        "weighted": drawings.weight is not None,
        "outputs": {"kind": outputs.kind, "names": outputs.names},
        "explains": contents.explains,
        "columns": [
            {"name": c.name, "role": c.role, "categories": c.categories} for c in contents.columns
        ],
        "latents": [asdict(each) for each in contents.latent],
        "facts": dict(contents.facts),
        "curve": [{k: _finite(v) for k, v in row.items()} for row in contents.curve],
        "metric": contents.metric,
        "map_note": f"Principal components of the aligned vectors: {first:.0%} of the variance "
        f"from left to right, {second:.0%} from bottom to top."
        if contents.map_method == "pca"
        else f"{contents.map_method.upper()} of the aligned vectors.",
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _json_script(name: str, content: object) -> str:
    """A script element with JSON, in which no character can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _script(name: str, packet: str) -> str:
    return f'<script type="text/plain" id="{name}">{packet}</script>'


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
