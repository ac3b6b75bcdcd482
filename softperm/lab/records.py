"""Records: the result of each training, from which every table can be made again."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import platform
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from softperm import __version__
from softperm.errors import counted
from softperm.files import write_atomically
from softperm.training.loop import CURVES

FORMAT = 2  # lines of format 1 have no checksum
SHARES = ("accuracy", "roc_auc", "average_precision")
"""Scores between 0 and 1."""
COLLECTED = "records.jsonl.gz"
"""File of the records that ``softperm report --collect`` gathers."""


@dataclass(frozen=True)
class Run:
    """Identifies one training.

    Attributes:
        dataset: name of the dataset, with the target if it has several.
        model: name of the system.
        stage: ``selection`` (selects a configuration) or ``final`` (is tested).
        fold: number of the outer fold, from 0.
        folds: number of outer folds.
        configuration: settings of model and training.
        seed: distinguishes trainings of the same fold and configuration.
    """

    dataset: str
    model: str
    stage: str
    fold: int
    folds: int
    configuration: Mapping[str, Any]
    seed: int


def versions() -> dict[str, str]:
    """Versions of the software on which results may depend."""
    return {
        "softperm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class Circumstances:
    """Cost and place of a training.

    Attributes:
        seconds: time of the stack, divided by the number of its runs.
        stacked: number of models in the stack.
        memory: peak bytes during the training, of the device's allocator or of the process; 0 if
            unknown.
        device: name of the device.
        versions: versions of softperm, torch and Python.
        memory_shared_by: maximum number of jobs that ran at the same time and share this peak.
    """

    seconds: float
    stacked: int
    memory: int
    device: str
    versions: Mapping[str, str] = field(default_factory=versions)
    memory_shared_by: int = 1


@dataclass(frozen=True)
class Record:
    """The result of one training.

    Attributes:
        run: which training.
        fingerprint: SHA-256 of the graphs, targets and splits.
        metric: name of the score.
        higher_is_better: direction of the score.
        validation_loss: validation loss of the best epoch.
        validation_score: validation score of the best epoch.
        test_score: test score of the best epoch; None in the selection stage.
        best_epoch: number of the best epoch; 0 for a kernel.
        curve: training loss, validation loss and validation score of each epoch.
        circumstances: cost and place.
        confusion: of a classification, how many test graphs of each class (rows) were taken for
            each class; None in the selection stage and in records of older versions.
        roc_auc: of a classification, test ROC-AUC of each class against the others, averaged; None
            where it is not defined.
        sharpness: how sharp the soft permutations of training graphs are; see
            :class:`softperm.nn.permutation.Sharpness`. None for systems without permutations.
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
    confusion: Sequence[Sequence[int]] | None = None
    roc_auc: float | None = None
    sharpness: Mapping[str, float] | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the run and its scores: equal for equal numbers, to the last bit.

        Circumstances, curves and diagnostics do not count: collected records have no curves, and
        those of older versions no diagnostics.
        """
        content = _fields(self)
        for name in ("circumstances", "curve", "confusion", "roc_auc", "sharpness"):
            del content[name]
        return hashlib.sha256(_line(content)).hexdigest()


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes a file of records atomically; compressed if its name ends in ``.gz``.

    Each line carries a checksum of its content.
    """
    lines = []
    for record in records:
        content = json.loads(_line({"format": FORMAT, **_fields(record)}))
        lines.append(_line({**content, "checksum": _checksum(content)}))
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
    """Writes records into one compressed file, without curves, which no table shows."""
    ordered = sorted(records, key=lambda r: (r.run.dataset, r.run.model))
    collected = [replace(record, curve={}) for record in ordered]
    write_records(folder / COLLECTED, collected)
    return collected


def device_name(device: torch.device) -> str:
    """The name of a device for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {counted(threads, 'thread')}"


@dataclass(eq=False)
class Peak:
    """Peak memory of one job.

    Attributes:
        bytes: peak of the device's allocator, or of the process on a CPU; 0 if unknown.
        shared_by: maximum number of jobs at the same time.
    """

    bytes: int = 0
    shared_by: int = 1


class PeakMemory:
    """Measures the peak memory of jobs on a device; jobs may overlap in time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.active: list[Peak] = []

    @contextmanager
    def measure(self) -> Iterator[Peak]:
        """Measures a job; the peak is complete after the block."""
        self._update()
        peak = Peak()
        self.active.append(peak)
        for each in self.active:
            each.shared_by = max(each.shared_by, len(self.active))
        try:
            yield peak
        finally:
            self._update()
            self.active.remove(peak)

    def _update(self) -> None:
        """Adds the peak since the last reset to all active jobs, and resets it."""
        peak = _read_peak(self.device)
        for each in self.active:
            each.bytes = max(each.bytes, peak)
        _reset_peak(self.device)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5")


def _read_peak(device: torch.device) -> int:
    """Peak bytes since the last reset; 0 where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:") and os.access("/proc/self/clear_refs", os.W_OK):
                return int(line.split()[1]) * 1024
    return 0


def _checksum(content: dict[str, Any]) -> str:
    """The first half of the SHA-256 of a line's content."""
    return hashlib.sha256(_line(content)).hexdigest()[:32]


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, whose own dataclasses stay as they are."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _line(content: dict[str, Any]) -> bytes:
    """JSON with null in place of NaN and infinities, which JSON does not have."""
    encode = partial(json.dumps, default=_fields, sort_keys=True, ensure_ascii=False)
    try:
        return encode(content, allow_nan=False).encode()
    except ValueError:  # some number is not finite
        return encode(_finite(json.loads(encode(content)))).encode()


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
        content = json.loads(line, object_pairs_hook=_unique)
        checksum = content.pop("checksum", None)
        if content["format"] > FORMAT:
            raise ValueError(f"{where} has format {content['format']}: upgrade softperm to read it")
        unchecked = content["format"] == 1 and checksum is None
        if not unchecked and checksum != _checksum(content):
            raise TypeError("its content does not match its checksum")
        del content["format"]
        run = Run(**content.pop("run"))
        circumstances = Circumstances(**content.pop("circumstances"))
        numbers = {f.name: content[f.name] for f in fields(Record) if f.name in content}
        for name in ("validation_loss", "validation_score"):
            numbers[name] = math.nan if numbers[name] is None else numbers[name]
        _check_kinds(run, circumstances, numbers)
        return Record(run=run, circumstances=circumstances, **numbers)
    except (
        KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeError,
    ) as problem:  # fmt: skip
        detail = f"{type(problem).__name__}: {problem}"
        raise ValueError(
            f"{where} is no record of a training ({detail}); a damaged file may be deleted: the "
            "same evaluation makes it again"
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; TypeError if a key appears twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise TypeError("a key appears twice")
    return content


def _check_kinds(run: Run, circumstances: Circumstances, numbers: Mapping[str, Any]) -> None:
    """Raises TypeError if a value has a wrong type, as after an edit by hand."""
    score, curve = numbers["test_score"], numbers["curve"]
    scores = (numbers["validation_score"], 0 if score is None else score)
    numeric = all(isinstance(value, Real) for value in scores)
    sound = {
        "fold": type(run.fold) is type(run.folds) is int and 0 <= run.fold < run.folds,
        "names": all(_is_name(v) for v in (run.dataset, run.model, numbers["metric"])),
        "configuration": isinstance(run.configuration, Mapping),
        "test_score": numeric,
        "share": not numeric
        or numbers["metric"] not in SHARES
        or all(math.isnan(share) or 0 <= share <= 1 for share in scores),
        "curve": isinstance(curve, Mapping) and (not curve or set(curve) == set(CURVES)),
        "confusion": _is_square(numbers.get("confusion")),
        "sharpness": isinstance(numbers.get("sharpness"), Mapping | None),
        "circumstances": isinstance(circumstances.seconds, Real)
        and isinstance(circumstances.memory, Real)
        and type(circumstances.memory_shared_by) is int
        and isinstance(circumstances.versions, Mapping)
        and {"softperm", "torch"} <= set(circumstances.versions),
    }
    if odd := [name for name, holds in sound.items() if not holds]:
        raise TypeError(f"{odd[0]} is not valid in a record")


def _is_square(table: object) -> bool:
    """Whether a value is a square table of whole numbers, or None."""
    rows = table if isinstance(table, list) else [None]
    return table is None or all(
        isinstance(row, list) and len(row) == len(rows) and all(type(n) is int for n in row)
        for row in rows
    )


def _is_name(value: object) -> bool:
    """Whether a value is a text that can be part of a file name."""
    return isinstance(value, str) and not set(value) & {"/", "\0", os.sep}
