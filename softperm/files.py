"""Files that appear whole or not at all, and locks that end with the process that holds them."""

from __future__ import annotations

import contextlib
import csv
import errno
import glob
import hashlib
import json
import mmap
import os
import platform
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from io import TextIOBase
from pathlib import Path
from typing import IO, Any
from weakref import WeakValueDictionary

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replaces a file in one step: a reader sees the old content or the new, nothing between.

    Args:
        path: the file; its folder is made if missing.
        content: bytes, or text that is written as UTF-8.

    Raises:
        OSError: it cannot be written; the old file is still there.
    """
    with appearing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file that is written bit by bit and replaces ``path`` when it is whole.

    Yields:
        The file, opened for writing.

    Raises:
        OSError: it cannot be written; the old file is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = f"{platform.node()}.{os.getpid()}.{threading.get_native_id()}"
    beside = path.with_name(f".{path.name}.{writer}.part")
    try:
        with disk_errors(path):
            with beside.open("wb") as stream:
                yield stream
            put_in_place(beside, path)
    finally:
        with contextlib.suppress(OSError):  # on a read-only file system another error is raised
            beside.unlink()


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none, or if it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def put_in_place(source: Path, target: Path) -> None:
    """Renames a finished file to ``target``, once its bytes are on the disk."""
    with source.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(source, target)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def seal(header: bytes, content: bytes) -> bytes:
    """The content of a file that detects damage: header, SHA-256 of the content, content."""
    return header + hashlib.sha256(content).digest() + content


def unseal(header: bytes, sealed: bytes) -> bytes | None:
    """The content out of :func:`seal`; None if it is damaged or has another header."""
    start = len(header) + hashlib.sha256().digest_size
    content = sealed[start:]
    sound = sealed[:start] == header + hashlib.sha256(content).digest()
    return content if sound else None


class CSVWriter:
    """Writes CSV in which no text is a formula to a spreadsheet.

    Text that begins with ``=``, ``+``, ``-``, ``@`` or a control character, and is no number, gets
    an apostrophe before it.

    >>> import sys
    >>> CSVWriter(sys.stdout).writerow(["=1+1", "-CH3", "-1.5", -2, "C=O"])
    '=1+1,'-CH3,-1.5,-2,C=O
    """

    def __init__(self, stream: TextIOBase) -> None:
        self._writer = csv.writer(stream, lineterminator="\n")

    def writerow(self, row: Iterable[object]) -> None:
        """Writes a row."""
        self._writer.writerow(
            [f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in row]
        )

    def writerows(self, rows: Iterable[Iterable[object]]) -> None:
        """Writes several rows."""
        for row in rows:
            self.writerow(row)


def _is_formula(cell: str) -> bool:
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def size_limit(variable: str, default: int) -> int:
    """The largest number of bytes that is read at once, which an environment variable may change.

    Raises:
        ValueError: the variable is not a number.
    """
    value = os.environ.get(variable) or str(default)
    if not value.isdecimal():
        raise ValueError(f"{variable} must be a number of bytes; got {value!r}")
    return int(value)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Makes errors of writing name ``path`` and, on a full disk, say what to do."""
    try:
        yield
    except OSError as error:
        words = error.strerror
        if is_full(error):
            words = (
                "the disk is full; free some space, or write to another disk (SOFTPERM_CACHE names "
                "the folder of caches), and run again"
            )
        raise OSError(error.errno, words, str(path)) from None


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk has no space left."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextlib.contextmanager
def exclusive(target: Path, wait: Callable[[], None] | None = lambda: None) -> Iterator[None]:
    """Holds the lock ``target.lock``; it ends with the process, also after ``kill -9``.

    On a file system without locks the existence of ``target.lock.soft`` is the lock. A lock
    left by a killed process is recognised on the same machine only.

    Args:
        target: the file or folder to be written.
        wait: called before waiting for another process that holds the lock; None to not wait.

    Raises:
        BlockingIOError: another process holds the lock, and ``wait`` is None.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = _native_lock(target.with_name(target.name + ".lock"))
    try:
        _acquire(lock, target, wait)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        lock = SoftFileLock(f"{lock.lock_file}.soft")
        _acquire(lock, target, wait)
    try:
        yield
    finally:
        lock.release()


def _native_lock(path: Path) -> BaseFileLock:
    """A lock of the file system.

    The fallback of filelock takes an empty file, which a lock of the file system leaves, for a lock
    that is held for ever.
    """
    try:
        return FileLock(path, fallback_to_soft=False)
    except TypeError:  # an older filelock
        return FileLock(path)


def _acquire(lock: BaseFileLock, target: Path, wait: Callable[[], None] | None) -> None:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if wait is None:
            raise BlockingIOError(errno.EWOULDBLOCK, "in use", str(target)) from None
        wait()
        lock.acquire()


@contextlib.contextmanager
def undeleted(folder: Path) -> Iterator[None]:
    """Raises ValueError after the block if the folder was deleted or moved meanwhile.

    Files that were written later are in a new folder of the same name, without the earlier ones.
    """
    if not hasattr(os, "O_DIRECTORY"):  # Windows deletes no folder in which a file is open
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
        try:
            same = os.path.samestat(folder.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            same = False
        if not same:
            raise ValueError(
                f"{folder} was deleted or moved while it was written to: delete what is there now, "
                "and run the same command again"
            )
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def workspace(target: Path) -> Iterator[Path]:
    """An empty folder next to ``target`` in which to create it; removed afterwards.

    Call it while holding :func:`exclusive`: what a killed process left there is removed first.

    Yields:
        The folder, on the same disk as ``target``, so that a rename can finish the work.
    """
    folder = target.with_name(target.name + ".making")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Removes what killed processes left: workspaces, and parts of files below the folder.

    Workspaces whose lock is held, parts of running processes and those of other machines stay.
    """
    for left in folder.glob("*.making"):
        target = left.with_name(left.name.removesuffix(".making"))
        with contextlib.suppress(BlockingIOError), exclusive(target, wait=None):
            shutil.rmtree(left, ignore_errors=True)
    _remove_parts(folder.rglob(".*.part"))


def remove_abandoned_parts(path: Path) -> None:
    """Removes the parts of one file that killed processes left; see :func:`remove_abandoned`."""
    _remove_parts(path.parent.glob(f".{glob.escape(path.name)}.*.part"))


def _remove_parts(parts: Iterable[Path]) -> None:
    ours = re.compile(rf"\..+\.{re.escape(platform.node())}\.(\d+)\.\d+\.part")
    for left in parts:
        writer = ours.fullmatch(left.name)
        if writer is not None and not _is_running(int(writer[1])):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # it runs, but belongs to another user
        return not isinstance(error, ProcessLookupError)
    return True


_MAPPINGS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()  # by address
_PAGEOUT = 21  # MADV_PAGEOUT of Linux, which Python does not name


def note_mapping(address: int, mapping: mmap.mmap) -> None:
    """Notes that the array at an address is mapped from a file; see :func:`release_pages`."""
    _MAPPINGS[address] = mapping


def release_pages(addresses: Iterable[int]) -> None:
    """Frees the memory of arrays that are mapped from files; their next use reads the files.

    The system does so by itself when memory is short. Other systems than Linux keep the pages.
    """
    mappings = [_MAPPINGS[address] for address in addresses if address in _MAPPINGS]
    for mapping in mappings if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # an older kernel
            mapping.madvise(_PAGEOUT)
