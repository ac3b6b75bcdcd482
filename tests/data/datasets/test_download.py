"""Downloads: whole or not at all, resumed, checked, and never unprotected."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from file_server import FileServer

from softperm.data.datasets.store import Unreachable, download, record_of

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture
def target(tmp_path: Path, server: FileServer) -> Path:
    server.files["/file.zip"] = CONTENT
    return tmp_path / "raw" / "file.zip"


def test_a_file_arrives_with_a_record_of_its_origin(target: Path, server: FileServer) -> None:
    told: list[tuple[str, int, int]] = []
    download(f"{server.url}/file.zip", target, progress=lambda *said: told.append(said))
    assert target.read_bytes() == CONTENT
    record = json.loads(record_of(target).read_text())
    assert record["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert record["url"] == f"{server.url}/file.zip"
    assert told[-1] == ("downloading file.zip", len(CONTENT), len(CONTENT))
    assert not target.with_name("file.zip.part").exists()


def test_a_download_killed_midway_leaves_no_file_and_is_resumed(
    target: Path, server: FileServer
) -> None:
    server.slow = 0.01
    code = f"""
from pathlib import Path
from softperm.data.datasets.store import download
download({server.url + "/file.zip"!r}, Path({str(target)!r}))
"""
    home = Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-c", code], cwd=home)
    part = target.with_name("file.zip.part")
    waited = time.monotonic() + 30
    while server.sent < 100_000 and time.monotonic() < waited:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not target.exists()
    server.slow, kept = 0.0, part.stat().st_size
    assert 0 < kept < len(CONTENT)
    server.requests.clear()
    download(f"{server.url}/file.zip", target)
    assert target.read_bytes() == CONTENT
    assert server.requests == [("/file.zip", f"bytes={kept}-")]


def test_a_connection_that_breaks_off_is_continued(
    target: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softperm.data.datasets.store._ATTEMPTS", 4)
    server.break_after = 100_000
    download(f"{server.url}/file.zip", target, patience=0.001)
    assert target.read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=100000-", "bytes=200000-"]


def test_a_file_that_changed_meanwhile_is_downloaded_from_the_start(
    target: Path, server: FileServer
) -> None:
    server.break_after = 50_000
    with pytest.raises(Unreachable, match="ended after 50,000 of 300,000 bytes"):
        download(f"{server.url}/file.zip", target)
    server.break_after, server.version = None, '"two"'
    server.files["/file.zip"] = CONTENT[::-1]
    download(f"{server.url}/file.zip", target)
    assert target.read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_sends_all_again(target: Path, server: FileServer) -> None:
    server.break_after, server.ranges = 50_000, False
    with pytest.raises(Unreachable):
        download(f"{server.url}/file.zip", target)
    server.break_after = None
    download(f"{server.url}/file.zip", target)
    assert target.read_bytes() == CONTENT


def test_a_file_complete_but_not_yet_named_is_taken_again(
    target: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softperm.data.datasets.store._ATTEMPTS", 2)
    part = target.with_name("file.zip.part")
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    note = {"url": f"{server.url}/file.zip", "version": server.version}
    part.with_name("file.zip.part.json").write_text(json.dumps(note))
    download(f"{server.url}/file.zip", target, patience=0.001)
    assert target.read_bytes() == CONTENT


def test_content_with_another_checksum_is_discarded(target: Path, server: FileServer) -> None:
    with pytest.raises(ValueError, match="holds other content than expected"):
        download(f"{server.url}/file.zip", target, sha256="0" * 64)
    assert sorted(p.name for p in target.parent.iterdir()) == ["file.zip.lock"]
    download(f"{server.url}/file.zip", target, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT


def test_a_missing_file_and_an_unreachable_server_are_errors(
    target: Path, server: FileServer
) -> None:
    with pytest.raises(Unreachable, match="answered 404"):
        download(f"{server.url}/nothing.zip", target)
    with pytest.raises(Unreachable, match="cannot be reached"):
        download("http://127.0.0.1:9/file.zip", target)


@pytest.mark.parametrize("url", ["http://example.org/file.zip", "file:///etc/passwd", "ftp://h/f"])
def test_downloads_need_a_protected_connection(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="expected an https address"):
        download(url, tmp_path / "file")


def test_a_redirection_to_an_unprotected_address_is_refused(
    target: Path, server: FileServer
) -> None:
    server.redirect = "http://example.org/file.zip"
    with pytest.raises(ValueError, match="expected an https address"):
        download(f"{server.url}/file.zip", target)
    assert not target.exists()


def test_a_full_disk_is_one_sentence_and_the_next_run_succeeds(
    target: Path, server: FileServer
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no disk that is always full")
    part = target.with_name("file.zip.part")
    part.parent.mkdir()
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"the disk is full; free some space.*file\.zip") as caught:
        download(f"{server.url}/file.zip", target)
    assert caught.value.errno == errno.ENOSPC
    assert not target.exists()
    part.unlink()
    download(f"{server.url}/file.zip", target)
    assert target.read_bytes() == CONTENT
