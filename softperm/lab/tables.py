"""From records to numbers: means over folds, their errors, and paired tests between systems."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from softperm.data.datasets.qm9 import QM9_UNITS
from softperm.lab.records import Record
from softperm.lab.systems import Kernel, find_system

PER_CENT = {"accuracy": "accuracy, %", "roc_auc": "ROC-AUC, %", "average_precision": "AP, %"}
"""Scores that are shares, as tables call them."""
EXACT = 16
"""Folds of which all signs are tried, at most."""


class UnfinishedError(ValueError):
    """Folds or runs of a system are still to come, or gave no score."""


@dataclass(frozen=True)
class Cell:
    """One system on one dataset.

    Attributes:
        dataset: name of the graphs.
        model: name of the system.
        metric: name of the score.
        higher_is_better: its direction.
        scores: test score of each outer fold, the mean of its final runs; of each run where there
            is one split only.
        folds: number of outer folds.
        runs: final runs in each fold.
        seconds: spent on all trainings, those of the selection included.
        memory: most bytes held.
        devices: what computed.
        records: the final ones.
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
    devices: tuple[str, ...]
    records: tuple[Record, ...]

    @property
    def title(self) -> str:
        """The system as tables call it."""
        return find_system(self.model).title

    @property
    def factor(self) -> int:
        """From scores to the figures of tables: per cent where a score is a share."""
        return 100 if self.metric in PER_CENT else 1

    @property
    def metric_name(self) -> str:
        """What those figures are, with their unit."""
        data, _, target = self.dataset.partition("-")
        unit = QM9_UNITS.get(target) if (data, self.metric) == ("QM9", "mae") else None
        return PER_CENT.get(self.metric, self.metric) + (f", {unit}" if unit else "")

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        """Standard deviation over folds, as Errica et al. give it (divided by their number)."""
        return float(np.std(self.scores))

    @property
    def error(self) -> float:
        """Standard error of the mean: deviation over the root of the number of folds."""
        return self.std / math.sqrt(len(self.scores))


@dataclass(frozen=True)
class PairedTest:
    """Two systems on the same folds of a dataset.

    Attributes:
        dataset: name of the graphs.
        metric: name of the score.
        first: a system.
        second: another one.
        difference: mean score of the first minus that of the second.
        corrected_t: p-value of the t-test corrected for overlapping training sets (Nadeau and
            Bengio, with the share of test graphs of the folds).
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
    """The cells of a table, sorted by nothing but the order of first appearance.

    Raises:
        UnfinishedError: a fold is missing, or has another number of runs than the others.
        ValueError: records do not belong together, or a final run has no score.
    """
    return [_cell(*pair, group) for pair, group in by_pair(records).items()]


def finished(
    records: Iterable[Record], asked: Mapping[tuple[str, str], int] | None = None
) -> tuple[list[Record], list[str]]:
    """Records of the systems that are through with a dataset; a sentence for each other one.

    Args:
        records: of any number of datasets and systems.
        asked: of a dataset and a system, how many final runs were asked for; those that are there
            by default.
    """
    done, left = [], []
    for pair, group in by_pair(records).items():
        try:
            cell = _cell(*pair, group)
            wanted = (asked or {}).get(pair, 1)
            if cell.runs < wanted and not isinstance(find_system(cell.model), Kernel):
                runs = f"{cell.runs} of {wanted} final runs"
                raise UnfinishedError(f"{', '.join(pair)}: there are {runs}; let it finish")
            done += group
        except UnfinishedError as problem:
            left.append(str(problem))
    return done, left


def by_pair(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """The records of each dataset and system."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.run.dataset, record.run.model), []).append(record)
    return groups


def paired_tests(cells: Sequence[Cell]) -> list[PairedTest]:
    """Pairs of systems that share a dataset's folds; a variant only with what it varies."""
    present = {(_folds(cell), cell.model) for cell in cells}
    made = []
    for i, a in enumerate(cells):
        for b in cells[i + 1 :]:
            shared = a.folds > 1 and _folds(a) == _folds(b)
            if shared and _wanted(a, b, present) and _wanted(b, a, present):
                made.append(_paired_test(a, b))
    return made


def _folds(cell: Cell) -> tuple[str, str, int]:
    """On what a cell was measured: equal for cells that can be compared fold by fold."""
    return cell.dataset, cell.records[0].fingerprint, cell.folds


def _wanted(a: Cell, b: Cell, present: Collection[tuple[tuple[str, str, int], str]]) -> bool:
    """Whether b is what a is to be compared with: of sixteen variants few would read 120 pairs."""
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
    if missing := [fold for fold, found in by_fold.items() if not found]:
        raise UnfinishedError(f"{where}: folds {missing} of {folds} are missing; let it finish")
    for fold, found in by_fold.items():
        made = {(json.dumps(dict(r.run.configuration), sort_keys=True)) for r in found}
        if len(made) > 1 or len({r.run.seed for r in found}) < len(found):
            raise ValueError(
                f"{where}: fold {fold} has final runs of several evaluations; report on one"
            )
    runs = len(by_fold[0])
    if uneven := [fold for fold, found in by_fold.items() if len(found) != runs]:
        raise UnfinishedError(f"{where}: folds {uneven} have another number of runs than fold 0")
    scores = [[_tested(r, where) for r in found] for found in by_fold.values()]
    return Cell(
        dataset=dataset,
        model=model,
        metric=final[0].metric,
        higher_is_better=final[0].higher_is_better,
        scores=tuple(np.mean(s).item() for s in scores) if folds > 1 else tuple(scores[0]),
        folds=folds,
        runs=runs,
        seconds=sum(r.circumstances.seconds for r in group),
        memory=max(r.circumstances.memory for r in group),
        devices=tuple(sorted({r.circumstances.device for r in group})),
        records=tuple(final),
    )


def _tested(record: Record, where: str) -> float:
    if record.test_score is None or math.isnan(record.test_score):
        raise UnfinishedError(
            f"{where}: fold {record.run.fold}, run {record.run.seed} has no {record.metric}: it "
            "diverged, or its test graphs have too few answers of each kind"
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
    """Two-sided p of Wilcoxon's signed-rank test over all signs that few gaps can have.

    Gaps may be equal or zero (each zero is half a win and half a loss).
    """
    if len(gaps) > EXACT:
        return float(np.asarray(stats.wilcoxon(gaps, zero_method="zsplit"))[1])
    ranks = stats.rankdata(abs(gaps))
    sums = np.zeros(1)  # of the ranks of wins, for each choice of signs
    for rank in ranks[gaps != 0]:
        sums = np.concatenate([sums, sums + rank])
    won = ranks[gaps > 0].sum()
    return float(min(1.0, 2 * min((sums <= won).mean(), (sums >= won).mean())))
