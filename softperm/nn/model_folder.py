"""Model folders: ``model.safetensors`` and ``config.json``, the layout of the Hugging Face Hub.

``model.safetensors`` is the whole model: the configuration is part of its header, and a checksum
covers both. Replacing this one file replaces the model, so a process that is killed while it saves
leaves the old model or the new one. ``config.json`` is a copy of the configuration for people and
for the Hub; it is never read back.

Reading a folder never runs code from it. A folder that is damaged, was written by another program
or by a newer version raises a :class:`FolderError` with one sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from softperm.errors import one_line
from softperm.files import appearing, remove_abandoned_parts, write_atomically

FORMAT = 2
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_KEY = "softperm"  # in the metadata: the checksum, a blank and the configuration; one entry, since
# safetensors writes several in random order
_BLANK = "0" * 64  # stands for the checksum while it is computed


class FolderError(ValueError):
    """A folder that cannot be read as a softperm model."""


def write_folder(
    folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Writes a model folder; a model that is there is replaced in one step.

    Args:
        folder: created if missing.
        config: everything needed to rebuild the model, as JSON values.
        tensors: its parameters and buffers.
    """
    from safetensors.torch import save

    folder = Path(folder)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    whole = {"softperm_format": FORMAT, **config}
    text = json.dumps(whole, indent=2, allow_nan=False) + "\n"
    blank = save(contiguous, metadata={_KEY: f"{_BLANK} {json.dumps(whole)}"})
    for name in (WEIGHTS, CONFIG):
        remove_abandoned_parts(folder / name)
    with appearing(folder / WEIGHTS) as stream:
        stream.writelines(_with_checksum(blank, _digest([blank])))
    write_atomically(folder / CONFIG, text)


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
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = local_folder(folder)
    if not folder.is_dir():
        raise FolderError(f"{folder}: no such model folder; softperm train, or save, makes one")
    path = folder / WEIGHTS
    content = _read(path)
    try:
        tensors = load(content)
        metadata = _metadata(content)
        checksum, _, text = metadata.get(_KEY, "").partition(" ")
        sound = _KEY not in metadata or checksum == _digest(_with_checksum(content, _BLANK))
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise FolderError(f"{path} is damaged or cut short: {problem}") from None
    if not sound:
        raise FolderError(f"{path} is damaged: its content does not match its checksum")
    if not text:
        raise FolderError(
            f"{path} is damaged, or of another program or an earlier version: it has no "
            "configuration of softperm; train the model again"
        )
    return _parse_config(text, folder, kind), tensors


def local_folder(folder: str | Path) -> Path:
    """The folder of a model on this machine; ``hf://owner/name`` is fetched from the Hub."""
    return _download(str(folder)) if str(folder).startswith("hf://") else Path(folder)


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _with_checksum(content: bytes, checksum: str) -> list[bytes | memoryview]:
    """The file's content with another checksum in its header, in parts that are not copies."""
    start = content.index(f'"{_KEY}":"'.encode()) + len(_KEY) + 4
    view = memoryview(content)
    return [view[:start], checksum.encode(), view[start + len(_BLANK) :]]


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata in the header of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]).get("__metadata__", {})


def _parse_config(text: str, folder: Path, kind: str | None) -> dict[str, Any]:
    try:
        config = json.loads(text)
        version = int(config.pop("softperm_format"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise FolderError(f"{folder / WEIGHTS} has no usable configuration: {problem}") from None
    if version > FORMAT:
        raise FolderError(
            f"{folder} has format {version}, this softperm reads up to {FORMAT}: "
            "upgrade softperm to load it"
        )
    if kind is not None and config.get("kind") != kind:
        raise FolderError(f"{folder} holds a {config.get('kind')}, not a {kind}")
    return config


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FolderError(f"{path.parent}: not a softperm model, {path.name} is missing") from None
    except OSError as problem:
        raise FolderError(f"{path} cannot be read: {problem.strerror}") from None


def _download(address: str) -> Path:
    from huggingface_hub import snapshot_download

    name = address.removeprefix("hf://")
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as problem:  # the Hub's client raises errors of many libraries
        detail = one_line(problem)[:300]
        raise FolderError(f"{address} cannot be fetched from the Hub: {detail}") from None
