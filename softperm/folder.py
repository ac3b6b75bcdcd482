"""Model folders: ``config.json`` and ``model.safetensors``, the layout of the Hugging Face Hub.

Reading one never runs code from it, and a folder that is damaged, foreign or from a newer version
is answered in one sentence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class FolderError(ValueError):
    """A folder that cannot be read as a softperm model."""


def write_folder(
    folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Writes a model folder; each file appears whole or not at all.

    Args:
        folder: made if missing.
        config: what rebuilds the model, as JSON can hold it.
        tensors: its parameters and buffers.
    """
    from safetensors.torch import save

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(folder / WEIGHTS, save(contiguous, metadata={"format": "pt"}))
    text = json.dumps({"softperm_format": FORMAT, **config}, indent=2, allow_nan=False) + "\n"
    write_atomically(folder / CONFIG, text.encode())


def read_folder(
    folder: str | Path, kind: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and tensors of a model folder.

    Args:
        folder: a folder, or ``hf://owner/name`` for a model on the Hugging Face Hub.
        kind: the expected value of the configuration's ``kind``.

    Raises:
        FolderError: it is not a folder that this version can read.
    """
    folder = _download(folder) if str(folder).startswith("hf://") else Path(folder)
    if not folder.is_dir():
        raise FolderError(f"{folder}: no such model folder")
    return _read_config(folder / CONFIG, kind), _read_weights(folder / WEIGHTS)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file beside its final place, then moves it there; leaves nothing if it cannot."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _read_config(path: Path, kind: str | None) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent}: not a softperm model, {CONFIG} is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise FolderError(f"{path} is damaged: {problem}") from None
    if not isinstance(config, dict) or "softperm_format" not in config:
        raise FolderError(
            f"{path.parent}: not a softperm model, its {CONFIG} is of another program"
        )
    version = config["softperm_format"]
    if not isinstance(version, int) or version > FORMAT:
        raise FolderError(
            f"{path.parent} has format {version}, this softperm reads up to {FORMAT}: "
            "upgrade softperm to load it"
        )
    if kind is not None and config.get("kind") != kind:
        raise FolderError(f"{path.parent} holds a {config.get('kind')}, not a {kind}")
    return config


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise FolderError(f"{path.parent}: not a whole model, {WEIGHTS} is missing") from None
    except (SafetensorError, ValueError) as problem:
        raise FolderError(f"{path} is damaged or cut short: {problem}") from None


def _download(address: str) -> Path:
    from huggingface_hub import snapshot_download

    name = address.removeprefix("hf://")
    return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS]))
