"""Files: whole or not at all, and nothing is left by processes that were killed."""

import errno
import fcntl
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from softperm.data.collection import MAPPED_BYTES, spacious
from softperm.files import exclusive, release_pages, remove_abandoned, write_atomically

DIES_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from softperm import files
files.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), "half")
"""


def test_what_a_killed_process_had_begun_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    write_atomically(path, "before")
    subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, path], check=False)
    assert len(list(path.parent.iterdir())) == 2
    assert path.read_text() == "before"
    remove_abandoned(tmp_path)
    assert list(path.parent.iterdir()) == [path]


def test_parts_of_running_processes_other_machines_and_downloads_stay(tmp_path: Path) -> None:
    names = [
        f".a.json.{platform.node()}.{os.getpid()}.1.part",
        ".a.json.elsewhere.999999999.1.part",
        "MUTAG.zip.part",
    ]
    for name in names:
        (tmp_path / name).touch()
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_threads_that_write_one_file_leave_the_content_of_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    contents = [bytes([k]) * 10_000 for k in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda content: write_atomically(path, content), contents))
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_on_a_read_only_file_system_the_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        write_atomically(tmp_path / "card.md", "content")
    assert caught.value.filename == str(tmp_path / "card.md")


HOLDS_A_LOCK = """
import errno, fcntl, sys, time
from pathlib import Path
from softperm.files import exclusive
def no_locks(*_):
    raise OSError(int(sys.argv[2]), "no locks")
fcntl.flock = no_locks
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_is_the_lock_where_the_file_system_has_none(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with exclusive(tmp_path / "it"):  # leaves a file, as on a disk from which the folder was copied
        pass
    monkeypatch.setattr(fcntl, "flock", no_locks)
    command = [sys.executable, "-c", HOLDS_A_LOCK, tmp_path / "it", str(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), exclusive(tmp_path / "it", wait=None):
            pass
        holder.kill()
    for _ in range(2):
        with exclusive(tmp_path / "it", wait=None):  # the holder is dead
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["it.lock"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux frees these pages")
def test_released_pages_leave_memory_and_keep_their_values():
    array = spacious((MAPPED_BYTES // 4 + 1,), np.int32)
    array[:] = np.arange(len(array))
    before = resident("RssFile:")
    if resident("RssShmem:") > MAPPED_BYTES // 1024:
        pytest.skip("the folder of temporary files is in memory")
    for _ in range(100):  # pages that are not on the disk yet stay until they are
        release_pages([array.ctypes.data])
        if resident("RssFile:") < before - MAPPED_BYTES // 2048:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the pages stay in memory")
    np.testing.assert_array_equal(array, np.arange(len(array)))


def resident(field: str) -> int:
    """Kilobytes of a field of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])
