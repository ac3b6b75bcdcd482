"""Statistics of records: means over folds, standard errors, paired tests between systems."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from scipy import stats

from softperm.lab.configurations import final_runs_of
from softperm.lab.records import Record
from softperm.lab.systems import find_system

PER_CENT = {"accuracy": "accuracy, %", "roc_auc": "ROC-AUC, %", "average_precision": "AP, %"}
"""Titles of scores that tables show in per cent."""
EXACT = 16
"""Maximum number of folds for the exact Wilcoxon test."""


class UnfinishedError(ValueError):
    """Folds or runs of a system are missing or have no score."""


@dataclass(frozen=True)
class Cell:
    """One system on one dataset.

    Attributes:
        dataset: name of the dataset.
        model: name of the system.
        metric: name of the score.
        higher_is_better: direction of the score.
        scores: mean test score of the final runs of each fold; with a single split, the test score
            of each run.
        folds: number of outer folds.
        runs: number of final runs in each fold.
        seconds: time of all trainings, including selection.
        memory: peak bytes.
        memory_shared_by: maximum number of jobs that share the peak.
        devices: names of the devices.
        records: final records.
        choices: names of the settings in which the configurations of the selection differ.
    """

    dataset: str
    model: str
    metric: str
    higher_is_better: bool
    scores: tuple[float, ...]
    folds: int
    runs: int
    seconds: float
    memory: int
    memory_shared_by: int
    devices: tuple[str, ...]
    records: tuple[Record, ...]
    choices: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The system's name in tables."""
        return find_system(self.model).title

    @property
    def factor(self) -> int:
        """Factor between scores and the numbers of tables: 100 for per cent."""
        return 100 if self.metric in PER_CENT else 1

    @property
    def metric_name(self) -> str:
        """The score's name in tables, with its unit."""
        data, _, target = self.dataset.partition("-")
        name, unit = PER_CENT.get(self.metric, self.metric), None
        if (data, self.metric) == ("QM9", "mae"):
            from softperm.data.datasets.molecules import QM9_UNITS  # loads the reader of molecules

            unit = QM9_UNITS.get(target)
        return f"{name}, {unit}" if unit else name

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        """Standard deviation over folds (divided by their number, as in Errica et al.)."""
        return float(np.std(self.scores))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.std / math.sqrt(len(self.scores))

    @property
    def validation_rank(self) -> float:
        """Mean validation score of the final runs, the higher the better; lowest if unknown."""
        mean = float(np.mean([record.validation_score for record in self.records]))
        if math.isnan(mean):
            return -math.inf
        return mean if self.higher_is_better else -mean

    def per_fold(self, figure: Callable[[Record], float | None]) -> tuple[float, ...]:
        """A figure of the final records, averaged as ``scores`` are; empty if some lack it."""
        rows: dict[int, list[float]] = {}
        for k, record in enumerate(self.records):
            value = figure(record)
            if value is None:
                return ()
            rows.setdefault(record.run.fold if self.folds > 1 else k, []).append(value)
        return tuple(np.mean(row).item() for _, row in sorted(rows.items()))

    @property
    def balanced_accuracies(self) -> tuple[float, ...]:
        """Mean share of graphs that are classified rightly over classes; empty if unknown."""
        return self.per_fold(
            lambda r: None if r.confusion is None else balanced_accuracy(r.confusion)
        )

    @property
    def roc_aucs(self) -> tuple[float, ...]:
        """ROC-AUC of each class against the others; empty if unknown."""
        return self.per_fold(lambda record: record.roc_auc)

    @property
    def confusion(self) -> Int[np.ndarray, "C C"] | None:
        """How many graphs of each class were taken for each class, in all folds and runs."""
        tables = [np.array(record.confusion) for record in self.records if record.confusion]
        return np.sum(tables, axis=0) if len(tables) == len(self.records) else None

    @property
    def majority(self) -> tuple[float, ...]:
        """Accuracy of the most common class in each fold; empty if unknown."""
        if self.confusion is None:
            return ()
        common = int(self.confusion.sum(axis=1).argmax())
        return self.per_fold(lambda r: class_share(r.confusion or [], common))

    @property
    def selected(self) -> dict[str, list[int]]:
        """The folds that selected each configuration, which ``choices`` describe; most folds first.

        Empty if there was nothing to select.
        """
        folds: dict[str, list[int]] = {}
        for record in self.records:
            values = record.run.configuration
            present = [name for name in self.choices if name in values]
            words = [f"{name} {_in_words(values[name])}" for name in present]
            chosen = folds.setdefault(", ".join(words), [])
            if self.choices and record.run.fold not in chosen:
                chosen.append(record.run.fold)
        ranked = sorted(folds.items(), key=lambda item: (-len(item[1]), item[1]))
        return {words: sorted(chosen) for words, chosen in ranked if chosen}

    def sharpness(self, figure: str) -> float | None:
        """The mean of a figure of :class:`softperm.nn.permutation.Sharpness`; None if unknown."""
        values = [record.sharpness[figure] for record in self.records if record.sharpness]
        return float(np.mean(values)) if len(values) == len(self.records) else None


def balanced_accuracy(confusion: Sequence[Sequence[int]]) -> float:
    """Share of graphs of a class that are classified rightly, averaged over the classes present.

    >>> balanced_accuracy([[90, 0], [5, 5]])
    0.75
    """
    table = np.array(confusion)
    total = table.sum(axis=1)
    return float((table.diagonal()[total > 0] / total[total > 0]).mean())


def class_share(confusion: Sequence[Sequence[int]], code: int) -> float:
    """Share of a class among the graphs of a confusion matrix."""
    table = np.array(confusion)
    return float(table[code].sum() / table.sum())


def _in_words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class PairedTest:
    """Two systems on the same folds of a dataset.

    Attributes:
        dataset: name of the graphs.
        metric: name of the score.
        first: a system.
        second: another one.
        difference: mean score of the first minus that of the second.
        corrected_t: p-value of the t-test, corrected for overlapping training sets (Nadeau and
            Bengio).
        wilcoxon: p-value of the signed-rank test.
    """

    dataset: str
    metric: str
    first: str
    second: str
    difference: float
    corrected_t: float
    wilcoxon: float


def cells_of(records: Iterable[Record]) -> list[Cell]:
    """The cells of a table, in the order of the records.

    Raises:
        UnfinishedError: a fold is missing, or has another number of runs than the others.
        ValueError: records do not belong together, or a final run has no score.
    """
    return [_cell(*pair, group) for pair, group in by_pair(records).items()]


def finished(
    records: Iterable[Record], final_runs: Mapping[tuple[str, str], int] | None = None
) -> tuple[list[Record], list[str]]:
    """Records of finished pairs of dataset and system, and a sentence for each unfinished pair.

    Args:
        records: records of any datasets and systems.
        final_runs: requested number of final runs of each pair; 1 by default.
    """
    done, unfinished = [], []
    for pair, group in by_pair(records).items():
        try:
            cell = _cell(*pair, group)
            configuration = cell.records[0].run.configuration
            requested = final_runs_of(cell.model, configuration, (final_runs or {}).get(pair, 1))
            if cell.runs < requested:
                runs = f"{cell.runs} of {requested} final runs"
                raise UnfinishedError(f"{', '.join(pair)}: there are {runs}; let it finish")
            done += group
        except UnfinishedError as error:
            unfinished.append(str(error))
    return done, unfinished


def by_pair(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Groups records by dataset and system."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.run.dataset, record.run.model), []).append(record)
    return groups


def paired_tests(cells: Sequence[Cell]) -> list[PairedTest]:
    """Tests pairs of systems on the same folds; a variant is compared with its base alone."""
    present = {(_folds(cell), cell.model) for cell in cells}
    tests = []
    for i, a in enumerate(cells):
        for b in cells[i + 1 :]:
            shared = a.folds > 1 and _folds(a) == _folds(b)
            if shared and _wanted(a, b, present) and _wanted(b, a, present):
                tests.append(_paired_test(a, b))
    return tests


def _folds(cell: Cell) -> tuple[str, str, int]:
    """Equal for cells that can be compared fold by fold."""
    return cell.dataset, cell.records[0].fingerprint, cell.folds


def _wanted(a: Cell, b: Cell, present: Collection[tuple[tuple[str, str, int], str]]) -> bool:
    """Whether b is compared with a: sixteen variants would give 120 pairs."""
    base = a.model.partition("+")[0]
    return base in (a.model, b.model) or (_folds(a), base) not in present


def _cell(dataset: str, model: str, group: Sequence[Record]) -> Cell:
    final = [r for r in group if r.run.stage == "final"]
    where = f"{dataset}, {model}"
    if not final:
        raise UnfinishedError(f"{where}: no fold has been tested yet; let the evaluation finish")
    _same(
        [r.fingerprint for r in group], f"{where}: records of other graphs or splits are mixed in"
    )
    _same([(r.metric, r.run.folds) for r in group], f"{where}: records of several scores or folds")
    folds = final[0].run.folds
    by_fold: dict[int, list[Record]] = {fold: [] for fold in range(folds)}
    for record in final:
        by_fold[record.run.fold].append(record)
    if missing := [fold for fold, runs in by_fold.items() if not runs]:
        raise UnfinishedError(f"{where}: folds {missing} of {folds} are missing; let it finish")
    for fold, runs in by_fold.items():
        configurations = {json.dumps(dict(r.run.configuration), sort_keys=True) for r in runs}
        if len(configurations) > 1 or len({r.run.seed for r in runs}) < len(runs):
            raise ValueError(
                f"{where}: fold {fold} has final runs of several evaluations; report on one"
            )
    count = len(by_fold[0])
    if uneven := [fold for fold, runs in by_fold.items() if len(runs) != count]:
        raise UnfinishedError(f"{where}: folds {uneven} have another number of runs than fold 0")
    scores = [[_test_score(r, where) for r in runs] for runs in by_fold.values()]
    return Cell(
        dataset=dataset,
        model=model,
        metric=final[0].metric,
        higher_is_better=final[0].higher_is_better,
        scores=tuple(np.mean(s).item() for s in scores) if folds > 1 else tuple(scores[0]),
        folds=folds,
        runs=count,
        seconds=sum(r.circumstances.seconds for r in group),
        memory=max(r.circumstances.memory for r in group),
        memory_shared_by=max(r.circumstances.memory_shared_by for r in group),
        devices=tuple(sorted({r.circumstances.device for r in group})),
        records=tuple(final),
        choices=_choices(r.run.configuration for r in group if r.run.stage == "selection"),
    )


def _choices(configurations: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """Names of the settings in which configurations differ."""
    values: dict[str, set[str]] = {}
    every = list(configurations)
    for name in {name for each in every for name in each}:
        values[name] = {json.dumps(each.get(name)) for each in every}
    return tuple(sorted(name for name, different in values.items() if len(different) > 1))


def _test_score(record: Record, where: str) -> float:
    if record.test_score is None or math.isnan(record.test_score):
        raise UnfinishedError(
            f"{where}: fold {record.run.fold}, run {record.run.seed} has no {record.metric}: it "
            "diverged, or its test graphs have too few targets of each class"
        )
    return record.test_score


def _same(values: Sequence[Hashable], otherwise: str) -> None:
    if len(set(values)) > 1:
        raise ValueError(otherwise)


def _paired_test(a: Cell, b: Cell) -> PairedTest:
    gaps = np.round(np.array(a.scores) - np.array(b.scores), 12)  # (folds,); equal ones are equal
    variance = gaps.var(ddof=1)
    p = w = 1.0
    if gaps.any():
        w = _wilcoxon(gaps)
        p = 0.0
    if variance > 0:
        k = len(gaps)
        t = gaps.mean() / math.sqrt((1 / k + 1 / (k - 1)) * variance)
        p = float(2 * stats.t.sf(abs(t), k - 1))
    return PairedTest(a.dataset, a.metric, a.model, b.model, float(gaps.mean()), p, w)


def _wilcoxon(gaps: np.ndarray) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test; exact for few folds, also with ties.

    A gap of zero counts as half a win and half a loss.
    """
    if len(gaps) > EXACT:
        return float(np.asarray(stats.wilcoxon(gaps, zero_method="zsplit"))[1])
    ranks = stats.rankdata(abs(gaps))
    sums = np.zeros(1)  # rank sums of all assignments of signs
    for rank in ranks[gaps != 0]:
        sums = np.concatenate([sums, sums + rank])
    won = ranks[gaps > 0].sum()
    return float(min(1.0, 2 * min((sums <= won).mean(), (sums >= won).mean())))
