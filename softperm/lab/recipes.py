"""Recipes: a table of the paper as a file that says what is compared, on what, and how."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

SPLITS = ("folds", "official", "random")
CATEGORIES = ("one-hot", "embedding")
_HOMES = (
    Path(__file__).parents[1] / "experiments",  # of an installed package
    Path(__file__).parents[2] / "experiments",  # of a checkout
)


@dataclass(frozen=True)
class Recipe:
    """What one table compares.

    Attributes:
        name: the file's name.
        title: what the table shows.
        datasets: names of the graphs.
        models: names of the systems.
        splits: ``folds`` for 10 outer folds with a selection split each, ``official`` for the
            split that a dataset is published with, ``random`` for 80 / 10 / 10 %.
        final_runs: how often the chosen configuration is trained and tested.
        training: settings of every training; see ``TrainingConfig``. A list is a choice that
            validation graphs make, in every grid that has none of its own.
        settings: what all π-GNN networks share; see ``ModelConfig``.
        grid: what is chosen for π-GNN on validation graphs: values by name.
        variants: settings, of networks or of training, by the name of a variant: ``pi-gnn+NAME``
            among the models is π-GNN with these instead of the others'.
        targets: of a dataset with several, each learnt by a network of its own.
        attributes: datasets whose continuous vertex attributes are left out or taken in.
        edges: whether labels and attributes of edges are used, where there are such.
        configurations: how many of a grid's combinations are tried at most, spread evenly over it;
            None for all.
        categories: ``one-hot`` labels, or learnt vectors for them: ``embedding``.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    splits: str = "folds"
    final_runs: int = 3
    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    attributes: Mapping[str, bool] = field(default_factory=dict)
    edges: bool = True
    categories: str = "one-hot"
    configurations: int | None = None

    def __post_init__(self) -> None:
        if self.splits not in SPLITS:
            raise ValueError(f"splits must be one of {', '.join(SPLITS)}; got {self.splits!r}")
        if self.categories not in CATEGORIES:
            known = ", ".join(CATEGORIES)
            raise ValueError(f"categories must be one of {known}; got {self.categories!r}")
        if self.configurations is not None and self.configurations < 1:
            raise ValueError(f"configurations must be at least 1; got {self.configurations}")
        for name, values in self.grid.items():
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"grid.{name} must be a list of values; got {values!r}")
        tables = [self.variants, *self.variants.values()] if _is_table(self.variants) else [None]
        if not all(_is_table(table) for table in tables):
            raise ValueError("variants must be a table of tables: NAME = { setting = value }")
        if self.final_runs < 1:
            raise ValueError(f"final_runs must be at least 1; got {self.final_runs}")

    def check(self, dataset: str) -> None:
        """Raises ValueError unless the recipe holds this dataset."""
        if dataset not in self.datasets:
            known = ", ".join(self.datasets)
            raise ValueError(f"recipe {self.name} has no dataset {dataset}: {known}")

    def changes(self, model: str) -> Mapping[str, Any]:
        """What a model has instead of the recipe's settings: nothing, or those of its variant.

        Raises:
            ValueError: the recipe has no such variant.
        """
        _, plus, variant = model.partition("+")
        if plus and variant not in self.variants:
            known = ", ".join(self.variants) or "none"
            raise ValueError(f"recipe {self.name} has no variant {variant!r}: there are {known}")
        return self.variants[variant] if plus else {}


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def points(grid: Mapping[str, Sequence[Any]], most: int | None = None) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last name varying fastest.

    Args:
        grid: values by name.
        most: how many to take at most, evenly spread; all by default.

    >>> points({"P": [20, 30], "H": [32]})
    [{'P': 20, 'H': 32}, {'P': 30, 'H': 32}]
    >>> points({"P": [1, 2, 3, 4, 5]}, most=2)
    [{'P': 1}, {'P': 5}]
    """
    every = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if most is None or len(every) <= most:
        return every
    if most == 1:
        return every[:1]
    return [every[k * (len(every) - 1) // (most - 1)] for k in range(most)]


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    found = {path.stem for home in _HOMES for path in home.glob("*.toml")}
    return sorted(found - {"published"})


def read_recipe(name: str) -> Recipe:
    """A recipe by its name, or from a TOML file.

    Raises:
        ValueError: there is no such recipe, or it has keys that no recipe has.
    """
    path = Path(name) if name.endswith(".toml") else _find(name)
    content = _read(path)
    known = {f.name for f in fields(Recipe)} - {"name"}
    if unknown := sorted(set(content) - known):
        raise ValueError(
            f"{path}: unknown keys {', '.join(unknown)}; a recipe has {', '.join(sorted(known))}"
        )
    content.setdefault("title", path.stem)
    try:
        _check_kinds(content)
        for key in ("datasets", "models", "targets"):
            content[key] = tuple(content.get(key, ()))
        return Recipe(name=path.stem, **content)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{path}: {problem}") from None


def _check_kinds(content: Mapping[str, Any]) -> None:
    """Raises ValueError for a key whose value is of another kind than a recipe's."""
    kinds = {
        "a list of names": ("datasets", "models", "targets"),
        "a table": ("training", "settings", "grid", "attributes"),
        "text": ("title", "splits", "categories"),
        "a whole number": ("final_runs", "configurations"),
        "true or false": ("edges",),
    }
    for kind, keys in kinds.items():
        for key in [key for key in keys if key in content]:
            if not _IS[kind](content[key]):
                raise ValueError(f"{key} must be {kind}; got {content[key]!r}")
    for name, value in content.get("training", {}).items():
        if value == []:
            raise ValueError(f"training.{name} is a choice among no values: give at least one")


_IS = {
    "a list of names": lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),
    "a table": _is_table,
    "text": lambda v: isinstance(v, str),
    "a whole number": lambda v: type(v) is int,
    "true or false": lambda v: isinstance(v, bool),
}


@cache
def published() -> dict[str, dict[str, dict[str, Any]]]:
    """The paper's own numbers: recipe, then system, then dataset; [mean, deviation] or a figure."""
    return _read(_find("published"))


@dataclass(frozen=True)
class Quoted:
    """A number of the paper.

    Attributes:
        mean: as printed; None where the paper writes OOR.
        std: as printed; None where it gives none.
    """

    mean: float | None
    std: float | None

    def __str__(self) -> str:
        if self.mean is None:
            return "OOR"
        return f"{self.mean:g}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


def quoted(dataset: str, model: str) -> Quoted | None:
    """What the paper gives for a system on a dataset, if it does."""
    for table in published().values():
        found = table.get(model, {}).get(dataset)
        if isinstance(found, list):
            return Quoted(found[0], found[1])
        if found is not None:
            return Quoted(None, None) if found == "OOR" else Quoted(found, None)
    return None


def _find(name: str) -> Path:
    for home in _HOMES:
        if (home / f"{name}.toml").exists():
            return home / f"{name}.toml"
    raise ValueError(f"no recipe is called {name}: there are {', '.join(recipe_names())}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ValueError(f"{path} cannot be read as a recipe: {problem}") from None
