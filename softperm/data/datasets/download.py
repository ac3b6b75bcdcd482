"""One file over TLS: resumed where it broke off, checked, put in place whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from softperm.files import disk_errors, exclusive, is_full, put_in_place, write_atomically
from softperm.progress import Report, silent

_BLOCK = 1 << 20
_ATTEMPTS = 4
_TIMEOUT = 30.0


class Unreachable(ValueError):
    """The file could not be fetched: no network, no such file, or a server that gives up."""


def download(
    url: str,
    target: Path,
    sha256: str | None = None,
    progress: Report = silent,
    patience: float = 1.0,
) -> None:
    """Fetch ``url`` into ``target``.

    Bytes gather in ``target.part``; what a killed run left there is continued with a range
    request, as long as the server still holds the same version. The finished file takes its
    name in one step, and ``target.json`` records where it came from and its SHA-256.

    Args:
        url: an ``https`` address; plain ``http`` is accepted from this machine only.
        target: where the file goes.
        sha256: what the content must hash to, where that is known.
        progress: told the bytes fetched.
        patience: seconds before the second attempt; doubled for each further one.

    Raises:
        Unreachable: if the file cannot be fetched.
        ValueError: if the address is not safe or the content is not what was expected.
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
    """Raise what another attempt cannot mend; otherwise wait for the next one."""
    if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 416:
        raise Unreachable(f"{url} answered {error.code} {error.reason}") from error
    if is_full(error) or isinstance(error, PermissionError):
        raise error
    reason = getattr(error, "reason", None) or error
    final = isinstance(reason, socket.gaierror | ssl.SSLCertVerificationError)  # offline, or forged
    if final or attempt + 1 == _ATTEMPTS:
        said = str(reason) or type(reason).__name__
        raise Unreachable(f"{url} cannot be reached ({said})") from error
    time.sleep(wait * 2**attempt)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    here = host == "localhost"
    with contextlib.suppress(ValueError):
        here = here or ip_address(host).is_loopback
    if parts.scheme != "https" and not (parts.scheme == "http" and here):
        raise ValueError(f"{url}: expected an https address; nothing is fetched unprotected")


def _continue(url: str, part: Path, progress: Report) -> None:
    """Fetch what is missing of ``part``; raises where the connection ends too early."""
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
                progress(f"fetching {part.stem}", had, total)
        if total and had != total:
            raise HTTPException(f"the connection ended after {had:,} of {total:,} bytes")


class _StaySafe(urllib.request.HTTPRedirectHandler):
    """Follow a server elsewhere only where the connection stays protected."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request, part: Path) -> HTTPResponse:
    tls = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    try:
        return urllib.request.build_opener(tls, _StaySafe).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to send, or another version: begin again
            part.unlink(missing_ok=True)
        raise


def _left_over(url: str, part: Path, note: Path) -> tuple[int, str]:
    """How many bytes of an earlier attempt can be kept, and which version they belong to."""
    try:
        record = json.loads(note.read_text())
        if record["url"] == url and record["version"]:
            return part.stat().st_size, record["version"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _version(answer: HTTPResponse) -> str:
    """What ``If-Range`` needs to tell whether the file changed in between: a strong tag or date."""
    tag = answer.headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified") or ""


def _finish(url: str, part: Path, target: Path, sha256: str | None) -> None:
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    note = part.with_name(part.name + ".json")
    if sha256 is not None and found != sha256:
        part.unlink()
        note.unlink(missing_ok=True)
        raise ValueError(
            f"{url} holds other content than expected (SHA-256 {found}, expected {sha256}) and was "
            "not kept; fetch it from a source you trust and put it in your data root"
        )
    record = {"url": url, "sha256": found, "bytes": part.stat().st_size}
    write_atomically(record_of(target), json.dumps(record, indent=1) + "\n")
    note.unlink(missing_ok=True)
    put_in_place(part, target)


def record_of(target: Path) -> Path:
    """Where it is written down what a fetched file was: its address, SHA-256 and length."""
    return target.with_name(target.name + ".json")
