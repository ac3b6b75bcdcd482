"""Settings declared once: a dataclass field with its default, its range and one line of help.

Estimators, command-line options, recipes and the documentation read the declarations from here;
nothing repeats a default, a range or a description.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar

Built = TypeVar("Built", bound="Settings")


@dataclass(frozen=True)
class Rule:
    """What a setting is and which values it may have.

    Attributes:
        help: one line of description.
        kind: ``int``, ``float``, ``bool``, ``str``, ``tuple`` (of whole numbers), ``list`` (of
            names), or ``object`` for values that are checked where they are used.
        at_least: smallest value.
        above: value that it must exceed.
        below: value that it must stay below.
        choices: the values of a ``str``; words that may stand in place of a number.
        optional: whether it may be None.
        group: heading under which help and documentation list it.
    """

    help: str
    kind: type
    at_least: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    group: str = "Model"

    def check(self, name: str, value: object) -> None:
        """Raises ValueError unless ``value`` is allowed for the setting ``name``."""
        if value is None and self.optional:
            return
        if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63:
            raise ValueError(f"{name} must be below 2**63; got {value}")
        if not self._allows(value):
            raise ValueError(f"{name} must be {self.expectation}; got {value!r}")

    def _allows(self, value: Any) -> bool:
        if self.kind is object:
            return True
        if self.kind is bool:
            return isinstance(value, bool)
        if self.kind is str:
            return isinstance(value, str) and (not self.choices or value in self.choices)
        if self.kind is list:
            return isinstance(value, (str, tuple, list)) and all(isinstance(v, str) for v in value)
        if self.kind is tuple:
            whole = isinstance(value, (tuple, list)) and len(value) > 0
            return whole and all(_is_whole(size) and self._in_range(size) for size in value)
        if isinstance(value, str):
            return value in self.choices
        number = _is_whole(value) if self.kind is int else _is_number(value)
        return number and self._in_range(value)

    def _in_range(self, value: int | float) -> bool:
        if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63:
            return False
        low = self.at_least is None or value >= self.at_least
        high = self.below is None or value < self.below
        return low and high and (self.above is None or value > self.above) and value < math.inf

    @property
    def expectation(self) -> str:
        """The allowed values in words, as in ``a whole number of at least 1``."""
        if self.kind is bool:
            allowed = ["True or False"]
        elif self.kind is str:
            allowed = [f"one of {', '.join(self.choices)}" if self.choices else "a string"]
        else:
            start = {
                int: "a whole number",
                float: "a number",
                tuple: "one or more whole numbers",
                list: "a name or a list of names",
                object: "any value",
            }
            allowed = [*map(repr, self.choices), f"{start[self.kind]}{self._range_in_words}"]
        if self.optional:
            allowed.append("None")
        return allowed[0] if len(allowed) == 1 else f"{', '.join(allowed[:-1])}, or {allowed[-1]}"

    @property
    def _range_in_words(self) -> str:
        if self.above is not None and self.below is not None:
            return f" between {self.above:g} and {self.below:g}"
        parts = []
        if self.at_least is not None:
            parts.append(f"of at least {self.at_least:g}")
        if self.above is not None:
            parts.append(f"above {self.above:g}")
        if self.below is not None:
            parts.append(f"below {self.below:g}")
        return f" {' and '.join(parts)}" if parts else ""


def setting(default: Any, help: str, **rule: Any) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: its default, from which its kind follows; None needs ``kind``.
        help: one line of description.
        rule: other fields of :class:`Rule`.
    """
    if default is None:
        rule["optional"] = True
    rule.setdefault("kind", type(default))
    return field(default=default, metadata={"rule": Rule(help, **rule)})


class Settings:
    """Base of frozen dataclasses whose fields are settings; checks every value when built."""

    def __post_init__(self) -> None:
        for name, rule in rules(type(self)):
            value = getattr(self, name)
            rule.check(name, value)
            if rule.kind is tuple and value is not None:
                object.__setattr__(self, name, tuple(value))
            if rule.kind is list and value is not None:
                names = names_in(value) if isinstance(value, str) else tuple(value)
                object.__setattr__(self, name, names)

    @classmethod
    def from_dict(cls: type[Built], values: Mapping[str, Any]) -> Built:
        """The settings with these values.

        Raises:
            ValueError: a key that is no setting, or a value out of range.
        """
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(set(values) - known):
            names = ", ".join(unknown)
            raise ValueError(f"unknown settings {names}: known are {', '.join(sorted(known))}")
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})


def names_in(text: str) -> tuple[str, ...]:
    """Names separated by commas; a name that contains a comma stands in double quotes.

    >>> names_in('size, "log P, measured"')
    ('size', 'log P, measured')
    """
    cells = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(cell.strip() for cell in cells if cell.strip())


def rules(cls: type) -> Iterator[tuple[str, Rule]]:
    """The settings of a dataclass in the order of their declaration."""
    for each in fields(cls):  # type: ignore[arg-type]
        if "rule" in each.metadata:
            yield each.name, each.metadata["rule"]


def defaults(cls: type) -> dict[str, Any]:
    """The default of each setting of a dataclass, by name."""
    return {each.name: each.default for each in fields(cls) if "rule" in each.metadata}  # type: ignore[arg-type]


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
