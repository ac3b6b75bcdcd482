"""Distances of all pairs of a collection: in parallel, resumable, isomorphic graphs only once."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from softperm.data.graphs import as_graphs
from softperm.distance.branch_and_bound import GLANCE, search_briefly
from softperm.distance.costs import Frobenius, Model
from softperm.distance.exact import EFFORT, LARGEST, as_result, check_time_limit, solve
from softperm.distance.pairs import Packed, pack, pair_of
from softperm.distance.symmetry import representatives
from softperm.files import seal, unseal, write_atomically
from softperm.jit import kernel
from softperm.parallel import cores, thread_pool
from softperm.progress import Report, progress_bars

TASK_WORK = 1 << 14  # pairs of one task times their squared vertices; tens of milliseconds
SAVE_SECONDS = 10.0  # between two checkpoints
_HEADER = b"softperm pairs 3\n"
REPORT_SECONDS = 1.0  # between two progress reports while no pair finishes


@dataclass(frozen=True, eq=False)
class DistanceIntervals:
    """All pairs of a collection with what is proven about them.

    Args:
        distance: (B, B) least distances found; the distances themselves where ``exact``.
        lower_bound: (B, B) proven lower bounds of the distances.
        exact: (B, B) whether a distance is proven.
    """

    distance: Float[np.ndarray, "B B"]
    lower_bound: Float[np.ndarray, "B B"]
    exact: Bool[np.ndarray, "B B"]


def frobenius_matrix(
    graphs: Iterable[Any],
    *,
    labels: bool = False,
    edge_labels: bool = False,
    time_limit: float | None = None,
    workers: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool | Report = False,
) -> Float[np.ndarray, "B B"]:
    """The Frobenius distances of all pairs of graphs (:func:`frobenius_distance`).

    Args:
        graphs: the graphs, all of one kind.
        labels: whether only vertices of equal label may be matched.
        edge_labels: whether edges of different label disagree.
        time_limit: seconds for each pair. A pair that needs more gets the least distance found;
            :func:`frobenius_intervals` shows which pairs these are.
        workers: number of threads; the number of cores by default, and at most.
        checkpoint: a file for finished pairs, from which an interrupted call resumes. A checkpoint
            of other graphs is refused. Pairs in it that are not proven are computed again if the
            time limit is longer than before.
        progress: whether to show progress bars with the time left, or log lines every ten seconds
            if standard error is not a terminal; or a function that receives the progress.

    Returns:
        The (B, B) symmetric matrix of distances.

    >>> import networkx as nx
    >>> squared = frobenius_matrix([nx.path_graph(n) for n in (2, 3, 4)]) ** 2
    >>> squared.round().astype(int).tolist()
    [[0, 2, 4], [2, 0, 2], [4, 2, 0]]
    """
    return frobenius_intervals(
        graphs,
        labels=labels,
        edge_labels=edge_labels,
        time_limit=time_limit,
        workers=workers,
        checkpoint=checkpoint,
        progress=progress,
    ).distance


def frobenius_intervals(
    graphs: Iterable[Any],
    *,
    labels: bool = False,
    edge_labels: bool = False,
    time_limit: float | None = None,
    total_time: float | None = None,
    workers: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool | Report = False,
) -> DistanceIntervals:
    """The distances of all pairs, with lower bounds and whether each is proven.

    The arguments are those of :func:`frobenius_matrix`, and ``total_time``: the seconds that all
    pairs together may take on all threads beyond a brief search, divided equally among the
    difficult ones. It excludes a checkpoint.

    Returns:
        Distances, lower bounds and proofs, (B, B) each.
    """
    check_time_limit(time_limit)
    check_time_limit(total_time, "total_time")
    if total_time is not None and checkpoint is not None:
        raise ValueError("total_time and checkpoint exclude each other: use time_limit to resume")
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; expected at least 1, or None for all cores")
    metric, listed = Frobenius(labels, edge_labels), as_graphs(graphs)
    codes = metric.codes(listed)
    packed = pack(listed, codes)
    model = metric.model(codes)
    unique, copy_of = np.unique(representatives(model, packed), return_inverse=True)  # (U,), (B,)
    first, second = (unique[side] for side in np.triu_indices(unique.size, k=1))  # (K,) each
    path = None if checkpoint is None else Path(checkpoint)
    digest = fingerprint(model, packed)
    table = PairTable.empty(first.size) if path is None else load(path, first.size, digest)
    run = _Run(
        metric, model, packed, first, second, table, time_limit, total_time, workers or cores()
    )
    missing = bool(table.missing(time_limit).any())
    bars: AbstractContextManager[Report]
    bars = progress_bars(progress) if isinstance(progress, bool) else nullcontext(progress)
    try:
        with bars as report:
            saved_at = monotonic()
            for _ in run.compute(report):
                if path is not None and monotonic() - saved_at > SAVE_SECONDS:
                    save(path, table, digest)
                    saved_at = monotonic()
    finally:
        if path is not None and missing:
            save(path, table, digest)
    return _square(table, unique.size, copy_of)


@dataclass(frozen=True, eq=False)
class PairTable:
    """The state of K pairs, in the order of ``np.triu_indices``; updated in place.

    Args:
        distance: least distance found; NaN if not yet computed.
        lower: proven lower bound.
        exact: whether the two are equal.
        limit: seconds the pair was given, infinite without a limit; NaN if not yet computed.
    """

    distance: Float[np.ndarray, " K"]
    lower: Float[np.ndarray, " K"]
    exact: Bool[np.ndarray, " K"]
    limit: Float[np.ndarray, " K"]

    @classmethod
    def empty(cls, pairs: int) -> PairTable:
        """A table of pairs that are not yet computed."""
        return cls(
            distance=np.full(pairs, np.nan),
            lower=np.zeros(pairs),
            exact=np.zeros(pairs, dtype=bool),
            limit=np.full(pairs, np.nan),
        )

    def missing(self, time_limit: float | None) -> Bool[np.ndarray, " K"]:
        """Pairs to compute: new ones, and unproven ones that had less time than now."""
        seconds = np.inf if time_limit is None else time_limit
        return ~self.exact & ~(self.limit >= seconds)


def fingerprint(model: Model, packed: Packed) -> str:
    """A digest of the graphs, in their order, with all that the distances depend on."""
    digest = hashlib.sha256(b"softperm pairs 2")
    for array in (model.value, model.table, *packed):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def save(path: Path, table: PairTable, digest: str) -> None:
    """Writes a checkpoint atomically."""
    content = io.BytesIO()
    np.savez_compressed(content, mark=np.array(digest), **vars(table))
    write_atomically(path, seal(_HEADER, content.getvalue()))


def load(path: Path, pairs: int, digest: str) -> PairTable:
    """Reads a checkpoint; returns an empty table if the file does not exist.

    Raises:
        ValueError: the file is not a checkpoint, or belongs to other graphs.
    """
    if not path.exists():
        return PairTable.empty(pairs)
    try:
        content = unseal(_HEADER, path.read_bytes())
        if content is None:
            raise ValueError("damaged, or of another program or version")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            stored = {key: archive[key] for key in archive.files}
        table = PairTable(**{key: stored[key] for key in PairTable.__dataclass_fields__})
        stored_digest = str(stored["mark"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"checkpoint {path} is not a file of distances ({error}); remove it or choose another "
            "path"
        ) from None
    if stored_digest != digest or table.distance.shape != (pairs,):
        raise ValueError(
            f"checkpoint {path} belongs to other graphs or options; remove it or choose another "
            f"path"
        )
    return table


@dataclass(frozen=True, eq=False)
class _Run:
    """The pairs to compute and the table that receives their distances."""

    metric: Frobenius
    model: Model
    packed: Packed
    first: Int[np.ndarray, " K"]
    second: Int[np.ndarray, " K"]
    table: PairTable
    time_limit: float | None
    total_time: float | None
    workers: int

    def compute(self, report: Report) -> Iterator[None]:
        """Searches every missing pair briefly, then the remaining ones up to the time limit.

        The two stages are two activities, so that the time left is estimated from pairs of the same
        kind. Yields whenever pairs have finished, and at least once a second.
        """
        sizes = np.diff(self.packed.ptr)
        sizes = np.maximum(sizes[self.first], sizes[self.second])
        missing = np.flatnonzero(self.table.missing(self.time_limit))
        missing = missing[np.argsort(sizes[missing], kind="stable")]  # long searches last
        if not missing.size:
            return
        self._search_briefly(missing[:0], Event())  # compiles
        task = np.cumsum(np.maximum(sizes[missing], 1) ** 2) // TASK_WORK
        tasks = np.split(missing, np.flatnonzero(np.diff(task)) + 1)
        done, total, unsolved = self.first.size - missing.size, self.first.size, []
        for finished in self._run_tasks(self._search_briefly, tasks):
            done += sum(pairs.size for pairs, _ in finished)
            unsolved += [left for _, left in finished]
            report("distances", done, total)
            yield
        difficult = np.sort(np.concatenate(unsolved))
        seconds = self.time_limit
        if self.total_time is not None and difficult.size:
            share = self.total_time * self.workers / difficult.size
            seconds = share if seconds is None else min(seconds, share)
        done = 0
        search = partial(self._search_long, seconds=seconds)
        for finished in self._run_tasks(search, list(difficult)):
            done += len(finished)
            proven = int(self.table.exact[difficult].sum())
            report("difficult pairs", done, difficult.size, f"{proven:,} proven")
            yield

    def _run_tasks(
        self, function: Callable[[Any, Event], Any], tasks: list[Any]
    ) -> Iterator[list[tuple[Any, Any]]]:
        """Runs tasks on at most ``workers`` threads; yields the finished tasks and their results.

        Yields an empty list if none finished within a second.
        """
        stop, waiting, running = Event(), iter(tasks), dict[Future, Any]()
        try:
            while True:
                for task in waiting:
                    running[thread_pool().submit(function, task, stop)] = task
                    if len(running) >= self.workers:
                        break
                if not running:
                    return
                done = wait(running, timeout=REPORT_SECONDS, return_when=FIRST_COMPLETED).done
                yield [(running.pop(future), future.result()) for future in done]
        finally:
            stop.set()
            for future in running:
                future.cancel()
            wait(running)

    def _search_briefly(self, pairs: Int[np.ndarray, " k"], stop: Event) -> Int[np.ndarray, " r"]:
        """Searches some pairs briefly; returns the unsolved ones."""
        if stop.is_set():
            return pairs
        cost = np.zeros(pairs.size)
        solved = np.zeros(pairs.size, dtype=bool)
        first, second = self.first[pairs], self.second[pairs]
        solve_pairs(self.model, self.packed, first, second, LARGEST, GLANCE, EFFORT, cost, solved)
        distance = np.sqrt(2 * cost[solved])
        proven = np.ones(distance.size, dtype=bool)
        self._write(pairs[solved], distance, distance, proven, self.time_limit)
        return pairs[~solved]

    def _search_long(self, pair: np.int64, stop: Event, seconds: float | None) -> None:
        """Searches one pair up to a time limit."""
        both = pair_of(self.model, self.packed, self.first[pair], self.packed, self.second[pair])
        result = as_result(solve(both, seconds, stop), self.metric)
        if not stop.is_set():
            distance, lower = np.array([result.distance]), np.array([result.lower_bound])
            self._write(np.array([pair]), distance, lower, np.array([result.exact]), seconds)

    def _write(
        self,
        pairs: Int[np.ndarray, " k"],
        distance: Float[np.ndarray, " k"],
        lower: Float[np.ndarray, " k"],
        exact: Bool[np.ndarray, " k"],
        seconds: float | None,
    ) -> None:
        """Updates the table, unless an earlier attempt at a pair gave a better bound."""
        table = self.table
        table.distance[pairs] = np.fmin(table.distance[pairs], distance)  # ignores NaN
        table.lower[pairs] = np.maximum(table.lower[pairs], lower)
        table.exact[pairs] = exact
        table.limit[pairs] = np.inf if seconds is None else seconds


@kernel
def solve_pairs(
    model: Model,
    packed: Packed,
    first: Int[np.ndarray, " K"],
    second: Int[np.ndarray, " K"],
    largest: int,
    glance: int,
    effort: int,
    cost: Float[np.ndarray, " K"],
    solved: Bool[np.ndarray, " K"],
) -> None:
    """Searches each pair briefly; this solves nearly all small pairs.

    Args:
        model: the costs.
        packed: the graphs.
        first: index of the first graph of each pair.
        second: index of the second graph of each pair.
        largest: larger pairs are skipped.
        glance: relaxations spent on a pair without probing.
        effort: relaxations times squared vertices spent on a pair with probing.
        cost: least cost of each pair; written where the search is complete.
        solved: whether the search is complete; written.
    """
    for k in range(first.size):
        pair = pair_of(model, packed, first[k], packed, second[k])
        solved[k] = False
        if pair.label_a.size <= largest:
            tree, _, solved[k] = search_briefly(pair, np.inf, glance, effort)
            cost[k] = tree.value[0]


def _square(table: PairTable, unique: int, copy_of: Int[np.ndarray, " B"]) -> DistanceIntervals:
    """Square matrices over all graphs, from the pairs of graphs that are not isomorphic."""
    upper = np.triu_indices(unique, k=1)
    matrices = []
    for values, diagonal in ((table.distance, 0.0), (table.lower, 0.0), (table.exact, True)):
        square = np.full((unique, unique), diagonal, dtype=values.dtype)
        square[upper] = values
        square.T[upper] = values
        matrices.append(square[np.ix_(copy_of, copy_of)])
    return DistanceIntervals(*matrices)
