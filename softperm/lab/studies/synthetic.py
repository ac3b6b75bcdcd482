"""The distance study: do distances between aligned vectors stand for Frobenius distances?

The paper's Section 5.1 on its 191 graphs, repeated on larger graphs with proven distances, and
taken further: a network trained for the distances themselves, judged on graphs it has not seen.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch_geometric.data import Data

from softperm.data.collection import Collection
from softperm.data.vocabulary import Vocabulary
from softperm.distance import frobenius_matrix, joint_alignment
from softperm.files import write_atomically
from softperm.lab.baselines.readout import ReadoutGNN
from softperm.lab.studies.measures import Fidelity, fidelity, vector_distances
from softperm.nn.alignment import align_adjacency
from softperm.nn.encoders import GCNEncoder, GINEncoder
from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.training.fit import TrainingConfig
from softperm.training.stack import fit_stack
from softperm.training.tasks import Regression

Say = Callable[[str, float], None]
"""Told what is being done, and what share of the whole study is behind."""

FOR_DISTANCES = "π-GNN for distances"
"""The name of networks trained for the distances themselves."""


@dataclass(frozen=True)
class StudyConfig:
    """The choices of the distance study.

    Attributes:
        latent_vertices: values of P to try.
        seeds: how many networks are trained for each.
        epochs: of each training; the lowest validation loss comes long before the last.
        held_out: share of graphs that choose the best epoch, and that judge the distance objective.
        distance_latent_vertices: values of P for the network trained for the distances themselves.
        distance_steps: its optimiser steps.
        dustbin: whether vertices may stay unmatched.
        scaling: of degree and triangle counts.
        latent_scale: scale of the latent vertices at the start; see ``ModelConfig``.
        hidden: size of hidden vertex vectors.
    """

    latent_vertices: tuple[int, ...] = (5, 7, 9, 11, 13, 15)
    seeds: int = 5
    epochs: int = 150
    held_out: float = 0.1
    distance_latent_vertices: tuple[int, ...] = (7, 9)
    distance_steps: int = 150
    dustbin: bool = False
    scaling: str = "log"
    latent_scale: float = 200.0
    hidden: int = 128


@dataclass(frozen=True)
class Outcome:
    """What one way of making vectors gave, over its seeds.

    Attributes:
        method: which.
        latent_vertices: P, or None where there is none.
        runs: one figure of merit per seed.
    """

    method: str
    latent_vertices: int | None
    runs: tuple[Fidelity, ...]

    def mean(self, name: str) -> float:
        """Mean of a measure over the seeds."""
        return float(np.mean([getattr(run, name) for run in self.runs]))

    def std(self, name: str) -> float:
        """Standard deviation of a measure over the seeds."""
        return float(np.std([getattr(run, name) for run in self.runs]))


@dataclass(frozen=True)
class Study:
    """Everything the study found.

    Attributes:
        outcomes: every method on all graphs.
        held_out: every method on pairs of graphs that the distance objective never saw.
        distances: the true distances.
        learnt: the distances of the best network at each P.
    """

    outcomes: tuple[Outcome, ...]
    held_out: tuple[Outcome, ...]
    distances: Float[np.ndarray, "B B"]
    learnt: dict[int, Float[np.ndarray, "B B"]]


def run(
    graphs: Sequence[Data],
    config: StudyConfig,
    folder: Path,
    *,
    device: str = "cpu",
    say: Say = lambda what, share: None,
) -> Study:
    """The whole study on a collection of small graphs; finished parts are read, not repeated.

    Args:
        graphs: canonical graphs that carry nothing.
        config: the study's choices.
        folder: keeps every finished part.
        device: where networks are trained.
        say: told what is being done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = _Parts(folder, config, graphs)
    say("exact distances of all pairs", 0.0)

    def count(activity: str, done: float, total: float = 1, note: str = "") -> None:
        say(f"exact {activity}, {done:,} of {total:,} pairs", 0.1 * done / total)

    distances = parts.array(
        "distances",
        lambda: frobenius_matrix(graphs, checkpoint=folder / "pairs.npz", progress=count),
    )
    collection = Vocabulary.learn(list(graphs)).encode(list(graphs))
    trial = _Trial(collection, distances, config, device)
    outcomes, held, learnt = [], [], {}
    for i, p in enumerate(config.latent_vertices):
        share = 0.1 + 0.7 * i / len(config.latent_vertices)
        say(f"π-GNN with P = {p}, {config.seeds} seeds", share)
        found = parts.outcomes(f"pi-gnn-{p}", lambda p=p: trial.learn_task(p))
        outcomes.append(found["all"])
        held.append(found["held"])
        learnt[p] = parts.array(f"learnt-{p}", lambda p=p: trial.best_distances[p])
    say("baselines", 0.8)
    for name, make in trial.baselines().items():
        found = parts.outcomes(name, make)
        outcomes.append(found["all"])
        held.append(found["held"])
    for p in config.distance_latent_vertices:
        say(f"networks trained for the distances, P = {p}", 0.88)
        found = parts.outcomes(f"for-distances-{p}", lambda p=p: trial.learn_distances(p))
        outcomes.append(found["all"])
        held.append(found["held"])
    say("joint alignment", 0.96)
    found = parts.outcomes("joint-alignment", lambda: trial.align_jointly(graphs))
    outcomes.append(found["all"])
    held.append(found["held"])
    say("done", 1.0)
    return Study(tuple(outcomes), tuple(held), distances, learnt)


class _Parts:
    """Finished parts of a study on disk; a change of choices or graphs begins anew."""

    def __init__(self, folder: Path, config: StudyConfig, graphs: Sequence[Data]) -> None:
        self.folder = folder
        edges = [[g.num_nodes, g.edge_index.tolist()] for g in graphs]
        key = json.dumps([asdict(config), edges])
        stamp = folder / "study.json"
        if stamp.exists() and stamp.read_text() != key:
            raise ValueError(
                f"{folder} holds a study with other choices or graphs: "
                "delete it, or choose another folder"
            )
        write_atomically(stamp, key.encode())

    def array(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """An array that is made once."""
        path = self.folder / f"{name}.npy"
        if not path.exists():
            content = io.BytesIO()
            np.save(content, make())
            write_atomically(path, content.getvalue())
        return np.load(path)

    def outcomes(self, name: str, make: Callable[[], dict[str, Outcome]]) -> dict[str, Outcome]:
        """Outcomes that are found once."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            made = {key: asdict(value) for key, value in make().items()}
            write_atomically(path, json.dumps(made, indent=1).encode())
        read = json.loads(path.read_text())
        return {
            key: Outcome(
                value["method"],
                value["latent_vertices"],
                tuple(Fidelity(**run) for run in value["runs"]),
            )
            for key, value in read.items()
        }


class _Trial:
    """The graphs, their true distances, and the ways to make vectors of them."""

    def __init__(
        self, collection: Collection, distances: np.ndarray, config: StudyConfig, device: str
    ) -> None:
        self.collection, self.distances, self.config = collection, distances, config
        self.device = torch.device(device)
        self.everything = collection.to(device).batch(torch.arange(len(collection)))
        self.largest = int(collection.sizes.max())
        self.best_distances: dict[int, np.ndarray] = {}

    def _split(self, seed: int) -> tuple[Tensor, Tensor]:
        """Training and held-out graphs of a seed."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.collection), generator=generator)
        held = max(2, round(self.config.held_out * len(order)))
        return order[held:], order[:held]

    def _outcome(
        self, method: str, p: int | None, made: Sequence[np.ndarray]
    ) -> dict[str, Outcome]:
        """The figures of each seed's distances, over all graphs and over its held-out ones."""
        held = [self._split(seed)[1].numpy() for seed in range(len(made))]
        everywhere = tuple(fidelity(d, self.distances) for d in made)
        outside = tuple(
            fidelity(d[np.ix_(h, h)], self.distances[np.ix_(h, h)])
            for d, h in zip(made, held, strict=True)
        )
        return {"all": Outcome(method, p, everywhere), "held": Outcome(method, p, outside)}

    def _train(self, models: Sequence[nn.Module]) -> list[float]:
        """Learns the number of vertices; returns each model's lowest validation loss."""
        y = self.collection.sizes.double()[:, None]
        splits = [self._split(seed) for seed in range(len(models))]
        results = fit_stack(
            models,
            [Regression.of(y[train]) for train, _ in splits],
            self.collection,
            y,
            [train for train, _ in splits],
            [held for _, held in splits],
            list(range(len(models))),
            TrainingConfig(epochs=self.config.epochs),
            device=self.device,
        )
        return [min(epoch.validation_loss for epoch in result.curve) for result in results]

    @torch.no_grad()
    def _distances(self, model: PiGNN | ReadoutGNN) -> np.ndarray:
        return vector_distances(model.eval().transform(self.everything).double().cpu().numpy())

    def network(self, p: int, seed: int, capacity: int | None) -> PiGNN:
        """A fresh π-GNN of the study."""
        config = ModelConfig(
            outputs=1,
            latent_vertices=p,
            hidden=self.config.hidden,
            dustbin=self.config.dustbin,
            scaling=self.config.scaling,
            latent_scale=self.config.latent_scale,
            capacity=capacity,
        )
        return build(config, seed)

    def learn_task(self, p: int) -> dict[str, Outcome]:
        """π-GNN trained on the number of vertices, as the paper does."""
        models = [self.network(p, seed, self.largest) for seed in range(self.config.seeds)]
        losses = self._train(models)
        made = [self._distances(model) for model in models]
        self.best_distances[p] = made[int(np.argmin(losses))]
        return self._outcome("π-GNN", p, made)

    def learn_distances(self, p: int) -> dict[str, Outcome]:
        """π-GNN whose vectors' distances regress the true distances of training pairs."""
        made = []
        target = torch.from_numpy(self.distances).float().to(self.device)
        for seed in range(self.config.seeds):
            model = self.network(p, seed, self.largest).to(self.device).train()
            train = self._split(seed)[0].to(self.device)
            batch = self.collection.to(self.device).batch(train)
            scale = nn.Parameter(torch.ones((), device=self.device))
            optimiser = torch.optim.Adam([*model.permutation.parameters(), scale], lr=1e-2)
            truth = target[train][:, train]
            for _ in range(self.config.distance_steps):
                vectors = scale * model.transform(batch)  # (B, P · P)
                square = torch.cdist(vectors, vectors).square()
                loss = ((square + 1e-9).sqrt() - truth).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            made.append(float(scale.detach()) * self._distances(model))
        return self._outcome(FOR_DISTANCES, p, made)

    def baselines(self) -> dict[str, Callable[[], dict[str, Outcome]]]:
        """The systems that the paper compares with, by name."""
        return {
            "random": lambda: self._permuted("random", self._random),
            "uniform": lambda: self._permuted("uniform", self._uniform),
            "gcn": lambda: self._readout("GCN", GCNEncoder),
            "gin": lambda: self._readout("GIN", GINEncoder),
        }

    def _permuted(
        self, name: str, make: Callable[[int, torch.Generator], Tensor]
    ) -> dict[str, Outcome]:
        made = []
        batch = self.collection.batch(torch.arange(len(self.collection)))
        for seed in range(self.config.seeds):
            generator = torch.Generator().manual_seed(seed)
            d = torch.cat([make(int(n), generator) for n in self.collection.sizes])  # (V, n)
            aligned = align_adjacency(d, batch.edge_index, batch.ptr, canonical=True)
            made.append(vector_distances(aligned.flatten(1).numpy()))
        return self._outcome(name, None, made)

    def _random(self, n: int, generator: torch.Generator) -> Tensor:
        """A hard permutation of n vertices among as many places as the largest graph has."""
        return torch.eye(self.largest)[torch.randperm(self.largest, generator=generator)[:n]]

    def _uniform(self, n: int, generator: torch.Generator) -> Tensor:
        """Every vertex everywhere alike."""
        return torch.full((n, self.largest), 1 / self.largest)

    def _readout(self, name: str, kind: type[nn.Module]) -> dict[str, Outcome]:
        models = []
        for seed in range(self.config.seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                encoder = kind(2, self.config.hidden, 2)
                models.append(ReadoutGNN(encoder, self.config.hidden, 1))
        self._train(models)
        return self._outcome(name, None, [self._distances(model) for model in models])

    def align_jointly(self, graphs: Sequence[Data]) -> dict[str, Outcome]:
        """The paper's alignment problem by local search: what hard permutations can reach."""
        joint = joint_alignment(graphs, distances=self.distances)
        return self._outcome("joint alignment", None, [joint.distances])
