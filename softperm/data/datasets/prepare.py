"""Raw data to one mapped file, made once for each version of data, code and options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from softperm.data.datasets.meta import Meta
from softperm.data.datasets.pack import FORMAT, Pack, Spool, content_digest, open_pack
from softperm.data.datasets.store import Store, file_digest
from softperm.files import disk_errors, exclusive, put_in_place, remove_abandoned, workspace
from softperm.progress import Report, silent

_HOME = Path(__file__).parents[3]  # the folder of the package softperm
_EVERYWHERE = (
    "softperm.data.features.__init__",
    "softperm.data.features.adjacency",
    "softperm.data.features.counts",
    "softperm.data.features.walks",
    "softperm.data.datasets.pack",
    "softperm.data.datasets.prepare",
)
_DERIVED = ("structure",)  # follows from the rest, so it is no part of what the dataset is


@dataclass(frozen=True)
class Part:
    """Consecutive graphs laid end to end, as in :class:`softperm.data.collection.Collection`.

    Args:
        sizes: vertices of each graph.
        edge_counts: directed edges of each graph.
        edge_index: both directions of every edge, numbered within their graph, sorted.
        label: codes of discrete vertex labels.
        x: continuous vertex attributes.
        edge_label: codes of discrete edge labels.
        edge_attr: continuous edge attributes.
        position: coordinates of the vertices.
        classes: the class of each graph, as a number from 0.
        values: targets of each graph, NaN where missing.
    """

    sizes: Int[np.ndarray, " b"]
    edge_counts: Int[np.ndarray, " b"]
    edge_index: Int[np.ndarray, "2 e"]
    label: Int[np.ndarray, "v L"] | None = None
    x: Float[np.ndarray, "v F"] | None = None
    edge_label: Int[np.ndarray, "e Le"] | None = None
    edge_attr: Float[np.ndarray, "e Fe"] | None = None
    position: Float[np.ndarray, "v 3"] | None = None
    classes: Int[np.ndarray, " b"] | None = None
    values: Float[np.ndarray, "b T"] | None = None


@dataclass(frozen=True)
class Built:
    """What reading raw files gives.

    Args:
        meta: names and counts.
        parts: the graphs, a run at a time.
        extra: arrays that belong to the dataset as a whole, such as an official split.
    """

    meta: Meta
    parts: Iterator[Part]
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How a dataset is made from raw files.

    Args:
        name: the dataset.
        source: SHA-256 of the raw files.
        options: choices that change the result.
        modules: the code that shapes the result, beside what every dataset shares.
        libraries: what that code needs beside what softperm always needs.
        build: reads the raw files.
        content: what :func:`content_of` must give, where the data is known and was fetched.
    """

    name: str
    source: str
    options: Mapping[str, object]
    modules: tuple[str, ...]
    build: Callable[[Report], Built]
    content: str | None = None
    libraries: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What the prepared file is a function of: format, code, options and raw data."""
        code = [_source_of(m) for m in sorted({*self.modules, *_EVERYWHERE})]
        said = json.dumps(
            [FORMAT, self.name, self.source, dict(self.options), code], sort_keys=True
        )
        return hashlib.sha256(said.encode()).hexdigest()

    def versions(self) -> str:
        """The libraries with their versions, as the name of the prepared file ends.

        Raises:
            PackageNotFoundError: one of them is not installed.
        """
        return "".join(f"-{library}-{version(library)}" for library in self.libraries)


def prepare(recipe: Recipe, store: Store, progress: Report = silent) -> Pack:
    """The prepared file of a dataset, made now unless it is there already.

    Its name holds :attr:`Recipe.key`, so a change of code, options or raw data makes another
    file; and the versions of the libraries that made it. Where they are not installed, a file that
    was made elsewhere and copied here serves. A file is made in a folder beside and renamed when
    complete; a second process that wants the same file waits for the first.

    Args:
        recipe: what to make.
        store: where prepared files are kept.
        progress: told how far the work is.

    Returns:
        The mapped file.

    Raises:
        ValueError: if the raw data is not sound, or not the data its name promises.
        OSError: if the disk is full.
    """
    folder, name = store.cache / "prepared", f"{recipe.name}-{recipe.key[:16]}"
    try:
        target = folder / f"{name}{recipe.versions()}.pack"
    except PackageNotFoundError:
        return _made_elsewhere(folder, name, recipe)
    pack = _if_complete(target)
    if pack is not None:
        return pack
    with disk_errors(target), exclusive(target):
        pack = _if_complete(target)
        if pack is not None:
            return pack
        remove_abandoned(target.parent)
        with workspace(target) as folder:
            made = _make(recipe, folder, progress)
            found = content_of(open_pack(made))
            if recipe.content not in (None, found):
                raise ValueError(
                    f"{recipe.name}: the fetched files hold other data than the known dataset "
                    f"(content {found[:16]}, expected {str(recipe.content)[:16]}); put files you "
                    "trust in a data root to use them"
                )
            put_in_place(made, target)
    return open_pack(target)


def content_of(pack: Pack) -> str:
    """SHA-256 of what a dataset says: its graphs, labels, attributes and targets."""
    return content_digest(pack.digests, (n for n in pack.arrays if n not in _DERIVED))


def codes_type(sizes: tuple[int, ...]) -> type[np.signedinteger]:
    """The smallest integer type that holds codes of vocabularies of these sizes."""
    kinds = (np.int8, np.int16, np.int32)
    return next(k for k in kinds if max(sizes, default=0) - 1 <= np.iinfo(k).max)


def _if_complete(target: Path) -> Pack | None:
    if not target.exists():
        return None
    try:
        return open_pack(target)
    except ValueError:  # damaged since it was made: make it again
        return None


def _make(recipe: Recipe, folder: Path, progress: Report) -> Path:
    spool, made = Spool(folder), folder / "pack"
    built = recipe.build(progress)
    for part in built.parts:
        for name in (f.name for f in fields(Part) if f.name != "edge_index"):
            if getattr(part, name) is not None:
                spool.append(name, getattr(part, name))
        spool.append("row", part.edge_index[0])
        spool.append("column", part.edge_index[1])
        spool.append("structure", _structure(part))
    for name, count in (("ptr", "sizes"), ("edge_ptr", "edge_counts")):
        spool.append(name, np.concatenate([[0], np.cumsum(spool.load(count))]))
        spool.forget(count)
    for name, array in built.extra.items():
        spool.append(name, array)
    spool.write(made, built.meta.to_json(), stacks={"edge_index": ("row", "column")})
    return made


def _structure(part: Part) -> np.ndarray:
    import torch  # only who prepares needs it, not who looks whether a file is there

    from softperm.data.features import structural_features

    ptr = np.concatenate([[0], np.cumsum(part.sizes)])
    edges = part.edge_index + np.repeat(ptr[:-1], part.edge_counts)  # (2, e) through the part
    return structural_features(torch.from_numpy(edges), torch.from_numpy(ptr)).numpy()  # (v, 2)


def _made_elsewhere(folder: Path, name: str, recipe: Recipe) -> Pack:
    """A prepared file from a machine with the libraries that making it takes."""
    for target in sorted(folder.glob(f"{name}-*.pack"), reverse=True):
        pack = _if_complete(target)
        if pack is not None:
            return pack
    raise ImportError(
        f"{recipe.name}: preparing it needs {' and '.join(recipe.libraries)}, which is not "
        "installed: pip install softperm[molecules], or prepare it elsewhere, with the same "
        f"softperm, and copy {name}-….pack to {folder}"
    )


def _source_of(module: str) -> str:
    """SHA-256 of a module's source, without running it."""
    return file_digest(_HOME / f"{module.replace('.', '/')}.py")
