"""Checkpoints of a training in progress: written whole or not at all, read without running code."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import torch

from softperm.files import write_atomically

_HEADER = b"softperm checkpoint 3\n"
_DIGEST = hashlib.sha256().digest_size


class CheckpointError(ValueError):
    """A checkpoint that cannot be resumed from."""


def write_checkpoint(path: Path, fingerprint: str, state: dict) -> None:
    """Replaces the checkpoint at ``path``.

    The file is a header, the SHA-256 of what follows, and what ``torch.save`` makes of the state;
    torch by itself does not notice numbers that were damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save({"fingerprint": fingerprint, "state": state}, content)
    body = content.getvalue()
    write_atomically(path, _HEADER + hashlib.sha256(body).digest() + body)


def read_checkpoint(path: Path, fingerprint: str | None) -> dict | None:
    """The state kept at ``path``, of whatever training if the fingerprint is None; None if none is.

    Raises:
        CheckpointError: it is damaged, or of another training.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}") from None
    start = len(_HEADER) + _DIGEST
    header, digest, body = content[: len(_HEADER)], content[len(_HEADER) : start], content[start:]
    if header != _HEADER or hashlib.sha256(body).digest() != digest:
        raise CheckpointError(
            f"{path} is damaged or no checkpoint of this version: delete it to start the training "
            "anew"
        )
    try:
        kept = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as problem:  # of many kinds: a file that some other program made
        detail = " ".join(str(problem).split())[:200]
        raise CheckpointError(f"{path} is no checkpoint ({detail}): delete it") from None
    if fingerprint is not None and kept["fingerprint"] != fingerprint:
        raise CheckpointError(
            f"{path} belongs to a training with other data or settings: "
            "delete it, or choose another folder"
        )
    return kept["state"]
