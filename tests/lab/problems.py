"""A small problem and contenders that are trained in no time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from samples import collect, rings_and_cliques

from softperm.lab.desk import stacks
from softperm.lab.engines import LocalEngine
from softperm.lab.jobs import Job
from softperm.lab.problem import Problem, Question, own_problem
from softperm.lab.protocol import Chosen, Contender, Rules, final_runs, selection_runs
from softperm.lab.recipes import read_recipe
from softperm.lab.records import Record

FOLDS = 3
TRAINING = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-2, "criterion": "score"}
SMALL = {"head_hidden": [8], "head_final": 4, "hidden": 4, "iterations": 20}
RULES = Rules(final_runs=2, seed=0, stack=64)


def problem(count: int = 24) -> Problem:
    """Cycles against complete graphs in three folds."""
    graphs, y = rings_and_cliques(count)
    content = "rings", collect(graphs), torch.from_numpy(y), "classification"
    return own_problem(read_recipe("own"), *content, seed=0, folds=FOLDS)


PROBLEM = problem()
PLACES = [("rings", fold) for fold in range(FOLDS)]


def regression(*names: str) -> Problem:
    """How many vertices and edges a graph has, as questions about the same graphs."""
    graphs = PROBLEM.graphs
    values = {"vertices": graphs.sizes, "edges": graphs.edge_ptr.diff()}
    asked = [Question(f"rings-{n}", values[n][:, None].double(), f"print of {n}") for n in names]
    return replace(PROBLEM, kind="regression", questions={q.name: q for q in asked})


def contender(model: str = "pi-gnn", sizes: tuple[int, ...] = (3, 4)) -> Contender:
    """π-GNN with a choice of latent vertices."""
    made = ({**TRAINING, **SMALL, "latent_vertices": p} for p in sizes)
    return Contender(model, tuple(made))


def selection_jobs(problem: Problem, contender: Contender, rules: Rules) -> list[Job]:
    """What choosing takes."""
    return stacks(selection_runs(problem, contender, rules), rules.stack)


def final_jobs(problem: Problem, model: str, chosen: Chosen, rules: Rules) -> list[Job]:
    """What testing takes."""
    return stacks(final_runs(problem, model, chosen, rules), rules.stack)


def digests(records: Iterable[Record]) -> set[str]:
    """What all numbers of some records come to, to the last bit."""
    return {record.digest for record in records}


class Forbidden:
    """An engine for runs in which nothing is left to do."""

    def run(self, jobs, problem, folder, on_epoch) -> Iterator:
        assert not list(jobs), [job.name for job in jobs]
        return iter(())


class DiesAfter:
    """A local engine that is killed when it has done some jobs."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs

    def run(self, jobs, problem, folder, on_epoch) -> Iterator:
        for done in LocalEngine().run(jobs, problem, folder, on_epoch):
            if self.left == 0:
                raise RuntimeError("killed")
            self.left -= 1
            yield done
