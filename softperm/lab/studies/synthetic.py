"""The distance study: do distances between aligned vectors approximate Frobenius distances?

Section 5.1 of the paper on its 191 graphs, repeated on larger graphs with exact distances, and
extended by a network that is trained for the distances themselves and tested on held-out graphs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.metrics.pairwise import euclidean_distances
from torch import Tensor, nn

from softperm.data.collection import Collection
from softperm.data.vocabulary import Vocabulary
from softperm.distance import frobenius_matrix, joint_alignment
from softperm.errors import counted
from softperm.explore.plots import save
from softperm.files import write_atomically
from softperm.lab.baselines.layers import ReadoutGNN
from softperm.lab.report import Page
from softperm.nn.encoders import GCNEncoder, GINEncoder
from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.nn.permutation import align_adjacency
from softperm.progress import Report, silent
from softperm.pyg import Data
from softperm.settings import TrainingConfig
from softperm.training.stack import Stack
from softperm.training.tasks import Regression

ACTIVITY = "distance study"
FOR_DISTANCES = "π-GNN for distances"
"""Method name of networks that are trained for the distances themselves."""


STARTS: dict[str, dict[str, Any]] = {
    "hard": {"scaling": "log", "latent_scale": 200.0},
    "authors": {"scaling": "raw", "latent_init": "uniform"},
}
"""Settings of networks at their start: hard permutations, or those of the paper's authors."""


@dataclass(frozen=True)
class StudyConfig:
    """Settings of the distance study.

    Attributes:
        latent_vertices: values of P.
        seeds: number of networks for each P.
        epochs: epochs of each training; the lowest validation loss comes long before the last.
        held_out: fraction of graphs that select the best epoch and test the distance objective.
        distance_latent_vertices: values of P of networks trained for the distances themselves.
        distance_steps: optimiser steps of these networks.
        dustbin: whether vertices may stay unmatched.
        start: how networks start; see ``STARTS``.
        hidden: size of hidden vertex vectors.
    """

    latent_vertices: tuple[int, ...] = (5, 7, 9, 11, 13, 15)
    seeds: int = 5
    epochs: int = 150
    held_out: float = 0.1
    distance_latent_vertices: tuple[int, ...] = (7, 9)
    distance_steps: int = 150
    dustbin: bool = False
    start: str = "hard"
    hidden: int = 128


@dataclass(frozen=True)
class Fidelity:
    """Agreement of approximate with exact distances, over all pairs i ≤ j.

    Attributes:
        mse: mean squared error.
        correlation: Pearson correlation; 0 if either distances are constant.
        recall: fraction of each graph's ten nearest neighbours that are exact nearest neighbours.
    """

    mse: float
    correlation: float
    recall: float


def vector_distances(vectors: Float[np.ndarray, "B Z"]) -> Float[np.ndarray, "B B"]:
    """Euclidean distances between all pairs of rows."""
    return euclidean_distances(vectors.astype(np.float64))


def fidelity(
    approximate: Float[np.ndarray, "B B"], exact: Float[np.ndarray, "B B"], neighbours: int = 10
) -> Fidelity:
    """Compares approximate with exact distances.

    Every graph that is not farther than the tenth nearest is an exact neighbour, so ties count.
    """
    pairs = np.triu_indices(len(exact))
    a, b = approximate[pairs], exact[pairs]
    varies = a.std() > 0 and b.std() > 0
    correlation = float(np.corrcoef(a, b)[0, 1]) if varies else 0.0
    return Fidelity(
        float(((a - b) ** 2).mean()), correlation, _recall(approximate, exact, neighbours)
    )


def _recall(approximate: np.ndarray, exact: np.ndarray, neighbours: int) -> float:
    count = min(neighbours, len(exact) - 1)
    if count < 1:
        return 1.0
    itself = np.where(np.eye(len(exact), dtype=bool), np.inf, 0.0)
    approximate, exact = approximate + itself, exact + itself
    nearest = np.argsort(approximate, axis=1, kind="stable")[:, :count]  # (B, count)
    radius = np.sort(exact, axis=1)[:, count - 1]  # (B,)
    return float((np.take_along_axis(exact, nearest, axis=1) <= radius[:, None] + 1e-9).mean())


@dataclass(frozen=True)
class MethodResult:
    """The fidelity of one method.

    Attributes:
        method: name of the method.
        latent_vertices: P; None for methods without it.
        runs: the fidelity of each seed.
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
    """The results of the study.

    Attributes:
        results: every method on all graphs.
        held_out: every method on pairs of held-out graphs.
        distances: exact distances.
        learnt: distances of the best network for each P.
    """

    results: tuple[MethodResult, ...]
    held_out: tuple[MethodResult, ...]
    distances: Float[np.ndarray, "B B"]
    learnt: dict[int, Float[np.ndarray, "B B"]]


def run(
    graphs: Sequence[Data],
    config: StudyConfig,
    folder: Path,
    *,
    device: str = "cpu",
    progress: Report = silent,
) -> Study:
    """Runs the study on a collection of small graphs; finished parts are loaded, not repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    files = _StudyFiles(folder, config, graphs)

    def count(activity: str, done: float, total: float = 1, note: str = "") -> None:
        share = 0.1 * done / max(total, 1)
        progress(ACTIVITY, share, 1, f"{activity}, {done:,.0f} of {total:,.0f} pairs")

    progress(ACTIVITY, 0.0, 1, "exact distances of all pairs")
    distances = files.array(
        "distances",
        lambda: frobenius_matrix(graphs, checkpoint=folder / "pairs.npz", progress=count),
    )
    collection = Vocabulary.learn(list(graphs)).encode(list(graphs))
    methods = _Methods(collection, distances, config, device)
    results, learnt = [], {}
    for i, p in enumerate(config.latent_vertices):
        share = 0.1 + 0.7 * i / len(config.latent_vertices)
        progress(ACTIVITY, share, 1, f"π-GNN with P = {p}, {counted(config.seeds, 'seed')}")
        result, learnt[p] = files.task_results(p, lambda p=p: methods.learn_task(p))
        results.append(result)
    progress(ACTIVITY, 0.8, 1, "baselines")
    results += [files.results(name, make) for name, make in methods.baselines().items()]
    for p in config.distance_latent_vertices:
        progress(ACTIVITY, 0.88, 1, f"networks trained for the distances, P = {p}")
        results.append(files.results(f"for-distances-{p}", lambda p=p: methods.learn_distances(p)))
    progress(ACTIVITY, 0.96, 1, "joint alignment")
    results.append(files.results("joint-alignment", lambda: methods.align_jointly(graphs)))
    progress(ACTIVITY, 1.0, 1, "done")
    everywhere, held_out = ([result[part] for result in results] for part in ("all", "held"))
    return Study(tuple(everywhere), tuple(held_out), distances, learnt)


Results = dict[str, MethodResult]
"""The results of one method on ``all`` graphs and on ``held`` out ones."""


class _StudyFiles:
    """Finished parts of a study on disk; refuses a folder with other settings or graphs."""

    def __init__(self, folder: Path, config: StudyConfig, graphs: Sequence[Data]) -> None:
        self.folder = folder
        edges = [[g.num_nodes, g.edge_index.tolist()] for g in graphs]
        key = json.dumps([asdict(config), edges])
        path = folder / "study.json"
        if path.exists() and path.read_text() != key:
            raise ValueError(
                f"{folder} holds a study with other settings or graphs: "
                "delete it, or choose another folder"
            )
        write_atomically(path, key)

    def array(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Loads an array, or computes and saves it."""
        path = self.folder / f"{name}.npy"
        if not path.exists():
            _save_array(path, compute())
        return np.load(path)

    def results(self, name: str, compute: Callable[[], Results]) -> Results:
        """Loads the results of a method, or computes and saves them."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            _save_results(path, compute())
        return _load_results(path)

    def task_results(
        self, p: int, compute: Callable[[], tuple[Results, np.ndarray]]
    ) -> tuple[Results, np.ndarray]:
        """Loads the results of π-GNN and the distances of its best network, or computes both.

        A process may have been killed between the two files: both are needed.
        """
        path, learnt = self.folder / f"pi-gnn-{p}.json", self.folder / f"learnt-{p}.npy"
        if not path.exists() or not learnt.exists():
            results, distances = compute()
            _save_array(learnt, distances)
            _save_results(path, results)
        return _load_results(path), np.load(learnt)


def _save_array(path: Path, array: np.ndarray) -> None:
    content = io.BytesIO()
    np.save(content, array)
    write_atomically(path, content.getvalue())


def _save_results(path: Path, results: Results) -> None:
    write_atomically(path, json.dumps({k: asdict(v) for k, v in results.items()}, indent=1))


def _load_results(path: Path) -> Results:
    content = json.loads(path.read_text())
    return {
        key: MethodResult(
            value["method"],
            value["latent_vertices"],
            tuple(Fidelity(**run) for run in value["runs"]),
        )
        for key, value in content.items()
    }


class _Methods:
    """The methods that turn graphs into vectors, and their fidelity to the exact distances."""

    def __init__(
        self, collection: Collection, distances: np.ndarray, config: StudyConfig, device: str
    ) -> None:
        self.collection, self.distances, self.config = collection, distances, config
        self.device = torch.device(device)
        self.everything = collection.to(device).batch(torch.arange(len(collection)))
        self.largest = int(collection.sizes.max())

    def _split(self, seed: int) -> tuple[Tensor, Tensor]:
        """Training and held-out graphs of a seed."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.collection), generator=generator)
        held = max(2, round(self.config.held_out * len(order)))
        return order[held:], order[:held]

    def _compare(self, method: str, p: int | None, distances: Sequence[np.ndarray]) -> Results:
        """The fidelity of each seed's distances, over all graphs and over its held-out ones."""
        held_out = [self._split(seed)[1].numpy() for seed in range(len(distances))]
        everywhere = tuple(fidelity(d, self.distances) for d in distances)
        outside = tuple(
            fidelity(d[np.ix_(h, h)], self.distances[np.ix_(h, h)])
            for d, h in zip(distances, held_out, strict=True)
        )
        results = {"all": everywhere, "held": outside}
        return {part: MethodResult(method, p, runs) for part, runs in results.items()}

    def _train(self, models: Sequence[nn.Module]) -> list[float]:
        """Learns the number of vertices; returns each model's lowest validation loss."""
        y = self.collection.sizes.double()[:, None]
        splits = [self._split(seed) for seed in range(len(models))]
        results = Stack(
            models,
            [Regression.of(y[train]) for train, _ in splits],
            self.collection,
            y,
            [train for train, _ in splits],
            [held for _, held in splits],
            list(range(len(models))),
            TrainingConfig(epochs=self.config.epochs),
            device=self.device,
        ).fit()
        return [min(epoch.validation_loss for epoch in result.curve) for result in results]

    @torch.no_grad()
    def _distances(self, model: PiGNN | ReadoutGNN) -> np.ndarray:
        return vector_distances(model.eval().transform(self.everything).double().cpu().numpy())

    def network(self, p: int, seed: int, capacity: int | None) -> PiGNN:
        """A fresh π-GNN of the study."""
        own = self.config
        size = {"latent_vertices": p, "hidden": own.hidden, "dustbin": own.dustbin}
        config = ModelConfig(outputs=1, capacity=capacity, **size, **STARTS[own.start])
        return build(config, seed)

    def learn_task(self, p: int) -> tuple[Results, np.ndarray]:
        """π-GNN trained on the number of vertices, as in the paper.

        Returns:
            The results, and the distances of the network with the lowest validation loss.
        """
        models = [self.network(p, seed, self.largest) for seed in range(self.config.seeds)]
        losses = self._train(models)
        distances = [self._distances(model) for model in models]
        return self._compare("π-GNN", p, distances), distances[int(np.argmin(losses))]

    def learn_distances(self, p: int) -> Results:
        """π-GNN whose vectors' distances regress the true distances of training pairs."""
        distances = []
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
            distances.append(float(scale.detach()) * self._distances(model))
        return self._compare(FOR_DISTANCES, p, distances)

    def baselines(self) -> dict[str, Callable[[], Results]]:
        """The baselines of the paper, by name."""
        return {
            "random": lambda: self._permuted("random"),
            "uniform": lambda: self._permuted("uniform"),
            "gcn": lambda: self._readout("GCN", GCNEncoder),
            "gin": lambda: self._readout("GIN", GINEncoder),
        }

    def _permuted(self, name: str) -> Results:
        """Random hard assignments to the places of the largest graph, or uniform plans."""
        distances, most = [], self.largest
        batch = self.collection.batch(torch.arange(len(self.collection)))
        for seed in range(self.config.seeds):
            d = torch.full((int(batch.ptr[-1]), most), 1 / most)  # (V, n)
            if name == "random":
                generator = torch.Generator().manual_seed(seed)
                sizes = self.collection.sizes.tolist()
                places = [torch.randperm(most, generator=generator)[:n] for n in sizes]
                d = torch.eye(most)[torch.cat(places)]
            aligned = align_adjacency(d, batch.edge_index, batch.ptr, canonical=True)
            distances.append(vector_distances(aligned.flatten(1).numpy()))
        return self._compare(name, None, distances)

    def _readout(self, name: str, kind: type[nn.Module]) -> Results:
        models = []
        for seed in range(self.config.seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                encoder = kind(2, self.config.hidden, 2)
                models.append(ReadoutGNN(encoder, self.config.hidden, 1))
        self._train(models)
        return self._compare(name, None, [self._distances(model) for model in models])

    def align_jointly(self, graphs: Sequence[Data]) -> Results:
        """The paper's alignment problem, solved by local search over hard permutations."""
        joint = joint_alignment(graphs, distances=self.distances)
        return self._compare("joint alignment", None, [joint.distances])


PAPER = "the paper: MSE below 1 at P = 7 and 9, correlation about 0.9 at every P, baselines above 4"


def curves(results: Sequence[MethodResult]) -> Figure:
    """MSE and correlation over the number of latent vertices, baselines as lines across."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    measures = [("mse", "mean squared error"), ("correlation", "Pearson correlation")]
    methods = dict.fromkeys(["π-GNN", *(o.method for o in results)])
    for axis, (name, label) in zip(axes, measures, strict=True):
        for i, method in enumerate(methods):
            group = [o for o in results if o.method == method]
            line: dict[str, Any] = {"color": f"C{i}", "label": method}
            if group[0].latent_vertices is None:
                axis.axhline(group[0].mean(name), linestyle="--", **line)
                continue
            line |= {"marker": "s", "linestyle": ":"} if i else {"marker": "o"}
            values, spread = [o.mean(name) for o in group], [o.std(name) for o in group]
            axis.errorbar([o.latent_vertices for o in group], values, spread, capsize=3, **line)
        ticks = [o.latent_vertices for o in _ours(results)]
        axis.set(xlabel="latent vertices P", ylabel=label, xticks=ticks)
    axes[0].set_yscale("log")
    axes[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def heat_maps(study: Study, p: int) -> Figure:
    """True and learnt distances of all pairs side by side, on one scale."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    axes = figure.subplots(1, 2)
    top = float(study.distances.max())
    panels = [("Frobenius distance", study.distances), (f"π-GNN, P = {p}", study.learnt[p])]
    for axis, (name, matrix) in zip(axes, panels, strict=True):
        image = axis.imshow(matrix, cmap="viridis", vmin=0, vmax=top, interpolation="nearest")
        axis.set(title=name, xlabel="graph", ylabel="graph")
    figure.colorbar(image, ax=axes, shrink=0.85, label="distance")
    return figure


def _ours(results: Sequence[MethodResult]) -> list[MethodResult]:
    """The results of π-GNN trained on the number of vertices, for each P."""
    return [o for o in results if o.method == "π-GNN"]


def best_result(study: Study) -> MethodResult:
    """The result of the P whose networks come closest on average."""
    return min(_ours(study.results), key=lambda o: o.mean("mse"))


def rows(results: Sequence[MethodResult]) -> list[dict[str, object]]:
    """A table's rows: mean ± standard deviation over the seeds."""
    titles = {"mse": "MSE", "correlation": "correlation", "recall": "recall@10"}
    return [
        {
            "method": o.method + ("" if (p := o.latent_vertices) is None else f", P = {p}"),
            "seeds": len(o.runs),
            **{title: f"{o.mean(name):.3f} ± {o.std(name):.3f}" for name, title in titles.items()},
        }
        for o in results
    ]


def _statistics(graphs: Sequence[Data]) -> str:
    """Sizes of the graphs and of the paper's graphs."""
    v, e = [int(g.num_nodes or 0) for g in graphs], [g.num_edges // 2 for g in graphs]
    return (
        f", {min(v)} to {max(v)} vertices (mean {np.mean(v):.2f}), {min(e)} to {max(e)} edges "
        f"(mean {np.mean(e):.2f}); the paper's 191 have 2 to 9 (7.29) and 1 to 36 (11.34)"
    )


def write(
    study: Study, config: StudyConfig, graphs: Sequence[Data], folder: Path, title: str
) -> Path:
    """Writes figures as PNG and SVG, and the page; returns the page's path."""
    p = best_result(study).latent_vertices or 0
    drawn = {"curves": curves(study.results), "heat-maps": heat_maps(study, p)}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.png")
        save(figure, folder / f"{name}.svg")
    count = len(study.distances)
    page = Page(title)
    page.paragraph(
        f"{count} graphs{_statistics(graphs)}; exact Frobenius distances of all "
        f"{count * (count + 1) // 2:,} pairs. Networks learn the number of vertices "
        f"({counted(config.epochs, 'epoch')}, {counted(config.seeds, 'seed')} for each P, the "
        "epoch of lowest validation loss kept); the table compares distances between aligned "
        f"vectors with the true ones. Expected from {PAPER}."
    )
    page.figure(drawn["curves"], "Error bars: standard deviation over seeds.")
    page.table(rows(study.results))
    page.paragraph(_verdict(study))
    page.figure(drawn["heat-maps"], "All pairs of graphs, on one scale.")
    page.heading("Graphs held out")
    page.paragraph(
        f"Pairs among the {config.held_out:.0%} of graphs that neither choose parameters of the "
        "distance objective nor enter its pairs; for networks trained on the number of vertices "
        "the same graphs chose the best epoch. Joint alignment has seen all graphs: it shows what "
        "one hard permutation per graph can reach."
    )
    page.table(rows(study.held_out))
    path = folder / "report.html"
    page.save(path)
    return path


def _verdict(study: Study) -> str:
    """Which claims of the paper hold, and why others do not."""
    ours = _ours(study.results)
    low = ", ".join(str(o.latent_vertices) for o in ours if o.mean("mse") < 1)
    lowest = min(o.mean("correlation") for o in ours)
    best = [o for o in study.results if o.method == FOR_DISTANCES]
    reached = "; ".join(
        f"P = {o.latent_vertices}: MSE {o.mean('mse'):.2f}, correlation {o.mean('correlation'):.2f}"
        for o in best
    )
    return (
        f"Trained on the number of vertices, the mean MSE is below 1 at P = {low or 'none'}, and "
        f"the lowest mean correlation is {lowest:.3f}. That target says nothing about distances: "
        "training hardly moves the plan, so what decides is how hard the assignment is at the "
        "start, and that varies with the seed. Harder plans have lower errors, because soft ones "
        "shrink all vectors, and lower correlations, because vertices of equal features cannot be "
        f"told apart. Trained for the distances of training pairs, networks reach {reached}."
    )


def summary(study: Study) -> dict[str, float | int]:
    """The figures that matter most."""
    best = best_result(study)
    return {
        "pairs": len(study.distances) * (len(study.distances) + 1) // 2,
        "best_latent_vertices": best.latent_vertices or 0,
        "mse_at_best": best.mean("mse"),
        "lowest_correlation": min(o.mean("correlation") for o in _ours(study.results)),
    }
