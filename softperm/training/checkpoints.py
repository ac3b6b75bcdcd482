"""Checkpoints of a training: written atomically, verified and read without running code."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from softperm.errors import one_line
from softperm.files import seal, unseal, write_atomically

_HEADER = b"softperm checkpoint 4\n"


class CheckpointError(ValueError):
    """A checkpoint from which training cannot resume."""


def write_checkpoint(path: Path, fingerprint: str, state: dict) -> None:
    """Replaces the checkpoint at ``path``.

    The file consists of a header, the SHA-256 digest of the rest, and the state as written by
    ``torch.save``, which alone would not detect damaged numbers.
    """
    content = io.BytesIO()
    torch.save({"fingerprint": fingerprint, "state": state}, content)
    write_atomically(path, seal(_HEADER, content.getvalue()))


def read_checkpoint(path: Path, fingerprint: str | None) -> dict | None:
    """Reads a checkpoint.

    Args:
        path: the file.
        fingerprint: of the training; None to accept a checkpoint of any training.

    Returns:
        The state, or None if there is no file.

    Raises:
        CheckpointError: the file is damaged, or belongs to another training.
    """
    try:
        body = unseal(_HEADER, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}") from None
    if body is None:
        raise CheckpointError(
            f"{path} is damaged, or a checkpoint of another version: delete it to start again"
        )
    try:
        content = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        owner, state = content["fingerprint"], content["state"]
        if not isinstance(state, dict):
            raise TypeError(f"its state is a {type(state).__name__}")
    except Exception as problem:  # of many kinds, for a file of another program
        detail = one_line(problem)[:200]
        raise CheckpointError(f"{path} is no checkpoint ({detail}): delete it") from None
    if fingerprint is not None and owner != fingerprint:
        raise CheckpointError(
            f"{path} belongs to a training with other data or settings: "
            "delete it, or choose another folder"
        )
    return state
