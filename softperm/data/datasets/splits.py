"""Splits of a dataset for training, validation and test: published ones and random ones."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from softperm.errors import counted
from softperm.files import write_atomically


@dataclass(frozen=True)
class Split:
    """Three disjoint sets of graphs, by their positions in the dataset.

    Args:
        train: graphs for training.
        validation: graphs for model selection.
        test: graphs for the reported score.
    """

    train: Int[Tensor, " train"]
    validation: Int[Tensor, " validation"]
    test: Int[Tensor, " test"]

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Training, validation and test graphs."""
        return self.train, self.validation, self.test

    def tobytes(self) -> bytes:
        """The three sets as bytes, for fingerprints."""
        return b"".join(part.to(torch.int64).numpy().tobytes() + b";" for part in self.parts)


@dataclass(frozen=True)
class Folds:
    """A cross-validation: every graph is in the test set of exactly one split.

    Args:
        splits: one split for each outer fold, with its own selection split inside.
        origin: the file of the splits.
        digest: SHA-256 of the splits, independent of the file's layout.
    """

    splits: tuple[Split, ...]
    origin: str
    digest: str

    def __len__(self) -> int:
        return len(self.splits)

    def __getitem__(self, fold: int) -> Split:
        return self.splits[fold]

    def __iter__(self) -> Iterator[Split]:
        return iter(self.splits)


def read_folds(path: Path, graphs: int) -> Folds:
    """Read splits in the layout of the fair-comparison protocol.

    The file is a list of folds, each ``{"test": […], "model_selection": [{"train": […],
    "validation": […]}]}``.

    Raises:
        ValueError: the file has another layout, or does not contain every graph once.
    """
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        splits = tuple(_parse_fold(fold) for fold in listed)
    except (
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
        RecursionError,
        RuntimeError,
    ) as error:
        raise ValueError(
            f"{path}: expected a list of folds {{test, model_selection: [{{train, validation}}]}} "
            f"({type(error).__name__}: {error}); get or draw the splits again"
        ) from error
    _check(splits, graphs, path)
    return Folds(splits, str(path), _digest(splits))


def write_folds(path: Path, splits: Sequence[Split]) -> None:
    """Write splits atomically, in the layout that :func:`read_folds` reads."""
    listed = [
        {
            "test": s.test.tolist(),
            "model_selection": [{"train": s.train.tolist(), "validation": s.validation.tolist()}],
        }
        for s in splits
    ]
    write_atomically(path, json.dumps(listed) + "\n")


def make_folds(
    classes: Int[Tensor, " B"] | None, graphs: int, seed: int, folds: int = 10
) -> tuple[Split, ...]:
    """Split a dataset like the protocol: ``folds`` test sets, and 90/10 of the remaining graphs.

    The graphs of each class are shuffled and assigned to the folds in turn, so the number of graphs
    of a class in a fold is within one of its share, and so are the sizes of the folds.

    Args:
        classes: the class of each graph; None to ignore classes.
        graphs: number of graphs B.
        seed: determines the shuffles.
        folds: number of outer folds.

    Raises:
        ValueError: there are too few graphs or folds, or not one class for each graph.

    >>> splits = make_folds(torch.tensor([0, 1] * 50), 100, seed=0)
    >>> [len(part) for part in (splits[0].train, splits[0].validation, splits[0].test)]
    [81, 9, 10]
    """
    if folds < 2:
        raise ValueError(f"expected 2 folds at least, found {folds}")
    if classes is not None and len(classes) != graphs:
        raise ValueError(f"expected a class for each of {graphs} graphs, found {len(classes)}")
    if graphs < 2 * folds:
        raise ValueError(f"expected {2 * folds} graphs at least for {folds} folds, found {graphs}")
    known = np.zeros(graphs, dtype=np.int64) if classes is None else classes.numpy()
    fold_of = _assign(known, folds, np.random.default_rng([seed, 0]))  # (B,)
    splits = []
    for fold in range(folds):
        rest = np.flatnonzero(fold_of != fold)
        chosen = _assign(known[rest], 10, np.random.default_rng([seed, 1 + fold])) == 0
        parts = (rest[~chosen], rest[chosen], np.flatnonzero(fold_of == fold))
        splits.append(Split(*(torch.from_numpy(p) for p in parts)))
    return tuple(splits)


def random_split(graphs: int, seed: int, validation: float = 0.1, test: float = 0.1) -> Split:
    """Split a dataset at random, as the paper does with QM9: 80 / 10 / 10 %.

    Raises:
        ValueError: a fraction is outside [0, 1), or no graph remains for training.

    >>> split = random_split(130_831, seed=0)
    >>> len(split.train), len(split.validation), len(split.test)
    (104665, 13083, 13083)
    """
    if not (math.isfinite(validation) and math.isfinite(test)):
        raise ValueError(f"expected fractions between 0 and 1, found {validation} and {test}")
    order = np.random.default_rng(seed).permutation(graphs)
    second = round(graphs * test)
    third = second + round(graphs * validation)
    if not (0 <= validation < 1 and 0 <= test < 1 and third < graphs):
        raise ValueError(
            f"validation is {validation} and test {test}; expected fractions from 0 on that "
            f"leave some of {graphs} graphs for training"
        )
    parts = (order[third:], order[second:third], order[:second])
    return Split(*(torch.from_numpy(np.sort(p)) for p in parts))


def _assign(classes: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """The fold of each graph: graphs sorted by class and shuffled within, assigned in turn."""
    order = rng.permutation(classes.size)
    order = order[np.argsort(classes[order], kind="stable")]
    fold_of = np.empty(classes.size, dtype=np.int64)
    fold_of[order] = np.arange(classes.size) % folds
    return fold_of


def _parse_fold(fold: dict) -> Split:
    (selection,) = fold["model_selection"]
    parts = (selection["train"], selection["validation"], fold["test"])
    for name, part in zip(("train", "validation", "test"), parts, strict=True):
        if not part or any(type(i) is not int for i in part):
            raise ValueError(f"{name} must be a list of whole numbers, at least one")
    return Split(*(torch.tensor(p, dtype=torch.int64) for p in parts))


def _check(splits: tuple[Split, ...], graphs: int, path: Path) -> None:
    whole = torch.arange(graphs)
    for number, split in enumerate(splits):
        together = torch.cat(split.parts).sort().values
        if not torch.equal(together, whole):
            raise ValueError(
                f"{path}: fold {number} has {counted(together.numel(), 'graph')}, not each of the "
                f"dataset's {graphs:,} once; these splits belong to another dataset"
            )
    tests = torch.cat([s.test for s in splits]).sort().values if splits else whole[:0]
    if not torch.equal(tests, whole):
        raise ValueError(
            f"{path}: the test sets of the {len(splits)} folds do not hold each of the "
            f"{graphs:,} graphs once; get or draw the splits again"
        )


def _digest(splits: tuple[Split, ...]) -> str:
    total = hashlib.sha256()
    for split in splits:
        for part in split.parts:
            total.update(json.dumps(part.tolist()).encode() + b"\n")
    return total.hexdigest()
