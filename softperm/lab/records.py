"""Durable records of trainings: one for each, enough to make every table again."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import platform
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from softperm import __version__
from softperm.files import write_atomically
from softperm.training.scoreboard import CURVES

FORMAT = 1
COLLECTED = "records.jsonl.gz"
"""File of the records that ``softperm report --collect`` gathers."""


@dataclass(frozen=True)
class Run:
    """Which training a record is of.

    Attributes:
        dataset: name of the graphs.
        model: name of the system.
        stage: ``selection`` to choose a configuration, ``final`` to be tested.
        fold: number of the outer fold.
        folds: how many outer folds there are.
        configuration: hyper-parameters of model and training.
        seed: of this training among others of the same fold and configuration.
    """

    dataset: str
    model: str
    stage: str
    fold: int
    folds: int
    configuration: Mapping[str, Any]
    seed: int


def versions() -> dict[str, str]:
    """Versions of what numbers and times may depend on."""
    return {
        "softperm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class Circumstances:
    """What a training cost and where; none of it changes the numbers it gave.

    Attributes:
        seconds: time of this training: that of its stack, divided by the models in it.
        stacked: how many models were trained side by side.
        memory: most bytes held, by the device's allocator or by the process; 0 if unknown.
        device: what computed.
        versions: of softperm, torch and Python.
    """

    seconds: float
    stacked: int
    memory: int
    device: str
    versions: Mapping[str, str] = field(default_factory=versions)


@dataclass(frozen=True)
class Record:
    """What one training gave.

    Attributes:
        run: which training.
        fingerprint: SHA-256 of the graphs, targets and splits.
        metric: name of the score.
        higher_is_better: its direction.
        validation_loss: at the epoch that was kept.
        validation_score: at the epoch that was kept.
        test_score: at the epoch that was kept; None where the test graphs were not touched.
        best_epoch: the epoch that was kept.
        curve: training loss, validation loss and validation score of each epoch.
        circumstances: cost and place.
    """

    run: Run
    fingerprint: str
    metric: str
    higher_is_better: bool
    validation_loss: float
    validation_score: float
    test_score: float | None
    best_epoch: int
    curve: Mapping[str, Sequence[float | None]]
    circumstances: Circumstances

    @property
    def digest(self) -> str:
        """SHA-256 of the run and its scores: equal for equal numbers, to the last bit.

        Circumstances and curves do not count: collected records have no curves.
        """
        content = _fields(self)
        del content["circumstances"], content["curve"]
        return hashlib.sha256(_line(content)).hexdigest()


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes a file of records atomically; compressed if its name ends in ``.gz``."""
    lines = (_line({"format": FORMAT, **_fields(record)}) for record in records)
    content = b"".join(line + b"\n" for line in lines)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)  # equal records give equal bytes
    write_atomically(path, content)


def read_records(path: Path) -> list[Record]:
    """Reads the records of a file.

    Raises:
        ValueError: the file is damaged, or of a newer version.
    """
    return [_read(line, f"{path}, line {k}") for k, line in enumerate(_lines(path), start=1)]


def find_records(folder: Path) -> Iterator[Record]:
    """Yields all records below a folder, in the order of file names; each training once."""
    seen: set[str] = set()
    for path in sorted([*folder.rglob("*.jsonl"), *folder.rglob("*.jsonl.gz")]):
        for record in read_records(path):
            if (digest := record.digest) not in seen:
                seen.add(digest)
                yield record


def collect_records(records: Iterable[Record], folder: Path) -> list[Record]:
    """Writes records into one compressed file, without curves, which no table shows.

    Args:
        records: records to collect, each once.
        folder: folder of the file :data:`COLLECTED`.

    Returns:
        The records as written.
    """
    ordered = sorted(records, key=lambda r: (r.run.dataset, r.run.model))
    collected = [replace(record, curve={}) for record in ordered]
    write_records(folder / COLLECTED, collected)
    return collected


def device_name(device: torch.device) -> str:
    """What a person would call a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


def peak_memory(device: torch.device) -> int:
    """Most bytes held so far: by torch's allocator on a GPU, by the process on the CPU.

    Windows does not tell: 0.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _line(content: dict[str, Any]) -> bytes:
    """JSON with NaN and infinities as null, which every reader takes."""
    encode = partial(json.dumps, default=_fields, sort_keys=True, ensure_ascii=False)
    try:
        return encode(content, allow_nan=False).encode()
    except ValueError:  # few records have any
        return encode(_finite(json.loads(encode(content)))).encode()


def _fields(record: Any) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _lines(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise ValueError(f"{path} is damaged: {problem}; restore it from a copy") from None
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror}") from None


def _read(line: bytes, where: str) -> Record:
    try:
        content = json.loads(line)
        version = content.pop("format")
        if version > FORMAT:
            raise ValueError(f"{where} has format {version}: upgrade softperm to read it")
        run = Run(**content.pop("run"))
        circumstances = Circumstances(**content.pop("circumstances"))
        numbers = {f.name: content[f.name] for f in fields(Record) if f.name in content}
        for name in ("validation_loss", "validation_score"):
            numbers[name] = math.nan if numbers[name] is None else numbers[name]
        _check_kinds(run, circumstances, numbers)
        return Record(run=run, circumstances=circumstances, **numbers)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as problem:
        detail = f"{type(problem).__name__}: {problem}"
        raise ValueError(
            f"{where} is no record of a training ({detail}); a damaged file may be deleted: the "
            "same evaluation makes it again"
        ) from None


def _check_kinds(run: Run, circumstances: Circumstances, numbers: Mapping[str, Any]) -> None:
    """Raises TypeError where a value is of another kind than a record's, as by hand it may be."""
    score, curve = numbers["test_score"], numbers["curve"]
    sound = {
        "fold": type(run.fold) is type(run.folds) is int and 0 <= run.fold < run.folds,
        "names": all(isinstance(v, str) for v in (run.dataset, run.model, numbers["metric"])),
        "configuration": isinstance(run.configuration, Mapping),
        "test_score": score is None or isinstance(score, Real),
        "curve": isinstance(curve, Mapping) and (not curve or set(curve) == set(CURVES)),
        "circumstances": isinstance(circumstances.seconds, Real)
        and isinstance(circumstances.memory, Real)
        and isinstance(circumstances.versions, Mapping)
        and {"softperm", "torch"} <= set(circumstances.versions),
    }
    if odd := [name for name, holds in sound.items() if not holds]:
        raise TypeError(f"{odd[0]} is not what a record has")
