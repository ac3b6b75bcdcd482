"""Where raw data is found: the data root, then the cache, then its public source."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from softperm.data.datasets.download import Unreachable, download, record_of
from softperm.progress import Report, silent


@dataclass(frozen=True)
class Remote:
    """A raw file: its place in a data root, and where it comes from.

    Args:
        place: path relative to a data root, ``tu/MUTAG.zip``.
        url: its public address; None for a file that has none.
        sha256: what its bytes hash to, where that is known.
        others: places that hold the same data in another form, looked at first.
    """

    place: str
    url: str | None
    sha256: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """Folders that hold datasets.

    Args:
        cache: the folder for fetched and prepared files; may be removed at any time.
        root: the user's own folder of raw data, only ever read.
        mirror: address of a folder laid out like a data root, to fetch from instead of the
            public sources.
    """

    cache: Path
    root: Path | None = None
    mirror: str | None = None

    @property
    def raw(self) -> Path:
        """Fetched files, laid out like a data root."""
        return self.cache / "raw"

    def locate(self, *places: str) -> Path | None:
        """The first of these places that exists, in the data root and then in the cache."""
        folders = [f for f in (self.root, self.raw) if f is not None]
        found = (f / p for f in folders for p in places)
        return next((p for p in found if p.exists()), None)

    def is_fetched(self, path: Path) -> bool:
        """Whether a raw file is one that was downloaded, rather than the user's own."""
        return path.is_relative_to(self.raw) and record_of(path).exists()

    def get(self, remote: Remote, progress: Report = silent) -> Path:
        """The raw file on disk, fetched if need be.

        A fetched file whose bytes are no longer those that arrived is fetched again.

        Args:
            remote: which file.
            progress: told the bytes fetched.

        Returns:
            Its path.

        Raises:
            ValueError: if it is nowhere to be had; the sentence says what to put where.
        """
        path = self.locate(*remote.others, remote.place)
        if path is not None and (not self.is_fetched(path) or is_as_fetched(path)):
            return path
        target = self.raw / remote.place
        target.unlink(missing_ok=True)
        try:
            if self.mirror is None and remote.url is None:
                raise Unreachable("it has no public address")
            url = remote.url if self.mirror is None else f"{self.mirror.rstrip('/')}/{remote.place}"
            download(str(url), target, remote.sha256, progress)
        except Unreachable as error:
            home = "a data root (--data-root or SOFTPERM_DATA)" if self.root is None else self.root
            raise ValueError(
                f"{remote.place} is neither in the data root nor in the cache, and {error}; put it "
                f"at {remote.place} below {home}"
            ) from error
        return target


def open_store(
    root: Path | str | None = None, cache: Path | str | None = None, mirror: str | None = None
) -> Store:
    """The store that arguments and environment describe.

    Args:
        root: data root; by default ``SOFTPERM_DATA``, or none.
        cache: cache folder; by default ``SOFTPERM_CACHE``, or ``softperm`` in the user's caches.
        mirror: address to fetch from; by default ``SOFTPERM_MIRROR``, or the public sources.

    Returns:
        The store.

    Raises:
        ValueError: if a data root is named that does not exist.
    """
    root = root or os.environ.get("SOFTPERM_DATA") or None
    if root is not None and not Path(root).is_dir():
        raise ValueError(f"the data root {root} is no folder; name one that holds tu/NAME.zip, …")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = cache or os.environ.get("SOFTPERM_CACHE") or Path(caches) / "softperm"
    mirror = mirror or os.environ.get("SOFTPERM_MIRROR") or None
    return Store(Path(cache).expanduser(), None if root is None else Path(root), mirror)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_as_fetched(path: Path, digest: Callable[[Path], str] = file_digest) -> bool:
    """Whether a fetched file still has the SHA-256 that was recorded when it arrived."""
    try:
        return json.loads(record_of(path).read_text())["sha256"] == digest(path)
    except (OSError, ValueError, KeyError):
        return False
