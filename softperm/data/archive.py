"""Files in a folder or in a zip archive, read in the same way and never unpacked."""

from __future__ import annotations

import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path, PurePosixPath
from typing import cast

from softperm.files import size_limit

_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)
_BLOCK = 1 << 22
LARGEST = "SOFTPERM_MAX_FILE"  # bytes of a file that is read as a whole, 1 GiB by default


class Archive:
    """The files below a folder, or inside a zip archive, by their path relative to it.

    A zip archive is read in place; nothing is written to disk. An archive with an entry that points
    outside its own folder is refused, because such an archive is an attack.

    Args:
        path: a folder, or a zip archive (any compression that Python reads, LZMA included).

    Raises:
        ValueError: nothing exists at ``path``, or it is not a readable archive.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        if self.path.is_dir():
            files = (p for p in sorted(self.path.rglob("*")) if p.is_file())
            self._entries = {p.relative_to(self.path).as_posix(): str(p) for p in files}
        elif self.path.is_file():
            self._zip = _open_zip(self.path)
            names = (i.filename for i in self._zip.infolist() if not i.is_dir())
            self._entries = {_inside(self.path, name): name for name in names}
        else:
            raise ValueError(f"{self.path}: no such folder or zip archive")

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        if self._zip is not None:
            self._zip.close()

    @property
    def names(self) -> list[str]:
        """The files' paths relative to the folder or archive, without files of the system."""
        return [n for n in self._entries if not _is_system_file(n)]

    def find(self, suffix: str) -> str | None:
        """The file whose path is ``suffix`` or ends in ``/suffix``; None if there is none.

        Raises:
            ValueError: several files match.
        """
        matches = [n for n in self.names if n == suffix or n.endswith("/" + suffix)]
        if len(matches) > 1:
            raise ValueError(
                f"{self.path}: expected one file {suffix}, found {', '.join(matches)}; keep one"
            )
        return matches[0] if matches else None

    def open(self, name: str) -> BufferedIOBase:
        """A stream over one file's bytes."""
        entry = self._entries[name]
        if self._zip is None:
            return Path(entry).open("rb")
        try:
            return cast(BufferedIOBase, self._zip.open(entry))  # a ZipExtFile, which is one
        except (*_DAMAGE, RuntimeError) as error:  # RuntimeError: the entry needs a password
            raise self._damaged(name, error) from error

    def size(self, name: str) -> int:
        """Number of bytes of one file."""
        entry = self._entries[name]
        if self._zip is None:
            return Path(entry).stat().st_size
        return self._zip.getinfo(entry).file_size

    def check_size(self, name: str) -> None:
        """Raise ValueError if a file is too large to be read as a whole: it may be an attack."""
        limit = size_limit(LARGEST, 1 << 30)
        if self.size(name) > limit:
            raise ValueError(
                f"{self.path}: {name} has {self.size(name):,} bytes unpacked, more than the "
                f"{limit:,} that are read at once; set {LARGEST} to allow more"
            )

    @contextmanager
    def reading(self, name: str) -> Iterator[BufferedReader]:
        """A buffered stream over one file's bytes; damage that reading meets is a ``ValueError``.

        A zip archive's checksum of the file is verified when the end is reached.
        """
        with self.open(name) as stream:
            buffered = cast(BufferedReader, BufferedReader(cast(RawIOBase, stream), _BLOCK))
            try:
                yield buffered
            except _DAMAGE as error:
                raise self._damaged(name, error) from error

    def blocks(self, name: str) -> Iterator[bytes]:
        """One file's bytes, a few megabytes at a time."""
        with self.reading(name) as stream:
            while block := stream.read(_BLOCK):
                yield block

    def check(self) -> None:
        """Read all files to the end; raises ValueError if the archive is damaged."""
        for name in self.names:
            for _ in self.blocks(name):
                pass

    def digest(self, names: list[str] | None = None) -> str:
        """SHA-256 of the zip file; of a folder, SHA-256 over the named files (all by default)."""
        total = hashlib.sha256()
        if self._zip is not None:
            with self.path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        for name in sorted(self.names if names is None else names):
            with self.open(name) as stream:
                one = hashlib.file_digest(stream, "sha256").hexdigest()
            total.update(f"{name}\0{one}\n".encode())
        return total.hexdigest()

    def _damaged(self, name: str, error: Exception) -> ValueError:
        reason = str(error) or type(error).__name__
        return ValueError(
            f"{self.path} is damaged: {name} cannot be unpacked ({reason}); fetch the archive again"
        )


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _DAMAGE as error:
        raise ValueError(
            f"{path} is not a complete zip archive ({error}); fetch the archive again"
        ) from error


def _inside(path: Path, name: str) -> str:
    """The entry's path with doubled slashes removed; an entry that leaves the folder is refused."""
    posix = PurePosixPath(name.replace("\\", "/"))
    outside = posix.is_absolute() or ".." in posix.parts or ":" in name.split("/")[0]
    if outside or not posix.parts or "\0" in name:
        raise ValueError(
            f"{path}: entry {name!r} is no file inside the archive's folder; do not use this "
            "archive"
        )
    return posix.as_posix()


def _is_system_file(name: str) -> bool:
    """Whether a file was added by the system: macOS resource forks and hidden files."""
    parts = PurePosixPath(name).parts
    return parts[0] == "__MACOSX" or parts[-1].startswith(".")
