"""Distances of pairs on disk: written atomically, read back only for the same graphs."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from softperm.distance.pack import Packed


@dataclass(frozen=True, eq=False)
class PairTable:
    """What is known of each pair of K, in the order of ``np.triu_indices``; written in place.

    Args:
        distance: least distance found.
        lower: proven lower bound.
        exact: whether the two meet.
        limit: seconds the pair was given, infinite where there was no limit; NaN if not yet begun.
    """

    distance: Float[np.ndarray, " K"]
    lower: Float[np.ndarray, " K"]
    exact: Bool[np.ndarray, " K"]
    limit: Float[np.ndarray, " K"]

    @classmethod
    def empty(cls, pairs: int) -> PairTable:
        """A table of pairs of which nothing is known."""
        return cls(
            distance=np.full(pairs, np.nan),
            lower=np.zeros(pairs),
            exact=np.zeros(pairs, dtype=bool),
            limit=np.full(pairs, np.nan),
        )

    def missing(self, time_limit: float | None) -> Bool[np.ndarray, " K"]:
        """Pairs to compute: not begun, or not proven and now given more time."""
        seconds = np.inf if time_limit is None else time_limit
        return ~self.exact & ~(self.limit >= seconds)


def fingerprint(packed: Packed) -> str:
    """A digest of the graphs, in their order, with all that the distances depend on."""
    digest = hashlib.sha256(b"softperm pairs 1")
    for array in packed:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def save(path: Path, table: PairTable, mark: str) -> None:
    """Replace the file by one that holds the table, in one step.

    Args:
        path: the file.
        table: what is known of each pair.
        mark: the fingerprint of the graphs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    with unfinished.open("wb") as file:
        np.savez_compressed(file, mark=np.array(mark), **vars(table))
    unfinished.replace(path)


def load(path: Path, pairs: int, mark: str) -> PairTable:
    """Read a table back; an empty one if there is no file yet.

    Args:
        path: the file.
        pairs: how many pairs it must hold.
        mark: the fingerprint it must have.

    Returns:
        The table.

    Raises:
        ValueError: the file is something else, or belongs to other graphs.
    """
    if not path.exists():
        return PairTable.empty(pairs)
    try:
        with np.load(path, allow_pickle=False) as stored:
            found = {key: stored[key] for key in stored.files}
        table = PairTable(**{key: found[key] for key in PairTable.__dataclass_fields__})
        stored_mark = str(found["mark"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise ValueError(
            f"checkpoint {path} is not a file of distances; remove it or choose another path"
        ) from None
    if stored_mark != mark or table.distance.shape != (pairs,):
        raise ValueError(
            f"checkpoint {path} belongs to other graphs or options; remove it or choose another "
            f"path"
        )
    return table
