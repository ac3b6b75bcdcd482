"""What a folder of an evaluation is for: ``evaluation.json``, which a report reads as well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from softperm.cli.console import refuse_foreign

FILE = "evaluation.json"
ASKED = "asked"  # datasets and systems so far: more may be asked for, within the same settings
OWN = ""  # in the place of a dataset: the user's own graphs
RUNS = "recipe.final_runs"  # may change: the fewest ever asked for stand there
WRITTEN = ("table.md", "table.csv", "table.tex", "report.html")
FORMER = "stack"  # once a setting: how many are trained side by side, which changes no result


def claim(
    out: Path, choices: dict[str, Any], models: Sequence[str], datasets: Sequence[str]
) -> None:
    """Writes down what the folder is for; refuses one that holds work on something else.

    Args:
        out: the folder.
        choices: the settings, which stay the same, but for the number of final runs.
        models: systems that are asked for now.
        datasets: on which datasets, with a target behind each if there are several; none for
            graphs of the user's own.
    """
    from softperm.files import exclusive, write_atomically

    path = out / FILE
    refuse_foreign(out, WRITTEN, "evaluation", path.exists() or (out / "records").exists())
    with exclusive(out / "locks" / FILE):  # others may be asking for something at this moment
        asked, least = _fitting(path, choices)
        if least is not None:
            choices = {**choices, "recipe": {**choices["recipe"], "final_runs": least}}
        now = [[dataset, model] for dataset in datasets or [OWN] for model in models]
        asked += [pair for pair in now if pair not in asked]
        text = json.dumps({**choices, ASKED: asked}, indent=2, sort_keys=True) + "\n"
        write_atomically(path, text.encode())


def _fitting(path: Path, choices: dict[str, Any]) -> tuple[list[list[str]], int | None]:
    """What was asked for so far under these settings, and the fewest final runs of it.

    Raises:
        ValueError: it was under others, and there is work that was done so.
    """
    if not path.exists():
        return [], None
    begun = any(any((path.parent / part).glob("*")) for part in ("records", "checkpoints"))
    here = _flat(json.loads(json.dumps(choices)))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        asked = _asked(content)
        there = _flat({k: value for k, value in content.items() if k not in (ASKED, FORMER)})
        least = min(there[RUNS], here[RUNS]) if RUNS in there and RUNS in here else None
    except (ValueError, AttributeError, TypeError):
        if not begun:
            return [], None
        raise ValueError(f"{path} is damaged: choose another --out") from None
    told = [
        f"{name} {_short(there, name)} there, {_short(here, name)} now"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name) and name != RUNS
    ]
    if not told:
        return asked, least
    if not begun:
        return [], None
    raise ValueError(
        f"{path.parent} holds an evaluation with other settings ({'; '.join(told[:3])}"
        f"{'; …' if len(told) > 3 else ''}): choose another --out"
    )


def final_runs(folder: Path) -> int:
    """How many final runs an evaluation was to make of what it chose; 1 if nobody wrote it down."""
    content = _read(folder)
    return 1 if content is None else int(content["recipe"]["final_runs"])


def not_begun(folder: Path, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each dataset and system that was asked for and has no record at all.

    Args:
        folder: of an evaluation, or of records.
        pairs: the datasets and systems of which there are records. A dataset with several targets
            has its name before each.
    """
    content = _read(folder)
    there = list(pairs)
    return [
        f"{f'{name}, ' if name else ''}{model}: has not begun"
        for name, model in ([] if content is None else _asked(content))
        if not any(
            model == found and (name == OWN or f"{dataset}-".startswith(f"{name}-"))
            for dataset, found in there
        )
    ]


def _asked(content: dict[str, Any]) -> list[list[str]]:
    """The datasets and systems that were asked for.

    Raises:
        ValueError: they are not pairs of names.
    """
    asked = content.get(ASKED, [])
    for pair in asked:
        if not isinstance(pair, list) or [type(name) for name in pair] != [str, str]:
            raise ValueError(f"expected a dataset and a system, found {pair!r}")
    return list(asked)


def _read(folder: Path) -> dict[str, Any] | None:
    """What was written down; None where nothing was."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        int(content["recipe"]["final_runs"])
        _asked(content)
        return content
    except (ValueError, LookupError, TypeError, AttributeError):
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
