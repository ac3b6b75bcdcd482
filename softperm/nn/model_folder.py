"""Model folders: ``config.json`` and ``model.safetensors``, the layout of the Hugging Face Hub.

Reading one never runs code from it. A folder that is damaged, was written by another program or by
a newer version raises a :class:`FolderError` with one sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from softperm.files import write_atomically

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class FolderError(ValueError):
    """A folder that cannot be read as a softperm model."""


def write_folder(
    folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Writes a model folder; each file is replaced atomically.

    The configuration contains the checksum of the weights, so that damaged weights, or weights of
    another model, are detected when the folder is read.

    Args:
        folder: created if missing.
        config: everything needed to rebuild the model, as JSON values.
        tensors: its parameters and buffers.
    """
    from safetensors.torch import save

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    weights = save(contiguous, metadata={"format": "pt"})
    whole = {"softperm_format": FORMAT, "weights_sha256": _digest(weights), **config}
    text = json.dumps(whole, indent=2, allow_nan=False) + "\n"
    write_atomically(folder / WEIGHTS, weights)
    write_atomically(folder / CONFIG, text.encode())


def read_folder(
    folder: str | Path, kind: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and tensors of a model folder.

    Args:
        folder: a folder, or ``hf://owner/name`` for a model on the Hugging Face Hub.
        kind: the expected value of the configuration's ``kind``.

    Returns:
        The configuration and tensors that were passed to :func:`write_folder`.

    Raises:
        FolderError: this version cannot read the folder.
    """
    folder = _download(str(folder)) if str(folder).startswith("hf://") else Path(folder)
    if not folder.is_dir():
        raise FolderError(f"{folder}: no such model folder; softperm train, or save, makes one")
    config = _read_config(folder / CONFIG, kind)
    tensors = _read_weights(folder / WEIGHTS, config.pop("weights_sha256", None))
    return config, tensors


def _read_config(path: Path, kind: str | None) -> dict[str, Any]:
    content = _read(path, "not a softperm model")
    try:
        config = json.loads(content)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as problem:
        raise FolderError(f"{path} is damaged: {problem}") from None
    if not isinstance(config, dict) or "softperm_format" not in config:
        raise FolderError(
            f"{path.parent}: not a softperm model, its {CONFIG} is of another program"
        )
    version = config.pop("softperm_format")
    if type(version) is not int or version < 1:
        raise FolderError(f"{path} is damaged: it has format {version!r}")
    if version > FORMAT:
        raise FolderError(
            f"{path.parent} has format {version}, this softperm reads up to {FORMAT}: "
            "upgrade softperm to load it"
        )
    if kind is not None and config.get("kind") != kind:
        raise FolderError(f"{path.parent} holds a {config.get('kind')}, not a {kind}")
    return config


def _read_weights(path: Path, checksum: str | None) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = _read(path, "not a whole model")
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as problem:
        raise FolderError(f"{path} is damaged or cut short: {problem}") from None
    if _digest(content) != checksum:
        raise FolderError(
            f"{path} is damaged, or of another model: its checksum is not the one that {CONFIG} "
            "gives"
        )
    return tensors


def _read(path: Path, otherwise: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FolderError(f"{path.parent}: {otherwise}, {path.name} is missing") from None
    except OSError as problem:
        raise FolderError(f"{path} cannot be read: {problem.strerror}") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _download(address: str) -> Path:
    from huggingface_hub import snapshot_download

    name = address.removeprefix("hf://")
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as problem:  # the Hub's client raises errors of many libraries
        detail = " ".join(str(problem).split())[:300]
        raise FolderError(f"{address} cannot be fetched from the Hub: {detail}") from None
