"""Writing files that others may write too, on disks that may fill up."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: both do the work, and the last finished file stands
    fcntl = None

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def exclusive(target: Path, wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the only right to make ``target``; others wait their turn.

    The right belongs to an open file, so it ends with the process however that ends: after a
    ``kill -9`` the next run does not wait for the dead one.

    Args:
        target: the file to be made; ``target.lock`` beside it is the lock and stays there.
        wait: called if somebody else holds it, before waiting for them.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("a") as lock:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a network disk without locks
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    wait()
                    fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def workspace(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target`` to make it in, gone afterwards.

    Call it while holding :func:`exclusive`: what a killed run left there is removed first.

    Args:
        target: the file to be made.

    Yields:
        The folder, on the same disk as ``target`` so that a rename can finish the work.
    """
    folder = target.with_name(target.name + ".making")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_abandoned(folder: Path) -> None:
    """Remove the workspaces of runs that were killed, whatever file they were making.

    Args:
        folder: where files are made; a workspace whose lock is held is left alone.
    """
    if fcntl is None:
        return
    for left in folder.glob("*.making"):
        with left.with_name(left.name.removesuffix(".making") + ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # somebody is at work there, or locks are not to be had
                continue
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def room_on(path: Path) -> Iterator[None]:
    """Say in one sentence that the disk is full, where that is what went wrong.

    Args:
        path: the file being written.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        told = OSError(
            f"{path}: the disk is full; free some space or set SOFTPERM_CACHE to a folder on "
            "another disk, and run again"
        )
        told.errno = errno.ENOSPC
        raise told from error


def is_full(error: BaseException) -> bool:
    """Whether an error says that nothing more can be written."""
    return isinstance(error, OSError) and error.errno in _FULL


def put_in_place(made: Path, target: Path) -> None:
    """Give a finished file its name in one step, with its bytes on the disk before that."""
    with made.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(made, target)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_atomically(target: Path, text: str) -> None:
    """Write a small file so that a reader sees the old text or the new one, nothing between."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with room_on(target):
            made.write_text(text, encoding="utf-8")
            put_in_place(made, target)
    finally:
        made.unlink(missing_ok=True)
