"""What a folder of an evaluation is for: ``evaluation.json``, which a report reads as well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FILE = "evaluation.json"
ASKED = "asked"  # what was asked for so far: more may be, within the same settings


def claim(
    out: Path, choices: dict[str, Any], models: Sequence[str], datasets: Sequence[str]
) -> None:
    """Writes down what the folder is for; refuses one that holds work on something else.

    Args:
        out: the folder.
        choices: the settings, which stay the same.
        models: systems that are asked for now.
        datasets: names of the datasets that are asked for now.
    """
    from softperm.folder import write_atomically  # brings torch

    path = out / FILE
    begun = any(any((out / part).glob("*")) for part in ("records", "checkpoints"))
    asked: dict[str, list[str]] = {"models": [], "datasets": []}
    if begun and path.exists():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            asked |= content.pop(ASKED, {})
            there = _flat(content)
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{path} is damaged: choose another --out") from None
        here = _flat(json.loads(json.dumps(choices)))
        told = [
            f"{name} {_short(there, name)} there, {_short(here, name)} now"
            for name in sorted({*there, *here})
            if there.get(name) != here.get(name)
        ]
        if told:
            raise ValueError(
                f"{out} holds an evaluation with other settings ({'; '.join(told[:3])}"
                f"{'; …' if len(told) > 3 else ''}): choose another --out"
            )
    now = {"models": models, "datasets": datasets}
    asked = {kind: list(dict.fromkeys([*asked[kind], *now[kind]])) for kind in now}
    text = json.dumps({**choices, ASKED: asked}, indent=2, sort_keys=True) + "\n"
    write_atomically(path, text.encode())


def final_runs(folder: Path) -> int:
    """How many final runs an evaluation was to make of what it chose; 1 if nobody wrote it down."""
    content = _read(folder)
    return 1 if content is None else int(content["recipe"]["final_runs"])


def not_begun(folder: Path, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each system and dataset that was asked for and has no record at all.

    Args:
        folder: of an evaluation, or of records.
        pairs: the datasets and systems of which there are records.
    """
    content = _read(folder)
    asked = {} if content is None else content.get(ASKED, {})
    there = list(pairs)
    datasets = list(dict.fromkeys(dataset for dataset, _ in there))
    missing = [
        f"{dataset}, {model}: has not begun"
        for dataset in datasets
        for model in asked.get("models", ())
        if (dataset, model) not in there
    ]
    for name in asked.get("datasets", ()):  # which stands before each of several targets
        if not any(f"{dataset}-".startswith(f"{name}-") for dataset in datasets):
            missing.append(f"{name}: has not begun")
    return missing


def _read(folder: Path) -> dict[str, Any] | None:
    """What was written down; None where nothing was."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        int(content["recipe"]["final_runs"])
        return content
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{path} is damaged, so how many final runs were to be made is not known: report on "
            f"{folder / 'records'} to take what is there"
        ) from None


def _flat(choices: dict[str, Any], within: str = "") -> dict[str, Any]:
    """Choices within choices, each by the path to it."""
    flat: dict[str, Any] = {}
    for name, value in choices.items():
        path = f"{within}{name}"
        flat |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flat


def _short(choices: dict[str, Any], name: str) -> str:
    """A choice in few words."""
    text = str(choices[name]) if choices.get(name) is not None else "not set"
    return text if len(text) <= 40 else f"{text[:39]}…"
