"""Command-line options derived from the declared settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from softperm.settings import Parameter, parameters

Command = TypeVar("Command", bound=Callable[..., None])

HIDDEN = ("checkpoint",)  # the run folder has its own
TEXT = ("max_time", "device")  # written otherwise than as a plain number

NAMES = ("vertex_labels", "vertex_attributes", "edge_labels", "edge_attributes")
METAVARS = dict.fromkeys(NAMES, "name,…") | {
    "max_time": "90s|2h30m|…",
    "head_hidden": "256,128,…",
    "heat": "1,4,…",
}


def with_settings(command: Command) -> Command:
    """Replaces the ``**settings`` of a command by an option for every setting of an estimator."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own}
    derived = [_option(p) for p in parameters() if p.name not in names and p.name not in HIDDEN]
    command.__signature__ = signature.replace(parameters=own + derived)  # type: ignore[attr-defined]
    return command


def _option(each: Parameter) -> inspect.Parameter:
    """The option of a setting; numbers are checked by the setting's own rule, not by Typer."""
    rule = each.rule
    as_text = rule.kind in (tuple, list, object) or rule.choices or each.name in TEXT
    as_text = as_text or (rule.optional and each.default is not None)  # none is a value
    kind: Any = str if as_text else rule.kind
    default = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
    annotation = kind | None if each.default is None else kind
    words = METAVARS.get(each.name) or ("|".join(rule.choices) if rule.kind is str else None)
    help = rule.help.replace("None", "unset" if each.default is None else "none")
    option = typer.Option(help=help, metavar=words or None, rich_help_panel=rule.group)
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, option],
    )


def settings_from(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of settings out of the options of a command.

    Raises:
        ValueError: an option is not written as its setting needs it.
    """
    read = {each.name: each for each in parameters() if each.name in options}
    return {name: _value(each, options[name]) for name, each in read.items()}


def _value(each: Parameter, given: Any) -> Any:
    name = f"--{each.name.replace('_', '-')}"
    if not isinstance(given, str):
        return given
    if each.name == "max_time":
        return seconds_of(given)
    if each.rule.kind is tuple:
        sizes = given.split(",")
        if not all(size.strip().isdecimal() for size in sizes):
            raise ValueError(f"{name} must be whole numbers separated by commas; got {given!r}")
        return tuple(map(int, sizes))
    if each.rule.kind is int:
        return None if given == "none" else int(given) if given.isdecimal() else given
    if each.rule.kind is float and each.rule.optional:
        return None if given == "none" else _number(name, given)
    return given


def _number(name: str, given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise ValueError(f"{name} must be a number, or none; got {given!r}") from None


def seconds_of(text: str) -> float:
    """A time span such as ``2h30m`` in seconds; a plain number counts seconds.

    Example:
        >>> seconds_of("2h30m"), seconds_of("90")
        (9000.0, 90.0)
    """
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?[dhms])+|\d+(?:\.\d+)?", text.strip()):
        raise ValueError(f"--max-time must be a time span such as 90s or 2h30m; got {text!r}")
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms]?)", text)
    return float(sum(float(number) * units[unit] for number, unit in parts))
