"""Checkpoints of a training in progress: written whole or not at all, read without running code."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import torch

from softperm.folder import write_atomically


class CheckpointError(ValueError):
    """A checkpoint that cannot be resumed from."""


def write_checkpoint(path: Path, fingerprint: str, state: dict) -> None:
    """Replaces the checkpoint at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save({"fingerprint": fingerprint, "state": state}, content)
    write_atomically(path, content.getvalue())


def read_checkpoint(path: Path, fingerprint: str) -> dict | None:
    """The state kept at ``path``; None if there is none.

    Raises:
        CheckpointError: it is damaged, or of another training.
    """
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        found, state = content["fingerprint"], content["state"]
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, KeyError,
            TypeError) as problem:  # fmt: skip
        detail = " ".join(str(problem).split())[:200]
        raise CheckpointError(
            f"{path} is damaged ({detail}): delete it to start the training anew"
        ) from None
    if found != fingerprint:
        raise CheckpointError(
            f"{path} belongs to a training with other data or settings: "
            "delete it, or choose another folder"
        )
    return state
