"""The file ``evaluation.json``: settings, datasets and systems of the evaluation in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from softperm.cli.console import refuse_foreign
from softperm.files import exclusive, undeleted, write_atomically

FILE = "evaluation.json"
CLASSES = "classes.json"
REQUESTED = "asked"  # key of the requested pairs of dataset and system, to which more may be added
OWN = ""  # in place of a dataset: the user's own graphs
RUNS = "recipe.final_runs"  # may change; the file holds the smallest requested number
TITLE = "recipe.title"  # may change
WRITTEN = ("table.md", "table.csv", "table.tex", "report.html")
IGNORED = "stack"  # written by earlier versions; it changes no result


@contextmanager
def claimed_folder(
    out: Path, settings: dict[str, Any], models: Sequence[str], datasets: Sequence[str]
) -> Iterator[None]:
    """Writes the settings of an evaluation into its folder, and adds the requested systems.

    Within the block, evaluations with other settings are refused; those with the same settings may
    run at the same time. Only the number of final runs may change later. A dataset of several
    targets is requested as ``DATASET-TARGET``; own graphs have no dataset.

    Raises:
        ValueError: the folder holds, or another process writes, results with other settings; or it
            was deleted.
    """
    path = out / FILE
    refuse_foreign(out, WRITTEN, "evaluation", path.exists() or (out / "records").exists())
    running = out / "locks" / f"running-{uuid4().hex}"
    with ExitStack() as stack:
        with exclusive(out / "locks" / FILE):  # other processes may add their requests
            requested, runs = _compatible_requests(path, settings)
            if runs is not None:
                settings = {**settings, "recipe": {**settings["recipe"], "final_runs": runs}}
            new = [[dataset, model] for dataset in datasets or [OWN] for model in models]
            requested += [pair for pair in new if pair not in requested]
            content = {**settings, REQUESTED: requested}
            write_atomically(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
            stack.enter_context(exclusive(running))
            stack.callback(running.with_name(f"{running.name}.lock").unlink, missing_ok=True)
        with undeleted(out):
            yield


def _is_running(out: Path) -> bool:
    """Whether a process evaluates in this folder; removes the locks of killed ones."""
    for lock in (out / "locks").glob("running-*.lock"):
        try:
            with exclusive(lock.with_suffix(""), wait=None):
                lock.unlink(missing_ok=True)
        except BlockingIOError:
            return True
    return False


def _compatible_requests(
    path: Path, settings: dict[str, Any]
) -> tuple[list[list[str]], int | None]:
    """Requests made earlier with the same settings, and the smallest number of final runs."""
    if not path.exists():
        return [], None
    folders = (path.parent / part for part in ("records", "checkpoints"))
    started = any(any(folder.glob("*")) for folder in folders) or _is_running(path.parent)
    new = _flat(json.loads(json.dumps(settings)))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        requested = _requests(content)
        old = _flat({k: v for k, v in content.items() if k not in (REQUESTED, IGNORED)})
        runs = min(old[RUNS], new[RUNS]) if RUNS in old and RUNS in new else None
    except (ValueError, AttributeError, TypeError, RecursionError):
        if not started:
            return [], None
        raise ValueError(f"{path} is damaged: choose another --out") from None
    differences = [
        f"{name} {_short(old, name)} there, {_short(new, name)} now"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and name not in (RUNS, TITLE)
    ]
    if not differences:
        return requested, runs
    if not started:
        return [], None
    raise ValueError(
        f"{path.parent} holds an evaluation with other settings ({'; '.join(differences[:3])}"
        f"{'; …' if len(differences) > 3 else ''}): choose another --out"
    )


def add_classes(out: Path, classes: Mapping[str, Sequence[str]]) -> None:
    """Adds the names of the classes of datasets to ``classes.json``, which reports read."""
    known = {**classes_in(out), **{name: list(names) for name, names in classes.items() if names}}
    if known:
        write_atomically(out / CLASSES, json.dumps(known, indent=2, sort_keys=True) + "\n")


def classes_in(folder: Path) -> dict[str, list[str]]:
    """Names of the classes of datasets; none for a folder without ``classes.json``.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / CLASSES
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): [str(each) for each in names] for name, names in content.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{path} is damaged: delete it") from None


def requested_final_runs(folder: Path) -> int:
    """The requested number of final runs; 1 for a folder without ``evaluation.json``."""
    content = _read(folder)
    return 1 if content is None else int(content["recipe"]["final_runs"])


def not_started(folder: Path, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each requested pair of dataset and system that has no record.

    Args:
        folder: folder of an evaluation, or of records.
        pairs: pairs of dataset and system with records; a dataset with several targets appears as
            ``DATASET-TARGET``.
    """
    content = _read(folder)
    started = list(pairs)
    return [
        f"{f'{name}, ' if name else ''}{model}: not started"
        for name, model in ([] if content is None else _requests(content))
        if not any(
            model == other and (name == OWN or f"{dataset}-".startswith(f"{name}-"))
            for dataset, other in started
        )
    ]


def _requests(content: dict[str, Any]) -> list[list[str]]:
    """The requested pairs of dataset and system; ValueError if they are not pairs of names."""
    requested = content.get(REQUESTED, [])
    for pair in requested:
        if not isinstance(pair, list) or [type(name) for name in pair] != [str, str]:
            raise ValueError(f"expected a dataset and a system, found {pair!r}")
    return list(requested)


def _read(folder: Path) -> dict[str, Any] | None:
    """The content of the file; None if it does not exist."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        int(content["recipe"]["final_runs"])
        _requests(content)
        return content
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{path} is damaged, so the requested number of final runs is unknown: report on "
            f"{folder / 'records'} to use the existing records"
        ) from None


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{prefix}{name}"
        flat |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flat


def _short(settings: dict[str, Any], name: str) -> str:
    """A setting in at most 40 characters."""
    text = str(settings[name]) if settings.get(name) is not None else "not set"
    return text if len(text) <= 40 else f"{text[:39]}…"
