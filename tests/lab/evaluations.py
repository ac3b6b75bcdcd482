"""Small data and contenders that are trained in no time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from samples import collect, rings_and_cliques

from softperm.lab.evaluation_data import EvaluationData, Target, from_graphs
from softperm.lab.jobs import Job, group_into_jobs, train_job
from softperm.lab.protocol import Contender, ProtocolSettings, Selected, final_runs, selection_runs
from softperm.lab.recipes import read_recipe
from softperm.lab.records import PeakMemory, Record
from softperm.lab.scheduler import LocalExecutor

FOLDS = 3
TRAINING = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-2, "criterion": "score"}
SMALL = {"head_hidden": [8], "head_final": 4, "hidden": 4, "iterations": 20}
PROTOCOL = ProtocolSettings(final_runs=2, seed=0, stack=64)


def small_data(count: int = 24) -> EvaluationData:
    """Cycles against complete graphs in three folds."""
    graphs, y = rings_and_cliques(count)
    content = "rings", collect(graphs), torch.from_numpy(y), "classification"
    return from_graphs(read_recipe("own"), *content, seed=0, folds=FOLDS)


DATA = small_data()
PLACES = [("rings", fold) for fold in range(FOLDS)]


def regression(*names: str) -> EvaluationData:
    """The numbers of vertices and edges as targets on the same graphs."""
    graphs = DATA.graphs
    values = {"vertices": graphs.sizes, "edges": graphs.edge_ptr.diff()}
    targets = [Target(f"rings-{n}", values[n][:, None].double(), f"print of {n}") for n in names]
    return replace(DATA, kind="regression", targets={t.name: t for t in targets})


def contender(model: str = "pi-gnn", sizes: tuple[int, ...] = (3, 4)) -> Contender:
    """π-GNN with a choice of latent vertices."""
    made = ({**TRAINING, **SMALL, "latent_vertices": p} for p in sizes)
    return Contender(model, tuple(made))


def selection_jobs(
    data: EvaluationData, contender: Contender, settings: ProtocolSettings
) -> list[Job]:
    """The jobs of the selection stage."""
    return group_into_jobs(selection_runs(data, contender, settings), settings.stack)


def final_jobs(
    data: EvaluationData, model: str, chosen: Selected, settings: ProtocolSettings
) -> list[Job]:
    """The jobs of the final stage."""
    return group_into_jobs(final_runs(data, model, chosen, settings), settings.stack)


def train(job: Job, data: EvaluationData = DATA) -> list[Record]:
    """The records of a job that is trained here, from beginning to end."""
    steps = train_job(job, data, PeakMemory(torch.device("cpu")))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def digests(records: Iterable[Record]) -> set[str]:
    """The digests of records: equal if all numbers are equal, to the last bit."""
    return {record.digest for record in records}


class Forbidden:
    """An executor that refuses all work."""

    def run(self, jobs, data, folder, on_epoch) -> Iterator:
        assert not list(jobs), [job.name for job in jobs]
        return iter(())


class DiesAfter:
    """An executor that is killed after some jobs."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs

    def run(self, jobs, data, folder, on_epoch) -> Iterator:
        for done in LocalExecutor().run(jobs, data, folder, on_epoch):
            if self.left == 0:
                raise RuntimeError("killed")
            self.left -= 1
            yield done
