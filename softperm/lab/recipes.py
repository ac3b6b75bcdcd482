"""Recipes: TOML files that describe which systems are compared, on which datasets, and how."""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

SPLITS = ("folds", "official", "random")
CATEGORIES = ("one-hot", "embedding")
DEFAULTS = ("paper", "estimators")
_HOMES = (
    Path(__file__).parents[1] / "experiments",  # of an installed package
    Path(__file__).parents[2] / "experiments",  # of a checkout
)


@dataclass(frozen=True)
class Recipe:
    """The description of one table.

    Attributes:
        name: name of the file.
        title: title of the table.
        datasets: names of datasets.
        models: names of systems.
        splits: ``folds`` for 10 outer folds with a validation split each, ``official`` for the
            published split of a dataset, ``random`` for 80 / 10 / 10 %.
        final_runs: number of trainings and tests of the selected configuration.
        refit: whether final runs learn from training and validation graphs, once the configuration
            is selected; they keep their last epoch, so ``training.criterion`` must be ``last``.
        training: settings of training; see ``TrainingConfig``. A list is a choice on validation
            graphs, for every system whose own grid does not have the setting.
        epochs: number of epochs on some datasets, in place of that in ``training``.
        settings: settings of all π-GNN networks; see ``ModelConfig``.
        defaults: settings that a recipe does not name: ``paper``, or ``estimators`` for the
            defaults of the estimators and of ``softperm train``.
        grid: grid of π-GNN: values by name of a setting; or several grids, whose points follow one
            another.
        baselines: values of settings in place of those in a baseline's own grid, by system.
        variants: settings of model or training by the name of a variant: ``pi-gnn+NAME`` among
            the models is π-GNN with these settings, ``pi-gnn+NAME+OTHER`` with those of both.
        targets: targets of a dataset with several; each has its own networks.
        attributes: whether continuous vertex attributes are used, by dataset.
        edges: whether labels and attributes of edges are used.
        configurations: maximum number of grid points, spread evenly over the grid; None for all.
        categories: ``one-hot`` labels, or ``embedding`` for learnt vectors.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    splits: str = "folds"
    final_runs: int = 3
    refit: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    defaults: str = "paper"
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]] = field(
        default_factory=dict
    )
    baselines: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    attributes: Mapping[str, bool] = field(default_factory=dict)
    edges: bool = True
    categories: str = "one-hot"
    configurations: int | None = None

    def __post_init__(self) -> None:
        choices = {"splits": SPLITS, "categories": CATEGORIES, "defaults": DEFAULTS}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}")
        if self.configurations is not None and self.configurations < 1:
            raise ValueError(f"configurations must be at least 1; got {self.configurations}")
        if not all(map(_is_table, self.baselines.values())):
            raise ValueError("baselines must be a table of tables: NAME = { setting = [values] }")
        grids = [("grid", grid) for grid in self.grids]
        grids += [(f"baselines.{name}", grid) for name, grid in self.baselines.items()]
        for table, grid in grids:
            for name, values in grid.items():
                if not isinstance(values, list | tuple) or not values:
                    raise ValueError(f"{table}.{name} must be a list of values; got {values!r}")
        tables = [self.variants, *self.variants.values()] if _is_table(self.variants) else [None]
        if not all(_is_table(table) for table in tables):
            raise ValueError("variants must be a table of tables: NAME = { setting = value }")
        if self.final_runs < 1:
            raise ValueError(f"final_runs must be at least 1; got {self.final_runs}")

    @property
    def grids(self) -> Sequence[Mapping[str, Sequence[Any]]]:
        """All grids of π-GNN."""
        return [self.grid] if isinstance(self.grid, Mapping) else self.grid

    def for_dataset(self, dataset: str) -> Recipe:
        """The recipe with the number of epochs of a dataset."""
        if dataset not in self.epochs:
            return self
        return replace(self, training={**self.training, "epochs": self.epochs[dataset]})

    def check_dataset(self, dataset: str) -> None:
        """Raises ValueError unless the recipe has this dataset."""
        if dataset not in self.datasets:
            known = ", ".join(self.datasets)
            raise ValueError(f"recipe {self.name} has no dataset {dataset}: {known}")

    def variant_settings(self, model: str) -> Mapping[str, Any]:
        """The settings of a model's variants together; empty for a model without a variant.

        Raises:
            ValueError: the recipe has no such variant.
        """
        settings: dict[str, Any] = {}
        for variant in model.split("+")[1:]:
            if variant not in self.variants:
                known = ", ".join(self.variants) or "none"
                raise ValueError(
                    f"recipe {self.name} has no variant {variant!r}: there are {known}"
                )
            settings |= self.variants[variant]
        return settings


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def grid_points(grid: Mapping[str, Sequence[Any]], most: int | None = None) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last name varying fastest.

    >>> grid_points({"P": [20, 30], "H": [32]})
    [{'P': 20, 'H': 32}, {'P': 30, 'H': 32}]
    >>> grid_points({"P": [1, 2, 3, 4, 5]}, most=2)
    [{'P': 1}, {'P': 5}]
    """
    return spread([grid], most)


def _grid_point(grid: Mapping[str, Sequence[Any]], place: int) -> dict[str, Any]:
    """The point at one place of a grid, without the others."""
    point: dict[str, Any] = dict.fromkeys(grid)  # in the order of the grid
    for name in reversed(list(grid)):
        place, k = divmod(place, len(grid[name]))
        point[name] = grid[name][k]
    return point


def spread(grids: Sequence[Mapping[str, Sequence[Any]]], most: int | None) -> list[dict[str, Any]]:
    """At most ``most`` points, evenly spaced in the concatenated grids.

    >>> spread([{"P": [1, 2, 3]}, {"H": [4, 5]}], most=2)
    [{'P': 1}, {'H': 5}]
    """
    ends = list(accumulate(math.prod(map(len, grid.values())) for grid in grids))
    places: Iterable[int] = range(ends[-1])
    if most is not None and most < ends[-1]:
        places = (k * (ends[-1] - 1) // max(most - 1, 1) for k in range(most))
    which = ((bisect_right(ends, place), place) for place in places)
    return [_grid_point(grids[k], place - (ends[k - 1] if k else 0)) for k, place in which]


def recipe_names() -> list[str]:
    """Names of the recipes of the package."""
    names = {path.stem for home in _HOMES for path in home.glob("*.toml")}
    return sorted(names - {"published"})


def read_recipe(name: str) -> Recipe:
    """Reads a recipe of the package by its name, or a TOML file.

    Raises:
        ValueError: the recipe does not exist, or has unknown keys or values of a wrong type.
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
    """Raises ValueError for a key whose value has a wrong type."""
    kinds = {
        "a list of names": ("datasets", "models", "targets"),
        "a table": ("training", "epochs", "settings", "attributes", "baselines"),
        "a table, or a list of tables": ("grid",),
        "text": ("title", "splits", "categories", "defaults"),
        "a whole number": ("final_runs", "configurations"),
        "true or false": ("edges", "refit"),
    }
    for kind, keys in kinds.items():
        for key in [key for key in keys if key in content]:
            if not _IS[kind](content[key]):
                raise ValueError(f"{key} must be {kind}; got {content[key]!r}")
    for name, value in content.get("training", {}).items():
        if value == []:
            raise ValueError(f"training.{name} is an empty list: give at least one value")


_IS = {
    "a list of names": lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),
    "a table": _is_table,
    "a table, or a list of tables": lambda v: (
        _is_table(v) or (isinstance(v, list) and len(v) > 0 and all(map(_is_table, v)))
    ),
    "text": lambda v: isinstance(v, str),
    "a whole number": lambda v: type(v) is int and abs(v) < 2**63,
    "true or false": lambda v: isinstance(v, bool),
}


@cache
def published() -> dict[str, dict[str, dict[str, Any]]]:
    """The paper's numbers by recipe, system and dataset: [mean, deviation], or the mean alone."""
    return _read(_find("published"))


@dataclass(frozen=True)
class Quoted:
    """A number of the paper.

    Attributes:
        mean: mean as printed; None where the paper prints OOR (out of resources).
        std: standard deviation as printed; None where the paper has none.
    """

    mean: float | None
    std: float | None

    def __str__(self) -> str:
        if self.mean is None:
            return "OOR"
        return f"{self.mean:g}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


def quoted(dataset: str, model: str) -> Quoted | None:
    """The paper's number for a system on a dataset; None if it has none."""
    for table in published().values():
        number = table.get(model, {}).get(dataset)
        if isinstance(number, list):
            return Quoted(number[0], number[1])
        if number is not None:
            return Quoted(None, None) if number == "OOR" else Quoted(number, None)
    return None


def _find(name: str) -> Path:
    for home in _HOMES:
        if (home / f"{name}.toml").exists():
            return home / f"{name}.toml"
    raise ValueError(f"no recipe is called {name}: there are {', '.join(recipe_names())}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:  # TOMLDecodeError is a ValueError
        raise ValueError(f"{path} cannot be read as a recipe: {problem}") from None
