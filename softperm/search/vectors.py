"""Neighbours by learnt vector, in Faiss (extra ``search``): for graphs of any size, not proven."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softperm.errors import by_count, counted
from softperm.files import write_atomically
from softperm.nn.model_folder import WEIGHTS
from softperm.search.index import GraphIndex, Hit, SearchResult

if TYPE_CHECKING:
    from softperm.estimators.pignn import PiGNNEstimator

FORMAT = "softperm vectors 2"
ABOUT = "vectors.json"
MODEL = "model"  # folder of the estimator
AT_ONCE = 4096  # graphs whose vectors are computed together


class VectorIndex:
    """Finds the graphs of a :class:`GraphIndex` whose learnt vectors are nearest to a query's.

    For collections whose graphs are too large, or too many, for exact distances. The hits are not
    proven; with ``rerank`` the exact distances of the best candidates decide their order.

    A vector belongs to the graph that it was computed from, by a checksum of its labels, edges and
    weights. After a change of the index, :meth:`update` computes what is missing.

    Create one with :meth:`build` or :meth:`open`.

    Args:
        graphs: the graphs, with their identifiers and metadata.
        estimator: a fitted estimator, whose ``transform`` gives the vectors.
        vectors: the vectors, a Faiss index whose numbers are places in ``ids``.
        ids: the identifier of each number; None for a removed graph.
        checksums: of the graph of each number; see :attr:`GraphIndex.checksums`.
        mapped: whether the vectors are mapped into memory and cannot be changed there.
    """

    def __init__(
        self,
        graphs: GraphIndex,
        estimator: PiGNNEstimator,
        vectors: Any,
        ids: list[Any],
        checksums: list[int],
        mapped: bool = False,
    ) -> None:
        self.graphs, self.estimator = graphs, estimator
        self._vectors, self._ids, self._checksums, self._mapped = vectors, ids, checksums, mapped
        self._place = {name: k for k, name in enumerate(ids) if name is not None}
        self._compared: tuple[dict[Any, int], set[Any], list[Any]] | None = None

    @classmethod
    def build(
        cls,
        graphs: GraphIndex,
        estimator: PiGNNEstimator,
        *,
        factory: str = "Flat",
        originals: Mapping[Any, Any] | None = None,
    ) -> VectorIndex:
        """The vectors of all graphs of an index.

        Args:
            graphs: the index.
            estimator: a fitted estimator, such as a :class:`softperm.PiGNNAligner`.
            factory: the kind of Faiss index, as ``faiss.index_factory`` names it. ``Flat`` compares
                all vectors, ``IVF1024,Flat`` a part of them, for millions of graphs.
            originals: the graphs by identifier, where the estimator reads attributes, which the
                index does not store.
        """
        faiss = _faiss()
        size = len(estimator.get_feature_names_out())
        index = cls(graphs, estimator, faiss.index_factory(size, f"IDMap2,{factory}"), [], [])
        index.update(originals)
        return index

    def __len__(self) -> int:
        return int(self._vectors.ntotal)

    def _compare(self) -> tuple[set[Any], list[Any]]:
        """Identifiers of vectors that are of no graph of the index, and of graphs without one."""
        current = self.graphs.checksums
        if self._compared is None or self._compared[0] is not current:
            own = {name: self._checksums[place] for name, place in self._place.items()}
            gone = {name for name, checksum in own.items() if current.get(name) != checksum}
            new = [name for name in current if name not in own or name in gone]
            self._compared = (current, gone, new)
        return self._compared[1:]

    def update(self, originals: Mapping[Any, Any] | None = None) -> None:
        """Computes the vectors of new and changed graphs and drops those of removed ones.

        Args:
            originals: as for :meth:`build`. A change of attributes alone, which the index does not
                store, is not seen.
        """
        originals, current = originals or {}, self.graphs.checksums
        gone, new = self._compare()
        if self._mapped and (gone or new):
            faiss = _faiss()
            self._vectors = faiss.deserialize_index(faiss.serialize_index(self._vectors))
            self._mapped = False
        if gone:
            places = [self._place.pop(identifier) for identifier in gone]
            self._vectors.remove_ids(np.array(places, np.int64))
            for place in places:
                self._ids[place] = None
                self._checksums[place] = 0
        for start in range(0, len(new), AT_ONCE):
            names = new[start : start + AT_ONCE]
            listed = [originals.get(name) for name in names]
            rows = self._transform(
                [
                    self.graphs.graph(name) if graph is None else graph
                    for name, graph in zip(names, listed, strict=True)
                ]
            )
            if not self._vectors.is_trained:
                self._vectors.train(rows)
            places = np.arange(len(self._ids), len(self._ids) + len(names))
            self._vectors.add_with_ids(rows, places)
            self._ids += names
            self._checksums += [current[name] for name in names]
            self._place.update(zip(names, places.tolist(), strict=True))
        self._compared = None

    def nearest(
        self,
        graph: Any,
        k: int = 10,
        *,
        where: str | None = None,
        rerank: int = 0,
        time_limit: float | None = None,
    ) -> SearchResult:
        """The graphs whose vectors are nearest to that of the query.

        Args:
            graph: the query.
            k: number of hits; fewer if the index has fewer graphs.
            where: a condition on metadata, such as ``"mass < 300"``.
            rerank: number of candidates whose exact distances are computed; the nearest of them are
                the hits. 0 for none: distances are then those of the vectors.
            time_limit: seconds for these distances.

        Raises:
            ValueError: graphs of the index have no vector.
        """
        gone, new = self._compare()
        if new:
            raise ValueError(
                f"{len(new):,} of {counted(len(self.graphs), 'graph')} of the index "
                f"{by_count(len(new), 'has', 'have')} no vector, the first is {new[0]!r}: add the "
                "graphs again to update the vectors"
            )
        if k < 1:
            raise ValueError(f"k is {k}; expected at least 1")
        if rerank and rerank < k:
            raise ValueError(f"rerank is {rerank}; expected at least k, which is {k}, or 0")
        options = {}
        if where is not None or gone:
            faiss = _faiss()
            names = self.graphs.ids if where is None else self.graphs.ids_where(where)
            allowed = [self._place[name] for name in names]
            if not allowed:
                return SearchResult((), (), 0)
            selector = faiss.IDSelectorBatch(np.array(allowed, np.int64))
            options["params"] = faiss.SearchParameters(sel=selector)
        query = self._transform([graph])
        squares, places = self._vectors.search(query, min(rerank or k, len(self)), **options)
        candidates = [
            (self._ids[place], float(np.sqrt(max(square, 0.0))))
            for place, square in zip(places[0].tolist(), squares[0].tolist(), strict=True)
            if place >= 0
        ]
        if rerank:
            names = [name for name, _ in candidates]
            return self.graphs.nearest_among(graph, names, k, time_limit=time_limit)
        none = np.zeros((0, 2), np.int64)
        hits = tuple(Hit(name, distance, 0.0, False, none) for name, distance in candidates)
        return SearchResult(hits, (), len(hits))

    def _transform(self, graphs: Sequence[Any]) -> np.ndarray:
        return np.ascontiguousarray(self.estimator.transform(graphs), np.float32)

    def save(self, folder: str | os.PathLike) -> None:
        """Saves vectors and estimator; the index of the graphs is saved by itself.

        Args:
            folder: the folder of the vectors; by custom ``vectors`` in that of the index.
        """
        faiss, path = _faiss(), Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        content = faiss.serialize_index(self._vectors).tobytes()
        name = f"{zlib.crc32(content):08x}.faiss"
        write_atomically(path / name, content)
        self.estimator.save(path / MODEL)
        about = {"format": FORMAT, "file": name, "model": _model_checksum(path)}
        body = json.dumps({**about, "ids": self._ids, "checksums": self._checksums})
        first = json.dumps({"checksum": zlib.crc32(body.encode())})
        write_atomically(path / ABOUT, f"{first}\n{body}")
        for old in path.glob("*.faiss"):
            if old.name != name and is_vector_file(old.name):
                old.unlink()

    @classmethod
    def open(
        cls, folder: str | os.PathLike, graphs: GraphIndex, device: str | None = None
    ) -> VectorIndex:
        """Opens saved vectors; they are mapped into memory.

        Args:
            folder: see :meth:`save`.
            graphs: the index of the graphs.
            device: where the estimator runs.

        Raises:
            ValueError: there are no vectors, or a file is damaged.
        """
        from softperm.estimators.pignn import load_estimator

        faiss, path = _faiss(), Path(folder)
        try:
            first, _, body = (path / ABOUT).read_bytes().partition(b"\n")
            about = json.loads(body or first)
            if about.get("format") != FORMAT:
                raise ValueError("another version wrote it")
            if json.loads(first)["checksum"] != zlib.crc32(body):
                raise ValueError(f"{ABOUT} does not match its checksum")
            file = path / about["file"]
            if f"{zlib.crc32(file.read_bytes()):08x}.faiss" != file.name:
                raise ValueError(f"{file.name} does not match the checksum in its name")
            if _model_checksum(path) != about["model"]:
                raise ValueError("the model is not the one of the vectors")
            vectors = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
            ids, checksums = list(about["ids"]), list(about["checksums"])
        except FileNotFoundError as missing:
            if missing.filename == str(path / ABOUT):
                raise ValueError(f"{path} holds no vectors: index it with a model first") from None
            raise ValueError(f"{missing.filename} is missing: build the vectors again") from None
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as problem:
            raise ValueError(
                f"the vectors in {path} cannot be used ({problem}): build them again"
            ) from None
        estimator = load_estimator(path / MODEL, device)
        return cls(graphs, estimator, vectors, ids, checksums, mapped=True)


def is_vector_file(name: str) -> bool:
    """Whether :meth:`VectorIndex.save` gives a file this name."""
    return re.fullmatch(r"[0-9a-f]{8}\.faiss", name) is not None


def _model_checksum(folder: Path) -> str:
    """The checksum of the model whose vectors a folder holds."""
    return f"{zlib.crc32((folder / MODEL / WEIGHTS).read_bytes()):08x}"


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ImportError(
            "neighbours by vector need Faiss: pip install 'softperm[search]'"
        ) from None
    return faiss
