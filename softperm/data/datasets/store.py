"""Where raw data is found: the data root, then the cache, then its public source.

Downloads use TLS, resume after an interruption, are checked, and appear complete or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from softperm.files import (
    disk_errors,
    exclusive,
    is_full,
    put_in_place,
    read_json,
    write_atomically,
)
from softperm.progress import Report, silent

_BLOCK = 1 << 20
_ATTEMPTS = 4
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Remote:
    """A raw file: its place in a data root, and its public source.

    Args:
        place: path relative to a data root, ``tu/MUTAG.zip``.
        url: its public address; None if it has none.
        sha256: SHA-256 of its bytes, if known.
        others: places of the same data in another form, which take precedence.
    """

    place: str
    url: str | None
    sha256: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """The folders of datasets.

    Args:
        cache: the folder for downloaded and prepared files; may be removed at any time.
        root: the user's own folder of raw data, never written to.
        mirror: address of a folder with the layout of a data root, to download from instead of the
            public sources.
    """

    cache: Path
    root: Path | None = None
    mirror: str | None = None

    @property
    def raw(self) -> Path:
        """Downloaded files, with the layout of a data root."""
        return self.cache / "raw"

    def locate(self, *places: str) -> Path | None:
        """The first of these places that exists, in the data root and then in the cache."""
        folders = [f for f in (self.root, self.raw) if f is not None]
        candidates = (f / p for f in folders for p in places)
        return next((p for p in candidates if p.exists()), None)

    def is_downloaded(self, path: Path) -> bool:
        """Whether a raw file was downloaded, rather than provided by the user."""
        return path.is_relative_to(self.raw) and record_of(path).exists()

    def get(self, remote: Remote, progress: Report = silent) -> Path:
        """The path of a raw file, after downloading it if needed.

        A downloaded file whose bytes have changed since is downloaded again.

        Args:
            remote: which file.
            progress: receives the number of bytes downloaded.

        Raises:
            ValueError: the file is not available; the message says where to put it.
        """
        path = self.locate(*remote.others, remote.place)
        if path is not None and (not self.is_downloaded(path) or is_unchanged(path)):
            return path
        target = self.raw / remote.place
        target.unlink(missing_ok=True)
        try:
            if self.mirror is None and remote.url is None:
                raise Unreachable("it has no public address")
            url = remote.url if self.mirror is None else f"{self.mirror.rstrip('/')}/{remote.place}"
            download(str(url), target, remote.sha256, progress)
        except Unreachable as error:
            root = "a data root, which SOFTPERM_DATA may name" if self.root is None else self.root
            raise ValueError(
                f"{remote.place} is neither in the data root nor in the cache, and {error}; put it "
                f"at {remote.place} below {root}"
            ) from error
        return target


def open_store(
    root: Path | str | None = None, cache: Path | str | None = None, mirror: str | None = None
) -> Store:
    """The store that arguments and environment variables describe.

    Args:
        root: data root; by default ``SOFTPERM_DATA``, or none.
        cache: cache folder; by default ``SOFTPERM_CACHE``, or ``softperm`` in the user's caches.
        mirror: address to download from; by default ``SOFTPERM_MIRROR``, or the public sources.

    Raises:
        ValueError: the data root does not exist.
    """
    root = root or os.environ.get("SOFTPERM_DATA") or None
    if root is not None and not Path(root).is_dir():
        raise ValueError(
            f"the data root {root} is not a folder; name one that holds tu/NAME.zip, …"
        )
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = cache or os.environ.get("SOFTPERM_CACHE") or Path(caches) / "softperm"
    mirror = mirror or os.environ.get("SOFTPERM_MIRROR") or None
    return Store(Path(cache).expanduser(), None if root is None else Path(root), mirror)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_unchanged(path: Path) -> bool:
    """Whether a downloaded file still has the SHA-256 that was recorded after the download."""
    try:
        return read_json(record_of(path)).get("sha256") == file_digest(path)
    except OSError:
        return False


class Unreachable(ValueError):
    """A file that cannot be downloaded: no network, no such file, or a failing server."""


def download(
    url: str,
    target: Path,
    sha256: str | None = None,
    progress: Report = silent,
    patience: float = 1.0,
) -> None:
    """Download ``url`` to ``target``.

    Bytes are collected in ``target.part``. An interrupted download is resumed with
    a range request if the server still has the same version. The finished file gets its name
    in one step, and ``target.json`` records its address and SHA-256.

    Args:
        url: an ``https`` address; plain ``http`` is accepted from this machine only.
        target: the file to write.
        sha256: the expected SHA-256 of the content, if known.
        progress: receives the number of bytes downloaded.
        patience: seconds before the second attempt; doubled for each further one.

    Raises:
        Unreachable: the file cannot be downloaded.
        ValueError: the address is not safe, or the content is not the expected one.
    """
    _check_address(url)
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target), disk_errors(target):
        if target.exists():  # another process was faster
            return
        for attempt in range(_ATTEMPTS):
            try:
                _continue(url, part, progress)
                break
            except (OSError, HTTPException) as error:
                _give_up_or_wait(url, error, attempt, patience)
        _finish(url, part, target, sha256)


def _give_up_or_wait(url: str, error: OSError | HTTPException, attempt: int, wait: float) -> None:
    """Raise an error that another attempt cannot avoid; otherwise wait before the next one."""
    if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 416:
        raise Unreachable(f"{url} answered {error.code} {error.reason}") from error
    if is_full(error) or isinstance(error, PermissionError):
        raise error
    reason = getattr(error, "reason", None) or error
    final = isinstance(reason, socket.gaierror | ssl.SSLCertVerificationError)  # offline, or forged
    if final or attempt + 1 == _ATTEMPTS:
        detail = str(reason) or type(reason).__name__
        raise Unreachable(f"{url} cannot be reached ({detail})") from error
    time.sleep(wait * 2**attempt)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    here = host == "localhost"
    with contextlib.suppress(ValueError):
        here = here or ip_address(host).is_loopback
    if parts.scheme != "https" and not (parts.scheme == "http" and here):
        raise ValueError(f"{url}: expected an https address; downloads need a protected connection")


def _continue(url: str, part: Path, progress: Report) -> None:
    """Download what is missing of ``part``; raises if the connection ends too early."""
    note = part.with_name(part.name + ".json")
    had, version = _left_over(url, part, note)
    request = urllib.request.Request(url, headers={"User-Agent": "softperm"})
    if had:
        request.add_header("Range", f"bytes={had}-")
        request.add_header("If-Range", version)
    with _open(request, part) as answer:
        if answer.status != 206:  # the server sends all of it, from the start
            had = 0
        total = had + int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if had else "wb") as out:
            note.write_text(json.dumps({"url": url, "version": _version(answer)}))
            while block := answer.read1(_BLOCK):
                out.write(block)
                had += len(block)
                progress(f"downloading {part.stem}", had, total)
        if total and had != total:
            raise HTTPException(f"the connection ended after {had:,} of {total:,} bytes")


class _ProtectedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only if the connection stays protected."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request, part: Path) -> HTTPResponse:
    tls = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    try:
        return urllib.request.build_opener(tls, _ProtectedRedirects).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to send, or another version: begin again
            part.unlink(missing_ok=True)
        raise


def _left_over(url: str, part: Path, note: Path) -> tuple[int, str]:
    """The number of bytes of an earlier attempt that are usable, and their version."""
    record = read_json(note)
    if record.get("url") == url and record.get("version") and part.exists():
        return part.stat().st_size, str(record["version"])
    return 0, ""


def _version(answer: HTTPResponse) -> str:
    """The version of a file for ``If-Range``: a strong entity tag, or the date of its change."""
    tag = answer.headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified") or ""


def _finish(url: str, part: Path, target: Path, sha256: str | None) -> None:
    digest = file_digest(part)
    note = part.with_name(part.name + ".json")
    if sha256 is not None and digest != sha256:
        part.unlink()
        note.unlink(missing_ok=True)
        raise ValueError(
            f"{url} holds other content than expected (SHA-256 {digest}, expected {sha256}) and "
            "was discarded; get it from a source you trust and put it in your data root"
        )
    record = {"url": url, "sha256": digest, "bytes": part.stat().st_size}
    write_atomically(record_of(target), json.dumps(record, indent=1) + "\n")
    note.unlink(missing_ok=True)
    put_in_place(part, target)


def record_of(target: Path) -> Path:
    """The file that records a download's address, SHA-256 and length."""
    return target.with_name(target.name + ".json")
