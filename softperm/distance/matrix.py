"""The distances of all pairs of a collection: in parallel, resumable, copies computed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from softperm.data.graphs import as_graphs
from softperm.distance.batch import solve_pairs
from softperm.distance.checkpoint import PairTable, fingerprint, load, save
from softperm.distance.exact import EFFORT, LARGEST, check_time_limit, solve
from softperm.distance.pack import Packed, pack, pair_of
from softperm.distance.search import GLANCE
from softperm.distance.symmetry import representatives

PORTION = 64  # pairs of one task: long enough for threads, short enough for the progress bar
SAVE_EVERY = 10.0  # seconds between two checkpoints


@dataclass(frozen=True, eq=False)
class DistanceIntervals:
    """All pairs of a collection with what is proven about them.

    Args:
        distance: (B, B) least distances found; the distances themselves where ``exact``.
        lower_bound: (B, B) numbers the distances are proven not to fall below.
        exact: (B, B) whether a distance is proven.
    """

    distance: Float[np.ndarray, "B B"]
    lower_bound: Float[np.ndarray, "B B"]
    exact: Bool[np.ndarray, "B B"]


def frobenius_matrix(
    graphs: Iterable[Any],
    *,
    labels: bool = False,
    time_limit: float | None = None,
    workers: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Float[np.ndarray, "B B"]:
    """The Frobenius distances of all pairs of graphs (:func:`frobenius_distance`).

    Args:
        graphs: the graphs, all of one kind.
        labels: whether only vertices of equal label may be matched.
        time_limit: seconds a single pair may take. Pairs that would need more have the least
            distance found; :func:`frobenius_intervals` says which they are.
        workers: threads; as many as there are processors by default.
        checkpoint: a file that keeps finished pairs, so that an interrupted call resumes there. It
            is refused if it belongs to other graphs; pairs in it that are not proven are computed
            again when the time limit has grown.
        progress: whether to show a progress bar with the time left; or a function to call with
            the number of pairs that are done, and of all.

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
        time_limit=time_limit,
        workers=workers,
        checkpoint=checkpoint,
        progress=progress,
    ).distance


def frobenius_intervals(
    graphs: Iterable[Any],
    *,
    labels: bool = False,
    time_limit: float | None = None,
    workers: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> DistanceIntervals:
    """The distances of all pairs, with lower bounds and whether each is proven.

    Args:
        graphs: the graphs, all of one kind.
        labels: as for :func:`frobenius_matrix`.
        time_limit: as for :func:`frobenius_matrix`.
        workers: as for :func:`frobenius_matrix`.
        checkpoint: as for :func:`frobenius_matrix`.
        progress: as for :func:`frobenius_matrix`.

    Returns:
        Distances, lower bounds and proofs, (B, B) each.
    """
    check_time_limit(time_limit)
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; expected at least 1, or None for all processors")
    packed = pack(as_graphs(graphs), labels=labels)
    own, copy_of = np.unique(representatives(packed), return_inverse=True)  # (U,), (B,)
    first, second = (own[side] for side in np.triu_indices(own.size, k=1))  # (K,) each
    path = None if checkpoint is None else Path(checkpoint)
    mark = fingerprint(packed)
    table = PairTable.empty(first.size) if path is None else load(path, first.size, mark)
    run = _Run(packed, first, second, table, time_limit, Event())
    todo = np.flatnonzero(table.missing(time_limit))
    try:
        with _bar(first.size, first.size - todo.size, progress) as report:
            saved = monotonic()
            for done in _parallel(run, todo, workers):
                report(done)
                if path is not None and monotonic() - saved > SAVE_EVERY:
                    save(path, table, mark)
                    saved = monotonic()
    finally:
        if path is not None and todo.size:
            save(path, table, mark)
    return _unfold(table, own.size, copy_of)


@dataclass(frozen=True, eq=False)
class _Run:
    """The pairs to compute and where their distances go."""

    packed: Packed
    first: Int[np.ndarray, " K"]
    second: Int[np.ndarray, " K"]
    table: PairTable
    time_limit: float | None
    stop: Event

    def portion(self, pairs: Int[np.ndarray, " k"]) -> Int[np.ndarray, " r"]:
        """Search some pairs briefly; returns those that need more."""
        cost = np.zeros(pairs.size)
        solved = np.zeros(pairs.size, dtype=bool)
        first, second = self.first[pairs], self.second[pairs]
        solve_pairs(self.packed, first, second, LARGEST, GLANCE, EFFORT, cost, solved)
        distance = np.sqrt(2 * cost[solved])
        self._write(pairs[solved], distance, distance, np.ones(distance.size, dtype=bool))
        return pairs[~solved]

    def single(self, pair: int) -> Int[np.ndarray, " r"]:
        """Search one pair up to the time limit; returns it only if it was stopped before that."""
        both = pair_of(self.packed, self.first[pair], self.second[pair])
        found = solve(both, self.time_limit, self.stop)
        if self.stop.is_set():
            return np.array([pair])
        distance, lower = np.array([found.distance]), np.array([found.lower_bound])
        self._write(np.array([pair]), distance, lower, np.array([found.exact]))
        return np.empty(0, dtype=np.int64)

    def _write(
        self,
        pairs: Int[np.ndarray, " k"],
        distance: Float[np.ndarray, " k"],
        lower: Float[np.ndarray, " k"],
        exact: Bool[np.ndarray, " k"],
    ) -> None:
        """Enter what was found, unless an earlier attempt at a pair knew more."""
        table = self.table
        table.distance[pairs] = np.fmin(table.distance[pairs], distance)  # NaN: not yet known
        table.lower[pairs] = np.maximum(table.lower[pairs], lower)
        table.exact[pairs] = exact
        table.limit[pairs] = np.inf if self.time_limit is None else self.time_limit


def _parallel(run: _Run, todo: Int[np.ndarray, " k"], workers: int | None) -> Iterator[int]:
    """Compute the pairs on threads; yields how many were finished since the last time.

    Portions come first, so that the long searches left over by them are spread evenly.
    """
    if not todo.size:
        return
    solve_pairs(run.packed, todo[:0], todo[:0], 0, 0, 0, np.empty(0), np.empty(0, dtype=bool))
    portions = [todo[k : k + PORTION] for k in range(0, todo.size, PORTION)]
    pool = ThreadPoolExecutor(workers or available_processors())
    try:
        pending: dict[Future, int] = {pool.submit(run.portion, p): p.size for p in portions}
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                size = pending.pop(future)
                left = future.result()
                pending |= {pool.submit(run.single, pair): 1 for pair in left.tolist()}
                yield size - left.size
    finally:
        run.stop.set()
        pool.shutdown(cancel_futures=True)


def available_processors() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _unfold(table: PairTable, unique: int, copy_of: Int[np.ndarray, " B"]) -> DistanceIntervals:
    """Square matrices of the unique graphs, repeated for their copies."""
    upper = np.triu_indices(unique, k=1)
    made = []
    for values, diagonal in ((table.distance, 0.0), (table.lower, 0.0), (table.exact, True)):
        square = np.full((unique, unique), diagonal, dtype=values.dtype)
        square[upper] = values
        square.T[upper] = values
        made.append(square[np.ix_(copy_of, copy_of)])
    return DistanceIntervals(*made)


@contextmanager
def _bar(
    total: int, done: int, shown: bool | Callable[[int, int], None]
) -> Iterator[Callable[[int], None]]:
    """A progress bar over pairs with the time left, as a function that moves it on."""
    if callable(shown):
        tell = shown

        def count(advance: int) -> None:
            nonlocal done
            done += advance
            tell(done, total)

        yield count
        return
    columns: Sequence[Any] = (
        TextColumn("distances"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("distances", total=total, completed=done)
        yield lambda advance: bar.advance(task, advance)
